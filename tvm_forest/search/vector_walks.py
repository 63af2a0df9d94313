"""How often walks by bit planes, permutes and octets do each operation.

takes: tables of points, Workload; gives: operations with their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..layouts import BIT_PLANES, OCTETS, PERMUTED
from .operations import (
    FETCHED_BYTES,
    LEVELS_OF_CACHE,
    Operation,
    Table,
    Ways,
    count_coding,
)
from .workload import LINE_BYTES, Workload

PERMUTED_ROWS, PERMUTED_COLUMNS = 16, 8
"""Rows that walk together by permutes, present or not, and columns of theirs that one instruction
looks up."""

OCTET, OCTET_LEVELS, OCTET_BYTES = 8, 3, 6.0
"""Trees that a row walks through at once, levels of their tiles, and bytes of a slot, about."""

OBLIVIOUS_LEAVES = 0.5
"""What a leaf takes of the time of others where several trees are added before a sum is stored."""

CODED_ROWS = 64
"""Rows that become planes together."""

SLOT_BYTES, SELECTION_BYTES = 4.0, 8.0
"""Bytes of a slot and of a selection."""


def count_planes(table: Table, work: Workload) -> Iterator[Operation]:
    """Blocks cost the same whether they are full or not, but for the leaves of the last words."""
    rows, plane = np.minimum(table.batch, table.block), table.block / 8
    slots, selections, tests = work.slots, work.selections, work.tests
    asked = tests if work.forest.has_vectors else tests - work.compared_tests
    kind = "vector test" if work.forest.has_vectors else "test"
    named = sum(x.named for x in work.forest.set_counts)
    counts = {"slot": slots, "selection": selections, kind: asked, "category": named}
    for name, count in counts.items():
        yield table.name_by(table.blocks, f"walk {name} ", count / rows)
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


def _count_panels(table: Table, work: Workload) -> Iterator[Operation]:
    """64 rows are coded together, whether they are there or not; categories row by row."""
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


def count_permutes(table: Table, work: Workload) -> Iterator[Operation]:
    """Rows of a group cost the same whether they are there or not."""
    waste = -(-table.batch // PERMUTED_ROWS) * PERMUTED_ROWS / table.batch
    hops = work.hops * waste
    yield table.name(f"walk {PERMUTED}", hops)
    yield table.name(f"walk {PERMUTED} wide", work.wide_hops * waste)
    columns = -(-work.forest.searches // PERMUTED_COLUMNS)
    yield table.name(f"walk {PERMUTED} columns", hops * columns)
    ways = Ways([f"{PERMUTED} {work.leaf_table or 'far'}"], table.alike.of)
    yield from table.count_leaves(work, ways, waste)
    yield table.name(f"start {PERMUTED}", work.hops / np.minimum(table.block, table.batch))
    yield from count_coding(table, work)


def count_octets(table: Table, work: Workload) -> Iterator[Operation]:
    """Trees are completed as deep as the deepest; two octets of each class wait at each tier."""
    tiers = -(-max(1, work.deepest) // OCTET_LEVELS)
    classes = work.forest.round_size
    octets = classes * -(-work.forest.n_trees // (OCTET * classes))
    yield table.name("walk octets", octets * tiers + 2.0 * classes * (tiers + 1))
    yield from table.count_leaves(work, Ways([OCTETS], table.alike.of))
    slots = 2.0 ** (work.deepest + 1) * work.forest.n_trees / work.forest.n_nodes
    size = OCTET_BYTES * slots
    where = "small trees" if OCTET * size * work.mean_nodes <= FETCHED_BYTES else "octets"
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = work.count_far_nodes(capacity, 1, size, work.code_bytes)
        yield table.name(f"wait {level} {where}", far / OCTET_LEVELS)
    yield from count_coding(table, work)
