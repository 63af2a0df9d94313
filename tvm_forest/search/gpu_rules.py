"""The default schedule for GPUs: every row has a thread.

takes: Workload; gives: Schedule. No two threads add to one sum, so the order of additions is kept.
"""

from __future__ import annotations

from ..layouts import ANY_FOREST, PADDED
from ..schedule import Schedule
from ..schedule_prims.devices import MAX_SHARED_BYTES
from .space import inner_loops
from .workload import Workload

BLOCK_ROWS = (128, 64, 32)
"""Rows, and threads, of a block: the first number whose rows fit in shared memory."""

MAX_SLOTS_PER_NODE = 32
"""Slots of complete trees for each node, above which nodes are linked instead."""


def choose_gpu_schedule(work: Workload) -> Schedule:
    """Return the schedule of all batches."""
    rows = next((x for x in BLOCK_ROWS if x * work.row_bytes <= MAX_SHARED_BYTES), 0)
    layout = PADDED if work.slots_per_node <= MAX_SLOTS_PER_NODE else ANY_FOREST
    sch = work.start.represent_as(layout).tile("batch", "b0", "b1", rows or BLOCK_ROWS[0])
    sch = sch.reorder("b0", "b1", *inner_loops(sch))
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    return sch.cache("b0", "shared") if rows else sch
