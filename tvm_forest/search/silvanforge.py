"""SilvanForge's space of GPU schedules: nine parameters, hard filters, Algorithm 1's first points.

takes: size of a problem; gives: the paper's points, why one cannot run, its estimated cost.

Prasad and others, SOSP 2024: Table 5 and Algorithm 1. The schedule of a point is
`recipes.gpu_template(schedule, **point._asdict())`. Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log2
from typing import Any, NamedTuple

from ..layouts import ANY_FOREST, COPIED, PADDED, TRANSPOSED
from ..schedule_prims.devices import MAX_SHARED_BYTES
from .gpu_facts import ASSUMED, GpuFacts


class GpuPoint(NamedTuple):
    """Arguments of `recipes.gpu_template`, documented there."""

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
    tree_chunk: int = 0
    class_on: str = ""

    @property
    def is_alone(self) -> bool:
        """Return whether one thread walks all trees of a class, so that no sums are joined."""
        return self.tree_threads == 1 and self.tree_blocks == 1


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
"""The values of each parameter in the paper's Table 5."""


class GpuProblem(NamedTuple):
    """Counts of model and batch for the filters.

    Attributes:
        batch: number of rows in a call.
        features: number of columns in a row.
        rounds: number of trees of each class, or of all trees if their leaves are vectors.
        classes: number of outputs.
        walks: number of trees in a round: as many as outputs, or 1 for leaf vectors.
        tree_bytes: size of the largest tree in memory.
        number_bytes: bytes of a value of a row, and of a sum.
        hops: number of hops to the deepest leaf.
        lines: number of loops into which unrolled walks split the trees, each with trees of its
            own.
        gpu: facts about the GPU.
        block_bytes: limit of a block's shared memory, exclusive.
    """

    batch: int
    features: int
    rounds: int
    classes: int = 1
    walks: int = 1
    tree_bytes: int = 0
    number_bytes: int = 4
    hops: int = 8
    lines: int = 1
    gpu: GpuFacts = ASSUMED
    block_bytes: int = MAX_SHARED_BYTES


MIN_BLOCK_THREADS, MAX_GRID_BLOCKS = 32, 2**31 - 1
"""Least number of threads in a block, and largest number of blocks, on the paper's GPUs."""

RESERVED_BYTES = 1024
"""Bytes of shared memory that the GPU reserves in addition for each block."""

MAX_BLOCK_CLASSES = 64
"""Largest number of threads of a block along "block.z"."""


def paper_points() -> Iterator[GpuPoint]:
    """Yield the 5,184 points of the paper's space."""
    return (GpuPoint(*values) for values in product(*TABLE_5.values()))


def count_threads(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the threads of a block."""
    classes = problem.walks if point.class_on.startswith("block") else 1
    return point.rows_tb // point.rows_thread * point.tree_threads * classes


def find_obstacle(point: GpuPoint, problem: GpuProblem) -> str | None:
    """Return why a point cannot run, without compiling it; None if nothing speaks against it."""
    rows, threads = point.rows_tb, count_threads(point, problem)
    blocks = -(-problem.batch // rows)
    trees = -(-problem.rounds // point.tree_blocks)
    if rows % point.rows_thread:
        return f"{rows} rows of a block are not dealt out {point.rows_thread} to a thread"
    if not MIN_BLOCK_THREADS <= threads <= problem.gpu.block_threads:
        allowed = f"{MIN_BLOCK_THREADS} to {problem.gpu.block_threads}"
        return f"{threads} threads of a block, allowed are {allowed}"
    if point.tree_threads > trees or point.tree_blocks > max(1, problem.rounds):
        return f"{point.tree_threads} threads share {trees} trees"
    if (shared := count_shared_bytes(point, problem)) >= problem.block_bytes:
        return f"{shared} bytes of shared memory, must be below {problem.block_bytes}"
    if point.cache_trees and point.factor > 1:
        return "trees are cached one after the other, and walks of several are interleaved"
    if point.cache_trees and point.layout not in COPIED:
        return f"trees of layout {point.layout!r} cannot be cached"
    if point.class_on and not 1 < problem.walks <= MAX_BLOCK_CLASSES:
        return f"{problem.walks} classes are not dealt out along {point.class_on}"
    return f"{blocks} blocks, a grid holds {MAX_GRID_BLOCKS}" if blocks > MAX_GRID_BLOCKS else None


def count_shared_bytes(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the shared memory of a block: its rows, the trees of an iteration, partial sums."""
    pitch = problem.features | 1  # rows are an odd number of values apart
    rows = point.rows_tb * pitch * problem.number_bytes * point.cache_rows
    trees = point.tree_threads * problem.tree_bytes * point.cache_trees
    trees *= problem.lines if point.unroll else 1
    kept = count_terms(point, problem) if point.shared == "ordered" else point.tree_threads
    sums = kept * point.rows_tb * count_block_classes(point, problem) * problem.number_bytes
    in_block = point.shared in (True, "shuffle") or _keeps_terms_near(point)
    return rows + trees + sums * (in_block and point.tree_threads > 1)


def count_block_classes(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the classes whose sums a block adds."""
    return 1 if point.class_on.startswith("grid") else problem.classes


def count_terms(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the trees whose terms are kept at a time, for one row and class."""
    return min(problem.rounds, point.tree_chunk or problem.rounds)


def _keeps_terms_near(point: GpuPoint) -> bool:
    return point.shared == "ordered" and point.tree_blocks == 1


def fit_chunk(point: GpuPoint, problem: GpuProblem) -> GpuPoint:
    """Return a point with chunks of trees whose terms fit in shared memory beside the rows.

    Points that do not add in order, or share trees among blocks, are returned unchanged.
    """
    if not _keeps_terms_near(point):
        return point
    whole, one = (point._replace(tree_chunk=x) for x in (0, point.tree_threads))
    least = count_shared_bytes(one, problem)
    if count_shared_bytes(whole, problem) < problem.block_bytes or least >= problem.block_bytes:
        return whole
    per_tree = point.rows_tb * count_block_classes(point, problem) * problem.number_bytes
    more = (problem.block_bytes - 1 - least) // (per_tree * point.tree_threads)
    most = (1 + more) * point.tree_threads
    chunks = -(-problem.rounds // most)  # of about one size
    even = -(-problem.rounds // (chunks * point.tree_threads)) * point.tree_threads
    return point._replace(tree_chunk=even)


HOP_CYCLES, ISSUE_CYCLES = 300.0, 3.8
"""Cycles of a hop, two loads one after the other; and those in which a multiprocessor does a hop of
a warp while others wait."""

INTERLEAVED = 0.72
"""`factor` interleaved walks take `factor ** (1 - INTERLEAVED)` times as long as one."""

MOST_TOGETHER = 10
"""Largest number of interleaved walks of a thread."""

REGISTERS, THREAD_REGISTERS, WALK_REGISTERS = 65_536, 24, 4
"""Number of registers of a multiprocessor, of a thread, and more for each interleaved walk."""

NODE_LINE_CYCLES, ROW_LINE_CYCLES, LINE_BYTES = 0.33, 0.49, 128
"""Cycles of a warp's hop for each cache line of its lanes' nodes, and for
each of their rows, unless cached; bytes of a line."""

LINES_PER_DOUBLING = 0.64
"""Additional lines of a tree touched by twice as many rows, averaged over a depth of 8."""

FAR_CYCLES, NEAR_ROW_BYTES = 4.3, 512
"""Factor of a hop's duration if its row is not cached, and is wider than so many bytes."""

TURN_CYCLES, COPY_ISSUE_CYCLES = 75.0, 7.2
"""Cycles in which each thread of a block copies one value, and additional cycles per warp."""

ADD_CYCLES, ADD_ISSUE_CYCLES = 0.5, 0.8
"""Cycles of a dependent addition whose load is done ahead; and those in which a
multiprocessor keeps a term of 32 rows and adds it."""

MEET_CYCLES, LAUNCH_CYCLES = 400.0, 7300.0
"""Cycles of a barrier for all threads of a block, and of launching a further kernel."""

CYCLE_BYTES, SECTOR_BYTES, CACHE_BYTES = 2800.0, 32, 40e6
"""Memory bandwidth in bytes per cycle, least bytes of a read, and size of the cache."""

OVERLAP = 0.81
"""Share of the shorter of compute and memory time that overlaps the longer."""

DISTINCT = 0.5
"""Share of the sectors read by a row's walks that no other walk has read before."""


def estimate_cycles(point: GpuPoint, problem: GpuProblem) -> float:
    """Estimate the cycles of a call, so that promising points are tried first.

    The constants were fitted to the kernels of five models on an H200 (docs/gpu.md). As many blocks
    run at once as warps and shared memory allow, and others follow. A block takes as long as a
    thread waits for its walks, or as long as issuing the hops of all warps takes; before that its
    threads copy rows, one value each per turn, and afterwards threads of rows add the results in
    order. Memory supplies rows, or the sectors of them that walks read, and partial sums.
    """
    gpu, on_grid = problem.gpu, point.class_on.startswith("grid")
    threads = count_threads(point, problem)
    warps = -(-threads // 32)
    copies = point.tree_blocks * (problem.walks if on_grid else 1)
    blocks = -(-problem.batch // point.rows_tb) * copies
    fit = gpu.shared_bytes // (count_shared_bytes(point, problem) + RESERVED_BYTES)
    fit = min(fit, REGISTERS // (threads * (THREAD_REGISTERS + WALK_REGISTERS * point.factor)))
    each = -(-blocks // gpu.processors)
    at_once = max(1, min(gpu.warps // warps, fit, 32, each))
    parts = point.tree_threads * point.tree_blocks
    walks = (
        point.rows_thread * -(-problem.rounds // parts) * (1 if point.class_on else problem.walks)
    )
    alone = walks // point.factor * point.factor ** (1 - INTERLEAVED) + walks % point.factor
    row_bytes = problem.features * problem.number_bytes
    wait, issue = HOP_CYCLES, ISSUE_CYCLES + NODE_LINE_CYCLES * count_lines(point)
    if not point.cache_rows:
        lines = _count_rows_of_warp(point) * row_bytes / LINE_BYTES
        issue += ROW_LINE_CYCLES * min(32.0, max(1.0, lines))
        wait *= FAR_CYCLES if row_bytes > NEAR_ROW_BYTES else 1.0
    time = problem.hops * max(alone * wait, walks * warps * at_once * issue)
    if point.cache_rows:
        turns = -(-point.rows_tb * problem.features // threads)
        time += turns * (TURN_CYCLES + COPY_ISSUE_CYCLES * warps * at_once)
    time += _estimate_ordered_adds(point, problem, at_once)
    read = _estimate_row_bytes(point, problem, min(at_once * gpu.processors, blocks)) * copies
    sums = 2 * problem.classes * problem.number_bytes * point.tree_blocks
    if point.shared == "ordered":
        sums *= problem.rounds if point.tree_blocks > 1 else 1
    else:
        sums *= 1 if point.shared and point.tree_threads > 1 else point.tree_threads
    kernels = on_grid + (2 if point.tree_blocks > 1 and point.shared != "atomic" else 0)
    walks_and_rows = sorted((time * each / at_once, problem.batch * read / CYCLE_BYTES))
    longer = walks_and_rows[1] + walks_and_rows[0] * (1 - OVERLAP)
    return longer + problem.batch * sums / CYCLE_BYTES + kernels * LAUNCH_CYCLES


def walk_together(point: GpuPoint, problem: GpuProblem) -> GpuPoint:
    """Return the point with the number of interleaved walks that needs the fewest turns.

    In a turn, a thread walks `factor` trees together, or one of those that are left over.
    """
    trees, parts = count_terms(point, problem), point.tree_threads * point.tree_blocks
    walks = (max(1, trees // parts), -(-trees // parts))

    def count_turns(factor: int) -> int:
        return max(walk // factor + walk % factor for walk in walks)

    return point._replace(factor=min(range(2, MOST_TOGETHER + 1), key=count_turns))


def count_lines(point: GpuPoint) -> float:
    """Estimate the cache lines of the nodes that a warp's lanes read in a hop.

    Neighbouring lanes walk rows through one tree, unless their sums are shuffled.
    """
    rows = _count_rows_of_warp(point)
    return 32 / rows * (1 + LINES_PER_DOUBLING * log2(rows))


def _count_rows_of_warp(point: GpuPoint) -> int:
    return 1 if point.shared == "shuffle" else min(32, point.rows_tb // point.rows_thread)


def _estimate_row_bytes(point: GpuPoint, problem: GpuProblem, blocks: int) -> float:
    """Estimate the bytes read from memory per row, while so many blocks run."""
    row_bytes = problem.features * problem.number_bytes
    if point.cache_rows:
        return row_bytes
    read = SECTOR_BYTES * problem.rounds * problem.walks * problem.hops
    is_cached = blocks * point.rows_tb * row_bytes <= CACHE_BYTES
    return min(row_bytes, DISTINCT * read) if is_cached else read


def _estimate_ordered_adds(point: GpuPoint, problem: GpuProblem, blocks: float) -> float:
    """Estimate the cycles in which `blocks` of a multiprocessor add in order."""
    if point.shared != "ordered":
        return 0.0
    if point.tree_blocks > 1:
        return problem.rounds * ADD_CYCLES
    sums = point.rows_tb * count_block_classes(point, problem)
    turns = -(-sums // count_threads(point, problem))
    chunks = -(-problem.rounds // count_terms(point, problem))
    waiting = turns * problem.rounds * ADD_CYCLES + chunks * 2 * MEET_CYCLES
    return max(waiting, -(-sums // 32) * blocks * problem.rounds * ADD_ISSUE_CYCLES)


def has_small_blocks(problem: GpuProblem) -> bool:
    """Return whether Algorithm 1 tries blocks of few rows, with many threads each."""
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
