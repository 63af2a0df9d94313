"""What a schedule visits, in order: its nest run in plain Python, without TVM.

for row, output, tree in visits(sch, n): margin[row, output] += walk(tree, row)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.nest import Loop, Share


class Visit(NamedTuple):
    """One walk, and the leaf loop that it belongs to."""

    row: int
    output: int
    tree: int
    leaf: str


def visits(sch: Schedule, n: int) -> Iterator[Visit]:
    """Yield the walks for n rows, parallel loops one iteration after the other."""
    return (visit for visit, _ in runs(sch, n))


def runs(sch: Schedule, n: int) -> Iterator[tuple[Visit, dict[str, int]]]:
    """Yield the same, each with the values of the loops around it, by name."""
    for loop in sch.nest.children:
        yield from _run(sch, loop, n, {})


def _run(
    sch: Schedule, loop: Loop, n: int, around: dict[str, int]
) -> Iterator[tuple[Visit, dict[str, int]]]:
    values = range(loop.start, amount(loop.stop, n), amount(loop.step, n) or 1)
    for iteration, value in enumerate(values):
        here = {**around, loop.name: value}
        if _left_out(sch, here, n):
            continue
        if not loop.children:
            sums = {"batch": 0, "class": 0, "tree": 0}
            for outer in sch.path(loop.name):
                sums[outer.kind] += here[outer.name]
            yield Visit(*sums.values(), loop.name), here
        for child in loop.children:
            if child.case in (None, iteration):
                yield from _run(sch, child, n, here)


def amount(bound: int | Share | None, n: int) -> int:
    """Return a bound or a step for n rows."""
    if isinstance(bound, Share):
        return -(-n // bound.parts)
    return n if bound is None else bound


def _left_out(sch: Schedule, here: dict[str, int], n: int) -> bool:
    """Whether a guard fails; values are never negative, so a part of its loops may say so."""
    return any(
        sum(here.get(name, 0) for name in guard.loops) >= amount(guard.stop, n)
        for guard in sch.guards
    )
