"""Checks whether a tiling is valid, and finds the roots of its tiles.

takes: Forest with any tile numbers; gives: an error, or the root of each tile.
"""

from __future__ import annotations

import numpy as np

from ...errors import ScheduleError
from .. import Array, Forest
from ..structure.edges import find_parents


def check_tiling(forest: Forest) -> None:
    """Refuse a tiling, with any tile numbers, that breaks one of six rules of Treebeard's draft.

    1. Tiles cover all nodes. 2. They are disjoint, which holds by construction: a node has one tile
    number, and each tree has tiles of its own. 3. A tile has at most `tile_size` nodes. 4. A leaf
    is alone in its tile. 5. A tile with fewer nodes has no inner node right below it. 6. The nodes
    of a tile are connected.

    Raises:
        ScheduleError: names the first violated rule, a tree, and a node of it.
    """
    if forest.tile is None:
        return
    _refuse(forest, forest.tile < 0, "1 (cover)", "a node has the tile number {tile}")
    key, parent, top = _tile_tops(forest, forest.tile)
    _, own, counts = np.unique(key, return_inverse=True, return_counts=True)
    size = counts[own]
    many = f"tile {{tile}} has {{size}} nodes, at most {forest.tile_size} are allowed"
    _refuse(forest, size > forest.tile_size, "3 (size)", many, size)
    shared = forest.is_leaf & (size > 1)
    _refuse(forest, shared, "4 (leaf)", "a leaf shares tile {tile}; {size} nodes are in it", size)
    open_end = top & (parent >= 0) & ~forest.is_leaf & (size[parent] < forest.tile_size)
    small = f"tile {{tile}} begins below a tile of {{size}} nodes, fewer than {forest.tile_size}"
    _refuse(forest, open_end, "5 (maximal)", small, size[parent])
    apart = top & (find_tile_roots(forest) != np.arange(forest.n_nodes))
    _refuse(forest, apart, "6 (connected)", "no path inside tile {tile} leads to the rest of it")


def find_tile_roots(forest: Forest) -> Array:
    """Return int64 (N,), the root of each node's tile, numbered through the whole forest."""
    if forest.tile is None:
        return np.arange(forest.n_nodes)
    key, _, top = _tile_tops(forest, forest.tile)
    root = np.flatnonzero(top)
    root = root[np.argsort(key[root], kind="stable")]
    return root[np.searchsorted(key[root], key)]


def _tile_tops(forest: Forest, tile: Array) -> tuple[Array, Array, Array]:
    """Return where tiles begin, given the tile number of each node within its tree.

    Returns:
        (key, parent, top), (N,) each: int64, a number of the node's tile that is unique in the
        forest; int64, the node's parent, -1 at roots; bool, whether the node is the top of a tile.
    """
    key = forest.node_tree * (int(tile.max(initial=0)) + 1) + tile
    parent = find_parents(forest)
    return key, parent, (parent < 0) | (key[parent] != key)


def _refuse(forest: Forest, wrong: Array, rule: str, what: str, size: Array | None = None) -> None:
    if not wrong.any():
        return
    node = int(np.argmax(wrong))
    assert forest.tile is not None, "only tilings are checked"
    text = what.format(tile=forest.tile[node], size=0 if size is None else size[node])
    raise ScheduleError(
        f"check_tiling: argument 'forest': {forest.name_first(wrong)} breaks rule {rule}: {text}; "
        "let tile_nodes choose the tiles"
    )
