"""The sparse layout: the nodes that there are, in level order, siblings side by side.

takes: Forest; gives: SparseRepresentation and its arrays.

    nodes[slot] = (threshold or leaf value, feature, link)      link = 2 * left child + is inner
    next slot   = (link + goes right) >> 1                      right child = left child + 1

Children count from the tree's first slot. A leaf is its own child whatever the row holds, so walks
of unequal length can go on together, and no tree is padded: the layout for deep or lopsided trees.

From "SilvanForge" (SOSP 2024), section 5, sparse representation; the self-looping leaves are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx

from ..forest import Array, Forest
from .linked_nodes import (
    DEFAULT_LEFT,
    INTEGER_OF,
    LinkedTree,
    any_default_left,
    decode_test,
    follow,
    linked_buffers,
    links_in_level_order,
    node_columns,
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
from .tile_records import TILE_SIZES
from .tiled_sparse import TiledSparseRepresentation


@register
@dataclass(frozen=True)
class SparseRepresentation(Representation):
    """All nodes of all trees, one after the other.

    Attributes:
        trees: T.
        slots: nodes of all trees together.
        dtype: of thresholds and leaf values.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = "sparse"
    tile_sizes: ClassVar[tuple[int, ...]] = (1, *TILE_SIZES)
    trees: int
    slots: int
    dtype: str
    any_default_left: bool

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module, or `tiled_sparse` for a forest with tiles."""
        if forest.tile_size > 1:
            return TiledSparseRepresentation.pack(forest)
        order, links = links_in_level_order(forest)
        inner = ~forest.is_leaf
        integer = INTEGER_OF[str(forest.threshold.dtype)]
        number = np.where(inner, forest.threshold, forest.leaf_value[:, 0])
        code = np.where(inner, forest.feature + DEFAULT_LEFT * forest.default_left, 0)
        fields = [number.view(integer), code, links]
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
        return linked_buffers(self.trees, INTEGER_OF[self.dtype], self.slots, 3)

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same, and the source number of every leaf."""
        return (*self.value_buffers(), BufferSpec("leaf_id", "int32", (self.slots,)))

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> SparseTree:
        """Load where the tree begins and how deep it is."""
        return SparseTree.opened(self, buffers, tree, hold)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show nodes with their links taken apart."""
        number, code, link = np.ascontiguousarray(arrays["nodes"].T)
        inner = link & 1 > 0
        columns = place_columns(arrays["offset"], self.slots)
        columns |= node_columns(number.view(self.dtype), code, inner, ~inner)
        return {"nodes": {**columns, "left child": link >> 1, "inner": link & 1}}


@dataclass(frozen=True)
class SparseTree(LinkedTree):
    """A walk counts slots from the tree's first one."""

    rep: SparseRepresentation

    def _field(self, node: Expr, field: int) -> Expr:
        return self.load("nodes", node, field)

    def _number(self, node: Expr) -> Expr:
        return tirx.reinterpret(self.rep.dtype, self._field(node, 0))

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load threshold and feature; a leaf tests feature 0."""
        any_left = self.rep.any_default_left
        return decode_test(self._number(node), self._field(node, 1), any_left, hold)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """The left child, or the slot behind it; a leaf itself."""
        return follow(self._field(node, 2).astype("int64"), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Ask for the flag in the link."""
        link = self._field(node, 2)
        return tirx.EQ(link & tirx.const(1, link.ty.dtype), tirx.const(0, link.ty.dtype))

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values lie in the threshold field."""
        return self._number(node)

    def heads(self) -> list[Expr]:
        """The first nodes of the tree."""
        return [self._field(tirx.IntImm("int64", node), 0) for node in (0, 5, 10, 15)]
