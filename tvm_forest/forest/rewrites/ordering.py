"""Selects and orders the trees of a forest.

takes: Forest; gives: Forest, whose `tree_id` records the origin of each tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ScheduleError
from .. import Array, Forest
from ..hits import find_peel_depths, require_hits
from ..model import ROLES
from ..structure.edges import invert, list_levels
from .rebuild import take_nodes

NULL_TREE = -1
"""Number of a tree that is a single leaf and changes no margin."""
EVERY_CLASS = -1
"""Class of a tree that adds to every output."""


def take_trees(forest: Forest, order: Array) -> Forest:
    """Return the forest made of the trees in `order`.

    Args:
        forest: source of the trees.
        order: int (T',), tree numbers; NULL_TREE stands for a single leaf that changes no margin.
    """
    forest = _with_null_tree(forest)
    order = np.where(order == NULL_TREE, forest.n_trees - 1, order)
    sizes = np.diff(forest.tree_offset)[order]
    offset = np.concatenate([[0], np.cumsum(sizes)])
    nodes = np.arange(offset[-1]) + np.repeat(forest.tree_offset[order] - offset[:-1], sizes)
    per_tree = {name: array[order] for name, array in forest.arrays_per("tree").items()}
    return take_nodes(forest, nodes, tree_offset=offset, **per_tree)


def _with_null_tree(forest: Forest) -> Forest:
    """Return the forest with one more tree at the end: a leaf that changes no margin."""
    arrays = forest.arrays_per("node") | forest.arrays_per("tree")
    entries = {name: ROLES[name].in_null_tree for name in arrays}
    entries |= dict.fromkeys(
        entries.keys() & {"leaf_value", "copied_value", "leaf_const"}, forest.neutral_leaf
    )
    grown: dict[str, Any] = {
        name: np.concatenate([x, np.full((1, *x.shape[1:]), entries[name], x.dtype)])
        for name, x in arrays.items()
    }
    return replace(forest, tree_offset=np.append(forest.tree_offset, forest.n_nodes + 1), **grown)


def find_rounds(forest: Forest) -> Array:
    """Return the round of each tree, (T,), -1 for trees that the source model does not have.

    If the model does not store rounds, the i-th tree of a class, in the source's order, is of
    round i.
    """
    if forest.tree_round is not None:
        return forest.tree_round
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.lexsort((forest.tree_id[known], forest.tree_class[known]))]
    classes = forest.tree_class[order]
    rounds = np.full(forest.n_trees, NULL_TREE)
    rounds[order] = np.arange(len(order)) - np.searchsorted(classes, classes)
    return rounds


def count_rounds(forest: Forest) -> int:
    """Return the number of rounds of the source model."""
    return int(find_rounds(forest).max(initial=-1)) + 1


def take_rounds(forest: Forest, begin: int, end: int) -> Forest:
    """Return the forest of the rounds `begin` to `end - 1`, renumbered, without tiles.

    The trees are in the source model's order, whatever the order of the given forest.

    Args:
        forest: source of the trees; the base score stays, unless it is that of the first round and
            this is left out.
        begin, end: rounds, 0 <= begin <= end.
    """
    rounds = find_rounds(forest)
    chosen = np.flatnonzero((rounds >= begin) & (rounds < end))
    order = chosen[np.lexsort((forest.tree_class[chosen], forest.tree_id[chosen]))]
    part = take_trees(replace(forest, tile=None, tile_size=1), order)
    counted = None if part.tree_round is None else part.tree_round - begin
    base_score = _take_base_score(forest, begin)
    part = replace(part, tree_round=counted, base_score=base_score)
    return replace(part, n_rounds=end - begin, rounds_left_out=0, with_all_rounds=None)


def _take_base_score(forest: Forest, begin: int) -> Array:
    """Return the base score of the rounds from `begin` on.

    It is 0 if it belongs to the first round and that is left out; infinite entries stay.
    """
    base, is_left_out = forest.base_score, begin > 0 and forest.base_of_first
    return np.where(np.isinf(base), base, np.zeros_like(base)) if is_left_out else base


def silence_rounds(forest: Forest, begin: int, end: int) -> Forest:
    """Return a forest in which only the trees of the rounds `begin` to `end - 1` change margins.

    No node is removed, so code for the forest can evaluate the result too. The leaves of other
    trees become neutral, their `tree_id` is -1, and rounds are renumbered.

    Args:
        forest, begin, end: see `take_rounds`.
    """
    rounds = find_rounds(forest)
    silent = (rounds < begin) | (rounds >= end)
    leaves = silent[forest.node_tree] & forest.is_leaf
    values = np.where(leaves[:, None], forest.neutral_leaf, forest.leaf_value)
    changed: dict[str, Any] = {
        "leaf_value": values.astype(forest.sum_dtype),
        "base_score": _take_base_score(forest, begin),
    }
    if forest.copied_value is not None:
        copied = np.where(leaves[:, None], forest.neutral_leaf, forest.copied_value)
        changed["copied_value"] = copied.astype(forest.sum_dtype)
    if forest.leaf_const is not None and forest.leaf_terms is not None:
        changed["leaf_const"] = np.where(leaves, forest.neutral_leaf, forest.leaf_const)
        changed["leaf_terms"] = np.where(leaves[:, None], 0, forest.leaf_terms)
    if forest.tree_round is not None:
        counted = np.where(silent, NULL_TREE, rounds - begin)
        changed["tree_round"] = counted.astype(forest.tree_round.dtype)
    tree_id = np.where(silent, NULL_TREE, forest.tree_id).astype(forest.tree_id.dtype)
    changed |= {"n_rounds": end - begin, "rounds_left_out": 0, "with_all_rounds": None}
    return replace(forest, **changed, tree_id=tree_id)


def arrange_by_round(forest: Forest) -> Forest:
    """Order trees by round and class: tree ``round * C + c`` is the tree of class c in that round.

    The order within a class stays. Null trees, which are leaves that change no margin, fill up
    classes with fewer trees than others, and a forest without any tree. A tree whose leaves hold
    vectors is a round by itself.
    """
    classes = np.array([EVERY_CLASS] if forest.has_vectors else range(forest.n_outputs), np.int32)
    trees_of_class = [np.flatnonzero(forest.tree_class == c) for c in classes]
    rounds = max(1, *map(len, trees_of_class))
    table = np.full((rounds, len(classes)), NULL_TREE)
    for column, trees in enumerate(trees_of_class):
        table[: len(trees), column] = trees
    order = table.ravel()
    if np.array_equal(order, np.arange(forest.n_trees)):
        return forest
    return replace(take_trees(forest, order), tree_class=np.tile(classes, rounds))


def sort_trees(forest: Forest, by: str = "depth") -> Forest:
    """Sort the trees within each class, stably; the sequence of classes stays.

    Sorting changes the order in which the values of a class are added.

    Args:
        forest: model; with tiles, depths are counted in tiles.
        by: "depth": shallow trees first. "likely": first the trees whose depth is more than the
            hops that 90% of the rows need, sorted by these hops, then the others by depth.

    Raises:
        ScheduleError: `by` is unknown, or "likely" and the forest has no leaf profile.
    """
    if by not in ("depth", "likely"):
        raise ScheduleError(
            f"sort_trees: argument 'by': {by!r} is unknown; use 'depth' or 'likely'"
        )
    keys = [forest.depths]
    if by == "likely":
        require_hits(forest, "sort_trees: argument 'by': 'likely'")
        peel = find_peel_depths(forest)
        keys = [peel, peel >= forest.depths]
    order = np.empty(forest.n_trees, np.int64)
    order[np.argsort(forest.tree_class, kind="stable")] = np.lexsort((*keys, forest.tree_class))
    return forest if np.all(np.diff(order) == 1) else take_trees(forest, order)


def order_by_level(forest: Forest) -> tuple[Array, Array]:
    """Return the order of nodes tree by tree, level by level, from left to right.

    Returns:
        (order, place), int64 (N,) each: order[i] is the i-th node in this order, and place is its
        inverse.
    """
    if forest.is_level_ordered:
        return (same := np.arange(forest.n_nodes)), same
    place = forest.tree_offset[forest.node_tree]
    numbered = np.ones(forest.n_trees, np.int64)  # nodes of each tree that have their place
    for node, left, right in list_levels(forest):
        tree = forest.node_tree[node]
        pair = np.arange(len(node)) - np.searchsorted(tree, tree)
        place[left] += numbered[tree] + 2 * pair
        place[right] += numbered[tree] + 2 * pair + 1
        numbered += 2 * np.bincount(tree, minlength=forest.n_trees)
    return invert(place), place


def order_depth_first(forest: Forest) -> tuple[Array, Array]:
    """Return the order of nodes depth first, siblings together, the larger subtree first.

    Most walks go on into the larger subtree, so they find the next pair of siblings close by.

    Returns:
        (order, place), see `order_by_level`.
    """
    levels = list_levels(forest)
    pairs = np.zeros(forest.n_nodes, np.int64)  # pairs of siblings below a node
    for node, left, right in reversed(levels):
        pairs[node] = 1 + pairs[left] + pairs[right]
    first = np.zeros(forest.n_nodes, np.int64)  # pairs of the tree that come before a node's
    place = forest.tree_offset[forest.node_tree]
    for node, left, right in levels:
        place[left] += 1 + 2 * first[node]
        place[right] += 2 + 2 * first[node]
        swap = pairs[left] < pairs[right]
        large, small = np.where(swap, right, left), np.where(swap, left, right)
        first[large] = first[node] + 1
        first[small] = first[node] + 1 + pairs[large]
    return invert(place), place
