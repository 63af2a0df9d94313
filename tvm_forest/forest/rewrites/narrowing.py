"""Rounds float64 thresholds to float32 where rows are float32, in a way that changes no decision.

takes: Forest; gives: Forest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import Array, Forest


def narrow_thresholds(forest: Forest) -> Forest:
    """Round float64 thresholds to float32 if rows are float32; all decisions stay the same."""
    new = round_thresholds(forest)
    return forest if new.dtype == forest.threshold.dtype else replace(forest, threshold=new)


def round_thresholds(forest: Forest, nodes: slice = slice(None)) -> Array:
    """Return the thresholds of nodes, as `narrow_thresholds` rounds them.

    A float32 number is `<=` a threshold if and only if it is `<=` the largest float32 that is not
    above the threshold, and `<` a threshold if it is `<` the smallest that is not below.
    """
    threshold = forest.threshold[nodes]
    if forest.row_dtype != "float32" or threshold.dtype == np.float32:
        return threshold
    down = forest.comparison == "<="
    with np.errstate(over="ignore", under="ignore"):
        near = threshold.astype(np.float32)
        beyond = near > threshold if down else near < threshold
        moved = np.nextafter(near, np.float32(-np.inf if down else np.inf))
    return np.where(beyond, moved, near)
