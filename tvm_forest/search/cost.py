"""The cost model: adds up how often a point does each operation, times the operation's duration.

takes: Point, Workload, batch size, Machine; gives: nanoseconds per row, part by part.

    operation              how often for a row                    example: airline, 4,096 rows
    call                   1 / rows of the batch                  1 / 4,096
    walk slot 512          slots of complete trees over 512 rows  25,600 / 512
    leaf bitsliced 256     trees of at most 256 leaves            100

The first word of an operation is the part that it belongs to: "call", "code" (rows become codes),
"start" (of a tree, for a block or group), "walk", "wait" (for loads from farther caches), "leaf"
(look-ups and additions). The durations of operations on a machine are data, see `machines`.
Measurements of a search correct the prices: similar points have similar errors (a Gaussian process
over the parameters). Durations missing in a machine's file are guessed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..forest import Array
from ..layouts import BIT_PLANES, OCTETS, PERMUTED, PIECES
from .guesses import guess
from .hop_walks import HopWalks
from .machines import Machine
from .operations import (
    Operation,
    PointTable,
    count_octets,
    count_permutes,
    count_pieces,
    count_planes,
)
from .space import Point, Space, SpaceKey, list_points
from .workload import Workload

DISTANCES = {"tile": 0.6, "layout": 1.0, "order": 1.0, "walks": 0.25, "hops": 0.25, "cache": 0.3}
"""Distance between two points that differ in a parameter; numbers of walks count by octaves."""

BLOCK_DISTANCE = 0.45
"""Distance between two points for each factor of two between their block sizes."""

POINT_ERROR, COMMON_ERROR, NOISE = 0.2, 0.6, 0.03
"""Standard deviations of the error in the logarithm of a time: of one point's price, of all prices
together, and of each measurement."""

FAILURE = 1.5
"""Number added to the logarithm of the expected time of a point that turns out not to build."""


_VECTOR_WALKS: dict[str, Callable[[PointTable, Workload], Iterator[Operation]]] = {
    BIT_PLANES: count_planes,
    PERMUTED: count_permutes,
    OCTETS: count_octets,
    PIECES: count_pieces,
}
"""Functions that count the operations of layouts walked only by vectors, by layout."""

_HOPS = "hops"
"""Name of the family of all other layouts, which walk hop by hop."""


class _Family(NamedTuple):
    """Points whose operations are counted together.

    Attributes:
        layout: their layout, or `_HOPS`.
        at: int (F,), their indices among all points.
        table: their common properties.
    """

    layout: str
    at: Array
    table: PointTable

    def list_operations(self, work: Workload) -> Iterator[Operation]:
        """Yield the operations of these points, with their counts."""
        yield self.table.name("call", 1 / self.table.batch)
        if isinstance(self.table, HopWalks):
            yield from self.table.count(work)
        else:
            yield from _VECTOR_WALKS[self.layout](self.table, work)


def _tabulate(points: Sequence[Point], batches: Sequence[int]) -> list[_Family]:
    """Group points by how their operations are counted."""
    families: dict[str, list[int]] = {}
    for at, point in enumerate(points):
        name = point.layout if point.layout in _VECTOR_WALKS else _HOPS
        families.setdefault(name, []).append(at)
    found = list[_Family]()
    for name, places in families.items():
        make = HopWalks if name == _HOPS else PointTable
        table = make([points[x] for x in places], [batches[x] for x in places])
        found.append(_Family(name, np.array(places), table))
    return found


@functools.lru_cache(maxsize=16)
def _tabulate_spaces(keys: tuple[SpaceKey, ...]) -> list[_Family]:
    """Group the points of some spaces; similar models share the cached result."""
    points = [(point, key.batch) for key in keys for point in list_points(key)]
    return _tabulate(*zip(*points, strict=True))


def count_operations(point: Point, work: Workload, batch: int) -> dict[str, float]:
    """Return how often each operation is done per row, averaged over the rows of a batch."""
    (family,) = _tabulate([point], [batch])
    return {x.names[x.of[0]]: float(np.ravel(x.counts)[0]) for x in family.list_operations(work)}


def price(point: Point, work: Workload, batch: int, machine: Machine | None = None) -> float:
    """Return the price of a point: the expected nanoseconds per row on one thread."""
    return sum(price_parts(point, work, batch, machine).values())


def price_parts(
    point: Point, work: Workload, batch: int, machine: Machine | None = None
) -> dict[str, float]:
    """Return expected nanoseconds per row, by part: "call", "code", "start", "walk" and so on."""
    (family,) = _tabulate([point], [batch])
    parts = _price_parts(family, work, machine or work.machine)
    return {name: float(taken[0]) for name, taken in parts.items()}


def _price_parts(family: _Family, work: Workload, machine: Machine) -> dict[str, Array]:
    """Return the nanoseconds of each part, float64 (F,), for the points of a family."""
    times, parts = machine.nanoseconds, dict[str, Any]()
    for names, of, counts in family.list_operations(work):
        part = names[0].partition(" ")[0]
        taken = np.array([times.get(name, guess(name)) for name in names])
        parts[part] = parts.get(part, 0.0) + counts * taken[of]
    return parts


def price_spaces(spaces: Sequence[Space]) -> list[Array]:
    """Return float64 (P,) for each space of a model: the prices of its candidates, see `price`."""
    work, ends = spaces[0].facts, np.cumsum([len(space.candidates()) for space in spaces])
    prices = np.zeros(ends[-1])
    for family in _tabulate_spaces(tuple(space.key for space in spaces)):
        prices[family.at] = sum(_price_parts(family, work, work.machine).values())
    return np.split(prices, ends[:-1])


def estimate(points: Sequence[Point], work: Workload, batch: int) -> Array:
    """Return float64 (P,), for each point the log of the expected nanoseconds per hop of a row."""
    prices = np.zeros(len(points))
    for family in _tabulate(points, [batch] * len(points)):
        prices[family.at] = sum(_price_parts(family, work, work.machine).values())
    return np.log(prices / max(1, work.hops))


class Surrogate:
    """Predicts the time of each point from its price and from the points measured so far."""

    def __init__(self, points: Sequence[Point], expected: Array) -> None:
        """Start with P points, and with what `estimate` expects of them, float64 (P,)."""
        self._expected = expected
        self._covariance = POINT_ERROR**2 * np.exp(-_distances(points)) + COMMON_ERROR**2
        self.known: dict[int, float] = {}

    def learn(self, place: int, hop: float) -> None:
        """Record the nanoseconds per hop of the point at this index; infinity if not built."""
        failed = float(self.predict()[0][place]) + FAILURE
        self.known[place] = math.log(hop) if hop < math.inf else failed

    def predict(self) -> tuple[Array, Array]:
        """Return the expected value and standard deviation of each point, float64 (P,) each.

        They are of the log of the nanoseconds per hop of a row. If the measured points deviate more
        than expected, the deviations of the others grow too.
        """
        at = list(self.known)
        if not at:
            return self._expected, np.sqrt(np.diag(self._covariance))
        known = self._covariance[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        weights = np.linalg.solve(known, self._covariance[at])
        error = np.array([self.known[i] - self._expected[i] for i in at])
        spread = np.diag(self._covariance) - np.sum(self._covariance[at] * weights, axis=0)
        off = max(1.0, float(error @ np.linalg.solve(known, error)) / len(at))
        return self._expected + error @ weights, np.sqrt(np.maximum(off * spread, 0.0))


def _distances(points: Sequence[Point]) -> Array:
    """Return how much points differ, float64 (P, P); errors of similar points are similar."""
    octaves = np.array([math.log2(point.block or 1 << 13) for point in points])
    distances = BLOCK_DISTANCE * np.abs(octaves[:, None] - octaves)
    for name, distance in DISTANCES.items():
        values = [getattr(point, name) for point in points]
        places = {value: i for i, value in enumerate(dict.fromkeys(values))}
        scale = {v: math.log2(v) if type(v) is int else 10.0 * i for v, i in places.items()}
        positions = np.array([scale[value] for value in values])
        apart = np.abs(positions[:, None] - positions)
        distances += distance * np.minimum(apart, 4.0 if name == "walks" else 1.0)
    return distances
