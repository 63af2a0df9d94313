"""How many threads a call uses.

takes: numbers of threads, parallel loops; gives: checks; `pool` gives the threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError
from ...schedule_prims.nest import Loop

MIN_STEPS_FOR_ALL_CORES = 85_000
"""Hops and leaves of a batch, all rows and trees together, from which all cores are used by
default. 100 trees of depth 8 have 900 for each row, so that is 95 rows of them."""

FEW_ROWS = 256
"""Most rows of a batch that takes the fast path."""


def count_rows_of_a_thread(parallel: list[Loop]) -> int:
    """Return the rows of one parallel iteration; 0 if threads share trees as well."""
    if any(loop.kind == "tree" for loop in parallel):
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
