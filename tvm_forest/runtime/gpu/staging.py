"""Moves host rows to a GPU and results back, in overlapping chunks.

takes: a bound plan, rows, arrays for results; gives: the results, in these arrays.

Rows are copied in chunks through pinned memory. Each thread has two chunks in progress, each on its
own stream, so that one is copied while the other is computed:

    frame 0   | copy in | kernels | copy out |  copy in | ...
    frame 1             | copy in | kernels  | copy out | ...
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...forest import Array
from ...system.cores import available_cores
from .driver import Driver
from .executor import BoundPlan
from .memory import round_up

CHUNK_BYTES, CHUNK_ROWS = 1 << 22, 512
"""Size of a chunk: this many bytes of rows, but at least this many rows."""

DIRECT_BYTES = 1 << 18
"""From so many bytes on, the driver copies a batch of one chunk: on an H100, 512 rows of 2,000
columns take 390 microseconds instead of 610. Threads copy many chunks faster than the driver."""

MOST_THREADS, CHUNKS_EACH, MOST_BYTES = 8, 2, 96 << 20
"""Most threads that move a batch, fewest chunks for each, and most bytes of their frames."""


class Frame:
    """Two buffers for a chunk, on the host and on the GPU, and a stream.

    Each buffer holds the rows and then the results, at the same offsets.
    """

    def __init__(self, driver: Driver) -> None:
        """Create a stream; buffers are allocated when the first rows come."""
        self._driver, self._stream = driver, driver.create_stream()
        self._size, self._host, self._there = 0, 0, 0
        self._about: Any = None
        self._rows: Any = None
        self._results: list[Array] = []
        self._parts: list[int] = []  # pointers to all results, to the rows, and to each result
        self._span = 0, 0  # offset and bytes of all results

    def start(
        self, bound: BoundPlan, rows: Array, results: Sequence[Array], is_alone: bool
    ) -> None:
        """Start the work for rows; `finish` waits for it and copies the results.

        Args:
            bound: the bound plan.
            rows: (R, F), unchanged until `finish` returns.
            results: the arrays that `finish` will fill; only their shapes and dtypes are used.
            is_alone: whether they are all rows of a call; the driver copies them if they are many.
        """
        about = rows.shape, rows.dtype, [(x.shape, x.dtype) for x in results]
        if about != self._about:
            self._lay_out(rows, results)
            self._about = about
        driver, stream = self._driver, self._stream
        all_results, rows_there, *results_there = self._parts
        host = self._host
        if is_alone and rows.nbytes >= DIRECT_BYTES and rows.flags.c_contiguous:
            host = rows.ctypes.data
        else:
            self._rows[...] = rows
        driver.copy_in(rows_there, host, rows.nbytes, stream)
        bound.run(rows_there, results_there, len(rows), stream)
        begin, size = self._span
        driver.copy_out(self._host + begin, all_results, size, stream)

    def finish(self, results: Sequence[Array]) -> None:
        """Wait for the work, and copy its results into arrays."""
        self._driver.synchronize(self._stream)
        for result, found in zip(results, self._results, strict=True):
            result[...] = found

    def settle(self) -> None:
        """Wait for work in progress after an error, as it may still use the buffers."""
        with suppress(DeviceError):
            self._driver.synchronize(self._stream)

    def _lay_out(self, rows: Array, results: Sequence[Array]) -> None:
        """Compute offsets for arrays of these sizes, and grow the buffers if needed."""
        driver, arrays, places, size = self._driver, (rows, *results), list[int](), 0
        for array in arrays:
            places.append(size)
            size += -(-array.nbytes // driver.alignment) * driver.alignment
        self._about = None
        while self._parts:
            driver.free_part(self._parts.pop())
        if size > self._size:
            self._enlarge(round_up(size))
        pairs = list(zip(places, arrays, strict=True))
        self._rows, *self._results = (_view(self._host + place, x) for place, x in pairs)
        self._span = places[1], size - places[1]
        for begin, length in (self._span, *((place, x.nbytes) for place, x in pairs)):
            self._parts.append(driver.part(self._there, begin, length))

    def _enlarge(self, size: int) -> None:
        driver, self._size = self._driver, 0
        there, self._there, host, self._host = self._there, 0, self._host, 0
        if there:
            driver.free(there)
        if host:
            driver.free_host(host)
        self._there = driver.allocate(size)
        self._host = driver.allocate_host(size)
        self._size = size


def run_on_host(bound: BoundPlan, rows: Array, results: Sequence[Array]) -> None:
    """Compute results on the GPU for host rows, synchronously.

    Several threads move a batch of many chunks, unless another call does so already: one thread
    copies to pinned memory at a fifth of the speed at which a GPU reads that memory.

    Args:
        bound: the bound plan.
        rows: (R, F).
        results: arrays with R rows each, which are filled.

    Raises:
        DeviceError: the driver refuses a call.
    """
    n_rows, turns = len(rows), bound.driver.turns
    if not n_rows:
        return
    size = max(CHUNK_ROWS, CHUNK_BYTES // max(1, rows.nbytes // n_rows))
    chunks = [slice(begin, begin + size) for begin in reversed(range(0, n_rows, size))]
    run = partial(_run_chunks, bound, rows, results, chunks)
    frame_bytes = sum(array.nbytes for array in (rows, *results)) * size // n_rows
    threads = min(MOST_THREADS, len(chunks) // CHUNKS_EACH, MOST_BYTES // (2 * frame_bytes + 1))
    threads = min(threads, available_cores())
    if threads < 2 or not turns:
        return run()
    try:
        turns.clear()
        _run_on_threads(run, threads)
    finally:
        turns.append(None)


def _run_on_threads(run: Callable[[], None], threads: int) -> None:
    """Call a function on this thread and on others at once, and wait for all of them.

    No executor of `concurrent.futures`: in a signal handler, its lock may be taken already.
    """
    errors = list[BaseException]()

    def help_out() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    helpers = [Thread(target=help_out) for _ in range(threads - 1)]
    try:
        with suppress(RuntimeError):  # Python is ending, or the system has no more threads
            for helper in helpers:
                helper.start()
        run()
    finally:
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
    if errors:
        raise errors[0]


def _run_chunks(
    bound: BoundPlan, rows: Array, results: Sequence[Array], chunks: list[slice]
) -> None:
    """Take chunks off the end of a list, which threads may share, until none is left."""
    driver, frames = bound.driver, bound.driver.frames
    under_way = deque[tuple[Frame, Sequence[Array]]]()
    before = driver.enter()
    try:
        while part := _take(chunks):
            if len(under_way) > 1:
                _finish_first(under_way, frames)
            frame, of_chunk = _take(frames) or Frame(driver), [array[part] for array in results]
            under_way.append((frame, of_chunk))
            frame.start(bound, rows[part], of_chunk, is_alone=len(rows) <= part.stop - part.start)
        while under_way:
            _finish_first(under_way, frames)
    finally:
        chunks.clear()  # after an error, for the other threads
        for frame, _ in under_way:
            frame.settle()
            frames.append(frame)
        driver.leave(before)


def _take(queue: list[Any] | deque[Any]) -> Any:
    """Return the last of a queue, removed from it; None if another thread took the last one."""
    try:
        return queue.pop()
    except IndexError:
        return None


def _finish_first(under_way: deque[tuple[Frame, Sequence[Array]]], frames: deque[Any]) -> None:
    frame, results = under_way[0]
    frame.finish(results)
    under_way.popleft()
    frames.append(frame)


def _view(address: int, like: Array) -> Array:
    """Return an array at an address of the host, with the shape and dtype of another."""
    memory: Any = (ctypes.c_char * like.nbytes).from_address(address)
    return np.ndarray(like.shape, like.dtype, memory)
