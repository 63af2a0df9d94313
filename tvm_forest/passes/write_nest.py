"""Write the part of a nest that S-TIR cannot hold: loops with copies.

takes: IRModule without blocks, its nest as it was before the first copy; gives: IRModule.

    for tree in range(100):   # replaced       for d1 in range(40):
        for b1 in range(64):  # replaced -->       for b1@d1 in range(64):
            S(tree, b1)                                S(d1, b1@d1)
                                               for d2 in range(60):
                                                   for b1@d2 in range(64):
                                                       S(d2 + 40, b1@d2)

A loop variable of S-TIR counts iterations. Inside a copy it is replaced by the values of all loops
that came from it, divided by its step; the divisions leave no remainder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..nest import Loop
from ..nest.marks import marks_of
from ..schedule_prims.replay import NAME, PREFIX
from ..tir_gen.ir import guard, join_statements, name_of_var, replace_vars, rewrite_nest
from .function_pass import NestPass, function_pass
from .nest_facts import NestFacts, amount, name_of


@function_pass
class WriteNest(NestPass):
    """Replace the loops that directives have put copies in the place of."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Find the outermost replaced loop and write its successors in its place."""
        n, facts = func.params[0].shape[0], self.facts

        def write(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
            if not isinstance(s, tirx.For) or name_of(s) not in facts.origins:
                return None
            outer = {name_of(loop): facts.value(loop, n) for loop in around if facts.of(loop).name}
            return _Writer.of(facts, n, s).write(outer)

        return func.with_body(rewrite_nest(func.body, write))


@dataclass(frozen=True)
class _Writer:
    """One part of a nest under construction.

    Attributes:
        facts: of the loops of the nest.
        n: number of rows.
        origins: variable and step of the S-TIR loop that each index stands for.
        store: the body of that nest.
    """

    facts: NestFacts
    n: Any
    origins: dict[str, tuple[tirx.Var, Any]]
    store: tirx.Stmt

    @classmethod
    def of(cls, facts: NestFacts, n: Any, statement: tirx.Stmt) -> _Writer:
        """Take a nest of S-TIR apart; its guards are written anew."""
        origins = {}
        while isinstance(statement, (tirx.For, tirx.IfThenElse)):
            if isinstance(statement, tirx.IfThenElse):
                statement = statement.then_case
                continue
            name = name_of(statement)
            origins[name] = (statement.loop_var, amount(facts.origins[name].step, n))
            statement = statement.body
        return cls(facts, n, origins, statement)

    def write(self, around: dict[str, Any]) -> tirx.Stmt:
        """Write all loops inside the innermost of those `around`, whose values are given."""
        nest = self.facts.nest
        outer = [name for name in nest.names() if name in around]
        parent = nest[outer[-1]] if outer else nest.nest
        return join_statements([self._loop(child, around) for child in parent.children])

    def _loop(self, loop: Loop, around: dict[str, Any]) -> tirx.Stmt:
        var = tirx.Var(name_of_var(loop.name.split("@")[0]), "int64")
        step = amount(loop.step, self.n)
        inside = {**around, loop.name: var * step + loop.start}
        if not loop.children:
            body = self._leaf(inside)
        else:
            body = join_statements([self._case(child, var, inside) for child in loop.children])
        count = tirx.floordiv(amount(loop.stop, self.n) - loop.start + (step - 1), step)
        kind = tirx.ForKind.UNROLLED if loop.unroll else tirx.ForKind.SERIAL
        notes = {PREFIX + word: value for word, value in marks_of(loop).items()}
        start = tirx.IntImm("int64", 0)
        return tirx.For(var, start, count, kind, body, None, {NAME: loop.name, **notes})

    def _case(self, child: Loop, var: tirx.Var, around: dict[str, Any]) -> tirx.Stmt:
        written = self._loop(child, around)
        if child.case is None:
            return written
        return guard(written, [tirx.EQ(var, tirx.const(child.case, "int64"))])

    def _leaf(self, around: dict[str, Any]) -> tirx.Stmt:
        """The store, for the values of the loops around it, under their guards."""
        counts = {
            var: tirx.floordiv(self._sum(self.facts.nest.copies(name), around), step)
            for name, (var, step) in self.origins.items()
        }
        guards = [
            self._sum(guard.loops, around) < amount(guard.stop, self.n)
            for guard in self.facts.nest.guards
            if all(name in around for name in guard.loops)
        ]
        return guard(replace_vars(self.store, counts), guards)

    def _sum(self, names: tuple[str, ...], around: dict[str, Any]) -> Any:
        """The sum of the values of some loops, of those that are around."""
        first, *others = (around[name] for name in names if name in around)
        return sum(others, first)
