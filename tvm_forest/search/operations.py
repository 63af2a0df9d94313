"""Counts operations for many points of spaces at once.

takes: points, each with a batch size; gives: tables of points; operations with their counts, for
walks by bit planes, permutes, octets and pieces. `hop_walks` counts those of walks hop by hop.

Spaces have thousands of points, which differ in few properties: common properties are found once
for all models of a kind, so that a model is counted by numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..forest import Array
from ..layouts import BIT_PLANES, OCTETS, PERMUTED, PIECES
from .space import Point
from .workload import LINE_BYTES, Workload

LEVELS_OF_CACHE = ("second", "third", "memory")
"""Names of the places where loads that miss the first, second or third cache find their data."""

FETCHED_BYTES = 8192
"""Largest tree, in bytes, that hardware prefetches as a whole, since trees are adjacent."""

PERMUTED_ROWS, PERMUTED_COLUMNS = 16, 8
"""Number of rows that permutes walk together, present or not, and of columns that one instruction
looks up."""

OCTET, OCTET_LEVELS, OCTET_BYTES = 8, 3, 6.0
"""Trees in an octet, levels of a tile, and approximate bytes of a slot."""

PIECE_LEVELS, LINE_LEVELS, PIECE_BYTES = 3.75, 3.0, 5.35
"""Levels that a step through pieces decides on average and at least; bytes of a node, leaves
included. The average is high because walks mostly take the larger side."""

OBLIVIOUS_LEAVES = 0.5
"""Relative cost of a leaf if all trees are oblivious: several are added before a sum is stored."""

CODED_ROWS = 64
"""Number of rows that become planes together."""

SLOT_BYTES, SELECTION_BYTES = 4.0, 8.0
"""Sizes of a slot of a complete tree, and of a selection, in bytes."""

NODE_BYTES = 4.0
"""Bytes of an inner node of trees that are walked by permutes."""


class Ways(NamedTuple):
    """A property of many points, by its distinct values.

    Attributes:
        each: the distinct values.
        of: int (P,), index of each point's value.
    """

    each: list[Any]
    of: Array

    @classmethod
    def among(cls, values: Iterable[Hashable]) -> Ways:
        """Find the distinct values among P values, in the order in which they first occur."""
        places: dict[Hashable, int] = {}
        of = [places.setdefault(value, len(places)) for value in values]
        return cls(list(places), np.array(of, np.int64))

    def spread(self, values: Iterable[float]) -> Array:
        """Return float64 (P,), given a number for each distinct value."""
        return np.array(list(values), np.float64)[self.of]


class Operation(NamedTuple):
    """An operation, whose name may differ from point to point.

    Attributes:
        names: names of the operation.
        of: int (P,), index of each point's name.
        counts: float64 (P,), count per row of each point; one number if all are equal.
    """

    names: list[str]
    of: Array
    counts: Array | float


class PointTable:
    """A table of P points with their batch sizes.

    Attributes:
        batch: int (P,), number of rows in a call.
        blocks: block size, in rows; 0 for the whole batch.
        order: the kind of the innermost loop.
        alike: an empty property, which all points share, for operations of one name.
    """

    def __init__(self, points: Sequence[Point], batches: Sequence[int]) -> None:
        """Group P points by their common properties; `batches` are their batch sizes."""
        self.batch = np.array(batches)
        self.blocks = Ways.among(point.block for point in points)
        self.order = Ways.among(point.order for point in points)
        self.alike = Ways.among("" for _ in points)

    @property
    def block(self) -> Array:
        """Int (P,), block size in rows; 0 for the whole batch."""
        return np.array(self.blocks.each)[self.blocks.of]

    def name(self, name: str, counts: Array | float) -> Operation:
        """Return an operation with the same name for all points."""
        return self.name_by(self.alike, name, counts)

    def name_by(self, ways: Ways, name: str, counts: Array | float) -> Operation:
        """Return an operation whose name ends with a property of the point."""
        return Operation([f"{name}{way}" for way in ways.each], ways.of, counts)

    def count_leaves(
        self, work: Workload, ways: Ways, share: Array | float = 1.0
    ) -> Iterator[Operation]:
        """Yield the look-ups of leaves, `share` for each tree; their names end with `ways`."""
        trees = float(work.forest.n_trees)
        if work.forest.has_vectors:
            yield self.name_by(ways, "leaf vector ", trees * share)
            yield self.name("leaf vector value", trees * work.forest.n_outputs * share)
        else:
            yield self.name_by(ways, "leaf ", trees * share)


def count_coding(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the operations that code a row: searches, look-ups of memberships, and cache misses.

    A search costs more if rows are coded one by one.
    """
    alone = [" alone" if order == "trees" else "" for order in table.order.each]
    for steps, columns in work.columns_by_steps.items():
        names = [f"code {work.forest.row_dtype} {min(steps, 3)}{way}" for way in alone]
        yield Operation(names, table.order.of, float(columns))
    yield table.name("code membership", work.membership_columns)
    yield table.name("wait row line, code", work.count_lines(work.forest.searches))
    cuts = work.cut_bytes
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        yield table.name(f"wait cuts {level}", max(0.0, cuts - capacity) / LINE_BYTES)


def count_planes(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the operations of bit planes; a block costs the same whether it is full or not."""
    rows, plane = table.batch / -(-table.batch // table.block), table.block / 8
    slots, selections, tests = work.slots, work.selections, work.tests
    asked = tests if work.forest.has_vectors else tests - work.compared_tests
    kind = "vector test" if work.forest.has_vectors else "test"
    named = sum(x.named for x in work.forest.set_counts)
    counts = {"slot": slots, "selection": selections, kind: asked, "category": named}
    for name, count in counts.items():
        yield table.name_by(table.blocks, f"walk {name} ", count / rows)
    yield table.name(f"start {BIT_PLANES}", 1 / rows)
    size = SLOT_BYTES * slots + SELECTION_BYTES * selections
    size += work.threshold_bytes * work.leaves + work.vectors.nbytes
    lines = (slots + 3 * selections) * plane / LINE_BYTES
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = np.maximum(0.0, 1 - capacity / np.maximum(1.0, tests * plane))
        yield table.name(f"wait plane {level}", far * lines / rows)
        share = max(0.0, 1 - capacity / size)
        yield table.name(f"wait model {level}", share * size / LINE_BYTES / rows)
    share = OBLIVIOUS_LEAVES if work.all_oblivious else 1.0
    ways = Ways([f"{BIT_PLANES} {work.leaf_look_up}"], table.alike.of)
    yield from table.count_leaves(work, ways, share * (-(-rows // 64) * 64 / rows))
    yield from _count_panels(table, work)


def _count_panels(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the coding of panels: 64 rows together, present or not; categories row by row."""
    dtype, counts = work.forest.row_dtype, Counter[str]()
    by_permutes = dtype == "float32" and work.target.has("avx512f")
    counts["unit"] += work.units
    counts["cut"] += work.compared_tests
    for (steps, levels), columns in work.searched_columns.items():
        way = f"{levels} levels" if steps == 2 and by_permutes else f"{steps} in panels"
        counts[way] += columns
    waste = -(-table.batch // CODED_ROWS) * CODED_ROWS / table.batch
    for way, count in counts.items():
        yield table.name(f"code {dtype} {way}", waste * count)
    yield table.name(f"code {dtype} 1", len(work.forest.set_counts))


def count_permutes(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the operations of permutes; a group costs the same whether it is full or not."""
    waste = -(-table.batch // PERMUTED_ROWS) * PERMUTED_ROWS / table.batch
    hops = work.hops * waste
    yield table.name(f"walk {PERMUTED}", hops)
    yield table.name(f"walk {PERMUTED} wide", work.wide_hops * waste)
    columns = -(-work.forest.searches // PERMUTED_COLUMNS)
    yield table.name(f"walk {PERMUTED} columns", hops * columns)
    rows = np.minimum(table.batch, table.block)
    size = NODE_BYTES * (work.forest.n_nodes - work.leaves) + work.threshold_bytes * work.leaves
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = max(0.0, 1 - capacity / size) * work.forest.n_trees
        yield table.name(f"wait {level} {PERMUTED}", far / rows)
    ways = Ways([f"{PERMUTED} {work.leaf_table or 'far'}"], table.alike.of)
    yield from table.count_leaves(work, ways, waste)
    yield table.name(f"start {PERMUTED}", work.hops / np.minimum(table.block, table.batch))
    yield from count_coding(table, work)


def count_octets(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the operations of octets; trees are completed to the depth of the deepest."""
    tiers = -(-max(1, work.deepest) // OCTET_LEVELS)
    classes = work.forest.round_size
    octets = classes * -(-work.forest.n_trees // (OCTET * classes))
    yield table.name("walk octets", octets * tiers + 2.0 * classes * (tiers + 1))
    yield from table.count_leaves(work, Ways([OCTETS], table.alike.of))
    slots = 2.0 ** (work.deepest + 1) * work.forest.n_trees / work.forest.n_nodes
    size = OCTET_BYTES * slots
    where = "small octets" if OCTET * size * work.mean_nodes <= FETCHED_BYTES else OCTETS
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = work.count_far_nodes(capacity, 1, size, work.code_bytes)
        yield table.name(f"wait {level} {where}", far / OCTET_LEVELS)
    yield from count_coding(table, work)


def count_pieces(table: PointTable, work: Workload) -> Iterator[Operation]:
    """Yield the operations of pieces: each walk ends at its leaf, while others go on."""
    steps = work.count_hops(1, PIECE_LEVELS)
    yield table.name(f"walk {PIECES}", steps)
    held = 64 if work.target.has("avx512f") else 32 if work.target.has("avx2") else 0
    if work.forest.n_features > held:  # registers do not hold a row
        yield table.name(f"walk {PIECES} loads", steps)
    yield from table.count_leaves(work, Ways([PIECES], table.alike.of))
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = work.count_far_nodes(capacity, 1, PIECE_BYTES, work.row_bytes)
        yield table.name(f"wait {level} {PIECES}", far / LINE_LEVELS)
