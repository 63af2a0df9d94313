r"""Lists the tiles of a forest, with the shape of each, for layouts to store.

takes: Forest whose tiles are full; gives: TileTable.

The shape of a tile is a number with 2 bits for each node: whether its left child is in the tile,
and whether its right child is. The table holds only shapes that occur. An outcome is a number with
a bit for each node of the tile, bit i for node i in level order, which is 1 if the row goes left
there; the look-up table has, for each shape and outcome, the child of the tile to which the row
goes.

          0             outcome 0b011: nodes 0 and 1 send the row left, node 2 right
         / \            -> child 0, so lut[3] is 0
        1   2
       / \ / \          lut of this shape, outcomes 0 to 7: 3 1 3 0 2 1 2 0
      c0 c1 c2 c3
"""

from __future__ import annotations

import numpy as np

from ...errors import ScheduleError
from ...system.values import dataclass
from .. import Array, Forest
from ..structure.edges import find_children, invert
from .ordering import order_by_level
from .tile_rules import find_tile_roots


@dataclass(frozen=True, eq=False)
class TileTable:
    """The tiles of a forest, tree by tree, and in a tree in the level order of their roots.

    M tiles have n nodes each and S shapes; T trees have N nodes, numbered through the whole forest.

    Attributes:
        members: int64 (M, n), nodes of each tile in level order.
        tree: int64 (M,), tree of each tile.
        shape: int32 (M,), shape of each tile, numbered in the order of first use.
        lut: uint8 (S, 2**n), for each shape, the child that an outcome leads to.
        children: int64 (M, n + 1), the leaves and the roots of tiles right below each tile, from
            left to right.
        root: int64 (T,), first tile of each tree, -1 if the tree is a single leaf.
        tile_of: int64 (N,), tile of each inner node, -1 at leaves.
    """

    members: Array
    tree: Array
    shape: Array
    lut: Array
    children: Array
    root: Array
    tile_of: Array


def make_tile_table(forest: Forest) -> TileTable:
    """Return the table of a forest's tiles.

    Args:
        forest: its tiles have `tile_size` nodes each (see `fill_tiles`); without tiles, every inner
            node is a tile.

    Raises:
        ScheduleError: a tile has too few nodes or too many.
    """
    members = _members(forest)
    n_tiles, size = members.shape
    tile_of = np.full(forest.n_nodes, -1)
    tile_of[members.ravel()] = np.repeat(np.arange(n_tiles), size)
    sides = np.stack(find_children(forest), axis=1)[members]
    inside = tile_of[sides] == np.arange(n_tiles)[:, None, None]
    key = inside.reshape(n_tiles, 2 * size) @ (1 << np.arange(2 * size))
    _, first, shape = np.unique(key, return_index=True, return_inverse=True)
    by_use = np.argsort(first)
    step = _steps(inside[first[by_use]])
    shape = invert(by_use)[shape]
    below = np.full((n_tiles, 2 * size + 1), -1)
    flat = (n_tiles, 2 * size)
    np.put_along_axis(below, step[shape].reshape(flat), sides.reshape(flat), axis=1)
    return TileTable(
        members=members,
        tree=forest.node_tree[members[:, 0]],
        shape=shape.astype(np.int32),
        lut=_look_up(step),
        children=below[:, size:],
        root=tile_of[forest.tree_offset[:-1]],
        tile_of=tile_of,
    )


def _members(forest: Forest) -> Array:
    """Return int64 (M, n), the nodes of all tiles.

    Raises:
        ScheduleError: a tile is not full.
    """
    size = forest.tile_size
    order, place = order_by_level(forest)
    inner = order[~forest.is_leaf[order]]
    root = find_tile_roots(forest)[inner]
    inner = inner[np.argsort(place[root], kind="stable")]
    count = np.bincount(root, minlength=forest.n_nodes)
    wrong = (count > 0) & (count != size)
    if wrong.any():
        node = int(np.argmax(wrong))
        tree = int(forest.node_tree[node])
        raise ScheduleError(
            f"tile_table: argument 'forest': the tile at node {node - forest.tree_offset[tree]} of "
            f"tree {tree} has {count[node]} nodes, expected {size}; call fill_tiles first"
        )
    return inner.reshape(-1, size)


def _steps(inside: Array) -> Array:
    """Return where steps from each node of a shape lead: k < n to node k, n + c to child c.

    Args:
        inside: bool (S, n, 2), whether the left and the right child are in the tile.

    Returns:
        int64 (S, n, 2).
    """
    n_shapes, size, _ = inside.shape
    # Nodes are in level order, so the k-th side that stays inside leads to node k.
    node = inside.reshape(n_shapes, 2 * size).cumsum(axis=1).reshape(inside.shape)
    every = np.arange(n_shapes)
    exits = np.ones((n_shapes, size, 2), np.int64)  # ways out of the tile at and below each side
    for slot in reversed(range(size)):
        below = exits[every[:, None], np.minimum(node[:, slot], size - 1)].sum(axis=2)
        exits[:, slot] = np.where(inside[:, slot], below, 1)
    first = np.zeros((n_shapes, size + 1), np.int64)  # number of the leftmost way out of a node
    step = np.empty((n_shapes, size, 2), np.int64)
    for slot in range(size):
        leftmost = first[:, slot, None] + [0, 1] * exits[:, slot, :1]
        step[:, slot] = np.where(inside[:, slot], node[:, slot], size + leftmost)
        target = np.where(inside[:, slot], node[:, slot], size)
        first[every[:, None], target] = leftmost
    return step


def _look_up(step: Array) -> Array:
    """Return `TileTable.lut`, uint8 (S, 2**n), given the steps that `_steps` returns."""
    n_shapes, size, _ = step.shape
    outcome = np.arange(1 << size)
    shape = np.arange(n_shapes)[:, None]
    at = np.zeros((n_shapes, 1 << size), np.int64)
    for _ in range(size):
        slot = np.minimum(at, size - 1)
        right = 1 - (outcome >> slot & 1)
        at = np.where(at < size, step[shape, slot, right], at)
    return (at - size).astype(np.uint8)
