"""Repeat the trace of a schedule on TVM's schedule of one function.

takes: s_tir.Schedule and Schedule; gives: nothing, the s_tir.Schedule is changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..schedule import DIRECTIVES, Schedule
from .directive import Nest

if TYPE_CHECKING:
    from tvm import s_tir

WALK_BLOCK = "walk"
FINISH_BLOCK = "finish"


def replay(tir: s_tir.Schedule, sch: Schedule) -> None:
    """Rewrite the function "main" of `tir` step by step.

    The function holds the block "walk" inside one loop for each root index of `sch`, and may hold
    a block "finish" in a loop over rows, which comes after all walks.
    """
    roots = Schedule(sch.trees, sch.classes, sch.batch).names()
    loops = dict(zip(roots, tir.get_loops(tir.get_sblock(WALK_BLOCK)), strict=True))
    nest = Nest(tir, WALK_BLOCK, loops, [])
    for step in sch.steps:
        hook = DIRECTIVES[step.do].onto_tir
        if hook is not None:
            hook(nest, **step.arguments)
    for name, loop in nest.loops.items():
        tir.annotate(loop, "tvm_forest.name", name)
    _finish_in_parallel(nest, sch)
    _separate_init(nest, sch)
    for name, key, value in nest.annotations:
        tir.annotate(nest.loops[name], key, value)


def _finish_in_parallel(nest: Nest, sch: Schedule) -> None:
    """Run the finish block on all threads if the walks do."""
    if any(loop.parallel for loop in sch.loops()) and FINISH_BLOCK in block_names(nest.tir):
        nest.tir.parallel(nest.tir.get_loops(FINISH_BLOCK)[0])


def block_names(tir: s_tir.Schedule) -> set[str]:
    """Return the names of the blocks of the function."""
    root = tir.get_sblock("root")
    return {tir.get(block).name_hint for block in tir.get_child_blocks(root)}


def _separate_init(nest: Nest, sch: Schedule) -> None:
    """Write the base scores before the outermost loop over trees instead of inside it."""
    block: Any = nest.tir.get_sblock(WALK_BLOCK)
    if nest.tir.get(block).init is None:
        return
    first = next(loop.name for loop in sch.loops() if loop.kind == "tree")
    nest.tir.decompose_reduction(block, nest.loops[first])
    nest.block = f"{WALK_BLOCK}_update"
