"""Directives that say how the partial sums of parallel tree loops are added up.

takes: Schedule; gives: Schedule with a mark that the pass PrivatizeSums acts on.

A tree loop whose iterations run at the same time conflicts: two of them add to the same margin.
Each iteration therefore gets a partial sum of its own, all of which are added when the loop ends.
S-TIR's `rfactor` does this for one loop and must come before every other step; the pass does it for
any number of loops, after all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..nest import Loop
from ..schedule import Schedule
from .directive import directive, find_loop, refuse

WIDTHS = (2, 4, 8, 16, 32)


def _conflicting(sch: Schedule) -> Iterator[Loop]:
    for loop in sch.loops():
        if loop.kind == "tree" and loop.reduce is None and (loop.parallel or loop.gpu):
            yield loop


def _atomic_reduce_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    yield from ({"index": loop.name} for loop in _conflicting(sch))


@directive(choices=_atomic_reduce_choices)
def atomic_reduce(sch: Schedule, index: str) -> Schedule:
    """Add the leaves of a parallel tree loop atomically, without partial sums.

    The order of additions, and so the last bits, depend on timing.

    Pass: PrivatizeSums.

    Args:
        index: a parallel loop over trees.

    Raises:
        ScheduleError: no such loop, over rows, or sequential.

    Rewrite:
        parallel t0 in (0, 100, 25)   -->   parallel t0 in (0, 100, 25)   # reduce atomic
          S                                   S
    """
    loop = _conflict(sch, "atomic_reduce", index, "no atomic is needed")
    return sch.with_loop(index, replace(loop, reduce="atomic"))


def _vector_reduce_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in _conflicting(sch):
        for width in (8, 16, *([32] if loop.gpu else [])):
            if not _unshuffled(loop, width):
                yield {"index": loop.name, "width": width}


@directive(choices=_vector_reduce_choices)
def vector_reduce(sch: Schedule, index: str, width: int) -> Schedule:
    """Add up the partial sums of a parallel tree loop with vectors along the rows.

    On a GPU the lanes are threads: `width` of them, next to each other in a warp, add up their sums
    by shuffles. Sums of several such groups meet in shared memory. Always in the same order.

    Passes: PrivatizeSums, ThreadSums.

    Args:
        index: a parallel loop over trees, or one that is mapped to "block.x".
        width: lanes of a vector, 2, 4, 8, 16 or 32; rows that are left are added one by one. The
            iterations of a loop of a GPU must be a multiple of it.

    Raises:
        ScheduleError: no such loop, over rows, sequential, on another dimension, or another width.

    Rewrite:
        parallel t0 in (0, 100, 25)   -->   parallel t0 in (0, 100, 25)   # reduce vector 8
          S                                   S
    """
    loop = _conflict(sch, "vector_reduce", index, "there is nothing to reduce")
    if not isinstance(width, int) or width not in WIDTHS:
        message = f"argument 'width': {width!r} is not a power of two up to 32; use one of {WIDTHS}"
        raise refuse(sch, "vector_reduce", message, index)
    problem = _unshuffled(loop, width)
    if problem:
        raise refuse(sch, "vector_reduce", problem, index)
    return sch.with_loop(index, replace(loop, reduce=("vector", width)))


def _unshuffled(loop: Loop, width: int) -> str:
    """Say why the threads of a loop cannot add up their sums by shuffles; "" if they can."""
    if not loop.gpu:
        return ""
    if loop.gpu != "block.x":
        return (
            f"argument 'index': '{loop.name}' is mapped to {loop.gpu}, but threads next to each "
            "other are those of block.x; map it there, or use shared_reduce or atomic_reduce"
        )
    if loop.count is None or loop.count % width:
        return (
            f"argument 'width': {width} does not divide the {loop.count} threads of "
            f"'{loop.name}'; tile the trees by a multiple of it"
        )
    return ""


def _conflict(sch: Schedule, where: str, index: str, why: str) -> Loop:
    loop = find_loop(sch, where, "index", index)
    if loop.kind != "tree":
        what = "rows" if loop.kind == "batch" else "classes"
        message = f"argument 'index': '{index}' runs over {what}, nothing conflicts"
        raise refuse(sch, where, f"{message}; leave this step out", index)
    if not (loop.parallel or loop.gpu):
        message = f"argument 'index': '{index}' is sequential; {why}"
        raise refuse(sch, where, f"{message}, or make it parallel first", index)
    if loop.reduce is not None:
        message = f"argument 'index': '{index}' already has {'; '.join(loop.marks())}"
        raise refuse(sch, where, f"{message}; choose one of them", index)
    return loop
