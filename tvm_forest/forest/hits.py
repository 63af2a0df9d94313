"""Facts about trees that follow from hits, the number of rows at each leaf.

takes: Forest with `hits`; gives: rows of every node, skewed trees, peel depths, expected hops.

Trees are skewed if few of their leaves receive most of the rows (Treebeard's draft on probability
tiling). All numbers of rows are integers, so only shares of them depend on rounding.
"""

from __future__ import annotations

import numpy as np

from ..errors import ScheduleError
from . import Array, Forest
from .structure.edges import list_levels


def require_hits(forest: Forest, where: str) -> Array:
    """Return the hits of a forest.

    Args:
        where: directive, argument and value, such as "tile_nodes: argument 'how': 'optimal'".

    Raises:
        ScheduleError: the forest carries no leaf profile.
    """
    if forest.hits is None:
        raise ScheduleError(f"{where} needs a leaf profile; give one with build(profile=...)")
    return forest.hits


def count_node_hits(forest: Forest, where: str = "node_hits: argument 'forest'") -> Array:
    """Return int64 (N,), how many rows of the profile came through each node.

    Raises:
        ScheduleError: the forest carries no leaf profile; `where` begins the message.
    """
    rows = require_hits(forest, where).astype(np.int64)
    for node, left, right in reversed(list_levels(forest)):
        rows[node] = rows[left] + rows[right]
    return rows


def find_skewed_trees(forest: Forest, leaves: float = 0.10, rows: float = 0.9) -> Array:
    """Return bool (T,), true for trees whose few likeliest leaves get most of the rows.

    Args:
        leaves: share of a tree's leaves, rounded down to a number of leaves, which may be 0.
        rows: share of the rows that those leaves must exceed.

    Raises:
        ScheduleError: the forest carries no leaf profile.
    """
    hits = require_hits(forest, "skewed_trees: argument 'forest': a forest without hits")
    leaf = np.flatnonzero(forest.is_leaf)
    counts = np.bincount(forest.node_tree[leaf], minlength=forest.n_trees)
    return are_skewed(hits[leaf], counts, leaves, rows)


def are_skewed(hits: Array, counts: Array, leaves: float = 0.10, rows: float = 0.9) -> Array:
    """Return bool (T,), as `find_skewed_trees` does, given the hits of all leaves in one list.

    Args:
        hits: int64 (L,), rows of each leaf, tree by tree.
        counts: int (T,), leaves of each tree.
        leaves, rows: see `find_skewed_trees`.
    """
    n_trees = len(counts)
    tree = np.repeat(np.arange(n_trees), counts)
    rank = np.arange(len(hits)) - np.repeat(np.cumsum(counts) - counts, counts)
    likeliest = hits[np.lexsort((-hits, tree))]
    top = np.where(rank < np.floor(leaves * counts)[tree], likeliest, 0)
    return _sums(tree, top, n_trees) > rows * _sums(tree, hits, n_trees)


def find_peel_depths(forest: Forest, rows: float = 0.9) -> Array:
    """Return int32 (T,), the fewest hops after which a share `rows` of the rows is at its leaf.

    A hop leads to the next tile if the forest has tiles. For a tree that no row came to, the result
    is its depth.

    Raises:
        ScheduleError: the forest carries no leaf profile.
    """
    hits = require_hits(forest, "peel_depths: argument 'forest': a forest without hits")
    width = int(forest.depths.max(initial=0)) + 1
    leaf = np.flatnonzero(forest.is_leaf)
    cell = forest.node_tree[leaf] * width + forest.hop_depth[leaf]
    arrived = _sums(cell, hits[leaf], forest.n_trees * width).reshape(-1, width).cumsum(axis=1)
    total = arrived[:, -1:]
    peel = np.argmax(arrived >= rows * total, axis=1)
    return np.where(total[:, 0] > 0, peel, forest.depths).astype(np.int32)


def count_mean_hops(forest: Forest) -> float:
    """Return how many inner nodes, or tiles, a row visits in a tree: the mean over rows and trees.

    Raises:
        ScheduleError: the forest carries no leaf profile.
    """
    hits = require_hits(forest, "mean_hops: argument 'forest': a forest without hits")
    return float(hits @ forest.hop_depth.astype(np.int64)) / max(1, int(hits.sum()))


def _sums(cell: Array, numbers: Array, n_cells: int) -> Array:
    """Add up numbers by cell; return the sums, int64 (n_cells,), which are exact below 2**53.

    Args:
        cell: for each number, the index of the cell, such as a node or a tree, that it belongs to.
        numbers: the numbers, such as hits.
        n_cells: the number of cells.
    """
    return np.bincount(cell, weights=numbers, minlength=n_cells).astype(np.int64)
