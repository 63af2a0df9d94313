"""Emits the decision of a row at a node, or at all nodes of a tile.

takes: a TreeAccess, a node, a row; gives: expressions.

A tile is decided in one of three forms. With vectors, for LLVM:

    x       = pick(row, features of the tile)
    outcome = bits(x < thresholds of the tile)

Node by node, if lanes are rows or another compiler is used:

    outcome = (x0 < threshold 0) << 0 | (x1 < threshold 1) << 1 | ...

By a team of GPU threads, each of which decides one node:

    outcome = ballot(x < threshold of node lane)
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...layouts.protocol import NodeTest, TreeAccess
from ...schedule_prims.devices import count_team
from ...system.values import dataclass
from .. import ops
from .vectors import Vectors

LoadedTests = list[tuple[Any, NodeTest]]
"""The tests that a walk loads at a node, as pairs (value of the row, test)."""


@dataclass(frozen=True)
class Comparer:
    """Compares rows with nodes.

    Attributes:
        comparison: "<" or "<=".
        vectors: vector operations for the tests of tiles, or None.
        at_once: whether all fields of a node come with one load, as suits GPUs.
        by_team: whether a team of threads decides a tile together.
    """

    comparison: str
    vectors: Vectors | None
    at_once: bool = False
    by_team: bool = False

    @classmethod
    def on(cls, comparison: str, abilities: frozenset[str] | None) -> Comparer:
        """Return a comparer for a CPU with these LLVM features, or for a GPU if they are None."""
        if abilities is None:
            return cls(comparison, None, at_once=True)
        return cls(comparison, Vectors(abilities))

    def wrap(self, body: tirx.Stmt) -> tirx.Stmt:
        """Attach the text of the vector functions to a statement that calls them."""
        return body if self.vectors is None else self.vectors.wrap(body)

    def load(self, access: TreeAccess, node: Any, row: Any, hold: Any) -> LoadedTests:
        """Load the tests at `node`, and the values of the row that they compare."""
        size = access.tile_size
        if size == 1:
            tests = [(access.test_at_once if self.at_once else access.test)(node, hold)]
        elif self.by_team:
            tests = [access.member(node, ops.team_lane(), hold)]
        elif self.vectors is not None:
            test = access.test(node, hold)
            return [(hold("x", self.vectors.pick(row, test.feature)), test)]
        else:
            tests = [access.member(node, place, hold) for place in range(size)]
        *head, first = row.indices
        return [
            (hold("x", row.source[[*head, first + hold("feature", x.feature)]]), x) for x in tests
        ]

    def outcome(self, access: TreeAccess, loaded: LoadedTests) -> Any:
        """Return whether the row goes left; for a tile, an int32 whose bit i says so of node i."""
        if access.tile_size == 1:
            return self.goes_left(*loaded[0])
        if self.by_team:
            return ops.ballot(self.goes_left(*loaded[0]), count_team(access.tile_size))
        if self.vectors is not None:
            return self._bits(self.vectors, *loaded[0])
        zero: Any = tirx.IntImm("int32", 0)
        total = zero
        for place, (value, test) in enumerate(loaded):
            bit = tirx.IntImm("int32", 1 << place)
            total = total | tirx.Select(self.goes_left(value, test), bit, zero)
        return total

    def goes_left(self, value: Any, test: NodeTest) -> Any:
        """Return whether a value goes left.

        Ordered comparisons are false for NaN, so NaN goes right unless the default side is left.
        """
        less = value < test.threshold if self.comparison == "<" else value <= test.threshold
        if test.default_left is None:
            return less
        return tirx.Or(less, tirx.And(test.default_left, tirx.isnan(value)))

    def _bits(self, vectors: Vectors, value: Any, test: NodeTest) -> Any:
        threshold = test.threshold
        if value.ty.dtype != threshold.ty.dtype:  # TIR's own comparisons would convert them
            wide = f"float64x{tvm.DataType(value.ty.dtype).lanes}"
            value, threshold = value.astype(wide), threshold.astype(wide)
        left = vectors.bits("olt" if self.comparison == "<" else "ole", value, threshold)
        if test.default_left is None:
            return left
        return left | (vectors.bits("uno", value, value) & test.default_left)
