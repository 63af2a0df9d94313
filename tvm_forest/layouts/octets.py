"""The layout of octets: complete trees in tiles of bytes, for one row in 8 trees at once.

takes: Forest; gives: OctetsLayout and its arrays.

A tile is a complete tree of 3 levels. Its 7 tests are bytes in level order, columns and ranks:

    bytes 0 ... 6    7    8 ... 14    15
    columns          0    ranks       0

So the tiles that one row has reached in 8 trees fill a register of columns and one of ranks: one
instruction picks the codes of the row, one compares, and the 8 bits of a tree select its next tile.
The first tiles of 8 trees are side by side in `roots`. After a tile of the last tier, in the same
cache line, are the 8 leaves below it:

    words of a leaf     0 ... 3 (1)    8 ... 15
    `ends`              tile           leaves

A tree of up to 3 levels has only the leaves there. Tiles of the tiers between are in `tiles`, tree
by tree. A code goes right if it is at least the rank, whatever comparison the model uses.

Trees are completed to the depth of the deepest one: tests below a leaf have rank 0, which leads
right, to copies of the leaf. Code exists for trees of 3, 6 or 8 levels, see `DEPTHS`, so shallower
trees get levels above the root; no row reaches their unused parts, which therefore need no cache.
Octets hold trees of one class; the last octet of each class is filled up with empty trees.
Walks are in `tir_gen/walks/octets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from ..forest.structure.edges import find_steps
from ..system.values import dataclass, replace
from . import CODED, REGISTER, tir
from .complete_trees import MAX_SLOTS
from .linked_nodes import INTEGER_OF
from .protocol import Buffers, Columns, Expr, Hold, Layout, NearTree, read_specs, register
from .row_codes.ranks import RankCode, rank_tests

TREES = 8
"""Number of trees in an octet."""

TILE_LEVELS, TILE_BYTES = 3, 16
"""Number of levels in a tile, and of bytes for its columns and ranks."""

END_WORDS = 16
"""Number of words, as wide as a leaf, in an entry of `ends`: half for a tile, half for leaves."""

MAX_DEPTH, MAX_COLUMNS, MAX_CUTS = 8, 2 * REGISTER, 255
"""Limits: a byte numbers a tree's leaves, two registers hold a row's codes, a byte holds one."""

DEPTHS = (3, 6, MAX_DEPTH)
"""Depths of trees that code is written for: two or three tiles in a row take as long
whether all their levels are used or not."""

WAITING = 2
"""Number of octets whose loads are in flight at each tier. So walks read some octets beyond the end
of a loop, which must exist: after the last tree there are zeros."""


def first_levels(depth: int) -> int:
    """Return the number of levels in the first tile of trees of some depth: 1, 2 or 3."""
    return (depth - 1) % TILE_LEVELS + 1


@register
@dataclass(frozen=True)
class OctetsLayout(Layout):
    """Tiles of bytes, and leaves of complete trees.

    Attributes:
        dtype: dtype of leaf values.
        code: how rows are coded.
        depth: depth of all trees after completion, one of `DEPTHS`.
        classes: C, number of trees in a round.
    """

    name: ClassVar[str] = "octets"
    instead: ClassVar[str] = CODED
    walks: ClassVar[str] = "octets"
    dtype: str
    code: RankCode
    depth: int
    classes: int

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: a count is too high, or it has membership columns."""
        if forest.derived:
            return "memberships in sets of categories"
        cuts, depth = forest.cuts_per_column, int(forest.depths.max(initial=0))
        counts = (
            (int(cuts.max(initial=0)), "thresholds of a feature", MAX_CUTS),
            (len(cuts), "columns", MAX_COLUMNS),
            (depth, "levels of the deepest tree", MAX_DEPTH),
            (forest.n_trees << _round_depth(depth) + 1, "slots of complete trees", MAX_SLOTS),
        )
        return cls.find_excess(counts)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        ranked, own = rank_tests(forest), int(forest.depths.max(initial=0))
        depth = _round_depth(own)
        classes = int(forest.tree_class.max()) + 1  # 1 where a leaf is the number of a vector
        octets = -(-forest.n_trees // (classes * TREES))
        trees = np.full((octets * TREES, classes), -1)
        trees.ravel()[: forest.n_trees] = np.arange(forest.n_trees)
        trees = trees.reshape(octets, TREES, classes).swapaxes(1, 2)
        levels = _fill_levels(forest, trees.ravel(), own, depth)
        fields = np.zeros((2, forest.n_nodes + 1), np.uint8)
        codes = ranked.codes + (forest.comparison == "<=")
        for field, values in zip(fields, (ranked.tests.column, codes), strict=True):
            field[:-1] = ranked.tests.spread(values.astype(np.uint8))
        first = first_levels(depth)
        tiers = [levels[:first]]
        tiers += [levels[at : at + TILE_LEVELS] for at in range(first, depth, TILE_LEVELS)]
        tiles = [fields[:, _join_tiles(tier)] for tier in tiers]
        leaf, ahead = levels[depth], WAITING * len(tiles) * classes
        dtype = str(forest.leaf_value.dtype)
        values = np.where(leaf < 0, 0, forest.leaf_value[leaf, 0]).astype(dtype)
        ends = tiles[-1] if len(tiles) > 1 else np.zeros((2, len(leaf), 1, TREES), np.uint8)
        arrays: dict[str, Array] = {"roots": _pad(tiles[0].reshape(2, -1, REGISTER), ahead)}
        if len(tiles) > 2:
            middle = tiles[1].reshape(2, -1, TREES)
            arrays["tiles"] = _pad(middle, ahead * TREES * tiles[1].shape[2])
        arrays |= {
            "ends": _join_ends(ends, values, ahead),
            **ranked.arrays,
            "leaf_id": np.where(leaf < 0, -1, forest.node_id[leaf]).astype(np.int32).ravel(),
        }
        code = replace(ranked.code, multiple=REGISTER)
        return cls(read_specs(arrays), dtype, code, depth, classes), arrays

    @property
    def tiers(self) -> int:
        """Number of tiers, which is the number of tiles that a row visits in a tree."""
        return len(self.tile_counts)

    @property
    def tile_counts(self) -> list[int]:
        """Number of tiles of a tree in each tier, such as 1, 4 and 32 for 8 levels."""
        first = first_levels(self.depth)
        return [1, *(1 << level for level in range(first, self.depth, TILE_LEVELS))]

    @property
    def counts_words(self) -> bool:
        """Whether walks return 16 times the number of an entry of `ends`, plus the leaf's place.

        That is the number of a word, which fits a byte if a tree has up to 16 entries. Otherwise
        walks return 8 times the number plus the place, which is the leaf's number.
        """
        return self.tile_counts[-1] * END_WORDS <= 1 << TREES

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to the octet (Octet) whose first tree is given."""
        classes = tir.i64(self.classes)
        octet = tir.floordiv(tree, TREES * classes) * classes + tir.floormod(tree, classes)
        return Octet(self, buffers, hold("octet", octet))

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the columns and ranks of tiles, and the leaves, for pictures."""
        roots, kept = arrays["roots"], slice(0, (1 << TILE_LEVELS) - 1)
        halves = roots.reshape(-1, 2, TREES, TREES).swapaxes(1, 2).reshape(-1, 2, TREES)
        shown = {"roots": {"columns": halves[:, 0, kept], "ranks": halves[:, 1, kept]}}
        ends = arrays["ends"]
        tiles = {"ends": ends.view(np.uint8)[:, :TILE_BYTES]} | {
            name: arrays[name] for name in ("tiles",) if name in arrays
        }
        for name, tile in tiles.items():
            shown[name] = {"columns": tile[:, kept], "ranks": tile[:, TREES:][:, kept]}
        shown["ends"]["leaves"] = ends.view(self.dtype)[:, TREES:]
        return shown


def _round_depth(depth: int) -> int:
    """Return the least of `DEPTHS` that is enough for trees of this depth."""
    return next((x for x in DEPTHS if x >= depth), MAX_DEPTH)


def _fill_levels(forest: Forest, trees: Array, own: int, depth: int) -> list[Array]:
    """Return the node in each place of each level from 0 to `depth`, (T, 2**level) int64.

    A tree's root is the rightmost place of level `depth - own`, and its nodes are below that; all
    other places are -1, and so are those of trees numbered -1. Below a leaf there are copies of it.

    Args:
        forest: the model.
        trees: int (T,), the numbers of the trees; -1 for an empty one.
        own: levels of tests that are filled, at least the depth of each tree.
        depth: levels of tests of the completed trees.
    """
    root = np.where(trees < 0, -1, forest.tree_offset[trees])[:, None].astype(np.int64)
    levels = [np.full((len(trees), 1 << level), -1) for level in range(depth - own + 1)]
    levels[-1][:, -1:] = root
    node, steps = levels[-1], find_steps(forest)
    for _ in range(own):
        node = np.stack([step[node] for step in steps], axis=2).reshape(len(trees), -1)
        levels.append(node)
    return levels


def _join_tiles(levels: list[Array]) -> Array:
    """Return the nodes of the tiles of one tier, (T, tiles, 8); unused places hold -1.

    The tier consists of the given levels, 3 or fewer, as `_fill_levels` returns them. In a tile of
    fewer than 3 levels, the missing tests all lead right: the levels take the right end of the
    tile.
    """
    trees, tiles = levels[0].shape
    joined = np.full((trees, tiles, 1 << TILE_LEVELS), -1)
    for above, level in enumerate(reversed(levels), 1):
        size, end = level.shape[1] // tiles, (2 << TILE_LEVELS - above) - 1
        joined[:, :, end - size : end] = level.reshape(trees, tiles, size)
    return joined


def _pad(fields: Array, ahead: int) -> Array:
    """Return columns and ranks (2, n, k) side by side, (n + ahead, 2 k), with zeros at the end.

    Walks read ahead of the last octet, see `WAITING`.
    """
    rows = fields.swapaxes(0, 1).reshape(fields.shape[1], -1)
    return np.pad(rows, ((0, ahead), (0, 0)))


def _join_ends(tiles: Array, values: Array, ahead: int) -> Array:
    """Return the array `ends`: the last tiles (2, T, tiles, 8), each with the leaves below it.

    Args:
        tiles: columns and ranks.
        values: leaf values of each tree, from left to right.
        ahead: further octets, of zeros.
    """
    count = tiles.shape[2]
    words = np.zeros((tiles.shape[1] * count + ahead * TREES * count, END_WORDS), values.dtype)
    words.view(np.uint8)[: tiles[0, ..., 0].size, :TILE_BYTES] = _pad(
        tiles.reshape(2, -1, TREES), 0
    )
    leaves = values.reshape(len(values) * count, -1)
    words[: len(leaves), TREES : TREES + leaves.shape[1]] = leaves
    return words.view(INTEGER_OF[str(values.dtype)])


@dataclass(frozen=True)
class Octet(NearTree):
    """Access to eight trees of a class, for `tir_gen/walks/octets.py`.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        octet: number of the octet.
    """

    layout: OctetsLayout
    buffers: Buffers
    octet: Expr

    def tile(self, tier: int) -> Expr:
        """Load the first element of the octet's tiles of a tier, to take its address."""
        name = "roots" if not tier else "tiles" if tier < self.layout.tiers - 1 else "ends"
        tiles = TREES * self.layout.tile_counts[tier] if tier else 1
        return tir.BufferLoad(self.buffers[name], [self.octet * tiles, tir.i64(0)])

    def leaf_value(self, tree: int, number: Expr) -> Expr:
        """Load the value of a leaf of tree 0 to 7, by the number that the walk returns."""
        place = number if self.layout.counts_words else number + (number & 0xF8)
        first = (self.octet * TREES + tree) * self.layout.tile_counts[-1]
        word = tir.BufferLoad(self.buffers["ends"], [first, place + TREES])
        return tir.reinterpret(self.layout.dtype, word)

    def leaf_id(self, tree: int, number: Expr) -> Expr:
        """Load the source model's number of a leaf of tree 0 to 7, see `leaf_value`."""
        if self.layout.counts_words:
            number = tir.shift_right(number, tir.i64(1)) & 0xF8 | number & 7
        place = (self.octet * TREES + tree) * (1 << self.layout.depth) + number
        return tir.BufferLoad(self.buffers["leaf_id"], [place])

    def heads(self) -> list[Expr]:
        """Return a load of the first tiles of the eight trees, to prefetch them."""
        return [self.tile(0)]
