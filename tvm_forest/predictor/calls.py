"""Calls of compiled functions with rows of the host.

takes: rows as users pass them, Functions; gives: margins, values and what leaves say, as arrays.

    700 rows by bit planes in blocks of 512      rows 0 to 511 by the function of large batches
                                                 rows 512 to 699 by the one of 188 rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..forest import Array, Forest
from ..inputs import to_rows, writable_view
from ..target import available_cores
from ..threads import MIN_STEPS_FOR_ALL_CORES, check_n_jobs
from ..threads.pool import POOL
from ..tir_gen.canonical import Output, result_dtype, result_names
from .functions import BoundFunction, Functions

MAX_ROWS_WITH_MEMBERSHIPS = 512
"""Rows that get their membership columns together: for thousands of rows the memory of these
columns would have to be taken from the system and given back."""


class Calls:
    """Calls of the functions of a predictor.

    In each, `n_jobs` is None for all cores when the batch is large enough and one otherwise, -1 for
    all cores, or the number of threads.

    Attributes:
        result_dtypes: of "margin", and of "value" where the link is not the identity.
    """

    def __init__(self, forest: Forest, functions: Functions, cores: int) -> None:
        self._forest, self._functions, self._cores = forest, functions, cores
        self.result_dtypes = {x: np.dtype(result_dtype(forest, x)) for x in result_names(forest)}
        self._steps_per_row = int(forest.depths.sum()) + forest.n_trees

    def compute_sums(self, rows: Any, n_jobs: int | None) -> tuple[Array, Array]:
        """Return margins and values, both (R, C); one array if the link is the identity."""
        rows = to_rows(rows, self._forest)
        results = self.new_results(len(rows))
        outputs = list(results.values())
        function = self.choose_function(len(rows), n_jobs)
        block = function.rows_per_block
        rest = len(rows) % block if len(rows) > block > 0 else 0
        whole = len(rows) - rest
        self._run(function, rows[:whole], [array[:whole] for array in outputs], n_jobs)
        if rest:
            beyond = [array[whole:] for array in outputs]
            self._run(self._functions.for_batch(rest), rows[whole:], beyond, n_jobs)
        return results["margin"], results.get("value", results["margin"])

    def compute_leaves(self, name: Output, dtype: str, rows: Any, n_jobs: int | None) -> Array:
        """Return (R, places), what the leaf in each place `round * C + class` says."""
        rows = to_rows(rows, self._forest)
        leaves = np.empty((len(rows), count_places(self._forest)), dtype)
        self._run(self._functions.named(name), rows, [leaves], n_jobs)
        return leaves

    def new_results(self, n_rows: int) -> dict[str, Array]:
        """Return memory for the results of a batch, by name."""
        shape = (n_rows, self._forest.n_outputs)
        return {name: np.empty(shape, dtype) for name, dtype in self.result_dtypes.items()}

    def choose_function(self, n_rows: int, n_jobs: int | None) -> BoundFunction:
        """Return the function of a batch, or that of a smaller one if only that gives threads work.

        64 rows in blocks of 64 are work for one thread, so two threads take them by the function of
        smaller batches in blocks of 16. They do not if that adds in another order, for
        `Predictor.tolerance` goes by the number of rows.
        """
        function = self._functions.for_batch(n_rows)
        known = self._functions.for_batches
        for candidate in reversed(known[: known.index(function) + 1]):
            threads = self.count_threads(candidate, n_rows, n_jobs)
            has_work = candidate.parallel and candidate.rows_per_thread * threads <= n_rows
            if has_work and threads > 1 and (candidate.keeps_order or candidate is function):
                return candidate
        return function

    def count_threads(self, function: BoundFunction, n_rows: int, n_jobs: Any) -> int:
        """Return how many threads a call uses."""
        if n_jobs is None:
            has_work = n_rows > function.rows_per_thread
            is_large = has_work and n_rows * self._steps_per_row >= MIN_STEPS_FOR_ALL_CORES
            return self._cores if is_large else 1
        check_n_jobs("predict", n_jobs)
        return self._cores if n_jobs == -1 else int(n_jobs)

    def _run(
        self, function: BoundFunction, rows: Array, outputs: Sequence[Array], n_jobs: int | None
    ) -> None:
        """Write the results of some rows."""
        n_rows = len(rows)
        threads = self.count_threads(function, n_rows, n_jobs)
        if not n_rows:
            return
        wide = function.takes_memberships
        prepare = self._forest.prepare_rows if wide else self._forest.clean_rows
        step = MAX_ROWS_WITH_MEMBERSHIPS if wide else n_rows
        for begin in range(0, n_rows, step):
            part = slice(begin, begin + step)
            ready = writable_view(prepare(rows[part]))
            arguments = (ready, *function.model, *(array[part] for array in outputs))
            if function.parallel is None or threads == 1:
                function.serial(*arguments)
            else:
                _run_parallel(function, arguments, threads)


def _run_parallel(function: BoundFunction, arguments: tuple[Any, ...], threads: int) -> None:
    """Run with helpers, or on this thread if another call has them and this one adds up alike."""
    helpers = min(threads, available_cores()) - 1
    with POOL.helpers(helpers, waits=not function.keeps_order) as has_helpers:
        (function.parallel if has_helpers else function.serial)(*arguments)


def count_places(forest: Forest) -> int:
    """Return how many places `round * C + class` leaves can say something for."""
    return forest.n_trees * forest.leaf_value.shape[1]
