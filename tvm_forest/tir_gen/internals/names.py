"""Names of TVM's internals, and patterns of texts that TVM prints, which the package uses.

takes: nothing; gives: constants, each of which is also a row of `table.TABLE`.

Internals that need no constant, such as a Python function of TVM, have a row too.
"""

from __future__ import annotations

from .table import cuda, function, llvm, message, opencl, operator, python, rocm, windows, word

# -- global functions -----------------------------------------------------------------------------

REGISTER_REDUCER = function(
    "s_tir.schedule.RegisterReducer",
    "TVM's primitives take `tvm_forest.reduce` for a reduction; Python has no other way to say so",
)
REGISTER_OP = function("ir.RegisterOp", "operators of Relax that are not made in C++")
BUILD_LLVM = function("target.build.llvm", "its absence tells a TVM without LLVM")
BUILD_CUDA = function("target.build.cuda", "CUDA text of kernels that our own passes made")
BUILD_OPENCL = function("target.build.opencl", "OpenCL text of kernels that our own passes made")
BUILD_ROCM = function("target.build.rocm", "code of kernels that our own passes made, for AMD")
ROCM_BITCODE = function(
    "tvm_callback_rocm_bitcode_path",
    "replaced, so that kernels call `amdgpu.ll` and AMD's library need not be there",
)
ROCM_LINK = function(
    "tvm_callback_rocm_link", "replaced, to have the object file, and a linker that is there"
)
HOST_FEATURES = function(
    "tvm.codegen.llvm.GetHostCPUFeatures",
    "a virtual machine may hide instructions that its processor has by name",
)
function(
    "ffi.Module.load_from_file.ll",
    "LLVM's text becomes machine code: the pool, renamed functions, stored bitcode",
    "targets/machine_code.py",
    "targets/objects.py",
    "runtime/threads/pool_code.py",
)
RECURSIVE_HASH = function(
    "ffi.RecursiveHash", "takes the place of hashes that apache-tvm-ffi 0.1.15 misunderstands"
)
RECURSIVE_EQUAL = function(
    "ffi.RecursiveEq", "takes the place of comparisons that apache-tvm-ffi 0.1.15 misunderstands"
)

# -- operators ------------------------------------------------------------------------------------

SYNC = operator("tirx.tvm_storage_sync", "barriers of kernels are looked for, counted and replaced")
SHUFFLE = operator("tirx.tvm_warp_shuffle_down", "sums of threads in step")
CALL_KERNEL = operator("tirx.call_ffi_kernel", "launches, which `SplitHostDevice` leaves")
BUFFER_DATA = operator("tirx.buffer_data", "arguments of launches that are arrays")
ADDRESS_OF = operator("tirx.address_of", "buffers that code reads from an address on")
CALL_EXTERN = operator("tirx.call_extern", "calls of functions that we add to machine code")
CALL_PURE_EXTERN = operator("tirx.call_pure_extern", "such calls that have no effect")
CALL_LLVM = operator("tirx.call_llvm_pure_intrin", "`llvm.arithmetic.fence`, which texts leave out")
IF_THEN_ELSE = operator("prim.if_then_else", "sizes of launches that depend on a condition")
IS_NAN = operator("tirx.isnan", "what is printed as plain C")
FABS = operator("tirx.fabs", "what is printed as plain C")
FMA = operator("tirx.fma", "contributions, where the processor has it")
EXP = operator("tirx.exp", "replaced by a function with known bits on GPUs")
EXP2 = operator("tirx.exp2", "replaced by a function with known bits on GPUs")
LOG1P = operator("tirx.log1p", "replaced by a function with known bits on GPUs")
REINTERPRET = operator("tirx.reinterpret", "bits of one type that are read as another")
POW = operator("tirx.pow", "powers of two, which become `exp2`")

# -- Python names ---------------------------------------------------------------------------------

for _module in ("tvm.tirx.script", "tvm.tirx.script.parser"):
    python(_module, "`T.tvm_forest_reduce` and others are put there, so that TVMScript knows them")
for _module in ("tvm.relax.script", "tvm.relax.script.parser"):
    python(_module, "`R.tvm_forest` is put there, so that TVMScript knows it")
python(
    "tvm._version.version",
    "the file of it tells TVM's version, in keys of the cache, without an import",
    "targets/stored_code.py",
)
python("tvm.tirx.register_tir_pipeline", "TVM's passes in an order of our own, for plain loops")
python("tvm.tirx.compilation_pipeline.finalize_host_passes", "the last passes ahead of LLVM")
python("tvm.tirx.compilation_pipeline.finalize_device_passes", "the last passes ahead of texts")
python("tvm.target.codegen.llvm_get_cpu_features", "what LLVM knows of a processor")
python("tvm.target.codegen.llvm_get_cpu_archlist", "which processors LLVM knows")
python("tvm.target.codegen.llvm_get_system_cpu", "the processor at hand")
python("tvm.target.codegen.llvm_get_system_triple", "the machine at hand")
python("tvm.target.codegen.llvm_version_major", "the linker that belongs to TVM's LLVM")
python("tvm.support.cc.get_cc", "whether a compiler can link a library")
python("tvm.backend.cuda.op.cuda_func_call", "CUDA text of ours in a kernel of TVM's")
python("tvm.s_tir.dlight.ApplyDefaultSchedule", "threads for what surrounds a forest in Relax")
python("tvm.s_tir.dlight.gpu.Fallback", "threads for what surrounds a forest in Relax")
python("tvm.ir.make_node", "attributes of calls of our operators of Relax")
python("tvm.relax.utils.gen_call_tir_inputs", "tensor expressions for one device of several")
python("tvm.relax.frontend.nn.op.wrap_nested", "what a module of `nn` returns")
python("tvm.relax.frontend.nn.Tensor._expr", "the expression of a tensor of `nn`")

_ONNX = "tvm.relax.frontend.onnx.onnx_frontend."
python(f"{_ONNX}_get_convert_map", "which nodes TVM converts")
python(f"{_ONNX}get_constant", "inputs of nodes that are constants")
python(f"{_ONNX}ONNXGraphImporter._nodes", "the expressions of values, by name")
python(f"{_ONNX}ONNXGraphImporter._params", "the parameters among them")
python(f"{_ONNX}ONNXGraphImporter._check_for_unsupported_ops", "overridden: nodes of `ai.onnx.ml`")
python(f"{_ONNX}ONNXGraphImporter._parse_graph_initializers", "overridden: constants of texts")
python(f"{_ONNX}ONNXGraphImporter._parse_graph_input", "overridden: inputs of texts")
python(f"{_ONNX}ONNXGraphImporter._construct_nodes", "overridden: errors that name a node")

python("tvm_ffi.LIB.TVMFFIGetTypeAttrColumn", "the table of functions by which values are hashed")
python("tvm_ffi.LIB.TVMFFITypeKeyToIndex", "the place of a type in that table")
python(
    "tvm_ffi.Function.__chandle__",
    "the C functions of TVM take functions by their handles",
    "tir_gen/internals/value_hooks.py",
    "predictor/few_rows/builtin.py",
)
python("tvm_ffi.LIB.TVMFFIObjectIncRef", "what is put into that table stays alive")
_LINKED = "runtime/linked.py"
python("tvm_ffi.LIB.TVMFFIGetVersion", "the version, without its Python package", _LINKED)
python("tvm_ffi.LIB.TVMFFIFunctionCreate", "functions of libraries that Python loads", _LINKED)
python("tvm_ffi.LIB.TVMFFIObjectDecRef", "such functions go with the library", _LINKED)
python("tvm_ffi.Function.__from_extern_c__", "the same functions, where arrays are passed to them")

# -- words that TVM's C++ reads -------------------------------------------------------------------

PACKED = word("__tvm_ffi_", "how the symbols of functions begin that can be called")
CALLING_CONV = word("calling_conv", "kernels that no host launches are kernels all the same")
THREAD_EXTENT = word("thread_extent", "loops that are blocks or threads, once they are no loops")
IMPORT_LLVM = word("pragma_import_llvm", "LLVM's text of functions that TVM has no words for")
DEVICE_ID = word("device_id", "memory of functions that we split off is of the host")
DEVICE_TYPE = word("device_type", "memory of functions that we split off is of the host")
DYNAMIC_SHARED = word(
    "tirx.use_dyn_shared_memory", "shared memory whose size the launch says, in plans"
)
OP_PATTERN = word("op_pattern", "Relax fuses no forest with what surrounds it")
IS_SCHEDULED = word("tirx.is_scheduled", "TVM's schedules leave our functions as they are")
DICT_ATTRS = word("ir.DictAttrs", "attributes of calls of our operators of Relax, and of functions")
EXTERNAL_MODS = word("external_mods", "machine code that TVM links to a Relax module")
EFFECT_KIND = word("TCallEffectKind", "walks read memory, and are not written twice")
PRINTER_NAME = word("TScriptPrinterName", "our operators in TVMScript")
PRINTS_DTYPE = word("TScriptDtypePrintLocation", "our operators in TVMScript")
INFER_TYPE = word("FInferType", "the types of our operators of Relax")
PURITY = word("FPurity", "our operators of Relax have no effect")
LEGALIZE = word("FLegalize", "what becomes of our operators of Relax")
FORCE_FALLBACK = word("TVM_COMPILE_FORCE_FALLBACK", "TVM does not compile CUDA text by itself")
CUDA_NUMBERS = {
    word("CUDART_INF_F", "infinity, without CUDA's header"): "__int_as_float(0x7f800000)",
    word("CUDART_NAN_F", "no number, without CUDA's header"): "__int_as_float(0x7fffffff)",
    word(
        "CUDART_INF", "infinity, without CUDA's header"
    ): "__longlong_as_double(0x7ff0000000000000ll)",
    word(
        "CUDART_NAN", "no number, without CUDA's header"
    ): "__longlong_as_double(0x7ff8000000000000ll)",
}
"""CUDA expressions that replace macros of a header of the CUDA toolkit, by the macro."""

CL_OPT = word("cl-opt", "options of LLVM")
for _option in ("vectorize-slp", "vectorize-loops", "unroll-runtime", "disable-lsr"):
    word(_option, "an option of LLVM that is set, with the reason beside it", "targets/cpu.py")
PARALLEL_LAUNCH = word(
    "__TVMBackendParallelLaunch", "the variable through which parallel loops reach our threads"
)
word(
    "__TVMBackendAllocWorkspace",
    "the variable through which code asks for memory",
    "runtime/threads/pool.ll",
)
word(
    "__TVMBackendFreeWorkspace",
    "the variable through which code gives memory back",
    "runtime/threads/pool.ll",
)

NO_ROCM = message("Unable to detect ROCm version", "a warning that is left out")
NO_AMD_GPU = message("Cannot get maximum number of threads for AMD", "a warning that is left out")
NOT_FOUND = message("annot find", "tells that AMD's library or linker is missing, from a fault")

# -- texts ----------------------------------------------------------------------------------------

DLL_EXPORT = llvm(r"^(define|@\S+ =)( \w+)? dllexport", "names that exported libraries hide")
CALLABLE = llvm(r"^define (weak |linkonce )?(.*@__tvm_ffi_)", "functions, which become hidden")
BACKEND_VARIABLE = llvm(
    r"^(@__TVMBackend\w+) = .*global ptr null.*$", "variables that C code defines in their place"
)
RAISE = llvm(
    r"^declare (void @TVMFFIErrorSetRaisedFromCStrParts)(?=\(ptr, ptr, i32\))",
    "errors, which C code takes over",
)
HALF_FLOATS = llvm(
    r"^define weak (dso_local )?(\w+ @__(?:trunc|extend)\w+f2\()",
    "functions of half floats, which stay within their object file",
)
CALLABLE_NAME = llvm(r"@__tvm_ffi_(\w+)", "names of functions, which get the caller's prefix")
BACKEND_NAME = llvm(r"@__TVMBackend(\w+)", "names of variables, which get the caller's prefix")
RAISE_NAME = llvm(
    r"@TVMFFIErrorSetRaisedFromCStrParts\b", "its name, which gets the caller's prefix"
)
POWER = llvm(
    r"@(?:llvm\.(exp2?)\.(?:v(\d+))?f(32|64)|(log1p)(f?))\b",
    "powers and logarithms, which exported code computes by itself",
)
llvm(
    r"^define .*i32 @__tvm_ffi_predict\(ptr [^,]*, ptr [^,]*, i32 [^,]*, ptr ",
    "how functions are called, those of `pool.ll` too",
    "predictor/exporting/c/cpu.c",
    "runtime/threads/few_rows.ll",
    "runtime/threads/pool.ll",
    "runtime/threads/ranges.ll",
)
llvm(
    r"call i32 %\w+\(ptr nonnull @__tvm_parallel_lambda, ptr nonnull %\w+, i32 0\)",
    "how a parallel loop is run, through `__TVMBackendParallelLaunch`",
    "runtime/threads/pool.ll",
)
llvm(
    r"call ptr %\w+\(i32 1, i32 \S+, i64 \d+, i32 \d+, i32 \d+\)",
    "how memory is asked for, through `__TVMBackendAllocWorkspace`",
    "predictor/exporting/c/cpu.c",
    "runtime/threads/pool.ll",
)
llvm(
    r"call i32 %\w+\(i32 1, i32 \S+, ptr nonnull %\w+\)",
    "how memory is given back, through `__TVMBackendFreeWorkspace`",
    "predictor/exporting/c/cpu.c",
    "runtime/threads/pool.ll",
)
TARGET_LINE = llvm("^target ", "our own LLVM text is compiled for the same machine")
COMDAT = windows(
    r"^\$__(TVMBackend|tvm_ffi_)\w+ = comdat any$", "groups of names that no longer exist"
)
IN_COMDAT = windows(
    r"^(define .*@__tvm_ffi_\w+\(.*) comdat \{$", "functions in groups that no longer exist"
)

GROUP_SIZE = rocm(
    '"amdgpu-flat-work-group-size"="1,256"', "kernels of more threads than TVM takes for the most"
)
KERNEL = cuda('extern "C" __global__ ', "where a kernel begins")
KERNEL_HEAD = cuda(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(',
    "kernels that become functions of kernels of TVM's",
)
RESTRICT = cuda(
    r" (?:__)?restrict(?:__)?(?= )", "a promise of one thread, for arrays that several write"
)
LAUNCH_BOUNDS = cuda("__launch_bounds__", "the name of a kernel stands behind it")
SHARED = cuda(
    r"__shared__ alignas\((\d+)\) ((?:signed )?\w+) (\w+)\[(\d+)\];",
    "shared memory that only a launch can give, beyond 48 KB",
)
OPENCL_DECLARATION = opencl(r"^__kernel .*;\n", "declarations, which TVM repeats for each kernel")
OPENCL_FENCE = opencl("CLK_LOCAL_MEM_FENCE", "barriers that forget memory of the device")
