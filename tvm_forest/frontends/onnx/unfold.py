"""Converts the nodes that an ONNX tree operator lists to arrays over the nodes of a forest.

takes: NodeTable; gives: arrays for `assemble`.

ONNX has seven kinds of nodes; a Forest has one comparison, and sets of categories. Rows have the
dtype of the thresholds, so every conversion is exact (see `unify_comparisons`): `x == 3` becomes
the set {3}, and `x == 0.5` becomes `x <= 0.5` above `x < 0.5`, so that the subtree for other values
is repeated:

    x == 0.5               x <= 0.5
    yes / no               yes / no
       A   B         x < 0.5     B
                     yes / no
                        B   A

Refused are cycles, nodes with two parents, and trees that grow more than fourfold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...forest import LEAF, Array, Comparison
from .. import assemble
from ..refusals import damaged, unsupported
from . import nodes as modes
from .nodes import NodeTable, is_category, refuse_outside

_MAX_GROWTH = 4


class UnfoldedNodes(NamedTuple):
    """Nodes in level order, tree by tree; a subtree that two nodes share is repeated for both.

    Attributes:
        sizes: int64 (T,), number of nodes of each tree.
        arrays: arrays over nodes by name, except `leaf_value`.
        position: int64 (N,), position of each node in the table.
        comparison: the comparison of all nodes.
        sets: the set of each node that tests for a set.
    """

    sizes: Array
    arrays: assemble.Nodes
    position: Array
    comparison: Comparison
    sets: assemble.Sets


def unfold_nodes(nodes: NodeTable, n_features: int | None) -> UnfoldedNodes:
    """Rewrite all nodes with one comparison or sets, and order them tree by tree.

    Args:
        nodes: the nodes that the operator lists.
        n_features: number of features, None if unknown.
    """
    _check_trees(nodes, n_features)
    nodes, comparison = _unify_modes(_replace_equals(nodes))
    position, tree, left, right = _walk_trees(nodes)
    is_leaf = left == LEAF
    arrays = {
        "feature": np.where(is_leaf, LEAF, nodes.feature[position]),
        "threshold": nodes.threshold[position],
        "left": left,
        "right": right,
        "default_left": nodes.nan_true[position],
        "node_id": nodes.number[position].astype(np.int32),
    }
    asks = np.flatnonzero(nodes.mode[position] == modes.MEMBER)
    sets = {int(at): nodes.members[int(position[at])] for at in asks}
    sizes = np.bincount(tree, minlength=len(nodes.roots))
    return UnfoldedNodes(sizes, arrays, position, comparison, sets)


def _check_trees(nodes: NodeTable, n_features: int | None) -> None:
    """Refuse invalid features, inner nodes with several parents, and roots that have one.

    This excludes cycles.
    """
    is_inner = nodes.mode != modes.IS_LEAF
    uses = np.concatenate([nodes.true[is_inner], nodes.false[is_inner], nodes.roots])
    wrong = is_inner & (np.bincount(uses, minlength=len(is_inner)) > 1)
    if wrong.any():
        number = nodes.number[np.argmax(wrong)]
        what = f"node {number} has two parents or is the root of a tree and a child"
        raise damaged("nodes_truenodeids", what)
    feature = nodes.feature[is_inner]
    refuse_outside("nodes_featureids", feature, np.full(len(feature), n_features or 1 << 31))


def _replace_equals(nodes: NodeTable) -> NodeTable:
    """Replace each EQ and NEQ node by one that tests for a set, or by two that compare."""
    unequal = nodes.mode == modes.NEQ
    equals = (nodes.mode == modes.EQ) | unequal
    match, other = assemble.exchange(nodes.true, nodes.false, unequal)
    is_set = equals & is_category(nodes.threshold)
    pair = np.flatnonzero(equals & ~is_set)
    sets = {int(at): (int(nodes.threshold[at]),) for at in np.flatnonzero(is_set)}
    true, false = np.where(equals, match, nodes.true), np.where(equals, other, nodes.false)
    true[pair] = len(nodes.mode) + np.arange(len(pair))
    mode = np.where(is_set, modes.MEMBER, np.where(equals, modes.LEQ, nodes.mode))
    return replace(
        nodes,
        mode=np.append(mode, np.full(len(pair), modes.LT)).astype(np.int8),
        feature=np.append(nodes.feature, nodes.feature[pair]),
        threshold=np.append(nodes.threshold, nodes.threshold[pair]),
        true=np.append(true, other[pair]),
        false=np.append(false, match[pair]),
        nan_true=np.append(nodes.nan_true ^ unequal, pair < 0),
        number=np.append(nodes.number, nodes.number[pair]),
        members=nodes.members | sets,
    )


def _unify_modes(nodes: NodeTable) -> tuple[NodeTable, Comparison]:
    """Rewrite all comparisons as `<`, or all as `<=`, exactly for rows of the thresholds' dtype."""
    strict, reverse = (
        np.isin(nodes.mode, pair) for pair in ((modes.LT, modes.GTE), (modes.GTE, modes.GT))
    )
    compares = nodes.mode <= modes.GT
    comparison, threshold, swap = assemble.unify_comparisons(
        strict, reverse, nodes.threshold, compares
    )
    true, false = assemble.exchange(nodes.true, nodes.false, swap)
    nan_true = nodes.nan_true ^ swap
    return replace(
        nodes, threshold=threshold, true=true, false=false, nan_true=nan_true
    ), comparison


def _walk_trees(nodes: NodeTable) -> tuple[Array, Array, Array, Array]:
    """Walk all trees level by level from their roots, shared nodes once for each path.

    Returns:
        For every node of the trees its position in `nodes`, its tree, and its children as numbers
        within the tree, LEAF at leaves.
    """
    level, tree = nodes.roots, np.arange(len(nodes.roots))
    levels, trees, firsts = [level], [tree], []
    total, most = len(level), _MAX_GROWTH * len(nodes.mode) + len(level)
    while level.size:
        inner = nodes.mode[level] != modes.IS_LEAF
        firsts.append(np.where(inner, total + 2 * (np.cumsum(inner) - 1), LEAF))
        parents = level[inner]
        level = np.stack([nodes.true[parents], nodes.false[parents]], axis=1).ravel()
        tree = np.repeat(tree[inner], 2)
        total += len(level)
        if total > most:
            what = f"EQ and NEQ need copies of subtrees, more than {_MAX_GROWTH} times the nodes"
            raise unsupported("nodes_modes", what, "split by LEQ or LT")
        levels.append(level)
        trees.append(tree)
    position, tree, first = (np.concatenate(parts) for parts in (levels, trees, firsts))
    order = np.argsort(tree, kind="stable")
    place = np.empty(total, np.int64)
    place[order] = np.arange(total)
    tree, first = tree[order], first[order]
    begin = np.searchsorted(tree, tree)
    left, right = (
        np.where(first == LEAF, LEAF, place[np.minimum(first + side, total - 1)] - begin)
        for side in (0, 1)
    )
    return position[order], tree, left, right
