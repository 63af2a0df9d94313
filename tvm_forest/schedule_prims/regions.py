"""Finds where concurrent additions are gathered, and whether the model's order is kept.

takes: a nest; gives: its regions, the rows and trees of each, whether the order is kept.

A region is the outermost loop with concurrent iterations that contains concurrent loops over trees:
their leaf values are gathered while it runs, and added to the sums after it.

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

from .nest import OUTPUT_KINDS, Bound, Guard, Kind, Loop, find_paths, list_values
from .nest.problems import Problem


def find_regions(loop: Loop) -> list[Loop]:
    """Return the outermost loops, this one included, that gather additions of concurrent trees."""
    if not loop.gathers_sums:
        return [region for child in loop.children for region in find_regions(child)]
    trees = (inside for inside in loop.traverse() if inside.kind == "tree")
    return [loop] * any(inside.is_concurrent for inside in trees)


def find_ordered_regions(loop: Loop) -> list[Loop]:
    """Return the regions that gather leaf values and add them in order.

    One loop with reduce "ordered" is enough: all trees that the region visits are added in order.
    """
    regions = find_regions(loop)
    return [x for x in regions if any(y.reduce == "ordered" for y in x.traverse())]


def is_atomic(region: Loop) -> bool:
    """Return whether a region gathers nothing, because all its concurrent trees add atomically."""
    trees = (x for x in region.traverse() if x.kind == "tree" and x.is_concurrent)
    return all(x.reduce == "atomic" for x in trees)


def list_order_problems(nest: Loop) -> Iterator[Problem]:
    """Yield a problem for each region that adds in order and has another reduction inside.

    The problem names the first loop over trees with another reduction, such as `atomic_reduce`.
    """
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

    Decided from ranges: the step of a tree loop must exceed the range of the loops inside, and of
    two leaf loops with the same rows and classes the first must have the smaller trees. For
    example, `t0` in (0, 8, 4) around `t1` in (0, 4, 1) is in order, but `t1` in (0, 4, 1) around
    `t0` in (0, 8, 4) visits trees 0, 4, 1, 5, ... Inside a region of `find_ordered_regions`, any
    order is allowed; elsewhere no loop over trees may be concurrent.
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
    """Return whether leaf loop `second` only adds later trees than `first`, or to other elements.

    Also true if both are inside a loop of `sorted_in`, after which their trees are added in order.
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
    """Return the least and the greatest sum of the values of a kind's loops, ignoring guards.

    The greatest is infinite if it depends on the number of rows.
    """
    inside = [loop for loop in path if loop.kind == kind]
    high = sum(float("inf") if loop.last is None else loop.last for loop in inside)
    return sum(loop.start for loop in inside), high


# -- values ---------------------------------------------------------------------------------------


def list_values_inside(
    loop: Loop, guards: Sequence[Guard], kind: Kind
) -> npt.NDArray[np.int64] | None:
    """Return the offsets of rows, classes or trees that a loop and those inside cover, ascending.

    None if they depend on the number of rows.

    Args:
        loop: the outermost of these loops.
        guards: the nest's guards, which leave offsets out.
        kind: which of the offsets are asked for; loops of other kinds add nothing.
    """
    if any(inside.kind == kind and inside.count is None for inside in loop.traverse()):
        return None
    return np.unique(np.concatenate([list_values(x, guards, kind) for x in find_paths(loop)]))


def is_cut(loop: Loop, guards: Iterable[Guard], kind: Kind) -> bool:
    """Return whether a guard links a loop here or inside with a loop around.

    The guard at the end of all rows does not count.
    """
    inside = {x.name for x in loop.traverse() if x.kind == kind}
    named = [set(x.loops) for x in guards if x.stop is not None]
    return any(names & inside and names - inside for names in named)


def has_no_gaps(loop: Loop, guards: Sequence[Guard], kind: Kind) -> bool:
    """Return whether a loop and the loops inside cover rows or classes 0, 1, 2, ... without gaps.

    If their number depends on the number of rows, True is certain and False is not.
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
