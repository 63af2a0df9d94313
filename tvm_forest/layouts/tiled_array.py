"""The array layout of tiles: every tree is complete down to its own depth.

takes: Forest with tiles; gives: TiledArrayRepresentation and its arrays.

With n_t nodes a tile has n_t + 1 children, and child c of slot i is slot (n_t + 1) i + 1 + c. What
would be the last level of slots is an array of leaf values by itself, for a leaf needs no record.

    tiles[tile_first[t] + node]    records of tree t, node from 0         see `tiles.Record`
    leaves[leaf_first[t] + node]   its leaves, node from inner[t]

A leaf above the last level has copies of itself below it, so a walk takes as many hops as its tree
is deep.

From "Treebeard" (MICRO 2022), array representation; the separate leaves are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx

from ..forest import Array, Forest
from ..forest.rewrites.narrowing import narrow_thresholds
from ..forest.rewrites.padding import fill_tiles
from ..forest.rewrites.tile_table import TileTable, tile_table
from .representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    NodeTest,
    Representation,
    TreeAccess,
)
from .tile_records import TILE_SIZES, Record, check_bytes, lut_array


@dataclass(frozen=True)
class TiledArrayRepresentation(Representation):
    """Complete trees of tiles in level order.

    Attributes:
        record: fields of a tile.
        trees: T.
        slots: records of all trees together.
        leaves: leaf values of all trees together.
        shapes: bytes of the look-up table.
        uniform_depth: hops of all trees if it is the same, else None.
    """

    name: ClassVar[str] = "array"
    tile_sizes: ClassVar[tuple[int, ...]] = TILE_SIZES
    record: Record
    trees: int
    slots: int
    leaves: int
    shapes: int
    uniform_depth: int | None

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: a tree is so deep that its complete form does not fit.
        """
        forest = narrow_thresholds(forest)
        record = Record.of(forest, links=0)
        depth, ways = forest.depths.astype(np.int64), forest.tile_size + 1
        ends = np.where(depth < 16, float(ways) ** np.minimum(depth, 16), np.inf)
        leaf, word = (np.dtype(x).itemsize for x in (record.leaf_dtype, record.word))
        check_bytes("array", forest, ends * (leaf + word * record.width / forest.tile_size))
        forest = fill_tiles(forest)
        table = tile_table(forest)
        leaves = ways**depth
        inner = (leaves - 1) // forest.tile_size
        tile_first, leaf_first = np.cumsum(inner) - inner, np.cumsum(leaves) - leaves
        slot, leaf_order, copies = _places(forest, table, depth)
        tiles = np.zeros((int(inner.sum()) + 1, record.width), record.word)  # one to rest at
        tiles[tile_first[table.tree] + slot] = record.write(forest, table)
        ends = np.repeat(leaf_order, copies)
        arrays: dict[str, Array] = {
            "tiles": tiles,
            "lut": lut_array(table),
            "tile_first": tile_first,
            "leaf_first": leaf_first - inner,
            "inner": inner,
            "depth": depth.astype(np.int32),
            "leaves": forest.leaf_value[ends, 0],
            "leaf_id": forest.node_id[ends],
        }
        uniform = int(depth[0]) if np.all(depth == depth[0]) else None
        sizes = (forest.n_trees, len(tiles), len(ends), len(arrays["lut"]))
        return cls(record, *sizes, uniform), arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the records, the look-up table, where trees begin, and the leaf values."""
        return (
            BufferSpec("tiles", self.record.word, (self.slots, self.record.width)),
            BufferSpec("lut", "uint8", (self.shapes,)),
            BufferSpec("tile_first", "int64", (self.trees,)),
            BufferSpec("leaf_first", "int64", (self.trees,)),
            BufferSpec("inner", "int64", (self.trees,)),
            BufferSpec("depth", "int32", (self.trees,)),
            BufferSpec("leaves", self.record.leaf_dtype, (self.leaves,)),
        )

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same with source numbers in place of leaf values."""
        return (*self.value_buffers()[:-1], BufferSpec("leaf_id", "int32", (self.leaves,)))

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TiledArrayTree:
        """Load where the tree begins and how deep it is."""
        first = {
            name: hold(name, tirx.BufferLoad(buffers[name], [tree]))
            for name in ("tile_first", "leaf_first", "inner")
        }
        if self.uniform_depth is None:
            hops = hold("hops", tirx.BufferLoad(buffers["depth"], [tree]))
        else:
            hops = tirx.IntImm("int32", self.uniform_depth)
        return TiledArrayTree(self.record, buffers, first, hops, tile_size=self.record.size)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show records and the look-up table."""
        return self.record.describe(arrays)


@dataclass(frozen=True)
class TiledArrayTree(TreeAccess):
    """A walk counts slots from the tree's first one, and leaves behind all slots."""

    record: Record
    buffers: Buffers
    first: dict[str, Expr]
    hops: Expr
    root: Expr = tirx.IntImm("int64", 0)
    tile_size: int = 1
    rest: Expr | None = tirx.IntImm("int64", 0)
    padded: ClassVar[bool] = True

    def _slot(self, node: Expr) -> Expr:
        return self.first["tile_first"] + node

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load a tile."""
        return self.record.test(self.buffers, self._slot(node))

    def member(self, node: Expr, place: int, hold: Hold) -> NodeTest:
        """Load one node of a tile."""
        return self.record.member(self.buffers, self._slot(node), place)

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """The child whose number the look-up table gives."""
        number = self.record.child_number(self.buffers, self._slot(node), outcome)
        return node * (self.tile_size + 1) + 1 + number

    def is_leaf(self, node: Expr) -> Expr:
        """Leaves come after all slots of the tree."""
        return node >= self.first["inner"]

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values have an array of their own."""
        return tirx.BufferLoad(self.buffers["leaves"], [self.first["leaf_first"] + node])

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        return tirx.BufferLoad(self.buffers["leaf_id"], [self.first["leaf_first"] + node])

    def heads(self) -> list[Expr]:
        """The records of the root and its first children."""
        nodes = (tirx.IntImm("int64", node) for node in range(4))
        return [tirx.BufferLoad(self.buffers["tiles"], [self._slot(n), 0]) for n in nodes]


def _places(forest: Forest, table: TileTable, depth: Array) -> tuple[Array, Array, Array]:
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
