"""NVIDIA GPUs: kernels as CUDA source, compiled by NVRTC or nvcc.

takes: lowered IRModule with kernels, and Target; gives: a KernelLibrary.

Writing the source needs neither a GPU nor a compiler. TVM's host code is not used:
`runtime.gpu.executor` runs the launch plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import sym, tirx

from ..passes.gpu.kernel_code import TensorLoad
from ..passes.gpu.launch_plan import split_kernels
from ..runtime.gpu import cuda_compiler
from ..runtime.gpu.library import KernelLibrary
from ..runtime.gpu.plan import Plan
from ..target import Target
from ..tir_gen import ops
from ..tir_gen.internals import names
from .backends import find_backend
from .byte_offsets import LOAD, LOAD_AT, load_by_bytes
from .kernel_text import (
    atomic_functions,
    declare_at_launch,
    drop_fences,
    launch_with,
    map_nodes,
    share_written,
    shift_no_negation,
)

KIND = "cuda"
ROWS = "rows"
"""Name of the array of rows, which users allocate, so that it may start at any address."""

PRELUDE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
{numbers}
#else
#include <cstdint>
#include <math_constants.h>
#endif
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
""".format(numbers="\n".join(f"#define {name} {x}" for name, x in names.CUDA_NUMBERS.items()))
"""Definitions that TVM's CUDA text needs, without toolkit headers."""

ATOMIC_ADD = """\
static __device__ {c} {name}({c}* p, {c} v) {{ return atomicAdd(p, v); }}
"""
BALLOT = """\
#ifndef TVMF_BALLOT
#define TVMF_BALLOT
static __device__ __forceinline__ int tvmf_ballot(bool outcome, int size) {
  unsigned first = size * (threadIdx.y + blockDim.y * threadIdx.z) % 32, team = (1u << size) - 1;
  return __ballot_sync(team << first, outcome) >> first & team;
}
#endif
"""
"""Definition of `ops.BALLOT`. A team is the threads that differ only in threadIdx.x, so the teams
of a warp are adjacent."""

FLOATS = {"float32": {"c": "float"}, "float64": {"c": "double"}}


def compile_module(mod: tvm.IRModule, target: Target) -> KernelLibrary:
    """Return a library with the kernels of lowered functions as CUDA C++.

    They are compiled at once if the target names "arch" and a compiler is installed, else when a
    GPU is first used.

    Raises:
        BuildError: TVM or the compiler refuses them.
    """
    source, plans = cuda_text(mod)
    architecture = dict(target.options).get("arch")
    library = KernelLibrary(KIND, source, plans, find_backend(target), architecture)
    if library.architecture is not None and cuda_compiler.has_compiler():
        library.image(library.architecture)
    return library


def cuda_text(mod: tvm.IRModule) -> tuple[str, dict[str, Plan]]:
    """Return the kernels of a module as CUDA C++, and the launch plan of each function.

    Raises:
        BuildError: see `split_kernels`.
    """
    # The text is the same for all architectures; with none TVM would ask for the GPU.
    tvm_target = tvm.target.Target({"kind": KIND, "arch": "sm_80", "host": {"kind": "llvm"}})
    kernels, plans = split_kernels(mod, tvm_target)
    body, sizes = declare_at_launch(kernel_text(load_by_bytes(kernels), tvm_target))
    plans = {name: launch_with(plan, sizes) for name, plan in plans.items()}
    functions = LOAD * (LOAD_AT in body) + BALLOT * (ops.BALLOT in body)
    return PRELUDE + atomic_functions(body, ATOMIC_ADD, FLOATS) + functions + body, plans


def kernel_text(kernels: tvm.IRModule, target: tvm.target.Target) -> str:
    """Return device functions as CUDA C++, without the declarations that TVM puts before them."""
    kernels = tirx.compilation_pipeline.finalize_device_passes()(drop_fences(kernels))
    kernels = map_nodes(kernels, tirx.FloatImm, _write_all_bits)
    kernels = map_nodes(kernels, tirx.RShift, shift_no_negation)
    for kind in (tirx.BufferStore, TensorLoad):
        kernels = map_nodes(kernels, kind, _split_unaligned)
    with _source_only():
        text = str(tvm.get_global_func(names.BUILD_CUDA)(kernels, target).inspect_source())
    return share_written(text[text.index(names.KERNEL) :], kernels)


def _write_all_bits(x: tirx.FloatImm) -> Any:
    """Replace a fractional float64 by one that is printed as bits, for TVM prints nine digits."""
    if str(x.ty.dtype) != "float64" or float(x.value).is_integer():
        return x
    bits = int(np.float64(x.value).view(np.int64))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.IntImm("int64", bits))


def _split_unaligned(access: Any) -> Any:
    """Split a vector access into single elements, unless it is certain to be aligned.

    Its index must be a multiple of the number of lanes, and its array must be aligned: one of the
    model, or in shared or local memory. Results, rows and other arrays of users need not be.

    A GPU cannot access 16 bytes at an address that is not a multiple of 16. TVM writes one access
    for a `Ramp`, wherever it begins, and one for each element for any other index.
    """
    index, is_store = access.indices[-1], isinstance(access, tirx.BufferStore)
    if not isinstance(index, tirx.Ramp):
        return access
    buffer = access.buffer if is_store else access.source
    first, lanes = index.base, int(index.lanes)
    is_aligned = sym.Analyzer().can_prove_equal(first % tirx.const(lanes, first.ty.dtype), 0)
    is_of_model = not is_store and buffer.name not in (ROWS, "margin")
    if is_aligned and (is_of_model or buffer.scope() != "global"):
        return access
    each = tirx.Ramp(tirx.const(0, first.ty.dtype), index.stride, lanes)
    indices = [*access.indices[:-1], tirx.Add(tirx.Broadcast(first, lanes), each)]
    if is_store:
        return tirx.BufferStore(buffer, access.value, indices)
    return tirx.BufferLoad(buffer, indices)


@contextmanager
def _source_only() -> Iterator[None]:
    """Prevent TVM from compiling the text itself, which would use fast math."""
    name = names.FORCE_FALLBACK
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
