"""Measures the durations of a prediction's operations on this CPU.

takes: nothing but the machine; gives: its Machine, in about a minute.

Small forests with equal trees are generated, so how often each operation is done is known exactly.
Points of the space are built for them and timed; the durations are those that best explain the
times of the calls, and are close to those of `guesses`.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...forest import Array, Forest
from ...forest.rewrites.canonical_form import canonicalize
from ...layouts import WORD_NODES
from ...layouts.laying_out.request import BuildRequest
from ...target import Target, cpu_name, cpu_vendor
from ..cost import count_operations
from ..guesses import guess
from ..machines import TELLING, Machine, nearest, shipped_machines
from ..space import Space
from ..workload import Workload
from .caches import measure_caches
from .calls import SMALL, Cell, group_cells, list_cells, walk_point
from .drawn_forests import draw_forest

TURNS, TURN_SECONDS, TICKS = 5, 0.003, 5
"""Number of turns of timing, their least seconds, and calls per reading of the clock."""

MOST_BATCHES, ROW_BYTES, WIDE_ROW_BYTES = 64, 64 << 20, 4096
"""Largest number of distinct batches of rows; bytes of all rows; bytes from which a row is wide."""

BELIEF = 0.15
"""Weight of an operation's deviation from its guess, relative to that of a call from its time."""

LEAST_SHARE = 0.15
"""Least duration of an operation, as a share of its guess, since no operation is free."""

TRUSTED = 0.2
"""Errors, in logarithms, up to which calls count fully; larger ones are disturbances."""

ROUNDS, DESCENTS, SETTLED = 8, 1000, 1e-4
"""Number of reweightings, largest number of descent steps for each, and relative change to stop."""


class Clock:
    """A reference call, whose times show the CPU's current speed: other processes slow it down.

    Attributes:
        readings: nanoseconds per row at each reading.
    """

    def __init__(self, target: Target) -> None:
        self.readings = list[float]()
        point, forest = walk_point(WORD_NODES, 1, "rows", 8), draw_forest(SMALL)
        self._timed = _prepare([Cell(SMALL, point)], forest, target)[0]

    def read(self) -> float:
        """Time the reference call, and return its nanoseconds per row."""
        self.readings.append(self._timed.take(TICKS))
        return self.readings[-1]


@dataclass
class _Timed:
    """A built cell with its batches, which are used in turn."""

    cell: Cell
    predict: Callable[..., Array]
    batches: Iterator[Array]

    def take(self, calls: int) -> float:
        """Return the nanoseconds per row on one thread, in processor time.

        Several calls are preceded by untimed ones, which bring the model into the caches; single
        rows reach only a part of it each.
        """
        if calls > 1:
            for batch in itertools.islice(self.batches, max(1, MOST_BATCHES // self.cell.batch)):
                self.predict(batch, n_jobs=1)
        begin = time.thread_time()
        for batch in itertools.islice(self.batches, calls):
            self.predict(batch, n_jobs=1)
        return 1e9 * (time.thread_time() - begin) / calls / self.cell.batch


def _prepare(cells: list[Cell], forest: Forest, target: Target) -> list[_Timed]:
    """Build one predictor for a group of cells; return each cell with it and its own batches."""
    from ...predictor.building import build

    work = Workload.of(forest, target)
    least = min(x.batch for x in cells)  # its schedule serves smaller batches, too
    schedules = {
        1 if x.batch == least else x.batch: Space(work, work.start, x.batch, False).write(x.point)
        for x in cells
    }
    predict = build(BuildRequest.of(forest, schedules, target)).predict_margin
    return [_Timed(x, predict, itertools.cycle(_cut_batches(x.batch, forest))) for x in cells]


def time_cells(cells: list[Cell], forest: Forest, target: Target, clock: Clock) -> list[float]:
    """Return the time per row of each cell of a group, divided by that of the clock's call.

    The cells take turns, so that a short disturbance does not affect all turns of one cell. Each
    result is the median of the cell's turns.
    """
    group = _prepare(cells, forest, target)
    calls = [max(1, int(1e9 * TURN_SECONDS / (x.take(1) * x.cell.batch))) for x in group]
    turns = [
        [timed.take(count) / clock.read() for timed, count in zip(group, calls, strict=True)]
        for _ in range(TURNS)
    ]
    return list(map(float, np.median(turns, axis=0)))


def _cut_batches(batch: int, forest: Forest) -> list[Array]:
    """Return distinct batches of rows; if rows are wide, so many that caches do not hold them."""
    numbers = _draw_numbers()
    count = len(numbers) // (batch * forest.n_features)
    if forest.n_features * 4 < WIDE_ROW_BYTES:
        count = min(MOST_BATCHES, count)
    rows = numbers[: count * batch * forest.n_features].reshape(count, batch, forest.n_features)
    return list(rows.astype(forest.row_dtype, copy=False))


@functools.cache
def _draw_numbers() -> Array:
    return np.random.default_rng(1).random(ROW_BYTES // 4, np.float32)


def calibrate(target: Target, show: Callable[[int, int], None] = lambda done, all: None) -> Machine:
    """Measure the durations of operations on this CPU.

    Args:
        target: the CPU that code is made for.
        show: called with the number of timed calls, and the total.

    Raises:
        BuildError: TVM cannot compile.
    """
    near, cells = nearest(shipped_machines(), target), list(list_cells(target))
    forests = {shape: draw_forest(shape) for shape in dict.fromkeys(cell.shape for cell in cells)}
    caches = [measure_caches()]
    times, clock = dict[Cell, float](), Clock(target)
    for group in group_cells(cells):
        forest = forests[group[0].shape]
        times |= zip(group, time_cells(group, forest, target, clock), strict=True)
        show(len(times), len(cells))
    caches.append(measure_caches())  # others on the machine take from them, now less, now more
    here = replace(near, cache_bytes=min(caches) or near.cache_bytes)
    works = {x: Workload(canonicalize(forest), target, here) for x, forest in forests.items()}
    counts = [count_operations(x.point, works[x.shape], x.batch) for x in cells]
    names = sorted({name for count in counts for name, x in count.items() if x})
    matrix = np.array([[count.get(name, 0.0) for name in names] for count in counts])
    expected = np.array([guess(name) for name in names])
    reading = float(np.median(clock.readings))
    solved = solve(matrix, reading * np.array([times[x] for x in cells]), expected)
    found = dict(zip(names, solved.tolist(), strict=True))
    origin = f"measured {time.strftime('%Y-%m-%d')} by code for {target.to_dict()}"
    abilities = frozenset(x for x in TELLING if target.has(x))
    return Machine(cpu_name(), cpu_vendor(), (), abilities, here.cache_bytes, found, origin)


def solve(counts: Array, times: Array, expected: Array) -> Array:
    """Return float64 (O,), durations that best explain the calls, none of them near zero.

    Errors are relative to both the measured and the predicted time: being off by a factor is as bad
    in either direction.

    Args:
        counts: float64 (C, O), how often each call does each operation.
        times: float64 (C,), durations of the calls.
        expected: float64 (O,), approximate durations of operations; errors relative to these count
            `BELIEF` times as much.
    """
    found, scale = expected, times
    for _ in range(ROUNDS):
        found = _descend(counts / scale[:, None], times / scale, expected, found)
        explained = counts @ found
        off = np.abs(np.log(times / explained))
        scale = np.sqrt(times * explained * np.maximum(1.0, off / TRUSTED))
    return found


def _descend(counts: Array, times: Array, expected: Array, start: Array) -> Array:
    """Return the least-squares durations, float64 (O,), by coordinate descent.

    Args:
        counts, times: see `solve`, both divided by the scale of each call's error.
        expected: see `solve`; no result is less than `LEAST_SHARE` of it.
        start: float64 (O,), the durations to begin with.
    """
    squares = counts.T @ counts + np.diag((BELIEF / expected) ** 2)
    slope = counts.T @ times + BELIEF**2 / expected
    found = start.copy()
    for _ in range(DESCENTS):
        before = found.copy()
        for i in range(len(found)):
            wanted = found[i] + (slope[i] - squares[i] @ found) / squares[i, i]
            found[i] = max(LEAST_SHARE * expected[i], wanted)
        if np.max(np.abs(found - before) / expected) < SETTLED:
            break
    return found
