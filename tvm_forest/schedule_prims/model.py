"""Directives about the model: tile_nodes, pad_trees, sort_trees, know_depths.

takes: Schedule; gives: Schedule with a rewrite of the model, which `rewrite` carries out.

They change the forest and not the nest. They are directives, so that a schedule records every
choice. The depths of the rewritten trees are unknown without the model: `know_depths` supplies
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..forest.rewrites import ordering, padding, tiling
from ..layouts import TILED
from .directive import Refusal, TraceStep, check_word, directive

if TYPE_CHECKING:
    from .schedule import Schedule

OF_MODEL = ("tile_nodes", "pad_trees", "sort_trees", "know_depths", "represent_as")
"""Directives that change the model rather than the loops."""
MAX_DEPTH = (1 << 20) - 1
"""Largest depth that `know_depths` accepts."""


def _add_rewrite(sch: Schedule, do: str, **arguments: Any) -> Schedule:
    """Add a rewrite of the model; the depths of its trees are unknown afterwards.

    Raises:
        Refusal: the same directive rewrites the model already.
    """
    if sch.has_rewrite(do):
        raise Refusal(None, "the model is rewritten so already; leave this step out")
    step = TraceStep(do, arguments)
    return replace(sch, rewrites=(*sch.rewrites, step), hops=None, likely=None)


def _tile_nodes_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    if sch.layout in TILED and not sch.has_rewrite("tile_nodes"):
        yield from ({"size": size, "how": "uniform"} for size in (2, 4, 8))


@directive(_tile_nodes_choices, onto_forest=tiling.tile_nodes)
def tile_nodes(
    sch: Schedule, size: int, how: str = "uniform", gate: Sequence[float] | None = None
) -> Schedule:
    """Group the nodes of every tree into tiles; one hop of a walk decides a whole tile.

    Args:
        size: nodes of a tile, 1 to 8; 1 means no tiles.
        how: "uniform", breadth first; "probability", the likely nodes first; "hybrid", likely nodes
            first down to those that a fifth of the rows pass; "optimal", fewest tiles on the path
            of a row. All but the first need a leaf profile.
        gate: two numbers a, b: trees get tiles of kind `how` only if a share `a` of their leaves
            gets more than a share `b` of the rows; the others get uniform tiles. None: all trees
            get tiles of kind `how`, as long as the look-up table stays small.

    Raises:
        ScheduleError: an unknown size or word, an invalid gate, or tiled already.
    """
    wrong = tiling.find_problem(size, how, gate)
    if wrong is not None:
        raise Refusal(None, wrong)
    gate = None if gate is None else list(gate)
    return _add_rewrite(sch, "tile_nodes", size=size, how=how, gate=gate)


# A search does not try padding, since layouts without child numbers pad by themselves.
@directive(onto_forest=padding.pad_trees)
def pad_trees(sch: Schedule, to: str = "tree") -> Schedule:
    """Bring every leaf to one depth, so that all walks of a tree take the same number of hops.

    A leaf above that depth is replaced by a node, or a tile, whose leaves are copies of it.

    Args:
        to: "tree", the depth of its own tree, or "forest", that of the deepest tree.

    Raises:
        ScheduleError: another word, or padded already.
    """
    check_word("to", to, ("tree", "forest"))
    return _add_rewrite(sch, "pad_trees", to=to)


# Nor does it try sorting, which changes the order of additions.
@directive(onto_forest=ordering.sort_trees)
def sort_trees(sch: Schedule, by: str = "depth") -> Schedule:
    """Sort the trees of each class, so that trees of equal depth are next to each other.

    Changes the order of additions, so results may differ in the last bits.

    Args:
        by: "depth", shallow trees first; or "likely", which needs a leaf profile: first the trees
            whose likely leaves are above their deepest leaf, ordered by the depth of the likely
            leaves, then the others by depth.

    Raises:
        ScheduleError: another word, or sorted already.
    """
    check_word("by", by, ("depth", "likely"))
    return _add_rewrite(sch, "sort_trees", by=by)


@directive()
def know_depths(sch: Schedule, depths: list[int], likely: list[int] | None = None) -> Schedule:
    """Set the depths of trees after the rewrites so far; `split_by_depth` needs them.

    `tvm_forest.with_depths(schedule, model)` looks them up. They only decide how loops are split:
    `build` uses the model's own depths.

    Args:
        depths: hops to the deepest leaf of each round of trees.
        likely: for each round, hops to the leaves that nine rows of ten reach; None if not known.

    Raises:
        ScheduleError: `depths` or `likely` is not a list with a whole number from 0 to `MAX_DEPTH`
            for each round.
    """
    rounds = sch.rounds
    for name, numbers in (("depths", depths), ("likely", likely)):
        is_list = isinstance(numbers, list | tuple) and len(numbers) == rounds
        fits = is_list and all(type(x) is int and 0 <= x <= MAX_DEPTH for x in numbers or ())
        if not fits and (name, numbers) != ("likely", None):
            what = f"not one depth for each of the {rounds} rounds of trees"
            raise Refusal(name, f"{what}; use tvm_forest.with_depths(schedule, model)")
    return replace(sch, hops=tuple(depths), likely=None if likely is None else tuple(likely))
