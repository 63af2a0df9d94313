"""Choose and order the trees of a forest.

takes: Forest; gives: Forest, whose `tree_id` tells where each tree comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ScheduleError
from .. import LEAF, Array, Forest
from ..hits import need_hits, peel_depths

NULL_TREE = -1
OF_ALL = -1
"""Class of a tree that adds to every output."""
NEUTRAL = {"min": np.inf, "max": -np.inf}
"""Leaf of a tree that changes nothing, where leaves are not added."""


def take_trees(forest: Forest, order: Array) -> Forest:
    """Return the forest made of the trees in `order`.

    Args:
        forest: source of the trees.
        order: int (T',), tree numbers; NULL_TREE stands for a single leaf that changes nothing: of
            value -0.0 where leaves are added, for +0.0 would turn a sum of -0.0 into +0.0.
    """
    forest = _with_null_tree(forest)
    order = np.where(order == NULL_TREE, forest.n_trees - 1, order)
    sizes = np.diff(forest.tree_offset)[order]
    offset = np.concatenate([[0], np.cumsum(sizes)])
    nodes = np.arange(offset[-1]) + np.repeat(forest.tree_offset[order] - offset[:-1], sizes)
    moved = np.flatnonzero(np.isin(nodes, list(forest.categories))) if forest.categories else ()
    return replace(
        forest,
        tree_offset=offset,
        feature=forest.feature[nodes],
        threshold=forest.threshold[nodes],
        left=forest.left[nodes],
        right=forest.right[nodes],
        default_left=forest.default_left[nodes],
        leaf_value=forest.leaf_value[nodes],
        node_id=forest.node_id[nodes],
        tile=None if forest.tile is None else forest.tile[nodes],
        hits=None if forest.hits is None else forest.hits[nodes],
        leaf_const=None if forest.leaf_const is None else forest.leaf_const[nodes],
        leaf_terms=None if forest.leaf_terms is None else forest.leaf_terms[nodes],
        tree_class=forest.tree_class[order],
        tree_id=forest.tree_id[order],
        tree_round=None if forest.tree_round is None else forest.tree_round[order],
        categories={int(new): forest.categories[int(nodes[new])] for new in moved},
    )


def rounds_of_trees(forest: Forest) -> Array:
    """Return the round of each tree, (T,), -1 for trees that the source model does not have.

    Where the model does not tell, the i-th tree of a class is of round i, in the source's order.
    """
    if forest.tree_round is not None:
        return forest.tree_round
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.lexsort((forest.tree_id[known], forest.tree_class[known]))]
    classes = forest.tree_class[order]
    rounds = np.full(forest.n_trees, NULL_TREE)
    rounds[order] = np.arange(len(order)) - np.searchsorted(classes, classes)
    return rounds


def take_rounds(forest: Forest, begin: int, end: int) -> Forest:
    """Return the forest of the rounds `begin` to `end - 1`, counted anew, without tiles.

    The trees stand in the source model's order, whatever was done to the forest before.

    Args:
        forest: source of the trees; the base score stays.
        begin, end: rounds, 0 <= begin < end.
    """
    rounds = rounds_of_trees(forest)
    chosen = np.flatnonzero((rounds >= begin) & (rounds < end))
    order = chosen[np.lexsort((forest.tree_class[chosen], forest.tree_id[chosen]))]
    taken = take_trees(replace(forest, tile=None, tile_size=1), order)
    counted = None if taken.tree_round is None else taken.tree_round - begin
    return replace(taken, tree_round=counted, n_rounds=end - begin)


def arrange_by_round(forest: Forest) -> Forest:
    """Put tree `round * C + c` at the place of class c's tree of that round.

    The order within a class stays. Classes with fewer trees than others get null trees, as does a
    forest without any tree. A tree whose leaves hold vectors is a round by itself.
    """
    names = np.arange(forest.n_outputs, dtype=np.int32)
    if forest.has_vectors:
        names = np.array([OF_ALL], np.int32)
    of_class = [np.flatnonzero(forest.tree_class == c) for c in names]
    rounds = max(1, *(len(trees) for trees in of_class))
    table = np.full((rounds, len(names)), NULL_TREE)
    for output, trees in enumerate(of_class):
        table[: len(trees), output] = trees
    order = table.ravel()
    if np.array_equal(order, np.arange(forest.n_trees)):
        return forest
    return replace(take_trees(forest, order), tree_class=np.tile(names, rounds))


def sort_trees(forest: Forest, by: str = "depth") -> Forest:
    """Sort the trees of each class, stably; every place keeps its class.

    Sorting changes the order in which the values of a class are added.

    Args:
        forest: model; with tiles, depths are counted in tiles.
        by: "depth", shallow trees first; "likely", first the trees in which nine rows in ten need
            fewer hops than the tree is deep, by that number of hops, then the others by depth.

    Raises:
        ScheduleError: `by` is unknown, or "likely" and the forest has no leaf profile.
    """
    if by not in ("depth", "likely"):
        raise ScheduleError(
            f"sort_trees: argument 'by': {by!r} is unknown; use 'depth' or 'likely'"
        )
    keys = [forest.depths]
    if by == "likely":
        need_hits(forest, "sort_trees: argument 'by': 'likely'")
        peel = peel_depths(forest)
        keys = [peel, peel >= forest.depths]
    order = np.empty(forest.n_trees, np.int64)
    order[np.argsort(forest.tree_class, kind="stable")] = np.lexsort((*keys, forest.tree_class))
    return forest if np.all(np.diff(order) == 1) else take_trees(forest, order)


def _with_null_tree(forest: Forest) -> Forest:
    def grown(array: Array | None, value: float) -> Any:
        if array is None:
            return None
        return np.concatenate([array, np.full((1, *array.shape[1:]), value, array.dtype)])

    nothing = NEUTRAL.get(forest.aggregate, -0.0)
    return replace(
        forest,
        tree_offset=grown(forest.tree_offset, forest.n_nodes + 1),
        feature=grown(forest.feature, LEAF),
        threshold=grown(forest.threshold, 0),
        left=grown(forest.left, LEAF),
        right=grown(forest.right, LEAF),
        default_left=grown(forest.default_left, False),
        leaf_value=grown(forest.leaf_value, nothing),
        leaf_const=grown(forest.leaf_const, nothing),
        leaf_terms=grown(forest.leaf_terms, 0),
        node_id=grown(forest.node_id, 0),
        tile=grown(forest.tile, 0),
        hits=grown(forest.hits, 0),
        tree_class=grown(forest.tree_class, 0),
        tree_id=grown(forest.tree_id, NULL_TREE),
        tree_round=grown(forest.tree_round, NULL_TREE),
    )


def level_order(forest: Forest) -> tuple[Array, Array]:
    """Number the nodes tree by tree, level by level, left to right.

    Returns:
        (order, place), int64 (N,) each: order[i] is the node that comes i-th, and place[node] the
        number of a node.
    """
    rank = np.zeros(forest.n_nodes, np.int64)
    node, base = forest.tree_offset[:-1], forest.tree_offset[:-1]
    filled = np.ones(forest.n_trees, np.int64)
    while node.size:
        inner = ~forest.is_leaf[node]
        node, base = node[inner], base[inner]
        tree = forest.node_tree[node]
        begin = np.searchsorted(tree, tree)
        place = filled[tree] + 2 * (np.arange(len(node)) - begin)
        left, right = base + forest.left[node], base + forest.right[node]
        rank[left], rank[right] = place, place + 1
        filled += 2 * np.bincount(tree, minlength=forest.n_trees)
        node = np.stack([left, right], axis=1).ravel()
        base = np.repeat(base, 2)
    place = forest.tree_offset[forest.node_tree] + rank
    order = np.empty(forest.n_nodes, np.int64)
    order[place] = np.arange(forest.n_nodes)
    return order, place


def depth_first(forest: Forest) -> tuple[Array, Array]:
    """Number the nodes tree by tree, siblings together, the larger subtree of the two first.

    So a walk that goes on into the larger side, as most do, stays near: its next pair of siblings
    comes right behind.

    Returns:
        (order, place), see `level_order`.
    """
    levels = _levels(forest)
    pairs = np.zeros(forest.n_nodes, np.int64)  # of siblings below a node
    for node, left, right in reversed(levels):
        pairs[node] = 1 + pairs[left] + pairs[right]
    first, place = np.zeros(forest.n_nodes, np.int64), np.zeros(forest.n_nodes, np.int64)
    for node, left, right in levels:
        place[left], place[right] = 1 + 2 * first[node], 2 + 2 * first[node]
        swap = pairs[left] < pairs[right]
        large, small = np.where(swap, right, left), np.where(swap, left, right)
        first[large] = first[node] + 1
        first[small] = first[node] + 1 + pairs[large]
    place += forest.tree_offset[forest.node_tree]
    order = np.empty(forest.n_nodes, np.int64)
    order[place] = np.arange(forest.n_nodes)
    return order, place


def _levels(forest: Forest) -> list[tuple[Array, Array, Array]]:
    """Return the inner nodes of each level, of all trees together, with both children."""
    found, node = list[tuple[Array, Array, Array]](), forest.tree_offset[:-1]
    while (node := node[~forest.is_leaf[node]]).size:
        base = forest.tree_offset[forest.node_tree[node]]
        left, right = base + forest.left[node], base + forest.right[node]
        found.append((node, left, right))
        node = np.concatenate([left, right])
    return found
