"""Loads words by byte offset, in kernels whose variables count in bytes.

takes: kernels; gives: the same kernels with fewer instructions.

    nodes[first + node // 4]     -->     tvmf_at(&nodes[0], first, node)

`first` alone may lie before the array, where no pointer may point, so it is passed separately and
added to the byte offset.

A walk through a complete tree goes from offset p to 2p or 2p + 4, in bytes, and one addition gives
the address of the next node; an offset in nodes would have to be multiplied each time. `node` is
proven to be a multiple of 4: every value that is stored in it is one.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..passes.gpu.kernel_code import TensorLoad, buffers_of
from ..tir_gen.ir import find_stores

LOAD_AT = "tvmf_at"
WORD = 4
"""Bytes of a word that is loaded by offset."""

LOAD = """\
template <class T>
static __device__ __forceinline__ T tvmf_at(const T* p, long long first, int bytes) {
  return *(const T*)((const char*)p + (first * (long long)sizeof(T) + bytes));
}
"""
"""Definition of `LOAD_AT` in CUDA C++, for the text of kernels that call it."""


def load_by_bytes(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the same kernels, which load words by byte offset where variables count in bytes."""
    kernels = {var: _change_kernel(func) for var, func in mod.functions.items()}
    return tvm.IRModule(kernels)


def _change_kernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that loads words by byte offset where a variable counts in bytes.

    A variable is an int32 buffer in local memory. All are first assumed to hold multiples of 4;
    those in which something else may be stored are dropped until the rest is consistent.
    """
    cells = {x for x in buffers_of(func.body, "local") if x.dtype == "int32"}
    stores = find_stores(func.body)
    while True:
        wrong = {x.buffer for x in stores if x.buffer in cells and not _is_multiple(x.value, cells)}
        if not wrong:
            break
        cells -= wrong

    def change(load: Any) -> Any:
        if tvm.DataType(load.source.dtype).bits != 8 * WORD or len(load.indices) != 1:
            return load
        rest, place = _split_index(load.indices[0], cells)
        if place is None or isinstance(load.indices[0], tirx.Ramp):
            return load
        address = tirx.address_of(tirx.BufferLoad(load.source, [tirx.IntImm("int32", 0)]))
        return tirx.call_pure_extern(str(load.source.dtype), LOAD_AT, address, rest, place)

    return (
        func.with_body(tvm_ffi.structural_map(func.body, (TensorLoad, change))) if cells else func
    )


def _is_multiple(x: Any, cells: set[Any]) -> bool:
    """Return whether an integer is a multiple of 4, provided that the given variables are."""
    if isinstance(x, tirx.IntImm):
        return int(x) % WORD == 0
    if isinstance(x, (tirx.Add, tirx.Sub)):
        return _is_multiple(x.a, cells) and _is_multiple(x.b, cells)
    if isinstance(x, tirx.Mul):
        return _is_multiple(x.a, cells) or _is_multiple(x.b, cells)
    if isinstance(x, tirx.Select):
        return _is_multiple(x.true_value, cells) and _is_multiple(x.false_value, cells)
    return isinstance(x, TensorLoad) and x.source in cells


def _split_index(x: Any, cells: set[Any]) -> tuple[Any, Any]:
    """Split the index "rest + bytes // 4" into the rest and the bytes.

    The bytes are None if there is no such term.
    """
    if isinstance(x, (tirx.Add, tirx.Sub)):
        rest, place = _split_index(x.a, cells)
        if place is not None:
            return type(x)(rest, x.b), place
        if isinstance(x, tirx.Add):
            rest, place = _split_index(x.b, cells)
            return x.a + rest, place
    if isinstance(x, tirx.Cast):
        rest, place = _split_index(x.value, cells)
        return (x if place is None else rest.astype(x.ty.dtype)), place
    divided = isinstance(x, tirx.FloorDiv) and isinstance(x.b, tirx.IntImm) and int(x.b) == WORD
    if divided and isinstance(x.a, TensorLoad) and _is_multiple(x.a, cells):
        return tirx.IntImm(str(x.ty.dtype), 0), x.a
    return x, None
