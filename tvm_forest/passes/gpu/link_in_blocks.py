"""Make values of sums where the sums are made, in the same kernel.

takes: a lowered function for a GPU; gives: the same with one loop over rows less.

    for b0 in range(n / 64):   # grid.x       for b0 in range(n / 64):   # grid.x
        S(b0)                                     S(b0)
    for r in range(n):               -->          for r in range(64):   # spread
        value[r] = link(margin[r])                    if b0 * 64 + r < n:
                                                          value[b0 * 64 + r] = link(...)

Only where a block adds up whole rows: no trees and no classes are on other blocks.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...schedule import Schedule
from ...schedule_prims.replay import FINISH
from ...tir_gen.builder import Code
from ...tir_gen.ir import guarded, i64, replaced, sequence, with_body
from ..annotations import GPU, KIND, reach
from ..ir import has


def finish_in_blocks(func: tirx.PrimFunc, sch: Schedule) -> tirx.PrimFunc:
    """Return a function that finishes the rows of a block in that block, where it can."""
    parts = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else [func.body]
    if len(parts) < 2 or not _is_finish(parts[-1]):
        return func
    *before, nest, finish = parts
    if any(has(part, GPU) for part in before):
        return func
    fused = _fused(nest, finish, sch, func.params[0], ())
    return func if fused is None else func.with_body(sequence([*before, fused]))


def _is_finish(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.For) and FINISH in statement.annotations


def _fused(
    nest: tirx.Stmt, finish: tirx.For, sch: Schedule, rows: Any, around: tuple[tirx.For, ...]
) -> tirx.Stmt | None:
    """Put a loop behind the body of the innermost loop over blocks."""
    if not isinstance(nest, tirx.For) or str(nest.annotations.get(KIND, "")) != "batch":
        return None
    if not str(nest.annotations.get(GPU, "")).startswith("grid"):
        return None
    around = (*around, nest)
    if has(nest.body, GPU, "grid"):
        inside = _fused(nest.body, finish, sch, rows, around)
        return None if inside is None else with_body(nest, inside)
    first, _, most = reach(sch, around, rows)
    if most is None:
        return None
    code = Code()
    code.add(nest.body)
    with code.nest("row", [i64(most)], spread=True) as (place,):
        row = first + place
        done = replaced(finish.body, {finish.loop_var: row})
        code.add(guarded(done, [row < rows.shape[0]]))
    return with_body(nest, code.finish())
