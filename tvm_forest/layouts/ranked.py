"""The ranked layout: a node is a word of 4 bytes, because its threshold is a rank.

takes: Forest; gives: RankedLayout and its arrays.

    bits 31 ... i + 1   i       ...      8 (16)   ... 0
    left child          inner   column            rank

Rows are coded before they are walked, once per block, see `ranks`: a walk compares the code of a
value with the code of a threshold, which is exact, and needs no test for missing values. Child and
inner flag together are the link of the sparse layout. Leaf values have an array of their own,
indexed by the number of the node: half of the nodes are leaves, and leaves are the last nodes of
their tree.

A model that tests memberships in sets of categories may have thousands of columns. Then a word has
8 bytes if 4 are too few, since with other layouts numpy would have to make these columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.ordering import order_by_level
from ..system.values import dataclass
from . import ANY_FOREST, WORD_NODES, tir
from . import linked_nodes as linked
from .protocol import Columns, Expr, Hold, Layout, NodeTest, read_specs, register
from .row_codes import ranks

WORD_BITS = 32
"""Bits of a node; twice as many if there are memberships and they do not fit."""

BYTE_BITS = 8


class RankedNodeBits(NamedTuple):
    """Number of bits that each field of a node needs.

    Attributes:
        rank: bits of a rank, 8 or 16.
        column: bits of a column number.
        link: bits of the largest link, the flag of inner nodes included.
        word: bits of a node, into which these have to fit.
    """

    rank: int
    column: int
    link: int
    word: int


@dataclass(frozen=True)
class RankedTree(linked.LinkedTree):
    """Access to a tree; nodes are slots. LLVM merges all loads of a node into one."""

    layout: RankedLayout

    def _word(self, node: Expr) -> Expr:
        return self.load("nodes", node)

    def _constant(self, value: int) -> Expr:
        return tir.IntImm(f"uint{self.layout.word}", value)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the node and return its test; a leaf tests column 0."""
        layout, word = self.layout, hold("word", self._word(node))
        column = tir.shift_right(word, self._constant(layout.rank_bits))
        column = column & self._constant((1 << layout.column_bits) - 1)
        rank = (word & self._constant((1 << layout.rank_bits) - 1)).astype(layout.code.dtype)
        return NodeTest(rank, column.astype("int64"), None)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the left child, or the slot after it; a leaf is its own child."""
        link = tir.shift_right(self._word(node), self._constant(self.layout.link_bit))
        return linked.follow(link.astype("int64"), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: its flag for inner nodes is not set."""
        flag = self._constant(1 << self.layout.link_bit)
        return tir.EQ(self._word(node) & flag, self._constant(0))

    def leaf_value(self, node: Expr) -> Expr:
        """Load the value of a leaf from its array, where a leaf has the number of its slot."""
        return self.load("leaf_value", node)

    def heads(self) -> list[Expr]:
        """Return loads of nodes 0 and 16 of the tree, to prefetch their cache lines."""
        return [self._word(tir.i64(node)) for node in (0, 16)]


@register
@dataclass(frozen=True)
class RankedLayout(linked.LinkedLayout):
    """The nodes of all trees, one tree after the other, one word for each node.

    Attributes:
        code: how rows are coded.
        column_bits: width of the column field.
        word: bits of a node.
    """

    name: ClassVar[str] = "ranked"
    instead: ClassVar[str] = WORD_NODES
    instead_of_sets: ClassVar[str] = ANY_FOREST
    codes_rows: ClassVar[bool] = True
    access: ClassVar[type[linked.LinkedTree]] = RankedTree
    code: ranks.RankCode
    column_bits: int
    word: int

    @property
    def rank_bits(self) -> int:
        """Width of the rank field, in bits."""
        return 8 * np.dtype(self.code.dtype).itemsize

    @property
    def link_bit(self) -> int:
        """First bit of the link field, counted from the lowest."""
        return self.rank_bits + self.column_bits

    @staticmethod
    def node_bits(forest: Forest) -> RankedNodeBits:
        """Return the bits that the fields of a node need, and how many are available."""
        rank = 8 * np.dtype(ranks.choose_code_dtype(forest)).itemsize
        column = max(0, len(forest.cuts_per_column) - 1).bit_length()
        word = 2 * WORD_BITS if forest.derived else WORD_BITS
        return RankedNodeBits(rank, column, linked.count_link_bits(forest), word)

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: too many thresholds, categories or nodes."""
        reason = ranks.unfit(forest)
        if reason is not None:
            return reason
        bits = cls.node_bits(forest)
        left = bits.word - bits.rank - bits.column
        return linked.find_link_excess(forest, order_by_level, left, "ranks and columns")

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        bits, ranked = cls.node_bits(forest), ranks.rank_tests(forest)
        order, links = linked.link_in_level_order(forest)
        column, word = max(BYTE_BITS, bits.column), WORD_BITS
        if bits.rank + column + bits.link > word:
            column = bits.column  # not a whole byte, which x86 takes out at once
        if bits.rank + column + bits.link > word:
            word = bits.word
        words = links << bits.rank + column | ranked.column << bits.rank | ranked.rank
        arrays = linked.make_linked_arrays(forest, words[order].astype(f"uint{word}"))
        arrays |= ranked.arrays | ranked.answer_arrays()
        arrays["leaf_value"] = forest.leaf_value[order, 0]
        arrays["leaf_id"] = forest.node_id[order]
        return cls(read_specs(arrays), ranked.code, column, word), arrays

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of a word, labelled with their bits, for pictures."""
        word, at, flag = arrays["nodes"].astype(np.int64), self.rank_bits, self.link_bit
        columns = linked.show_places(arrays["offset"], len(word))
        link = {"left child": (self.word - 1, flag + 1), "inner": (flag, flag)}
        fields = {**link, "column": (flag - 1, at), "rank": (at - 1, 0)}
        return {"nodes": columns | linked.show_bits(word, fields)}
