"""Checks the loops of a nest for problems, path by path.

takes: the loops around a walk; gives: Problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from ...system.values import dataclass, replace
from . import Bound, Guard, Kind, Loop, Nest, Share, find_leaf_loops, list_values


@dataclass(frozen=True)
class Problem:
    """A problem of a nest.

    Attributes:
        loop: name of the faulty loop, whose line is marked; "" for none.
        what: what is wrong, and with which loops.
        advice: what to do.
    """

    loop: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


MAX_VALUES = 10**6
"""Largest number of values of the loops of one kind for which coverage is checked.

In a sound nest, loops have only as many values as there are rows, classes or trees, and a few more
that guards exclude.
"""


def does_each_once(nest: Nest) -> bool:
    """Return whether the loops certainly cover every row, class and tree exactly once.

    This is checked for a few rows, and for more rows than the largest tile: a nest treats all tiles
    as it treats the first two. False also where it cannot be checked: a guard compares loops of two
    kinds, an end of classes or trees is not a number, or there are too many values.
    """
    kinds = {x.name: x.kind for x in nest.loops()}
    for guard in nest.guards:
        counted = {kinds[name] for name in guard.loops if name in kinds}
        if len(counted) > 1 or not (isinstance(guard.stop, int) or counted <= {"batch"}):
            return False
    steps = [x.step for x in nest.loops() if x.kind == "batch" and isinstance(x.step, int)]
    largest = max(steps, default=1)
    return largest <= MAX_VALUES and all(_covers(nest, rows) for rows in {67, 2 * largest + 3})


def _covers(nest: Nest, rows: int) -> bool:
    """Return whether the loops of each kind cover exactly the values for this number of rows."""
    rounds = -(-nest.trees // nest.round_size)
    ends: dict[Kind, int] = {"batch": rows, "class": nest.classes, "tree": rounds}
    guards = [replace(guard, stop=_count(guard.stop, rows)) for guard in nest.guards]
    for kind, end in ends.items():
        values = _list_first_values(nest.loops(), guards, kind, end)
        if values is None or not np.array_equal(np.sort(values), np.arange(end)):
            return False
    return True


def _list_first_values(
    path: tuple[Loop, ...], guards: list[Guard], kind: Kind, end: int
) -> npt.NDArray[np.int64] | None:
    """Return the sums of a kind's loops up to `end` and some beyond; None if they are too many."""
    rows = end if kind == "batch" else 1
    sizes = [(x, _count(x.stop, rows), _count(x.step, rows)) for x in path]
    # large tiles have values far beyond the end, of which the first ones are enough
    loops = [replace(x, stop=min(stop, end + step), step=step) for x, stop, step in sizes]
    counts = [x.count or 0 for x in loops if x.kind == kind]
    return None if prod(counts) > max(MAX_VALUES, 8 * end) else list_values(loops, guards, kind)


def _count(bound: Bound, rows: int) -> int:
    """Evaluate a bound or step for a number of rows."""
    if isinstance(bound, Share):
        return -(-rows // bound.parts)
    return rows if bound is None else int(bound)


def list_problems(
    path: tuple[Loop, ...], wanted: set[str], vectors: bool = False
) -> Iterator[Problem]:
    """Yield the problems of the path to one innermost loop.

    Args:
        path: the loops from the outermost one down to the innermost one.
        wanted: kinds of loops that the path must have.
        vectors: see `find_leaf_loops`.
    """
    leaf, kinds = path[-1], {loop.kind for loop in path}
    if kinds != wanted:
        what = f"the loops around '{leaf.name}' run over {', '.join(sorted(kinds))} only"
        yield Problem(leaf.name, what, f"keep loops over {', '.join(sorted(wanted))}")
    for loop in path[:-1]:
        if (loop.interleave > 1 or loop.simdize) and find_leaf_loops(loop, vectors) != (loop,):
            done = "interleaved" if loop.interleave > 1 else "simdized"
            what = f"'{loop.name}' is {done} but contains '{loop.children[0].name}'"
            yield Problem(loop.name, what, "leave it innermost")
    yield from _list_cache_problems(path)
    yield from _list_parallel_problems(path)
    yield from _list_gpu_problems([loop for loop in path if loop.gpu])


def _list_cache_problems(path: tuple[Loop, ...]) -> Iterator[Problem]:
    for i, loop in enumerate(path):
        cached = f"'{loop.name}' has cache {loop.cache}"
        if loop.cache and (loop.interleave > 1 or loop.simdize):
            what = f"{cached}, one iteration at a time, but its walks advance together"
            yield Problem(loop.name, what, "tile it, and cache the outer loop")
        for inside in path[i + 1 :] if loop.cache not in (None, "prefetch") else ():
            if inside.kind == loop.kind and inside.count is None:
                what = f"{cached} but holds '{inside.name}' of n iterations"
                yield Problem(loop.name, what, "tile it first")


def _list_parallel_problems(path: tuple[Loop, ...]) -> Iterator[Problem]:
    parallel = [loop for loop in path if loop.parallel]
    for outer, inner in pairwise(parallel):
        if outer.cache:
            what = f"'{outer.name}' has cache {outer.cache} and holds parallel '{inner.name}'"
            yield Problem(outer.name, what, "cache another loop, for these two become one")
        if outer.children != (inner,) or outer.is_specialized:
            between = path[path.index(outer) + 1].name
            gap = f"with '{between}' between them" if between != inner.name else "beside others"
            what = f"'{inner.name}' lies inside parallel '{outer.name}' {gap}"
            yield Problem(inner.name, what, "make them adjacent, so that they can be fused")


def _list_gpu_problems(mapped: list[Loop]) -> Iterator[Problem]:
    for loop in mapped:
        if loop.width > 1 and loop.is_specialized:
            what = f"'{loop.name}' adds up with vectors, but its iterations have loops of their own"
            yield Problem(loop.name, what, "choose one of them")
        if loop.width > 1 and (loop.count is None or loop.count % loop.width):
            what = f"'{loop.name}' adds up {loop.width} threads at a time, but has {loop.count}"
            yield Problem(loop.name, what, "split it at a multiple of these")
    for outer, inner in combinations(mapped, 2):
        if str(outer.gpu).startswith("block") and str(inner.gpu).startswith("grid"):
            what = f"grid index '{inner.name}' lies inside block index '{outer.name}'"
            yield Problem(inner.name, what, "reorder them")
