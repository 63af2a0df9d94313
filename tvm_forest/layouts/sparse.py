"""The sparse layout: the nodes that there are, in level order, siblings side by side.

takes: Forest; gives: SparseLayout and its arrays.

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

from ..forest import Array, Forest
from . import linked_nodes as linked
from . import tir
from .representation import Columns, Expr, Hold, Layout, NodeTest, read_specs, register
from .tile_records import TILE_SIZES
from .tiled_sparse import TiledSparseLayout


@dataclass(frozen=True)
class SparseTree(linked.LinkedTree):
    """A walk counts slots from the tree's first one."""

    layout: SparseLayout

    def _field(self, node: Expr, field: int) -> Expr:
        return self.load("nodes", node, field)

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load threshold and feature; a leaf tests feature 0."""
        any_left = self.layout.any_default_left
        return linked.decode_test(self.leaf_value(node), self._field(node, 1), any_left, hold)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """The left child, or the slot behind it; a leaf itself."""
        return linked.follow(self._field(node, 2).astype("int64"), goes_left)

    def is_leaf(self, node: Expr) -> Expr:
        """Ask for the flag in the link."""
        link = self._field(node, 2)
        return tir.EQ(link & tir.const(1, link.ty.dtype), tir.const(0, link.ty.dtype))

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values lie in the threshold field."""
        return tir.reinterpret(self.layout.dtype, self._field(node, 0))

    def heads(self) -> list[Expr]:
        """The first nodes of the tree."""
        return [self._field(tir.i64(node), 0) for node in (0, 5, 10, 15)]


@register
@dataclass(frozen=True)
class SparseLayout(linked.LinkedLayout):
    """All nodes of all trees, one after the other.

    Attributes:
        dtype: of thresholds and leaf values.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = TiledSparseLayout.name
    tile_sizes: ClassVar[tuple[int, ...]] = (1, *TILE_SIZES)
    access: ClassVar[type[linked.LinkedTree]] = SparseTree
    dtype: str
    any_default_left: bool

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module, or `tiled_sparse` for a forest with tiles."""
        if forest.tile_size > 1:
            return TiledSparseLayout.pack(forest)
        order, links = linked.link_in_level_order(forest)
        inner, dtype = ~forest.is_leaf, str(forest.threshold.dtype)
        integer = linked.INTEGER_OF[dtype]
        number = np.where(inner, forest.threshold, forest.leaf_value[:, 0])
        code = np.where(inner, forest.feature + linked.DEFAULT_LEFT * forest.default_left, 0)
        fields = [number.view(integer), code, links]
        nodes = np.stack([field[order].astype(integer) for field in fields], axis=1)
        arrays = linked.make_linked_arrays(forest, nodes) | {"leaf_id": forest.node_id[order]}
        return cls(read_specs(arrays), dtype, linked.any_default_left(forest)), arrays

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show nodes with their links taken apart."""
        number, code, link = np.ascontiguousarray(arrays["nodes"].T)
        inner = link & 1 > 0
        columns = linked.show_places(arrays["offset"], len(link))
        columns |= linked.show_nodes(number.view(self.dtype), code, inner, ~inner)
        return {"nodes": {**columns, "left child": link >> 1, "inner": link & 1}}
