"""Helpers of the GPU passes that query and change code, in addition to `tir_gen.ir`.

takes: TIR of kernels; gives: facts about it, or new TIR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...tir_gen import ir
from ...tir_gen.builder import SPREAD
from ...tir_gen.internals.names import SHUFFLE as SHUFFLE
from ...tir_gen.internals.names import SYNC as SYNC
from ...tir_gen.ir import change_loop, find_all, find_loops, i64, replace_vars, rewrite_nest
from ...tir_gen.ops import BALLOT, LANE, find_calls, is_extern
from ...tir_gen.ops import find_extern as find_extern

TensorLoad = tvm.ir.expr.TensorLoad

Place = tuple[Any, list[Any]]
"""A buffer that replaces another, and the indices to put before the original ones."""


# -- questions ------------------------------------------------------------------------------------


def loads_of(node: Any, buffer: Any = None) -> list[Any]:
    """Return the loads of a buffer, or all loads if none is given."""
    return find_all(node, TensorLoad, lambda x: buffer is None or x.source.same_as(buffer))


def buffers_of(statement: Any, scope: str = "") -> list[Any]:
    """Return the buffers declared inside a statement, of one scope or of all."""
    buffers = (alloc.buffer for alloc in find_all(statement, tirx.AllocBuffer))
    return [buffer for buffer in buffers if not scope or buffer.scope() == scope]


def is_spread(statement: tirx.Stmt) -> bool:
    """Return whether a statement is a loop that the threads of a block share."""
    return isinstance(statement, tirx.For) and SPREAD in statement.annotations


def has_spread(statement: tirx.Stmt) -> bool:
    """Return whether a statement contains a loop that the threads of a block share."""
    return bool(find_loops(statement, SPREAD))


def needs_block(statement: tirx.Stmt) -> bool:
    """Return whether a statement needs a block's threads together, for a copy or a ballot."""
    copies, outside = find_loops(statement, SPREAD), set(buffers_of(statement))
    for copy in copies:
        outside -= set(buffers_of(copy))
    shares = any(store.buffer in outside for copy in copies for store in ir.find_stores(copy))
    return shares or bool(find_extern(statement, BALLOT))


def has_meeting(statement: tirx.Stmt) -> bool:
    """Return whether a statement contains a barrier or shuffle."""
    return bool(find_calls(statement, SYNC, SHUFFLE))


def simplify(expr: Any) -> Any:
    """Return an equal expression, as short as TVM's analyzer can make it."""
    return sym.Analyzer().simplify(expr)


def max_value(extent: Any, analyzer: Any = None) -> Any | None:
    """Return the upper bound of an integer expression as an int64 constant.

    The result is None if no bound is known, or if it is 2**31 or more.

    Args:
        extent: the expression.
        analyzer: TVM's analyzer, which may know bounds of variables; None for one that knows none.
    """
    bound = (analyzer or sym.Analyzer()).const_int_bound(extent).max_value
    return i64(int(bound)) if bound < 2**31 else None


def join_users(
    parts: list[tirx.Stmt], joins: Callable[[Any, list[tirx.Stmt]], bool]
) -> list[tirx.Stmt]:
    """Merge the statements from a buffer's declaration to its last use into one statement.

    Args:
        parts: statements of a sequence.
        joins: takes a buffer, and the statements that would be merged; returns whether to do so.
    """
    joined, parts = list[tirx.Stmt](), list(parts)
    while parts:
        end, place = 1, 0
        while place < end:
            if isinstance(parts[place], tirx.AllocBuffer):
                users = {parts[place].buffer}
                end = max(end, *(i + 1 for i, x in enumerate(parts) if ir.mentions(x, users)))
            place += 1
        first = parts[0]
        if not (isinstance(first, tirx.AllocBuffer) and joins(first.buffer, parts[:end])):
            end = 1
        joined.append(ir.join_statements(parts[:end]))
        parts = parts[end:]
    return joined


# -- the same with something changed --------------------------------------------------------------


def move_buffers(statement: Any, places: dict[Any, Place]) -> Any:
    """Replace the declarations, loads and stores of buffers by those of their new places."""

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

    kinds = [(TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, declare)]
    return tvm_ffi.structural_map(statement, kinds) if places else statement


def put_lane(statement: Any, lane: Any) -> Any:
    """Replace a thread's index among the threads that decide a tile together by an expression."""
    return tvm_ffi.structural_map(
        statement, (tvm.ir.Call, lambda call: lane if is_extern(call, LANE) else call)
    )


def widen(buffer: Any, sizes: list[Any], scope: str) -> Any:
    """Return a new buffer like another, with leading dimensions of these sizes, in `scope`."""
    shape = [*sizes, *(x.astype("int64") for x in buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=scope)


def change_scope(statement: Any, old: str, new: str) -> Any:
    """Change all buffers of one scope to another scope."""
    mine = buffers_of(statement, old)
    return move_buffers(statement, {buffer: (widen(buffer, [], new), []) for buffer in mine})


def map_kernels(statement: Any, change: Callable[[tirx.For], tirx.Stmt]) -> Any:
    """Replace each outermost loop bound to blocks or threads by what `change` returns for it."""

    def change_kernel(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        return change(s) if isinstance(s, tirx.For) and axis_tag(s) else None

    return rewrite_nest(statement, change_kernel)


def thread_axis(var: tirx.Var, tag: str) -> tirx.IterVar:
    """Declare a thread axis such as "threadIdx.x", with its variable."""
    return tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)


def axis_tag(loop: tirx.For) -> str:
    """Return the thread axis that a loop is bound to, or ""."""
    return str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""


def change_variable(loop: tirx.For, var: tirx.Var, **fields: Any) -> tirx.For:
    """Return a loop with another variable, and other fields changed as given."""
    body = replace_vars(loop.body, {loop.loop_var: var.astype(loop.loop_var.ty.dtype)})
    axis = thread_axis(var, axis_tag(loop)) if axis_tag(loop) else None
    return change_loop(loop, loop_var=var, body=body, thread_binding=axis, **fields)


def barrier() -> tirx.Stmt:
    """Return a barrier for all threads of a block."""
    return tirx.Evaluate(tirx.call_intrin("", SYNC, tvm.ir.StringImm("shared")))
