"""The child's functions for a CPU: build a candidate, check it, time it.

takes: a schedule as text; gives: `CallTimes`.

`prepare` is called once in each child, `measure_candidate` for every candidate.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import BuildError
from ...forest import Array, Forest
from ...layouts.laying_out.request import BuildRequest
from ...schedule_prims import Schedule
from ...target import Target

ROUND_SECONDS = 0.004
"""Least duration of a round in seconds; a round has at least one call."""

LEAST_ROUNDS, MAX_ROUNDS, MAX_SECONDS = 5, 15, 0.3
"""Least and largest number of rounds of a candidate; after so many seconds, only the least."""

HOPELESS_RATIO, FAR_RATIO = 1.5, 5.0
"""Ratio to the best time above which no more rounds are measured: after the least
number of rounds, and after two, which other processes may have disturbed."""

LEAST_LEAD = 0.03
"""Relative lead over the fastest that may be noise, and is not counted."""

NEAR_RATIO, MAX_PAIRS, LEAST_PAIRS = 1.25, 9, 3
"""Ratio to the fastest below which a candidate is timed in turns with it, and the most and least
rounds of each: a disturbance of half a second affects both."""

MAX_BATCHES = 256
"""Largest number of distinct batches that calls use in turn."""

COMPILER = "tvm_forest.predictor.building"
"""The module that a child imports before its first request."""

MAX_BUILT = 8
"""Number of built schedules that are kept, since they may be measured for other batch sizes."""


class TrialSetup(NamedTuple):
    """The setup that all candidates share.

    Attributes:
        forest: the model.
        target: the target.
        pool: (P, F) rows, from which batches are cut.
        checks: (R, F) rows whose predictions are checked.
        margins: (R, C), margins of the reference walk.
        n_jobs: number of threads of a call.
    """

    forest: Forest
    target: Target
    pool: Array
    checks: Array
    margins: Array
    n_jobs: int | None


class CallTimes(NamedTuple):
    """Seconds of a call, in the best and in the median round, and the number of rounds."""

    seconds: float
    median: float
    rounds: int


class TimedCalls(NamedTuple):
    """Calls to be timed.

    Attributes:
        call: function that takes a batch.
        batches: its arguments, in turn.
        clock: returns seconds since some fixed moment.
        timer: takes a function of the call's number, and the number of calls, and returns seconds;
            None to use the clock.
    """

    call: Callable[[Any], Any]
    batches: Sequence[Any]
    clock: Callable[[], float] = time.perf_counter
    timer: Callable[[Callable[[int], Any], int], float] | None = None

    def run(self, first: int, calls: int) -> float:
        """Return the seconds of some calls, from the batch `first` on."""
        if self.timer is not None:
            batches = self.batches
            return self.timer(lambda i: self.call(batches[(first + i) % len(batches)]), calls)
        before = self.clock()
        for i in range(first, first + calls):
            self.call(self.batches[i % len(self.batches)])
        return self.clock() - before

    def run_warm(self, first: int, calls: int) -> float:
        """Return the mean seconds of a call, after an untimed one that warms up the caches."""
        self.run(first, 1)
        return self.run(first + 1, calls) / calls


_setups: list[TrialSetup] = []  # one setup, that of this child process
_fastest: dict[int, tuple[TimedCalls, CallTimes]] = {}  # by batch, the fastest measured here


def prepare(setup: TrialSetup) -> None:
    """Keep the setup that all candidates share, and forget candidates of an earlier setup."""
    _setups[:] = [setup]
    _fastest.clear()
    _build.cache_clear()


def current_setup() -> TrialSetup:
    """Return the setup that `prepare` has kept in this process."""
    return _setups[0]


@functools.lru_cache(MAX_BUILT)
def _build(schedule: str) -> Any:
    """Return the Predictor of a schedule in JSON text; it is cached for other batch sizes."""
    from ...predictor.building import build

    setup = current_setup()
    return build(BuildRequest.of(setup.forest, Schedule.from_json(schedule), setup.target))


def measure_candidate(schedule: str, batch: int, best: float) -> CallTimes:
    """Build a schedule, check that it is bit-equal to the reference walk, and time it.

    Args:
        schedule: schedule as JSON text.
        batch: number of rows in a call.
        best: seconds of the best candidate so far; infinity if there is none.

    Raises:
        ScheduleError, BuildError: the schedule cannot be built, or its margins are wrong.
    """
    setup, loops = current_setup(), Schedule.from_json(schedule).loops()
    predictor = _build(schedule)
    check_margins(setup, predictor.predict_margin, batch, any(loop.parallel for loop in loops))
    # On one thread, the thread's own time leaves out what other processes do meanwhile.
    clock = time.thread_time if setup.n_jobs == 1 else time.perf_counter
    call = functools.partial(predictor.predict_margin, n_jobs=setup.n_jobs)
    return time_beside_fastest(TimedCalls(call, cut_batches(setup.pool, batch), clock), batch, best)


def check_margins(
    setup: TrialSetup, margin: Callable[..., Array], batch: int, parallel: bool
) -> None:
    """Check that margins are bit-equal to the reference, for all `checks` and a batch of them.

    They are computed by one thread, and if `parallel` also by all threads.

    Raises:
        BuildError: they differ; the message names the row.
    """
    for count in sorted({len(setup.checks), min(batch, len(setup.checks))}):
        for n_jobs in (1, -1) if parallel else (1,):
            result = margin(setup.checks[:count], n_jobs=n_jobs).reshape(count, -1)
            bits = f"u{result.dtype.itemsize}"
            differs = result.view(bits) != setup.margins[:count].view(bits)
            if differs.any():
                row = int(np.argmax(differs.any(axis=1)))
                raise BuildError(
                    f"tune: row {row} of {count}: margin {result[row]} differs from the reference "
                    f"{setup.margins[row]}; please report this schedule"
                )


def cut_batches(pool: Array, batch: int) -> list[Array]:
    """Cut rows into batches, each an array of its own."""
    starts = range(0, len(pool) - batch + 1, batch)
    return [pool[start : start + batch].copy() for start in starts][:MAX_BATCHES]


def time_beside_fastest(calls: TimedCalls, batch: int, best: float) -> CallTimes:
    """Time a candidate; if it is nearly as fast as the fastest so far, time both in turns.

    Its time is then that of the fastest times the median ratio of paired rounds, but no less than
    that of the fastest if its lead is small.
    """
    times = time_in_rounds(calls, best)
    other, fastest = _fastest.get(batch, (calls, times))
    if other is not calls and times.seconds < NEAR_RATIO * fastest.seconds:
        ratio = _median_ratio(calls, times, other, fastest)
        ratio = max(1.0, ratio) if ratio > 1 - LEAST_LEAD else ratio
        times = times._replace(seconds=fastest.seconds * ratio)
    if other is calls or times.seconds < fastest.seconds:
        _fastest[batch] = calls, times
    return times


def _median_ratio(calls: TimedCalls, own: CallTimes, other: TimedCalls, its: CallTimes) -> float:
    """Time two candidates in turns; return the median ratio of their times, `calls` over `other`.

    Args:
        calls, other: the calls of both.
        own, its: what both took before, which decides how many calls make a round.
    """
    counts = [max(1, round(ROUND_SECONDS / times.seconds)) for times in (own, its)]
    ratios, begin = list[float](), calls.clock()
    while len(ratios) < MAX_PAIRS:
        if len(ratios) >= LEAST_PAIRS and calls.clock() - begin >= MAX_SECONDS:
            break
        turns = zip((calls, other), counts, strict=True)
        first, second = (x.run_warm(len(ratios) * (n + 1), n) for x, n in turns)
        ratios.append(first / second)
    return float(np.median(ratios))


def time_in_rounds(calls: TimedCalls, best: float = math.inf) -> CallTimes:
    """Time calls with batches in rotation, in rounds; stop early if the candidate is too slow.

    Args:
        calls: the calls; rounds at the beginning that are too short, which warm up, do not count.
        best: seconds of a call of the fastest candidate so far; infinity if there is none.
    """
    rounds: list[float] = []
    first, count, begin = 0, 1, calls.clock()
    while len(rounds) < MAX_ROUNDS:
        spent = calls.run(first, count)
        first += count
        if spent < ROUND_SECONDS / 2 and not rounds:  # still warming up
            count *= 2
            continue
        rounds.append(spent / count)
        few = len(rounds) < LEAST_ROUNDS
        most = (FAR_RATIO if few else HOPELESS_RATIO) * best
        hopeless = len(rounds) > 1 and min(rounds) > most
        if hopeless or (calls.clock() - begin > MAX_SECONDS and not few):
            break
    return CallTimes(min(rounds), float(np.median(rounds)), len(rounds))
