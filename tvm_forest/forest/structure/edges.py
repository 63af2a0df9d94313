"""The edges of a forest, with nodes numbered through the whole forest.

takes: Forest; gives: arrays of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..rules import LEAF, Array

if TYPE_CHECKING:
    from .trees import Trees


def list_levels(forest: Trees) -> list[tuple[Array, Array, Array]]:
    """Return the inner nodes of depth 0, 1, and so on, each with its left and its right child.

    A level holds the nodes of all trees, tree by tree, and those of a tree from left to right.
    """
    levels, node = list[tuple[Array, Array, Array]](), forest.tree_offset[:-1]
    while (node := node[~forest.is_leaf[node]]).size:
        base = forest.tree_offset[forest.node_tree[node]]
        left, right = base + forest.left[node], base + forest.right[node]
        levels.append((node, left, right))
        node = np.stack([left, right], axis=1).ravel()
    return levels


def is_level_ordered(forest: Trees) -> bool:
    """Return whether nodes are numbered level by level, from left to right.

    This is how XGBoost numbers them unless it grows trees leaf by leaf. All nodes are then part of
    one tree each, for every node but the roots is the child of one node before it: the left child
    of the j-th inner node of the forest, which is in tree t, is node ``2 * j + 1 + t``.

    Args:
        forest: trees whose links stay within each tree.
    """
    inner = np.flatnonzero(~forest.is_leaf)
    if forest.n_nodes != 2 * len(inner) + forest.n_trees:
        return False
    tree, left = forest.node_tree[inner], forest.left[inner]
    child = 2 * np.arange(len(inner)) + 1 + tree
    ordered = (forest.tree_offset[tree] + left == child) & (inner < child)
    return bool(np.all(ordered & (forest.right[inner] == left + 1)))


def find_children(forest: Trees) -> tuple[Array, Array]:
    """Return the left and right children, int64 (N,), numbered through the forest; -1 at leaves."""
    base = forest.tree_offset[forest.node_tree]
    left = np.where(forest.is_leaf, LEAF, base + forest.left)
    return left, np.where(forest.is_leaf, LEAF, base + forest.right)


def find_steps(forest: Trees) -> tuple[Array, Array]:
    """Return where a step to the left and one to the right lead from each node, int64 (N + 1,).

    A step from a leaf stays there. The last entry, for node -1, is -1.
    """
    stay, base = np.arange(forest.n_nodes), forest.tree_offset[forest.node_tree]
    left, right = np.full((2, forest.n_nodes + 1), LEAF, np.int64)
    left[:-1] = np.where(forest.is_leaf, stay, base + forest.left)
    right[:-1] = np.where(forest.is_leaf, stay, base + forest.right)
    return left, right


def find_oblivious(forest: Trees) -> Array:
    """Return bool (T,), whether a tree is oblivious.

    In an oblivious tree, all nodes of a level have the same test, or all are leaves. Trees of a
    single leaf count too.
    """
    alike, column, node = np.ones(forest.n_trees, bool), forest.column, forest.tree_offset[:-1]
    while node.size:
        inner, tree = ~forest.is_leaf[node], forest.node_tree[node]
        first = np.searchsorted(tree, tree)  # place of the first node of the tree's level
        same = inner == inner[first]
        for field in (column, forest.threshold):
            same &= ~inner | (field[node] == field[node[first]])
        alike[tree[~same]] = False
        node = node[inner & alike[tree]]
        base = forest.tree_offset[forest.node_tree[node]]
        node = np.stack([base + forest.left[node], base + forest.right[node]], axis=1).ravel()
    return alike


def find_parents(forest: Trees) -> Array:
    """Return the parents, int64 (N,), numbered through the forest; -1 at roots."""
    parent = np.full(forest.n_nodes, -1)
    inner = np.flatnonzero(~forest.is_leaf)
    for child in find_children(forest):
        parent[child[inner]] = inner
    return parent


def invert(order: Array) -> Array:
    """Return the inverse of a permutation of 0, 1, ...: [2, 0, 1] of [1, 2, 0]."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place
