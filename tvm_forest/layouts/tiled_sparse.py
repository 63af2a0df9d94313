"""The sparse layouts of tiles: the tiles that there are, and the leaves by themselves.

takes: Forest with tiles; gives: TiledSparseLayout and its arrays.

A record says where the children of its tile are: n_t + 1 neighbours, all of them tiles or all
of them leaves. Numbers count through all trees; those from the number of tiles on are leaves:

    node < tiles      record of a tile, child = its word + number from the look-up table
    node >= tiles     leaves[node - tiles]

A leaf beside a tile becomes a tile itself, whose children are copies of it: one hop more, never
below the deepest leaf. In the peeled layout, such leaves down to the depth that nine rows of ten
reach stay where they are: a record with the value in the place of a threshold. A second word of
the record above says which of its children are such, and a walk adds OWN_RECORD to their numbers.

From "Treebeard" (MICRO 2022), sparse representation, and its draft on probability-based tiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest.hits import find_peel_depths
from ..forest.rewrites.narrowing import narrow_thresholds
from ..forest.rewrites.padding import fill_tiles
from ..forest.rewrites.tile_table import TileTable, make_tile_table
from . import tile_records as records
from . import tir
from .representation import Buffers, Columns, Expr, Hold, Layout, read_specs, register
from .tile_records import TileRecord

MAX_NODES = (1 << 31) - 1
"""Tiles and leaves of all trees."""

OWN_RECORD = 1 << 40
"""Added to the number of a leaf that is a record, which makes it a leaf like those outside."""

CHILD, OWN = 0, 1
"""Words of a record: where the children are, and as bits which of them are leaves."""


@dataclass(frozen=True)
class TiledSparseLayout(records.TiledLayout):
    """The tiles of all trees, one tree after the other, and their leaves.

    Attributes:
        tiles: records of all trees together.
    """

    name: ClassVar[str] = "sparse"
    tile_sizes: ClassVar[tuple[int, ...]] = records.TILE_SIZES
    peels_leaves: ClassVar[bool] = False
    """Whether likely leaves are records."""
    tiles: int

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why not: there is no leaf profile to peel by. `pack` refuses too many tiles."""
        if cls.peels_leaves and forest.hits is None:
            return "needs a leaf profile to know which leaves are likely"
        return None

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module.

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
        forest = fill_tiles(forest if cls.peels_leaves else narrow_thresholds(forest))
        table = make_tile_table(forest)
        record = TileRecord.of(forest, links=2 if cls.peels_leaves else 1)
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
        return cls(read_specs(arrays), record, len(arrays["tiles"])), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> TiledSparseTree:
        """Load the number of the root and how deep the tree is."""
        root, hops = (hold(x, tir.BufferLoad(buffers[x], [tree])) for x in ("root", "depth"))
        return TiledSparseTree(self, buffers, root, hops, self.record.size)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show records and the look-up table."""
        shown = self.record.describe(arrays)
        names = {"link 0": "child", "link 1": "children that are leaves"}
        tiles = {names.get(name, name): column for name, column in shown["tiles"].items()}
        return {**shown, "tiles": tiles}


@register
class PeeledSparseLayout(TiledSparseLayout):
    """The same with likely leaves as records; a forest needs a leaf profile."""

    name: ClassVar[str] = "sparse_peeled"
    peels_leaves: ClassVar[bool] = True


@dataclass(frozen=True)
class TiledSparseTree(records.TileTree):
    """A walk through the numbers of tiles and leaves."""

    layout: TiledSparseLayout

    def child(self, node: Expr, outcome: Expr) -> Expr:
        """The child whose number the look-up table gives."""
        number = self.child_number(node, outcome)
        child = self.link(node, CHILD) + number
        if not self.layout.peels_leaves:
            return child
        own = tir.shift_right(self.link(node, OWN), number)
        return child + (own & 1) * tir.i64(OWN_RECORD)

    def is_leaf(self, node: Expr) -> Expr:
        """Leaves come after all tiles."""
        return node >= tir.i64(self.layout.tiles)

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values have an array of their own, but for likely ones."""
        own = self.word(node - OWN_RECORD, 0)
        return self._load_leaf("leaves", node, own, self.record.leaf_dtype)

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        own = tir.BufferLoad(self.buffers["tile_id"], [node - OWN_RECORD])
        return self._load_leaf("leaf_id", node, own, "int32")

    def _load_leaf(self, name: str, node: Expr, own: Expr, dtype: str) -> Expr:
        """Load from a buffer of leaves; `own` is what lies in the record of a leaf that has one."""
        outside = tir.BufferLoad(self.buffers[name], [node - self.layout.tiles])
        if not self.layout.peels_leaves:
            return outside
        own = tir.reinterpret(dtype, own)
        return tir.if_then_else(node >= tir.i64(OWN_RECORD), own, outside)

    def heads(self) -> list[Expr]:
        """The records of the root and its first children."""
        first = tir.min(self.root, tir.i64(self.layout.tiles))
        return [self.word(first + tir.i64(k), 0) for k in range(4)]


@dataclass(frozen=True)
class _Plan:
    """What stands where.

    Attributes:
        node: node of the forest that each record stands for, the root of a tile or a leaf.
        child: word of the child of each record.
        stays: whether a record is a leaf.
        leaf: node of each leaf value.
        root: number where each tree begins.
    """

    node: Array
    child: Array
    stays: Array
    leaf: Array
    root: Array


def _plan_records(forest: Forest, table: TileTable, peel: Array) -> _Plan:
    """Number records and leaves of each tree, level by level, children side by side."""
    ways = forest.tile_size + 1
    inner = table.root >= 0
    tiles, ends = inner.astype(np.int64), (~inner).astype(np.int64)  # so far, of each tree
    root = forest.tree_offset[:-1]
    node, tree = root[inner], np.flatnonzero(inner)
    rank = np.zeros(len(node), np.int64)
    single = np.flatnonzero(~inner)
    records, leaves = [], [(single, np.zeros(len(single), np.int64), root[single])]
    while node.size:
        tile = table.tile_of[node]
        stays = (tile < 0) & (forest.hop_depth[node] <= peel[tree])
        children = np.where((tile < 0)[:, None], node[:, None], table.children[tile])
        is_end = np.all(table.tile_of[children] < 0, axis=1) & ~stays
        deeper = ~is_end & ~stays
        first = np.where(stays, rank, 0)
        first[is_end], ends = _take_numbers(tree[is_end], ends, ways)
        first[deeper], tiles = _take_numbers(tree[deeper], tiles, ways)
        records.append((tree, rank, node, first, is_end, stays))
        each = np.arange(ways)
        leaves.append(_spread_children(tree[is_end], first[is_end], children[is_end], each))
        tree, rank, node = _spread_children(tree[deeper], first[deeper], children[deeper], each)
    return _renumber(records, leaves, tiles, ends, inner)


def _take_numbers(tree: Array, filled: Array, ways: int) -> tuple[Array, Array]:
    """Take `ways` numbers for each entry of a tree; entries are in the order of their trees."""
    turn = np.arange(len(tree)) - np.searchsorted(tree, tree)
    return filled[tree] + ways * turn, filled + ways * np.bincount(tree, minlength=len(filled))


def _spread_children(
    tree: Array, first: Array, children: Array, each: Array
) -> tuple[Array, Array, Array]:
    """One entry for each child: tree, number in the tree, node."""
    return np.repeat(tree, len(each)), (first[:, None] + each).ravel(), children.ravel()


def _renumber(records: list, leaves: list, tiles: Array, ends: Array, inner: Array) -> _Plan:
    """Turn numbers within trees into numbers of all."""
    tile_first, end_first = np.cumsum(tiles) - tiles, np.cumsum(ends) - ends
    end_first = end_first + max(1, int(tiles.sum()))
    if int(tiles.sum() + ends.sum()) > MAX_NODES:
        raise BuildError(
            f"represent_as: layout '{TiledSparseLayout.name}': {tiles.sum()} tiles and "
            f"{ends.sum()} leaves are more than {MAX_NODES}; split the model"
        )
    empty = [np.zeros(0, np.int64)] * 4 + [np.zeros(0, bool)] * 2
    tree, rank, node, first, is_end, stays = map(np.concatenate, zip(empty, *records, strict=True))
    order = np.argsort(tile_first[tree] + rank)
    child = first + np.where(is_end, end_first[tree], tile_first[tree])
    of_tree, place, leaf = map(np.concatenate, zip(*leaves, strict=True))
    root = np.where(inner, tile_first, end_first)
    return _Plan(
        node[order], child[order], stays[order], leaf[np.argsort(end_first[of_tree] + place)], root
    )


def _write_records(forest: Forest, table: TileTable, record: TileRecord, plan: _Plan) -> Array:
    """Write the records; a leaf beside a tile tests nothing, for all its children are equal."""
    records = np.zeros((max(1, len(plan.node)), record.width), record.word)
    tile = table.tile_of[plan.node]
    here = np.flatnonzero(tile >= 0)
    records[here] = record.write(forest, table)[tile[here]]
    records[: len(plan.node), record.link_at(CHILD)] = plan.child
    stays = np.flatnonzero(plan.stays)
    if stays.size:
        records[stays, 0] = forest.leaf_value[plan.node[stays], 0].view(record.word)
        above = np.flatnonzero(~plan.stays & (plan.child < len(plan.node)))
        ways = np.arange(forest.tile_size + 1)
        own = plan.stays[plan.child[above, None] + ways]
        records[above, record.link_at(OWN)] = own @ (1 << ways)
    return records
