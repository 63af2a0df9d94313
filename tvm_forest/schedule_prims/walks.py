"""Directives that say how walks are done: interleave, unroll_walk, peel_walk, simdize.

takes: Schedule; gives: Schedule with a mark that the pass LowerWalks acts on.

S-TIR sees a walk as one operator, so none of these has a primitive there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..forest import Array, Forest
from ..forest.hits import peel_depths
from ..nest import Loop, walk_loops
from ..schedule import Schedule
from .directive import directive, find_loop, refuse
from .loops import said_of
from .memory import WALKED

MOST_WALKS = 32
MOST_HOPS = 64
LANES = {"gather": (4, 8, 16, 32, 64), "bits": (64, 128, 256, 512), "permute": (16, 32, 64)}
"""Rows of one vector walk."""


def _interleave_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.leaves():
        if loop.kind != "class" and not (loop.parallel or loop.marks()):
            yield from ({"index": loop.name, "factor": k} for k in (2, 4, 8))


@directive(choices=_interleave_choices)
def interleave(sch: Schedule, index: str, factor: int) -> Schedule:
    """Advance `factor` walks of a leaf loop together, hop by hop.

    The walks are independent, so their loads overlap. Over rows they share the tree; over trees
    they may end at different depths, and a walk that has ended stays where it is. Iterations that
    are left over form a smaller group; rows, whose number is unknown, groups of half the size each.

    Pass: LowerWalks.

    Args:
        index: a leaf loop over rows or trees. Where leaves hold vectors, loops over classes may be
            inside: they are done after the walks.
        factor: walks that advance together, 2 to 32.

    Raises:
        ScheduleError: no such loop, not a leaf, a class loop, annotated, or a factor out of range.

    Rewrite:
        for b1 in (0, 64, 1)   -->   for b1 in (0, 64, 1)   # interleave 8
          S                            S
    """
    loop = _leaf(sch, "interleave", index)
    if loop.kind == "class":
        message = f"argument 'index': '{index}' runs over classes; interleave rows or trees"
        raise refuse(sch, "interleave", message, index)
    if not isinstance(factor, int) or isinstance(factor, bool) or not 2 <= factor <= MOST_WALKS:
        message = f"argument 'factor': {factor!r} has no effect; use 2..{MOST_WALKS}"
        raise refuse(sch, "interleave", message, index)
    return sch.with_loop(index, replace(loop, interleave=factor))


def _leaf(sch: Schedule, where: str, index: str) -> Loop:
    """Return a leaf loop whose iterations no directive has spoken for."""
    loop = find_loop(sch, where, "index", index)
    if walk_loops(loop, sch.vectors) != (loop,):
        inside = loop.children[0].name
        message = f"argument 'index': '{index}' is not innermost (contains '{inside}')"
        raise refuse(sch, where, f"{message}; choose the innermost loop", index)
    taken = (loop.parallel, loop.gpu, loop.unroll, loop.interleave > 1, loop.simdize)
    if any(taken):
        message = f"argument 'index': '{index}' already has {said_of(loop)}; choose one of them"
        raise refuse(sch, where, message, index)
    return loop


def _unroll_walk_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.kind == "tree" and loop.hops is None and loop.peel is None:
            yield {"index": loop.name, "hops": "depth"}


@directive(choices=_unroll_walk_choices)
def unroll_walk(sch: Schedule, index: str, hops: int | str = "depth") -> Schedule:
    """Walk in a straight line of `hops` hops, without a loop and without leaf tests.

    Holds for all walks at or below `index`; a mark further inside wins. A walk that is at its leaf
    earlier stays there.

    Pass: LowerWalks.

    Args:
        index: any loop.
        hops: at least the depth of the deepest tree of the loop, or "depth" for just that. Checked
            at once if the schedule knows the depths (`new_schedule(model)` does), else by `build`.

    Raises:
        ScheduleError: no such loop, hops out of range or too few, or peeled already.

    Rewrite:
        for d1 in (0, 40, 1)   -->   for d1 in (0, 40, 1)   # unroll_walk 6
          S                            S
    """
    loop = find_loop(sch, "unroll_walk", "index", index)
    whole = isinstance(hops, int) and not isinstance(hops, bool)
    if hops != "depth" and not (whole and 0 <= int(hops) <= MOST_HOPS):
        message = f"argument 'hops': {hops!r} is no number of hops; use 0..{MOST_HOPS} or 'depth'"
        raise refuse(sch, "unroll_walk", message, index)
    if loop.peel is not None:
        message = f"argument 'index': '{index}' is already peeled; leave one of them out"
        raise refuse(sch, "unroll_walk", message, index)
    if sch.hops is not None and hops != "depth":
        _check_hops(sch, loop, int(hops))
    return sch.with_loop(index, replace(loop, hops=hops))


def _check_hops(sch: Schedule, loop: Loop, hops: int) -> None:
    """Refuse a straight line that ends before a leaf of the walks that it holds for."""
    depths = np.array(sch.hops)
    for leaf in (x for x in loop.walk() if not x.children):
        path = sch.path(leaf.name)
        inner = path[path.index(loop) + 1 :]
        rounds = sch.trees_of(leaf.name)
        if any(x.hops is not None or x.peel is not None for x in inner) or not rounds.size:
            continue
        worst = int(rounds[np.argmax(depths[rounds])])
        if depths[worst] > hops:
            trees = f"tree {worst}" if sch.round_size == 1 else f"round {worst} of trees"
            what = (
                f"argument 'hops': {hops} is less than the depth {depths[worst]} of {trees} in "
                f"'{loop.name}'; use at least {depths[worst]}, or 'depth'"
            )
            raise refuse(sch, "unroll_walk", what, loop.name)


def _peel_walk_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.kind == "tree" and loop.hops is None and loop.peel is None:
            yield from ({"index": loop.name, "hops": hops, "check": True} for hops in (1, 2))


@directive(choices=_peel_walk_choices)
def peel_walk(sch: Schedule, index: str, hops: int | str, check: bool = True) -> Schedule:
    """Put the first `hops` hops of every walk before its loop.

    Serves trees whose likely leaves are near the root. After the peeled hops, and with `check`
    after each of them, a walk that is at its leaf ends; otherwise it goes on in a loop.

    Pass: LowerWalks.

    Args:
        index: any loop; holds for all walks at or below.
        hops: number of hops, 1 to 64, or "likely" for as many as nine rows of ten need in the trees
            of the loop; `build` finds that out, and needs a leaf profile.
        check: ask for a leaf after each hop. Without, every leaf must be at least `hops` deep
            (`build` checks that).

    Raises:
        ScheduleError: no such loop, hops out of range, or unrolled already.

    Rewrite:
        for d1 in (0, 40, 1)   -->   for d1 in (0, 40, 1)   # peel_walk 2
          S                            S
    """
    loop = find_loop(sch, "peel_walk", "index", index)
    whole = isinstance(hops, int) and not isinstance(hops, bool)
    if hops != "likely" and not (whole and 1 <= int(hops) <= MOST_HOPS):
        what = "must be at least 1" if hops in (0, -1) else "is no number of hops"
        message = f"argument 'hops': {hops!r} {what}; use 1..{MOST_HOPS} or 'likely'"
        raise refuse(sch, "peel_walk", message, index)
    if loop.hops is not None:
        message = f"argument 'index': '{index}' is already fully unrolled; leave one of them out"
        raise refuse(sch, "peel_walk", message, index)
    if not isinstance(check, bool):
        message = f"argument 'check': {check!r} is no truth value; use True or False"
        raise refuse(sch, "peel_walk", message, index)
    return sch.with_loop(index, replace(loop, peel=(hops, check)))


def _simdize_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.leaves():
        free = not (loop.parallel or loop.marks())
        how = WALKED.get(sch.representation, "gather")
        if loop.kind == "batch" and loop.count in LANES[how] and loop.step == 1 and free:
            yield {"index": loop.name} if how == "gather" else {"index": loop.name, "how": how}


@directive(choices=_simdize_choices)
def simdize(sch: Schedule, index: str, how: str = "gather") -> Schedule:
    """Make the iterations of a leaf loop over rows the lanes of one vector walk.

    A tile that is not full is walked in groups of 8 rows and fewer.

    Pass: LowerWalks (`tensorize` needs full tiles, and matches the operator's arguments literally).

    Args:
        index: a leaf loop over 4, 8, 16, 32 or 64 neighbouring rows, for bits 64 to 512, for
            permutes 16 to 64.
        how: "gather", every lane fetches its own node; "bits", rows are bits of words, 64 to 512 of
            them, and go through a tree by selections: for layout "bitsliced" only; "permute", 16
            rows go through 4 trees at once, out of registers: for layout "levels" only. For the
            last two `unroll_walk` and `peel_walk` change nothing.

    Raises:
        ScheduleError: no such loop, not a leaf, not over rows, or no lane count.

    Rewrite:
        for b1 in (0, 16, 1)   -->   for b1 in (0, 16, 1)   # simdize gather
          S                            S
    """
    loop = _leaf(sch, "simdize", index)
    if loop.kind != "batch":
        message = f"argument 'index': '{index}' is not a batch index; choose a loop over rows"
        raise refuse(sch, "simdize", message, index)
    if how not in LANES:
        message = f"argument 'how': {how!r} is unknown; use one of {', '.join(map(repr, LANES))}"
        raise refuse(sch, "simdize", message, index)
    if loop.count not in LANES[how] or loop.step != 1:
        what = "a symbolic extent" if loop.count is None else f"extent {loop.count}"
        if loop.step != 1:
            what = f"step {loop.step}"
        message = (
            f"argument 'index': {what} is not a lane count ({', '.join(map(str, LANES[how]))})"
        )
        raise refuse(sch, "simdize", f"{message}; tile the loop by one of these", index)
    return sch.with_loop(index, replace(loop, simdize=how))


# -- what becomes of them -------------------------------------------------------------------------


@dataclass(frozen=True)
class WalkForm:
    """How the walks of one leaf loop are done; travels through TVM as text.

    Attributes:
        kind: "loop", "unroll" or "peel".
        hops: of the straight line, or in front of the loop.
        check: whether every peeled hop is followed by a leaf test.
        even: whether all trees of the loop are equally deep, and as deep as a straight line.
    """

    kind: str = "loop"
    hops: int = 0
    check: bool = True
    even: bool = True

    def __str__(self) -> str:
        tests = "checked" if self.check else "unchecked"
        return f"{self.kind} {self.hops} {tests} {'even' if self.even else 'uneven'}"

    @classmethod
    def parse(cls, text: str) -> WalkForm:
        """Read what `str` gives."""
        kind, hops, tests, even = text.split()
        return cls(kind, int(hops), tests == "checked", even == "even")


def walk_forms(sch: Schedule, forest: Forest) -> dict[str, WalkForm]:
    """Return the form of the walks of every leaf loop.

    Args:
        sch: the schedule.
        forest: trees stand in the order `round * C + class`.

    Raises:
        ScheduleError: a straight line is too short or too long, an unchecked peel too long, or a
            peel asks for the likely hops and the forest has no leaf profile.
    """
    return {leaf.name: _walk_form(sch, leaf, forest) for leaf in sch.leaves()}


def _walk_form(sch: Schedule, leaf: Loop, forest: Forest) -> WalkForm:
    depths, shallowest = forest.depths, forest.shallowest
    rounds = sch.trees_of(leaf.name)
    trees = (rounds[:, None] * sch.round_size + np.arange(sch.round_size)).ravel()
    deep = depths[trees] if trees.size else np.zeros(1, np.int64)
    same = bool(np.all(deep == deep[0]))
    around = (*sch.path(leaf.name), *list(leaf.walk())[1:])
    marked = [x for x in around if x.hops is not None or x.peel is not None]
    if not marked:
        return WalkForm("loop", 0, even=same)
    mark = marked[-1]
    if mark.hops is not None:
        hops = int(deep.max()) if mark.hops == "depth" else int(mark.hops)
        if hops < deep.max():
            worst = int(trees[np.argmax(deep)])
            what = (
                f"argument 'hops': {hops} is less than the depth {deep.max()} of tree {worst} in "
                f"'{mark.name}'; use at least {deep.max()}, or 'depth'"
            )
            raise refuse(sch, "unroll_walk", what, mark.name)
        if hops > MOST_HOPS:
            worst = int(trees[np.argmax(deep)])
            what = (
                f"argument 'hops': tree {worst} is {hops} deep, a straight line takes at most "
                f"{MOST_HOPS} hops; walk these trees in a loop"
            )
            raise refuse(sch, "unroll_walk", what, mark.name)
        return WalkForm("unroll", hops, even=same and hops == int(deep[0]))
    said, check = mark.peel or (0, True)
    hops = _likely_hops(sch, mark, forest, trees) if said == "likely" else int(said)
    if not check and trees.size and shallowest[trees].min() < hops:
        worst = int(trees[np.argmin(shallowest[trees])])
        what = (
            f"argument 'hops': tree {worst} has a leaf at depth {shallowest[worst]}, so {hops} "
            "unchecked hops are wrong; use check=True"
        )
        raise refuse(sch, "peel_walk", what, mark.name)
    return WalkForm("peel", hops, check, same)


def _likely_hops(sch: Schedule, mark: Loop, forest: Forest, trees: Array) -> int:
    """Hops after which nine rows of ten are at their leaf, in the worst of some trees."""
    if forest.hits is None:
        what = "argument 'hops': 'likely' needs a leaf profile; give one with build(profile=...)"
        raise refuse(sch, "peel_walk", what, mark.name)
    return min(MOST_HOPS, int(peel_depths(forest)[trees].max(initial=0)))
