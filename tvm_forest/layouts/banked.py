"""The banked layout: complete trees of words, for rows coded into banks of shared memory.

takes: Forest; gives: BankedLayout and its arrays.

    bits 31 ... 8 (16)         7 (15) ... 0
    place of the column        rank

Every tree is complete down to its own depth, so nodes have no links: the root is slot 1, and the
children of slot i are 2i and 2i + 1. A leaf above the last level is padded: the slots below it
compare a code with 0 and lead to copies of the leaf. Leaf values lie in an array of their own. A
tree begins at a multiple of 16 bytes in both arrays, so that threads can copy 16 bytes each into
shared memory.

    nodes[offset[t] + i]                        slot i of tree t, of depth d
    leaf_value[offset[t] + i - 2^d]             its leaves, i from 2^d on

Rows are coded before they are walked, see `row_codes.banks`: the place of a column leads from the
address of a row to the code that a node tests, in one addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from ..system.values import dataclass, field
from . import CODED, tir
from . import complete_trees as complete
from . import linked_nodes as linked
from .protocol import (
    Buffers,
    Columns,
    Expr,
    Hold,
    Layout,
    NodeTest,
    TreeAccess,
    read_specs,
    register,
)
from .row_codes import ranks
from .row_codes.banks import LANES, BankCode, bank_tests

WORD_BITS = 32

SLOT_BYTES = WORD_BITS // 8

MULTIPLE = 4
"""The numbers of slots and of leaves of a tree are padded to a multiple of this."""


@dataclass(frozen=True)
class BankedTree(TreeAccess):
    """Access to a tree; a node is the byte offset of its slot, so an address needs one addition.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        first: index of slot 0 of the tree in `nodes`, and of its first leaf in `leaf_value`.
        hops: depth of the tree.
    """

    layout: BankedLayout
    buffers: Buffers
    first: Expr
    hops: Expr
    root: Expr = field(default_factory=lambda: tir.i64(SLOT_BYTES))
    rest: Expr | None = field(default_factory=lambda: tir.i64(SLOT_BYTES))
    padded: ClassVar[bool] = True

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the node and return its test."""
        layout = self.layout
        word = hold("word", tir.BufferLoad(self.buffers["nodes"], [self._element(node)]))
        bits = tir.IntImm("uint32", layout.rank_bits)
        mask = tir.IntImm("uint32", (1 << layout.rank_bits) - 1)
        rank = (word & mask).astype(layout.code.dtype)
        return NodeTest(rank, tir.shift_right(word, bits).astype("int64"), None)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the byte offset of the child: of slot 2i on the left, of 2i + 1 on the right."""
        return node * 2 + tir.Select(goes_left, tir.i64(0), tir.i64(SLOT_BYTES))

    def _element(self, node: Expr) -> Expr:
        return self.first + tir.floordiv(node, tir.i64(SLOT_BYTES))

    def _ends(self) -> Expr:
        return tir.shift_left(tir.i64(1), self.hops.astype("int64"))

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf: leaves come after all inner nodes of the tree."""
        return node >= self._ends() * SLOT_BYTES

    def _leaf(self, name: str, node: Expr) -> Expr:
        return tir.BufferLoad(self.buffers[name], [self._element(node) - self._ends()])

    def leaf_value(self, node: Expr) -> Expr:
        """Load the value of a leaf, from an array of its own."""
        return self._leaf("leaf_value", node)

    def leaf_id(self, node: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return self._leaf("leaf_id", node)

    def heads(self) -> list[Expr]:
        """Return loads of slots 0 and 16 of the tree, to prefetch their cache lines."""
        return [tir.BufferLoad(self.buffers["nodes"], [self.first + node]) for node in (0, 16)]


@register
@dataclass(frozen=True)
class BankedLayout(Layout):
    """Complete trees in level order, one word per node.

    Attributes:
        code: how rows are coded.
        depth: common depth of all trees, None if they differ.
    """

    name: ClassVar[str] = "banked"
    instead: ClassVar[str] = CODED
    copied: ClassVar[Mapping[str, str]] = {"nodes": "offset", "leaf_value": "offset"}
    code: BankCode
    depth: int | None

    @property
    def rank_bits(self) -> int:
        """Width of the rank field, in bits."""
        return 8 * np.dtype(self.code.dtype).itemsize

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: too many thresholds, columns or slots."""
        counts, slots = forest.cuts_per_column, complete.count_slots(forest.depths).sum()
        if counts.max(initial=0) > ranks.MAX_THRESHOLDS:
            return ranks.unfit(forest)
        rank = 8 * np.dtype(ranks.choose_code_dtype(forest)).itemsize
        most = (1 << WORD_BITS - rank) // LANES
        if len(counts) > most:
            return f"{len(counts)} columns, ranks of {rank} bits leave places for {most}"
        return complete.find_slot_excess(forest, int(slots))

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        tests, depth = bank_tests(forest), forest.depths.astype(np.int64)
        ends = np.left_shift(1, depth)  # leaves; one more than inner slots
        sizes = -(-ends // MULTIPLE) * MULTIPLE
        offset, total = np.cumsum(sizes) - sizes, int(sizes.sum())
        node_at, is_end = complete.find_occupants(
            forest,
            2 * total,
            lambda tree, slot: np.where(
                slot < ends[tree] - 1,
                offset[tree] + slot + 1,
                total + offset[tree] + slot + 1 - ends[tree],
            ),
        )
        node = node_at[:total]
        inner = np.flatnonzero(node >= 0)
        words, bits = np.zeros(total, np.uint32), 8 * np.dtype(tests.code.dtype).itemsize
        words[inner] = tests.place[node[inner]] << bits | tests.rank[node[inner]]
        leaf = node_at[total:]
        values = np.where(is_end[total:], forest.leaf_value[leaf, 0], 0)
        arrays: dict[str, Array] = {
            "offset": offset,
            "depth": forest.depths.astype(np.int32),
            "nodes": words,
            **tests.arrays,
            "leaf_value": values.astype(forest.leaf_value.dtype),
            "leaf_id": np.where(is_end[total:], forest.node_id[leaf], -1).astype(np.int32),
        }
        return cls(read_specs(arrays), tests.code, complete.find_uniform_depth(forest)), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> BankedTree:
        """Return access to a tree.

        Where the tree begins is computed if all trees have one depth, else it is loaded.
        """
        if self.depth is not None:
            size = -(-(1 << self.depth) // MULTIPLE) * MULTIPLE
            return BankedTree(self, buffers, tree * size, tir.IntImm("int32", self.depth))
        first = hold("first", tir.BufferLoad(buffers["offset"], [tree]))
        hops = hold("hops", tir.BufferLoad(buffers["depth"], [tree]))
        return BankedTree(self, buffers, first, hops)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of a word, labelled with their bits, for pictures."""
        word, at = arrays["nodes"].astype(np.int64), self.rank_bits
        columns: Any = linked.show_places(arrays["offset"], len(word))
        fields = {"place": (WORD_BITS - 1, at), "rank": (at - 1, 0)}
        return {"nodes": columns | linked.show_bits(word, fields)}
