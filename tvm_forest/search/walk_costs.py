"""What a row costs when rows walk together, and when blocks of rows are bit planes.

takes: Workload; gives: nanoseconds on one core.

By bit planes a block costs the same whether it is full or not, so they pay from some number of rows
on. The times of single steps, `StepTimes`, are those of the vendor of the CPU: those of Zen 4 are
measured; those of a Xeon with AMX are fitted to exhaustive searches (`benchmarks/search.py`) where
these tell them, and are Zen 4's otherwise. Both CPUs have AVX-512. Only the ratios of the times
decide between schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .workload import Workload

ROWS = 64
"""Rows of a block of rows that walk together through nodes that compare ranks."""

SMALLEST_BLOCK, SMALL_BLOCK, LARGE_BLOCK = 64, 256, 512
"""Rows of a block by bit planes: for batches of less than 128 rows that gain by it, for batches of
less than 512 rows, and for larger ones. Each size is code of its own to compile."""

MAX_LITTLE_SHARE = 0.15
"""Cost of a block over that of coding its rows, up to which large batches go in `SMALL_BLOCK`."""


class StepTimes(NamedTuple):
    """What steps take, in nanoseconds unless a line says otherwise; by default on Zen 4.

    Attributes:
        hop: a hop of a row, where rows walk together through nodes that compare ranks.
        far_hop: the same where the first-level cache does not hold the codes of 64 rows.
        permuted_hop: the same where 16 rows walk through 4 trees by permutes.
        permuted_column: what each column of codes adds to a permuted hop.
        slot: a slot of a complete tree, by bit planes, for all rows of a block of 512.
        selection: a selection of a listed tree, for all rows of a block of 512.
        category: adding the plane of a category to that of a set, for all rows of a block of 512.
        block_share: by the rows of a block, its slots, selections and categories as a ratio to
            those of a block of 512 rows; the planes of small blocks stay in nearer caches.
        membership: looking up the code of a row in a membership column.
        float32_code, float64_code: coding one value of a row.
        byte_leaf: looking up and adding a leaf of a row, by bytes in registers.
        leaf: the same, in memory.
        vector_leaf: looking up a leaf that holds a vector.
        vector_value: adding a value of a leaf vector to a sum.
        vector_test: a test, for all rows of a block of 512, in a forest of leaf vectors, whose
            nodes hardly ever share tests.
        lanes_ratio: time of rows in lanes over that of rows that walk together, where trees or
            leaves are large.
        tiles_ratio: the same for rows that walk together through tiles of 8 nodes.
        complete_tiles_together: trees that a single row walks together through tiles of complete
            trees; 0 where tiles that link to each other are faster.
        cache_bytes: size of the first-level cache, in bytes.
        far_block_rows: rows of a block where that cache does not hold the codes of 64 rows; 0 for
            as many as otherwise.
        smallest_block_share: cost of a block of 64 rows by bit planes over that of a block of 256,
            below which batches of 64 to 127 rows go in blocks of 64.
    """

    hop: float = 0.55
    far_hop: float = 0.85
    permuted_hop: float = 0.18
    permuted_column: float = 0.0006
    slot: float = 0.42
    selection: float = 2.7
    category: float = 0.3
    block_share: Mapping[int, float] = MappingProxyType({64: 0.6, 128: 0.6, 256: 0.6, 512: 1.0})
    membership: float = 0.03
    float32_code: float = 1.4
    float64_code: float = 2.5
    byte_leaf: float = 0.15
    leaf: float = 0.6
    vector_leaf: float = 0.9
    vector_value: float = 0.15
    vector_test: float = 8.0
    lanes_ratio: float = 0.7
    tiles_ratio: float = 1.04
    complete_tiles_together: int = 0
    cache_bytes: int = 32 * 1024
    far_block_rows: int = 0
    smallest_block_share: float = 0.5


ZEN_4 = StepTimes()

XEON = ZEN_4._replace(
    hop=0.67,
    far_hop=0.73,
    permuted_hop=0.19,
    permuted_column=0.0026,
    slot=0.6,
    selection=1.64,
    block_share={64: 0.72, 128: 0.63, 256: 0.72, 512: 1.0},
    float32_code=1.23,
    float64_code=2.06,
    byte_leaf=0.12,
    leaf=0.54,
    lanes_ratio=1.16,
    tiles_ratio=0.8,
    complete_tiles_together=4,
    cache_bytes=48 * 1024,
    far_block_rows=16,
    smallest_block_share=1.0,
)

BY_VENDOR = {"AuthenticAMD": ZEN_4, "GenuineIntel": XEON}
"""What steps take, by `Target.vendor`; on the CPUs of other vendors as on Zen 4."""


def rows_per_block(work: Workload, batch: int) -> int:
    """Return the rows of a block by bit planes, for batches of so many rows and more.

    Blocks are small where that serves the batch better, or as well: small blocks leave something to
    do for each core.
    """
    smallest, small = (ns_per_row_by_planes(work, x, batch) for x in (SMALLEST_BLOCK, SMALL_BLOCK))
    if batch < 2 * SMALLEST_BLOCK and smallest < work.step_times.smallest_block_share * small:
        return SMALLEST_BLOCK
    is_little = ns_per_block(work, SMALL_BLOCK) / SMALL_BLOCK < MAX_LITTLE_SHARE * ns_per_row(work)
    return SMALL_BLOCK if is_little or batch < LARGE_BLOCK else LARGE_BLOCK


def ns_per_row_by_planes(work: Workload, block: int, batch: int) -> float:
    """Return the cost of a row by bit planes, in a batch of full blocks, or of part of one."""
    return ns_per_block(work, block) / min(batch, block) + ns_per_row(work)


def ns_per_block(work: Workload, block: int) -> float:
    """Return the cost of a block by bit planes, without what `ns_per_row` counts."""
    times, vectors = work.step_times, work.forest.has_vectors
    steps = times.slot * work.slots + times.selection * work.selections
    steps += (times.vector_test if vectors else times.slot) * work.tests
    leaf = times.byte_leaf if work.has_byte_leaves else times.leaf
    leaves = 0 if vectors else leaf * work.forest.n_trees * block
    named = sum(question.named for question in work.forest.set_counts)
    return (steps + times.category * named) * times.block_share[block] + leaves


def ns_per_row(work: Workload) -> float:
    """Return the cost of coding the values of a row, and of adding its leaf vectors."""
    times, forest = work.step_times, work.forest
    code = times.float32_code if forest.row_dtype == "float32" else times.float64_code
    leaf = times.vector_leaf + times.vector_value * forest.n_outputs if forest.has_vectors else 0
    return code * forest.searches + leaf * forest.n_trees


def ns_per_row_by_hops(work: Workload, permuted: bool) -> float:
    """Return the cost of a row where rows walk together hop by hop, or by permutes."""
    times = work.step_times
    hop = times.hop if has_near_codes(work, times.far_block_rows or ROWS) else times.far_hop
    if permuted:
        hop = times.permuted_hop + times.permuted_column * work.forest.searches
    return hop * work.hops + times.membership * work.membership_columns + ns_per_row(work)


def has_near_codes(work: Workload, rows: int) -> bool:
    """Whether the first-level cache holds the codes of so many rows."""
    return work.code_bytes * rows <= work.step_times.cache_bytes
