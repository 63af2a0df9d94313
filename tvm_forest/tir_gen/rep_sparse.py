"""The sparse layout: the nodes that there are, in level order, siblings side by side.

takes: Forest; gives: SparseRepresentation and its arrays.

    nodes[slot] = (threshold or leaf value, feature, left child)    right child = left child + 1

Children count from the tree's first slot. A leaf is its own child whatever the row holds, so walks
of unequal length can go on together, and no tree is padded: the layout for deep or lopsided trees.

From "SilvanForge" (SOSP 2024), section 5, sparse representation; the self-looping leaves are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import tirx

from ..forest import Array, Forest
from .node_fields import DEFAULT_LEFT, INTEGER_OF, any_default_left, children_in_level_order
from .representation import Buffers, BufferSpec, Expr, NodeTest, Representation, register

LEAF_FLAG = 1 << 29
"""Flag in the feature field: the node is a leaf."""


@register
@dataclass(frozen=True)
class SparseRepresentation:
    """All nodes of all trees, one after the other.

    Attributes:
        trees: T.
        slots: nodes of all trees together.
        dtype: of thresholds and leaf values.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = "sparse"
    trees: int
    slots: int
    dtype: str
    any_default_left: bool

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module."""
        order, child = children_in_level_order(forest)
        inner = ~forest.is_leaf
        code = np.where(inner, forest.feature, LEAF_FLAG) + DEFAULT_LEFT * (
            forest.default_left & inner
        )
        integer = INTEGER_OF[str(forest.threshold.dtype)]
        number = np.where(inner, forest.threshold, forest.leaf_value[:, 0])
        fields = [number.view(integer), code, child]
        nodes = np.stack([field[order].astype(integer) for field in fields], axis=1)
        arrays: dict[str, Array] = {
            "offset": forest.tree_offset[:-1].astype(np.int64),
            "depth": forest.depths.astype(np.int32),
            "nodes": nodes,
            "leaf_id": forest.node_id[order],
        }
        dtype, any_left = str(forest.threshold.dtype), any_default_left(forest)
        return cls(forest.n_trees, forest.n_nodes, dtype, any_left), arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return offsets, depths and nodes."""
        return (
            BufferSpec("offset", "int64", (self.trees,)),
            BufferSpec("depth", "int32", (self.trees,)),
            BufferSpec("nodes", INTEGER_OF[self.dtype], (self.slots, 3)),
        )

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same, and the source number of every leaf."""
        return (*self.value_buffers(), BufferSpec("leaf_id", "int32", (self.slots,)))

    def tree(self, buffers: Buffers, tree: Expr, hold: Any) -> SparseTree:
        """Load where the tree begins and how deep it is."""
        first = hold("first", tirx.BufferLoad(buffers["offset"], [tree]))
        return SparseTree(self, buffers, first, hold("hops", _load(buffers, "depth", tree)))


@dataclass(frozen=True)
class SparseTree:
    """A walk counts slots from the tree's first one."""

    rep: SparseRepresentation
    buffers: Buffers
    first: Expr
    hops: Expr
    stays: ClassVar[bool] = True

    @property
    def root(self) -> Expr:
        """Slot 0."""
        return tirx.IntImm("int64", 0)

    def _field(self, node: Expr, field: int) -> Expr:
        return tirx.BufferLoad(self.buffers["nodes"], [self.first + node, field])

    def _number(self, node: Expr) -> Expr:
        return tirx.reinterpret(self.rep.dtype, self._field(node, 0))

    def test(self, node: Expr, hold: Any) -> NodeTest:
        """Load threshold and feature; a leaf tests feature 0."""
        code = hold("code", self._field(node, 1))
        flag = tirx.const(DEFAULT_LEFT, code.ty.dtype)
        feature = (code & tirx.const(LEAF_FLAG - 1, code.ty.dtype)).astype("int64")
        left = code >= flag if self.rep.any_default_left else None
        return NodeTest(self._number(node), feature, left)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """The left child, or the slot behind it; a leaf itself."""
        right = tirx.And(tirx.Not(goes_left), tirx.Not(self.is_leaf(node)))
        return self._field(node, 2).astype("int64") + right.astype("int64")

    def is_leaf(self, node: Expr) -> Expr:
        """Ask for the flag."""
        code = self._field(node, 1)
        return (code & tirx.const(LEAF_FLAG, code.ty.dtype)) > 0

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values lie in the threshold field."""
        return self._number(node)

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        return tirx.BufferLoad(self.buffers["leaf_id"], [self.first + node])

    def heads(self) -> list[Expr]:
        """The first nodes of the tree."""
        return [self._field(tirx.IntImm("int64", node), 0) for node in (0, 5, 10, 15)]


def _load(buffers: Buffers, name: str, index: Expr) -> Expr:
    return tirx.BufferLoad(buffers[name], [index])
