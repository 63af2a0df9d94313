"""The reorg layout: the array layout node by node, with the trees side by side.

takes: Forest; gives: ReorgRepresentation and its arrays.

Slot 0 of all trees, then slot 1 of all trees, and so on. Threads that walk neighbouring trees of a
GPU read neighbouring words, at least near the roots. Trees are complete down to their own depth.

    element = slot * T + tree     threshold[element] = threshold or leaf value
                                  feature[element]   = feature
                                  depth[t]           = steps of a walk in tree t

From the Forest Inference Library of RAPIDS, as "SilvanForge" (SOSP 2024) describes it, where all
trees have the depth of the deepest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx

from ..forest import Array, Forest
from .complete_trees import check_slots, fill_slots, slot_columns, slots_of
from .linked_nodes import any_default_left, decode_test
from .representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    NodeTest,
    Representation,
    TreeAccess,
    register,
)


@register
@dataclass(frozen=True)
class ReorgRepresentation(Representation):
    """Complete trees, interwoven.

    Attributes:
        trees: T.
        slots: slots of the deepest tree.
        dtype: of thresholds and leaf values.
        uniform_depth: depth of all trees if it is the same, else None.
        any_default_left: whether some node sends a missing value to the left.
    """

    name: ClassVar[str] = "reorg"
    trees: int
    slots: int
    dtype: str
    uniform_depth: int | None
    any_default_left: bool

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: the forest is too large when all trees are as long as the deepest.
        """
        trees, depth = forest.n_trees, forest.depths
        slots = int(slots_of(depth.max()))
        check_slots(cls.name, forest, slots * trees)
        filled = fill_slots(forest, slots * trees, lambda tree, slot: slot * trees + tree)
        arrays: dict[str, Array] = {
            "depth": depth,
            "threshold": filled.number,
            "feature": filled.code,
            "leaf_id": filled.leaf_id,
        }
        uniform = int(depth[0]) if np.all(depth == depth[0]) else None
        dtype = str(forest.threshold.dtype)
        return cls(trees, slots, dtype, uniform, any_default_left(forest)), arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return depths, thresholds (leaf values in the last level) and features."""
        elements = (self.slots * self.trees,)
        return (
            BufferSpec("depth", "int32", (self.trees,)),
            BufferSpec("threshold", self.dtype, elements),
            BufferSpec("feature", "int32", elements),
        )

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same, and the source number of every leaf."""
        ids = BufferSpec("leaf_id", "int32", (self.slots * self.trees,))
        return (*self.value_buffers(), ids)

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> ReorgTree:
        """Load how deep the tree is."""
        first = hold("first", tree.astype("int64") - self.trees)
        if self.uniform_depth is not None:
            hops: Expr = tirx.IntImm("int32", self.uniform_depth)
        else:
            hops = hold("hops", tirx.BufferLoad(buffers["depth"], [tree]))
        return ReorgTree(self, buffers, first, hops)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show both arrays by slot and tree."""
        slot, tree = np.divmod(np.arange(self.slots * self.trees), self.trees)
        fields = (arrays["threshold"], arrays["feature"])
        columns = slot_columns(*fields, {"tree": tree, "slot": slot}, arrays["depth"])
        features = ("feature", "missing")
        return {
            "threshold": {x: y for x, y in columns.items() if x not in features},
            "feature": {x: columns[x] for x in ("tree", "slot", *features)},
        }


@dataclass(frozen=True)
class ReorgTree(TreeAccess):
    """A walk counts slots from 1, so that the children of i are 2i and 2i + 1.

    In units of T elements no load would multiply by T, but LLVM makes a jump of a step by 0 or T:
    4 times slower on `airline` at batch 4096.
    """

    rep: ReorgRepresentation
    buffers: Buffers
    first: Expr
    hops: Expr
    root: Expr = tirx.IntImm("int64", 1)
    padded: ClassVar[bool] = True

    def _load(self, name: str, node: Expr) -> Expr:
        return tirx.BufferLoad(self.buffers[name], [self.first + node * self.rep.trees])

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load threshold and feature."""
        number, code = self._load("threshold", node), self._load("feature", node)
        return decode_test(number, code, self.rep.any_default_left, hold)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """2i on the left, 2i + 1 on the right."""
        return node * 2 + tirx.Not(goes_left).astype("int64")

    def is_leaf(self, node: Expr) -> Expr:
        """Leaves lie in the last level."""
        return node >= tirx.shift_left(tirx.IntImm("int64", 1), self.hops.astype("int64"))

    def leaf_value(self, node: Expr) -> Expr:
        """Leaf values lie in the threshold field."""
        return self._load("threshold", node)

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        return self._load("leaf_id", node)

    def heads(self) -> list[Expr]:
        """Return the top two levels; below them every node is in a line of its own."""
        return [self._load("threshold", tirx.IntImm("int64", slot)) for slot in (1, 2, 3)]
