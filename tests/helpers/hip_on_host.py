"""A HIP runtime of the host that runs the kernels of a code object.

The LLVM IR from which a code object was made is made CPU code: a function for each kernel, which
does the work of one thread. It is linked to hip_mock.c, which calls it for every thread.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import tvm
from tvm import tirx

from tvm_forest.runtime.gpu import code_object
from tvm_forest.targets.rocm import CompiledKernels

MOCK = Path(__file__).with_name("hip_mock.c")
PIPELINE = "tvm_forest.on_host"

INTRINSICS = {
    **{f"workgroup.id.{axis}()": f"tvmf_group(i32 {n})" for n, axis in enumerate("xyz")},
    **{f"workitem.id.{axis}()": f"tvmf_item(i32 {n})" for n, axis in enumerate("xyz")},
    "s.barrier()": "tvmf_meet()",
    "ds.bpermute(": "tvmf_permute(",
    "ballot.i32(": "tvmf_vote_of_32(",
    "ballot.i64(": "tvmf_vote(",
    "mbcnt.lo(": "tvmf_lanes_below(",
    "mbcnt.hi(": "tvmf_lanes_above(",
}
DECLARED = """
declare i32 @tvmf_group(i32)
declare i32 @tvmf_item(i32)
declare i32 @tvmf_lanes_below(i32, i32)
declare i32 @tvmf_lanes_above(i32, i32)
declare i32 @tvmf_permute(i32, i32)
declare i32 @tvmf_vote_of_32(i1)
declare i64 @tvmf_vote(i1)
declare void @tvmf_meet()
"""


def host_ir(ir: str) -> str:
    """Return LLVM IR of a GPU as IR of any machine: one memory, no kernels, calls for the rest."""
    lines = (line for line in ir.splitlines() if not re.match(r"target |declare .*amdgcn", line))
    text = "\n".join(lines)
    for name, ours in INTRINSICS.items():
        text = text.replace(f"@llvm.amdgcn.{name}", f"@{ours}")
    text = re.sub(r"(, )?addrspace\(\d\) ?", "", text)
    text = re.sub(
        r'syncscope\("[^"]*"\) |dllexport |amdgpu_kernel |private unnamed_addr ', "", text
    )
    text = re.sub(r"^attributes #(\d+) = .*$", r"attributes #\1 = { nounwind }", text, flags=re.M)
    assert "amdgcn." not in text, re.findall(r"@llvm\.amdgcn\.[\w.]*", text)
    return text + DECLARED


def mock_runtime(compiled: CompiledKernels, folder: Path) -> ctypes.CDLL:
    """Return a HIP runtime that knows the kernels of a code object."""
    kernels = code_object.read(compiled.image).kernels
    kinds = {name: argument_kinds(compiled.ir, name) for name in kernels}
    object_file, shim = folder / "kernels.o", folder / "shim.c"
    library = tvm.compile(host_functions(compiled.ir, kinds), "llvm", tir_pipeline=PIPELINE)
    library.mod.write_to_file(str(object_file))
    shim.write_text("".join(shim_of(name, args) for name, args in kinds.items()))
    file = folder / "libamdhip64.so"
    sources = [str(MOCK), str(shim), str(object_file)]
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", *sources, "-o", str(file), "-ldl", "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    runtime = ctypes.CDLL(str(file))
    runtime.mock_log.restype = ctypes.c_char_p
    return runtime


def argument_kinds(ir: str, name: str) -> list[str]:
    """Return the types of a kernel's parameters in C."""
    given = re.search(rf"^define .*void @{name}\((.*?)\) local", ir, re.M).group(1)
    types = {"ptr": "void*", "i32": "int", "i64": "long"}
    return [types[part.split()[0]] for part in re.split(r",\s*(?=ptr|i32|i64)", given) if part]


def host_functions(ir: str, kinds: dict[str, list[str]]) -> tvm.IRModule:
    functions, dtypes = {}, {"int": "int32", "long": "int64"}
    imported = tvm.ir.StringImm(host_ir(ir))
    for name, args in kinds.items():
        params = [
            tirx.Var(f"a{number}", dtypes.get(kind, "handle")) for number, kind in enumerate(args)
        ]
        body = tirx.Evaluate(tirx.call_extern("void", name, *params))
        if not functions:
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", imported, body)
        symbol = f"{name}_host"
        functions[symbol] = tirx.PrimFunc(params, body).with_attr("global_symbol", symbol)
    return tvm.IRModule(functions)


def shim_of(name: str, kinds: list[str]) -> str:
    values = ", ".join(f"*({kind}*)a[{number}]" for number, kind in enumerate(kinds))
    host = f"{name}_host"
    return (
        f"void {host}({', '.join(kinds)});\nvoid {name}_on_host(void** a) {{ {host}({values}); }}\n"
    )


def _plain() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    nothing = tvm.transform.Sequential([])
    return nothing, lambda: nothing, lambda: nothing


tirx.register_tir_pipeline(PIPELINE, _plain)
