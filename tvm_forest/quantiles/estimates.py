"""Computes quantiles and means of the samples that rows reach, as quantile-forest defines them.

takes: Tallies, leaves of rows; gives: float64 arrays.

quantile-forest has three definitions of the quantile q of n samples:

    weighted     the first training row at which the weights pass q (n - 1) + 1, and the one before
    unweighted   the sorted samples at place q (n - 1)
    single       the same by `numpy.quantile`, if each leaf has one sample

They differ in rounding, and the first one in how it interpolates rows that count several times.
The operations are those of the library, in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array
from ..runtime.results import SHARED
from .tallies import Tallies

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")

ROUNDINGS: dict[str, Any] = {"lower": np.floor, "higher": np.ceil, "nearest": np.around}
"""For the definition "single", the rounding of places by interpolations that take one sample."""

MEAN = "mean"

MAX_NUMBERS = 1 << 22
"""Number of leaves, or of results, that are computed together."""

TIE = 1e-16
"""Largest distance from 0.5 at which a fraction counts as midway between two samples."""


class Asked(NamedTuple):
    """The estimates that a user asks for.

    Attributes:
        quantiles: float64 (Q,), from 0 to 1; None for the mean.
        interpolation: one of `INTERPOLATIONS`.
        weighted: whether quantiles are weighted, see the module.
        shared: whether the samples of a leaf share one weight.
        together: whether the samples of all trees are pooled; otherwise the estimates of trees are
            averaged.
    """

    quantiles: Array | None
    interpolation: str = "linear"
    weighted: bool = True
    shared: bool = False
    together: bool = True

    @property
    def width(self) -> int:
        """Q, the number of results for each row and target."""
        return 1 if self.quantiles is None else len(self.quantiles)


def read_asked(
    where: str, quantiles: Any, interpolation: str, weighted: bool, shared: bool, together: bool
) -> Asked:
    """Check the arguments of a user, which are the attributes of `Asked`, and return them as such.

    `where` begins messages.

    Raises:
        InputError: there is no such quantile or interpolation.
        UnsupportedModel: leaves share weights, but trees are averaged.
    """
    if interpolation not in INTERPOLATIONS:
        raise InputError(
            f"{where}: argument 'interpolation': {interpolation!r} is not there (have: "
            f"{', '.join(INTERPOLATIONS)})"
        )
    shared = bool(shared and weighted)
    if shared and not together:
        raise UnsupportedModel(
            f"{where}: argument 'weighted_leaves': trees that are averaged have no weights; leave "
            "out 'aggregate_leaves_first=False'"
        )
    if quantiles is None or (isinstance(quantiles, str | list) and quantiles in (MEAN, [MEAN])):
        return Asked(None, interpolation, bool(weighted), shared, bool(together))
    try:
        wanted: Array = np.atleast_1d(np.asarray(quantiles, np.float64))
    except (TypeError, ValueError):
        wanted = np.full(1, np.nan)
    if wanted.ndim != 1 or not len(wanted) or not ((wanted >= 0) & (wanted <= 1)).all():
        raise InputError(
            f"{where}: argument 'quantiles': expected numbers from 0 to 1, or 'mean', got "
            f"{quantiles!r:.200}"
        )
    return Asked(wanted, interpolation, bool(weighted), shared, bool(together))


def estimate(tallies: Tallies, leaves: Array, asked: Asked, n_jobs: int | None) -> Array:
    """Compute estimates for rows, float64 (R, C, Q), NaN where a row reaches no sample.

    Args:
        tallies: the tallies of the model.
        leaves: int32 (R, T), the leaves that rows reach.
        asked: which estimates.
        n_jobs: see `Predictor.predict`.
    """
    samples = tallies.samples
    found = np.empty((len(leaves), samples.n_outputs, asked.width))
    for output in range(samples.n_outputs):
        part = _Estimate(tallies, asked, output, n_jobs)
        if asked.together or samples.single:
            found[:, output] = part.of_rows(leaves)
        else:
            found[:, output] = part.of_trees(leaves)
    return found


class _Estimate(NamedTuple):
    """Computes the estimates of rows for one of the targets, whose index is `output`."""

    tallies: Tallies
    asked: Asked
    output: int
    n_jobs: int | None

    def of_rows(self, leaves: Array) -> Array:
        """Return estimates (R, Q) from the pooled samples of each row."""
        single = self.tallies.samples.single
        if self.asked.quantiles is None:
            return (self._average_single if single else self._average)(leaves)[:, None]
        if single:
            return self._select_single(leaves, self.asked.quantiles)
        return self._select(leaves, self.asked.quantiles)

    def of_trees(self, leaves: Array) -> Array:
        """Return (R, Q), the mean over the trees of the estimate from the samples of each leaf."""
        samples = self.tallies.samples
        used = np.flatnonzero(samples.sizes)
        of_leaf = np.full((len(samples.sizes), self.asked.width), np.nan)
        for begin in range(0, len(used), MAX_NUMBERS):
            part = used[begin : begin + MAX_NUMBERS]
            of_leaf[part] = self.of_rows(part.astype(np.int32)[:, None])
        total, count = np.zeros((2, len(leaves), self.asked.width))
        for tree, offset in enumerate(samples.offsets):
            found = of_leaf[offset + leaves[:, tree]]
            known = ~np.isnan(found)
            total[known] += found[known]
            count += known
        with np.errstate(invalid="ignore"):
            return total / count

    def _run(self, name: str, leaves: Array, *inputs: Array) -> list[Array]:
        return self.tallies.run(name, leaves, self.output, inputs, self.n_jobs)

    def _totals(self, leaves: Array) -> Array:
        """Return the number of samples of each row, float64 (R,)."""
        return self._run("totals", leaves)[0].astype(np.float64)

    def _average(self, leaves: Array) -> Array:
        if not self.asked.weighted:
            return self._run("mean_in_order", leaves)[0]
        if self.asked.shared:
            return self._run("mean" + SHARED, leaves, self._totals(leaves))[0]
        return self._run("mean", leaves)[0]

    def _average_single(self, leaves: Array) -> Array:
        samples, means = self.tallies.samples, np.empty(len(leaves))
        values = samples.values[self.output][samples.ranks[self.output]]
        place = samples.starts[:-1]
        for begin in range(0, len(leaves), step := max(1, MAX_NUMBERS // leaves.shape[1])):
            nodes = samples.offsets + leaves[begin : begin + step]
            means[begin : begin + step] = values[place[nodes]].mean(axis=1)
        return means

    def _select(self, leaves: Array, quantiles: Array) -> Array:
        totals = self._totals(leaves)
        inputs, sums, suffix = [], totals, ""
        if self.asked.shared:
            sums, suffix = self._run("totals" + SHARED, leaves, totals)[0], SHARED
            inputs = [totals]
        steps = (sums + 1.0 - 2.0)[:, None]
        passed = quantiles * steps + 1.0
        if not self.asked.weighted:
            found = self._select_unweighted(leaves, passed, totals)
        else:
            thresholds = passed if self.asked.shared else np.floor(passed).astype(np.int64)
            selected = self._run("select" + suffix, leaves, *inputs, thresholds)
            found = self._interpolate_weighted(quantiles, steps, *selected)
        return np.where((totals > 0)[:, None], found, np.nan)

    def _at(self, ranks: Array) -> Array:
        values: Array = self.tallies.samples.values[self.output][ranks]
        return values

    def _find_places(self, leaves: Array, *places: Array) -> list[Array]:
        """Return the targets of some samples of each row, by their places in ascending order.

        Args:
            leaves: int32 (R, T), the leaves that rows reach.
            places: arrays (R, Q) or (1, Q) of places, whole numbers; that of the smallest is 0.

        Returns:
            For each array of places, the targets of the samples there, float64 (R, Q).
        """
        thresholds = np.concatenate(np.broadcast_arrays(*places), axis=1)
        thresholds = np.ascontiguousarray(thresholds, np.int64)
        if len(thresholds) < len(leaves):
            thresholds = np.repeat(thresholds, len(leaves), axis=0)
        ceil = self._run("select", leaves, thresholds)[1]
        return np.split(self._at(ceil), len(places), axis=1)

    def _select_unweighted(self, leaves: Array, passed: Array, totals: Array) -> Array:
        places = np.clip(passed - 1.0, 0.0, np.maximum(totals - 1.0, 0.0)[:, None])
        lower = np.floor(places)
        low, high = self._find_places(leaves, lower, np.ceil(places))
        fraction, rule = places - lower, self.asked.interpolation
        if rule == "nearest":
            is_tie, is_even = np.abs(fraction - 0.5) < TIE, lower % 2 == 0
            return np.where(np.where(is_tie, is_even, fraction < 0.5), low, high)
        return np.where(low == high, low, _interpolate(rule, low, high, fraction))

    def _interpolate_weighted(
        self, quantiles: Array, steps: Array, floor: Array, ceil: Array, below: Array, weight: Array
    ) -> Array:
        """Return weighted quantiles, interpolated between the values around thresholds.

        Args:
            quantiles: (Q,).
            steps: (R, 1), the sum of weights minus 1.
            floor, ceil: (R, Q), ranks of the values before and after each threshold.
            below: (R, Q), the sum of the weights of all values below that at `ceil`.
            weight: (R, Q), the weight of the value at `ceil`.
        """
        low, high, rule = self._at(floor), self._at(ceil), self.asked.interpolation
        with np.errstate(divide="ignore", invalid="ignore"):
            begin = np.minimum(quantiles, (below - 1.0) / steps)
            end = np.maximum(quantiles, (below + weight - 1.0) / steps)
            end = begin + (end - begin) / weight
            fraction = (quantiles - begin) / (end - begin)
        if rule == "nearest":
            is_tie, is_odd = np.abs(fraction - 0.5) < TIE, below % 2 != 0
            found = np.where(np.where(is_tie, is_odd, fraction < 0.5), low, high)
        else:
            found = _interpolate(rule, low, high, fraction)
        found = np.where(fraction <= 0, low, np.where(fraction >= 1, high, found))
        found = np.where(quantiles >= end, high, found)
        return np.where((floor == ceil) | (low == high), low, found)

    def _select_single(self, leaves: Array, quantiles: Array) -> Array:
        """Return quantiles (R, Q) as `numpy.quantile` does, where each leaf has one sample."""
        last, rule = leaves.shape[1] - 1, self.asked.interpolation
        places = last * quantiles
        if rule in ROUNDINGS:
            return self._find_places(leaves, ROUNDINGS[rule](places)[None])[0]
        if rule == "midpoint":
            places = 0.5 * (np.floor(places) + np.ceil(places))
        lower = np.floor(places)
        fraction = places - lower
        low, high = self._find_places(leaves, lower[None], np.minimum(lower + 1, last)[None])
        difference = high - low
        return np.where(
            fraction >= 0.5, high - difference * (1 - fraction), low + difference * fraction
        )


def _interpolate(rule: str, low: Array, high: Array, fraction: Array) -> Array:
    if rule == "linear":
        return low + fraction * (high - low)
    return {"lower": low, "higher": high}[rule] if rule != "midpoint" else 0.5 * (low + high)
