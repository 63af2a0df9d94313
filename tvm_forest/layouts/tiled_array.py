"""The array layout of tiles: every tree is complete down to its own depth.

takes: Forest with tiles; gives: TiledArrayLayout and its arrays.

With n_t nodes a tile has n_t + 1 children, and child c of slot i is slot (n_t + 1) i + 1 + c. What
would be the last level of slots is an array of leaf values by itself, for a leaf needs no record.

    tiles[tile_first[t] + node]    records of tree t, node from 0     see `TileRecord`
    leaves[leaf_first[t] + node]   its leaves, node from inner[t]

A leaf above the last level has copies of itself below it, so a walk takes as many hops as its tree
is deep.

From "Treebeard" (MICRO 2022), array representation; the separate leaves are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.narrowing import narrow_thresholds
from ..forest.rewrites.padding import fill_tiles
from ..forest.rewrites.tile_table import TileTable, make_tile_table
from . import tile_records as records
from . import tir
from .complete_trees import find_uniform_depth, load_hops
from .representation import Buffers, Expr, Hold, Layout, read_specs
from .tiled_sparse import TiledSparseLayout


@dataclass(frozen=True)
class TiledArrayLayout(records.TiledLayout):
    """Complete trees of tiles in level order.

    Attributes:
        depth: hops of all trees if it is the same, else None.
    """

    name: ClassVar[str] = "array"
    instead: ClassVar[str] = TiledSparseLayout.name
    depth: int | None

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why not: trees are so deep that their complete form takes too much memory."""
        record = records.TileRecord.of(narrow_thresholds(forest), links=0)
        depth, ways = forest.depths.astype(np.int64), forest.tile_size + 1
        ends = np.where(depth < 16, float(ways) ** np.minimum(depth, 16), np.inf)
        leaf, word = (np.dtype(x).itemsize for x in (record.leaf_dtype, record.word))
        return records.find_byte_excess(
            forest, ends * (leaf + word * record.width / forest.tile_size)
        )

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        depth, ways = forest.depths.astype(np.int64), forest.tile_size + 1
        uniform, forest = find_uniform_depth(forest), fill_tiles(narrow_thresholds(forest))
        record, table = records.TileRecord.of(forest, links=0), make_tile_table(forest)
        leaves = ways**depth
        inner = (leaves - 1) // forest.tile_size
        tile_first, leaf_first = np.cumsum(inner) - inner, np.cumsum(leaves) - leaves
        slot, leaf_order, copies = _place_tiles(forest, table, depth)
        tiles = np.zeros((int(inner.sum()) + 1, record.width), record.word)  # one to rest at
        tiles[tile_first[table.tree] + slot] = record.write(forest, table)
        ends = np.repeat(leaf_order, copies)
        arrays: dict[str, Array] = {
            "tiles": tiles,
            "lut": records.flatten_lut(table),
            "tile_first": tile_first,
            "leaf_first": leaf_first - inner,
            "inner": inner,
            "depth": depth.astype(np.int32),
            "leaves": forest.leaf_value[ends, 0],
            "leaf_id": forest.node_id[ends],
        }
        return cls(read_specs(arrays), record, uniform), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TiledArrayTree:
        """Load where the tree begins and how deep it is."""
        names = ("tile_first", "leaf_first", "inner")
        first = {name: hold(name, tir.BufferLoad(buffers[name], [tree])) for name in names}
        hops = load_hops(self.depth, buffers, tree, hold)
        return TiledArrayTree(self, buffers, tir.i64(0), hops, self.record.size, first=first)


@dataclass(frozen=True)
class TiledArrayTree(records.TileTree):
    """A walk counts slots from the tree's first one, and leaves behind all slots.

    Attributes:
        first: where the records and the leaves of the tree begin, and how many records it has.
    """

    first: dict[str, Expr] = field(default_factory=dict)
    padded: ClassVar[bool] = True

    def slot(self, node: Expr) -> Expr:
        """Records stand tree by tree."""
        return self.first["tile_first"] + node

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """The child whose number the look-up table gives."""
        return node * (self.tile_size + 1) + 1 + self.child_number(node, outcome)

    def is_leaf(self, node: Expr) -> Expr:
        """Leaves come after all slots of the tree."""
        return node >= self.first["inner"]

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values have an array of their own."""
        return tir.BufferLoad(self.buffers["leaves"], [self.first["leaf_first"] + node])

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.first["leaf_first"] + node])

    def heads(self) -> list[Expr]:
        """The records of the root and its first children."""
        return [self.word(tir.i64(node), 0) for node in range(4)]


def _place_tiles(forest: Forest, table: TileTable, depth: Array) -> tuple[Array, Array, Array]:
    """Find the slot of every tile in its tree, and the leaves from left to right.

    Returns:
        slot (M,); the leaves in the order of the leaf array; copies of each.
    """
    size = forest.tile_size
    ways = size + 1
    slot = np.zeros(len(table.tree), np.int64)
    single = table.root < 0
    found = [
        (np.flatnonzero(single), np.zeros(single.sum(), np.int64), forest.tree_offset[:-1][single])
    ]
    tile, level = table.root[~single], 0
    while tile.size:
        level += 1
        child, tree = table.children[tile], np.repeat(table.tree[tile], ways)
        below = (ways * slot[tile][:, None] + 1 + np.arange(ways)).ravel()
        next_tile = table.tile_of[child.ravel()]
        is_leaf = next_tile < 0
        begin = (below[is_leaf] - (ways**level - 1) // size) * ways ** (
            depth[tree[is_leaf]] - level
        )
        found.append((tree[is_leaf], begin, child.ravel()[is_leaf]))
        tile = next_tile[~is_leaf]
        slot[tile] = below[~is_leaf]
    trees, begins, leaves = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((begins, trees))
    trees, begins, leaves = trees[order], begins[order], leaves[order]
    last = np.append(trees[1:] != trees[:-1], True)
    ends = np.where(last, ways ** depth[trees], np.append(begins[1:], 0))
    return slot, leaves, ends - begins
