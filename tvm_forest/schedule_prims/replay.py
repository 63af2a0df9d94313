"""Repeat the trace of a schedule on TVM's schedule of one function.

takes: s_tir.Schedule and Schedule; gives: nothing, the s_tir.Schedule is changed in place.

Every loop is annotated with its name in the schedule, and our passes ask the schedule for the rest.
From the first loop with copies inwards the nest is left as it is, for the pass WriteNest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..nest import Loop
from .directive import DIRECTIVES, TirNest
from .schedule import Schedule

if TYPE_CHECKING:
    from tvm import s_tir

NAME = "tvm_forest.name"
"""Holds the name that a loop has in the schedule."""
WALK_BLOCK = "walk"
FINISH_BLOCK = "finish"
EPILOGUE = "tvm_forest.finish"
"""Marks the loop over rows that makes values of sums, for GPUs."""


def replay(tir: s_tir.Schedule, sch: Schedule) -> dict[str, Loop]:
    """Rewrite the function "main" of `tir` step by step.

    The function holds the block "walk" inside one loop for each root index of `sch`, and may hold
    a block "finish" in a loop over rows, which comes after all walks.

    Args:
        tir: TVM's schedule of a canonical function.
        sch: what to replay.

    Returns:
        the loops that S-TIR still holds though copies are in their place, by name.
    """
    roots = sch.fresh().loops()
    loops = tir.get_loops(tir.get_sblock(WALK_BLOCK))
    names = [root.name for root in roots]
    trees = {root.name for root in roots if root.kind == "tree"}
    nest = TirNest(tir, dict(zip(names, loops, strict=True)), names, trees)
    written = _replay_steps(nest, sch)
    if sch.nest.children and any(loop.parallel for loop in sch.loops()):
        _finish_in_parallel(nest)
    if FINISH_BLOCK in block_names(tir) and any(loop.gpu for loop in sch.loops()):
        tir.annotate(tir.get_loops(FINISH_BLOCK)[0], EPILOGUE, 1)
    _separate_init(nest, sch)
    for name, loop in nest.loops.items():
        tir.annotate(loop, NAME, name)
    for name, (loop, _) in written.items():
        tir.annotate(loop, NAME, name)
    return {name: origin for name, (_, origin) in written.items()}


def _replay_steps(nest: TirNest, sch: Schedule) -> dict[str, tuple[Any, Loop]]:
    """Apply what S-TIR can do; returns the loops that WriteNest replaces, outermost first."""
    now, written = sch.fresh(), dict[str, tuple[Any, Loop]]()
    for step in sch.steps:
        before, now = now, DIRECTIVES[step.do].apply(now, step.arguments)
        index = str(step.arguments.get("index"))
        names = step.arguments.get("indices", [index])
        if any(name not in nest.loops for name in names):
            continue
        hook = DIRECTIVES[step.do].onto_tir
        if hook is not None:
            hook(nest, **step.arguments)
        elif set(before.names()) != set(now.names()):
            inside = nest.order[nest.order.index(index) :]
            fresh = {x: (nest.loops.pop(x), before[x]) for x in inside if x in nest.loops}
            written = fresh | written
    return written


def _finish_in_parallel(nest: TirNest) -> None:
    """Run the finish block on all threads if the walks do."""
    if FINISH_BLOCK in block_names(nest.tir):
        nest.tir.parallel(nest.tir.get_loops(FINISH_BLOCK)[0])


def block_names(tir: s_tir.Schedule) -> set[str]:
    """Return the names of the blocks of the function."""
    root = tir.get_sblock("root")
    return {tir.get(block).name_hint for block in tir.get_child_blocks(root)}


def _separate_init(nest: TirNest, sch: Schedule) -> None:
    """Write the base scores before the outermost loop that runs over trees or is written anew.

    If that loop is parallel, it stays the only child of parallel loops around it.
    """
    block: Any = nest.tir.get_sblock(WALK_BLOCK)
    if nest.tir.get(block).init is None:
        return
    loops = nest.tir.get_loops(block)
    first = next(
        place
        for place, name in enumerate(nest.order)
        if name not in nest.loops or nest.is_reduction(name)
    )
    parallel = {loop.name for loop in sch.loops() if loop.parallel}
    while first and parallel.issuperset(nest.order[first - 1 : first + 1]):
        first -= 1
    nest.tir.decompose_reduction(block, loops[first])
