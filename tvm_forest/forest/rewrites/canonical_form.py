"""Forests that the compiler knows: comparisons with thresholds, trees in rounds.

takes: Forest; gives: Forest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import Forest
from .narrowing import narrow_thresholds
from .ordering import arrange_by_round

BETWEEN = 0.5
"""Threshold that tells a derived column's 0 from its 1."""


def plain(forest: Forest) -> Forest:
    """Return a forest of plain trees with the same predictions, tree `round * C + class` in place.

    Where leaves hold vectors, each tree is a round; these lie apart from the trees, whose
    thresholds then need not have their dtype.

    Args:
        forest: any; the result of this function is returned as it is.
    """
    forest = arrange_by_round(derive_columns(forest))
    return narrow_thresholds(forest) if forest.has_vectors else forest


def derive_columns(forest: Forest) -> Forest:
    """Turn questions for categories into comparisons with columns that are derived of the rows."""
    if not forest.categories:
        return forest
    asks = {node: (int(forest.feature[node]), s) for node, s in forest.categories.items()}
    derived = tuple(sorted(set(asks.values())))
    column = {test: forest.n_features + k for k, test in enumerate(derived)}
    nodes = np.fromiter(asks, np.int64, len(asks))
    feature, threshold = forest.feature.copy(), forest.threshold.copy()
    feature[nodes] = [column[test] for test in asks.values()]
    threshold[nodes] = BETWEEN
    return replace(
        forest,
        feature=feature,
        threshold=threshold,
        categories={},
        derived=(*forest.derived, *derived),
        n_features=forest.n_features + len(derived),
    )
