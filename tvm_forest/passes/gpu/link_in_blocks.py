"""Moves the epilogue (base scores, link, rounding) into the kernel that computes the sums.

takes: a lowered function for a GPU; gives: the function without the epilogue's own loop over rows.

    for b0 in range(n / 64):   # grid.x       for b0 in range(n / 64):   # grid.x
        S(b0)                                     S(b0)
    for r in range(n):               -->          for r in range(64):   # spread
        value[r] = link(margin[r])                    if b0 * 64 + r < n:
                                                          value[b0 * 64 + r] = link(...)

This is possible only if a block sums whole, contiguous rows: no trees or classes of these rows are
on other blocks, and no rows of other blocks are in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from ...schedule_prims.nest import Loop
from ...schedule_prims.regions import has_no_gaps, list_values_inside
from ...schedule_prims.replay import EPILOGUE
from ...tir_gen.builder import Builder
from ...tir_gen.ir import guard, i64, join_statements, replace_vars, with_body
from ..function_pass import NestPass, function_pass
from ..nest_facts import NestFacts, name_of


@function_pass
class LinkInBlocks(NestPass):
    """Moves the epilogue of a block's rows into the block, where possible."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Join the last two statements, the sums and the epilogue, if a block can do both."""
        parts = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else [func.body]
        if len(parts) < 2:
            return func
        *before, nest, epilogue = parts
        is_epilogue = isinstance(epilogue, tirx.For) and EPILOGUE in epilogue.annotations
        if not is_epilogue or any(map(self.facts.has_level, before)):
            return func
        fused = _with_epilogue(nest, epilogue, self.facts, func.params[0], ())
        return func if fused is None else func.with_body(join_statements([*before, fused]))


def _with_epilogue(
    nest: tirx.Stmt, epilogue: tirx.For, facts: NestFacts, rows: Any, around: tuple[tirx.For, ...]
) -> tirx.Stmt | None:
    """Return the nest with the epilogue at the end of each block; None if that is impossible."""
    if facts.of(nest).kind != "batch" or facts.level(nest) != "grid":
        return None
    around = (*around, nest)
    if facts.has_level(nest.body, "grid"):
        inside = _with_epilogue(nest.body, epilogue, facts, rows, around)
        return None if inside is None else with_body(nest, inside)
    most = _count_own_rows(facts, around)
    if most is None:
        return None
    first, _ = facts.reach("batch", around, [], rows.shape[0])
    code = Builder()
    code.add(nest.body)
    with code.nest("row", [i64(most)], spread=True) as (place,):
        row = first + place
        done = replace_vars(epilogue.body, {epilogue.loop_var: row})
        limits = facts.limits(around, rows.shape[0])
        code.add(guard(done, [row < rows.shape[0], *limits]))
    return with_body(nest, code.finish())


def _count_own_rows(facts: NestFacts, around: tuple[tirx.For, ...]) -> int | None:
    """Return the number of rows of a block; None if it varies, or they are not contiguous."""
    nest, inside = facts.nest, facts.nest[name_of(around[-1])].children
    own = Loop("", "batch", 0, 1, 1, tuple(replace(child, case=None) for child in inside))
    rows = list_values_inside(own, nest.guards, "batch")
    return None if rows is None or not has_no_gaps(own, nest.guards, "batch") else len(rows)
