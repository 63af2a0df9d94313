"""Directives for GPUs: gpu_dimension, cooperate.

takes: Schedule; gives: Schedule whose loops are mapped to the threads of a GPU.

S-TIR's `bind` refuses a tree loop on the grid, and symbolic numbers of rows with more than one row
per block, so the mapping stays an annotation until GPU code is generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ..target import STATIC_SHARED_BYTES
from .directive import Refusal, check_word, directive, find_loop, find_unassigned
from .nest import Loop, find_paths
from .nest.problems import Problem

if TYPE_CHECKING:
    from .schedule import Schedule

DIMENSIONS = tuple(f"{level}.{axis}" for level in ("grid", "block") for axis in "xyz")
MAX_BLOCK_THREADS = 1024
"""Largest number of threads in a block on CUDA; ROCm allows 256 unless configured otherwise."""
MAX_SHARED_BYTES = STATIC_SHARED_BYTES
"""Bytes of shared memory per block that searches and defaults use; `Target` has the real limit."""


@directive()
def gpu_dimension(sch: Schedule, index: str, dimension: str) -> Schedule:
    """Map the iterations of a loop to a dimension of the grid or of a thread block.

    Args:
        index: any loop; one that is mapped to a block dimension needs a constant count.
        dimension: "grid.x", "grid.y", "grid.z", "block.x", "block.y" or "block.z".

    Raises:
        ScheduleError: no such loop or dimension, a loop that runs in another way already, a
            schedule for CPUs, a dimension used twice on a path, a grid index inside a block index,
            a count of a block index that is not constant, or more threads than a block has.

    Rewrite:
        for b0 in (0, n, 64)   -->   for b0 in (0, n, 64)   # grid.x
          S                            S
    """
    loop = find_unassigned(sch, index)
    check_word("dimension", dimension, DIMENSIONS)
    if sch.target == "cpu":
        raise Refusal(loop, "cannot be mapped on a CPU; use parallel")
    if is_on_block(dimension) and loop.count is None:
        what = f"block extent must be constant, '{index}' has n iterations; tile it first"
        raise Refusal("index", what)
    used = next((x for x in (*sch.path(index), *loop.traverse()) if x.gpu == dimension), None)
    if used is not None:
        what = f"'{dimension}' is already used by '{used.name}' on this path; choose another one"
        raise Refusal("dimension", what)
    return _check_block(sch.with_loop(index, replace(loop, gpu=dimension)))


def is_on_block(dimension: str | None) -> bool:
    """Return whether a dimension is one of a thread block."""
    return str(dimension).startswith("block")


def _check_block(sch: Schedule) -> Schedule:
    """Return the schedule if no block has too many threads, else refuse it."""
    for path in find_paths(sch.nest):
        counts = [x.count or 1 for x in path if is_on_block(x.gpu)]
        counts += [_find_team_size(sch)] * any(x.cooperate for x in path)
        if prod(counts) > MAX_BLOCK_THREADS:
            raise Refusal("index", say_too_many(counts))
    return sch


def say_too_many(counts: Sequence[int]) -> str:
    """Return the message that a block has too many threads."""
    what = f"{' x '.join(map(str, counts))} = {prod(counts)} threads per block, the target"
    return f"{what} allows {MAX_BLOCK_THREADS}; use smaller tiles"


# -- tiles that threads decide together -----------------------------------------------------------

TEAM_DIMENSION = "block.x"
"""The block dimension whose threads form a team: they are neighbours in a warp."""


def count_team(tile_size: int) -> int:
    """Return how many threads a team has: one per node of a tile, rounded up to a power of two."""
    return 1 << (tile_size - 1).bit_length()


def _find_team_size(sch: Schedule) -> int:
    """Return the team size of a schedule; 1 if it has no tiles."""
    sizes = (step.arguments["size"] for step in sch.rewrites if step.do == "tile_nodes")
    return count_team(next(sizes, 1))


@directive()
def cooperate(sch: Schedule, index: str) -> Schedule:
    """Let a team of GPU threads decide each tile together, one thread per node.

    The threads of the dimension "block.x" are the team: as many as a tile has nodes, rounded up to
    a power of two. Each thread loads one node and the value that it tests, and compares them. One
    warp instruction (a ballot) shares the outcomes, and all threads go to the same child. The first
    thread adds up the leaves. So no other loop may be mapped to "block.x".

    Passes: LowerWalks, MapThreads. From "SilvanForge", cooperative tile step.

    Args:
        index: any loop; holds for all walks at or below. The schedule must have `tile_nodes`, with
            2 to 8 nodes, and a loop around these walks that is mapped to a GPU.

    Raises:
        ScheduleError: no such loop, a schedule for CPUs, no tiles, a loop is mapped to "block.x" or
            simdized, a loop cooperates for these walks already, or more threads than a block has.

    Rewrite:
        for b1 in (0, 32, 1)   # block.y   -->   for b1 in (0, 32, 1)   # block.y; cooperate
          S                                        S
    """
    loop = find_loop(sch, index)
    if sch.target == "cpu":
        raise Refusal(loop, "has no teams of threads on a CPU; leave this step out")
    if _find_team_size(sch) == 1:
        raise Refusal(loop, "walks node by node; use tile_nodes with 2 to 8 nodes before")
    other = next((x for x in (*sch.path(index), *loop.traverse()) if x.cooperate), None)
    if other is not None:
        raise Refusal(loop, f"has the teams of '{other.name}' already; leave this step out")
    return _check_block(sch.with_loop(index, replace(loop, cooperate=True)))


def list_team_problems(nest: Loop) -> Iterator[Problem]:
    """Yield a problem for each loop that uses a team's threads or lanes for something else."""
    for team in (loop for loop in nest.traverse() if loop.cooperate):
        whose = f"the tiles of '{team.name}' are decided by the threads of {TEAM_DIMENSION}"
        for loop in nest.traverse():
            if loop.gpu == TEAM_DIMENSION:
                what = f"'{loop.name}' is mapped to {loop.gpu}, but {whose}"
                yield Problem(loop.name, what, "choose another dimension")
        for loop in (x for x in team.traverse() if x.simdize):
            what = f"'{loop.name}' has simdize {loop.simdize}, but {whose}"
            yield Problem(loop.name, what, "choose one of them")
