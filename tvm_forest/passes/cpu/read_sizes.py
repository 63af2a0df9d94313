"""Makes code read the number of rounds at run time, so that models can share it.

takes: IRModule with loops over all rounds; gives: IRModule.

    for tree in range(100):                     rounds = sizes[0]
        S(tree)                        -->      for tree in range(rounds):
                                                    S(tree)

A loop that a directive has split, unrolled or distributed over threads keeps its constant count,
since the code depends on it, see `Nest.runs_over_rounds`.
"""

from __future__ import annotations

from tvm import tirx

from ...runtime.results import SIZES
from ...tir_gen.ir import change_loop, i64, join_statements, rewrite_loops
from ..function_pass import NestPass, function_pass


@function_pass
class ReadSizes(NestPass):
    """Replaces the constant end of loops over all rounds by the number in the array `SIZES`."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite a function of sums; other functions have no such array."""
        sizes = next((x for x in func.params if x.name == SIZES), None)
        if sizes is None:
            return func
        rounds = tirx.Var("rounds", "int64")

        def change(loop: tirx.For) -> tirx.For:
            whole = self.facts.nest.runs_over_rounds(self.facts.of(loop))
            return change_loop(loop, extent=rounds) if whole else loop

        body = rewrite_loops(func.body, change)
        if body.same_as(func.body):
            return func
        return func.with_body(join_statements([tirx.Bind(rounds, sizes[i64(0)]), body]))
