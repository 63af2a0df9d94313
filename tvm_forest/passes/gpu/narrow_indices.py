"""Narrows integers of GPU kernels to 32 bits where they fit.

takes: a function with kernels, and the ranges of its arrays; gives: the function, with 32-bit
integers where these suffice.

    for tx in thread_binding(int64(64)):            for tx in thread_binding(int32(64)):
        node: int64 = nodes[first + node] + 1  -->      node: int32 = nodes[first + node] + 1
        x = rows[bx * 64 + tx, feature]                 x = rows[bx * 64 + int64(tx), feature]

GPUs compute 64-bit integers in several steps. Threads, loops of a known length, and indices into
buffers of a constant size below 2**27 get 32 bits, and so do cells (variables of a thread) that
hold only such numbers. The margin up to 2**31 is needed because a walk that goes on after its leaf
may compute indices up to nine times the size. All integers that depend on the number of rows keep
64 bits, so a batch may have 2**31 values and more.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...system.values import dataclass
from ...tir_gen.ir import find_all, find_loops, find_stores, rewrite_loops
from ..function_pass import function_pass
from .array_facts import RANGES, STARTS
from .kernel_code import TensorLoad, buffers_of, change_variable, map_kernels, max_value

MAX_SHORT = 2**27
"""Buffers with fewer elements than this get 32-bit indices."""

JOINING = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod)
SHIFTS = (tirx.LShift, tirx.RShift)
COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
SHORT_DTYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16")


@function_pass
class NarrowIndices:
    """Narrows the integers of kernels to 32 bits where these are enough."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite all kernels, and remove the attributes of `array_facts`."""
        ranges = func.attrs[RANGES]
        short = {str(name) for name, ends in ranges.items() if all(map(_is_short, ends))}
        model = {x for x in func.params if str(x.name) in short}
        body = map_kernels(func.body, lambda kernel: _narrow_kernel(kernel, model))
        return func.with_body(body).without_attr(RANGES).without_attr(STARTS)  # used up


def _is_short(number: int) -> bool:
    """Return whether a number is small enough for a 32-bit index."""
    return abs(int(number)) < MAX_SHORT


def _narrow_kernel(kernel: tirx.For, model: set[Any]) -> tirx.For:
    """Narrow the integers of a kernel.

    A cell can be narrowed if all values stored in it can, which may depend on other cells: all are
    assumed narrow at first, and cells are removed until the assumption holds for the rest.
    """
    kernel = _narrow_loops(kernel)
    cells = {x for x in buffers_of(kernel, "local") if x.dtype == "int64"}
    while True:
        short = {x: tirx.decl_buffer(x.shape, "int32", x.name, scope="local") for x in cells}
        narrow = _Narrowing(model, short)
        stores = [store for store in find_stores(kernel) if store.buffer in cells]
        wide = {store.buffer for store in stores if narrow.short(store.value) is None}
        if not wide:
            return narrow.rewrite(kernel)
        cells -= wide


def _narrow_loops(kernel: tirx.For) -> tirx.For:
    """Narrow the variables of loops of a known length, thread bindings included."""
    analyzer, short = sym.Analyzer(), dict[Any, tirx.Var]()
    for loop in find_loops(kernel):
        most = max_value(loop.extent, analyzer)
        if str(loop.loop_var.ty.dtype) == "int64" and most is not None and int(most) < MAX_SHORT:
            analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, most))
            short[loop.loop_var] = tirx.Var(loop.loop_var.name, "int32")

    def narrow(loop: tirx.For) -> tirx.For:
        var = short.get(loop.loop_var)
        if var is None:
            return loop
        start, extent = (x.astype("int32") for x in (loop.min, loop.extent))
        return change_variable(loop, var, min=start, extent=extent)

    return rewrite_loops(kernel, narrow)


@dataclass(frozen=True)
class _Narrowing:
    """Narrows the expressions of one kernel.

    Attributes:
        model: int64 arrays whose numbers fit in 32 bits.
        cells: the narrow cell for each original one.
    """

    model: set[Any]
    cells: dict[Any, Any]

    def short(self, x: Any) -> Any | None:
        """Return an integer expression in 32 bits, or None if it may not fit."""
        if isinstance(x, tirx.IntImm):
            return tirx.IntImm("int32", int(x)) if _is_short(x) else None
        if isinstance(x, tirx.Cast):
            inner, kind = x.value, str(x.value.ty.dtype)
            fits = kind in SHORT_DTYPES or (kind == "uint32" and max_value(inner) is not None)
            return inner.astype("int32") if fits else None
        if str(x.ty.dtype) != "int64":  # a vector, such as the fields of a node
            return None
        if isinstance(x, TensorLoad):
            if x.source in self.cells:
                return tirx.BufferLoad(self.cells[x.source], list(x.indices))
            return x.astype("int32") if x.source in self.model else None
        by_little = isinstance(x, SHIFTS) and not (isinstance(x.b, tirx.IntImm) and int(x.b) > 30)
        if isinstance(x, JOINING) or by_little:
            return self._join(type(x), x.a, x.b)
        if isinstance(x, tirx.Select):
            return self._join(partial(tirx.Select, x.condition), x.true_value, x.false_value)
        return self._mask(x) if isinstance(x, tirx.BitwiseAnd) else None

    def _join(self, make: Any, *parts: Any) -> Any | None:
        """Build a node from 32-bit operands; None if one may not fit."""
        short = [self.short(x) for x in parts]
        return None if any(x is None for x in short) else make(*short)

    def _mask(self, x: Any) -> Any | None:
        """Narrow `a & mask`, of which only the mask must fit, since bits above it are cleared.

        None if the mask is no constant from 0 to 2**31 - 1.
        """
        mask = int(x.b) if isinstance(x.b, tirx.IntImm) else -1
        short = x.a.astype("int32") & tirx.IntImm("int32", mask)
        return short if 0 <= mask < 2**31 else None

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        """Return a kernel with narrow cells, indices and comparisons."""
        kinds = [
            (TensorLoad, self._load),
            (tirx.BufferStore, self._store),
            (tirx.AllocBuffer, lambda x: tirx.AllocBuffer(self.cells.get(x.buffer, x.buffer))),
            *((kind, self._compare) for kind in COMPARISONS),
        ]
        return tvm_ffi.structural_map(kernel, kinds)

    def _load(self, x: Any) -> Any:
        if x.source in self.cells:
            load = tirx.BufferLoad(self.cells[x.source], list(x.indices))
            return load.astype("int64")
        return tirx.BufferLoad(x.source, self._indices(x.source, x.indices))

    def _store(self, x: tirx.BufferStore) -> tirx.BufferStore:
        if x.buffer in self.cells:
            return tirx.BufferStore(self.cells[x.buffer], self.short(x.value), list(x.indices))
        return tirx.BufferStore(x.buffer, x.value, self._indices(x.buffer, x.indices))

    def _indices(self, buffer: Any, indices: Any) -> list[Any]:
        """Narrow the indices of a small buffer, which always fit."""
        return [self._index(x) for x in indices] if _is_small(buffer) else list(indices)

    def _index(self, x: Any) -> Any:
        if isinstance(x, tirx.Ramp):
            return tirx.Ramp(self._index(x.base), self._index(x.stride), x.lanes)
        if str(x.ty.dtype) != "int64":
            return x
        short = self.short(x)
        if short is None and find_all(x, tirx.IntImm, lambda number: abs(int(number)) >= 2**31):
            return x  # TVM would truncate such a number to 32 bits
        return x.astype("int32") if short is None else short

    def _compare(self, x: Any) -> Any:
        if str(x.a.ty.dtype) != "int64":
            return x
        short = self._join(type(x), x.a, x.b)
        return x if short is None else short


def _is_small(buffer: Any) -> bool:
    sizes = [int(x) if isinstance(x, tirx.IntImm) else MAX_SHORT for x in buffer.shape]
    return prod(sizes) < MAX_SHORT
