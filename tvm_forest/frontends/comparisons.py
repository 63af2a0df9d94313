"""Nodes that compare in several ways, as nodes that compare in one.

takes: kinds of comparisons and thresholds; gives: one comparison, and thresholds for it.
"""

from __future__ import annotations

import numpy as np

from ..forest import Array, Comparison


def one_comparison(
    strict: Array, reverse: Array, threshold: Array, only: Array
) -> tuple[Comparison, Array, Array]:
    """Write `<`, `<=`, `>` and `>=` as one of `<` and `<=`, for rows in the dtype of thresholds.

    `x >= t` is `x < t` with its children exchanged, `x < t` is `x <= nextafter(t, -inf)`.

    Args:
        strict: bool (N,), whether a node asks for `<`, or for `>=` with its children exchanged.
        reverse: bool (N,), whether it asks for `>` or `>=`.
        threshold: (N,).
        only: bool (N,), nodes that compare; others count for nothing.

    Returns:
        The comparison, the thresholds, and bool (N,), which nodes must exchange their children.
    """
    if not np.any(only & ~strict) and np.any(only & strict):
        return "<", threshold, reverse
    lowest = strict & (threshold == -np.inf)  # nothing is below: `x <= inf`, exchanged
    top = threshold.dtype.type(np.inf)
    with np.errstate(all="ignore"):
        below = np.where(lowest, top, np.nextafter(threshold, -top))
    return "<=", np.where(strict, below, threshold), reverse ^ lowest
