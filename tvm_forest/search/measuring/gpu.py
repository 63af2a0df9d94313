"""Measures on a GPU, or GPU code that is emulated on the CPU ("simt"), in a child process.

takes: a schedule as text; gives: `CallTimes`, by the GPU's own events, or for "simt" by the host's
clock. Here is also how the parent finds out which GPU a target has.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import BuildError, DeviceError, InputError
from ...forest import Array
from ...layouts.laying_out.request import BuildRequest
from ...schedule_prims import Schedule
from ...target import REAL_GPUS, Target
from ...targets.backends import find_backend
from . import measure
from .child import Child, Failure

OPEN_SECONDS = 60.0
"""Time limit for opening a GPU, in seconds."""

COPY_BYTES = 1 << 26
"""Size in bytes of a copy that keeps a GPU busy for about 50 to 500 us."""

MAX_QUEUED, MAX_TRIES = 256, 4
"""Largest number of calls, and of copies, queued in a stream at once (it holds about a thousand);
and the number of attempts, each with more copies before the calls."""


def identify_in(child: Child, target: Target) -> str:
    """Return the `Driver.identity` of the target's GPU, found by the child; "" without one.

    Raises:
        DeviceError: no GPU, no driver, or no compiler.
        InputError: the target is another machine.
        BuildError: the child cannot be prepared.
    """
    if target.is_elsewhere:
        raise InputError(
            f"tune: argument 'target': {target.to_dict()} is another machine, whose code does not "
            "run here; run tvm-forest rpc there, and give remote="
        )
    if target.kind not in REAL_GPUS:
        return ""
    answer = child.call(open_gpu, target, seconds=OPEN_SECONDS)
    if isinstance(answer, Failure):
        raise DeviceError(f"tune: {answer.reason.removeprefix('refused: ')}")
    return str(answer)


def open_gpu(target: Target) -> str:
    """Return the `Driver.identity` of a GPU, after checking that code can be compiled for it.

    Raises:
        DeviceError: no GPU, no driver, or no compiler.
    """
    backend = find_backend(target)
    driver = backend.open()
    if target.kind == "cuda":
        backend.translate("", driver.architecture, driver.version)
    return str(driver.identity)


def identify_gpu(target: Target) -> str:
    """Return the `Driver.identity` of a target's GPU; "" if it has none, or none is here."""
    with suppress(DeviceError):
        return str(find_backend(target).open().identity) if target.kind in REAL_GPUS else ""
    return ""


def measure_candidate(schedule: str, batch: int, best: float) -> measure.CallTimes:
    """Build a schedule, compare it with the reference walk, and time it.

    Margins must be bit-equal, or as close as another order of additions allows. Rows are in the
    GPU's memory already, and its events measure the time. A failed driver call may corrupt all
    later ones of the process, so it ends this process.

    Args: those of `measure.measure_candidate`.

    Raises:
        ScheduleError, BuildError: the schedule cannot be built, or its margins are wrong.
        RuntimeError: the code cannot be run.
    """
    try:
        calls = _make_calls(Schedule.from_json(schedule), batch)
        return measure.time_beside_fastest(calls, batch, best)
    except DeviceError as error:
        raise RuntimeError(str(error)) from None


def _make_calls(sch: Schedule, batch: int) -> measure.TimedCalls:
    """Build a schedule and compare it; return the calls to be timed."""
    from ...predictor.building import build
    from ...predictor.device import DevicePredictor

    setup = measure.current_setup()
    predictor: Any = build(BuildRequest.of(setup.forest, sch, setup.target))
    if sch.keeps_order:
        measure.check_margins(setup, predictor.predict_margin, batch, parallel=False)
    else:
        check_near_margins(predictor.predict_margin(setup.checks), setup.margins, _bound_margins())
    batches = measure.cut_batches(setup.pool, batch)
    if not isinstance(predictor, DevicePredictor):
        return measure.TimedCalls(predictor.predict_margin, batches)
    rows_on_gpu = [predictor.put(rows) for rows in batches]
    timer = _timer_of(predictor.library.executor.driver)
    return measure.TimedCalls(predictor.start, rows_on_gpu, timer=timer)


class GpuTimer:
    """Measures the seconds that a GPU spends on calls on its default stream.

    A short call ends before the host has queued the next, and the events would measure the host. So
    copies keep the GPU busy until all calls are queued.
    """

    def __init__(self, driver: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        """Allocate memory for copies, and measure how long one takes; `clock` is the host's."""
        self._driver, self._clock = driver, clock
        self._size = min(COPY_BYTES, driver.memory // 64)
        self._pieces = [driver.pool.take(self._size, 0) for _ in range(2)]
        self._copies(1)
        self._copy_seconds = max(1e-9, min(self._time_copy() for _ in range(3)))

    def __call__(self, call: Callable[[int], Any], count: int) -> float:
        """Return the seconds of `call(0)` to `call(count - 1)`."""
        starts = range(0, count, MAX_QUEUED)
        return sum(self._time(call, range(i, min(count, i + MAX_QUEUED))) for i in starts)

    def _time(self, call: Callable[[int], Any], numbers: range) -> float:
        """Return the seconds of some calls, few enough for the GPU's queue."""
        copies = 1
        for _ in range(MAX_TRIES):
            self._copies(copies)
            first, begin = self._driver.mark(0), self._clock()
            for number in numbers:
                call(number)
            handing_in = self._clock() - begin
            is_ahead = not self._driver.is_done(first)
            seconds = float(self._driver.seconds(first, self._driver.mark(0)))
            if is_ahead or seconds > 2 * handing_in:  # the GPU did not wait for the host
                break
            copies = min(MAX_QUEUED, copies + 1 + int(2 * handing_in / self._copy_seconds))
        return seconds

    def _time_copy(self) -> float:
        first = self._driver.mark(0)
        self._copies(1)
        return float(self._driver.seconds(first, self._driver.mark(0)))

    def _copies(self, count: int) -> None:
        source, to = (piece.pointer for piece in self._pieces)
        for _ in range(count):
            self._driver.copy(to, source, self._size, 0)


_timer_of = functools.cache(GpuTimer)
"""One timer per driver: all candidates share the memory that it copies."""


@functools.cache
def _bound_margins() -> Array:
    """Return (R, C), how far two orders of additions may be apart in each margin.

    It is 2 (T + 1) u (|base| + sum |leaf|), where u is half the distance from 1 to the next number.
    """
    setup = measure.current_setup()
    forest, rows = setup.forest, setup.checks
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    sums = np.zeros((len(rows), forest.n_outputs)) + np.abs(forest.base_score)
    if forest.has_vectors:
        sums += leaves.sum(axis=1)
    else:
        np.add.at(sums.T, forest.tree_class, leaves.T)
    return 2 * (forest.n_trees + 1) * np.finfo(forest.sum_dtype).eps / 2 * sums


def check_near_margins(results: Array, margins: Array, bound: Array) -> None:
    """Compare margins (R, C) with those of the reference, within `bound`.

    Raises:
        BuildError: they differ by more; the message names the row.
    """
    results = results.reshape(margins.shape)
    with np.errstate(invalid="ignore"):
        near = np.abs(results.astype(np.float64) - margins) <= bound
    same = (results == margins) | (np.isnan(results) & np.isnan(margins))
    wrong = ~(near | same).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BuildError(
            f"tune: row {row} of {len(results)}: margin {results[row]} is further from the "
            f"reference {margins[row]} than another order of additions explains; please report "
            "this schedule"
        )
