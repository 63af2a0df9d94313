"""Writes the part of a nest that S-TIR cannot represent: loops that directives have copied.

takes: IRModule without blocks, with the nest before the first copy; gives: IRModule.

    for tree in range(100):   # replaced       for d1 in range(40):
        for b1 in range(64):  # replaced -->       for b1@d1 in range(64):
            S(tree, b1)                                S(d1, b1@d1)
                                               for d2 in range(60):
                                                   for b1@d2 in range(64):
                                                       S(d2 + 40, b1@d2)

A loop variable of S-TIR counts iterations. Inside a copy, it is replaced by the sum of the values
of all loops that were made from its loop, divided by its step; the divisions are exact.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..schedule_prims.nest import Loop
from ..schedule_prims.nest.marks import marks_of
from ..schedule_prims.replay import NAME, PREFIX
from ..system.values import dataclass
from ..tir_gen import ir
from .function_pass import NestPass, function_pass
from .nest_facts import NestFacts, amount, list_conditions, name_of


@function_pass
class WriteNest(NestPass):
    """Replaces loops by the copies that directives have made of them."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Write the copies in place of the outermost loop that they replace."""
        n, facts = func.params[0].shape[0], self.facts

        def write(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
            if not isinstance(s, tirx.For) or name_of(s) not in facts.origins:
                return None
            outer = {name_of(loop): facts.value(loop, n) for loop in around if facts.of(loop).name}
            return _Writer.of(facts, n, s).write(outer)

        return func.with_body(ir.rewrite_nest(func.body, write))


@dataclass(frozen=True)
class _Writer:
    """Writes one part of a nest.

    Attributes:
        facts: facts about the loops of the nest.
        n: number of rows.
        origins: variable and step of each S-TIR loop that is replaced, by its name.
        store: the innermost statement of the S-TIR nest.
    """

    facts: NestFacts
    n: Any
    origins: dict[str, tuple[tirx.Var, Any]]
    store: tirx.Stmt

    @classmethod
    def of(cls, facts: NestFacts, n: Any, statement: tirx.Stmt) -> _Writer:
        """Make the writer that replaces an S-TIR nest, from its loops and its only store.

        The guards of the nest are not kept, since they are written anew.
        """
        steps = {name: amount(loop.step, n) for name, loop in facts.origins.items()}
        origins = {name_of(x): (x.loop_var, steps[name_of(x)]) for x in ir.find_loops(statement)}
        (store,) = ir.find_stores(statement)
        return cls(facts, n, origins, store)

    def write(self, around: dict[str, Any]) -> tirx.Stmt:
        """Return TIR for the loops of the nest inside the innermost loop of `around`.

        `around` has the values of the loops around, by their names.
        """
        nest = self.facts.nest
        outer = [name for name in nest.names() if name in around]
        parent = nest[outer[-1]] if outer else nest.nest
        return ir.join_statements([self._loop(child, around) for child in parent.children])

    def _loop(self, loop: Loop, around: dict[str, Any], outer: Any = None) -> tirx.Stmt:
        """Return a loop and all loops inside; one with a `case` runs for that value of `outer`."""
        var = tirx.Var(ir.name_of_var(loop.name.split("@")[0]), "int64")
        step = amount(loop.step, self.n)
        inside = {**around, loop.name: var * step + loop.start}
        if not loop.children:
            body = self._leaf(inside)
        else:
            body = ir.join_statements([self._loop(child, inside, var) for child in loop.children])
        count = tirx.floordiv(amount(loop.stop, self.n) - loop.start + (step - 1), step)
        kind = tirx.ForKind.UNROLLED if loop.unroll else tirx.ForKind.SERIAL
        notes = {PREFIX + word: value for word, value in marks_of(loop).items()}
        written = tirx.For(var, ir.i64(0), count, kind, body, None, {NAME: loop.name, **notes})
        return ir.guard(written, [] if loop.case is None else [tirx.EQ(outer, ir.i64(loop.case))])

    def _leaf(self, around: dict[str, Any]) -> tirx.Stmt:
        """Return the store, under the guards of the loops around it.

        `around` has the values of these loops, by their names.
        """
        copies = self.facts.nest.copies
        counts = {
            var: tirx.floordiv(sum(around[x] for x in copies(name) if x in around), step)
            for name, (var, step) in self.origins.items()
        }
        guards = list_conditions(self.facts.nest.guards, around, self.n)
        return ir.guard(ir.replace_vars(self.store, counts), guards)
