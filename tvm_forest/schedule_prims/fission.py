"""Directives that copy a part of the nest: split, specialize, split_by_depth.

takes: Schedule; gives: Schedule with several loops in one place.

An S-TIR block stands in one loop nest, and `loop_partition`, TVM's fission, refuses symbolic loops,
shifts loops that do not begin at 0, and rules out later `parallel` and `rfactor`. So none of these
steps is replayed on S-TIR: from the first copy inwards, the pass WriteNest writes the nest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .directive import (
    Refusal,
    check_new_names,
    check_word,
    directive,
    find_loop,
    is_whole,
    name_parts,
    offer_loops,
)
from .nest import Loop
from .walks import MAX_HOPS, cap_peeled

if TYPE_CHECKING:
    from .schedule import Schedule

MAX_COPIES = 64
"""Largest number of copies of a loop that one step makes."""


def _split_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.count is None or loop.count < 2 or loop.is_specialized:
            continue
        first, second = name_parts(loop, "a", "b")
        for part in sorted({1, loop.count // 2, loop.count - 1}):
            at = loop.start + part * loop.step
            yield {"index": loop.name, "first": first, "second": second, "at": at}


@directive(_split_choices)
def split(sch: Schedule, index: str, first: str, second: str, at: int) -> Schedule:
    """Run a loop in two parts, each with its own copy of what is inside.

    A loop x inside becomes `x@first` and `x@second`. Annotations of the loops apply to both copies.

    Pass: WriteNest.

    Args:
        index: loop with a constant range.
        first, second: names of the two parts, in this order.
        at: first value of the second part, on the grid of the loop.

    Raises:
        ScheduleError: no such loop, a symbolic range, a specialized loop, a wrong name or one
            already taken, or `at` is outside the range or off its grid.

    Rewrite:
        for tree in (0, 100, 1)   -->   for d1 in (0, 40, 1)
          for b1 in (0, 64, 1)            for b1@d1 in (0, 64, 1)
            S                               S
                                        for d2 in (40, 100, 1)
                                          for b1@d2 in (0, 64, 1)
                                            S
    """
    loop = find_loop(sch, index)
    check_new_names(sch, "rename one", first=first, second=second)
    if loop.count is None:
        raise Refusal(loop, "has a symbolic range; tile it and split the inner index")
    if loop.is_specialized:
        raise Refusal(loop, "is specialized; split one of its copies")
    if not is_whole(at, loop.start + 1, loop.stop - 1):
        outside = f"lies outside ({loop.start}, {loop.stop}) of '{index}'; choose a value between"
        raise Refusal("at", f"{at!r} {outside}")
    if (at - loop.start) % loop.step:
        grid = f"{loop.start}, {loop.start + loop.step}, {loop.start + 2 * loop.step}, ..."
        raise Refusal("at", f"{at} is not on the grid {grid} of '{index}'; choose a value of it")
    return _replace_by_parts(sch, loop, {first: {"stop": at}, second: {"start": at}})


def _replace_by_parts(sch: Schedule, loop: Loop, parts: dict[str, dict[str, Any]]) -> Schedule:
    """Replace a loop by copies of it; `parts` has the changed fields of each copy by its name."""
    inside = [x.name for child in loop.children for x in child.traverse()]
    maps = [{loop.name: part, **_name_copies(inside, part)} for part in parts]
    changed = (replace(loop, **changes) for changes in parts.values())
    copies = [part.rename(names) for part, names in zip(changed, maps, strict=True)]
    return _replace_names(sch.with_loop(loop.name, *copies), maps)


def _name_copies(names: Iterable[str], copy: str) -> dict[str, str]:
    """Name the loops inside a copy: `x` becomes `x@copy`."""
    return {name: f"{name}@{copy}" for name in names}


def _replace_names(sch: Schedule, maps: list[dict[str, str]]) -> Schedule:
    """Name the copies of loops in place of the loops in guards, and record what replaced them.

    Each of `maps` has, for one copy, the new names of loops by their old ones.
    """
    copied = maps[0].keys()
    guards = (
        replace(guard, loops=tuple(names.get(x, x) for x in guard.loops))
        for guard in sch.guards
        for names in (maps if copied & set(guard.loops) else maps[:1])
    )
    replaced = ((old, tuple(names[old] for names in maps)) for old in copied)
    return replace(sch, guards=tuple(guards), replaced=(*sch.replaced, *replaced))


def _has_few_iterations(loop: Loop) -> bool:
    few = loop.count is not None and 2 <= loop.count <= 4
    return few and bool(loop.children) and not loop.is_specialized


@directive(offer_loops(_has_few_iterations))
def specialize(sch: Schedule, index: str) -> Schedule:
    """Give every iteration of a loop its own copy of the loops inside.

    A loop x inside becomes `x@index=0`, `x@index=1`, ... Useful if the trees of workers have
    different depths: each copy can be split and unrolled in its own way.

    Pass: WriteNest, as a chain of if and else.

    Args:
        index: loop with at most 64 iterations and loops inside.

    Raises:
        ScheduleError: no such loop, none or several loops directly inside, specialized already, or
            a number of iterations that is 0, above 64 or symbolic.

    Rewrite:
        for t0 in (0, 4, 2)   -->   for t0 in (0, 4, 2)        # specialize
          for t1 in (0, 2, 1)         for t1@t0=0 in (0, 2, 1)
            S                           S
                                      for t1@t0=1 in (0, 2, 1)
                                        S
    """
    loop = find_loop(sch, index)
    if loop.count is None:
        raise Refusal(loop, "has a symbolic number of iterations; tile it first")
    if loop.is_specialized:
        raise Refusal(loop, "is already specialized")
    if not loop.children:
        raise Refusal(loop, "contains no loop to specialise")
    if loop.count == 0:
        raise Refusal(loop, "has no iterations; leave this step out")
    if loop.count > MAX_COPIES:
        raise Refusal("index", f"{loop.count} copies exceed the limit {MAX_COPIES}; tile first")
    if len(loop.children) > 1:
        raise Refusal(loop, f"contains {len(loop.children)} loops; specialize first")
    (child,) = loop.children
    inside = [x.name for x in child.traverse()]
    maps = [_name_copies(inside, f"{index}={k}") for k in range(loop.count)]
    cases = [replace(child.rename(names), case=k) for k, names in enumerate(maps)]
    return _replace_names(sch.with_loop(index, replace(loop, children=tuple(cases))), maps)


@directive()
def split_by_depth(sch: Schedule, index: str, by: str = "depth") -> Schedule:
    """Split a tree loop wherever the depth changes, and unroll the walks of each piece.

    The pieces are named `index.d6` and so on; a loop x inside becomes `x@index.d6`. If the loop's
    step covers several trees, the deepest tree of an iteration counts. A loop of equally deep trees
    stays one loop. Walks of more than 64 hops are not unrolled.

    Args:
        index: tree loop; the schedule must know the depths (`new_schedule(model)` sets them, and
            `know_depths` sets them again after a rewrite of the model).
        by: "depth", or "likely": the number of hops to the likely leaves, which each piece peels.

    Raises:
        ScheduleError: no such loop over trees, specialized, peeled or (for "likely") unrolled
            already, another word, depths unknown, or more than 64 pieces.
    """
    loop = find_loop(sch, index)
    check_word("by", by, ("depth", "likely"))
    depths = _find_known_depths(sch, by)
    if loop.kind != "tree" or loop.is_specialized:
        raise Refusal(loop, "is no plain tree index; give a loop over trees")
    if loop.peel is not None or (by == "likely" and loop.hops is not None):
        done = "peeled" if loop.hops is None else "fully unrolled"
        raise Refusal(loop, f"is already {done}; leave one of them out")
    per_iteration = _list_depths(sch, loop, depths)
    runs = [(depth, len(list(run))) for depth, run in groupby(per_iteration)]
    if len(runs) > MAX_COPIES:
        what = f"{len(runs)} changes of depth exceed the limit {MAX_COPIES}"
        raise Refusal("index", f"{what}; sort the trees by depth")
    if len(runs) <= 1:
        depth = runs[0][0] if runs else 0
        return sch.with_loop(index, replace(loop, **_annotate_walks(by, depth)))
    parts, start, seen = dict[str, dict[str, Any]](), loop.start, Counter[int]()
    for depth, length in runs:
        seen[depth] += 1
        again = f".{seen[depth]}" if seen[depth] > 1 else ""
        stop = start + length * loop.step
        span = {"start": start, "stop": min(stop, loop.stop or 0)}
        parts[f"{index}.d{depth}{again}"] = span | _annotate_walks(by, depth)
        start = stop
    return _replace_by_parts(sch, loop, parts)


def _find_known_depths(sch: Schedule, by: str) -> tuple[int, ...]:
    depths = sch.hops if by == "depth" else sch.likely
    if depths is not None:
        return depths
    if by == "depth":
        what = "the depths of the trees are not known; begin with new_schedule(model), or use"
        raise Refusal("index", f"{what} tvm_forest.with_depths(schedule, model)")
    what = "the hops to the likely leaves are not known; use"
    raise Refusal("by", f"{what} tvm_forest.with_depths(schedule, model, profile)")


def _annotate_walks(by: str, hops: int) -> dict[str, Any]:
    """Return the annotation of a piece: unrolled hops, None above 64; or up to 64 peeled hops."""
    if by == "depth":
        return {"hops": hops if hops <= MAX_HOPS else None}
    return {"peel": cap_peeled(hops) or None}


def _list_depths(sch: Schedule, loop: Loop, depths: tuple[int, ...]) -> list[int]:
    """Return the depth of the deepest tree of each iteration, over loops around and inside."""
    leaves = [x.name for x in loop.traverse() if not x.children]
    deepest = []
    for k in range(loop.count or 0):
        run = sch.with_loop(loop.name, loop.take_iteration(k))
        trees = {int(tree) for leaf in leaves for tree in run.trees_of(leaf)}
        deepest.append(max((depths[tree] for tree in trees if tree < len(depths)), default=0))
    return deepest
