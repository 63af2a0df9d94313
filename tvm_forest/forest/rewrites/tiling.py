"""Group nodes into tiles that are evaluated together.

takes: Forest; gives: Forest with `tile` and `tile_size`, the same nodes and predictions.

The number of a tile is the number of its root within the tree; a leaf is alone in its tile. Uniform
tiles shorten all paths alike; the other ways shorten the paths that most rows of a leaf profile
take. Definitions are those of Treebeard's drafts on tiling and on probability tiling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import ScheduleError
from .. import Array, Forest
from ..hits import count_node_hits, find_skewed_trees
from ..structure.edges import find_children
from .optimal_tiles import choose_optimal_tiles
from .ordering import order_by_level
from .padding import fill_tiles
from .tile_table import make_tile_table

WAYS = ("uniform", "probability", "hybrid", "optimal")
MAX_TILE_NODES = 8
"""Largest number of nodes in a tile. A shape of n nodes takes 2**n bytes of the look-up table."""

TABLE_BYTES = 16384
"""Largest look-up table that leaves room for rows and nodes in an L1 cache of 32 KB."""

DEFAULT_GATE = (0.05, 0.9)
"""The `gate` of `tile_nodes` for forests whose look-up table would be too large without one."""

LIKELY_ROOT = 5
"""Hybrid tiling uses the hits if at least one row in 5 comes to the root of a tile."""


def tile_nodes(
    forest: Forest, size: int, how: str = "uniform", gate: Sequence[float] | None = None
) -> Forest:
    """Group the inner nodes of every tree into tiles; existing tiles are replaced.

    Args:
        forest: model; every `how` except "uniform" needs its `hits`.
        size: the largest number of nodes in a tile, 1 to 8; 1 removes tiles.
        how: how a tile grows from its root. "uniform": breadth first; "probability": always by the
            likeliest node below the tile, in level order among equals; "hybrid": by probability if
            at least a fifth of the tree's rows reach the root, else uniformly; "optimal": tiles are
            chosen so that a row is expected to visit the fewest.
        gate: (leaves, rows): only trees that are skewed by this measure (see `find_skewed_trees`)
            are tiled by `how`, the others uniformly. None stands for all trees, or for (0.05, 0.9)
            if the look-up table of all trees would exceed 16,384 bytes.

    Raises:
        ScheduleError: an argument is out of range or unknown, or the forest has no leaf profile.
    """
    wrong = find_problem(size, how, gate)
    if wrong is not None:
        raise ScheduleError(f"tile_nodes: {wrong}")
    if size == 1:
        return replace(forest, tile=None, tile_size=1)
    uniform = partial(_grow_tiles, forest, size, np.zeros(forest.n_nodes, np.int64))
    if how == "uniform":
        return _with_tiles(forest, size, uniform())
    rows = count_node_hits(forest, f"tile_nodes: argument 'how': {how!r}")
    if how == "optimal":
        tile = choose_optimal_tiles(forest, size, rows)
    else:
        tile = _grow_tiles(forest, size, rows, hybrid=how == "hybrid")
    tiled = _with_tiles(forest, size, tile)
    if gate is None and _has_small_table(tiled):
        return tiled
    skewed = find_skewed_trees(forest, *(gate or DEFAULT_GATE))
    if skewed.all():
        return tiled
    return _with_tiles(forest, size, np.where(skewed[forest.node_tree], tile, uniform()))


def _has_small_table(tiled: Forest) -> bool:
    """Return whether the look-up table has at most `TABLE_BYTES`.

    There are 132 shapes of tiles of 6 nodes, which take 132 * 64 bytes, so up to this size every
    table is small; larger tiles must be counted.
    """
    size = tiled.tile_size
    shapes = math.comb(2 * size, size) // (size + 1)
    return shapes << size <= TABLE_BYTES or (
        make_tile_table(fill_tiles(tiled)).lut.nbytes <= TABLE_BYTES
    )


def find_problem(size: int, how: str, gate: Sequence[float] | None) -> str | None:
    """Return what is wrong with the arguments of `tile_nodes`, or None."""
    is_number = isinstance(size, int) and not isinstance(size, bool)
    if not is_number or not 1 <= size <= MAX_TILE_NODES:
        what = f"argument 'size': expected 1 to {MAX_TILE_NODES} nodes, got {size!r}"
        return f"{what}; 8 is the widest, 1 means no tiles"
    if how not in WAYS:
        return f"argument 'how': {how!r} is unknown; use one of {', '.join(WAYS)}"
    if gate is None:
        return None
    if how == "uniform":
        what = f"argument 'gate': {gate!r} chooses trees for another tiling than 'uniform'"
        return f"{what}; leave it out or use one of {', '.join(WAYS[1:])}"
    is_pair = isinstance(gate, tuple | list) and len(gate) == 2
    if not is_pair or not all(type(x) in (int, float) and 0 <= x <= 1 for x in gate):
        what = f"argument 'gate': {gate!r} is no pair of shares from 0 to 1"
        return f"{what}; give (leaves, rows) such as {DEFAULT_GATE}"
    return None


def _with_tiles(forest: Forest, size: int, root: Array) -> Forest:
    """Return the forest with tiles; `root` (N,) is the root of each node's tile."""
    tile = root - forest.tree_offset[forest.node_tree]
    return replace(forest, tile=tile.astype(np.int32), tile_size=int(size))


def _grow_tiles(forest: Forest, size: int, rows: Array, hybrid: bool = False) -> Array:
    """Grow the tiles of all trees at once, each by one node at a time: that with the most rows.

    If `rows` is equal everywhere, the next node is the first in level order: uniform tiling.

    Args:
        forest: the model; its own tiles are ignored.
        size: the largest number of nodes in a tile.
        rows: (N,), the rows that come through each node.
        hybrid: whether tiles whose roots few rows reach (see `LIKELY_ROOT`) grow uniformly.

    Returns:
        int64 (N,), the root of each node's tile.
    """
    _, place = order_by_level(forest)
    left, right = (_inner_only(forest, child) for child in find_children(forest))
    tile = np.arange(forest.n_nodes)
    of_tree = rows[forest.tree_offset[:-1]]
    root = _inner_only(forest, forest.tree_offset[:-1])
    root = root[root >= 0]
    while root.size:
        uniform = hybrid & (LIKELY_ROOT * rows[root] < of_tree[forest.node_tree[root]])
        beside = np.full((len(root), size + 1), -1)
        beside[:, 0], beside[:, 1] = left[root], right[root]
        for count in range(1, size):
            score = np.where(uniform[:, None], 0, rows[beside])
            score[beside < 0] = -1
            equals = score == score.max(axis=1, keepdims=True)
            pick = np.argmin(np.where(equals, place[beside], forest.n_nodes), axis=1)
            node = np.take_along_axis(beside, pick[:, None], axis=1)[:, 0]
            grown = np.flatnonzero(node >= 0)
            node, pick = node[grown], pick[grown]
            tile[node] = root[grown]
            beside[grown, pick], beside[grown, count + 1] = left[node], right[node]
        root = beside[beside >= 0]
    return tile


def _inner_only(forest: Forest, node: Array) -> Array:
    """Return node numbers with -1 in place of leaves; -1 itself, for no node, stays."""
    return np.where((node < 0) | forest.is_leaf[node], -1, node)
