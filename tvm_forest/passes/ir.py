"""What the passes for GPUs ask of TIR and do with it, beside the words of `tir_gen.ir`.

takes: TIR of kernels; gives: answers, TIR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..tir_gen.ir import find_all, i64, loops_of, rewrite_nest

SYNC = "tirx.tvm_storage_sync"
SHUFFLE = "tirx.tvm_warp_shuffle_down"

Place = tuple[Any, list[Any]]
"""A buffer, and the indices before those of the buffer that it replaces."""


def has(statement: tirx.Stmt, key: str, value: str = "") -> bool:
    """Return whether a loop inside carries an annotation that begins so."""
    return any(str(loop.annotations[key]).startswith(value) for loop in loops_of(statement, key))


def buffers_of(statement: Any) -> list[Any]:
    """Return the buffers that are declared inside."""
    return [alloc.buffer for alloc in find_all(statement, tirx.AllocBuffer)]


def moved(statement: Any, places: dict[Any, Place]) -> Any:
    """Return code that declares, reads and writes buffers at their new places."""

    def load(x: Any) -> Any:
        place = places.get(x.source)
        return x if place is None else tirx.BufferLoad(place[0], [*place[1], *x.indices])

    def store(x: tirx.BufferStore) -> tirx.BufferStore:
        place = places.get(x.buffer)
        if place is None:
            return x
        return tirx.BufferStore(place[0], x.value, [*place[1], *x.indices])

    def declare(x: tirx.AllocBuffer) -> tirx.AllocBuffer:
        place = places.get(x.buffer)
        return x if place is None else tirx.AllocBuffer(place[0])

    kinds = [
        (tvm.ir.expr.TensorLoad, load),
        (tirx.BufferStore, store),
        (tirx.AllocBuffer, declare),
    ]
    return tvm_ffi.structural_map(statement, kinds) if places else statement


def widened(buffer: Any, sizes: list[Any], scope: str) -> Any:
    """Declare a buffer with more dimensions in front."""
    shape = [*sizes, *(x.astype("int64") for x in buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=scope)


def rescoped(statement: Any, old: str, new: str) -> Any:
    """Return code whose buffers of one scope are in another."""
    mine = [buffer for buffer in buffers_of(statement) if buffer.scope() == old]
    return moved(statement, {buffer: (widened(buffer, [], new), []) for buffer in mine})


def map_kernels(statement: Any, change: Callable[[tirx.For], tirx.Stmt]) -> Any:
    """Change the outermost loops that are bound to blocks or threads."""
    return rewrite_nest(
        statement,
        lambda s, around: (
            change(s) if isinstance(s, tirx.For) and s.thread_binding is not None else None
        ),
    )


def simplified(expr: Any) -> Any:
    """Return a shorter expression of the same value."""
    return sym.Analyzer().simplify(expr)


def most_of(extent: Any, analyzer: Any = None) -> Any | None:
    """Return the largest value of an expression if it is known, else None."""
    bound = (analyzer or sym.Analyzer()).const_int_bound(extent).max_value
    return i64(int(bound)) if bound < 2**31 else None


def barrier() -> tirx.Stmt:
    """Return a statement at which all threads of a block meet."""
    return tirx.Evaluate(tirx.call_intrin("", SYNC, tvm.ir.StringImm("shared")))
