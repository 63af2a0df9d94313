"""Directives that make copies of a part of the nest: split, specialize, split_by_depth.

takes: Schedule; gives: Schedule with several loops in one place.

An S-TIR block stands in one loop nest, and `loop_partition`, TVM's fission, refuses symbolic loops,
shifts the ranges of loops that do not begin at 0, and ends all further `parallel` and `rfactor`. So
none of these steps is replayed on S-TIR: from the first copy inwards, the nest is written by the
pass WriteNest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from ..nest import Guard, Loop
from ..schedule import Schedule
from .directive import check_new_name, directive, find_loop, refuse
from .walks import MOST_HOPS

MOST_COPIES = 64


def _split_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.count is None or loop.count < 2 or loop.special:
            continue
        for part in sorted({1, loop.count // 2, loop.count - 1}):
            names = {"first": f"{loop.name}a", "second": f"{loop.name}b"}
            yield {"index": loop.name, **names, "at": loop.start + part * loop.step}


@directive(choices=_split_choices)
def split(sch: Schedule, index: str, first: str, second: str, at: int) -> Schedule:
    """Run a loop in two parts, each with its own copy of what is inside.

    A loop x inside becomes `x@first` and `x@second`. What directives said about the loops holds for
    both copies.

    Pass: WriteNest.

    Args:
        index: loop with a constant range.
        first, second: names of the two parts, in this order.
        at: first value of the second part, on the grid of the loop.

    Raises:
        ScheduleError: no such loop, a symbolic range, or a value outside or beside the grid.

    Rewrite:
        for tree in (0, 100, 1)   -->   for d1 in (0, 40, 1)
          for b1 in (0, 64, 1)            for b1@d1 in (0, 64, 1)
            S                               S
                                        for d2 in (40, 100, 1)
                                          for b1@d2 in (0, 64, 1)
                                            S
    """
    loop = find_loop(sch, "split", "index", index)
    for argument, name in (("first", first), ("second", second)):
        check_new_name(sch, "split", argument, name)
    if first == second:
        raise refuse(sch, "split", f"argument 'second': '{second}' is also 'first'; rename one")
    _check_cut(sch, loop, at)
    halves = [replace(loop, stop=at), replace(loop, start=at)]
    return _with_copies(sch, loop, [(first, halves[0]), (second, halves[1])])


def _check_cut(sch: Schedule, loop: Loop, at: Any) -> None:
    if loop.count is None:
        what = f"argument 'index': '{loop.name}' has a symbolic range"
        raise refuse(sch, "split", f"{what}; tile it and split the inner index", loop.name)
    if loop.special:
        what = f"argument 'index': '{loop.name}' is specialized; split one of its copies"
        raise refuse(sch, "split", what, loop.name)
    if not isinstance(at, int) or isinstance(at, bool) or not loop.start < at < loop.stop:
        what = f"argument 'at': {at!r} lies outside ({loop.start}, {loop.stop}) of '{loop.name}'"
        raise refuse(sch, "split", f"{what}; choose a value between", loop.name)
    if (at - loop.start) % loop.step:
        grid = f"{loop.start}, {loop.start + loop.step}, {loop.start + 2 * loop.step}, ..."
        what = f"argument 'at': {at} is not on the grid {grid} of '{loop.name}'"
        raise refuse(sch, "split", f"{what}; choose a value of it", loop.name)


def _with_copies(sch: Schedule, loop: Loop, parts: list[tuple[str, Loop]]) -> Schedule:
    """Replace a loop by renamed copies of it, with all guards and names that follow."""
    maps = [_copy_names(loop, name) for name, _ in parts]
    new = [part.renamed(names) for (_, part), names in zip(parts, maps, strict=True)]
    return _renamed(sch.with_loops(loop.name, new), maps)


def _copy_names(loop: Loop, part: str) -> dict[str, str]:
    inside = {x.name: f"{x.name}@{part}" for x in loop.walk() if x is not loop}
    return {loop.name: part, **inside}


def _renamed(sch: Schedule, maps: list[dict[str, str]]) -> Schedule:
    """Give every guard and every name that was copied its copies."""
    copied = maps[0].keys()
    guards: list[Guard] = []
    for guard in sch.guards:
        for names in maps if copied & set(guard.loops) else maps[:1]:
            guards.append(replace(guard, loops=tuple(names.get(x, x) for x in guard.loops)))
    replaced = ((old, tuple(names[old] for names in maps)) for old in copied)
    return replace(sch, guards=tuple(guards), replaced=(*sch.replaced, *replaced))


def _specialize_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        small = loop.count is not None and 2 <= loop.count <= 4
        if small and loop.children and not loop.special:
            yield {"index": loop.name}


@directive(choices=_specialize_choices)
def specialize(sch: Schedule, index: str) -> Schedule:
    """Give every iteration of a loop its own copy of the loops inside.

    A loop x inside becomes `x@index=0`, `x@index=1`, ... Serves workers whose trees have different
    depths: each copy can be split and unrolled in its own way.

    Pass: WriteNest, as a chain of if and else.

    Args:
        index: loop with at most 64 iterations and loops inside.

    Raises:
        ScheduleError: no such loop, a leaf, or too many or a symbolic number of iterations.

    Rewrite:
        for t0 in (0, 4, 2)   -->   for t0 in (0, 4, 2)        # specialize
          for t1 in (0, 2, 1)         for t1@t0=0 in (0, 2, 1)
            S                           S
                                      for t1@t0=1 in (0, 2, 1)
                                        S
    """
    loop = find_loop(sch, "specialize", "index", index)
    if loop.count is None:
        what = f"argument 'index': '{index}' has a symbolic number of iterations; tile it first"
        raise refuse(sch, "specialize", what, index)
    if not loop.children or loop.special:
        what = "contains no loop to specialise" if not loop.special else "is already specialized"
        raise refuse(sch, "specialize", f"argument 'index': '{index}' {what}", index)
    if loop.count > MOST_COPIES:
        what = f"argument 'index': {loop.count} copies exceed the limit {MOST_COPIES}; tile first"
        raise refuse(sch, "specialize", what, index)
    if len(loop.children) > 1:
        what = f"argument 'index': '{index}' contains {len(loop.children)} loops; specialize first"
        raise refuse(sch, "specialize", what, index)
    (child,) = loop.children
    maps = [{x.name: f"{x.name}@{index}={k}" for x in child.walk()} for k in range(loop.count)]
    cases = [replace(child.renamed(names), case=k) for k, names in enumerate(maps)]
    special = replace(loop, children=tuple(cases))
    return _renamed(sch.with_loop(index, special), maps)


def _split_by_depth_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    yield from ()


@directive(choices=_split_by_depth_choices)
def split_by_depth(sch: Schedule, index: str, by: str = "depth") -> Schedule:
    """Split a tree loop wherever the depth changes, and walk each piece in a straight line.

    The pieces are named `index.d6` and so on; a loop x inside becomes `x@index.d6`. A loop that
    jumps over trees has the depth of the deepest tree of an iteration.

    Args:
        index: tree loop; the schedule must know the depths (`new_schedule(model)` does, and
            `know_depths` tells them after a rewrite of the model).
        by: "depth", or "likely": the hops to the likely leaves, which each piece peels.

    Raises:
        ScheduleError: no such loop, another word, depths unknown, or more than 64 pieces.
    """
    loop = find_loop(sch, "split_by_depth", "index", index)
    if by not in ("depth", "likely"):
        what = f"argument 'by': {by!r} is unknown; use depth, likely"
        raise refuse(sch, "split_by_depth", what, index)
    depths = sch.hops if by == "depth" else sch.likely
    if depths is None:
        what = "argument 'index': the depths of the trees are not known"
        advice = "begin with new_schedule(model), or use tvm_forest.with_depths(schedule, model)"
        if by == "likely":
            what = "argument 'by': the hops to the likely leaves are not known"
            advice = "use tvm_forest.with_depths(schedule, model, profile)"
        raise refuse(sch, "split_by_depth", f"{what}; {advice}", index)
    if loop.kind != "tree" or loop.special:
        what = f"argument 'index': '{index}' is no plain tree index; give a loop over trees"
        raise refuse(sch, "split_by_depth", what, index)
    if loop.peel is not None or (by == "likely" and loop.hops is not None):
        done = "peeled" if loop.hops is None else "fully unrolled"
        what = f"argument 'index': '{index}' is already {done}; leave one of them out"
        raise refuse(sch, "split_by_depth", what, index)
    runs = [(depth, len(list(run))) for depth, run in groupby(_iteration_depths(sch, loop, depths))]
    if len(runs) > MOST_COPIES:
        what = f"argument 'index': {len(runs)} changes of depth exceed the limit {MOST_COPIES}"
        raise refuse(sch, "split_by_depth", f"{what}; sort the trees by depth", index)
    named = _piece_names(index, [depth for depth, _ in runs])
    if len(runs) <= 1:
        hops = next((depth for depth, _ in runs), 0)
        return sch.with_loop(index, replace(loop, **_walked(by, hops)))
    parts, value = [], loop.start
    for name, (depth, length) in zip(named, runs, strict=True):
        stop = min(value + length * loop.step, loop.stop or 0)
        parts.append((name, replace(loop, start=value, stop=stop, **_walked(by, depth))))
        value += length * loop.step
    return _with_copies(sch, loop, parts)


def _walked(by: str, hops: int) -> dict[str, Any]:
    """How the walks of a piece are done: in a straight line or peeled; very deep ones in a loop."""
    if by == "depth":
        return {"hops": hops if hops <= MOST_HOPS else None}
    return {"peel": (min(hops, MOST_HOPS), True) if hops else None}


def _iteration_depths(sch: Schedule, loop: Loop, depths: tuple[int, ...]) -> list[int]:
    """Deepest tree of every iteration, whatever the other tree loops around it do."""
    leaves = [x.name for x in loop.walk() if not x.children]
    deepest = []
    for k in range(loop.count or 0):
        trees = {int(tree) for leaf in leaves for tree in sch.trees_of(leaf, {loop.name: k})}
        deepest.append(max((depths[tree] for tree in trees if tree < len(depths)), default=0))
    return deepest


def _piece_names(index: str, depths: list[int]) -> list[str]:
    names: list[str] = []
    for depth in depths:
        name, again = f"{index}.d{depth}", 1
        while name in names:
            again += 1
            name = f"{index}.d{depth}.{again}"
        names.append(name)
    return names
