"""Chooses the function of a batch, and how many threads share it.

takes: compiled functions, by the smallest batch that each serves; gives: a function and a number of
threads, and where they change.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import Any, NamedTuple

from . import check_n_jobs

MUCH_LESS = 0.75
"""Ratio of loads up to which one function takes much less time than another."""

BLOCK_ROWS, BLOCK_SPEED = 300, 4
"""How long a block of bit planes takes: as if it had 300 rows more, each of which takes a quarter
of the mean time. So blocks of 64, 128 and 512 rows take as long as 364, 428 and 812 such rows."""


class BoundFunction(NamedTuple):
    """A compiled function with the model's arrays that it reads.

    Attributes:
        serial: the code that runs on the caller's thread.
        parallel: the code that shares rows or trees among threads; None if the schedule has no
            parallel loop.
        model: the arguments between the rows and the results.
        rows_per_thread: rows that one iteration of the parallel loops takes; 0 if threads share
            trees or classes as well.
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

    @property
    def size(self) -> int:
        """The number of rows that a thread takes together."""
        return max(1, self.rows_per_thread, self.rows_per_block)

    @property
    def load(self) -> float:
        """The time that a thread takes for them, in an unknown unit."""
        if self.rows_per_block:
            rows = self.size + BLOCK_ROWS * -(-self.size // self.rows_per_block)
            return rows / (BLOCK_SPEED * self.steps_per_thread)
        return self.size / self.steps_per_thread

    def count_load(self, n_rows: int, threads: int) -> float:
        """Return the time of the thread that takes longest, in that unit."""
        return -(-n_rows // (self.size * threads)) * self.load


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
        keep one thread busy, so two threads use the function of smaller batches in blocks of 16. It
        must take much less time, since times are only guessed here. And both must keep the order of
        additions, so that the bits of a batch depend neither on threads nor on this choice.

        Raises:
            InputError: n_jobs is invalid.
        """
        usual = self.for_batch(n_rows)
        threads = self.count_threads(usual, n_rows, n_jobs)
        if threads == 1:
            return usual, 1
        function, least = usual, usual.count_load(n_rows, 1)
        for candidate in reversed(self.for_batches[: self.for_batches.index(usual) + 1]):
            keeps_order = candidate.keeps_order and usual.keeps_order
            if candidate.is_divided(n_rows) and (candidate is usual or keeps_order):
                load = candidate.count_load(n_rows, threads)
                if candidate is usual or load <= MUCH_LESS * least:
                    function, least = candidate, load
        return function, threads if function.is_divided(n_rows) else 1

    def list_turns(self, most: int, n_jobs: int | None) -> list[int]:
        """Return the numbers of rows, up to `most`, from which on `plan` may return something else.

        They follow from its comparisons of up to three blocks of a function, which suffices for
        default schedules. For others, such as larger blocks for smaller batches, a turn may be
        missing, which costs time but changes no bits.
        """
        few, blocks = (1, 2, 3), {(x.size, x.load) for x in self.for_batches}
        sizes = {size for size, _ in blocks}
        turns = {1, *self.smallest_batches, *(-(-4 * k * size // 3) for k in few for size in sizes)}
        for threads in self._list_threads(n_jobs):
            steps = {threads * x.steps_per_thread for x in self.for_batches}
            is_last = n_jobs is not None or threads == self.cores
            end = most if is_last else 2 * max(steps) // self.steps_per_row
            rest = {k * size * count + 1 for k in few for size in sizes for count in (1, threads)}
            for (size, load), (_, other), k in itertools.product(blocks, blocks, few):
                rest.add(int(MUCH_LESS * k * other / load) * size * threads + 1)
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
