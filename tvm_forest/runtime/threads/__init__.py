"""Facts from which the number of threads of a call follows.

takes: parallel loops, the argument `n_jobs`; gives: how many rows a thread takes at a time, checks.
`by_batch` chooses the function and the number of threads of a call; the threads themselves are in
`pool`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError
from ...schedule_prims.nest import Loop

FEW_ROWS = 256
"""Largest number of rows in a batch that takes the fast path for few rows."""


def count_rows_of_a_thread(parallel: list[Loop]) -> int:
    """Return the largest number of rows that one iteration of one of some parallel loops takes.

    The result is 1 if the numbers depend on the batch, and 0 if trees or classes are parallel too.
    """
    if any(loop.kind != "batch" for loop in parallel):
        return 0
    return max((loop.step for loop in parallel if isinstance(loop.step, int)), default=1)


def check_n_jobs(where: str, n_jobs: Any) -> None:
    """Raise InputError unless n_jobs is None, -1 or a positive number."""
    whole = isinstance(n_jobs, (int, np.integer)) and not isinstance(n_jobs, bool)
    if n_jobs is not None and not (whole and (n_jobs == -1 or n_jobs >= 1)):
        raise InputError(
            f"{where}: argument 'n_jobs': {n_jobs!r} is no number of threads; use 1 or more, "
            "-1 for all cores, or None"
        )
