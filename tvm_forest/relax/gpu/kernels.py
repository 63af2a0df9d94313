"""Kernels inside the functions of a module that TVM compiles for a GPU of NVIDIA.

takes: a lowered function of kernels; gives: a function that TVM's passes for GPUs leave as it is.

    if n > 0:
        for blockIdx.x in range((n + 127) // 128), threadIdx.x in range(128):
            tvmf_0123456789ab(rows, nodes, base, margin, n)        # CUDA text, written by us

TVM's default pipeline would merge shared buffers, insert barriers, call approximate functions, and
compile with fast math. It cannot change this text: barriers and memory stay as the schedule has
them, and floats are computed by the functions of `arithmetic.cuh`.
"""

from __future__ import annotations

import hashlib
import re
from math import prod
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from ...errors import ScheduleError
from ...passes.gpu import kernel_code
from ...passes.gpu.launch_plan import separate
from ...target import STATIC_SHARED_BYTES
from ...targets import cuda
from ...tir_gen import ops
from ...tir_gen.internals import names
from ...tir_gen.ir import guard, i64
from ...tir_gen.ops import is_call

ARITHMETIC = Path(__file__).with_name("arithmetic.cuh")
HEAD = re.compile(names.KERNEL_HEAD)

OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
TESTS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
FUNCTIONS = ("exp", "exp2", "fabs", "log1p")


def embed_kernels(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function whose kernels are calls of CUDA text, inside thread loops of TIR.

    Raises:
        ScheduleError: a kernel has too much shared memory, or the host would have to read an array
            of the model, which is on the GPU.
        BuildError: see `launch_plan.separate`.
    """
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm"}})
    name = str(func.attrs["global_symbol"])
    hosts, kernels = separate(tvm.IRModule({name: func}), target)
    host = hosts[name].func
    texts = {
        str(kernel.attrs["global_symbol"]): _write_text(kernel, target)
        for kernel in kernels.functions.values()
    }

    def launch(statement: tirx.Evaluate) -> tirx.Stmt:
        call = statement.value
        return _launch(call, texts) if is_call(call, names.CALL_KERNEL) else statement

    _check_sizes(host)
    _check_shared(kernels)
    body = tvm_ffi.structural_map(host.body, (tirx.Evaluate, launch))
    n = host.params[0].shape[0]
    # CUDA refuses a grid without blocks.
    return func_like(func, host.params, guard(body, [n > i64(0)]))


def func_like(func: tirx.PrimFunc, params: Any, body: tirx.Stmt) -> tirx.PrimFunc:
    """Return a function with these parameters and this body, and the attributes of `func`."""
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _check_sizes(host: tirx.PrimFunc) -> None:
    if kernel_code.loads_of(host.body):
        raise ScheduleError(
            "relax.tvm_forest.predict: argument 'schedule': the size of a launch depends on the "
            "model, which is on the GPU; leave out the cache of trees, or dimensions of the grid "
            "inside loops over trees"
        )


def _check_shared(kernels: tvm.IRModule) -> None:
    """Refuse kernels with more shared memory for a block than a Relax module may have."""
    for kernel in kernels.functions.values():
        buffers = kernel_code.buffers_of(kernel.body, "shared")
        sizes = (prod(map(int, x.shape)) * tvm.DataType(x.dtype).itemsize for x in buffers)
        total = sum(sizes)
        if total > STATIC_SHARED_BYTES:
            raise ScheduleError(
                f"relax.tvm_forest.predict: argument 'schedule': {total} bytes of shared memory "
                f"per block, in a Relax module a kernel may have {STATIC_SHARED_BYTES}; use "
                f"smaller tiles, or leave a cache out"
            )


def _launch(call: Any, texts: dict[str, tuple[str, str]]) -> tirx.Stmt:
    """Return thread loops around a call of a device function, in place of a kernel launch."""
    tags = [str(tag) for tag in call.attrs.launch_params]
    kernel, *arguments = call.args[: -len(tags)]
    name, text = texts[str(kernel.value)]
    body: tirx.Stmt = tirx.Evaluate(cuda_func_call(name, *arguments, source_code=text))
    for tag, extent in reversed(list(zip(tags, call.args[-len(tags) :], strict=True))):
        axis = kernel_code.thread_axis(tirx.Var(tag.replace("Idx.", ""), extent.ty), tag)
        body = tirx.AttrStmt(axis, names.THREAD_EXTENT, extent, body)
    return body


# -- text -----------------------------------------------------------------------------------------


def _write_text(kernel: tirx.PrimFunc, target: tvm.target.Target) -> tuple[str, str]:
    """Return the name and text of a device function, with all functions that it calls."""
    kinds: list[Any] = [(kind, _calculate) for kind in OPERATIONS]
    kinds += [(kind, _compare) for kind in TESTS]
    kinds += [(tirx.Cast, _convert), (tvm.ir.Call, _call)]
    kernel = kernel.with_body(tvm_ffi.structural_map(kernel.body, kinds))
    text = cuda.kernel_text(tvm.IRModule({"kernel": kernel}), target)
    for word, value in names.CUDA_NUMBERS.items():
        text = re.sub(rf"\b{word}\b", value, text)
    name = f"tvmf_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    before = ARITHMETIC.read_text(encoding="ascii") + cuda.BALLOT * (ops.BALLOT in text)
    text = HEAD.sub(f"static __forceinline__ __device__ void {name}(", text)
    head, brace, body = text.partition("{\n")
    # `kernel_text.share_written` removed "restrict" here, but TVM's own kernel has it too.
    written = re.findall(r"\* (\w+)[,)]", head.rpartition(";")[2])
    notes = "".join(f"  TVMF_WRITTEN({array})\n" for array in written)
    return name, before + head + brace + notes + body


def _dtype(x: Any) -> str:
    return str(x.ty.dtype) if hasattr(x.ty, "dtype") else ""


def _own(name: str, dtype: str, *values: Any) -> Any:
    return tirx.call_pure_extern(dtype, name, *values)


def _calculate(x: Any) -> Any:
    """Replace float arithmetic by a call of the function for it in `arithmetic.cuh`."""
    dtype = _dtype(x)
    name = f"tvmf_{type(x).__name__.lower()}_{dtype}"
    return _own(name, dtype, x.a, x.b) if dtype.startswith("float") else x


def _compare(x: Any) -> Any:
    """Replace a float comparison by a call of the function for it in `arithmetic.cuh`."""
    dtype = _dtype(x.a)
    name = f"tvmf_{type(x).__name__.lower()}_{dtype}"
    return _own(name, "bool", x.a, x.b) if dtype.startswith("float") else x


def _convert(x: tirx.Cast) -> Any:
    """Replace a conversion between float32 and float64 by a call; other conversions are safe."""
    change = (_dtype(x.value), _dtype(x))
    name = {("float32", "float64"): "tvmf_widen", ("float64", "float32"): "tvmf_narrow"}
    return _own(name[change], change[1], x.value) if change in name else x


def _call(call: Any) -> Any:
    """Replace a call of `isnan`, of `pow` of 2, or of one of `FUNCTIONS` by one of ours."""
    name, values = getattr(call.op, "name", "").rpartition(".")[2], list(call.args)
    if name == "isnan":
        return _own(f"tvmf_ne_{_dtype(values[0])}", "bool", values[0], values[0])
    if name == "pow" and isinstance(values[0], tirx.FloatImm) and float(values[0].value) == 2.0:
        name, values = "exp2", values[1:]
    dtype = _dtype(call)
    if name in FUNCTIONS and dtype.startswith("float"):
        return _own(f"tvmf_{name}_{dtype}", dtype, *values)
    return call
