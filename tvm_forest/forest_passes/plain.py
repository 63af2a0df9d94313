"""Forests that the compiler knows: scalar leaves, comparisons with thresholds, trees in rounds.

takes: Forest; gives: Forest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..forest import Forest
from .ordering import arrange_by_round, take_trees

BETWEEN = 0.5
"""Threshold that tells a derived column's 0 from its 1."""


def plain(forest: Forest) -> Forest:
    """Return a forest of plain trees with the same predictions, tree `round * C + class` in place.

    Args:
        forest: any; the result of this function is returned as it is.
    """
    return arrange_by_round(split_outputs(derive_columns(forest)))


def split_outputs(forest: Forest) -> Forest:
    """Make a tree for each output of every tree whose leaves hold vectors."""
    width = forest.leaf_value.shape[1]
    if width == 1:
        return forest
    split = take_trees(forest, np.repeat(np.arange(forest.n_trees), width))
    tree_class = np.tile(np.arange(width, dtype=np.int32), forest.n_trees)
    own = split.leaf_value[np.arange(split.n_nodes), tree_class[split.node_tree]]
    return replace(split, tree_class=tree_class, leaf_value=own[:, None])


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
