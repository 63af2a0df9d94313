"""From lowered loops to the kernels of a GPU, step by step.

takes: a lowered function, the facts of its loops; gives: a function of kernels.

`thread_sums` comes earlier, among the passes for all targets, and behind these steps the target
goes on with `launch_plan` (a GPU) or `run_threads` (the CPU at hand). `kernel_code` has the words
that all of them use.
"""

from __future__ import annotations

from collections import Counter

import tvm
from tvm import tirx

from ...schedule_prims.fitting import check_gaps
from ..nest_facts import NestFacts
from . import kernel_code
from .cache_trees import cache_trees
from .link_in_blocks import link_in_blocks
from .map_threads import map_threads
from .narrow_indices import narrow_indices

SPILLED = "tvm_forest.spilled"
"""Attribute of a function with buffers that lie in the memory of the device, for kernels share them
that cannot be one, though another function of the schedule has them in shared memory."""


def make_kernels(func: tirx.PrimFunc, facts: NestFacts, shared_bytes: int) -> tirx.PrimFunc:
    """Return a function that launches kernels and does nothing else.

    Args:
        func: all walks are lowered.
        facts: of its loops.
        shared_bytes: of shared memory that a block may have.

    Raises:
        ScheduleError: a block has too many threads or too much shared memory, or threads would add
            to rows of other blocks.
    """
    arrays = facts.model.arrays
    check_gaps(facts.nest)
    # 1. the trees that a block walks are copied into its shared memory, where the schedule asks
    func = cache_trees(func, facts, arrays)
    # 2. the epilogue of a block's rows is done by that block
    func = link_in_blocks(func, facts)
    # 3. loops become dimensions of grids and blocks; copies are shared out, barriers are set
    before = _count_shared(func)
    func = map_threads(func, facts, shared_bytes)
    spilled = before - _count_shared(func)
    func = tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]
    # 4. numbers that are small are counted with 32 bits
    func = narrow_indices(func, arrays)
    return func.with_attr(SPILLED, 1) if spilled else func


def _count_shared(func: tirx.PrimFunc) -> Counter[str]:
    """Count the buffers in shared memory by name."""
    return Counter(str(buffer.name) for buffer in kernel_code.buffers_of(func.body, "shared"))
