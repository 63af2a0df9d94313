"""Kernels for AMD's GPUs inside the functions of a module that TVM compiles.

takes: a lowered function of kernels; gives: a function that TVM's code generator gets right.

Operations that TVM would compile wrongly (barriers, sums of several threads, shuffles, exp) become
calls of functions in `targets/amdgpu.ll` and `targets/arithmetic.ll`. TVM links them as it links
AMD's library of bitcode, which may be missing. Shared memory is refused: TVM merges shared buffers,
and then addresses them as global memory.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...passes.gpu import kernel_code
from ...passes.gpu.launch_plan import for_device
from ...targets import rocm
from ...tir_gen.internals.names import NOT_FOUND, ROCM_BITCODE, ROCM_LINK
from ...tir_gen.internals.replacing import replace_functions
from ...tir_gen.ir import guard, i64

WHERE = "relax.tvm_forest.predict: argument 'schedule'"


def make_portable(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite kernels so that TVM compiles them correctly for AMD GPUs.

    Raises:
        ScheduleError: a kernel has shared memory, or more than 256 threads in a block.
        BuildError: see `for_device`.
    """
    shared = kernel_code.buffers_of(func.body, "shared")
    if shared:
        raise ScheduleError(
            f"{WHERE}: rows, trees or sums ('{shared[0].name}') would lie in shared memory, which "
            "TVM gets wrong for 'rocm'; leave out cache and shared_reduce, or use "
            "tvm_forest.build(model, 'rocm', schedule)"
        )
    body = for_device(func.body)
    threads = rocm.threads_of(func.with_body(body))
    if threads > rocm.ASSUMED_THREADS:
        raise ScheduleError(
            f"{WHERE}: {threads} threads per block, TVM allows {rocm.ASSUMED_THREADS} for 'rocm'; "
            "use smaller tiles"
        )
    body = tvm_ffi.structural_map(body, (tvm.ir.Call, rocm.call_own))
    serve_functions()
    return func.with_body(guard(body, [func.params[0].shape[0] > i64(0)]))


@functools.cache
def serve_functions() -> None:
    """Replace TVM's functions that find AMD's bitcode and that link, for the process, once.

    The search then also returns our files, and linking works without ROCm.
    """
    own = [str(rocm.DEVICE), str(rocm.ARITHMETIC)]
    bitcode, link = (tvm.get_global_func(name) for name in (ROCM_BITCODE, ROCM_LINK))

    def find_bitcode(*folder: Any) -> Any:
        return tvm.runtime.convert([*_unless_missing(bitcode, [], *folder), *own])

    def link_object(code: Any) -> Any:
        linked = _unless_missing(link, None, code)
        return linked if linked is not None else rocm.link(rocm.find_linker(), bytes(code))

    replace_functions({ROCM_BITCODE: find_bitcode, ROCM_LINK: link_object})


def _unless_missing(call: Any, otherwise: Any, *arguments: Any) -> Any:
    """Return what a function of TVM returns, or `otherwise` if it misses files or programs."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        if NOT_FOUND not in str(error):
            raise
        return otherwise
