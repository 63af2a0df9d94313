"""Read the number of rounds of trees as the function runs, so that models share its code.

takes: IRModule with loops over all rounds; gives: IRModule.

    for tree in range(100):                     rounds = sizes[0]
        S(tree)                        -->      for tree in range(rounds):
                                                    S(tree)

A loop that a directive has cut, unrolled or shared out keeps its constant: how often it runs shapes
the code, see `Nest.runs_over_rounds`.
"""

from __future__ import annotations

from tvm import tirx

from ...runtime.results import SIZES
from ...tir_gen.ir import change_loop, i64, join_statements, rewrite_loops
from ..function_pass import NestPass, function_pass


@function_pass
class ReadSizes(NestPass):
    """Let loops over all rounds end at a count that an array of the model holds."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite a function of sums; others have no such array."""
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
