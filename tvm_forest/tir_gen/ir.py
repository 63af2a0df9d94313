"""Helpers that search TIR and rebuild it with a part changed.

takes: statements and expressions; gives: new ones, or facts about them.

All passes and walkers use these helpers, so that each holds only its own logic:

    find_all(body, tirx.For)                       all loops inside some code
    change_loop(loop, body=..., extent=...)        the same loop with another body and extent
    replace_vars(body, {row: first + lane})        the same code with variables replaced
    rewrite_nest(body, change)                     a nest whose loops and statements are changed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from keyword import iskeyword
from typing import Any

import tvm_ffi
from tvm import sym, tirx

Change = Callable[[tirx.Stmt, tuple[tirx.For, ...]], tirx.Stmt | None]
"""Function of a statement and the loops around it, outermost first, which returns the statement's
replacement, or None to keep it."""


def i64(value: int) -> tirx.IntImm:
    """Return an int64 constant, the type of indices."""
    return tirx.IntImm("int64", value)


def name_of_var(loop: str) -> str:
    """Return the name of a loop's variable; Python keywords such as "class" get a trailing "_"."""
    return loop + "_" * iskeyword(loop)


def lanes(first: Any, count: int) -> Any:
    """Return the vector index of `count` consecutive elements; for one, `first` itself."""
    return first if count == 1 else tirx.Ramp(first, i64(1), count)


def spread(value: Any, count: int) -> Any:
    """Broadcast a value to `count` lanes; for one lane, return the value itself."""
    return value if count == 1 else tirx.Broadcast(value, count)


# -- questions ------------------------------------------------------------------------------------


def find_all(
    node: Any, kind: Any, where: Callable[[Any], bool] = lambda _: True, order: str = "post"
) -> list[Any]:
    """Return all nodes of the class `kind` inside `node` for which `where` is true.

    With the order "post" inner nodes come first, with "pre" outer ones.
    """
    found: list[Any] = []

    def look(x: Any) -> None:
        if where(x):
            found.append(x)

    tvm_ffi.structural_walk(node, (kind, look), order=order)
    return found


def find_loops(statement: Any, key: str = "") -> list[tirx.For]:
    """Return all loops in a statement that carry annotation `key`, outermost first; "" for any."""
    return find_all(statement, tirx.For, lambda loop: not key or key in loop.annotations, "pre")


def find_stores(statement: Any, buffer: Any = None) -> list[tirx.BufferStore]:
    """Return the stores to a buffer, or all stores if none is given."""
    return find_all(
        statement, tirx.BufferStore, lambda x: buffer is None or x.buffer.same_as(buffer)
    )


def mentions(node: Any, variables: Iterable[Any]) -> bool:
    """Return whether some code uses any of the given variables or buffers."""
    wanted = set(variables)
    return bool(wanted) and bool(find_all(node, tirx.Var, wanted.__contains__))


def step_of(index: Any, var: tirx.Var) -> int | None:
    """Return by how much an index grows if a variable grows by 1; None if that is not constant."""
    linear = sym.detect_linear_equation(index, [var])
    return int(linear[0]) if len(linear) == 2 and isinstance(linear[0], tirx.IntImm) else None


def split_condition(condition: Any) -> list[Any]:
    """Return the conditions that a condition joins by "and"."""
    if isinstance(condition, tirx.And):
        return [*split_condition(condition.a), *split_condition(condition.b)]
    return [condition]


# -- the same with something changed --------------------------------------------------------------


def change_loop(loop: tirx.For, **fields: Any) -> tirx.For:
    """Return a loop with some of its fields changed, such as `body` or `extent`."""
    names = ("loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations")
    return tirx.For(*(fields[name] if name in fields else getattr(loop, name) for name in names))


def with_body(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """Return a loop with another body."""
    return change_loop(loop, body=body)


def replace_vars(node: Any, swaps: dict[Any, Any]) -> Any:
    """Return code with expressions in place of variables."""
    swap = (tirx.Var, lambda var: swaps.get(var, var))
    return tvm_ffi.structural_map(node, swap) if swaps else node


def at_iteration(loop: tirx.For, value: Any) -> tirx.Stmt:
    """Return a loop's body for one value of its variable; loops inside get new variables."""
    inner = [x.loop_var for x in find_loops(loop.body)]
    fresh = {var: tirx.Var(var.name, var.ty) for var in inner}
    return replace_vars(loop.body, {loop.loop_var: value, **fresh})


def guard(statement: tirx.Stmt, conditions: list[Any]) -> tirx.Stmt:
    """Return a statement that runs only if all conditions hold."""
    return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement


def join_statements(statements: list[tirx.Stmt]) -> tirx.Stmt:
    """Join statements into one sequence."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def rewrite_loops(node: Any, change: Callable[[tirx.For], tirx.Stmt]) -> Any:
    """Replace all loops in some code by what `change` returns for them, innermost first."""
    return tvm_ffi.structural_map(node, (tirx.For, change))


def rewrite_nest(
    statement: tirx.Stmt,
    change: Change,
    around: tuple[tirx.For, ...] = (),
    inside_first: bool = False,
) -> tirx.Stmt:
    """Apply `change` to the loops and single statements of a nest.

    Inside sequences, conditions and attributes, it is applied to their parts.

    Args:
        statement: the nest.
        change: takes a loop or a statement without parts, and the loops around it; returns its
            replacement, or None to keep it, and for a loop to go on with its body.
        around: loops around the nest.
        inside_first: change a loop after its body, so that `change` sees the new body.
    """

    def rewrite(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        if isinstance(s, tirx.SeqStmt):
            return tirx.SeqStmt([rewrite(part, around) for part in s.seq])
        if isinstance(s, tirx.IfThenElse):
            other = None if s.else_case is None else rewrite(s.else_case, around)
            return tirx.IfThenElse(s.condition, rewrite(s.then_case, around), other)
        if isinstance(s, tirx.AttrStmt):
            return tirx.AttrStmt(s.node, s.attr_key, s.value, rewrite(s.body, around))
        if inside_first and isinstance(s, tirx.For):
            s = with_body(s, rewrite(s.body, (*around, s)))
            return change(s, around) or s
        new = change(s, around)
        if new is None and isinstance(s, tirx.For):
            return with_body(s, rewrite(s.body, (*around, s)))
        return s if new is None else new

    return rewrite(statement, around)
