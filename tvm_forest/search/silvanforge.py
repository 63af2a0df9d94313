"""SilvanForge's space of GPU schedules: nine parameters, hard filters, Algorithm 1's first points.

takes: size of a problem; gives: points of the paper's space, why one cannot run, what it may cost.

Prasad and others, SOSP 2024: Table 5 and Algorithm 1. The schedule of a point is
`recipes.gpu_template(schedule, **point._asdict())`. Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from ..layouts import ANY_FOREST, COPIED, PADDED, TRANSPOSED
from ..schedule_prims.devices import MAX_BLOCK_THREADS, MAX_SHARED_BYTES


class GpuPoint(NamedTuple):
    """Arguments of `recipes.gpu_template`, see there."""

    rows_tb: int
    rows_thread: int
    tree_threads: int
    cache_rows: bool
    cache_trees: bool
    unroll: bool
    factor: int
    shared: bool | str
    layout: str
    tree_blocks: int = 1


BOTH = (True, False)
TABLE_5: dict[str, tuple[Any, ...]] = {
    "rows_tb": (8, 32, 64),
    "rows_thread": (1, 2, 4),
    "tree_threads": (2, 10, 20, 50),
    "cache_rows": BOTH,
    "cache_trees": BOTH,
    "unroll": BOTH,
    "factor": (1, 2, 4),
    "shared": BOTH,
    "layout": (PADDED, ANY_FOREST, TRANSPOSED),
}
"""The values of each parameter."""


class GpuProblem(NamedTuple):
    """What the filters ask of model and batch.

    Attributes:
        batch: rows of a call.
        features: columns of a row.
        rounds: trees of each class.
        classes: outputs.
        tree_bytes: size of the largest tree in memory.
        number_bytes: size of a value of a row, and of a sum.
        hops: from the root of a tree to its deepest leaf.
        lines: loops into which straight lines cut the trees, each with a copy of its own trees.
    """

    batch: int
    features: int
    rounds: int
    classes: int = 1
    tree_bytes: int = 0
    number_bytes: int = 4
    hops: int = 8
    lines: int = 1


MIN_BLOCK_THREADS, MAX_GRID_BLOCKS = 32, 2**31 - 1
"""Threads of a block, at least, and blocks of a grid on the paper's GPUs."""


def paper_points() -> Iterator[GpuPoint]:
    """Yield the 5,184 points of the paper's space."""
    return (GpuPoint(*values) for values in product(*TABLE_5.values()))


def refuse(point: GpuPoint, problem: GpuProblem) -> str | None:
    """Say why a point cannot run, before anything is compiled; None if it may."""
    rows, threads = point.rows_tb, point.rows_tb // point.rows_thread * point.tree_threads
    shared, blocks = count_shared_bytes(point, problem), -(-problem.batch // rows)
    trees = -(-problem.rounds // point.tree_blocks)
    if rows % point.rows_thread:
        return f"{rows} rows of a block are not dealt out {point.rows_thread} to a thread"
    if not MIN_BLOCK_THREADS <= threads <= MAX_BLOCK_THREADS:
        allowed = f"{MIN_BLOCK_THREADS} to {MAX_BLOCK_THREADS}"
        return f"{threads} threads of a block, allowed are {allowed}"
    if point.tree_threads > trees or point.tree_blocks > max(1, problem.rounds):
        return f"{point.tree_threads} threads share {trees} trees"
    if shared >= MAX_SHARED_BYTES:
        return f"{shared} bytes of shared memory, must be below {MAX_SHARED_BYTES}"
    if point.cache_trees and point.factor > 1:
        return "trees are cached one after the other, and walks of several are interleaved"
    if point.cache_trees and point.layout not in COPIED:
        return f"trees of layout {point.layout!r} cannot be cached"
    return f"{blocks} blocks, a grid holds {MAX_GRID_BLOCKS}" if blocks > MAX_GRID_BLOCKS else None


def count_shared_bytes(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the shared memory of a block: its rows, the trees of an iteration, partial sums."""
    pitch = problem.features | 1  # rows are an odd number of values apart
    rows = point.rows_tb * pitch * problem.number_bytes * point.cache_rows
    trees = point.tree_threads * problem.tree_bytes * point.cache_trees
    trees *= problem.lines if point.unroll else 1
    sums = point.tree_threads * point.rows_tb * problem.classes * problem.number_bytes
    return rows + trees + sums * (point.shared in (True, "shuffle") and point.tree_threads > 1)


PROCESSORS, PROCESSOR_WARPS, PROCESSOR_SHARED_BYTES = 108, 64, 164 * 1024
"""Multiprocessors of the GPU by which points are put in order; of each of them, the most groups of
32 threads, and the shared memory."""

WAIT_CYCLES, ISSUE_CYCLES = 400.0, 6.0
"""Cycles of a hop, two loads one after the other; and cycles in which a multiprocessor does a hop
of a warp while others wait."""

CYCLE_BYTES, SECTOR_BYTES = 1100.0, 32
"""Bytes that memory gives in a cycle, and that it reads at least."""


def estimate_cycles(point: GpuPoint, problem: GpuProblem) -> float:
    """Estimate the cycles of a call, to try the likely points first; nothing is fitted.

    Blocks run in waves, as many at once as warps and shared memory allow. A wave lasts as long as a
    thread waits for its walks, or as long as the hops of all of its warps take to be issued. Memory
    gives rows, a sector for each hop if they are not cached, and partial sums.
    """
    warps = -(-point.rows_tb // point.rows_thread * point.tree_threads // 32)
    blocks = -(-problem.batch // point.rows_tb) * point.tree_blocks
    fit = PROCESSOR_SHARED_BYTES // max(1, count_shared_bytes(point, problem))
    at_once = max(1, min(PROCESSOR_WARPS // warps, fit, 32))
    parts = point.tree_threads * point.tree_blocks
    hops = point.rows_thread * -(-problem.rounds // parts) * problem.classes * problem.hops
    busy = warps * min(at_once, -(-blocks // PROCESSORS))
    wave = max(hops * WAIT_CYCLES / point.factor, hops * busy * ISSUE_CYCLES)
    read = problem.features * problem.number_bytes * point.tree_blocks
    if not point.cache_rows:
        read = problem.rounds * problem.classes * problem.hops * SECTOR_BYTES
    sums = 2 * problem.classes * problem.number_bytes * point.tree_blocks
    sums *= 1 if point.shared and point.tree_threads > 1 else point.tree_threads
    memory = problem.batch * (read + sums) / CYCLE_BYTES
    return -(-blocks // (PROCESSORS * at_once)) * wave + memory


def has_small_blocks(problem: GpuProblem) -> bool:
    """Whether Algorithm 1 tries few rows in a block, with many threads each."""
    return problem.batch < 2048 or problem.features > 128


def first_phase(problem: GpuProblem) -> list[GpuPoint]:
    """Return the 36 points of the first phase of Algorithm 1."""
    small = has_small_blocks(problem)
    rows, threads = ((8, 32), (20, 50)) if small else ((32, 64), (2, 10))
    return [
        GpuPoint(rows_tb, 1, tree_threads, True, False, factor != 1, factor, False, layout)
        for layout in TABLE_5["layout"]
        for rows_tb, tree_threads, factor in product(rows, threads, (1, 2, 4))
    ]
