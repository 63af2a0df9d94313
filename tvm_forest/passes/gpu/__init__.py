"""From lowered loops to the kernels of a GPU, step by step.

takes: a lowered function, its schedule, its arrays; gives: a function whose loops are kernels.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from ...forest import Array
from ...schedule import Schedule
from .cache_trees import cache_trees
from .link_in_blocks import finish_in_blocks
from .map_threads import map_threads
from .narrow_indices import narrow_indices


def make_kernels(func: tirx.PrimFunc, sch: Schedule, arrays: dict[str, Array]) -> tirx.PrimFunc:
    """Return a function that launches kernels and does nothing else.

    Raises:
        ScheduleError: a block has too many threads or too much shared memory.
    """
    func = cache_trees(func, sch, arrays)
    func = finish_in_blocks(func, sch)
    func = map_threads(func, sch)
    func = tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]
    return narrow_indices(func, arrays)
