"""The array layout: every tree is complete down to its own depth, children at 2i + 1 and 2i + 2.

takes: Forest; gives: ArrayLayout and its arrays.

A leaf above the last level is padded: the slots below it test feature 0 and lead to copies of the
leaf, so a walk takes as many steps as its tree is deep, without asking whether it is done.

    slot    0 1 2 3 4 5 6         offset[t]     = first slot of tree t
    level   0 1 1 2 2 2 2         depth[t]      = steps of a walk in tree t
                                  nodes[slot]   = (threshold or leaf value, feature)

Threshold and feature lie side by side, as integers of the threshold's width, so that a node is one
cache line away and not two.

From "SilvanForge" (SOSP 2024), section 5, array representation; the padding is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..forest import Array, Forest
from . import complete_trees as complete
from . import tir
from .linked_nodes import INTEGER_OF, show_places
from .representation import Buffers, Columns, Expr, Hold, Layout, register
from .sparse import SparseLayout
from .tile_records import TILE_SIZES
from .tiled_array import TiledArrayLayout


@register
@dataclass(frozen=True)
class ArrayLayout(complete.CompleteLayout):
    """Complete trees in level order, as an array of structures."""

    name: ClassVar[str] = TiledArrayLayout.name
    instead: ClassVar[str] = SparseLayout.name
    tile_sizes: ClassVar[tuple[int, ...]] = (1, *TILE_SIZES)
    numbers_nodes: ClassVar[bool] = True

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why not: a tree is so deep that its complete form does not fit."""
        if forest.tile_size > 1:
            return TiledArrayLayout.unfit(forest)
        return complete.find_slot_excess(forest, int(complete.count_slots(forest.depths).sum()))

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module, or `tiled_array` for a forest with tiles.

        Raises:
            BuildError: see `unfit`.
        """
        if forest.tile_size > 1:
            return TiledArrayLayout.pack(forest)
        cls.check(forest)
        sizes = complete.count_slots(forest.depths)
        offset, slots = np.cumsum(sizes) - sizes, int(sizes.sum())
        filled = complete.fill_slots(forest, slots, lambda tree, slot: offset[tree] + slot)
        integer = INTEGER_OF[str(forest.threshold.dtype)]
        fields = [filled.number.view(integer), filled.code.astype(integer)]
        arrays: dict[str, Array] = {
            "offset": offset,
            "depth": forest.depths.astype(np.int32),
            "nodes": np.stack(fields, axis=1),
            "leaf_id": filled.leaf_id,
        }
        return cls.of(forest, arrays)

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> ArrayTree:
        """Load where the tree begins and how deep it is."""
        first = hold("first", tir.BufferLoad(buffers["offset"], [tree]) - 1)
        return ArrayTree(self, buffers, first, complete.load_hops(self.depth, buffers, tree, hold))

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show nodes by tree and slot."""
        number, code = np.ascontiguousarray(arrays["nodes"].T)
        place = show_places(arrays["offset"], len(number))
        columns = complete.show_slots(number.view(self.dtype), code, place, arrays["depth"])
        return {"nodes": columns}


@dataclass(frozen=True)
class ArrayTree(complete.CompleteTree):
    """The slots of a tree follow each other."""

    def element(self, node: Expr) -> Expr:
        """Slots stand one behind the other."""
        return self.first + node

    def number(self, node: Expr) -> Expr:
        """Read the first field as a float."""
        bits = tir.BufferLoad(self.buffers["nodes"], [self.element(node), 0])
        return tir.reinterpret(self.layout.dtype, bits)

    def code(self, node: Expr) -> Expr:
        """Load the second field."""
        return tir.BufferLoad(self.buffers["nodes"], [self.element(node), 1])

    def heads(self) -> list[Expr]:
        """Return the top five levels."""
        return [self.number(tir.i64(node)) for node in (1, 8, 16, 24)]
