"""Chooses the default schedules for GPUs, which keep the order of additions.

takes: Workload; gives: Schedules by the smallest batch that each serves.

For very large batches each row has a thread, which walks it as ranks through trees in shared
memory, if the forest fits (`gpu_shared_ranks`) and has enough trees for its columns. Otherwise
several threads share the trees of a row, and their results are added tree by tree. How many threads
is decided by `silvanforge.estimate_cycles`: the point with the lowest estimate. These points have
one layout, which is stored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ..layouts import ANY_FOREST, BANKED, PADDED
from ..layouts.row_codes.banks import LANES
from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch
from ..schedule_prims.devices import MAX_BLOCK_THREADS, MAX_SHARED_BYTES
from ..schedule_prims.recipes import gpu_shared_ranks, gpu_template
from . import silvanforge
from .gpu_facts import facts_of
from .silvanforge import GpuPoint, GpuProblem
from .space import inner_loops
from .workload import Workload

BATCHES = (1, 32, 512, 4096, 65_536, 1_000_000)
"""Batch sizes for which the cheapest point is chosen."""

ALIKE = 1.05
"""Ratio to the cheapest price up to which the previous batch size's point is kept,
since every further point is more code to compile."""

MAX_CODE_BYTES = 2
"""Size of the largest rank, in bytes."""

BLOCK_ROWS = (128, 64, 32)
"""Rows, and threads, of a block without threads for trees: the first size whose rows fit in
shared memory."""

SHARED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Possible numbers of rows in a block whose threads share the trees."""

MAX_SLOTS_PER_NODE = 32
"""Largest number of slots of complete trees per node; with more, a linked layout is used."""

RANKS = GpuPoint(256, 1, 1, True, True, True, 8, False, BANKED)
"""The default point of `gpu_shared_ranks`: on an H100 the fastest of 27 at 65,536 rows of
`airline` and `higgs`, or within 2 % of it."""

MANY_RANKS = RANKS._replace(rows_tb=512, factor=4)
"""The default for a million rows, where all processors have many blocks, likewise within 2 %."""

MAX_COLUMNS_PER_TREE = 0.45
"""Largest number of columns per tree for ranks: a rank costs as much as 9 hops, and walks by ranks
save 3 hops of 8."""

MIN_RANKED_ROWS = 65_536
"""Smallest batch for which `RANKS` is a default: most multiprocessors have two blocks."""

WALK_TREE_BYTES = 4 << 10
"""Bytes of trees that a block copies at a time for each interleaved walk, if a round is a tree."""

LEAST_TREE_BYTES = 8 << 10
"""The least bytes of trees that a block copies at a time; one round may have more."""

TOGETHER = 4
"""Number of trees that a thread walks interleaved."""

SLOT_BYTES = 8
"""Bytes of a node, and of a leaf value, in a complete tree of ranks."""


def choose_gpu_schedules(work: Workload) -> dict[int, Schedule]:
    """Return the default schedules by the smallest batch that each serves."""
    chosen, last = dict[int, GpuPoint](), GpuPoint(*[0] * 9)  # type: ignore[arg-type]
    for batch in BATCHES:
        problem = describe_problem(work, batch)
        costs = {x: silvanforge.estimate_cycles(x, problem) for x in list_points(work, problem)}
        least = min(costs, key=costs.__getitem__)
        if batch >= MIN_RANKED_ROWS and _holds_ranks(work, problem):
            is_many = batch > MIN_RANKED_ROWS and fits_ranks(MANY_RANKS, problem)
            chosen[batch] = last = MANY_RANKS if is_many else RANKS
        elif costs.get(last, float("inf")) > ALIKE * costs[least]:
            chosen[batch], last = least, least
    return arrange_by_batch({batch: _write(work, point) for batch, point in chosen.items()})


def choose_gpu_schedule(work: Workload) -> Schedule:
    """Return the schedule that gives every row a thread; other schedules start from it."""
    return _write(work, _give_rows_threads(work))


def describe_problem(work: Workload, batch: int) -> GpuProblem:
    """Return the counts of a workload and a batch, and facts of the GPU, for estimates."""
    return GpuProblem(
        batch,
        work.forest.n_features,
        work.start.rounds,
        work.start.classes,
        work.start.round_size,
        number_bytes=max(work.threshold_bytes, work.forest.leaf_value.dtype.itemsize),
        hops=max(1, work.deepest),
        gpu=facts_of(work.target),
        block_bytes=work.target.shared_bytes,
    )


def list_points(work: Workload, problem: GpuProblem) -> Iterator[GpuPoint]:
    """Yield the points of which the one with the lowest estimate becomes a default schedule.

    In the first point each row has a thread. In the others, which are left out if they cannot run,
    several threads share the trees of a row, and their results are added tree by tree.
    """
    alone = _give_rows_threads(work)._replace(factor=TOGETHER)
    yield alone
    threads = {min(2**k, problem.rounds) for k in range(1, MAX_BLOCK_THREADS.bit_length())}
    each = range(2, silvanforge.MOST_TOGETHER + 1)
    threads |= {problem.rounds // count for count in each if problem.rounds % count == 0}
    dimensions = ("", "grid.z", "block.z") if problem.walks > 1 else ("",)
    few = [rows for rows in SHARED_ROWS if rows <= problem.batch]
    for rows, trees, blocks, on in product(few, sorted(threads), (1, 4, 16), dimensions):
        for near in (True, False):
            point = alone._replace(rows_tb=rows, tree_threads=trees, cache_rows=near)
            point = point._replace(shared="ordered", tree_blocks=blocks, class_on=on)
            point = silvanforge.walk_together(silvanforge.fit_chunk(point, problem), problem)
            if trees > 1 and silvanforge.find_obstacle(point, problem) is None:
                yield point


def _give_rows_threads(work: Workload) -> GpuPoint:
    allowed = min(MAX_SHARED_BYTES, work.target.shared_bytes)
    rows = next((x for x in BLOCK_ROWS if x * work.row_bytes <= allowed), 0)
    layout = PADDED if work.slots_per_node <= MAX_SLOTS_PER_NODE else ANY_FOREST
    block = rows or BLOCK_ROWS[0]
    return GpuPoint(block, 1, 1, rows > 0, False, False, 1, False, layout)


def fits_ranks(point: GpuPoint, problem: GpuProblem) -> bool:
    """Return whether a block has at least `LANES` rows, and shared memory for ranks and trees."""
    round_bytes = problem.walks * (SLOT_BYTES << problem.hops)
    trees = max(_ranked_tree_bytes(point, problem), round_bytes)
    return point.rows_tb >= LANES and 3 * trees // 2 <= _left_by_ranks(point, problem)


def walk_ranks(sch: Schedule, point: GpuPoint, problem: GpuProblem) -> Schedule:
    """Return the schedule of a point with ranks and trees in shared memory."""
    trees = _ranked_tree_bytes(point, problem)
    return gpu_shared_ranks(sch, point.rows_tb, trees, together=point.factor)


def _ranked_tree_bytes(point: GpuPoint, problem: GpuProblem) -> int:
    wanted = WALK_TREE_BYTES * point.factor if problem.walks == 1 else 0
    return max(min(wanted, 2 * _left_by_ranks(point, problem) // 3), LEAST_TREE_BYTES)


def _left_by_ranks(point: GpuPoint, problem: GpuProblem) -> int:
    """Return the bytes of shared memory left by a block's ranks and `LANES` raw rows."""
    raw = LANES * problem.number_bytes * (problem.features + 1)
    return problem.block_bytes - point.rows_tb * MAX_CODE_BYTES * problem.features - raw


def _holds_ranks(work: Workload, problem: GpuProblem) -> bool:
    """Return whether the point `RANKS` can run, and pays although trees are padded."""
    if problem.features > MAX_COLUMNS_PER_TREE * problem.rounds * problem.walks:
        return False
    slots = work.forest.n_trees << work.deepest + 1
    if slots > MAX_SLOTS_PER_NODE * work.forest.n_nodes or work.unfit(BANKED) is not None:
        return False
    return fits_ranks(RANKS, problem)


def _write(work: Workload, point: GpuPoint) -> Schedule:
    """Return the schedule of a point that this file has chosen, by the recipe for its kind."""
    if point.layout == BANKED:
        return walk_ranks(work.start, point, describe_problem(work, MIN_RANKED_ROWS))
    if not point.is_alone:
        return gpu_template(work.start, **point._asdict())
    sch = work.start.represent_as(point.layout).tile("batch", "b0", "b1", point.rows_tb)
    sch = sch.reorder("b0", "b1", *inner_loops(sch))
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    sch = sch.cache("b0", "shared") if point.cache_rows else sch
    return sch.interleave("tree", point.factor) if point.factor > 1 else sch
