"""OpenCL: kernels as text, for programs that have an OpenCL of their own.

takes: lowered IRModule with kernels, and Target; gives: a KernelLibrary to be read.

The text and the plans say all that a host program needs. Nothing here runs them.
"""

from __future__ import annotations

import re

import tvm
from tvm import tirx

from ..errors import BuildError, InputError
from ..gpu_runtime.library import KernelLibrary
from ..gpu_runtime.plan import Plan
from ..internals import names
from ..passes.gpu.kernel_code import SHUFFLE
from ..passes.gpu.launch_plan import split_kernels
from ..target import Target
from ..tir_gen.ops import BALLOT, find_calls, find_extern
from .backends import find_backend
from .kernel_text import atomic_functions, drop_fences, share_written

KIND = "opencl"

PRELUDE = """\
// Build with -cl-fp32-correctly-rounded-divide-sqrt, and with no option that allows more.
#pragma OPENCL FP_CONTRACT OFF
"""

ATOMIC_ADD = """\
{extension}inline {c} {name}(volatile __global {c}* p, {c} v) {{
  union {{ {c} value; {bits} bits; }} old, now;
  do {{
    old.value = *p;
    now.value = old.value + v;
  }} while ({swap}((volatile __global {bits}*)p, old.bits, now.bits) != old.bits);
  return old.value;
}}
"""
"""OpenCL's own atomic addition is for whole numbers only."""

LONG_ATOMICS = "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
FLOATS = {
    "float32": {"c": "float", "bits": "uint", "swap": "atomic_cmpxchg", "extension": ""},
    "float64": {
        "c": "double",
        "bits": "ulong",
        "swap": "atom_cmpxchg",
        "extension": LONG_ATOMICS,
    },
}


def compile_module(mod: tvm.IRModule, target: Target) -> KernelLibrary:
    """Write the kernels of lowered functions.

    Raises:
        InputError: there are options.
        BuildError: the kernels use what OpenCL has not.
    """
    if target.options:
        name = target.options[0][0]
        raise InputError(f"build: argument 'target': option {name!r} of 'opencl' is unknown")
    return KernelLibrary(KIND, *opencl_text(mod), find_backend(target))


def opencl_text(mod: tvm.IRModule) -> tuple[str, dict[str, Plan]]:
    """Return the kernels of a module as OpenCL C, and what launches them.

    Raises:
        BuildError: a kernel uses shuffles or ballots.
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
    kernels = drop_fences(kernels)  # FP_CONTRACT does their work
    kernels = tirx.compilation_pipeline.finalize_device_passes()(kernels)
    text = str(tvm.get_global_func(names.BUILD_OPENCL)(kernels, target).inspect_source())
    # TVM repeats all declarations before each kernel, and forgets memory of the device at barriers.
    text = re.sub(names.OPENCL_DECLARATION, "", text, flags=re.M)
    text = text.replace(names.OPENCL_FENCE, f"{names.OPENCL_FENCE} | CLK_GLOBAL_MEM_FENCE")
    text = share_written(text, kernels)
    return PRELUDE + atomic_functions(text, ATOMIC_ADD, FLOATS) + text, plans
