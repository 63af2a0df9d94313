"""Rows made from a model's own thresholds: the rows on which wrong code shows.

takes: Forest; gives: rows (R, F) in the forest's row dtype.

Random Gaussian rows hide a wrong comparison, because they never meet a threshold. `hard_rows` are
thresholds, their neighbours and the special numbers; `typical_rows` take realistic paths and serve
for timing.
"""

from __future__ import annotations

import numpy as np

from .forest import Array, Forest

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)


def hard_rows(forest: Forest, n: int, seed: int = 0) -> Array:
    """Return rows whose values lie on thresholds, right beside them, or are special numbers.

    One value in four is special: NaN, infinities, signed zeros, denormals, the largest floats, the
    bound below which LightGBM reads a number as zero, the model's own number for a missing value.
    Features of categories get categories of the model's sets, other categories, and numbers that
    are none.

    Args:
        forest: model whose thresholds are used.
        n: number of rows, R.
        seed: the same seed gives the same rows.
    """
    rng = np.random.default_rng(seed)
    dtype = np.dtype(forest.row_dtype)
    info = np.finfo(dtype)
    zero = _with_neighbours(np.array([1e-35, -1e-35], dtype)) if forest.zero_missing else ()
    own = () if forest.missing is None else (forest.missing,)
    limits = (info.tiny / 4, -info.tiny / 4, info.max, info.min)
    special = np.array([*SPECIAL, *limits, *zero, *own], dtype)
    rows = np.empty((n, forest.row_width), dtype)
    categories = _categories(forest)
    for feature, thresholds in enumerate(_thresholds(forest)[: forest.row_width]):
        near = _with_neighbours(thresholds.astype(dtype)) if thresholds.size else special
        rows[:, feature] = rng.choice(categories.get(feature, near).astype(dtype), n)
    wild = np.less(rng.random(rows.shape), 0.25)
    rows[wild] = rng.choice(special, int(wild.sum()))
    return rows


def typical_rows(forest: Forest, n: int, seed: int = 0, missing: float = 0.0) -> Array:
    """Return rows spread over the range in which the thresholds of each feature lie.

    Values are drawn between two neighbouring thresholds of the feature, all gaps being equally
    likely, so that every branch is taken by some rows.

    Args:
        forest: model whose thresholds are used.
        n: number of rows, R.
        seed: the same seed gives the same rows.
        missing: share of values, 0 to 1, that are NaN.
    """
    rng = np.random.default_rng(seed)
    rows = np.empty((n, forest.row_width), forest.row_dtype)
    categories = _categories(forest)
    for feature, thresholds in enumerate(_thresholds(forest)[: forest.row_width]):
        if feature in categories:
            codes = categories[feature]
            rows[:, feature] = rng.choice(codes[(codes >= 0) & (codes == np.floor(codes))], n)
            continue
        finite = thresholds[np.isfinite(thresholds)]
        points = np.concatenate([finite[:1] - 1, finite, finite[-1:] + 1])
        if finite.size == 0:
            rows[:, feature] = rng.normal(size=n)
            continue
        gap = rng.integers(0, len(points) - 1, n)
        rows[:, feature] = points[gap] + rng.random(n) * (points[gap + 1] - points[gap])
    rows[rng.random(rows.shape) < missing] = np.nan
    return rows


def _thresholds(forest: Forest) -> list[Array]:
    """Return the sorted distinct thresholds of each feature."""
    tests = forest.tests
    bounds = np.searchsorted(tests[:, 0], np.arange(forest.n_features + 1))
    return [tests[bounds[f] : bounds[f + 1], 1] for f in range(forest.n_features)]


def _categories(forest: Forest) -> dict[int, Array]:
    """Return numbers to try for features of categories: known and unknown ones, and others.

    Features of categories are those that a node tests for a set, or with known categories.
    """
    tested = [(int(forest.feature[node]), codes) for node, codes in forest.categories.items()]
    pools: dict[int, set[float]] = {}
    for feature, codes in (*tested, *forest.derived, *forest.known_categories.items()):
        pools.setdefault(feature, set()).update(map(float, codes))
    odd = {-1.0, -0.5, 0.0, 0.5, 2.0**24 - 1, 2.0**24, 1e9}
    return {
        feature: np.array(sorted(pool | {max(pool, default=0.0) + 1} | odd))
        for feature, pool in pools.items()
    }


def _with_neighbours(values: Array) -> Array:
    up, down = values.dtype.type(np.inf), values.dtype.type(-np.inf)
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate([values, np.nextafter(values, up), np.nextafter(values, down)])
