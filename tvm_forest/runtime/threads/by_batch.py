"""Chooses the function of a batch, and how many threads share it.

takes: compiled functions, by the smallest batch that each serves; gives: a function and a number of
threads, and where they change.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import Any, NamedTuple

from . import check_n_jobs

MUCH_FEWER = 0.75
"""Ratio of rows up to which one function takes much fewer than another."""


class BoundFunction(NamedTuple):
    """A compiled function with the model's arrays that it reads.

    Attributes:
        serial: the code that runs on the caller's thread.
        parallel: the code that shares rows or trees among threads; None if the schedule has no
            parallel loop.
        model: the arguments between the rows and the results.
        rows_per_thread: rows that one iteration of the parallel loops takes; 0 if threads share
            trees as well.
        rows_per_block: rows per bit-plane block (a partly filled block costs as much as a full
            one); 0 without such blocks.
        takes_memberships: whether rows need membership columns, which numpy appends.
        keeps_order: whether it adds the trees of a row in the order of the model.
        steps_per_thread: see `count_steps_of_a_thread`.
    """

    serial: Any
    parallel: Any
    model: tuple[Any, ...]
    rows_per_thread: int
    rows_per_block: int = 0
    takes_memberships: bool = True
    keeps_order: bool = True
    steps_per_thread: int = 1

    def is_divided(self, n_rows: int) -> bool:
        """Return whether there is enough to share among threads in a batch of so many rows.

        A block and less than a third of another one are not.
        """
        return self.parallel is not None and 3 * n_rows >= 4 * self.rows_per_thread


class ByBatch:
    """The functions of sums, by size of batch.

    The argument `n_jobs` is -1 for all cores, the number of threads, or None for as many as have
    enough to do, which are 1, 2, 4 and so on.

    Attributes:
        smallest_batches: for each function, the smallest batch that it serves, ascending.
        for_batches: these functions.
        steps_per_row: largest number of hops and leaves that a row can take in all trees.
        cores: number of cores of the target.
    """

    def __init__(
        self,
        smallest_batches: list[int],
        for_batches: list[BoundFunction],
        steps_per_row: int,
        cores: int,
    ) -> None:
        self.smallest_batches, self.for_batches = smallest_batches, for_batches
        self.steps_per_row, self.cores = steps_per_row, cores

    def for_batch(self, n_rows: int) -> BoundFunction:
        """Return the function for batches of this size."""
        return self.for_batches[max(0, bisect_right(self.smallest_batches, n_rows) - 1)]

    def plan(self, n_rows: int, n_jobs: int | None) -> tuple[BoundFunction, int]:
        """Return the function for a batch, and how many threads share its rows.

        It is a function for smaller batches if that keeps threads busy. 64 rows in blocks of 64
        keep one thread busy, so two threads use the function of smaller batches in blocks of 16.
        It must take much fewer rows for the busiest thread, since larger blocks take less time for
        a row.

        Raises:
            InputError: n_jobs is invalid.
        """
        usual = self.for_batch(n_rows)
        threads = self.count_threads(usual, n_rows, n_jobs)
        function, fewest = usual, n_rows
        for candidate in reversed(self.for_batches[: self.for_batches.index(usual) + 1]):
            if fewest * threads * MUCH_FEWER < n_rows:
                break  # no other one takes much fewer
            if not candidate.is_divided(n_rows) or not _may_replace(
                candidate, usual, n_rows, threads
            ):
                continue
            size = max(1, candidate.rows_per_thread)
            longest = -(-n_rows // (size * threads)) * size
            if candidate is usual or longest <= MUCH_FEWER * fewest:
                function, fewest = candidate, longest
        return function, threads if function.is_divided(n_rows) else 1

    def list_turns(self, most: int, n_jobs: int | None) -> list[int]:
        """Return the numbers of rows, up to `most`, from which on `plan` may return something else.

        They follow from its comparisons; where they multiply a block by 1, 2 and 3, they hold for
        no larger number, see `MUCH_FEWER`.
        """
        sizes = {max(1, x.rows_per_thread) for x in self.for_batches if x.parallel}
        thirds = [k * size for k in (1, 2, 3) for size in sizes]
        turns = {1, *self.smallest_batches, *(-(-4 * rows // 3) for rows in thirds)}
        for threads in self._list_threads(n_jobs) if sizes else ():
            steps = {threads * x.steps_per_thread for x in self.for_batches}
            is_last = n_jobs is not None or threads == self.cores
            end = most if is_last else 2 * max(steps) // self.steps_per_row
            rest = {rows * threads + 1 for rows in thirds} | {size * threads for size in sizes}
            for size, rows in itertools.product(sizes, thirds):
                rest.add(int(MUCH_FEWER * rows / size) * size * threads + 1)
            turns |= {x for x in rest if x <= end} | {-(-x // self.steps_per_row) for x in steps}
        return sorted(x for x in turns if x <= most)

    def _list_threads(self, n_jobs: int | None) -> list[int]:
        """Return the numbers of threads of calls on more than one thread."""
        if n_jobs is None:
            return sorted({min(self.cores, 2 << k) for k in range(self.cores.bit_length())} - {1})
        return [self.count_threads(self.for_batches[-1], 0, n_jobs)]

    def count_threads(self, function: BoundFunction, n_rows: int, n_jobs: Any) -> int:
        """Return the number of threads for a call.

        Args:
            function: the function for this number of rows.
            n_rows: number of rows of the call.
            n_jobs: see the class.

        Raises:
            InputError: n_jobs is invalid.
        """
        if n_jobs is None:
            most = max(1, n_rows * self.steps_per_row // function.steps_per_thread)
            return self.cores if most >= self.cores else 1 << most.bit_length() - 1
        check_n_jobs("predict", n_jobs)
        return self.cores if n_jobs == -1 else int(n_jobs)


def _may_replace(
    candidate: BoundFunction, function: BoundFunction, n_rows: int, threads: int
) -> bool:
    """Return whether threads may take a batch by another function than that for its size.

    It must give all of them a block, and keep the order of additions, since `Predictor.tolerance`
    depends on the number of rows. A block of bit planes takes about as long whatever its size, so
    two threads do not divide one of 128 rows into two of 64. Nor do they walk hop by hop, where a
    step takes five to twelve times as long as in vectors.
    """
    together = candidate.rows_per_thread * threads
    is_fast = candidate.steps_per_thread * threads >= function.steps_per_thread
    divides = is_fast and function.rows_per_block < together <= n_rows
    may = candidate is function or (divides and candidate.keeps_order)
    return may and candidate.is_divided(n_rows)
