"""Search strategies: guided by prices, exhaustive, beam search; on a GPU Algorithm 1.

takes: Space, `measure`; gives: the schedules to measure, one after the other.

A strategy returns nothing: it calls `measure`, which records the schedule, returns its seconds
(infinity if it cannot be built), and raises `StopSearch` when time is up. A strategy has no clock,
so tests can use a fake one.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import ScheduleError
from ..schedule_prims import DIRECTIVES, Schedule
from ..target import Target
from .cost import Surrogate, estimate
from .gpu_space import VARIED, GpuSpace
from .silvanforge import GpuPoint
from .space import Space

T = TypeVar("T")

Measure = Callable[[Schedule], float]
"""Returns the seconds of a call; infinity if the schedule cannot be built."""


class StopSearch(Exception):
    """Raised when time or trials are used up."""


Strategy = Callable[[Any, Measure, random.Random], None]
"""Takes a space; measures schedules until none is left, or `measure` raises StopSearch."""

POINTS_PER_TRIAL, LEAST_TRIALS = 20, 2
"""Limits of the guided search: one trial per so many points, and the least number of trials."""

LEAST_TRIALS_TO_END = 5
"""Trials before the guided search may stop because it expects nothing faster."""

CURIOSITY = 3.0
"""Number of standard deviations below the expected time by which the next point is chosen."""


def search_guided(space: Space, measure: Measure, rng: random.Random) -> None:
    """Measure the default schedule, then always the point with the best optimistic estimate.

    That is the point whose expected time minus `CURIOSITY` standard deviations is least. The search
    ends when no other point is likely to be faster, or after a share of the points.
    The counterpart for CPUs of SilvanForge's Algorithm 1 (Prasad and others, SOSP 2024), which also
    measures only a few schedules of its space. Nothing is random, so the seed has no effect.
    """
    points = space.points()
    schedules, names = list(points.values()), list(points)
    places = {schedule: i for i, schedule in enumerate(schedules)}
    surrogate = Surrogate(names, estimate(names, space.facts, space.batch))
    chosen, best = space.default, math.inf
    for tried in range(1, 1 + max(LEAST_TRIALS, len(points) // POINTS_PER_TRIAL)):
        hop = measure(chosen) / (1e-9 * space.hops)
        best = min(best, math.log(hop))
        if chosen in places:
            surrogate.learn(places[chosen], hop)
        expected, spread = surrogate.predict()
        hoped = expected - CURIOSITY * spread
        hoped[list(surrogate.known)] = math.inf
        if hoped.min() >= (best if tried >= LEAST_TRIALS_TO_END else math.inf):
            return  # no other point is likely to be faster
        chosen = schedules[int(np.argmin(hoped))]


def search_exhaustively(space: Any, measure: Measure, rng: random.Random) -> None:
    """Measure the default schedule, then all points in random order.

    So an interrupted search is a fair sample.
    """
    measure(space.default)
    points = list(space.points())
    rng.shuffle(points)
    for point in points:
        measure(space.schedule(point))


BEAM_WIDTH, BEAM_SAMPLES, BEAM_DEPTH = 3, 8, 8
"""Schedules kept, neighbours drawn for each of them, and directives added."""


def search_beam(space: Space, measure: Measure, rng: random.Random) -> None:
    """Beam search: add one directive at a time to the fastest few schedules while that helps.

    Neighbours are drawn at random: one more directive, from the `choices` of all CPU directives
    that keep the order of additions, also those outside the template.
    """
    best = select_fastest([space.default, space.start], measure, BEAM_WIDTH)
    for _ in range(BEAM_DEPTH):
        neighbourhoods = [list(neighbours(sch)) for sch in best]
        new = [x for near in neighbourhoods for x in rng.sample(near, min(BEAM_SAMPLES, len(near)))]
        fastest = select_fastest(list(dict.fromkeys([*best, *new])), measure, BEAM_WIDTH)
        if fastest == best:
            return
        best = fastest


def neighbours(sch: Schedule) -> Iterator[Schedule]:
    """Yield the schedules one directive away that keep the order of additions."""
    for name in sorted(DIRECTIVES):
        for arguments in DIRECTIVES[name].choices(sch):
            try:
                new = DIRECTIVES[name].apply(sch, arguments)
            except ScheduleError:
                continue  # declared, and refused nevertheless
            if new.keeps_order:
                yield new


def select_fastest(points: Sequence[T], measure: Callable[[T], float], count: int) -> list[T]:
    """Measure points in turn; return the `count` fastest, the earlier of equal ones first.

    Those that cannot be built are left out; if none can, the first point is returned.
    """
    times = {i: measure(point) for i, point in enumerate(points)}
    order = sorted(times, key=times.__getitem__)
    return [points[i] for i in order[:count] if times[i] < math.inf] or [*points[:1]]


def search_by_algorithm_1(space: GpuSpace, measure: Measure, rng: random.Random) -> None:
    """Start from the fastest point of Algorithm 1; then vary each parameter once, one by one.

    Each of them keeps the value with which the point is fastest. The default schedule is measured
    first, so the result is no slower.
    """
    measure_once = functools.cache(lambda point: measure(space.schedule(point)))
    measure(space.default)
    best = run_algorithm_1(space.first_points(), measure_once, space.allows)
    for name in VARIED:
        if best is not None:
            best = min(space.vary(best, name), key=measure_once, default=best)


def run_algorithm_1(
    first: Iterable[GpuPoint],
    measure: Callable[[GpuPoint], float],
    allows: Callable[[GpuPoint], bool],
) -> GpuPoint | None:
    """Return the fastest of the first points and of the best 3 of them with shared reduction.

    SilvanForge's Algorithm 1 (Prasad and others, SOSP 2024).

    Args:
        first: the points of its first phase, see `silvanforge.first_phase`.
        measure: returns the seconds of a point; called once for each.
        allows: leaves out points that cannot run, see `silvanforge.find_obstacle`.

    Returns:
        GpuPoint: None if no point is allowed.
    """
    times = {point: measure(point) for point in filter(allows, first)}
    for point in select_fastest(list(times), times.__getitem__, 3):
        shared = point._replace(shared=True)
        if allows(shared):
            times[shared] = measure(shared)
    return min(times, key=times.__getitem__, default=None)


STRATEGIES: dict[str, Strategy] = {
    "heuristic": search_guided,
    "exhaustive": search_exhaustively,
    "beam": search_beam,
}
GPU_STRATEGIES: dict[str, Strategy] = {
    "heuristic": search_by_algorithm_1,
    "exhaustive": search_exhaustively,
}


def strategies_of(target: Target) -> dict[str, Strategy]:
    """Return the search strategies for a target, by name."""
    return GPU_STRATEGIES if target.on_gpu else STRATEGIES
