"""What the passes for GPUs ask of code and do with it, beside the words of `tir_gen.ir`.

takes: TIR of kernels; gives: answers, TIR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...internals.names import SHUFFLE as SHUFFLE
from ...internals.names import SYNC as SYNC
from ...tir_gen import ir
from ...tir_gen.builder import SPREAD
from ...tir_gen.ir import change_loop, find_all, find_loops, i64, replace_vars, rewrite_nest
from ...tir_gen.ops import BALLOT, LANE, find_calls, is_extern
from ...tir_gen.ops import find_extern as find_extern

TensorLoad = tvm.ir.expr.TensorLoad

Place = tuple[Any, list[Any]]
"""A buffer, and the indices before those of the buffer that it replaces."""


# -- questions ------------------------------------------------------------------------------------


def loads_of(node: Any, buffer: Any = None) -> list[Any]:
    """Return the loads of a buffer, or all."""
    return find_all(node, TensorLoad, lambda x: buffer is None or x.source.same_as(buffer))


def buffers_of(statement: Any, scope: str = "") -> list[Any]:
    """Return the buffers of a scope that are declared inside, or all."""
    buffers = (alloc.buffer for alloc in find_all(statement, tirx.AllocBuffer))
    return [buffer for buffer in buffers if not scope or buffer.scope() == scope]


def is_spread(statement: tirx.Stmt) -> bool:
    """Return whether a statement is a loop whose iterations the threads of a block share."""
    return isinstance(statement, tirx.For) and SPREAD in statement.annotations


def has_spread(statement: tirx.Stmt) -> bool:
    """Return whether the threads of a block share the iterations of a loop inside."""
    return bool(find_loops(statement, SPREAD))


def needs_block(statement: tirx.Stmt) -> bool:
    """Return whether threads of a block do a statement together, as a team or with a copy."""
    copies, outside = find_loops(statement, SPREAD), set(buffers_of(statement))
    for copy in copies:
        outside -= set(buffers_of(copy))
    shares = any(store.buffer in outside for copy in copies for store in ir.find_stores(copy))
    return shares or bool(find_extern(statement, BALLOT))


def has_meeting(statement: tirx.Stmt) -> bool:
    """Return whether the threads of a block meet inside a statement."""
    return bool(find_calls(statement, SYNC, SHUFFLE))


def simplify(expr: Any) -> Any:
    """Return a shorter expression of the same value."""
    return sym.Analyzer().simplify(expr)


def max_value(extent: Any, analyzer: Any = None) -> Any | None:
    """Return the largest value of an expression if it is known, else None."""
    bound = (analyzer or sym.Analyzer()).const_int_bound(extent).max_value
    return i64(int(bound)) if bound < 2**31 else None


def join_users(
    parts: list[tirx.Stmt], joins: Callable[[Any, list[tirx.Stmt]], bool]
) -> list[tirx.Stmt]:
    """Return statements, those from a buffer on to its last use as one where it joins them."""
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

    kinds = [(TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, declare)]
    return tvm_ffi.structural_map(statement, kinds) if places else statement


def put_lane(statement: Any, lane: Any) -> Any:
    """Return code in which the number of a thread in its team is an expression."""
    return tvm_ffi.structural_map(
        statement, (tvm.ir.Call, lambda call: lane if is_extern(call, LANE) else call)
    )


def widen(buffer: Any, sizes: list[Any], scope: str) -> Any:
    """Declare a buffer with more dimensions in front."""
    shape = [*sizes, *(x.astype("int64") for x in buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=scope)


def change_scope(statement: Any, old: str, new: str) -> Any:
    """Return code whose buffers of one scope are in another."""
    mine = buffers_of(statement, old)
    return move_buffers(statement, {buffer: (widen(buffer, [], new), []) for buffer in mine})


def map_kernels(statement: Any, change: Callable[[tirx.For], tirx.Stmt]) -> Any:
    """Change the outermost loops that are bound to blocks or threads."""

    def change_kernel(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        return change(s) if isinstance(s, tirx.For) and axis_tag(s) else None

    return rewrite_nest(statement, change_kernel)


def thread_axis(var: tirx.Var, tag: str) -> tirx.IterVar:
    """Declare a dimension of a grid or block, such as "threadIdx.x", whose number is a variable."""
    return tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)


def axis_tag(loop: tirx.For) -> str:
    """Return the dimension that a loop is bound to, or ""."""
    return str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""


def change_variable(loop: tirx.For, var: tirx.Var, **fields: Any) -> tirx.For:
    """Return a loop that counts with another variable, and some other fields changed."""
    body = replace_vars(loop.body, {loop.loop_var: var.astype(loop.loop_var.ty.dtype)})
    axis = thread_axis(var, axis_tag(loop)) if axis_tag(loop) else None
    return change_loop(loop, loop_var=var, body=body, thread_binding=axis, **fields)


def barrier() -> tirx.Stmt:
    """Return a statement at which all threads of a block meet."""
    return tirx.Evaluate(tirx.call_intrin("", SYNC, tvm.ir.StringImm("shared")))
