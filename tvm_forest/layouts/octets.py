"""The layout of octets: complete trees in tiles of bytes, for one row in 8 trees at once.

takes: Forest; gives: OctetsLayout and its arrays.

A tile is a complete tree of 3 levels. Its 7 tests are bytes in level order, columns and ranks:

    bytes 0 ... 6    7    8 ... 14    15
    columns          0    ranks       0

So the tiles that one row has reached in 8 trees fill a register of columns and one of ranks: one
instruction picks the codes of the row, one compares, and the 8 bits that a tree gets are the number
of its next tile. The first tiles of 8 trees lie so side by side in `roots`, the others tree by tree
and level by level in `tiles`. A code goes to the right if it is not below the rank, whatever the
model compares with.

Trees are completed as deep as the deepest one: tests below a leaf have rank 0, which leads to the
right, and lead to copies of the leaf. So have the levels above the root, where the number of levels
is no multiple of 3. Groups are those of a class; the last one of each is filled up with such tests.
Walks are in `tir_gen/walks/octets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from . import tir
from .complete_trees import MAX_SLOTS
from .ranked import RankedLayout
from .representation import Buffers, Columns, Expr, Hold, Layout, read_specs, register
from .row_codes.ranks import RankCode, rank_tests

TREES = 8
"""Trees of an octet."""

TILE_LEVELS, TILE_BYTES = 3, 16
"""Levels of a tile, and bytes of its columns and ranks."""

REGISTER = 64
"""Bytes of a register of AVX-512."""

MAX_DEPTH, MAX_COLUMNS, MAX_CUTS = 8, 2 * REGISTER, 255
"""A byte counts the leaves of a tree, two registers hold the codes of a row, a byte holds a code."""


def first_levels(depth: int) -> int:
    """Return the levels of the first tile of trees of some depth: 1, 2 or 3."""
    return (depth - 1) % TILE_LEVELS + 1


@register
@dataclass(frozen=True)
class OctetsLayout(Layout):
    """Tiles of bytes, and leaves of complete trees.

    Attributes:
        dtype: of leaf values.
        code: how rows are coded.
        depth: of all trees once they are complete, 1 to 8.
        classes: C, trees of a round.
        octets: groups of 8 trees of each class.
    """

    name: ClassVar[str] = "octets"
    instead: ClassVar[str] = RankedLayout.name
    walks: ClassVar[str] = "octets"
    dtype: str
    code: RankCode
    depth: int
    classes: int
    octets: int

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why not: what bytes cannot count, or memberships, which are not looked up."""
        if forest.derived:
            return "memberships in sets of categories"
        cuts, depth = forest.cuts_per_column, int(forest.depths.max(initial=0))
        counts = (
            (int(cuts.max(initial=0)), "thresholds of a feature", MAX_CUTS),
            (len(cuts), "columns", MAX_COLUMNS),
            (depth, "levels of the deepest tree", MAX_DEPTH),
            (forest.n_trees << min(depth, MAX_DEPTH) + 1, "slots of complete trees", MAX_SLOTS),
        )
        over = next((x for x in counts if x[0] > x[2]), None)
        return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        ranked, depth = rank_tests(forest), max(1, int(forest.depths.max(initial=0)))
        classes = forest.round_size
        octets = -(-forest.n_trees // (classes * TREES))
        trees = np.full((octets * TREES, classes), -1)
        trees.ravel()[: forest.n_trees] = np.arange(forest.n_trees)
        levels = _fill_levels(forest, trees.T.ravel(), depth)
        fields = np.zeros((2, forest.n_nodes + 1), np.uint8)
        inner = np.flatnonzero(~forest.is_leaf)
        fields[:, inner] = ranked.column[inner], ranked.rank[inner] + (forest.comparison == "<=")
        first = first_levels(depth)
        roots = fields[:, _join_tiles(levels[:first])]
        tiles = [
            fields[:, _join_tiles(levels[at : at + TILE_LEVELS])]
            for at in range(first, depth, TILE_LEVELS)
        ]
        tiles, ahead = np.concatenate([roots[:, :, :0], *tiles], axis=2), len(tiles) + 1
        leaf = levels[depth]
        arrays: dict[str, Array] = {
            "roots": _pad(roots.reshape(2, -1, REGISTER), ahead),
            "tiles": _pad(tiles.reshape(2, -1, TREES), max(1, ahead * TREES * tiles.shape[2])),
            **ranked.arrays,
            "leaf_value": np.where(leaf < 0, 0, forest.leaf_value[leaf, 0]).ravel(),
            "leaf_id": np.where(leaf < 0, -1, forest.node_id[leaf]).astype(np.int32).ravel(),
        }
        code = replace(ranked.code, multiple=REGISTER)
        dtype = str(forest.leaf_value.dtype)
        arrays["leaf_value"] = arrays["leaf_value"].astype(dtype)
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return cls(read_specs(arrays), dtype, code, depth, classes, octets), arrays

    @property
    def tiers(self) -> int:
        """Tiles on the way to a leaf."""
        return len(self.tile_counts) + 1

    @property
    def tile_counts(self) -> list[int]:
        """Tiles of a tree behind the first one, tier by tier: 8, 64."""
        first = first_levels(self.depth)
        return [1 << level for level in range(first, self.depth, TILE_LEVELS)]

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to the octet whose first tree is given; an Octet."""
        rounds, classes = TREES * self.classes, tir.i64(self.classes)
        octet = tir.floordiv(tree, tir.i64(rounds)) + tir.floormod(tree, classes) * self.octets
        return Octet(self, buffers, hold("octet", octet))

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show the columns and ranks of tiles."""
        roots, tiles = arrays["roots"], arrays["tiles"]
        kept = slice(0, (1 << TILE_LEVELS) - 1)
        halves = roots.reshape(-1, 2, TREES, TREES).swapaxes(1, 2).reshape(-1, 2, TREES)
        return {
            "roots": {"columns": halves[:, 0, kept], "ranks": halves[:, 1, kept]},
            "tiles": {"columns": tiles[:, kept], "ranks": tiles[:, TREES:][:, kept]},
        }


def _fill_levels(forest: Forest, trees: Array, depth: int) -> list[Array]:
    """Return the node in each place of each level, (T, 2**level) int64; -1 in trees of number -1.

    Below a leaf there are copies of it.
    """
    node = np.where(trees < 0, -1, forest.tree_offset[trees])[:, None].astype(np.int64)
    levels = [node]
    for _ in range(depth):
        base = forest.tree_offset[forest.node_tree[node]]
        stays = (node < 0) | forest.is_leaf[node]
        both = [np.where(stays, node, base + side[node]) for side in (forest.left, forest.right)]
        node = np.stack(both, axis=2).reshape(len(trees), -1)
        levels.append(node)
    return levels


def _join_tiles(levels: list[Array]) -> Array:
    """Join levels, the last 3 of a tile, to tiles, (T, tiles, 8); places of no level hold -1.

    Where there are fewer than 3, the tests of the others all lead to the right: the levels fill the
    right end of the tile.
    """
    trees, tiles = levels[0].shape
    joined = np.full((trees, tiles, 1 << TILE_LEVELS), -1)
    for above, level in enumerate(reversed(levels), 1):
        size, end = level.shape[1] // tiles, (2 << TILE_LEVELS - above) - 1
        joined[:, :, end - size : end] = level.reshape(trees, tiles, size)
    return joined


def _pad(fields: Array, ahead: int) -> Array:
    """Return columns and ranks (2, n, k) beside each other, and some zeros for octets ahead."""
    rows = fields.swapaxes(0, 1).reshape(fields.shape[1], -1)
    return np.pad(rows, ((0, ahead), (0, 0)))


@dataclass(frozen=True)
class Octet:
    """Eight trees of a class: `tir_gen/walks/octets.py` asks it for addresses and for leaves.

    Attributes:
        rep: the layout.
        buffers: its buffers by name.
        octet: number of the group.
    """

    rep: OctetsLayout
    buffers: Buffers
    octet: Expr

    def root(self) -> Expr:
        """The first byte of the first tiles."""
        return tir.BufferLoad(self.buffers["roots"], [self.octet, tir.i64(0)])

    def tile(self) -> Expr:
        """The first byte of the other tiles."""
        tiles = TREES * sum(self.rep.tile_counts)
        at = self.octet * tiles if tiles else tir.i64(0)
        return tir.BufferLoad(self.buffers["tiles"], [at, tir.i64(0)])

    def leaf_value(self, tree: int, number: Expr) -> Expr:
        """The value of a leaf of one of the trees."""
        return tir.BufferLoad(self.buffers["leaf_value"], [self._place(tree, number)])

    def leaf_id(self, tree: int, number: Expr) -> Expr:
        """Its number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self._place(tree, number)])

    def _place(self, tree: int, number: Expr) -> Expr:
        return (self.octet * TREES + tree) * (1 << self.rep.depth) + number
