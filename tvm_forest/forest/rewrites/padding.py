r"""Add dummy nodes above leaves: to fill tiles, and to bring leaves to one depth.

takes: Forest; gives: Forest with more nodes and the same predictions.

A dummy takes the place of a leaf and tests feature 0; below it are two copies of the leaf, so it
does not matter which way a row goes. The copies have the leaf's value and `node_id`; the left one
has its hits too. New nodes come last in their tree.

    leaf 7    -->    f0 < 0
                     /    \
                 leaf 7  leaf 7
"""

from __future__ import annotations

import numpy as np

from ...errors import BuildError, ScheduleError
from .. import LEAF, Array, Forest
from ..structure.edges import find_children, invert
from .rebuild import take_nodes
from .tile_rules import check_tiling, find_tile_roots

MAX_NODES = 1 << 25
"""Largest number of nodes of a padded forest; a leaf padded by d hops becomes (size + 1)**d."""


def fill_tiles(forest: Forest) -> Forest:
    """Give every tile of inner nodes exactly `tile_size` nodes.

    Dummies are put above leaf children in level order, left ones first (Treebeard's tile padding).

    Args:
        forest: without tiles it is returned as it is.

    Raises:
        ScheduleError: the tiles are not valid (see `check_tiling`).
    """
    check_tiling(forest)
    if forest.tile is None:
        return forest
    growth = _Growth(forest)
    inner = ~forest.is_leaf
    count = np.bincount(growth.tile[inner], minlength=forest.n_nodes)
    small = np.flatnonzero((count > 0) & (count < forest.tile_size))
    growth.fill(small, count[small])
    return growth.forest() if small.size else forest


def pad_trees(forest: Forest, to: str = "tree") -> Forest:
    """Bring all leaves to the same number of hops, so that no walk needs a test for leaves.

    A shallow leaf becomes a dummy node, or a dummy tile, above equal leaves, as often as needed.

    Args:
        to: "tree" for the depth of each tree, "forest" for that of the deepest.

    Raises:
        ScheduleError: `to` is unknown, or the tiles are not valid (see `check_tiling`).
        BuildError: the forest would have more than 2**25 nodes.
    """
    if to not in ("tree", "forest"):
        raise ScheduleError(f"pad_trees: argument 'to': {to!r} is unknown; use 'tree' or 'forest'")
    depths = forest.depths
    goal = depths if to == "tree" else np.full_like(depths, depths.max(initial=0))
    if np.all(forest.shallowest == goal):
        return forest
    forest = fill_tiles(forest)  # nothing may stand below a tile that is not full
    missing = np.where(forest.is_leaf, goal[forest.node_tree] - forest.hop_depth, 0)
    _check_growth(forest, missing)
    growth = _Growth(forest)
    for hops in range(int(missing.max(initial=0))):
        short = np.flatnonzero((growth.left < 0) & (missing[growth.source] > hops))
        growth.split(short, short)
        growth.fill(short, np.ones(len(short), np.int64))
    return growth.forest()


def _check_growth(forest: Forest, missing: Array) -> None:
    with np.errstate(over="ignore"):
        added = 2 * ((forest.tile_size + 1.0) ** missing - 1)
    sizes = np.bincount(forest.node_tree, weights=1 + added, minlength=forest.n_trees)
    if sizes.sum() > MAX_NODES:
        tree = int(np.argmax(sizes))
        raise BuildError(
            f"pad_trees: argument 'forest': all trees together would have {sizes.sum():.3g} nodes, "
            f"tree {tree} alone {sizes[tree]:.3g}, at most {MAX_NODES} are allowed; use a layout "
            "that stores its children, or smaller tiles"
        )


class _Growth:
    """A forest while dummies are added to it; new nodes get the next free numbers.

    Attributes:
        source: int64, node of the forest that each node was or was copied from.
        left, right: int64, children, -1 at leaves.
        tile: int64, root of each node's tile.
        hits: int64, rows of each leaf.
    """

    def __init__(self, start: Forest) -> None:
        self.start = start
        self.source = np.arange(start.n_nodes)
        self.left, self.right = find_children(start)
        self.tile = find_tile_roots(start).copy()
        self.hits = np.zeros(start.n_nodes, np.int64)
        if start.hits is not None:
            self.hits += start.hits

    def split(self, leaves: Array, tile: Array) -> None:
        """Turn leaves into dummies that belong to the given tiles; copy each leaf twice below."""
        count, begin = len(leaves), len(self.source)
        copies = begin + np.arange(2 * count)
        none = np.full(2 * count, LEAF)
        self.left[leaves], self.right[leaves] = copies[:count], copies[count:]
        self.tile[leaves] = tile
        self.source = np.concatenate([self.source, np.tile(self.source[leaves], 2)])
        self.left = np.concatenate([self.left, none])
        self.right = np.concatenate([self.right, none])
        self.tile = np.concatenate([self.tile, copies])
        self.hits = np.concatenate([self.hits, self.hits[leaves], np.zeros(count, np.int64)])
        self.hits[leaves] = 0

    def fill(self, root: Array, count: Array) -> None:
        """Add dummies to tiles, breadth first, until each has `tile_size` nodes.

        Args:
            root: the root of each tile.
            count: how many nodes each tile has.
        """
        size = self.start.tile_size
        missing = size - count
        queue = np.full((len(root), 2 * size + 1), -1)
        queue[:, 0] = root
        end = np.ones(len(root), np.int64)
        for slot in range(size - 1):
            node = queue[:, slot]
            for side in ("left", "right"):
                child = getattr(self, side)[node]
                inside = self.tile[child] == root
                dummy = ~inside & (missing > 0) & (self.left[child] < 0)
                self.split(child[dummy], root[dummy])
                missing[dummy] -= 1
                queued = np.flatnonzero(inside | dummy)
                queue[queued, end[queued]] = child[queued]
                end[queued] += 1

    def forest(self) -> Forest:
        """Return the forest, with the nodes of each tree together."""
        start, tree = self.start, self.start.node_tree[self.source]
        order = np.argsort(tree, kind="stable")
        place = invert(order)
        offset = np.concatenate([[0], np.cumsum(np.bincount(tree, minlength=start.n_trees))])
        source, base = self.source[order], offset[tree[order]]
        is_dummy = start.is_leaf[source] & (self.left[order] >= 0)

        def number_in_tree(link: Array) -> Array:
            return np.where(link[order] < 0, LEAF, place[link[order]] - base).astype(np.int32)

        changes = {"left": number_in_tree(self.left), "right": number_in_tree(self.right)}
        if start.tile is not None:
            changes["tile"] = number_in_tree(self.tile)
        if start.hits is not None:
            changes["hits"] = self.hits[order]
        changes["node_id"] = start.node_id[source]  # a dummy keeps the number of its leaf
        return take_nodes(start, source, is_dummy, tree_offset=offset, **changes)
