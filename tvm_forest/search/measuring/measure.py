"""What a child does: build a schedule, compare it, time it.

takes: a schedule as text; gives: `Times`.

`prepare` is called once in each child, `measure` for every candidate.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import BuildError
from ...forest import Array, Forest
from ...schedule_prims import Schedule
from ...target import Target

ROUND = 0.004
"""Seconds of a round, at least one call."""

MOST_ROUNDS, MOST_SECONDS = 15, 0.3
LEAST_ROUNDS = 5
HOPELESS = 1.5
"""How much slower than the best the first rounds may be for more rounds to be measured."""

FAR = 5.0
"""The same of two rounds, which others on the machine may have disturbed."""

SAME = 0.03
"""A lead over the fastest that is no lead: measured again, it may be gone."""

NEAR, PAIRS = 1.25, 9
"""How much slower than the fastest a candidate may be that is timed in turns with it, and how many
rounds of each there are: what disturbs the machine for half a second disturbs both."""

COMPILER = "tvm_forest.compiler"
"""What a child imports ahead."""

KEPT = 8
"""Schedules that stay built."""


class Bench(NamedTuple):
    """What all candidates share.

    Attributes:
        forest: the model.
        target: the machine.
        pool: (P, F) rows, from which batches are cut.
        checks: (R, F) rows that are compared.
        margins: (R, C) of the reference walk.
        n_jobs: threads of a call.
    """

    forest: Forest
    target: Target
    pool: Array
    checks: Array
    margins: Array
    n_jobs: int | None


class Times(NamedTuple):
    """Seconds of a call: of the best round and the median round; and the number of rounds."""

    best: float
    median: float
    rounds: int


class Course(NamedTuple):
    """What is timed.

    Attributes:
        call: takes a batch.
        batches: what it is given, in turn.
        clock: seconds from any moment on.
    """

    call: Callable[[Any], Any]
    batches: Sequence[Any]
    clock: Callable[[], float] = time.perf_counter

    def spent(self, first: int, calls: int) -> float:
        """Return the seconds of some calls, from the batch `first` on."""
        before = self.clock()
        for i in range(first, first + calls):
            self.call(self.batches[i % len(self.batches)])
        return self.clock() - before

    def turn(self, first: int, calls: int) -> float:
        """Return the seconds of one call, after one that brings the model back into the caches."""
        self.spent(first, 1)
        return self.spent(first + 1, calls) / calls


_bench: list[Bench] = []  # of this process, which is a child
_fastest: dict[int, tuple[Course, Times]] = {}  # by batch, of what this process has measured


def prepare(bench: Bench) -> None:
    """Remember what all candidates share."""
    _bench[:] = [bench]
    _fastest.clear()
    _built.cache_clear()


@functools.lru_cache(KEPT)
def _built(schedule: str) -> Any:
    """Build a schedule, or take it from when another size of batch asked for it."""
    from ...predictor.building import build

    bench = bench_at_hand()
    return build(bench.forest, Schedule.from_json(schedule), bench.target)


def bench_at_hand() -> Bench:
    """Return what this process was prepared with."""
    return _bench[0]


def measure(schedule: str, batch: int, best: float) -> Times:
    """Build a schedule, compare it with the reference walk to the bit, and time it.

    Args:
        schedule: as JSON text.
        batch: rows of a call.
        best: seconds of the best candidate so far; infinity if there is none.

    Raises:
        ScheduleError, BuildError: it cannot be built, or its margins are wrong.
    """
    bench, sch = bench_at_hand(), Schedule.from_json(schedule)
    predictor = _built(schedule)
    check(bench, predictor.predict_margin, batch, any(loop.parallel for loop in sch.loops()))
    batches = cut(bench.pool, batch)
    # On one thread, what others on the machine do is no part of the thread's own time.
    clock = time.thread_time if bench.n_jobs == 1 else time.perf_counter
    call = functools.partial(predictor.predict_margin, n_jobs=bench.n_jobs)
    return compared(Course(call, batches, clock), batch, best)


def check(bench: Bench, margin: Callable[..., Array], batch: int, parallel: bool) -> None:
    """Compare margins to the bit, of all rows and of a batch, on one thread and on all.

    Raises:
        BuildError: they differ; names the row.
    """
    for count in sorted({len(bench.checks), min(batch, len(bench.checks))}):
        for n_jobs in (1, -1) if parallel else (1,):
            found = margin(bench.checks[:count], n_jobs=n_jobs).reshape(count, -1)
            bits = f"u{found.dtype.itemsize}"
            differs = found.view(bits) != bench.margins[:count].view(bits)
            if differs.any():
                row = int(np.argmax(differs.any(axis=1)))
                raise BuildError(
                    f"tune: row {row} of {count}: margin {found[row]} differs from the reference "
                    f"{bench.margins[row]}; please report this schedule"
                )


def cut(pool: Array, batch: int) -> list[Array]:
    """Cut rows into batches, at most 256, each an array of its own."""
    starts = range(0, len(pool) - batch + 1, batch)
    return [pool[start : start + batch].copy() for start in starts][:256]


def compared(course: Course, batch: int, best: float) -> Times:
    """Time a candidate, and in turns with the fastest of this process if it comes near.

    Its time is then that of the fastest times the median ratio of pairs of rounds, but no less if
    its lead is small.
    """
    found = timed(course, best)
    other, known = _fastest.get(batch, (course, found))
    if other is not course and found.best < NEAR * known.best:
        calls = [max(1, round(ROUND / times.best)) for times in (found, known)]
        ratios = list[float]()
        begin = course.clock()
        while len(ratios) < PAIRS and (len(ratios) < 3 or course.clock() - begin < MOST_SECONDS):
            turns = zip((course, other), calls, strict=True)
            ours, theirs = (x.turn(len(ratios) * (n + 1), n) for x, n in turns)
            ratios.append(ours / theirs)
        ratio = float(np.median(ratios))
        ratio = max(1.0, ratio) if ratio > 1 - SAME else ratio
        found = found._replace(best=known.best * ratio)
    if other is course or found.best < known.best:
        _fastest[batch] = course, found
    return found


def timed(course: Course, best: float = float("inf")) -> Times:
    """Time calls with batches in rotation, in rounds; stop early if there is no hope.

    Args:
        course: what is timed; the first round is not counted.
        best: seconds of a call that are to be beaten.
    """
    found: list[float] = []
    at, calls, begin = 0, 1, course.clock()
    while len(found) < MOST_ROUNDS:
        spent = course.spent(at, calls)
        at += calls
        if spent < ROUND / 2 and not found:  # still warming up
            calls *= 2
            continue
        found.append(spent / calls)
        few = len(found) < LEAST_ROUNDS
        hopeless = len(found) > 1 and min(found) > (FAR if few else HOPELESS) * best
        if hopeless or (course.clock() - begin > MOST_SECONDS and not few):
            break
    return Times(min(found), float(np.median(found)), len(found))
