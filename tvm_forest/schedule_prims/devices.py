"""Directives for GPUs: gpu_dimension, shared_reduce.

takes: Schedule; gives: Schedule whose loops are mapped to the threads of a GPU.

S-TIR's `bind` refuses a tree loop on the grid, and symbolic numbers of rows with more than one row
a block, so the mapping stays an annotation until code is made for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ..nest import paths
from ..schedule import Schedule
from .directive import directive, find_loop, refuse
from .loops import said_of

DIMENSIONS = tuple(f"{level}.{axis}" for level in ("grid", "block") for axis in "xyz")
MOST_THREADS = 1024
"""Of one block, on CUDA; ROCm allows 256 unless told otherwise."""
MOST_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have on every GPU."""


def _gpu_dimension_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    if sch.target != "gpu":
        return
    used = {loop.gpu for loop in sch.loops()}
    for loop in sch.loops():
        for dimension in DIMENSIONS:
            if loop.gpu is None and dimension not in used and not loop.parallel:
                yield {"index": loop.name, "dimension": dimension}


@directive(choices=_gpu_dimension_choices)
def gpu_dimension(sch: Schedule, index: str, dimension: str) -> Schedule:
    """Map the iterations of a loop to a dimension of the grid or of a thread block.

    Args:
        index: any loop; one that is mapped to a block dimension needs a constant count.
        dimension: "grid.x", "grid.y", "grid.z", "block.x", "block.y" or "block.z".

    Raises:
        ScheduleError: no such loop or dimension, a dimension used twice on a path, a grid index
            inside a block index, or more threads than a block has.

    Rewrite:
        for b0 in (0, n, 64)   -->   for b0 in (0, n, 64)   # grid.x
          S                            S
    """
    loop = find_loop(sch, "gpu_dimension", "index", index)
    if dimension not in DIMENSIONS:
        message = f"argument 'dimension': {dimension!r} is unknown; use {', '.join(DIMENSIONS)}"
        raise refuse(sch, "gpu_dimension", message, index)
    if sch.target == "cpu":
        message = f"argument 'index': '{index}' cannot be mapped on a CPU; use parallel"
        raise refuse(sch, "gpu_dimension", message, index)
    if loop.parallel or loop.gpu or loop.unroll or loop.interleave > 1 or loop.simdize:
        message = f"argument 'index': '{index}' is already {said_of(loop)}; choose another loop"
        raise refuse(sch, "gpu_dimension", message, index)
    if dimension.startswith("block") and loop.count is None:
        message = f"argument 'index': block extent must be constant, '{index}' has n iterations"
        raise refuse(sch, "gpu_dimension", f"{message}; tile it first", index)
    new = sch.with_loop(index, replace(loop, gpu=dimension))
    _check_threads(sch, new, index)
    return new


def _check_threads(sch: Schedule, new: Schedule, index: str) -> None:
    for path in paths(new.nest):
        counts = [x.count or 1 for x in path if str(x.gpu).startswith("block")]
        if prod(counts) > MOST_THREADS:
            text = " x ".join(map(str, counts))
            message = (
                f"argument 'index': {text} = {prod(counts)} threads per block, the target allows "
                f"{MOST_THREADS}; use smaller tiles"
            )
            raise refuse(sch, "gpu_dimension", message, index)


def _shared_reduce_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        on_block = str(loop.gpu).startswith("block")
        if loop.kind == "tree" and on_block and loop.reduce is None:
            yield {"index": loop.name}


@directive(choices=_shared_reduce_choices)
def shared_reduce(sch: Schedule, index: str) -> Schedule:
    """Keep the partial sums of a tree loop in the shared memory of a GPU's thread block.

    Args:
        index: a loop over trees that is mapped to a block dimension.

    Raises:
        ScheduleError: no such loop, over rows, or not mapped to a block dimension.

    Rewrite:
        for t1 in (0, 20, 1)   # block.y   -->   for t1 in (0, 20, 1)   # block.y; reduce shared
          S                                        S
    """
    loop = find_loop(sch, "shared_reduce", "index", index)
    if loop.kind != "tree":
        message = f"argument 'index': '{index}' does not run over trees, nothing conflicts"
        raise refuse(sch, "shared_reduce", f"{message}; leave this step out", index)
    if not str(loop.gpu).startswith("block"):
        message = f"argument 'index': '{index}' is not mapped to a block dimension"
        raise refuse(sch, "shared_reduce", f"{message}; use gpu_dimension before", index)
    if loop.reduce is not None:
        message = f"argument 'index': '{index}' already has {said_of(loop)}; choose one of them"
        raise refuse(sch, "shared_reduce", message, index)
    return sch.with_loop(index, replace(loop, reduce="shared"))
