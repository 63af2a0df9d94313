"""The rules of the default schedules for GPUs: every row has a thread.

takes: Workload; gives: rules. No two threads add to one sum, so the order of additions is kept.
"""

from __future__ import annotations

from functools import partial

from ..layouts import ANY_FOREST, PADDED
from ..schedule import Schedule
from ..schedule_prims.devices import MAX_SHARED_BYTES
from .cpu_rules import Rule, inner_loops
from .layout_fit import Fit, fit_padded
from .workload import Workload

BLOCK_ROWS = (128, 64, 32)
"""Rows, and threads, of a block: the first number whose rows fit in shared memory."""


def _block_rows(work: Workload) -> int:
    """Return the rows of a block that are kept in shared memory; 0 if they are not."""
    return next((rows for rows in BLOCK_ROWS if rows * work.row_bytes <= MAX_SHARED_BYTES), 0)


def _fit_any(work: Workload) -> Fit:
    rows, counts = _block_rows(work), f"rows of {work.row_bytes} bytes"
    return Fit(True, f"{rows} {counts} in shared memory" if rows else counts)


def _fit_padded(work: Workload) -> Fit:
    fit = fit_padded(work)
    return fit._replace(reason=f"{_fit_any(work).reason}, {fit.reason}") if fit.fits else fit


def _write_threads(layout: str, work: Workload) -> Schedule:
    rows = _block_rows(work)
    sch = work.start.represent_as(layout).tile("batch", "b0", "b1", rows or BLOCK_ROWS[0])
    sch = sch.reorder("b0", "b1", *inner_loops(sch))
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    return sch.cache("b0", "shared") if rows else sch


GPU_RULES: dict[int, list[Rule]] = {
    1: [
        Rule(f"threads in {PADDED}", _fit_padded, partial(_write_threads, PADDED)),
        Rule(f"threads {ANY_FOREST}", _fit_any, partial(_write_threads, ANY_FOREST)),
    ]
}
"""By the smallest batch that they serve, the rules in the order in which they are asked."""
