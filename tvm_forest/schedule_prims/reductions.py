"""Directives for how the partial sums of parallel tree loops are added up.

takes: Schedule; gives: Schedule with an annotation that the passes PrivatizeSums and ThreadSums act
on.

Concurrent iterations of a tree loop conflict, since two of them add to the same margin. Each
iteration therefore gets a partial sum of its own, and these are added when the loop ends. S-TIR's
`rfactor` does this for one loop and must come before every other step; the pass does it for any
number of loops, after all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .devices import is_on_block
from .directive import Refusal, directive, find_loop
from .nest import Loop

if TYPE_CHECKING:
    from .schedule import Schedule

WIDTHS = (2, 4, 8, 16, 32)
"""Allowed vector widths for partial sums."""


@directive()
def atomic_reduce(sch: Schedule, index: str) -> Schedule:
    """Add the leaves of a parallel tree loop atomically, without partial sums.

    The order of additions, and so the last bits, depend on timing.

    Pass: PrivatizeSums.

    Args:
        index: a loop over trees that is parallel, or mapped to a GPU.

    Raises:
        ScheduleError: no such loop, over rows or classes, sequential, with a reduction already, or
            in a region with `ordered_reduce`.

    Rewrite:
        parallel t0 in (0, 100, 25)   -->   parallel t0 in (0, 100, 25)   # reduce atomic
          S                                   S
    """
    loop = _find_conflict(sch, index, "no atomic is needed")
    return sch.with_loop(index, replace(loop, reduce="atomic"))


@directive()
def ordered_reduce(sch: Schedule, index: str) -> Schedule:
    """Add the leaves of a parallel tree loop in the order of the model.

    Nothing is summed in between: the leaf value of every tree is kept until one thread for each row
    and class adds them in ascending order of trees. So sums are bit-equal to those of a serial
    loop.

    Values are kept during the region. That is the outermost loop, `index` or one around it, that is
    parallel, or mapped to threads of a block or to blocks that share rows. All trees in the region
    are added in order, so no loop in it may have another reduction. On a GPU, values are kept in
    shared memory, or in device memory if trees are on the grid; a serial loop over trees around the
    region bounds that memory.

    Pass: PrivatizeSums.

    Args:
        index: a loop over trees that is parallel, or mapped to a GPU.

    Raises:
        ScheduleError: no such loop, over rows or classes, sequential, with a reduction already, or
            in a region with another reduction.

    Rewrite:
        parallel t0 in (0, 100, 25)   -->   parallel t0 in (0, 100, 25)   # reduce ordered
          S                                   S
    """
    loop = _find_conflict(sch, index, "its order is kept")
    return sch.with_loop(index, replace(loop, reduce="ordered"))


@directive()
def vector_reduce(sch: Schedule, index: str, width: int) -> Schedule:
    """Add up the partial sums of a parallel tree loop with vectors along the rows.

    On a GPU the lanes are threads: `width` neighbours in a warp add their sums by shuffles. The
    sums of several such groups are added in shared memory. The order is always the same.

    Passes: PrivatizeSums, ThreadSums.

    Args:
        index: a parallel loop over trees, or one that is mapped to "block.x".
        width: lanes of a vector, 2, 4, 8, 16 or 32; remaining rows are added one by one. The count
            of a GPU loop must be a multiple of it.

    Raises:
        ScheduleError: no such loop, over rows or classes, sequential, on another dimension, with a
            reduction already, in a region with `ordered_reduce`, or a width that is none of these
            or does not divide the count of a GPU loop.

    Rewrite:
        parallel t0 in (0, 100, 25)   -->   parallel t0 in (0, 100, 25)   # reduce vector 8
          S                                   S
    """
    loop = _find_conflict(sch, index, "there is nothing to reduce")
    if not isinstance(width, int) or width not in WIDTHS:
        raise Refusal("width", f"{width!r} is not a power of two up to 32; use one of {WIDTHS}")
    if loop.gpu and loop.gpu != "block.x":
        what = f"'{loop.name}' is mapped to {loop.gpu}, but threads next to each other are those"
        advice = "map it there, or use shared_reduce or atomic_reduce"
        raise Refusal("index", f"{what} of block.x; {advice}")
    if loop.gpu and (loop.count is None or loop.count % width):
        what = f"{width} does not divide the {loop.count} threads of '{loop.name}'"
        raise Refusal("width", f"{what}; tile the trees by a multiple of it")
    return sch.with_loop(index, replace(loop, reduce="vector", width=width))


@directive()
def shared_reduce(sch: Schedule, index: str) -> Schedule:
    """Keep the partial sums of a tree loop in the shared memory of a GPU's thread block.

    Pass: PrivatizeSums.

    Args:
        index: a loop over trees that is mapped to a block dimension.

    Raises:
        ScheduleError: no such loop, over rows or classes, not mapped to a block dimension, with a
            reduction already, or in a region with `ordered_reduce`.

    Rewrite:
        for t1 in (0, 20, 1)   # block.y   -->   for t1 in (0, 20, 1)   # block.y; reduce shared
          S                                        S
    """
    loop = _find_conflict(sch, index, "there is nothing to share", "use gpu_dimension")
    if not is_on_block(loop.gpu):
        raise Refusal(loop, "is not mapped to a block dimension; use gpu_dimension before")
    return sch.with_loop(index, replace(loop, reduce="shared"))


def _find_conflict(sch: Schedule, index: str, why: str, remedy: str = "make it parallel") -> Loop:
    """Return a concurrent loop over trees that has no reduction yet, or refuse it.

    Its iterations add to the same margin.
    """
    loop = find_loop(sch, index)
    if loop.kind != "tree":
        values = "rows" if loop.kind == "batch" else "classes"
        raise Refusal(loop, f"runs over {values}, nothing conflicts; leave this step out")
    if not (loop.parallel or loop.gpu):
        raise Refusal(loop, f"is sequential; {why}, or {remedy} first")
    if loop.reduce is not None:
        raise Refusal(loop, f"already has {'; '.join(loop.annotations())}; choose one of them")
    return loop
