"""OpenCL: kernels as source text, which the device's driver compiles.

takes: lowered IRModule with kernels, and Target; gives: a KernelLibrary.

The source and the launch plans hold all that a host program needs; `runtime.gpu.opencl` runs them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..errors import BuildError, InputError
from ..passes.gpu.kernel_code import SHUFFLE, TensorLoad
from ..passes.gpu.launch_plan import split_kernels
from ..runtime.gpu.library import KernelLibrary
from ..runtime.gpu.opencl import ROUNDED_DIVISION
from ..runtime.gpu.plan import Plan
from ..target import Target
from ..tir_gen.internals import names
from ..tir_gen.ir import find_all
from ..tir_gen.ops import BALLOT, find_calls, find_extern, is_call
from .backends import find_backend
from .kernel_text import (
    atomic_functions,
    drop_fences,
    map_nodes,
    share_written,
    shift_no_negation,
)

KIND = "opencl"

PRELUDE = """\
// Build with {options}, and with none that allows inexact arithmetic.
#pragma OPENCL FP_CONTRACT OFF
"""

WORDS = {8: "char", 16: "short", 32: "int", 64: "long"}
"""OpenCL's integer types, by their bits."""

ATOMIC_ADD = """\
{extension}inline {c} {name}(volatile {space} {c}* p, {c} v) {{
  volatile {space} {bits}* at = (volatile {space} {bits}*)p;
  union {{ {c} value; {bits} bits; }} old, now;
  {bits} seen = {swap}(at, 0, 0);  // a plain read would race with others
  do {{
    old.bits = seen;
    now.value = old.value + v;
    seen = {swap}(at, old.bits, now.bits);
  }} while (seen != old.bits);
  return old.value;
}}
"""
"""Definition of an atomic float addition; OpenCL has one for integers only."""

LONG_ATOMICS = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
SHARED = "_shared"
"""Suffix of functions that add to shared memory."""

FLOATS = {
    f"{dtype}{end}": {
        **{"c": c, "bits": bits, "swap": swap, "extension": extension, "space": space},
    }
    for end, space in (("", "__global"), (SHARED, "__local"))
    for dtype, c, bits, swap, extension in (
        ("float32", "float", "uint", "atomic_cmpxchg", ""),
        ("float64", "double", "ulong", "atom_cmpxchg", LONG_ATOMICS),
    )
}


def compile_module(mod: tvm.IRModule, target: Target) -> KernelLibrary:
    """Return a library with the kernels of lowered functions as OpenCL C, compiled on first use.

    Raises:
        InputError: the target has an option other than "device".
        BuildError: see `opencl_text`.
    """
    unknown = [name for name, _ in target.options if name != "device"]
    if unknown:
        what = f"option {unknown[0]!r} of 'opencl' is unknown; use 'device'"
        raise InputError(f"build: argument 'target': {what}")
    return KernelLibrary(KIND, *opencl_text(mod), find_backend(target))


def opencl_text(mod: tvm.IRModule) -> tuple[str, dict[str, Plan]]:
    """Return the kernels of a module as OpenCL C, and the launch plan of each function.

    Raises:
        BuildError: a kernel uses shuffles, ballots, vector comparisons, or gathers of bytes; see
            also `split_kernels`.
    """
    target = tvm.target.Target({"kind": KIND}, host={"kind": "llvm"})
    kernels, plans = split_kernels(mod, target)
    if any(find_calls(func.body, SHUFFLE) for func in kernels.functions.values()):
        raise BuildError(
            "build: argument 'schedule': OpenCL has no shuffles; use shared_reduce, or no "
            "reduction of threads in step"
        )
    if any(find_extern(func.body, BALLOT) for func in kernels.functions.values()):
        raise BuildError(
            "build: argument 'schedule': OpenCL has no ballots of threads; leave cooperate out"
        )
    if any(_compares_vectors(func) or _gathers_bytes(func) for func in kernels.functions.values()):
        raise BuildError(
            "build: argument 'schedule': in OpenCL's vectors -1 is true, which TVM takes for 1, "
            "and TVM gathers no vectors of bytes; leave simdize out"
        )
    kernels = drop_fences(kernels)  # FP_CONTRACT does their work
    kernels = map_nodes(kernels, tvm.ir.Call, _call_by_opencls_name)
    kernels = tirx.compilation_pipeline.finalize_device_passes()(kernels)
    kernels = map_nodes(kernels, tirx.FloatImm, _write_all_bits)
    kernels = map_nodes(kernels, tirx.RShift, shift_no_negation)
    text = str(tvm.get_global_func(names.BUILD_OPENCL)(kernels, target).inspect_source())
    # TVM repeats all declarations before each kernel, and forgets memory of the device at barriers.
    text = re.sub(names.OPENCL_DECLARATION, "", text, flags=re.M)
    text = text.replace(names.OPENCL_FENCE, f"{names.OPENCL_FENCE} | CLK_GLOBAL_MEM_FENCE")
    text = _promise_blocks(share_written(text, kernels), plans)
    prelude = PRELUDE.format(options=ROUNDED_DIVISION if _divides(kernels) else "no options")
    return prelude + atomic_functions(text, ATOMIC_ADD, FLOATS) + text, plans


def _compares_vectors(kernel: tirx.PrimFunc) -> bool:
    """Return whether a kernel compares vectors."""
    compared = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    return any(
        find_all(kernel.body, kind, lambda x: tvm.DataType(str(x.a.ty.dtype)).lanes > 1)
        for kind in compared
    )


def _gathers_bytes(kernel: tirx.PrimFunc) -> bool:
    """Return whether a kernel gathers bytes into a vector.

    TVM packs eight of them into an int by shifts, and an int has room for four.
    """

    def is_apart(load: Any) -> bool:
        loaded = tvm.DataType(str(load.ty.dtype))
        return loaded.lanes > 1 and loaded.bits == 8 and not isinstance(load.indices[-1], tirx.Ramp)

    return bool(find_all(kernel.body, TensorLoad, is_apart))


def _write_all_bits(x: tirx.FloatImm) -> Any:
    """Replace a constant by one that is printed as bits, unless TVM's seven digits are exact."""
    dtype = np.dtype(str(x.ty.dtype))
    if float(dtype.type(f"{x.value:.6e}")) == x.value:
        return x
    word = f"int{8 * dtype.itemsize}"
    bits = int(dtype.type(x.value).view(word))
    return tirx.call_pure_extern(str(dtype), _as(dtype), tirx.IntImm(word, bits))


def _call_by_opencls_name(call: Any) -> Any:
    """Rename a call as OpenCL C needs it: log1p, bit casts, and atomic sums in shared memory."""
    if is_call(call, names.LOG1P):
        return tirx.call_pure_extern(str(call.ty.dtype), "log1p", *call.args)
    if is_call(call, names.REINTERPRET):
        of_one, _, lanes = str(call.ty.dtype).partition("x")
        return tirx.call_pure_extern(str(call.ty.dtype), _as(np.dtype(of_one)) + lanes, *call.args)
    if is_call(call, names.CALL_EXTERN) and any(is_call(x, names.ADDRESS_OF) for x in call.args):
        name, address, *values = call.args
        if str(address.args[0].source.scope()).startswith("shared"):
            return tirx.call_extern(str(call.ty.dtype), name.value + SHARED, address, *values)
    return call


def _as(dtype: np.dtype[Any]) -> str:
    """Return the name of OpenCL's bit cast to a dtype, such as "as_float"."""
    bits = 8 * dtype.itemsize
    if dtype.kind == "f":
        return {32: "as_float", 64: "as_double"}[bits]
    return f"as_{'u' * (dtype.kind == 'u')}{WORDS[bits]}"


def _divides(kernels: tvm.IRModule) -> bool:
    """Return whether kernels divide float32; correct rounding of that is an option in OpenCL."""
    return any(
        find_all(kernel.body, tirx.Div, lambda x: str(x.ty.dtype).startswith("float32"))
        for kernel in kernels.functions.values()
    )


def _promise_blocks(text: str, plans: dict[str, Plan]) -> str:
    """Return the source with the block size declared for kernels that have a fixed one.

    Without that, some compilers assume at most 256 threads.
    """
    launches = [launch for plan in plans.values() for launch in plan.launches]
    for kernel in {x.kernel for x in launches}:
        block, *others = {x.block for x in launches if x.kernel == kernel}
        if not others and all(isinstance(count, int) for count in block):
            size = ", ".join(map(str, block))
            promise = f"__kernel __attribute__((reqd_work_group_size({size}))) void {kernel}("
            text = text.replace(f"__kernel void {kernel}(", promise)
    return text
