"""The edges of a forest, with nodes numbered through the whole forest.

takes: Forest; gives: arrays of nodes.
"""

from __future__ import annotations

import numpy as np

from . import LEAF, Array, Forest


def levels(forest: Forest) -> list[Array]:
    """Return the nodes of depth 0, 1, and so on, of all trees together."""
    order = np.argsort(forest.node_depth, kind="stable")
    ends = np.cumsum(np.bincount(forest.node_depth))
    return np.split(order, ends[:-1]) if forest.n_nodes else []


def children(forest: Forest) -> tuple[Array, Array]:
    """Return the left and right children, int64 (N,), numbered through the forest; -1 at leaves."""
    base = forest.tree_offset[forest.node_tree]
    left = np.where(forest.is_leaf, LEAF, base + forest.left)
    return left, np.where(forest.is_leaf, LEAF, base + forest.right)


def parents(forest: Forest) -> Array:
    """Return the parents, int64 (N,), numbered through the forest; -1 at roots."""
    parent = np.full(forest.n_nodes, -1)
    inner = np.flatnonzero(~forest.is_leaf)
    for child in children(forest):
        parent[child[inner]] = inner
    return parent
