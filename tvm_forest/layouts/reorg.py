"""The reorg layout: complete trees, interleaved slot by slot.

takes: Forest; gives: ReorgLayout and its arrays.

Slot 0 of all trees is followed by slot 1 of all trees, and so on. GPU threads that walk
neighbouring trees read neighbouring words, at least near the roots. Trees are complete down to
their own depth.

    element = slot * T + tree     threshold[element] = threshold or leaf value
                                  feature[element]   = feature
                                  depth[t]           = steps of a walk in tree t

From the Forest Inference Library of RAPIDS, as "SilvanForge" (SOSP 2024) describes it, where all
trees have the depth of the deepest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..forest import Array, Forest
from ..system.values import dataclass
from . import ANY_FOREST, tir
from . import complete_trees as complete
from .protocol import Buffers, Columns, Expr, Hold, Layout, register


@register
@dataclass(frozen=True)
class ReorgLayout(complete.CompleteLayout):
    """Complete trees whose slots are interleaved."""

    name: ClassVar[str] = "reorg"
    instead: ClassVar[str] = ANY_FOREST

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: padded to the deepest tree, it has too many slots."""
        return complete.find_slot_excess(forest, _count_tree_slots(forest) * forest.n_trees)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        trees = forest.n_trees
        elements = _count_tree_slots(forest) * trees
        fields = complete.fill_slots(forest, elements, lambda tree, slot: slot * trees + tree)
        names = ("threshold", "feature", "leaf_id")
        arrays = {"depth": forest.depths, **dict(zip(names, fields, strict=True))}
        return cls.of(forest, arrays)

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> ReorgTree:
        """Return access to a tree, with its depth."""
        first = hold("first", tree.astype("int64") - self.trees)
        return ReorgTree(self, buffers, first, complete.load_hops(self.depth, buffers, tree, hold))

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return both arrays by slot and tree, for pictures."""
        number, code = arrays["threshold"], arrays["feature"]
        slot, tree = np.divmod(np.arange(len(number)), self.trees)
        place = {"tree": tree, "slot": slot}
        columns = complete.show_slots(number, code, place, arrays["depth"])
        features = ("feature", "missing")
        return {
            "threshold": {x: y for x, y in columns.items() if x not in features},
            "feature": {x: columns[x] for x in ("tree", "slot", *features)},
        }


@dataclass(frozen=True)
class ReorgTree(complete.CompleteTree):
    """Access to a tree whose slots are T elements apart.

    T is the number of trees. A node is the number of its slot, which is multiplied by T for each
    load. If it were the index of an element, LLVM would turn a step by 0 or T into a branch.
    """

    def element(self, node: Expr) -> Expr:
        """Return the index in both buffers of a slot, which is counted from 1 in its tree."""
        return self.first + node * self.layout.trees

    def number(self, node: Expr) -> Expr:
        """Load the threshold of an inner node, or the value of a leaf."""
        return tir.BufferLoad(self.buffers["threshold"], [self.element(node)])

    def code(self, node: Expr) -> Expr:
        """Load the feature of a node, with the flag DEFAULT_LEFT."""
        return tir.BufferLoad(self.buffers["feature"], [self.element(node)])

    def heads(self) -> list[Expr]:
        """Return loads of the top two levels, to prefetch them; others share no cache line."""
        return [self.number(tir.i64(slot)) for slot in (1, 2, 3)]


def _count_tree_slots(forest: Forest) -> int:
    """Return the number of slots of the deepest tree."""
    return int(complete.count_slots(forest.depths.max()))
