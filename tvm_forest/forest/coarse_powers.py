"""CatBoost's own approximate exponential function.

takes: float64 numbers; gives: their exponentials, by numpy, and the table that compiled code needs
too.

    x = (i / 2048) * ln 2 - t,  i a whole number
    e^x = 2^(i // 2048) * 2^(i % 2048 / 2048) * (1 - t + t^2 (3 - t) / 6)

The second factor comes from a table. CatBoost computes the exponentials of an array four at a time,
and the remaining one to three one by one. The results differ only for extreme numbers: one by one,
numbers below `LEAST_POWER` give 0 and NaN gives NaN; four at a time, they give e^`LEAST_POWER`, and
infinity. (The algorithm is Mitsunari Shigeo's, of the library fmath.)
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from .rules import Array, Link

LEAST_POWER = -708.39641853226408
"""Least exponent; for smaller x, e^x is e^LEAST_POWER, or 0 if computed alone."""
GREATEST_POWER = 709.78272569338397
"""Greatest exponent; for this and larger x, e^x is infinity."""

LANES = 4
"""Number of exponentials that CatBoost computes at once."""

TABLE_BITS = 11
STEPS_IN_ONE = (1 << TABLE_BITS) / math.log(2.0)
"""Number of table steps in a factor of e; one step is a factor of 2^(1/2048)."""
ONE_STEP = 1 / STEPS_IN_ONE
ROUNDING = 1.5 * 2.0**52
"""Constant that is added to a small number, so that its low bits hold the nearest integer."""
SIXTH, THREE = 0.16666666685227835064, 3.0000000027955394
"""Coefficients of the series, approximately 1/6 and 3."""

COARSE_LINKS: tuple[Link, ...] = ("coarse_exp", "coarse_softmax", "variance")
"""Links that use this exponential."""

ULPS_ELSEWHERE = 1024
"""Largest allowed difference from CatBoost's values on other processors than x86, in ulp.

CatBoost uses another function there. The errors of both functions grow with the exponent.
"""


@cache
def power_table() -> Array:
    """Return the 52 mantissa bits of 2^(i / 2048) as a float64, for all i, int64 (2048,).

    As in CatBoost, the powers are those of the machine's C library.
    """
    steps = 1 << TABLE_BITS
    powers = np.array([math.pow(2.0, i / steps) for i in range(steps)])
    return powers.view(np.int64) & ((1 << 52) - 1)


def take_powers(x: Array, alone: Array) -> Array:
    """Return e^x, float64, as CatBoost computes it.

    Args:
        x: float64 of any shape.
        alone: bool, broadcast to the shape of x: which elements are computed one by one.
    """
    kept = np.where(x < GREATEST_POWER, x, GREATEST_POWER)
    kept = np.where(kept > LEAST_POWER, kept, LEAST_POWER)
    shifted = kept * STEPS_IN_ONE + ROUNDING
    number = shifted.view(np.int64) - np.float64(ROUNDING).view(np.int64)
    t = (shifted - ROUNDING) * ONE_STEP - kept
    near_one = (THREE - t) * (t * t) * SIXTH - t + 1.0
    exponent = ((number >> TABLE_BITS) + 1023) << 52
    power = near_one * (exponent | power_table()[number % (1 << TABLE_BITS)]).view(np.float64)
    power = np.where(alone & (x <= LEAST_POWER), 0.0, power)
    return np.where(alone & np.isnan(x), x, power)


def are_alone(count: int) -> Array:
    """Return bool (count,), which elements of an array CatBoost computes one by one.

    They are the last one to three; none if `count` is a multiple of 4.
    """
    return np.arange(count) >= count // LANES * LANES


def sum_powers(margin: Array) -> tuple[Array, Array, Array]:
    """Return the maximum, the denominator and the numerators of a softmax.

    Args:
        margin: float64 (R, C).

    Returns:
        the largest margins (R, 1), the sums of e^(margin - largest) (R, 1), and these exponentials
        (R, C).
    """
    top = margin[:, :1]
    for column in margin.T[1:, :, None]:
        top = np.where(top < column, column, top)  # NaN is never larger
    powers = take_powers(margin - top, are_alone(margin.shape[1]))
    return top, np.cumsum(powers, axis=1)[:, -1:], powers
