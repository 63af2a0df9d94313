"""What is added at the same time, where it is gathered, and whether the order of the model is kept.

takes: a nest; gives: its regions, the rows and trees of each, answers.

A region is the outermost loop whose iterations run at the same time and that has trees inside it
that do: what these add is gathered while it runs, and joined to the sums behind it.

    for b0 in (0, n, 64)                 # grid.x
      for t0 in (0, 100, 20)
        for b1 in (0, 64, 1)             # block.x: the region
          for t1 in (0, 20, 1)           # block.y; reduce ordered
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..nest import OUTPUT_KINDS, Bound, Guard, Kind, Loop, find_paths, list_values
from ..nest.problems import Problem


def find_regions(loop: Loop) -> list[Loop]:
    """Return the outermost loops here and inside that gather what concurrent trees add."""
    if not loop.gathers_sums:
        return [region for child in loop.children for region in find_regions(child)]
    trees = (inside for inside in loop.traverse() if inside.kind == "tree")
    return [loop] * any(inside.is_concurrent for inside in trees)


def find_ordered_regions(loop: Loop) -> list[Loop]:
    """Return those of `find_regions` that gather leaves to add them in order.

    One loop with the word "ordered" is enough: all trees that the region meets are added in order.
    """
    regions = find_regions(loop)
    return [x for x in regions if any(y.reduce == "ordered" for y in x.traverse())]


def is_atomic(region: Loop) -> bool:
    """Return whether nothing is gathered: all trees that run at the same time add atomically."""
    trees = (x for x in region.traverse() if x.kind == "tree" and x.is_concurrent)
    return all(x.reduce == "atomic" for x in trees)


def list_order_problems(nest: Loop) -> Iterator[Problem]:
    """Yield where a region adds in order and another directive wants another way."""
    for region in find_ordered_regions(nest):
        asking = [x for x in region.traverse() if x.kind == "tree" and x.is_concurrent and x.reduce]
        other = next((x for x in asking if x.reduce != "ordered"), None)
        if other is not None:
            first = next(x for x in asking if x.reduce == "ordered")
            also = f"'{first.name}', which runs at the same time, asks for the order of the model"
            what = f"'{other.name}' has {other.annotations()[-1]}, but {also}"
            yield Problem(other.name, what, "add all of them in one way")


def adds_in_order(nest: Loop) -> bool:
    """Return whether each row adds its trees in ascending order, one after the other.

    Decided from ranges: a tree loop must step over all that is inside, and of two leaf loops that
    meet the same rows and classes the first must have the smaller trees. For example, `t0` in
    (0, 8, 4) steps over `t1` in (0, 4, 1), but `t1` in (0, 4, 1) around `t0` in (0, 8, 4) does not:
    trees 0, 4, 1, 5, ... follow each other. What lies inside a region of `find_ordered_regions` may
    come in any order.
    """
    inside = {x.name for region in find_ordered_regions(nest) for x in region.traverse()}
    loops = [loop for loop in nest.traverse() if loop.name not in inside]
    if any(loop.is_concurrent for loop in loops if loop.kind == "tree"):
        return False
    pairs = combinations(find_paths(nest), 2)
    return all(map(_steps_over_inside, loops)) and all(
        _are_in_order(*pair, inside) for pair in pairs
    )


def _steps_over_inside(loop: Loop) -> bool:
    if loop.kind != "tree" or loop.count == 1:
        return True
    spans = [range_of_sums(path[1:], "tree") for path in find_paths(loop)]
    return max(high for _, high in spans) - min(low for low, _ in spans) < loop.step


def _are_in_order(first: tuple[Loop, ...], second: tuple[Loop, ...], sorted_in: set[str]) -> bool:
    """Whether a second leaf loop adds later trees, or to other rows or classes, than a first.

    Also if both lie inside a loop of `sorted_in`, behind which their trees are added in order.
    """
    fork = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    if any(loop.name in sorted_in for loop in first[:fork]):
        return True
    if first[fork].case != second[fork].case:
        return True  # they are of two iterations of the loop around them, which is checked itself
    first, second = first[fork:], second[fork:]
    return (
        _lies_below(first, second, "tree")
        or any(_lies_below(first, second, kind) for kind in OUTPUT_KINDS)
        or any(_lies_below(second, first, kind) for kind in OUTPUT_KINDS)
    )


def _lies_below(first: tuple[Loop, ...], second: tuple[Loop, ...], kind: Kind) -> bool:
    return range_of_sums(first, kind)[1] < range_of_sums(second, kind)[0]


def range_of_sums(path: tuple[Loop, ...], kind: Kind) -> tuple[float, float]:
    """Return the smallest and the largest sum of values of the loops of one kind, without guards.

    The largest one is infinite where it depends on the number of rows.
    """
    inside = [loop for loop in path if loop.kind == kind]
    high = sum(float("inf") if loop.last is None else loop.last for loop in inside)
    return sum(loop.start for loop in inside), high


# -- values ---------------------------------------------------------------------------------------


def list_values_inside(
    loop: Loop, guards: Sequence[Guard], kind: Kind
) -> npt.NDArray[np.int64] | None:
    """Return what a loop and those inside add to the number of a row, class or tree, ascending.

    None if that depends on the number of rows.
    """
    if any(inside.kind == kind and inside.count is None for inside in loop.traverse()):
        return None
    return np.unique(np.concatenate([list_values(x, guards, kind) for x in find_paths(loop)]))


def is_cut(loop: Loop, guards: Iterable[Guard], kind: Kind) -> bool:
    """Return whether loops around decide which values of a loop and those inside a guard allows.

    The end of all rows is no such guard.
    """
    inside = {x.name for x in loop.traverse() if x.kind == kind}
    named = [set(x.loops) for x in guards if x.stop is not None]
    return any(names & inside and names - inside for names in named)


def has_no_gaps(loop: Loop, guards: Sequence[Guard], kind: Kind) -> bool:
    """Return whether the rows or classes of a loop and those inside follow each other from 0 on.

    Where their number depends on that of the rows, "yes" is certain and "no" is not.
    """
    values = list_values_inside(loop, guards, kind)
    if is_cut(loop, guards, kind):
        return False
    if values is not None:
        return bool(np.array_equal(values, np.arange(len(values))))
    first, *others = ([x for x in p if x.kind == kind and x.last != 0] for p in find_paths(loop))
    end: Bound = 1
    for inner in sorted(first, key=lambda x: x.step if isinstance(x.step, int) else float("inf")):
        if inner.start or inner.step != end:
            return False
        end = inner.stop
    return not others
