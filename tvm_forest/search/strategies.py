"""How to walk through a space: staged, exhaustive, beam.

takes: Space, `measure`; gives: the schedules to measure, one after the other.

A strategy returns nothing: `measure` keeps what it is asked for, returns seconds, infinity for what
cannot be built, and raises `StopSearch` when time is up. A strategy never measures by itself, so
tests give it a clock of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from ..errors import ScheduleError
from ..schedule import DIRECTIVES, Schedule
from .space import Space, wish_of

T = TypeVar("T")

Measure = Callable[[Schedule], float]
"""Returns seconds of a call; infinity if the schedule cannot be built."""


class StopSearch(Exception):
    """Time or trials are used up."""


class Strategy(Protocol):
    """What walks through a space."""

    def __call__(self, space: Space, measure: Measure, rng: random.Random) -> None:
        """Measure schedules of the space until there are no more, or `measure` says stop."""


class Stage(NamedTuple):
    """One step of the staged search.

    Attributes:
        names: parameters that are varied together.
        keep: how many of the fastest points go on.
        only: values that are tried at first sight; others have their turn later or not at all.
    """

    names: tuple[str, ...]
    keep: int = 1
    only: dict[str, tuple[int, ...]] = {}


STAGES = (
    Stage(("tile", "layout"), 2, {"tile": (1, 8)}),
    Stage(("block",), 1, {"block": (0, 16, 64, 256, 512)}),
    Stage(("order",)),
    Stage(("walks",)),
    Stage(("tile",)),
    Stage(("hops",)),
    Stage(("parallel",)),
)
"""What decides most comes first: 10 to 25 schedules, or so."""


def staged(space: Space, measure: Measure, rng: random.Random) -> None:
    """Vary few parameters at a time around the fastest points, from the default schedule on.

    The counterpart for CPUs of SilvanForge's Algorithm 1 (Prasad and others, SOSP 2024), which
    tries layouts with everything else fixed as well.
    """
    measure(space.default)
    best = [space.nearest(wish_of(space.default))]
    for stage in STAGES:
        found = [p for start in best for p in space.varied(start, stage.names, stage.only)]
        best = fastest(list(dict.fromkeys(found)), lambda p: measure(space.schedule(p)), stage.keep)


def exhaustive(space: Space, measure: Measure, rng: random.Random) -> None:
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


STRATEGIES: dict[str, Strategy] = {"heuristic": staged, "exhaustive": exhaustive, "beam": beam}
