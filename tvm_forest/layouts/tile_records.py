"""Records of tiles, and other code that layouts of tiles share.

takes: a TileTable; gives: an array with one record for each tile (`TileRecord`), and loads from it
(`TileTree`).

A record is a row of words as wide as a threshold, so that the fields of a tile are adjacent:

    thresholds | features, several to a word | shape and default sides | words of the layout

The nodes of a tile are in level order, padded to a number of vector lanes: 3 nodes take 4 lanes, 5
to 7 take 8. The words of a record are a power of two, so that no record crosses a cache line.

A shape is stored as the start of its row in the look-up table:

    lut[shape + outcomes of the nodes as bits] = number of the child, 0 to n_t from left to right

From "Treebeard" (MICRO 2022), tile shapes and look-up table. Ours: the table holds only
shapes that occur, and bit i is the outcome of node i.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest.rewrites.narrowing import narrow_thresholds
from ..forest.rewrites.tile_table import TileTable
from ..system.values import dataclass, field, replace
from . import tir
from .linked_nodes import INTEGER_OF, any_default_left
from .protocol import (
    FIELD_TYPES,
    Buffers,
    Columns,
    Expr,
    Hold,
    Layout,
    NodeTest,
    TreeAccess,
    Types,
    bits_of,
)

TILE_SIZES = (2, 3, 4, 5, 6, 7, 8)

SIDES_AT = 24
"""First bit of the default sides, in the word of the shape."""


@dataclass(frozen=True)
class TileRecord:
    """The position of a tile's fields, in words.

    Attributes:
        size: number of nodes in a tile.
        dtype: dtype of thresholds; that of the rows, unless leaves are records.
        leaf_dtype: dtype of leaf values.
        feature_bits: width of a feature number, 8, 16 or 32; a tile's features fill whole words.
        links: number of words at the end that the layout itself writes and reads.
        any_default_left: whether some node of the model sends a missing value to the left.
    """

    size: int
    dtype: str
    leaf_dtype: str
    feature_bits: int
    links: int
    any_default_left: bool

    @classmethod
    def of(cls, forest: Forest, links: int, feature: str | None = None) -> TileRecord:
        """Choose the narrowest record that holds the tiles of a forest.

        Args:
            forest: a forest with tiles.
            links: see the attribute.
            feature: type of the feature numbers, such as "uint8"; None for the narrowest.

        Raises:
            BuildError: features of the requested type do not fill a word.
        """
        dtype, lanes = str(forest.threshold.dtype), _count_lanes(forest.tile_size)
        most = max(0, int(forest.feature.max(initial=0)))
        word = np.dtype(dtype).itemsize * 8
        widths = [bits for bits in (8, 16, 32) if bits * lanes >= word]
        fitting = [bits for bits in widths if most < 1 << bits]
        wanted = bits_of(feature) if feature else fitting[0]
        if wanted not in widths:
            raise BuildError(
                f"represent_as: argument 'feature': {lanes} numbers of {feature!r} do not fill the "
                f"words of a tile, which have {word} bits; use 'uint{widths[0]}'"
            )
        leaf_dtype, sides = str(forest.leaf_value.dtype), any_default_left(forest)
        return cls(forest.tile_size, dtype, leaf_dtype, wanted, links, sides)

    @property
    def lanes(self) -> int:
        """Number of vector lanes for the nodes of a tile."""
        return _count_lanes(self.size)

    @property
    def word(self) -> str:
        """Dtype of a word: the integer that is as wide as a threshold."""
        return INTEGER_OF[self.dtype]

    @property
    def features_in_word(self) -> int:
        """Number of feature numbers in one word."""
        return np.dtype(self.word).itemsize * 8 // self.feature_bits

    @property
    def shape_at(self) -> int:
        """Index in a record of the word that holds the tile's shape and its default sides."""
        return self.lanes + self.lanes // self.features_in_word

    @property
    def width(self) -> int:
        """Number of words in a record."""
        used = self.shape_at + 1 + self.links
        return 1 << (used - 1).bit_length()

    def link_at(self, link: int) -> int:
        """Return the index in a record of a link word; `link` counts from 0."""
        return self.shape_at + 1 + link

    def write(self, forest: Forest, table: TileTable) -> Array:
        """Return the records of all tiles, (M, width), with link words 0.

        Raises:
            BuildError: the tiles have too many shapes.
        """
        members = table.members
        if len(table.lut) << self.size > 1 << SIDES_AT:  # no table of 8 nodes has so many shapes
            raise BuildError(f"tile_nodes: {len(table.lut)} shapes of tiles do not fit the records")
        records = np.zeros((len(members), self.width), self.word)
        thresholds = np.zeros((len(members), self.lanes), self.dtype)
        thresholds[:, : self.size] = forest.threshold[members]
        features = np.zeros((len(members), self.lanes), f"uint{self.feature_bits}")
        features[:, : self.size] = forest.feature[members]
        sides = forest.default_left[members].astype(np.int64) << np.arange(self.size)
        records[:, : self.lanes] = thresholds.view(self.word)
        records[:, self.lanes : self.shape_at] = features.view(self.word)
        shape = table.shape.astype(np.int64) << self.size
        shape |= sides.sum(axis=1) << SIDES_AT
        records[:, self.shape_at] = shape.astype(np.uint32).view(np.int32)
        return records


def type_thresholds(forest: Forest, types: Types) -> Forest:
    """Return the forest with thresholds of the requested width, or else of the width of rows."""
    if types.get("threshold") == "float64":
        return replace(forest, threshold=forest.threshold.astype(np.float64))
    return narrow_thresholds(forest)


def _count_lanes(size: int) -> int:
    return 1 << (size - 1).bit_length()


def flatten_lut(table: TileTable) -> Array:
    """Return the look-up table as a flat array of bytes."""
    return table.lut.ravel() if table.lut.size else np.zeros(table.lut.shape[1], np.uint8)


@dataclass(frozen=True)
class TiledLayout(Layout):
    """Base class of layouts of tiles.

    Attributes:
        record: fields of a tile.
    """

    only_for_values: ClassVar[tuple[str, ...]] = ("leaves",)
    only_for_ids: ClassVar[tuple[str, ...]] = ("leaf_id", "tile_id")
    type_choices = FIELD_TYPES
    links: ClassVar[tuple[str, ...]] = ()
    """Meaning of the record's link words, which the layout itself writes and reads."""
    record: TileRecord

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return records, and a look-up table row per shape, for pictures."""
        record, tiles, ways = self.record, arrays["tiles"], 1 << self.record.size
        words = np.ascontiguousarray(tiles[:, record.lanes : record.shape_at])
        word = tiles[:, record.shape_at].astype(np.int64)
        columns = {
            "thresholds": np.ascontiguousarray(tiles[:, : record.size]).view(record.dtype),
            "features": words.view(f"uint{record.feature_bits}")[:, : record.size],
            "shape": word & ((1 << SIDES_AT) - 1),
        }
        if record.any_default_left:
            columns["default left"] = word[:, None] >> SIDES_AT + np.arange(record.size) & 1
        columns |= {name: tiles[:, record.link_at(k)] for k, name in enumerate(self.links)}
        shapes = len(arrays["lut"]) // ways
        rows = arrays["lut"][: shapes * ways].reshape(shapes, ways)
        table = {"shape": np.arange(shapes) * ways, f"child of outcome 0 to {ways - 1}": rows}
        return {"tiles": columns, "lut": table}


@dataclass(frozen=True)
class TileTree(TreeAccess):
    """Access to a tree of tiles that have records.

    Attributes:
        layout: the layout.
        buffers: `tiles` and `lut`, and further ones of the layout.
        root: node where walks begin.
        hops: number of tiles on the way to the deepest leaf.
        tile_size: number of nodes in a tile.
        rest: a node that has a record, which is tested in place of a leaf, see `TreeAccess`.
    """

    layout: Any
    buffers: Buffers
    root: Expr
    hops: Expr
    tile_size: int
    rest: Expr = field(default_factory=lambda: tir.i64(0))

    @property
    def record(self) -> TileRecord:
        """The position of a tile's fields."""
        return self.layout.record

    def slot(self, node: Expr) -> Expr:
        """Return the index in `tiles` of a tile's record."""
        return node

    def word(self, node: Expr, place: Expr) -> Expr:
        """Load one or several words of a record, whose indices in it are `place`."""
        return tir.BufferLoad(self.buffers["tiles"], [self.slot(node), place])

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the fields of all nodes of a tile, and return their tests as vectors."""
        record = self.record
        thresholds = self.word(node, _index_words(0, record.lanes))
        features = self.word(node, _index_words(record.lanes, record.shape_at - record.lanes))
        narrow = f"uint{record.feature_bits}x{record.lanes}"
        return NodeTest(
            tir.reinterpret(f"{record.dtype}x{record.lanes}", thresholds),
            tir.reinterpret(narrow, features).astype(f"int32x{record.lanes}"),
            self._sides(node) if record.any_default_left else None,
        )

    def member(self, node: Expr, place: Expr | int, hold: Hold) -> NodeTest:
        """Load the test of one node of a tile; unused lanes of a record hold zeros."""
        record = self.record
        at, shift = place // record.features_in_word, place % record.features_in_word
        bits = tir.i64(0) + shift * record.feature_bits
        shifted = tir.shift_right(self.word(node, record.lanes + at), bits.astype(record.word))
        if record.feature_bits < 32:
            feature = shifted.astype("int64") & tir.i64((1 << record.feature_bits) - 1)
        else:  # kernels use 32-bit indices, into which a mask of 32 bits does not fit
            feature = shifted.astype("int32").astype("int64")
        bit = (tir.i64(0) + place).astype("int32")
        left = (
            (tir.shift_right(self._sides(node), bit) & 1) != 0 if record.any_default_left else None
        )
        threshold = tir.reinterpret(record.dtype, self.word(node, place))
        return NodeTest(threshold, feature, left)

    def _sides(self, node: Expr) -> Expr:
        return tir.shift_right(self._shape(node), tir.IntImm("int32", SIDES_AT))

    def _shape(self, node: Expr) -> Expr:
        return self.word(node, self.record.shape_at).astype("int32")

    def child_number(self, node: Expr, outcome: Expr) -> Expr:
        """Look up the number of the child for the outcomes of a tile, int64 from 0 to n_t."""
        record, shape = self.record, self._shape(node) & ((1 << SIDES_AT) - 1)
        bits = outcome if record.lanes == record.size else outcome & ((1 << record.size) - 1)
        return tir.BufferLoad(self.buffers["lut"], [(shape + bits).astype("int64")]).astype("int64")

    def link(self, node: Expr, link: int) -> Expr:
        """Load a link word of a record, int64; `link` counts from 0."""
        return self.word(node, self.record.link_at(link)).astype("int64")


def _index_words(begin: int, count: int) -> Expr:
    """Return the indices of `count` words of a record from `begin` on, as a vector.

    For one word it is a scalar, since TIR has no vector of one element.
    """
    first = tir.i64(begin)
    return first if count == 1 else tir.Ramp(first, tir.i64(1), count)
