"""AMD's GPUs: kernels as code objects, by TVM's LLVM and LLVM's linker.

takes: lowered IRModule with kernels, and Target; gives: a KernelLibrary.

Compiling needs neither ROCm nor a GPU. Where TVM's code generator emits wrong code or none, it is
given functions of our own, see `amdgpu.ll`. Its output is linked here, and `runtime.gpu.hip` runs
it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import tirx

from ..errors import BuildError, DeviceError, InputError
from ..passes.gpu.kernel_code import SHUFFLE, SYNC
from ..passes.gpu.launch_plan import split_kernels
from ..runtime.gpu import code_object
from ..runtime.gpu.library import KernelLibrary
from ..system.process.locks import make_lock
from ..system.process.scratch import make_folder
from ..target import Target
from ..tir_gen.internals import names
from ..tir_gen.internals.replacing import replace_functions
from ..tir_gen.ir import find_all
from .backends import DEFAULT_GPUS as DEFAULT_GPUS
from .backends import find_backend, open_driver
from .kernel_text import map_nodes

KIND = "rocm"
TRIPLE = "amdgcn-amd-amdhsa"
DEVICE, ARITHMETIC = (Path(__file__).with_name(x) for x in ("amdgpu.ll", "arithmetic.ll"))
WHERE, OPTIONS = "build: argument 'target'", "use 'mcpu' or 'device'"

ANY = "any"
"""The `mcpu` value that stands for the default GPUs."""

ASSUMED_THREADS = 256
"""Largest number of threads in a block that TVM declares to LLVM, which relies on it. Kernels with
more threads are compiled a second time, from IR that declares their number."""

UNLAUNCHED = "tvmf_nobody"
"""Name of a kernel that is never launched."""

ROCM_LINKERS = ("/opt/rocm/llvm/bin/ld.lld", "/opt/rocm/lib/llvm/bin/ld.lld")

FUNCTIONS = {names.EXP: "exp", names.EXP2: "exp2", names.LOG1P: "log1p"}
"""Functions of `arithmetic.ll`, by the TIR operators that they replace."""

STDERR = 2
UNWANTED = tuple(text.encode() for text in (names.NO_ROCM, names.NO_AMD_GPU))
"""Warnings that TVM prints where there is no GPU, several for each kernel."""

_hearing = make_lock()
"""Lock held while the standard error stream is redirected."""

_compiling = make_lock()
"""Lock held while TVM's global callbacks are replaced by ours."""


class CompiledKernels(NamedTuple):
    """The result of compiling device functions.

    Attributes:
        image: the code object of a GPU, which the HIP runtime loads.
        ir: LLVM IR after LLVM's passes.
        asm: assembly text.
    """

    image: bytes
    ir: str
    asm: str


def compile_module(mod: tvm.IRModule, target: Target) -> KernelLibrary:
    """Compile the kernels of lowered functions to a code object for each GPU.

    Raises:
        InputError: see `find_gpus`.
        BuildError: see `compile_kernels`, or the launch plans for two GPUs differ.
    """
    compiled, launches = dict[str, CompiledKernels](), list[Any]()
    for gpu in find_gpus(target):
        machine = tvm_target(gpu)
        kernels, plans = split_kernels(mod, machine)
        compiled[gpu] = compile_kernels(kernels, machine)
        launches.append(plans)
    if any(plans != launches[0] for plans in launches):
        raise BuildError(f"{WHERE}: kernels of {', '.join(compiled)} differ; name one as 'mcpu'")
    text = "".join(code.asm for code in compiled.values())
    images = {gpu: code.image for gpu, code in compiled.items()}
    architecture = next(iter(images)) if len(images) == 1 else None
    return KernelLibrary(KIND, text, launches[0], find_backend(target), architecture, images)


def find_gpus(target: Target) -> tuple[str, ...]:
    """Return the GPUs to compile for: the named one, the present one, or `DEFAULT_GPUS`.

    Raises:
        InputError: LLVM does not know the GPU, or there is an unknown option.
    """
    options = dict(target.options)
    device, named = options.pop("device", 0), str(options.pop("mcpu", ""))
    if options:
        raise InputError(f"{WHERE}: option {next(iter(options))!r} of 'rocm' is unknown; {OPTIONS}")
    if named == ANY:
        return DEFAULT_GPUS
    gpu = (named or _ask_gpu(device)).partition(":")[0]  # gfx90a:sramecc+:xnack-
    if not gpu:
        return DEFAULT_GPUS
    llvm = tvm.target.Target({"kind": "llvm", "mtriple": TRIPLE})
    archs = map(str, tvm.target.codegen.llvm_get_cpu_archlist(llvm))
    known = [x for x in archs if x.startswith("gfx") and not x.endswith("generic")]
    if gpu not in known:
        raise InputError(
            f"{WHERE}: LLVM knows no GPU {gpu!r} of AMD; use one of: {', '.join(known)}"
        )
    return (gpu,)


def _ask_gpu(device: int) -> str:
    """Return the name of the present GPU; "" if none can be queried."""
    try:
        return str(open_driver(KIND, device).architecture)
    except DeviceError:
        return ""


def tvm_target(gpu: str) -> tvm.target.Target:
    """Return TVM's form of a target for a GPU, such as "gfx942"."""
    spec = {"kind": KIND, "mcpu": gpu, "thread_warp_size": wavefront(gpu)}
    with _quiet():
        return tvm.target.Target(spec, host={"kind": "llvm"})


def wavefront(gpu: str) -> int:
    """Return the number of threads that run in lockstep on a GPU, such as "gfx942"."""
    spec = {"kind": "llvm", "mtriple": TRIPLE, "mcpu": gpu}
    features = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(spec))
    return 32 if "wavefrontsize32" in map(str, features) else 64


def compile_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> CompiledKernels:
    """Compile device functions to a code object.

    Args:
        mod: the device functions from TVM's `SplitHostDevice`.
        target: see `tvm_target`.

    Raises:
        BuildError: there is no linker, it fails, or TVM or LLVM made wrong code.
    """
    linker = find_linker()
    threads = max(threads_of(func) for func in mod.functions.values())
    mod = map_nodes(mod, tvm.ir.Call, call_own)
    kernels = tirx.compilation_pipeline.finalize_device_passes()(mod)
    code, ir, asm = _generate(kernels, target, own_functions())
    if "addrspacecast (ptr addrspace(3)" in ir or "addrspacecast ptr addrspace(3)" in ir:
        raise BuildError(f"{WHERE}: TVM took shared memory for memory of the device; report this")
    if threads > ASSUMED_THREADS:
        more = names.GROUP_SIZE.replace(str(ASSUMED_THREADS), str(threads))
        ir = ir.replace(names.GROUP_SIZE, more)
        code, ir, asm = _generate(_make_caller(list(mod.functions.values())), target, ir)
    compiled = CompiledKernels(link(linker, code), ir, asm)
    kernels = code_object.read(compiled.image).kernels
    if max(kernel.threads for kernel in kernels.values()) < threads:
        raise BuildError(f"{WHERE}: kernels have {threads} threads, LLVM knew of less; report this")
    return compiled


def _generate(mod: tvm.IRModule, target: tvm.target.Target, library: str) -> tuple[bytes, str, str]:
    """Return the object file, LLVM IR and assembly of functions; `library` is IR they may call."""
    codes = list[bytes]()

    def keep(code: Any) -> Any:
        codes.append(bytes(code))
        return code

    with _callbacks(library, keep), _quiet():
        module = tvm.get_global_func(names.BUILD_ROCM)(mod, target)
    return codes[-1], str(module.inspect_source("llvm")), str(module.inspect_source("asm"))


def _make_caller(kernels: list[tirx.PrimFunc]) -> tvm.IRModule:
    """Return a kernel that is never launched; it makes TVM compile the kernels that it calls."""
    symbols = [str(kernel.attrs["global_symbol"]) for kernel in kernels]
    calls = [tirx.Evaluate(tirx.call_extern("void", symbol)) for symbol in symbols]
    func = tirx.PrimFunc([], tirx.SeqStmt([*calls, tirx.Evaluate(0)])).with_attr(
        {"target": kernels[0].attrs["target"], names.CALLING_CONV: 2, "global_symbol": UNLAUNCHED}
    )
    return tvm.IRModule({UNLAUNCHED: func})


def find_linker() -> list[str]:
    """Return the command of LLVM's linker: that of TVM's LLVM, of ROCm, of ziglang, or another.

    Raises:
        BuildError: there is none.
    """
    major = tvm.target.codegen.llvm_version_major()
    linker = next(filter(None, map(shutil.which, (f"ld.lld-{major}", *ROCM_LINKERS))), None)
    if linker is None and importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    linker = linker or shutil.which("ld.lld")
    if linker is None:
        raise BuildError(
            f"{WHERE}: code for 'rocm' needs LLVM's linker, and there is no ld.lld-{major} or "
            f"ld.lld on the path; install lld-{major} from your system, or use pip install ziglang"
        )
    return [linker]


def link(linker: list[str], code: bytes) -> bytes:
    """Link an object file to a code object; undefined names are errors here, not at loading.

    Raises:
        BuildError: the linker fails.
    """
    with make_folder(WHERE) as folder:
        before, after = folder / "kernels.o", folder / "kernels.co"
        before.write_bytes(code)
        command = [*linker, "--no-undefined", "-shared", str(before), "-o", str(after)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(
                f"{WHERE}: {' '.join(linker)} cannot link the kernels ({done.stderr.strip()}); use "
                "that of LLVM 18 or newer, or pip install ziglang"
            )
        return after.read_bytes()


@contextmanager
def _callbacks(library: str, link: Any) -> Iterator[None]:
    """Make TVM use our device library and our linker."""
    with _compiling, make_folder(WHERE) as folder:
        file = folder / "library.ll"
        file.write_text(library, encoding="ascii")
        bitcode, link_name = names.ROCM_BITCODE, names.ROCM_LINK
        ours = {bitcode: lambda folder=None: tvm.runtime.convert([str(file)]), link_name: link}
        theirs = {name: tvm.get_global_func(name) for name in ours}
        try:
            replace_functions(ours)
            yield
        finally:
            replace_functions(theirs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide TVM's warnings about a missing GPU on standard error, and no other output."""
    with _hearing, ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            kept = os.dup(STDERR)
        except OSError:  # then nothing is hidden
            yield
            return
        stack.callback(os.close, kept)
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
            file.seek(0)
            for line in file:
                if not any(text in line for text in UNWANTED):
                    os.write(STDERR, line)


# -- functions of our own -------------------------------------------------------------------------


def own_functions() -> str:
    """Return the LLVM IR of all our functions that kernels may call."""
    return "".join(file.read_text(encoding="ascii") for file in (DEVICE, ARITHMETIC))


def call_own(call: Any) -> Any:
    """Replace a call of a math function, barrier or shuffle by a call of one of `own_functions`."""
    name, values = getattr(call.op, "name", ""), list(call.args)
    if name == SYNC:
        return tirx.call_extern("void", "tvmf_barrier")
    if name == SHUFFLE:
        _, value, by, width, _ = values  # all lanes take part, so the mask is not needed
        numbers = (x.astype("int32") for x in (by, width))
        return tirx.call_extern(*_own_function("shuffle_down", call), value, *numbers)
    if name == names.POW and isinstance(values[0], tirx.FloatImm) and float(values[0]) == 2.0:
        return tirx.call_pure_extern(*_own_function("exp2", call), values[1])
    if name in FUNCTIONS:
        return tirx.call_pure_extern(*_own_function(FUNCTIONS[name], call), *values)
    return call


def _own_function(name: str, call: Any) -> tuple[str, str]:
    """Return the dtype and the name of our function for a call."""
    dtype = str(call.ty.dtype)
    return dtype, f"tvmf_{name}_{dtype}"


def threads_of(func: tirx.PrimFunc) -> int:
    """Return the number of threads in a block of a kernel."""
    extents = find_all(func.body, tirx.AttrStmt, lambda x: x.attr_key == names.THREAD_EXTENT)
    return prod(int(x.value) for x in extents if str(x.node.thread_tag).startswith("threadIdx"))
