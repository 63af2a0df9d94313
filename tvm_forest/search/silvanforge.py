"""SilvanForge's space of GPU schedules: nine parameters, hard filters, Algorithm 1's first points.

takes: size of a problem; gives: points of the paper's space, why one cannot run, what it may cost.

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
    tree_chunk: int = 0
    class_on: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether one thread walks all trees of its rows."""
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
"""The values of each parameter."""


class GpuProblem(NamedTuple):
    """What the filters ask of model and batch.

    Attributes:
        batch: rows of a call.
        features: columns of a row.
        rounds: trees of each class.
        classes: outputs.
        walks: trees that add to every output once: as many as outputs, or 1 for vectors.
        tree_bytes: size of the largest tree in memory.
        number_bytes: size of a value of a row, and of a sum.
        hops: from the root of a tree to its deepest leaf.
        lines: loops into which straight lines cut the trees, each with a copy of its own trees.
        gpu: that the code is for.
        block_bytes: shared memory of a block, which must have less.
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
"""Threads of a block, at least, and blocks of a grid on the paper's GPUs."""

RESERVED_BYTES = 1024
"""Of shared memory, which each block takes besides."""

MAX_BLOCK_CLASSES = 64
"""Threads of a block along "block.z"."""


def paper_points() -> Iterator[GpuPoint]:
    """Yield the 5,184 points of the paper's space."""
    return (GpuPoint(*values) for values in product(*TABLE_5.values()))


def count_threads(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the threads of a block."""
    classes = problem.walks if point.class_on.startswith("block") else 1
    return point.rows_tb // point.rows_thread * point.tree_threads * classes


def find_obstacle(point: GpuPoint, problem: GpuProblem) -> str | None:
    """Say why a point cannot run, before anything is compiled; None if it may."""
    rows, threads = point.rows_tb, count_threads(point, problem)
    shared, blocks = count_shared_bytes(point, problem), -(-problem.batch // rows)
    trees = -(-problem.rounds // point.tree_blocks)
    if rows % point.rows_thread:
        return f"{rows} rows of a block are not dealt out {point.rows_thread} to a thread"
    if not MIN_BLOCK_THREADS <= threads <= problem.gpu.block_threads:
        allowed = f"{MIN_BLOCK_THREADS} to {problem.gpu.block_threads}"
        return f"{threads} threads of a block, allowed are {allowed}"
    if point.tree_threads > trees or point.tree_blocks > max(1, problem.rounds):
        return f"{point.tree_threads} threads share {trees} trees"
    if shared >= problem.block_bytes:
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
    """Count the classes of which a block adds up sums."""
    return 1 if point.class_on.startswith("grid") else problem.classes


def count_terms(point: GpuPoint, problem: GpuProblem) -> int:
    """Count the trees that are added one after the other at a time, of one row and class."""
    return min(problem.rounds, point.tree_chunk or problem.rounds)


def _keeps_terms_near(point: GpuPoint) -> bool:
    return point.shared == "ordered" and point.tree_blocks == 1


def fit_chunk(point: GpuPoint, problem: GpuProblem) -> GpuPoint:
    """Return a point that adds in order with chunks of trees whose terms fit beside the rows."""
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
"""`factor` walks that advance together take `factor ** (1 - INTERLEAVED)` times as long as one."""

MOST_TOGETHER = 10
"""Walks of a thread that advance together, at most."""

REGISTERS, THREAD_REGISTERS, WALK_REGISTERS = 65_536, 24, 4
"""Of a multiprocessor, of a thread, and more for each walk that advances with others."""

NODE_LINE_CYCLES, ROW_LINE_CYCLES, LINE_BYTES = 0.33, 0.49, 128
"""Cycles of a hop of a warp for each line of the cache that the nodes of its lanes lie in, and for
each that their rows lie in, where these are not near."""

LINES_PER_DOUBLING = 0.64
"""Lines that twice as many rows touch of a tree, averaged over the levels of a tree of depth 8."""

FAR_CYCLES, NEAR_ROW_BYTES = 4.3, 512
"""Times as long takes a hop that reads a row that is not near, and wider than that."""

TURN_CYCLES, COPY_ISSUE_CYCLES = 75.0, 7.2
"""Cycles of a turn, in which each thread of a block copies a value; more for each warp."""

ADD_CYCLES, ADD_ISSUE_CYCLES = 0.5, 0.8
"""Cycles of an addition that waits for the one before, its load done ahead; and those in which a
multiprocessor keeps a term of 32 rows and adds it."""

MEET_CYCLES, LAUNCH_CYCLES = 400.0, 7300.0
"""Cycles in which all threads of a block meet, and of a further kernel."""

CYCLE_BYTES, SECTOR_BYTES, CACHE_BYTES = 2800.0, 32, 40e6
"""Bytes that memory gives in a cycle, that it reads at least, and that are cached of it."""

OVERLAP = 0.81
"""Of the time of walks and of that of memory, the shorter one, that passes during the other."""

DISTINCT = 0.5
"""Of the sectors of a row that its walks read, those that no walk has read before."""


def estimate_cycles(point: GpuPoint, problem: GpuProblem) -> float:
    """Estimate the cycles of a call, to try the likely points first.

    The constants are those with which the kernels of five models on an H200 come out best
    (docs/gpu.md). As many blocks run at once as warps and shared memory allow, and others follow. A
    block lasts as long as a thread waits for its walks, or as long as the hops of all warps take to
    be issued; ahead of that its threads copy rows, a value each a turn, and behind it threads of
    rows add in order what the others have found. Memory gives rows, or the sectors that walks read
    of them, and partial sums.
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
    """Return a point whose threads walk their trees in the fewest groups and single walks."""
    trees, parts = count_terms(point, problem), point.tree_threads * point.tree_blocks
    walks = (max(1, trees // parts), -(-trees // parts))

    def count_turns(factor: int) -> int:
        return max(walk // factor + walk % factor for walk in walks)

    return point._replace(factor=min(range(2, MOST_TOGETHER + 1), key=count_turns))


def count_lines(point: GpuPoint) -> float:
    """Estimate the lines of the cache in which the nodes lie that the lanes of a warp read.

    Lanes next to each other walk rows through one tree, unless their sums are shuffled.
    """
    rows = _count_rows_of_warp(point)
    return 32 / rows * (1 + LINES_PER_DOUBLING * log2(rows))


def _count_rows_of_warp(point: GpuPoint) -> int:
    return 1 if point.shared == "shuffle" else min(32, point.rows_tb // point.rows_thread)


def _estimate_row_bytes(point: GpuPoint, problem: GpuProblem, blocks: int) -> float:
    """Estimate what memory gives of a row, while so many blocks run."""
    row_bytes = problem.features * problem.number_bytes
    if point.cache_rows:
        return row_bytes
    read = SECTOR_BYTES * problem.rounds * problem.walks * problem.hops
    is_cached = blocks * point.rows_tb * row_bytes <= CACHE_BYTES
    return min(row_bytes, DISTINCT * read) if is_cached else read


def _estimate_ordered_adds(point: GpuPoint, problem: GpuProblem, blocks: float) -> float:
    """Estimate the cycles of `blocks` of a multiprocessor that add in order."""
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
