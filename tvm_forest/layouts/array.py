"""The array layout: every tree is complete down to its own depth, children at 2i + 1 and 2i + 2.

takes: Forest; gives: ArrayLayout, TiledArrayLayout or ReorgLayout, and its arrays.

A leaf above the last level is padded: the slots below it test feature 0 and lead to copies of the
leaf, so a walk takes as many steps as its tree is deep, without asking whether it is done.

    slot    0 1 2 3 4 5 6         offset[t]     = first slot of tree t
    level   0 1 1 2 2 2 2         depth[t]      = steps of a walk in tree t
                                  nodes[slot]   = (threshold or leaf value, feature)

Threshold and feature lie side by side, as integers of the threshold's width, so that a node is one
cache line away and not two.

With tiles of n_t nodes a slot has n_t + 1 children, and child c of slot i is slot
(n_t + 1) i + 1 + c. What would be the last level of slots is an array of leaf values by itself, for
a leaf needs no record.

    tiles[tile_first[t] + node]    records of tree t, node from 0     see `TileRecord`
    leaves[leaf_first[t] + node]   its leaves, node from inner[t]

From "SilvanForge" (SOSP 2024), section 5, array representation, and with tiles from "Treebeard"
(MICRO 2022); the padding and the separate leaves are ours.

The layout reorg is the same with another stride: slot 0 of all trees is followed by slot 1 of all
trees, and so on. GPU threads that walk neighbouring trees read neighbouring words, at least near
the roots.

    element = slot * T + tree     threshold[element] = threshold or leaf value
                                  feature[element]   = feature
                                  depth[t]           = steps of a walk in tree t

From the Forest Inference Library of RAPIDS, as "SilvanForge" describes it, where all trees have the
depth of the deepest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.narrowing import narrow_thresholds
from ..forest.rewrites.padding import fill_tiles
from ..forest.rewrites.tile_table import TileTable, make_tile_table
from ..system.values import dataclass, field
from . import ANY_FOREST, tir
from . import complete_trees as complete
from . import tile_records as records
from .linked_nodes import INTEGER_OF, decode_test, show_places
from .protocol import (
    FIELD_TYPES,
    NO_TYPES,
    Buffers,
    Columns,
    Expr,
    Hold,
    Layout,
    NodeTest,
    Types,
    read_specs,
    refuse_types,
    register,
)

MAX_BYTES = 1 << 30
"""Largest size of all records of a model; beyond it, nearly every access is a page fault."""


@dataclass(frozen=True)
class TiledArrayLayout(records.TiledLayout):
    """The array layout with tiles: complete trees of tiles in level order.

    Attributes:
        depth: hops of all trees if it is the same, else None.
    """

    name: ClassVar[str] = "array"
    instead: ClassVar[str] = ANY_FOREST
    depth: int | None

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why the layout cannot hold a forest: its complete trees need too much memory."""
        record = records.TileRecord.of(narrow_thresholds(forest), links=0)
        depth, ways = forest.depths.astype(np.int64), forest.tile_size + 1
        ends = np.where(depth < 16, float(ways) ** np.minimum(depth, 16), np.inf)
        leaf, word = (np.dtype(x).itemsize for x in (record.leaf_dtype, record.word))
        size = ends * (leaf + word * record.width / forest.tile_size)
        if size.sum() <= MAX_BYTES:
            return None
        worst = int(np.argmax(size))
        return (
            f"tree {worst} of {depth[worst]} hops and {forest.n_trees - 1} others need "
            f"{size.sum():.3g} bytes, the limit is {MAX_BYTES}"
        )

    @classmethod
    def pack(cls, forest: Forest, types: Types = NO_TYPES) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        depth, ways = forest.depths.astype(np.int64), forest.tile_size + 1
        uniform = complete.find_uniform_depth(forest)
        forest = fill_tiles(records.type_thresholds(forest, types))
        record = records.TileRecord.of(forest, 0, types.get("feature"))
        table = make_tile_table(forest)
        leaves = ways**depth
        inner = (leaves - 1) // forest.tile_size
        tile_first, leaf_first = np.cumsum(inner) - inner, np.cumsum(leaves) - leaves
        slot, ends = _place_tiles(forest, table, depth)
        tiles = np.zeros((int(inner.sum()) + 1, record.width), record.word)  # one more, for `rest`
        tiles[tile_first[table.tree] + slot] = record.write(forest, table)
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
        """Return access to a tree: loads where its records and leaves are, and its depth."""
        names = ("tile_first", "leaf_first", "inner")
        first = {name: hold(name, tir.BufferLoad(buffers[name], [tree])) for name in names}
        hops = complete.load_hops(self.depth, buffers, tree, hold)
        return TiledArrayTree(self, buffers, tir.i64(0), hops, self.record.size, first=first)


@dataclass(frozen=True)
class TiledArrayTree(records.TileTree):
    """Access to a tree of tiles; a node is the number of a slot in the tree, leaves come last.

    Attributes:
        first: by name: "tile_first" plus a node is the index of its record in `tiles`, "leaf_first"
            plus the node of a leaf is its index in `leaves`, "inner" is the number of records.
    """

    first: dict[str, Expr] = field(default_factory=dict)
    padded: ClassVar[bool] = True

    def slot(self, node: Expr) -> Expr:
        """Return the index in `tiles` of the record of a slot; records are stored tree by tree."""
        return self.first["tile_first"] + node

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """Return the number of the child: that of the first child, plus what the table gives."""
        return node * (self.tile_size + 1) + 1 + self.child_number(node, outcome)

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: leaves come after all records of the tree."""
        return node >= self.first["inner"]

    def leaf_value(self, node: Expr) -> Expr:
        """Load the value of a leaf, from an array of its own."""
        return tir.BufferLoad(self.buffers["leaves"], [self.first["leaf_first"] + node])

    def leaf_id(self, node: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.first["leaf_first"] + node])

    def heads(self) -> list[Expr]:
        """Return loads of the records of the root and its first 3 children, to prefetch them."""
        return [self.word(tir.i64(node), 0) for node in range(4)]


@register
@dataclass(frozen=True)
class ArrayLayout(complete.CompleteLayout):
    """Complete trees in level order, as an array of structures."""

    name: ClassVar[str] = TiledArrayLayout.name
    tile_sizes: ClassVar[tuple[int, ...]] = (1, *records.TILE_SIZES)
    type_choices = FIELD_TYPES
    copied: ClassVar[Mapping[str, str]] = {"nodes": "offset"}

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why the layout cannot hold a forest: its complete trees are too large."""
        if forest.tile_size > 1:
            return TiledArrayLayout.unfit(forest)
        return super().unfit(forest)

    @classmethod
    def pack(cls, forest: Forest, types: Types = NO_TYPES) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`; a type is given, but the forest has no tiles.
        """
        if forest.tile_size > 1:
            return TiledArrayLayout.pack(forest, types)
        refuse_types(cls, types)
        cls.check(forest)
        offset, stride, size = cls.place(forest)
        number, code, leaf_id = complete.fill_slots(forest, offset, stride, size)
        integer = INTEGER_OF[str(forest.threshold.dtype)]
        arrays: dict[str, Array] = {
            "offset": offset,
            "depth": forest.depths.astype(np.int32),
            "nodes": np.stack([number.view(integer), code.astype(integer)], axis=1),
            "leaf_id": leaf_id,
        }
        return cls.of(forest, arrays)

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> ArrayTree:
        """Return access to a tree: loads its first slot and its depth."""
        first = hold("first", tir.BufferLoad(buffers["offset"], [tree]) - 1)
        return ArrayTree(self, buffers, first, complete.load_hops(self.depth, buffers, tree, hold))

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the nodes' fields by tree and slot, for pictures."""
        number, code = np.ascontiguousarray(arrays["nodes"].T)
        place = show_places(arrays["offset"], len(number))
        columns = complete.show_slots(number.view(self.dtype), code, place, arrays["depth"])
        return {"nodes": columns}


@dataclass(frozen=True)
class ArrayTree(complete.CompleteTree):
    """Access to a tree whose slots are adjacent."""

    def number(self, node: Expr) -> Expr:
        """Load the threshold of an inner node, or the value of a leaf: the first field."""
        bits = tir.BufferLoad(self.buffers["nodes"], [self.element(node), 0])
        return tir.reinterpret(self.layout.dtype, bits)

    def code(self, node: Expr) -> Expr:
        """Load the feature of a node, with the flag DEFAULT_LEFT: the second field."""
        return tir.BufferLoad(self.buffers["nodes"], [self.element(node), 1])

    def test_at_once(self, node: Expr, hold: Hold) -> NodeTest:
        """Return the test of a node from one load, of both fields as a vector of two."""
        place = [self.element(node), tir.Ramp(tir.i64(0), tir.i64(1), 2)]
        record = hold("record", tir.BufferLoad(self.buffers["nodes"], place)).source
        number, code = (tir.BufferLoad(record, [tir.i64(field)]) for field in range(2))
        number = tir.reinterpret(self.layout.dtype, number)
        return decode_test(number, code, self.layout.any_default_left, hold)

    def heads(self) -> list[Expr]:
        """Return loads of some slots of the top five levels, to prefetch their cache lines."""
        return [self.number(tir.i64(node)) for node in (1, 8, 16, 24)]


@register
@dataclass(frozen=True)
class ReorgLayout(complete.CompleteLayout):
    """The array layout with the trees side by side, and an array for each field."""

    name: ClassVar[str] = "reorg"
    side_by_side: ClassVar[bool] = True

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        fields = complete.fill_slots(forest, *cls.place(forest))
        names = ("threshold", "feature", "leaf_id")
        return cls.of(forest, {"depth": forest.depths, **dict(zip(names, fields, strict=True))})

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> ReorgTree:
        """Return access to a tree, with its depth."""
        first = hold("first", tree.astype("int64") - self.trees)
        hops = complete.load_hops(self.depth, buffers, tree, hold)
        return ReorgTree(self, buffers, first, hops, self.trees)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return both arrays by slot and tree, for pictures."""
        number, code = arrays["threshold"], arrays["feature"]
        slot, tree = np.divmod(np.arange(len(number)), self.trees)
        place = {"tree": tree, "slot": slot}
        columns = complete.show_slots(number, code, place, arrays["depth"])
        features = {x: columns.pop(x) for x in ("feature", "missing")}
        return {"threshold": columns, "feature": place | features}


@dataclass(frozen=True)
class ReorgTree(complete.CompleteTree):
    """Access to a tree whose slots are T elements apart, T being the number of trees.

    A node is the number of its slot, which is multiplied by T for each load. If it were the index
    of an element, LLVM would turn a step by 0 or T into a branch.
    """

    def number(self, node: Expr) -> Expr:
        """Load the threshold of an inner node, or the value of a leaf."""
        return tir.BufferLoad(self.buffers["threshold"], [self.element(node)])

    def code(self, node: Expr) -> Expr:
        """Load the feature of a node, with the flag DEFAULT_LEFT."""
        return tir.BufferLoad(self.buffers["feature"], [self.element(node)])

    def heads(self) -> list[Expr]:
        """Return loads of the top two levels, to prefetch them; others share no cache line."""
        return [self.number(tir.i64(slot)) for slot in (1, 2, 3)]


def _place_tiles(forest: Forest, table: TileTable, depth: Array) -> tuple[Array, Array]:
    """Find the slot of every tile in its tree, and the leaf of every entry of the leaf array.

    Args:
        forest: its tiles are full.
        table: its tiles.
        depth: int64 (T,), the depth of each tree in tiles.

    Returns:
        int64 (M,), slots; int64, nodes, tree by tree and from left to right.
    """
    ways = forest.tile_size + 1
    slot_of_tile = np.zeros(len(table.tree), np.int64)
    node, slot, level, first = forest.tree_offset[:-1], np.zeros(forest.n_trees, np.int64), 0, 0
    ends = []
    while node.size:
        tile = table.tile_of[node]
        leaf, slot_of_leaf = node[tile < 0], slot[tile < 0]
        tree = forest.node_tree[leaf]
        copies = ways ** (depth[tree] - level)
        ends.append((tree, (slot_of_leaf - first) * copies, leaf, copies))
        tile, slot = tile[tile >= 0], slot[tile >= 0]
        slot_of_tile[tile] = slot
        node, slot = (
            table.children[tile].ravel(),
            (ways * slot[:, None] + 1 + np.arange(ways)).ravel(),
        )
        first, level = ways * first + 1, level + 1
    tree, begin, leaf, copies = map(np.concatenate, zip(*ends, strict=True))
    order = np.lexsort((begin, tree))
    return slot_of_tile, np.repeat(leaf[order], copies[order])
