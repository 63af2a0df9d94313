"""The rules of the default schedules for GPUs: every row has a thread.

takes: Workload; gives: rules. No two threads add to one sum, so the order of additions is kept.
"""

from __future__ import annotations

from functools import partial

from .cpu_rules import Choice, Rule, inner_loops
from .layout_fit import COMPLETE, LINKED, fit_complete_trees
from .workload import Workload

MAX_SHARED_BYTES = 48 * 1024
"""Shared memory of a thread block, in which its rows must fit if they are kept there."""

BLOCK_ROWS = (128, 64, 32)
"""Rows, and threads, of a block: the first number whose rows fit in shared memory."""


def _choose_threads(layout: str, work: Workload) -> Choice | str:
    fit = fit_complete_trees(work) if layout == COMPLETE else None
    if fit is not None and not fit.fits:
        return fit.reason
    size = work.row_bytes
    rows = next((rows for rows in BLOCK_ROWS if rows * size <= MAX_SHARED_BYTES), 0)
    sch = work.start.represent_as(layout).tile("batch", "b0", "b1", rows or BLOCK_ROWS[0])
    sch = sch.reorder("b0", "b1", *inner_loops(sch))
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    said = f"{rows} rows of {size} bytes in shared memory" if rows else f"rows of {size} bytes"
    said += f", {fit.reason}" if fit is not None else ""
    return Choice(sch.cache("b0", "shared") if rows else sch, said)


GPU_RULES: dict[int, list[Rule]] = {
    1: [
        Rule(f"threads in {COMPLETE}", partial(_choose_threads, COMPLETE)),
        Rule(f"threads {LINKED}", partial(_choose_threads, LINKED)),
    ]
}
"""By the smallest batch that they serve, the rules in the order in which they are asked."""
