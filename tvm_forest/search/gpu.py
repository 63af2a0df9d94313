"""SilvanForge's search on a GPU: nine parameters, hard filters, Algorithm 1; and an estimate.

takes: size of a problem, `measure`; gives: points of the paper's space, the fastest of a few.

Prasad and others, SOSP 2024: Table 5 and Algorithm 1. The schedule of a point is
`recipes.gpu_template(schedule, **point._asdict())`. Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from ..schedule_prims.memory import COPIED
from .strategies import fastest


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
    "layout": ("array", "sparse", "reorg"),
}
"""The values of each parameter."""


class Problem(NamedTuple):
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


class Limits(NamedTuple):
    """What a GPU can do; these are the limits of the paper's.

    Attributes:
        threads: fewest and most threads of a block.
        shared_bytes: the static shared memory of a block must stay below it.
        blocks: most blocks of a grid.
    """

    threads: tuple[int, int] = (32, 1024)
    shared_bytes: int = 49152
    blocks: int = 2**31 - 1


def all_points() -> Iterator[GpuPoint]:
    """Yield the 5,184 points of the paper's space."""
    return (GpuPoint(*values) for values in product(*TABLE_5.values()))


def refusal(point: GpuPoint, problem: Problem, limits: Limits = Limits()) -> str | None:  # noqa: B008
    """Say why a point cannot run, before anything is compiled; None if it may."""
    threads = point.rows_tb // point.rows_thread * point.tree_threads
    least, most = limits.threads
    needed = shared_bytes(point, problem)
    blocks = -(-problem.batch // point.rows_tb)
    if point.rows_tb % point.rows_thread:
        return f"{point.rows_tb} rows of a block are not dealt out {point.rows_thread} to a thread"
    if not least <= threads <= most:
        return f"{threads} threads of a block, allowed are {least} to {most}"
    trees = -(-problem.rounds // point.tree_blocks)
    if point.tree_threads > trees or point.tree_blocks > max(1, problem.rounds):
        return f"{point.tree_threads} threads share {trees} trees"
    if needed >= limits.shared_bytes:
        return f"{needed} bytes of shared memory, must be below {limits.shared_bytes}"
    if point.cache_trees and point.factor > 1:
        return "trees are cached one after the other, and walks of several are interleaved"
    if point.cache_trees and point.layout not in COPIED:
        return f"trees of layout {point.layout!r} cannot be cached"
    if blocks > limits.blocks:
        return f"{blocks} blocks, a grid holds {limits.blocks}"
    return None


def shared_bytes(point: GpuPoint, problem: Problem) -> int:
    """Count the shared memory of a block: its rows, the trees of an iteration, partial sums."""
    pitch = problem.features | 1  # rows are an odd number of values apart
    rows = point.rows_tb * pitch * problem.number_bytes * point.cache_rows
    trees = point.tree_threads * problem.tree_bytes * point.cache_trees
    trees *= problem.lines if point.unroll else 1
    sums = point.tree_threads * point.rows_tb * problem.classes * problem.number_bytes
    return rows + trees + sums * (point.shared in (True, "shuffle") and point.tree_threads > 1)


class Device(NamedTuple):
    """Counts of a GPU, by which points are put in order.

    Attributes:
        processors: multiprocessors.
        warps: most groups of 32 threads on a multiprocessor.
        shared_bytes: shared memory of a multiprocessor.
        wait: cycles of a hop: two loads, one after the other.
        issue: cycles in which a multiprocessor does a hop of a warp, if others wait meanwhile.
        bytes: that memory gives in a cycle, and `sector`, what it reads at least.
    """

    processors: int = 108
    warps: int = 64
    shared_bytes: int = 164 * 1024
    wait: float = 400.0
    issue: float = 6.0
    bytes: float = 1100.0
    sector: int = 32


def cost(point: GpuPoint, problem: Problem, device: Device = Device()) -> float:  # noqa: B008
    """Estimate the cycles of a call, to try the likely points first; nothing is fitted.

    Blocks run in waves, as many at once as warps and shared memory allow. A wave lasts as long as a
    thread waits for its walks, or as long as the hops of all of its warps take to be issued. Memory
    gives rows, a sector for each hop if they are not cached, and partial sums.
    """
    warps = -(-point.rows_tb // point.rows_thread * point.tree_threads // 32)
    blocks = -(-problem.batch // point.rows_tb) * point.tree_blocks
    fit = device.shared_bytes // max(1, shared_bytes(point, problem))
    at_once = max(1, min(device.warps // warps, fit, 32))
    parts = point.tree_threads * point.tree_blocks
    hops = point.rows_thread * -(-problem.rounds // parts) * problem.classes * problem.hops
    busy = warps * min(at_once, -(-blocks // device.processors))
    wave = max(hops * device.wait / point.factor, hops * busy * device.issue)
    read = problem.features * problem.number_bytes * point.tree_blocks
    if not point.cache_rows:
        read = problem.rounds * problem.classes * problem.hops * device.sector
    sums = 2 * problem.classes * problem.number_bytes
    kept = point.tree_blocks * (
        1 if point.shared and point.tree_threads > 1 else point.tree_threads
    )
    memory = problem.batch * (read + sums * kept) / device.bytes
    return -(-blocks // (device.processors * at_once)) * wave + memory


def is_small(problem: Problem) -> bool:
    """Whether Algorithm 1 takes a problem for one of few rows in a block, and many threads each."""
    return problem.batch < 2048 or problem.features > 128


def first_points(problem: Problem) -> list[GpuPoint]:
    """Return the 36 points of the first phase of Algorithm 1."""
    if is_small(problem):
        rows, threads = (8, 32), (20, 50)
    else:
        rows, threads = (32, 64), (2, 10)
    return [
        GpuPoint(rows_tb, 1, tree_threads, True, False, factor != 1, factor, False, layout)
        for layout in TABLE_5["layout"]
        for rows_tb, tree_threads, factor in product(rows, threads, (1, 2, 4))
    ]


def algorithm_1(
    problem: Problem,
    measure: Callable[[GpuPoint], float],
    allowed: Callable[[GpuPoint], bool] = lambda point: True,
    first: Iterable[GpuPoint] | None = None,
) -> GpuPoint | None:
    """Return the fastest of 36 points and of the 3 best of them with shared reduction.

    Args:
        problem: its batch and features decide which points are tried.
        measure: seconds of a point; called once for each.
        allowed: leaves out points that cannot run, see `refusal`.
        first: points of the first phase in place of the 36.

    Returns:
        GpuPoint: None if no point is allowed.
    """
    tried = first_points(problem) if first is None else first
    times = {point: measure(point) for point in tried if allowed(point)}
    for point in fastest(list(times), times.__getitem__, 3):
        shared = point._replace(shared=True)
        if allowed(shared):
            times[shared] = measure(shared)
    return min(times, key=times.__getitem__, default=None)
