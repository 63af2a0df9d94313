"""Seconds of a call, and what the machine is."""

from __future__ import annotations

import itertools
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Name = TypeVar("Name")

SECONDS_A_ROUND = 0.012


class Round(NamedTuple):
    """One engine's turn.

    Attributes:
        call: seconds of a call.
        calls: made in this turn.
        cores: seconds of all threads for each second of the clock.
    """

    call: float
    calls: int
    cores: float


def time_round(function: Callable[[Any], Any], batches: Iterator[Any], seconds: float) -> Round:
    """Call a function with the next batch each time, until the time is used up.

    The clock is read after several calls, more of them the shorter they are.
    """
    calls, group, busy, begin = 0, 1, time.process_time(), time.perf_counter()
    while True:
        for batch in itertools.islice(batches, group):
            function(batch)
        calls += group
        spent = time.perf_counter() - begin
        if spent >= seconds:
            return Round(spent / calls, calls, (time.process_time() - busy) / spent)
        left = (seconds - spent) * calls / spent
        group = max(1, min(2 * group, int(left / 4)))


def seconds_a_call(function: Callable[[Any], Any], batches: Iterator[Any]) -> float:
    """Return the mean of one short round."""
    return time_round(function, batches, SECONDS_A_ROUND).call


def cpu_name() -> str:
    """Return what the machine calls its processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def time_in_turns(
    calls: Mapping[Name, Callable[[Any], Any]], batches: Sequence[Any], rounds: int, seconds: float
) -> dict[Name, list[float]]:
    """Return seconds of a call of each function, round by round.

    In each round all functions take a turn, in an order that is drawn; each calls itself with one
    batch after the other. A round before the first one does not count.
    """
    turns = {name: itertools.cycle(batches) for name in calls}
    spent: dict[Name, list[float]] = {name: [] for name in calls}
    for seed in range(rounds + 1):
        for name in random.Random(seed).sample(list(calls), len(calls)):
            spent[name].append(time_round(calls[name], turns[name], seconds).call)
    return {name: times[1:] for name, times in spent.items()}


def least_of(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """Return the least CPU seconds of each call, of so many rounds in which all take turns."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, own in zip(calls, spent, strict=True):
            begin = time.process_time()
            call()
            own.append(time.process_time() - begin)
    return [min(own) for own in spent]
