"""Directives about the model: tile_nodes, pad_trees, sort_trees, know_depths.

takes: Schedule; gives: Schedule with a rewrite noted, and `rewrite`, which carries them out.

They change the forest and not the nest, so that one schedule says everything that was chosen. What
they do to the depths of the trees is unknown until the model is seen: `know_depths` says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ScheduleError
from ..forest import Forest
from ..forest.rewrites import ordering, padding, tiling
from ..schedule import DIRECTIVES, Schedule, Step
from .directive import directive, refuse
from .memory import TILED

PADDINGS = ("tree", "forest")
ORDERS = ("depth", "likely")
MOST_HOPS = 1 << 20


def rewrite(forest: Forest, sch: Schedule) -> Forest:
    """Rewrite a model as the schedule asks.

    Args:
        forest: trees stand in the order `round * C + class`.
        sch: its `rewrites` are carried out in order.

    Raises:
        ScheduleError: a rewrite needs a leaf profile that the forest does not have.
        BuildError: padding makes the trees too large.
    """
    for step in sch.rewrites:
        hook = DIRECTIVES[step.do].onto_forest
        assert hook is not None, f"{step.do} is no rewrite of the model"
        forest = hook(forest, **step.arguments)
    return forest


def check_fit(where: str, forest: Forest, sch: Schedule) -> None:
    """Refuse what is no schedule, or the schedule of another model.

    Raises:
        ScheduleError: as said.
    """
    if not isinstance(sch, Schedule):
        raise ScheduleError(
            f"{where}: argument 'schedule': expected a Schedule, got {type(sch).__name__}; "
            "make one with tvm_forest.new_schedule(model)"
        )
    size = (forest.n_trees, forest.n_outputs)
    if (sch.trees, sch.classes, sch.vectors) != (*size, forest.has_vectors):
        vectors = " with vectors in their leaves" if forest.has_vectors else ""
        raise ScheduleError(
            f"{where}: argument 'schedule': made for {sch.trees} trees and {sch.classes} classes, "
            f"the model has {size[0]} and {size[1]}{vectors}; make one with "
            f"tvm_forest.new_schedule(model)\n{sch}"
        )


def _noted(sch: Schedule, do: str, **arguments: Any) -> Schedule:
    """Note a rewrite, after which the depths are unknown."""
    step = Step(do, arguments)
    return replace(sch, rewrites=(*sch.rewrites, step), hops=None, likely=None)


def _refuse_twice(sch: Schedule, do: str) -> None:
    if any(step.do == do for step in sch.rewrites):
        raise refuse(sch, do, "the model is rewritten so already; leave this step out")


def _tile_nodes_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    tiled = any(step.do == "tile_nodes" for step in sch.rewrites)
    if not tiled and sch.representation in TILED:
        yield from ({"size": size, "how": "uniform"} for size in (2, 4, 8))


@directive(choices=_tile_nodes_choices)
def tile_nodes(
    sch: Schedule, size: int, how: str = "uniform", gate: Sequence[float] | None = None
) -> Schedule:
    """Group the nodes of every tree into tiles, which a walk decides at one stroke.

    Args:
        size: nodes of a tile, 1 to 8; 1 means no tiles.
        how: "uniform", breadth first; "probability", the likely nodes first; "hybrid", likely nodes
            first where a fifth of the rows pass; "optimal", fewest tiles on the way of a row. All
            but the first need a leaf profile.
        gate: two numbers a, b: only trees in which a part `a` of the leaves gets more than a part
            `b` of the rows are tiled so, the others uniformly. None: all trees are, as long as the
            look-up table stays small.

    Raises:
        ScheduleError: a size or word that is not known, no gate, or tiled already.
    """
    _refuse_twice(sch, "tile_nodes")
    wrong = tiling.problem(size, how, gate)
    if wrong is not None:
        raise refuse(sch, "tile_nodes", wrong)
    return _noted(sch, "tile_nodes", size=size, how=how, gate=None if gate is None else list(gate))


@tile_nodes.onto_forest
def tile_nodes_onto_forest(
    forest: Forest, size: int, how: str = "uniform", gate: Sequence[float] | None = None
) -> Forest:
    """Number the tiles."""
    return tiling.tile_nodes(forest, size, how, gate)


def _pad_trees_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    yield from ()  # the layouts without child numbers pad by themselves


@directive(choices=_pad_trees_choices)
def pad_trees(sch: Schedule, to: str = "tree") -> Schedule:
    """Bring every leaf to one depth, so that all walks of a tree take the same number of hops.

    A leaf above that depth becomes a node, or a tile, whose leaves are copies of it.

    Args:
        to: "tree", the depth of its own tree, or "forest", that of the deepest tree.

    Raises:
        ScheduleError: another word, or padded already.
    """
    _refuse_twice(sch, "pad_trees")
    if to not in PADDINGS:
        what = f"argument 'to': {to!r} is unknown; use {', '.join(PADDINGS)}"
        raise refuse(sch, "pad_trees", what)
    return _noted(sch, "pad_trees", to=to)


@pad_trees.onto_forest
def pad_trees_onto_forest(forest: Forest, to: str = "tree") -> Forest:
    """Put nodes above shallow leaves."""
    return padding.pad_trees(forest, to)


def _sort_trees_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    yield from ()  # changes the order of additions


@directive(choices=_sort_trees_choices)
def sort_trees(sch: Schedule, by: str = "depth") -> Schedule:
    """Put trees of equal depth next to each other, class by class.

    Changes the order of additions, so results differ in the last bits.

    Args:
        by: "depth", or "likely": first the trees whose likely leaves lie above their deepest one,
            by the depth of those; needs a leaf profile.

    Raises:
        ScheduleError: another word, or sorted already.
    """
    _refuse_twice(sch, "sort_trees")
    if by not in ORDERS:
        what = f"argument 'by': {by!r} is unknown; use {', '.join(ORDERS)}"
        raise refuse(sch, "sort_trees", what)
    return _noted(sch, "sort_trees", by=by)


@sort_trees.onto_forest
def sort_trees_onto_forest(forest: Forest, by: str = "depth") -> Forest:
    """Reorder the trees inside each class."""
    return ordering.sort_trees(forest, by)


def _know_depths_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    yield from ()


@directive(choices=_know_depths_choices)
def know_depths(sch: Schedule, depths: list[int], likely: list[int] | None = None) -> Schedule:
    """Say how deep the trees are after the rewrites so far; `split_by_depth` needs it.

    `tvm_forest.with_depths(schedule, model)` looks them up. They decide how loops are split and
    nothing else: `build` looks at the model itself.

    Args:
        depths: hops to the deepest leaf of each round of trees.
        likely: hops to the leaves that nine rows of ten reach.

    Raises:
        ScheduleError: not one number for each round.
    """
    rounds = sch.rounds
    for name, numbers in (("depths", depths), ("likely", likely)):
        fine = isinstance(numbers, list | tuple) and len(numbers) == rounds
        fine = fine and all(type(x) is int and 0 <= x < MOST_HOPS for x in numbers or ())
        if not fine and (name, numbers) != ("likely", None):
            what = f"argument '{name}': not one depth for each of the {rounds} rounds of trees"
            raise refuse(sch, "know_depths", f"{what}; use tvm_forest.with_depths(schedule, model)")
    return replace(sch, hops=tuple(depths), likely=None if likely is None else tuple(likely))
