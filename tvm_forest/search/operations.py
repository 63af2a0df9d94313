"""How often operations are done at many points of spaces at once.

takes: points, each with the size of a batch; gives: tables of points, operations with their counts.

Spaces have thousands of points, which differ in few ways: what some have in common is found once
for all models of a kind, so that a model is counted by numpy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..forest import Array
from .space import Point
from .workload import LINE_BYTES, Workload

LEVELS_OF_CACHE = ("second", "third", "memory")
"""Where a load is found that the first, second, third cache does not hold."""

FETCHED_BYTES = 8192
"""Bytes of a tree that the CPU fetches as a whole, since trees lie one after the other."""


class Ways(NamedTuple):
    """What many points have in common.

    Attributes:
        each: the different ones.
        of: int (P,), which of them each point has.
    """

    each: list[Any]
    of: Array

    @classmethod
    def among(cls, values: Iterable[Hashable]) -> Ways:
        """Find the different ones of P values, in order."""
        places: dict[Hashable, int] = {}
        of = [places.setdefault(value, len(places)) for value in values]
        return cls(list(places), np.array(of, np.int64))

    def spread(self, values: Iterable[float]) -> Array:
        """Return float64 (P,), given a number for each of the different ones."""
        return np.array(list(values), np.float64)[self.of]


class Operation(NamedTuple):
    """An operation, which points may call by different names.

    Attributes:
        names: of the operation.
        of: int (P,), which of these each point calls it by.
        counts: float64 (P,), how often a point does it for a row.
    """

    names: list[str]
    of: Array
    counts: Array


class Table:
    """Points and the sizes of their batches.

    Attributes:
        batch: int (P,), rows of a call.
        blocks: rows of a block; 0 for the whole batch.
        order: what the innermost loop runs over.
        alike: one way for all.
    """

    def __init__(self, points: Sequence[Point], batches: Sequence[int]) -> None:
        """Find what the points have in common."""
        self.batch = np.array(batches)
        self.blocks = Ways.among(point.block for point in points)
        self.order = Ways.among(point.order for point in points)
        self.alike = Ways.among("" for _ in points)

    @property
    def block(self) -> Array:
        """Int (P,), rows of a block."""
        return np.array(self.blocks.each)[self.blocks.of]

    def name(self, name: str, counts: Array | float) -> Operation:
        """Return an operation that all points call by the same name."""
        return self.name_by(self.alike, name, counts)

    def name_by(self, ways: Ways, name: str, counts: Array | float) -> Operation:
        """Return an operation whose name ends with the way of a point."""
        counts = np.broadcast_to(np.float64(counts), len(ways.of))
        return Operation([f"{name}{way}" for way in ways.each], ways.of, counts)

    def count_leaves(
        self, work: Workload, ways: Ways, share: Array | float = 1.0
    ) -> Iterator[Operation]:
        """Yield what is done where walks end, by ways that end the names; `share` of it counts."""
        trees = float(work.forest.n_trees)
        if work.forest.has_vectors:
            yield self.name_by(ways, "leaf vector ", trees * share)
            yield self.name("leaf vector value", trees * work.forest.n_outputs * share)
        else:
            yield self.name_by(ways, "leaf ", trees * share)


def count_coding(table: Table, work: Workload) -> Iterator[Operation]:
    """Values of a row that are searched, by the steps of the search; rows alone cost more."""
    alone = [" alone" if order == "trees" else "" for order in table.order.each]
    for steps, columns in work.columns_by_steps.items():
        names = [f"code {work.forest.row_dtype} {min(steps, 3)}{way}" for way in alone]
        yield Operation(names, table.order.of, np.full(len(table.batch), float(columns)))
    yield table.name("code membership", work.membership_columns)
    yield table.name("wait row line, code", work.count_lines(work.forest.searches))
    cuts = work.cut_bytes
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        yield table.name(f"wait cuts {level}", max(0.0, cuts - capacity) / LINE_BYTES)
