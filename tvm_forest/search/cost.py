"""What a point of the space may cost, before anything is compiled, and after a few were measured.

takes: Point, Facts, size of batch, measured times; gives: logarithms of nanoseconds of a hop.

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
from .facts import Facts
from .space import Point

ALIKE = {"tile": 0.6, "layout": 1.0, "order": 1.0, "walks": 0.25, "hops": 0.25, "cache": 0.3}
"""How far two points are apart that differ in a parameter; walks and blocks count their octaves."""

BLOCK = 0.45
ERR, ERR_OF_ALL, NOISE = 0.2, 0.6, 0.03
"""How far prices are off: for one point, for all points alike, and by chance each time. Of the 40
fastest points of a search, prices are off by 0.07 to 0.12, of all by 0.08 to 0.3."""


FAILED = 1.5
"""How much worse than expected what cannot be built is taken to be, in logarithms."""


def words_of(point: Point, facts: Facts, batch: int) -> dict[str, float]:
    """Return the words that describe a point and how much there is of each."""
    kind = point.layout + (f" in {point.tile}" if point.tile > 1 else "")
    way = f"{point.order} {point.walks}"
    block = "whole" if not point.block else f"blocks {point.block}"
    found = {kind: 1.0, way: 1.0, point.hops: 1.0, block: 1.0, f"cache {point.cache}": 1.0}
    pairs = ((kind, way), (kind, point.hops), (way, point.hops), (kind, block))
    found |= {f"{a}, {b}": 1.0 for a, b in pairs}
    counts = _counts_of(facts, batch)
    scaled = (kind, point.order, point.hops)
    found |= {f"{name} * {word}": x for word in scaled for name, x in counts.items()}
    if point.layout == "bitsliced":
        of_block, of_each_row = facts.slicing[point.block]
        row = of_block / min(point.block, batch) + of_each_row
        found["by bits"] = math.log(row / facts.hops)
    return found


def _counts_of(facts: Facts, batch: int) -> dict[str, float]:
    """Return what scales prices, each between -2 and 2 or so."""
    return {
        "rows": math.log2(batch) / 4 - 1,
        "hops": math.log2(facts.hops) / 4 - 2.5,
        "nodes": math.log2(facts.nodes / facts.trees) / 4 - 2,
        "columns": math.log2(0.001 + facts.columns / facts.hops) / 4 + 1,
        "lopsided": 2 * facts.lopsided - 1.5,
        "outputs": float(facts.outputs > 1),
        "vectors": float(facts.vectors),
        "wide": float(facts.wide),
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


def priced(
    points: Sequence[Point], facts: Facts, batch: int, prices: Mapping[str, float] | None = None
) -> Array:
    """Return float64 (P,), the expected logarithm of the nanoseconds of a hop of a row.

    Args:
        points: of one space.
        facts: of its model.
        batch: rows of a call.
        prices: of words; those that are shipped if None. A word without a price costs nothing.
    """
    prices = known_prices(facts.vendor) if prices is None else prices
    return np.array(
        [
            sum(x * prices.get(word, 0.0) for word, x in words_of(p, facts, batch).items())
            for p in points
        ]
    )


class Belief:
    """What is expected of each point, given what some of them have taken."""

    def __init__(self, points: Sequence[Point], expected: Array) -> None:
        """Start with the prices of P points."""
        self._expected = expected
        self._alike = ERR**2 * np.exp(-_distances(points)) + ERR_OF_ALL**2
        self.known: dict[int, float] = {}

    def learn(self, place: int, hop: float) -> None:
        """Take note of the nanoseconds of a hop at a point; infinity if it cannot be built."""
        failed = float(self.now()[0][place]) + FAILED
        self.known[place] = math.log(hop) if hop < math.inf else failed

    def now(self) -> tuple[Array, Array]:
        """Return float64 (P,) each: what is expected, and how far off that may be.

        Where the measured points are farther off than they should be, so may be the others.
        """
        at = list(self.known)
        if not at:
            return self._expected, np.sqrt(np.diag(self._alike))
        known = self._alike[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        weights = np.linalg.solve(known, self._alike[at])
        error = np.array([self.known[i] - self._expected[i] for i in at])
        spread = np.diag(self._alike) - np.sum(self._alike[at] * weights, axis=0)
        off = max(1.0, float(error @ np.linalg.solve(known, error)) / len(at))
        return self._expected + error @ weights, np.sqrt(np.maximum(off * spread, 0.0))


def _distances(points: Sequence[Point]) -> Array:
    """Return float64 (P, P), how little two points have in common."""
    found = np.zeros((len(points), len(points)))
    octave = np.array([math.log2(p.block or 1 << 13) for p in points])
    found += BLOCK * np.abs(octave[:, None] - octave)
    for name, far in ALIKE.items():
        values = [getattr(p, name) for p in points]
        places = {value: i for i, value in enumerate(dict.fromkeys(values))}
        scale = {v: math.log2(v) if type(v) is int else 10.0 * i for v, i in places.items()}
        own = np.array([scale[value] for value in values])
        found += far * np.minimum(np.abs(own[:, None] - own), 4.0 if name == "walks" else 1.0)
    return found
