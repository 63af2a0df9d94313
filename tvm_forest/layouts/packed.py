"""The packed layout: like the sparse layout, but every node is a single word of 8 bytes.

takes: Forest; gives: PackedLayout and its arrays.

    bits 63 ... 32                 31 ... i + 1   i       l              ... 0
    float32 threshold or value     left child     inner   default left   feature

One load brings all fields that a hop needs. Child and inner flag together are the link of the
sparse layout: the next node is (link + goes right) >> 1.

Models of float64 that compare float32 rows, such as scikit-learn's, have their thresholds rounded
to float32, which changes no decision (`round_thresholds`). Their leaves hold the index of the value
in a table of all trees.

Trees that exceed the first-level cache are stored depth first, the larger side first: a walk of
many hops then touches about half as many cache lines as in level order.

The flag for default directions exists only if some node of the model needs it. Features have 8
bits, or as many as they need: x86 extracts a byte from a word in one instruction. Children have the
remaining bits.

The idea of one word a node is that of the Forest Inference Library of RAPIDS; the fields are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest.rewrites.narrowing import round_thresholds
from ..forest.rewrites.ordering import order_by_level, order_depth_first
from ..system.values import dataclass
from . import ANY_FOREST, tir
from . import linked_nodes as linked
from .protocol import (
    NO_TYPES,
    Columns,
    Expr,
    Hold,
    Layout,
    NodeTest,
    Types,
    bits_of,
    read_specs,
    register,
)

NUMBER_AT = 32
"""First bit of the number in a word; the fields below it have as many bits."""

WORDS_IN_LINE = 8
"""Words, or leaf values, in a cache line of 64 bytes."""

MAX_NEAR_NODES = 4096
"""Largest average number of nodes of a tree (32 KiB) for which trees are stored level by level."""


class PackedNodeBits(NamedTuple):
    """Number of bits that each field of a node needs.

    Attributes:
        feature: bits of a feature, at least 8.
        default_left: bits of the flag for missing values, 0 if no node of the model needs it.
        link: bits of the largest link, the flag of inner nodes included.
    """

    feature: int
    default_left: int
    link: int


@dataclass(frozen=True)
class PackedTree(linked.LinkedTree):
    """Access to a tree; nodes are slots. LLVM merges all loads of a node into one."""

    layout: PackedLayout

    def _word(self, node: Expr) -> Expr:
        return self.load("nodes", node)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the node and return its test; a leaf tests feature 0."""
        word, bits = hold("word", self._word(node)), self.layout.feature_bits
        left = (word & tir.i64(1 << bits)) > 0 if self.layout.any_default_left else None
        return NodeTest(_decode_number(word), word & _make_mask(bits), left)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the left child, or the slot after it; a leaf is its own child."""
        below = self.layout.inner_bit
        link = tir.shift_right(self._word(node), tir.i64(below))
        return linked.follow(link & _make_mask(NUMBER_AT - below), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: its flag for inner nodes is not set."""
        return tir.EQ(self._word(node) & tir.i64(1 << self.layout.inner_bit), tir.i64(0))

    def leaf_value(self, node: Expr) -> Expr:
        """Load a leaf value, from the number field or from the table at that index."""
        if not self.layout.has_table:
            return _decode_number(self._word(node))
        return self._entry(tir.shift_right(self._word(node), tir.i64(NUMBER_AT)))

    def _entry(self, place: Expr) -> Expr:
        return tir.BufferLoad(self.buffers["leaf_value"], [place])

    def lines(self) -> list[tuple[int, Callable[[Expr], Expr]]]:
        """Return loads of the cache lines of a tree's nodes and leaf values.

        The `tree` trees before this one have `first` nodes, of which (first + tree) / 2 are leaves.
        Functions that return leaf numbers read no leaf values, so these lines are left out.
        """
        nodes = self.layout.largest
        lines = [(nodes // WORDS_IN_LINE + 1, lambda line: self._word(line * WORDS_IN_LINE))]
        if "leaf_value" in self.buffers:
            leaf, leaves = tir.floordiv(self.first + self.tree, tir.i64(2)), nodes // 2
            count = leaves // WORDS_IN_LINE + 1
            lines.append((count, lambda line: self._entry(leaf + line * WORDS_IN_LINE)))
        return lines

    def heads(self) -> list[Expr]:
        """Return loads of the tree's nodes 0, 8, 16 and 24, to prefetch their cache lines."""
        return [self._word(tir.i64(node)) for node in (0, 8, 16, 24)]


@register
@dataclass(frozen=True)
class PackedLayout(linked.LinkedLayout):
    """The nodes of all trees, one tree after the other, one word for each node.

    Attributes:
        feature_bits: width of the feature field.
        any_default_left: whether some node sends a missing value to the left.
        has_table: whether leaf values lie in a table, and not in the nodes.
        largest: nodes of the largest tree, rounded up to three significant bits (at most a quarter
            more), so that similar models share code.
    """

    name: ClassVar[str] = "packed"
    instead: ClassVar[str] = ANY_FOREST
    access: ClassVar[type[linked.LinkedTree]] = PackedTree
    type_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"feature": ("uint8", "uint16")}
    feature_bits: int
    any_default_left: bool
    has_table: bool
    largest: int

    @property
    def inner_bit(self) -> int:
        """Bit of the flag for inner nodes; the child begins above it."""
        return self.feature_bits + int(self.any_default_left)

    @staticmethod
    def node_bits(forest: Forest) -> PackedNodeBits:
        """Return the bits that the fields below bit `NUMBER_AT` need; the number is above it."""
        feature, flag = (
            max(8, (forest.n_features - 1).bit_length()),
            linked.any_default_left(forest),
        )
        return PackedNodeBits(feature, int(flag), linked.count_link_bits(forest))

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: rows are float64, or a child number is too large."""
        if _is_wide(forest) and forest.row_dtype != "float32":
            return (
                f"thresholds are {forest.threshold.dtype} and rows {forest.row_dtype}, but a word "
                "of 8 bytes holds float32 only"
            )
        bits = cls.node_bits(forest)
        left, rest = NUMBER_AT - bits.feature - bits.default_left, f"{forest.n_features} features"
        return linked.find_link_excess(forest, _number_nodes, left, rest)

    @classmethod
    def pack(cls, forest: Forest, types: Types = NO_TYPES) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`; the children do not fit beside features of the type.
        """
        cls.check(forest)
        inner, is_wide, bits = ~forest.is_leaf, _is_wide(forest), cls.node_bits(forest)
        if "feature" in types:
            bits = bits._replace(feature=bits_of(types["feature"]))
            left = NUMBER_AT - bits.feature - bits.default_left
            excess = linked.find_link_excess(forest, _number_nodes, left, types["feature"])
            if excess is not None:
                raise BuildError(f"represent_as: argument 'feature': {excess}; leave it out")
        order, place = _number_nodes(forest)
        table_place = np.cumsum(~inner[order])[place] - 1
        leaf = table_place if is_wide else forest.leaf_value[:, 0].view(np.int32)
        number = np.where(inner, round_thresholds(forest).view(np.int32), leaf)
        nodes = number.astype(np.int64) << NUMBER_AT
        nodes |= linked.link_nodes(forest, place) << bits.feature + bits.default_left
        nodes |= np.where(inner, forest.feature, 0)
        nodes |= (forest.default_left & inner).astype(np.int64) << bits.feature
        arrays = linked.make_linked_arrays(forest, nodes[order])
        if is_wide:
            arrays["leaf_value"] = forest.leaf_value[order][~inner[order], 0]
        arrays["leaf_id"] = forest.node_id[order]
        most = int(np.diff(forest.tree_offset).max())
        largest = -(-most >> (zeros := max(0, most.bit_length() - 3))) << zeros
        facts = (bits.feature, bool(bits.default_left), is_wide, largest)
        return cls(read_specs(arrays), *facts), arrays

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of a word, labelled with their bits, for pictures."""
        word, at, flag = arrays["nodes"], self.feature_bits, self.inner_bit
        columns = linked.show_places(arrays["offset"], len(word))
        columns["number 63-32"] = (word >> NUMBER_AT).astype(np.int32).view(np.float32)
        fields = {"left child": (NUMBER_AT - 1, flag + 1), "inner": (flag, flag)}
        if self.any_default_left:
            fields["default left"] = (at, at)
        return {"nodes": columns | linked.show_bits(word, {**fields, "feature": (at - 1, 0)})}


def _is_wide(forest: Forest) -> bool:
    """Return whether leaf values are too wide for a node, so that a table holds them."""
    return bool(forest.threshold.dtype != np.float32)


def _number_nodes(forest: Forest) -> tuple[Array, Array]:
    """Number nodes level by level, or depth first if trees are large.

    Returns:
        (order, place), see `order_by_level`.
    """
    is_near = forest.n_nodes <= MAX_NEAR_NODES * forest.n_trees
    return order_by_level(forest) if is_near else order_depth_first(forest)


def _decode_number(word: Expr) -> Expr:
    high = tir.shift_right(word, tir.i64(NUMBER_AT))
    return tir.reinterpret("float32", high.astype("int32"))


def _make_mask(count: int) -> Expr:
    return tir.i64((1 << count) - 1)
