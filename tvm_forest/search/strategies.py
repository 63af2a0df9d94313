"""How to walk through a space: guided by prices, exhaustive, beam.

takes: Space, `measure`; gives: the schedules to measure, one after the other.

A strategy returns nothing: `measure` keeps what it is asked for, returns seconds, infinity for what
cannot be built, and raises `StopSearch` when time is up. A strategy never measures by itself, so
tests give it a clock of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from ..errors import ScheduleError
from ..schedule import DIRECTIVES, Schedule
from .cost import Belief, priced
from .space import Space

T = TypeVar("T")

Measure = Callable[[Schedule], float]
"""Returns seconds of a call; infinity if the schedule cannot be built."""


class StopSearch(Exception):
    """Time or trials are used up."""


class Strategy(Protocol):
    """What walks through a space."""

    def __call__(self, space: Space, measure: Measure, rng: random.Random) -> None:
        """Measure schedules of the space until there are no more, or `measure` says stop."""


SHARE, FEWEST = 20, 2
"""Most measurements: one for so many points, or this many."""

LEAST = 5
"""Measurements before the search may end because nothing faster is expected."""

CURIOUS = 1.5
"""How many spreads a point may be better than expected when the next one is chosen."""


def guided(space: Space, measure: Measure, rng: random.Random) -> None:
    """Measure the default schedule, then what prices and the times so far expect to be fastest.

    The counterpart for CPUs of SilvanForge's Algorithm 1 (Prasad and others, SOSP 2024), which
    measures a few schedules of its space as well. Nothing is drawn, so the seed changes nothing.
    """
    points = space.points()
    schedules = list(points.values())
    place = {schedule: i for i, schedule in enumerate(schedules)}
    belief = Belief(list(points), priced(list(points), space.facts, space.batch))
    chosen, best = space.default, math.inf
    for tried in range(1, 1 + max(FEWEST, len(points) // SHARE)):
        hop = measure(chosen) / (1e-9 * space.batch * space.facts.hops)
        best = min(best, math.log(hop))
        if chosen in place:
            belief.learn(place[chosen], hop)
        expected, spread = belief.now()
        wish = expected - CURIOUS * spread
        wish[list(belief.known)] = math.inf
        if wish.min() >= (best if tried >= LEAST else math.inf):
            return  # what is left is hardly any faster
        chosen = schedules[int(np.argmin(wish))]


def exhaustive(space: Any, measure: Measure, rng: random.Random) -> None:
    """Measure every point, in an order drawn by the seed, so that a part of it is a fair sample."""
    measure(space.default)
    points = list(space.points())
    rng.shuffle(points)
    for point in points:
        measure(space.schedule(point))


BEAM, FAN, ROUNDS = 3, 8, 8
"""Schedules that go on, moves drawn for each of them, and moves of the longest way."""


def beam(space: Space, measure: Measure, rng: random.Random) -> None:
    """Add one directive at a time to the fastest few schedules, as long as that helps.

    Moves are the `choices` of all directives for CPUs, also those that the template lacks.
    """
    best = fastest([space.default, space.start], measure, BEAM)
    for _ in range(ROUNDS):
        new = [x for sch in best for x in drawn(list(moves(sch)), FAN, rng)]
        kept = fastest(list(dict.fromkeys([*best, *new])), measure, BEAM)
        if kept == best:
            return
        best = kept


def moves(sch: Schedule) -> Iterator[Schedule]:
    """Yield what one more directive may make of a schedule that keeps its order of additions."""
    for name in sorted(set(DIRECTIVES) - {"gpu_dimension", "shared_reduce"}):
        for arguments in DIRECTIVES[name].choices(sch):
            try:
                new = DIRECTIVES[name].apply(sch, arguments)
            except ScheduleError:
                continue
            if new.keeps_order:
                yield new


def drawn(found: list[Schedule], most: int, rng: random.Random) -> list[Schedule]:
    """Draw some schedules, in the order in which they were drawn."""
    return rng.sample(found, min(most, len(found)))


def fastest(points: list[T], measure: Callable[[T], float], keep: int) -> list[T]:
    """Measure points in turn, and return the fastest; the earlier of equals comes first."""
    times = {i: measure(point) for i, point in enumerate(points)}
    order = sorted(times, key=times.__getitem__)
    return [points[i] for i in order[:keep] if times[i] < math.inf] or points[:1]


STRATEGIES: dict[str, Strategy] = {"heuristic": guided, "exhaustive": exhaustive, "beam": beam}
