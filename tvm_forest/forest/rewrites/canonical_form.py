"""The canonical form: all tests compare with thresholds, and trees are ordered by rounds.

takes: Forest; gives: Forest.
"""

from __future__ import annotations

from dataclasses import replace

from .. import Forest
from .narrowing import narrow_thresholds
from .ordering import arrange_by_round

BETWEEN = 0.5
"""Threshold between the values 0 and 1 of a membership column."""


def canonicalize(forest: Forest) -> Forest:
    """Return the canonical form of a forest, which has the same predictions.

    Tests for sets of categories become tests of membership columns, and the tree of round r and
    class c gets the number ``r * C + c``; each tree with leaf vectors is a round. Leaf vectors are
    stored apart from the trees, so thresholds need not have their dtype, and get that of rows.

    Args:
        forest: any forest; one in canonical form is returned as it is.
    """
    forest = arrange_by_round(add_membership_columns(forest))
    return narrow_thresholds(forest) if forest.has_vectors else forest


def add_membership_columns(forest: Forest) -> Forest:
    """Turn tests for sets of categories into comparisons with membership columns."""
    if not forest.categories:
        return forest
    tests = {node: (int(forest.feature[node]), s) for node, s in forest.categories.items()}
    derived = tuple(sorted(set(tests.values())))
    column = {test: forest.n_features + k for k, test in enumerate(derived)}
    nodes = list(tests)
    feature, threshold = forest.feature.copy(), forest.threshold.copy()
    feature[nodes] = [column[test] for test in tests.values()]
    threshold[nodes] = BETWEEN
    return replace(
        forest,
        feature=feature,
        threshold=threshold,
        categories={},
        derived=(*forest.derived, *derived),
        n_features=forest.n_features + len(derived),
    )
