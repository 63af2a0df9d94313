"""What a point of the space may cost, before anything is compiled, and after a few were measured.

takes: Point, Workload, size of batch, measured times; gives: logarithms of nanoseconds of a hop.

The model is linear: each word that describes a point has a price, alone, beside the words that it
meets, and times the counts of the forest. Prices are logarithms, so they multiply; they come from
records (`benchmarks/fit_prices.py`), those of each vendor of CPUs apart, and lie in `prices.json`.
What has been measured corrects it: points that differ little err alike (a Gaussian process over the
parameters).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..forest import Array
from ..layouts import BIT_PLANES
from .space import Point
from .walk_costs import ns_per_row_by_planes
from .workload import Workload

DISTANCES = {"tile": 0.6, "layout": 1.0, "order": 1.0, "walks": 0.25, "hops": 0.25, "cache": 0.3}
"""How far two points are apart that differ in a parameter; numbers of walks count by octaves."""

BLOCK_DISTANCE = 0.45
"""How far two points are apart for each octave of their blocks."""

POINT_ERROR, COMMON_ERROR, NOISE = 0.2, 0.6, 0.03
"""How far prices are off, in logarithms: for one point, for all points alike, and by chance each
time that a point is measured."""

FAILURE = 1.5
"""How much worse than expected what cannot be built is taken to be, in logarithms."""


def words_of(point: Point, work: Workload, batch: int) -> dict[str, float]:
    """Return the words that describe a point and how much there is of each."""
    kind = point.layout + (f" in {point.tile}" if point.tile > 1 else "")
    way = f"{point.order} {point.walks}"
    block = "whole" if not point.block else f"blocks {point.block}"
    words = {kind: 1.0, way: 1.0, point.hops: 1.0, block: 1.0, f"cache {point.cache}": 1.0}
    pairs = ((kind, way), (kind, point.hops), (way, point.hops), (kind, block))
    words |= {f"{a}, {b}": 1.0 for a, b in pairs}
    counts = _scaled_counts(work, batch)
    scaled = (kind, point.order, point.hops)
    words |= {f"{name} * {word}": x for word in scaled for name, x in counts.items()}
    if point.layout == BIT_PLANES:
        ns = ns_per_row_by_planes(work, point.block, batch)
        words["by bits"] = math.log(ns / max(1, work.hops))
    return words


def _scaled_counts(work: Workload, batch: int) -> dict[str, float]:
    """Return what scales prices, each between -2 and 2 or so."""
    forest, hops = work.forest, max(1, work.hops)
    return {
        "rows": math.log2(batch) / 4 - 1,
        "hops": math.log2(hops) / 4 - 2.5,
        "nodes": math.log2(forest.n_nodes / forest.n_trees) / 4 - 2,
        "columns": math.log2(0.001 + forest.searches / hops) / 4 + 1,
        "lopsided": 2 * work.mean_leaf_depth / max(1.0, work.mean_tree_depth) - 1.5,
        "outputs": float(forest.n_outputs > 1),
        "vectors": float(forest.has_vectors),
        "wide": float(forest.row_dtype == "float64"),
    }


@functools.cache
def shipped_prices() -> dict[str, dict[str, float]]:
    """Return the price of each word on the CPUs of each vendor."""
    return json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))


@functools.cache
def known_prices(vendor: str = "") -> dict[str, float]:
    """Return the price of each word on the CPUs of a vendor; on average if it is not known."""
    every = shipped_prices()
    known = [every[vendor]] if vendor in every else [*every.values()]
    words = dict.fromkeys(word for prices in known for word in prices)
    return {word: sum(prices.get(word, 0.0) for prices in known) / len(known) for word in words}


def estimate(
    points: Sequence[Point], work: Workload, batch: int, prices: Mapping[str, float] | None = None
) -> Array:
    """Return float64 (P,), the expected logarithm of the nanoseconds of a hop of a row.

    Args:
        points: of one space.
        work: its model and machine.
        batch: rows of a call.
        prices: of words; those that are shipped if None. A word without a price costs nothing.
    """
    prices = known_prices(work.target.vendor) if prices is None else prices
    words = (words_of(point, work, batch) for point in points)
    return np.array([sum(x * prices.get(word, 0.0) for word, x in of.items()) for of in words])


priced = estimate
"""The name by which notebooks and users know it."""


class Surrogate:
    """What is expected of each point, given what some of them have taken."""

    def __init__(self, points: Sequence[Point], expected: Array) -> None:
        """Start with the prices of P points."""
        self._expected = expected
        self._covariance = POINT_ERROR**2 * np.exp(-_distances(points)) + COMMON_ERROR**2
        self.known: dict[int, float] = {}

    def learn(self, place: int, hop: float) -> None:
        """Take note of the nanoseconds of a hop at a point; infinity if it cannot be built."""
        failed = float(self.predict()[0][place]) + FAILURE
        self.known[place] = math.log(hop) if hop < math.inf else failed

    def predict(self) -> tuple[Array, Array]:
        """Return float64 (P,) each: what is expected, and how far off that may be.

        Where the measured points are farther off than they should be, so may be the others.
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
    """Return float64 (P, P), how little two points have in common."""
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
