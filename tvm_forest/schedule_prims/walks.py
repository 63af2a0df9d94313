"""Directives for how walks are done: interleave, unroll_walk, peel_walk, simdize.

takes: Schedule; gives: Schedule with annotations that the pass LowerWalks reads, and the resulting
form of the walks of each leaf loop.

S-TIR sees a walk as one operator, so none of these has a primitive there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..forest import Array, Forest
from ..forest.hits import find_peel_depths
from ..layouts import OCTETS, SIMDIZED, SIMDIZED_TREES
from ..system.values import dataclass, replace
from .directive import (
    Refusal,
    directive,
    find_loop,
    find_unassigned_leaf,
    is_whole,
    make_error,
    offer_loops,
)
from .nest import Loop, Nest
from .nest.problems import Problem

if TYPE_CHECKING:
    from .schedule import Schedule

MAX_WALKS = 32
"""Largest number of interleaved walks."""
MAX_HOPS = 64
"""Largest number of hops that are unrolled or peeled."""
LANE_COUNTS = {"gather": (4, 8, 16, 32, 64), "bits": (64, 128, 256, 512), "permute": (16, 32, 64)}
"""Allowed numbers of rows of one vector walk, by the argument of `simdize`."""
OCTET = 8
"""Number of trees in one vector walk of a single row."""


def _interleave_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.leaves():
        if loop.kind != "class" and not loop.describe():
            yield from ({"index": loop.name, "factor": k} for k in (2, 4, 8))


@directive(_interleave_choices)
def interleave(sch: Schedule, index: str, factor: int) -> Schedule:
    """Advance `factor` walks of a leaf loop together, hop by hop.

    The walks are independent, so their loads overlap. Over rows they share the tree; over trees
    they may end at different depths, and a walk that has ended stays at its leaf. Remaining
    iterations form a smaller group; remaining rows, whose number is unknown, form groups of half
    of `factor`, a quarter, and so on down to 1.

    Pass: LowerWalks.

    Args:
        index: a leaf loop over rows or trees. Where leaves hold vectors, loops over classes may be
            inside: they are done after the walks.
        factor: walks that advance together, 2 to 32.

    Raises:
        ScheduleError: no such loop, not a leaf, a class loop, one that runs in another way or has
            `cache` already, or a factor out of range.

    Rewrite:
        for b1 in (0, 64, 1)   -->   for b1 in (0, 64, 1)   # interleave 8
          S                            S
    """
    loop = find_unassigned_leaf(sch, index)
    if loop.kind == "class":
        raise Refusal(loop, "runs over classes; interleave rows or trees")
    if not is_whole(factor, 2, MAX_WALKS):
        raise Refusal("factor", f"{factor!r} is no number of walks; use 2..{MAX_WALKS}")
    return sch.with_loop(index, replace(loop, interleave=factor))


def _has_plain_walks(loop: Loop) -> bool:
    return loop.kind == "tree" and loop.hops is None and loop.peel is None


@directive(offer_loops(_has_plain_walks, {"hops": "depth"}))
def unroll_walk(sch: Schedule, index: str, hops: int | str = "depth") -> Schedule:
    """Unroll walks to `hops` hops, without a loop and without leaf tests.

    Applies to all walks at or below `index`, unless a loop further inside has its own setting. A
    walk that reaches its leaf earlier stays there.

    Pass: LowerWalks.

    Args:
        index: any loop.
        hops: at least the depth of the deepest tree of the loop, and at most 64; or "depth" for
            just that depth. Checked at once if the schedule knows the depths
            (`new_schedule(model)` does), else by `build`.

    Raises:
        ScheduleError: no such loop, hops out of range or too few, or peeled already.

    Rewrite:
        for d1 in (0, 40, 1)   -->   for d1 in (0, 40, 1)   # unroll_walk 6
          S                            S
    """
    loop = find_loop(sch, index)
    if hops != "depth" and not is_whole(hops, 0, MAX_HOPS):
        raise Refusal("hops", f"{hops!r} is no number of hops; use 0..{MAX_HOPS} or 'depth'")
    if loop.peel is not None:
        raise Refusal(loop, "is already peeled; leave one of them out")
    if sch.hops is not None and hops != "depth":
        _check_hops(sch, loop, int(hops), np.array(sch.hops))
    return sch.with_loop(index, replace(loop, hops=hops))


def _check_hops(sch: Schedule, loop: Loop, hops: int, depths: Array) -> None:
    """Refuse an unrolled walk that has fewer hops than a tree it applies to is deep."""
    for leaf in (x for x in loop.traverse() if not x.children):
        path = sch.path(leaf.name)
        rounds = sch.trees_of(leaf.name)
        if rounds.size and not _find_annotated(path[path.index(loop) + 1 :]):
            worst = int(rounds[np.argmax(depths[rounds])])
            tree = f"tree {worst}" if sch.round_size == 1 else f"round {worst} of trees"
            if depths[worst] > hops:
                raise Refusal("hops", _say_too_few(hops, depths[worst], tree, loop))


def _find_annotated(path: tuple[Loop, ...]) -> list[Loop]:
    """Return the loops of a path with `unroll_walk` or `peel_walk`; the last one's applies."""
    return [loop for loop in path if loop.hops is not None or loop.peel is not None]


def _say_too_few(hops: int, depth: int, tree: str, loop: Loop) -> str:
    what = f"{hops} is less than the depth {depth} of {tree} in '{loop.name}'"
    return f"{what}; use at least {depth}, or 'depth'"


@directive(offer_loops(_has_plain_walks, *({"hops": hops, "check": True} for hops in (1, 2))))
def peel_walk(sch: Schedule, index: str, hops: int | str, check: bool = True) -> Schedule:
    """Peel the first `hops` hops of every walk off its loop.

    Useful for trees whose likely leaves are near the root. After the peeled hops, and with `check`
    after each of them, a walk that is at its leaf ends; others go on in a loop.

    Pass: LowerWalks.

    Args:
        index: any loop; applies to all walks at or below it.
        hops: number of hops, 1 to 64, or "likely" for as many as 90% of the rows need in the trees
            of the loop; `build` computes that number, and needs a leaf profile.
        check: test for a leaf after each hop. Without it, every leaf must be at least `hops` deep
            (`build` checks that).

    Raises:
        ScheduleError: no such loop, hops out of range, unrolled already, or `check` is not a bool.

    Rewrite:
        for d1 in (0, 40, 1)   -->   for d1 in (0, 40, 1)   # peel_walk 2
          S                            S
    """
    loop = find_loop(sch, index)
    if hops != "likely" and not is_whole(hops, 1, MAX_HOPS):
        raise Refusal("hops", f"{hops!r} is no number of hops; use 1..{MAX_HOPS} or 'likely'")
    if loop.hops is not None:
        raise Refusal(loop, "is already fully unrolled; leave one of them out")
    if not isinstance(check, bool):
        raise Refusal("check", f"{check!r} is no truth value; use True or False")
    return sch.with_loop(index, replace(loop, peel=hops, check=check))


def cap_peeled(hops: int) -> int:
    """Return the largest number of hops up to `hops` that `peel_walk` takes; 0 for none."""
    return min(hops, MAX_HOPS)


def list_lane_problems(nest: Loop) -> Iterator[Problem]:
    """Yield a problem for each simdized loop whose iterations no longer fit the lanes of a vector.

    A later step may have changed their number or their step.
    """
    for loop in (x for x in nest.traverse() if x.simdize):
        refused = _find_no_lanes(loop, loop.simdize or "")
        if refused is not None:
            what = f"'{loop.name}' has simdize {loop.simdize}, but {refused.partition('; ')[0]}"
            yield Problem(loop.name, what, "leave this step out, or cut the loop elsewhere")


def _simdize_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    how = (SIMDIZED | SIMDIZED_TREES).get(sch.layout, "gather")
    further = {} if how == "gather" else {"how": how}
    for loop in sch.leaves():
        if _find_no_lanes(loop, how) is None and not loop.describe():
            yield {"index": loop.name, **further}


def _find_no_lanes(loop: Loop, how: str) -> str | None:
    """Return why a loop's iterations cannot be the lanes of a vector walk; None if they can."""
    if how in SIMDIZED_TREES.values():
        if loop.kind != "tree":
            return "is not a tree index; choose a loop over trees"
        begin = f"begins at tree {loop.start}, trees go by {OCTET}; split at a multiple of these"
        in_octets = how == SIMDIZED_TREES[OCTETS]
        return begin if in_octets and (loop.start % OCTET or loop.step != 1) else None
    if loop.kind != "batch":
        return "is not a batch index; choose a loop over rows"
    if loop.count in LANE_COUNTS[how] and loop.step == 1:
        return None
    what = "a symbolic extent" if loop.count is None else f"extent {loop.count}"
    what = what if loop.step == 1 else f"step {loop.step}"
    counts = ", ".join(map(str, LANE_COUNTS[how]))
    return f"{what} is not a lane count ({counts}); tile the loop by one of these"


@directive(_simdize_choices)
def simdize(sch: Schedule, index: str, how: str = "gather") -> Schedule:
    """Make the iterations of a leaf loop the lanes of one vector walk.

    With "gather", a tile that is not full is walked in groups of at most 8 rows.

    Pass: LowerWalks (`tensorize` needs full tiles, and matches the operator's arguments literally).

    Args:
        index: a leaf loop over 4, 8, 16, 32 or 64 neighbouring rows; for "bits" 64, 128, 256 or 512
            rows, for "permute" 16, 32 or 64; for "octets" and "pieces" a loop over any number of
            trees, which for "octets" are neighbours and begin at a multiple of 8.
        how: "gather", every lane loads its own node; "bits", 64 to 512 rows are the bits of words
            and go through a tree by selections, only with the layout of bit planes; "permute", 16
            rows go through 4 trees at once in registers, only with the layout of levels; "octets",
            a row goes through 8 trees at once, and "pieces", through all of them, each only with
            the layout of this name. `unroll_walk` and `peel_walk` have no effect on the last four,
            and `peel_walk` has none on full tiles with "gather".

    Raises:
        ScheduleError: no such loop, not a leaf, one that runs in another way or has `cache`
            already, another word, the wrong kind of loop, or a number of iterations or a step that
            is not allowed.

    Rewrite:
        for b1 in (0, 16, 1)   -->   for b1 in (0, 16, 1)   # simdize gather
          S                            S
    """
    loop, known = find_unassigned_leaf(sch, index), (*LANE_COUNTS, *SIMDIZED_TREES.values())
    if how not in known:
        raise Refusal("how", f"{how!r} is unknown; use one of {', '.join(map(repr, known))}")
    problem = _find_no_lanes(loop, how)
    if problem is not None:
        raise Refusal(loop if problem.startswith("is not") else "index", problem)
    return sch.with_loop(index, replace(loop, simdize=how))


# -- the form of the walks of a leaf loop ---------------------------------------------------------


@dataclass(frozen=True)
class WalkForm:
    """The form of the walks of one leaf loop: in a loop, unrolled or peeled.

    Attributes:
        kind: "loop", "unroll" for unrolled walks, or "peel".
        hops: number of unrolled or peeled hops.
        check: whether a leaf test follows every peeled hop.
        even: whether all trees of the loop are equally deep, and as deep as the unrolled walk; True
            for peeled walks, of which it says nothing.
        by_team: whether a team of threads decides each tile together, see `cooperate`.
    """

    kind: str = "loop"
    hops: int = 0
    check: bool = True
    even: bool = True
    by_team: bool = False


@dataclass(frozen=True, eq=False)
class TreeDepths:
    """The depths of a model's trees, which are in the order `round * C + class`.

    Attributes:
        depths: (T,) int64, hops to the deepest leaf of each tree.
        shallowest: (T,) int64, hops to the leaf nearest to the root.
        likely: (T,) int64, hops to the leaves that nine rows of ten reach; None if not known.
    """

    depths: Array
    shallowest: Array
    likely: Array | None = None

    @classmethod
    def of(cls, forest: Forest) -> TreeDepths:
        """Return the depths of a forest; the likely hops are known if it has a leaf profile."""
        likely = None if forest.hits is None else find_peel_depths(forest)
        return cls(forest.depths, forest.shallowest, likely)


def find_walk_forms(sch: Nest, forest: TreeDepths) -> dict[str, WalkForm]:
    """Return the form of the walks of every leaf loop.

    Args:
        sch: the nest.
        forest: the depths of the trees.

    Raises:
        ScheduleError: an unrolled walk is too short or too long, an unchecked peel is too long, or
            a peel needs the likely hops and the forest has no leaf profile.
    """
    forms = {leaf.name: _find_form(sch, leaf, forest) for leaf in sch.leaves()}
    teams = {name for name in forms if any(x.cooperate for x in sch.path(name))}
    return {name: replace(form, by_team=name in teams) for name, form in forms.items()}


def _find_form(sch: Nest, leaf: Loop, forest: TreeDepths) -> WalkForm:
    rounds = sch.trees_of(leaf.name)
    trees = (rounds[:, None] * sch.round_size + np.arange(sch.round_size)).ravel()
    depths = forest.depths[trees] if trees.size else np.zeros(1, np.int64)
    even = bool(np.all(depths == depths[0]))
    annotated = _find_annotated((*sch.path(leaf.name), *list(leaf.traverse())[1:]))
    if not annotated:
        return WalkForm("loop", 0, even=even)
    loop = annotated[-1]
    if loop.hops is not None:
        hops = _count_straight_hops(sch, loop, depths, trees)
        return WalkForm("unroll", hops, even=even and hops == int(depths[0]))
    likely = loop.peel == "likely"
    hops = _count_likely_hops(sch, loop, forest, trees) if likely else int(loop.peel or 0)
    shallowest = forest.shallowest
    if not loop.check and trees.size and shallowest[trees].min() < hops:
        worst = int(trees[np.argmin(shallowest[trees])])
        what = f"argument 'hops': tree {worst} has a leaf at depth {shallowest[worst]}, so {hops}"
        advice = "unchecked hops are wrong; use check=True"
        raise make_error(sch, "peel_walk", f"{what} {advice}", loop.name)
    return WalkForm("peel", hops, loop.check)


def _count_straight_hops(sch: Nest, loop: Loop, depths: Array, trees: Array) -> int:
    """Return the hops of unrolled walks through some trees, enough to reach all leaves.

    Raises:
        ScheduleError: the loop's own number is too small, or the trees are too deep.
    """
    deepest = int(depths.max())
    hops = deepest if loop.hops == "depth" else int(loop.hops or 0)
    if deepest <= hops <= MAX_HOPS:
        return hops
    worst = f"tree {int(trees[np.argmax(depths)])}"
    limit = f"a straight line takes at most {MAX_HOPS} hops; walk these trees in a loop"
    too_few = _say_too_few(hops, deepest, worst, loop)
    what = too_few if hops < deepest else f"{worst} is {hops} deep, {limit}"
    raise make_error(sch, "unroll_walk", f"argument 'hops': {what}", loop.name)


def _count_likely_hops(sch: Nest, loop: Loop, forest: TreeDepths, trees: Array) -> int:
    """Return the hops to the leaves that nine rows of ten reach: the most of these trees, up to 64.

    Raises:
        ScheduleError: the likely hops are not known.
    """
    if forest.likely is None:
        what = "argument 'hops': 'likely' needs a leaf profile; give one with build(profile=...)"
        raise make_error(sch, "peel_walk", what, loop.name)
    return cap_peeled(int(forest.likely[trees].max(initial=0)))
