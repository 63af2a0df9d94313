"""The sparse layouts: only existing nodes, in level order, siblings side by side.

takes: Forest; gives: SparseLayout, or TiledSparseLayout for a forest with tiles, and its arrays.

    nodes[slot] = (threshold or leaf value, feature, link)      link = 2 * left child + is inner
    next slot   = (link + goes right) >> 1                      right child = left child + 1

Children count from the tree's first slot. A leaf is its own child for every row, so walks of
unequal length can advance together, and no tree is padded: the layout for deep or lopsided trees.

With tiles, a record holds the place of the tile's n_t + 1 children, which are adjacent, and all
tiles or all leaves. Numbers count through all trees; those from `first leaf` on are leaves:

    node < first leaf      record of a tile, child = its word + number from the look-up table
    node >= first leaf     leaves[node - first leaf]

A leaf that is a sibling of a tile becomes a tile itself, whose children are copies of it: one hop
more, but never below the deepest leaf. In the peeled layout, such a leaf gets a record of its own,
with the value in place of a threshold, if it is at most as deep as the walks of 90% of the rows. A
second word of the parent's record marks these children; a walk adds OWN_RECORD to their numbers.

From "SilvanForge" (SOSP 2024), section 5, sparse representation; with tiles from "Treebeard" (MICRO
2022), and its draft on probability-based tiling; the self-looping leaves are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest.hits import find_peel_depths
from ..forest.rewrites.padding import fill_tiles
from ..forest.rewrites.tile_table import TileTable, make_tile_table
from ..system.values import dataclass
from . import linked_nodes as linked
from . import tile_records as records
from . import tir
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
    round_up,
)

MAX_NODES = (1 << 31) - 1
"""Largest number of tiles and leaves of all trees together."""

OWN_RECORD = 1 << 40
"""Offset of the numbers of leaves stored as records, so that one comparison finds all leaves."""

CHILD, OWN = 0, 1
"""Words of a record: the first child, and a bit mask of the children that are leaf records."""


@dataclass(frozen=True)
class TiledSparseLayout(records.TiledLayout):
    """The tiles of all trees, one tree after the other, and their leaves.

    Attributes:
        first_leaf: number of the first leaf; a constant of the code, and the same for models with
            about as many records.
    """

    name: ClassVar[str] = "sparse"
    tile_sizes: ClassVar[tuple[int, ...]] = records.TILE_SIZES
    links: ClassVar[tuple[str, ...]] = ("child",)
    peels_leaves: ClassVar[bool] = False
    """Whether likely leaves are stored as records."""
    first_leaf: int

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: it lacks the leaf profile that peeling needs.

        Layouts that peel no leaves return None. `pack` also refuses too many tiles.
        """
        if cls.peels_leaves and forest.hits is None:
            return "needs a leaf profile to know which leaves are likely"
        return None

    @classmethod
    def pack(cls, forest: Forest, types: Types = NO_TYPES) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`, or there are too many tiles to be numbered.
        """
        reason = cls.unfit(forest)
        if reason is not None:
            raise BuildError(
                f"represent_as: layout '{cls.name}' {reason}; give one with build(profile=...), "
                f"or use represent_as('{TiledSparseLayout.name}')"
            )
        depth = forest.depths.astype(np.int32)
        peel = find_peel_depths(forest) if cls.peels_leaves else np.zeros(forest.n_trees, np.int64)
        forest = fill_tiles(forest if cls.peels_leaves else records.type_thresholds(forest, types))
        table = make_tile_table(forest)
        record = records.TileRecord.of(forest, len(cls.links), types.get("feature"))
        plan = _plan_records(forest, table, peel)
        arrays: dict[str, Array] = {
            "tiles": _write_records(forest, table, record, plan),
            "lut": records.flatten_lut(table),
            "root": plan.root,
            "depth": depth,
            "leaves": forest.leaf_value[plan.leaf, 0],
            "leaf_id": forest.node_id[plan.leaf],
            "tile_id": forest.node_id[plan.node] if plan.node.size else np.zeros(1, np.int32),
        }
        return cls(read_specs(arrays), record, plan.first_leaf), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TiledSparseTree:
        """Return access to a tree: loads the number of its root, and its depth."""
        root, hops = (hold(x, tir.BufferLoad(buffers[x], [tree])) for x in ("root", "depth"))
        return TiledSparseTree(self, buffers, root, hops, self.record.size)


@register
class PeeledSparseLayout(TiledSparseLayout):
    """The tiled sparse layout with likely leaves as records; needs a leaf profile."""

    name: ClassVar[str] = "sparse_peeled"
    links: ClassVar[tuple[str, ...]] = ("child", "children that are leaves")
    peels_leaves: ClassVar[bool] = True
    type_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"feature": FIELD_TYPES["feature"]}


@dataclass(frozen=True)
class TiledSparseTree(records.TileTree):
    """Access to a tree by the numbers of its tiles and leaves."""

    layout: TiledSparseLayout

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """Return the number of the child: that of the first child, plus what the table gives."""
        number = self.child_number(node, outcome)
        child = self.link(node, CHILD) + number
        if not self.layout.peels_leaves:
            return child
        own = tir.shift_right(self.link(node, OWN), number)
        return child + (own & 1) * tir.i64(OWN_RECORD)

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: leaves have the largest numbers."""
        return node >= tir.i64(self.layout.first_leaf)

    def leaf_value(self, node: Expr) -> Expr:
        """Load a leaf value, from its array or for likely leaves from the record."""
        own = self.word(node - OWN_RECORD, 0)
        return self._load_leaf("leaves", node, own, self.record.leaf_dtype)

    def leaf_id(self, node: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        own = tir.BufferLoad(self.buffers["tile_id"], [node - OWN_RECORD])
        return self._load_leaf("leaf_id", node, own, "int32")

    def _load_leaf(self, name: str, node: Expr, own: Expr, dtype: str) -> Expr:
        """Load from a buffer of leaves; `own` is the value for leaves stored as records."""
        outside = tir.BufferLoad(self.buffers[name], [node - self.layout.first_leaf])
        if not self.layout.peels_leaves:
            return outside
        own = tir.reinterpret(dtype, own)
        return tir.if_then_else(node >= tir.i64(OWN_RECORD), own, outside)

    def heads(self) -> list[Expr]:
        """Return loads of the records of the root and the next three, to prefetch them."""
        first = tir.min(self.root, tir.i64(self.layout.first_leaf))
        return [self.word(first + tir.i64(k), 0) for k in range(4)]


@dataclass(frozen=True)
class SparseTree(linked.LinkedTree):
    """Access to a tree; nodes are slots from the tree's first."""

    layout: SparseLayout

    def _field(self, node: Expr, field: int) -> Expr:
        return self.load("nodes", node, field)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the test of a node; a leaf tests feature 0."""
        any_left = self.layout.any_default_left
        return linked.decode_test(self.leaf_value(node), self._field(node, 1), any_left, hold)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the left child, or the slot after it; a leaf is its own child."""
        return linked.follow(self._field(node, 2).astype("int64"), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: the inner flag of its link is not set."""
        link = self._field(node, 2)
        return tir.EQ(link & tir.const(1, link.ty.dtype), tir.const(0, link.ty.dtype))

    def leaf_value(self, node: Expr) -> Expr:
        """Load the leaf value, from the threshold field."""
        return tir.reinterpret(self.layout.dtype, self._field(node, 0))

    def heads(self) -> list[Expr]:
        """Return loads of some of the tree's first 16 nodes, to prefetch their cache lines."""
        return [self._field(tir.i64(node), 0) for node in (0, 5, 10, 15)]


@register
@dataclass(frozen=True)
class SparseLayout(linked.LinkedLayout):
    """All nodes of all trees, one tree after the other.

    Attributes:
        dtype: dtype of thresholds and leaf values.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = TiledSparseLayout.name
    tile_sizes: ClassVar[tuple[int, ...]] = (1, *records.TILE_SIZES)
    access: ClassVar[type[linked.LinkedTree]] = SparseTree
    type_choices = FIELD_TYPES
    dtype: str
    any_default_left: bool

    @classmethod
    def pack(cls, forest: Forest, types: Types = NO_TYPES) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `TiledSparseLayout.pack`; a type is given, but the forest has no tiles.
        """
        if forest.tile_size > 1:
            return TiledSparseLayout.pack(forest, types)
        refuse_types(cls, types)
        order, links = linked.link_in_level_order(forest)
        inner, dtype = ~forest.is_leaf, str(forest.threshold.dtype)
        integer = linked.INTEGER_OF[dtype]
        number = np.where(inner, forest.threshold, forest.leaf_value[:, 0])
        code = np.where(inner, forest.feature + linked.DEFAULT_LEFT * forest.default_left, 0)
        fields = [number.view(integer), code, links]
        nodes = np.stack([field[order].astype(integer) for field in fields], axis=1)
        arrays = linked.make_linked_arrays(forest, nodes) | {"leaf_id": forest.node_id[order]}
        return cls(read_specs(arrays), dtype, linked.any_default_left(forest)), arrays

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return nodes with their links split into fields, for pictures."""
        number, code, link = np.ascontiguousarray(arrays["nodes"].T)
        inner = link & 1 > 0
        columns = linked.show_places(arrays["offset"], len(link))
        columns |= linked.show_nodes(number.view(self.dtype), code, inner, ~inner)
        return {"nodes": {**columns, "left child": link >> 1, "inner": link & 1}}


@dataclass(frozen=True)
class _Plan:
    """The order of records and leaves.

    Attributes:
        node: node of the forest that each record stands for, the root of a tile or a leaf.
        child: link word of each record, the place of its children.
        stays: whether a record is a leaf.
        leaf: node of each leaf value.
        root: number of each tree's root.
        first_leaf: number of the first leaf.
    """

    node: Array
    child: Array
    stays: Array
    leaf: Array
    root: Array
    first_leaf: int


def _plan_records(forest: Forest, table: TileTable, peel: Array) -> _Plan:
    """Number records and leaves tree by tree and level by level, children side by side.

    Args:
        forest: its tiles are full.
        table: its tiles.
        peel: int (T,), the depth up to which leaves beside tiles get records of their own; 0 for
            none.

    Raises:
        BuildError: there are too many records and leaves.
    """
    ways, root, is_single = forest.tile_size + 1, forest.tree_offset[:-1], table.root < 0
    node = root[~is_single]
    none = np.zeros(0, bool)
    levels = [(node[:0], np.zeros((0, ways), np.int64), none, none)]
    while node.size:
        tile = table.tile_of[node]
        stays = (tile < 0) & (forest.hop_depth[node] <= peel[forest.node_tree[node]])
        children = np.where((tile < 0)[:, None], node[:, None], table.children[tile])
        is_end = np.all(table.tile_of[children] < 0, axis=1) & ~stays
        levels.append((node, children, is_end, stays))
        node = children[~is_end & ~stays].ravel()
    node, children, is_end, stays = map(np.concatenate, zip(*levels, strict=True))
    order = np.argsort(forest.node_tree[node], kind="stable")
    node, children, is_end, stays = (x[order] for x in (node, children, is_end, stays))
    leaf = np.concatenate([root[is_single], children[is_end].ravel()])
    leaf = leaf[np.argsort(forest.node_tree[leaf], kind="stable")]
    if len(node) + len(leaf) > MAX_NODES:
        raise BuildError(
            f"represent_as: layout '{TiledSparseLayout.name}': {len(node)} tiles and "
            f"{len(leaf)} leaves are more than {MAX_NODES}; split the model"
        )
    tree, first_leaf = (
        forest.node_tree[node],
        round_up(max(1, len(node)), 1 << 14, MAX_NODES - len(leaf)),
    )
    # Before a tile's children come the roots of trees up to its own, and other tiles' children.
    roots, single_roots = np.cumsum(~is_single)[tree], np.cumsum(is_single)[tree]
    tile_child = roots + ways * (np.cumsum(~is_end & ~stays) - 1)
    leaf_child = first_leaf + single_roots + ways * (np.cumsum(is_end) - 1)
    own = np.arange(len(node))  # a leaf is its own child
    child = np.where(stays, own, np.where(is_end, leaf_child, tile_child))
    trees = np.arange(forest.n_trees)
    begin_leaf = first_leaf + np.searchsorted(forest.node_tree[leaf], trees)
    begin = np.where(is_single, begin_leaf, np.searchsorted(tree, trees))
    return _Plan(node, child, stays, leaf, begin, first_leaf)


def _write_records(
    forest: Forest, table: TileTable, record: records.TileRecord, plan: _Plan
) -> Array:
    """Write the records; one for a leaf among tiles needs no tests, as its children are equal."""
    words = np.zeros((max(1, len(plan.node)), record.width), record.word)
    tile = table.tile_of[plan.node]
    here = np.flatnonzero(tile >= 0)
    words[here] = record.write(forest, table)[tile[here]]
    words[: len(plan.node), record.link_at(CHILD)] = plan.child
    stays = np.flatnonzero(plan.stays)
    if stays.size:
        words[stays, 0] = forest.leaf_value[plan.node[stays], 0].view(record.word)
        above = np.flatnonzero(~plan.stays & (plan.child < len(plan.node)))
        ways = np.arange(forest.tile_size + 1)
        own = plan.stays[plan.child[above, None] + ways]
        words[above, record.link_at(OWN)] = own @ (1 << ways)
    return words
