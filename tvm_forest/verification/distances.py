"""Computes distances between floats in units of the last place.

takes: arrays of floats; gives: their distances in ulp.
"""

from __future__ import annotations

import numpy as np

from ..forest import Array, Link


def ulps(found: Array, expected: Array) -> Array:
    """Return distances in ulp, uint64: 1 for neighbours, such as -0.0 and 0.0; 0 for two NaN.

    Args:
        found, expected: of the same shape and dtype, float32 or float64.
    """
    one, other = _number_floats(found), _number_floats(expected)
    distance = np.maximum(one, other) - np.minimum(one, other)
    return np.where(np.isnan(found) & np.isnan(expected), np.uint64(0), distance)


def _number_floats(values: Array) -> Array:
    """Map floats to uint64 in the same order, consecutive for neighbours, by way of their bits."""
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * values.dtype.itemsize - 1))
    return np.where(bits & top, ~bits, bits | top).astype(np.uint64)


def row_ulps(
    found: Array | None, expected: Array | None, compared: Array, link: Link = "identity"
) -> Array | None:
    """Return the largest distance in each row, uint64 (N,), in units of the last place.

    Values of the link "logistic" are compared after adding 1, and those of "rounded_softmax" as
    float32, since this is what `LINK_ULPS` bounds.

    Args:
        found: (R, C), numbers of the compiled model, or None.
        expected: (N, C), numbers of the other, only for the rows that are compared, or None.
        compared: bool (R,), true for the N rows that are compared.
        link: the link that made the numbers; "identity" for margins.

    Returns:
        None if one of the two is None.
    """
    if found is None or expected is None:
        return None
    found, expected = found[compared], np.asarray(expected, found.dtype)
    if link == "rounded_softmax":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    if link == "logistic":
        one = found.dtype.type(1)
        found, expected = found + one, expected + one
    return ulps(found, expected).max(axis=1, initial=0)
