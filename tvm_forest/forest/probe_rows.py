"""Generates rows from a model's thresholds, so that wrong code gives wrong predictions for them.

takes: Forest; gives: rows (R, row_width) in the forest's row dtype, and rows of objects with
categories.

Random Gaussian rows hide a wrong comparison, because they never meet a threshold. `hard_rows` are
thresholds, their neighbours and the special numbers; `typical_rows` take realistic paths and serve
for timing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import Array, Forest

_WORD = (1 << 64) - 1
_UNDONE = pow(0x9DDFEA08EB382D69, -1, 1 << 64)  # CityHash's multiplier
_UNKNOWN: tuple[Any, ...] = ("", "never seen", "\u00e9", b"\xff", 0, -1, 2**63 - 1, True)
"""Categories that models are unlikely to know."""

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)


def hard_rows(forest: Forest, n: int, seed: int = 0) -> Array:
    """Return rows with values on thresholds, their float neighbours, and special numbers.

    One value in four is special: NaN, infinities, signed zeros, denormals, the largest floats, the
    bound below which LightGBM reads a number as zero, the model's own number for a missing value.
    Categorical features get categories of the model's sets, other categories, and numbers that are
    no category. Features without thresholds get special numbers only.

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


def given_rows(forest: Forest, rows: Array, seed: int = 0) -> Array:
    """Return rows as users pass them to a forest with an encoder.

    About one category in eight is unknown to the model: an integer, a text or bytes. The others are
    texts made up to have the hashes that the model knows, since it does not store the texts.

    Args:
        forest: a forest with an encoder.
        rows: (R, row_width), rows as walks read them, of which only the columns of numbers count.
        seed: the same seed gives the same categories.

    Returns:
        (R, given_width) objects.
    """
    encoder, rng = forest.encoder, np.random.default_rng(seed)
    assert encoder is not None, "asked for by the caller"
    given = np.full((len(rows), encoder.width), 0.0, object)
    for place, column in enumerate(encoder.numbers):
        given[:, column] = rows[:, place].astype(np.float64)
    for column, codes in zip(encoder.categories, encoder.list_known(), strict=True):
        known: list[Any] = [make_text(int(code)) for code in codes]
        ours = len(known) * (rng.random(len(rows)) < 7 / 8)
        places = np.where(ours, rng.integers(0, max(1, len(known)), len(rows)), -1)
        other = rng.integers(0, len(_UNKNOWN), len(rows))
        given[:, column] = [
            known[at] if at >= 0 else _UNKNOWN[by]
            for at, by in zip(places.tolist(), other.tolist(), strict=True)
        ]
    return given


def make_text(code: int) -> bytes:
    """Return 16 bytes whose CityHash64 has the given low 32 bits.

    The hash of 16 bytes is two rounds of multiplications and shifts, which can be inverted: the
    last 8 bytes are fixed, and the first 8 are computed.
    """
    last = int.from_bytes(b"category", "little")
    turned = (last + 16) & _WORD
    turned = (turned >> 16 | turned << 48) & _WORD
    word = (code ^ last) * _UNDONE & _WORD
    word = (word ^ word >> 47) * _UNDONE & _WORD
    word ^= turned
    first = (word ^ word >> 47) * _UNDONE & _WORD ^ turned
    return first.to_bytes(8, "little") + last.to_bytes(8, "little")


def typical_rows(forest: Forest, n: int, seed: int = 0, missing: float = 0.0) -> Array:
    """Return rows spread over the range in which the thresholds of each feature lie.

    A value is drawn between two neighbouring thresholds of the feature. All gaps are equally
    likely, so that some rows take every branch. Categorical features get categories, and features
    without thresholds normally distributed numbers.

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
    if forest.encoder is not None:
        tests = np.unique(np.concatenate([tests, forest.encoder.tests]), axis=0)
    bounds = np.searchsorted(tests[:, 0], np.arange(forest.n_features + 1))
    return [tests[bounds[f] : bounds[f + 1], 1] for f in range(forest.n_features)]


def _categories(forest: Forest) -> dict[int, Array]:
    """Return numbers to try for each categorical feature: known, unknown and no categories.

    A feature is categorical if a node tests it for a set, or if it has known categories.
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
