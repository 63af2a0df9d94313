"""The packed layout: the sparse one with every node in a single word of 8 bytes.

takes: Forest; gives: PackedRepresentation and its array.

    bits 63 ... 32                 31 ... i + 1   i       l              ... 0
    float32 threshold or value     left child     inner   default left   feature

One load brings all that a hop asks for. Child and inner flag together are the link of the sparse
layout: the next node is (link + goes right) >> 1.

The flag for default directions is there only if some node of the model needs it. Features have 8
bits, or as many as they need: x86 takes a byte out of a word in one instruction. Children have the
rest. On `airline` and `year`, batch 4096, Zen 4, this is 10 to 25 % faster than a flag of its own
that is added to the child, or than the number in the low half.

The idea of one word a node is that of the Forest Inference Library of RAPIDS; the fields are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx

from ..errors import BuildError
from ..forest import Array, Forest
from .node_fields import (
    LinkedTree,
    any_default_left,
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

FIELDS = 32
"""Bits below the number."""


@register
@dataclass(frozen=True)
class PackedRepresentation(Representation):
    """All nodes of all trees, one after the other, a word each.

    Attributes:
        trees: T.
        slots: nodes of all trees together.
        feature_bits: width of the feature field.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = "packed"
    trees: int
    slots: int
    feature_bits: int
    any_default_left: bool

    @property
    def inner_bit(self) -> int:
        """Place of the flag of inner nodes; the child begins above it."""
        return self.feature_bits + int(self.any_default_left)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: thresholds are float64, or a child does not fit.
        """
        if forest.threshold.dtype != np.float32:
            raise BuildError(
                f"represent_as: layout 'packed': thresholds are {forest.threshold.dtype}, but a "
                "word of 8 bytes holds float32 only; use represent_as('sparse')"
            )
        feature_bits = max(8, (forest.n_features - 1).bit_length())
        rep = cls(forest.n_trees, forest.n_nodes, feature_bits, any_default_left(forest))
        order, links = links_in_level_order(forest)
        rest = f"{forest.n_features} features leave; use represent_as('sparse')"
        check_children(cls.name, forest, links >> 1, FIELDS - rep.inner_bit - 1, rest)
        inner = ~forest.is_leaf
        number = np.where(inner, forest.threshold, forest.leaf_value[:, 0])
        nodes = number.view(np.int32).astype(np.int64) << FIELDS
        nodes |= links << rep.inner_bit
        nodes |= np.where(inner, forest.feature, 0)
        nodes |= (forest.default_left & inner).astype(np.int64) << feature_bits
        arrays: dict[str, Array] = {
            "offset": forest.tree_offset[:-1].astype(np.int64),
            "depth": forest.depths,
            "nodes": nodes[order],
            "leaf_id": forest.node_id[order],
        }
        return rep, arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return offsets, depths and nodes."""
        return linked_buffers(self.trees, "int64", self.slots)

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same, and the source number of every leaf."""
        return (*self.value_buffers(), BufferSpec("leaf_id", "int32", (self.slots,)))

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> PackedTree:
        """Load where the tree begins and how deep it is."""
        return PackedTree.opened(self, buffers, tree, hold)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show the fields of a word under the places of their bits."""
        word, at, flag = arrays["nodes"], self.feature_bits, self.inner_bit
        columns = {
            **place_columns(arrays["offset"], self.slots),
            "number 63-32": (word >> FIELDS).astype(np.int32).view(np.float32),
            f"left child 31-{flag + 1}": (word & ((1 << FIELDS) - 1)) >> (flag + 1),
            f"inner {flag}": word >> flag & 1,
        }
        if self.any_default_left:
            columns[f"default left {at}"] = word >> at & 1
        return {"nodes": {**columns, f"feature {at - 1}-0": word & ((1 << at) - 1)}}


@dataclass(frozen=True)
class PackedTree(LinkedTree):
    """A walk counts slots from the tree's first one. LLVM makes one of all loads of a node."""

    rep: PackedRepresentation

    def _word(self, node: Expr) -> Expr:
        return self.load("nodes", node)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the node; a leaf tests feature 0."""
        word = hold("word", self._word(node))
        feature = word & _ones(self.rep.feature_bits)
        if not self.rep.any_default_left:
            return NodeTest(_number(word), feature, None)
        flag = tirx.IntImm("int64", 1 << self.rep.feature_bits)
        return NodeTest(_number(word), feature, (word & flag) > 0)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """The left child, or the slot behind it; a leaf itself."""
        below = self.rep.inner_bit
        link = tirx.shift_right(self._word(node), tirx.IntImm("int64", below))
        return follow(link & _ones(FIELDS - below), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Ask for the flag."""
        flag = tirx.IntImm("int64", 1 << self.rep.inner_bit)
        return tirx.EQ(self._word(node) & flag, tirx.IntImm("int64", 0))

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values lie in the number field."""
        return _number(self._word(node))

    def heads(self) -> list[Expr]:
        """The first nodes of the tree, 8 to a cache line."""
        return [self._word(tirx.IntImm("int64", node)) for node in (0, 8, 16, 24)]


def _number(word: Expr) -> Expr:
    high = tirx.shift_right(word, tirx.IntImm("int64", FIELDS))
    return tirx.reinterpret("float32", high.astype("int32"))


def _ones(count: int) -> Expr:
    return tirx.IntImm("int64", (1 << count) - 1)
