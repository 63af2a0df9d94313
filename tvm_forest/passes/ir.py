"""Questions about statements, and statements in which something is replaced.

takes: TIR of a nest; gives: loops, answers, TIR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..tir_gen.builder import i64
from .write_nest import with_body

GPU = "tvm_forest.gpu"
SYNC = "tirx.tvm_storage_sync"
SHUFFLE = "tirx.tvm_warp_shuffle_down"

Place = tuple[Any, list[Any]]
"""A buffer, and the indices before those of the buffer that it replaces."""


def loops_of(statement: Any, key: str = "") -> list[tirx.For]:
    """Return all loops inside that carry an annotation, outermost first."""
    found: list[tirx.For] = []

    def look(loop: tirx.For) -> None:
        if not key or key in loop.annotations:
            found.append(loop)

    tvm_ffi.structural_walk(statement, (tirx.For, look), order="pre")
    return found


def has(statement: tirx.Stmt, key: str, value: str = "") -> bool:
    """Return whether a loop inside carries an annotation that begins so."""
    return any(str(loop.annotations[key]).startswith(value) for loop in loops_of(statement, key))


def calls_of(node: Any, *names: str) -> list[Any]:
    """Return the calls of some operators."""
    found: list[Any] = []

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") in names:
            found.append(call)

    tvm_ffi.structural_walk(node, (tvm.ir.Call, look))
    return found


def mentions(node: Any, variables: Iterable[Any]) -> bool:
    """Return whether one of some variables or buffers occurs."""
    wanted, found = set(variables), list[Any]()
    if not wanted:
        return False
    look = (tirx.Var, lambda var: found.append(var) if var in wanted else None)
    tvm_ffi.structural_walk(node, look)
    return bool(found)


def stores_of(statement: Any, buffer: Any = None) -> list[tirx.BufferStore]:
    """Return the stores to a buffer, or all."""
    found: list[tirx.BufferStore] = []

    def look(store: tirx.BufferStore) -> None:
        if buffer is None or store.buffer.same_as(buffer):
            found.append(store)

    tvm_ffi.structural_walk(statement, (tirx.BufferStore, look))
    return found


def buffers_of(statement: Any) -> list[Any]:
    """Return the buffers that are declared inside."""
    found: list[Any] = []
    look = (tirx.AllocBuffer, lambda alloc: found.append(alloc.buffer))
    tvm_ffi.structural_walk(statement, look)
    return found


def replaced(node: Any, swaps: dict[Any, Any]) -> Any:
    """Return code with variables replaced by expressions."""
    swap = (tirx.Var, lambda var: swaps.get(var, var))
    return tvm_ffi.structural_map(node, swap) if swaps else node


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
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([map_kernels(part, change) for part in statement.seq])
    if isinstance(statement, tirx.IfThenElse):
        inside = map_kernels(statement.then_case, change)
        other = statement.else_case
        other = None if other is None else map_kernels(other, change)
        return tirx.IfThenElse(statement.condition, inside, other)
    if isinstance(statement, tirx.AttrStmt):
        body = map_kernels(statement.body, change)
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    if not isinstance(statement, tirx.For):
        return statement
    if statement.thread_binding is not None:
        return change(statement)
    return with_body(statement, map_kernels(statement.body, change))


def guarded(statement: tirx.Stmt, conditions: list[Any]) -> tirx.Stmt:
    """Return a statement that is done when all of that holds."""
    return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement


def sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    """Return statements as one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


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
