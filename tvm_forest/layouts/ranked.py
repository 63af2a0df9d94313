"""The ranked layout: a node is a word of 4 bytes, for its threshold is a rank.

takes: Forest; gives: RankedRepresentation and its arrays.

    bits 31 ... i + 1   i       ...      8 (16)   ... 0
    left child          inner   column            rank

Rows are coded before they are walked, once a block, see `ranks`: a walk compares the code of a
value with the code of a threshold, which is exact, and asks nothing about missing values. Child and
inner flag together are the link of the sparse layout. Leaf values lie in an array of their own, by
the number of the node: half of the nodes are leaves, and those are the last of their tree.

A model that asks for categories may have thousands of columns. Then a word has 8 bytes if 4 do not
hold it, for other layouts would have these columns made ahead of the compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import tirx

from ..forest import Array, Forest
from .linked_nodes import (
    LinkedTree,
    check_children,
    follow,
    linked_buffers,
    links_in_level_order,
    place_columns,
)
from .representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    NodeTest,
    Representation,
    register,
)
from .row_codes.ranks import RankCode, rank_tests

WORD = 32


@register
@dataclass(frozen=True)
class RankedRepresentation(Representation):
    """All nodes of all trees, one after the other, a word each.

    Attributes:
        trees: T.
        slots: nodes of all trees together.
        dtype: of leaf values.
        code: how rows are coded.
        column_bits: width of the column field.
        word: bits of a node.
    """

    name: ClassVar[str] = "ranked"
    codes_rows: ClassVar[bool] = True
    trees: int
    slots: int
    dtype: str
    code: RankCode
    column_bits: int
    word: int = WORD

    @property
    def rank_bits(self) -> int:
        """Width of the rank field."""
        return 8 * np.dtype(self.code.dtype).itemsize

    @property
    def link_bit(self) -> int:
        """Where the link begins."""
        return self.rank_bits + self.column_bits

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: a feature has too many thresholds, or a child does not fit.
        """
        ranked = rank_tests(forest, cls.name)
        order, links = links_in_level_order(forest)
        needed = (ranked.code.columns - 1).bit_length()
        rep = cls(forest.n_trees, forest.n_nodes, forest.sum_dtype, ranked.code, max(8, needed))
        if links.max(initial=0) >> max(0, WORD - rep.link_bit):
            rep = replace(rep, column_bits=needed)  # not a whole byte, which x86 takes out at once
        if links.max(initial=0) >> max(0, WORD - rep.link_bit) and forest.derived:
            rep = replace(rep, word=2 * WORD)
        rest = "ranks and columns leave; use represent_as('packed')"
        check_children(cls.name, forest, links >> 1, rep.word - rep.link_bit - 1, rest)
        words = links << rep.link_bit | ranked.column << rep.rank_bits | ranked.rank
        arrays: dict[str, Array] = {
            "offset": forest.tree_offset[:-1].astype(np.int64),
            "depth": forest.depths,
            "nodes": words[order].astype(f"uint{rep.word}"),
            "leaf_value": forest.leaf_value[order, 0],
            "leaf_id": forest.node_id[order],
        }
        return rep, arrays | ranked.arrays | ranked.answer_arrays()

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return offsets, depths, nodes, leaf values, and what rows are coded with."""
        return (*self._buffers(), BufferSpec("leaf_value", self.dtype, (self.slots,)))

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same with the source number of every leaf in the place of its value."""
        return (*self._buffers(), BufferSpec("leaf_id", "int32", (self.slots,)))

    def _buffers(self) -> tuple[BufferSpec, ...]:
        coding = (*self.code.buffers(), *self.code.answer_buffers())
        return (*linked_buffers(self.trees, f"uint{self.word}", self.slots), *coding)

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> RankedTree:
        """Load where the tree begins and how deep it is."""
        return RankedTree.opened(self, buffers, tree, hold)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show the fields of a word under the places of their bits."""
        word, at, flag = arrays["nodes"].astype(np.int64), self.rank_bits, self.link_bit
        columns = {
            **place_columns(arrays["offset"], self.slots),
            f"left child {self.word - 1}-{flag + 1}": word >> (flag + 1),
            f"inner {flag}": word >> flag & 1,
            f"column {flag - 1}-{at}": word >> at & ((1 << self.column_bits) - 1),
            f"rank {at - 1}-0": word & ((1 << at) - 1),
        }
        return {"nodes": columns}


@dataclass(frozen=True)
class RankedTree(LinkedTree):
    """A walk counts slots from the tree's first one. LLVM makes one of all loads of a node."""

    rep: RankedRepresentation

    def _word(self, node: Expr) -> Expr:
        return self.load("nodes", node)

    def _word_of(self, value: int) -> Expr:
        return tirx.IntImm(f"uint{self.rep.word}", value)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the node; a leaf tests column 0."""
        word = hold("word", self._word(node))
        column = tirx.shift_right(word, self._word_of(self.rep.rank_bits))
        column = column & self._word_of((1 << self.rep.column_bits) - 1)
        rank = (word & self._word_of((1 << self.rep.rank_bits) - 1)).astype(self.rep.code.dtype)
        return NodeTest(rank, column.astype("int64"), None)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """The left child, or the slot behind it; a leaf itself."""
        link = tirx.shift_right(self._word(node), self._word_of(self.rep.link_bit))
        return follow(link.astype("int64"), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Ask for the flag."""
        return tirx.EQ(self._word(node) & self._word_of(1 << self.rep.link_bit), self._word_of(0))

    def leaf_value(self, node: Expr) -> Expr:
        """Values by slot."""
        return self.load("leaf_value", node)

    def heads(self) -> list[Expr]:
        """The first nodes of the tree, 16 to a cache line."""
        return [self._word(tirx.IntImm("int64", node)) for node in (0, 16)]
