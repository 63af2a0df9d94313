"""Write the part of a nest that S-TIR cannot hold: loops with copies.

takes: IRModule without blocks, its nest as it was before the first copy; gives: IRModule.

    for tree in range(100):   # written        for d1 in range(40):
        for b1 in range(64):  # written  -->       for b1@d1 in range(64):
            S(tree, b1)                                S(d1, b1@d1)
                                               for d2 in range(60):
                                                   for b1@d2 in range(64):
                                                       S(d2 + 40, b1@d2)

A loop variable of S-TIR counts iterations. Inside a copy it is replaced by the values of all loops
that came from it, divided by its step; the divisions go out evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..nest import Loop, Share, Stop
from ..schedule import Schedule
from ..schedule_prims.replay import notes_of
from ..schedule_prims.walks import WalkForm

WRITTEN = "tvm_forest.written"
NAME = "tvm_forest.name"
KIND = "tvm_forest.kind"
STEP = "tvm_forest.step"


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.WriteNest")
@dataclass(frozen=True)
class WriteNest:
    """Replace the loops that are marked as written.

    Attributes:
        sch: the schedule with the final nest.
        forms: how the walks of each leaf loop are done.
    """

    sch: Schedule
    forms: dict[str, WalkForm]

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Find the outermost marked loop and write its successors in its place."""
        n = func.params[0].shape[0]
        return func.with_body(self._visit(func.body, n, {}))

    def _visit(self, statement: tirx.Stmt, n: Any, around: dict[str, Any]) -> tirx.Stmt:
        """Descend through sequences and loops; `around` holds the values of the outer loops."""
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(part, n, around) for part in statement.seq])
        if not isinstance(statement, tirx.For):
            return statement
        if WRITTEN in statement.annotations:
            return _Writer(self.sch, self.forms, n, *_chain(statement, n)).write(around)
        name = statement.annotations.get(NAME)
        if name is not None:
            around = {**around, str(name): value_of(statement, n)}
        return with_body(statement, self._visit(statement.body, n, around))


def value_of(loop: tirx.For, n: Any) -> Any:
    """Return what an iteration of a loop adds to the number of the row, class or tree."""
    notes = loop.annotations
    return loop.loop_var * _step_of(loop, n) + int(notes["tvm_forest.start"])


def _step_of(loop: tirx.For, n: Any) -> Any:
    step = loop.annotations[STEP]
    return _amount(Share.parse(str(step)) if isinstance(step, str) else int(step), n)


def _amount(bound: Stop, n: Any) -> Any:
    """Return a bound or step of a loop as an expression."""
    if isinstance(bound, Share):
        return tirx.floordiv(n + (bound.parts - 1), tirx.const(bound.parts, "int64"))
    return n if bound is None else tirx.const(bound, "int64")


def with_body(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """Return a loop with another body."""
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        body,
        loop.thread_binding,
        loop.annotations,
    )


def _chain(
    statement: tirx.Stmt, n: Any
) -> tuple[dict[str, tuple[tirx.Var, Any]], tirx.BufferStore]:
    """Return variable and step of every marked loop, and the store that they hold."""
    origins = {}
    while isinstance(statement, (tirx.For, tirx.IfThenElse)):
        if isinstance(statement, tirx.IfThenElse):
            statement = statement.then_case  # guards are written anew
            continue
        facts = statement.annotations
        origins[str(facts[WRITTEN])] = (statement.loop_var, _step_of(statement, n))
        statement = statement.body
    return origins, statement


@dataclass(frozen=True)
class _Writer:
    """One part of a nest under construction.

    Attributes:
        sch, forms, n: see WriteNest.
        origins: variable and step of the S-TIR loop that each index stands for.
        store: the body of that nest.
    """

    sch: Schedule
    forms: dict[str, WalkForm]
    n: Any
    origins: dict[str, tuple[tirx.Var, Any]]
    store: tirx.BufferStore

    def write(self, around: dict[str, Any]) -> tirx.Stmt:
        """Write all loops inside the innermost loop that S-TIR still holds."""
        outer = [name for name in self.sch.names() if name in around]
        parent = self.sch[outer[-1]] if outer else self.sch.nest
        return _sequence([self._loop(child, around) for child in parent.children])

    def _loop(self, loop: Loop, around: dict[str, Any]) -> tirx.Stmt:
        var = tirx.Var(loop.name.split("@")[0], "int64")
        step = _amount(loop.step, self.n)
        inside = {**around, loop.name: var * step + loop.start}
        if not loop.children:
            body = self._leaf(inside)
        else:
            body = _sequence([self._case(child, var, inside) for child in loop.children])
        count = tirx.floordiv(_amount(loop.stop, self.n) - loop.start + (step - 1), step)
        kind = tirx.ForKind.UNROLLED if loop.unroll else tirx.ForKind.SERIAL
        notes = notes_of(loop, self.forms)
        return tirx.For(var, tirx.IntImm("int64", 0), count, kind, body, None, notes)

    def _case(self, child: Loop, var: tirx.Var, around: dict[str, Any]) -> tirx.Stmt:
        written = self._loop(child, around)
        if child.case is None:
            return written
        return tirx.IfThenElse(tirx.EQ(var, tirx.const(child.case, "int64")), written, None)

    def _leaf(self, around: dict[str, Any]) -> tirx.Stmt:
        """The store, for the values of the loops around it, under their guards."""
        counts = {
            var: self._count(name, step, around) for name, (var, step) in self.origins.items()
        }

        def swap(var: tirx.Var) -> Any:
            return next((new for old, new in counts.items() if old.same_as(var)), var)

        store = tvm_ffi.structural_map(self.store, (tirx.Var, swap))
        guards = [
            sum((around[name] for name in guard.loops[1:]), around[guard.loops[0]])
            < _amount(guard.stop, self.n)
            for guard in self.sch.guards
            if all(name in around for name in guard.loops)
        ]
        return tirx.IfThenElse(tirx.all(*guards), store, None) if guards else store

    def _count(self, origin: str, step: Any, around: dict[str, Any]) -> Any:
        """The iteration of an S-TIR loop that the loops which came from it amount to."""
        family = [name for name in self.sch.copies(origin) if name in around]
        value = sum((around[name] for name in family[1:]), around[family[0]])
        return tirx.floordiv(value, step)


def _sequence(statements: list[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
