"""What a row costs when rows walk together, and when blocks of rows are bit planes.

takes: Workload; gives: nanoseconds on one core.

By bit planes a block costs the same whether it is full or not, so they pay from some number of rows
on. What single steps take is in `step_times`.
"""

from __future__ import annotations

from .workload import Workload

ROWS = 64
"""Rows of a block of rows that walk together through nodes that compare ranks."""

SMALLEST_BLOCK, SMALL_BLOCK, LARGE_BLOCK = 64, 256, 512
"""Rows of a block by bit planes: for batches of less than 128 rows that gain by it, for batches of
less than 512 rows, and for larger ones. Each size is code of its own to compile."""

MAX_LITTLE_SHARE = 0.15
"""Cost of a block over that of coding its rows, up to which large batches go in `SMALL_BLOCK`."""


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
