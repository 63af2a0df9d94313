"""SHAP values by their definition: every set of features, every tree, rows side by side.

takes: Forest with covers, rows; gives: contributions and interactions, float64.
"""

from __future__ import annotations

from dataclasses import replace
from math import factorial
from typing import Any

import numpy as np

from tvm_forest.forest import LEAF, Forest
from tvm_forest.forest.reference import cast_rows


def with_cover(forest: Forest, seed: int = 0, least: int = 1) -> Forest:
    """Return a forest with covers drawn at its leaves; with `least` 0 some are zero."""
    drawn = np.random.default_rng(seed).integers(least, 9, forest.n_nodes).astype(float)
    cover = np.where(forest.is_leaf, drawn, 0)
    for node in np.argsort(-forest.node_depth, kind="stable"):
        if not forest.is_leaf[node]:
            base = forest.tree_offset[forest.node_tree[node]]
            cover[node] = cover[base + forest.left[node]] + cover[base + forest.right[node]]
    return replace(forest, cover=cover)


def explain(forest: Forest, rows: Any) -> tuple[Any, Any]:
    """Return contributions (R, C, F + 1) and interactions (R, C, F + 1, F + 1)."""
    width, rows = forest.row_width, cast_rows(forest, rows)
    shape = (len(rows), forest.n_outputs)
    game = np.stack([_margin(forest, rows, known) for known in range(1 << width)])
    alone = np.zeros((*shape, width + 1))
    pairs = np.zeros((*shape, width + 1, width + 1))
    for known in range(1 << width):
        size = known.bit_count()
        others = [i for i in range(width) if not known >> i & 1]
        for i in others:
            share = factorial(size) * factorial(width - size - 1) / factorial(width)
            alone[..., i] += share * (game[known | 1 << i] - game[known])
            for j in others:
                if i != j:
                    share = factorial(size) * factorial(width - size - 2) / factorial(width - 1)
                    both, one = game[known | 1 << i | 1 << j], game[known | 1 << i]
                    gain = both - one - game[known | 1 << j] + game[known]
                    pairs[..., i, j] += share * gain / 2
    alone[..., width] = game[0]
    place = np.arange(width + 1)
    pairs[..., place, place] = alone - pairs.sum(axis=-1)
    return alone, pairs


def _margin(forest: Forest, rows: Any, known: int) -> Any:
    """Return margins (R, C) where only some features of the rows are known."""
    margin = np.zeros((len(rows), forest.n_outputs))
    for tree, target in enumerate(forest.tree_class):
        value = _value(forest, rows, known, int(forest.tree_offset[tree]), 0)
        to = slice(None) if target < 0 else slice(target, target + 1)
        margin[:, to] += value
    if forest.aggregate == "average":
        margin /= forest.trees_of_class
    return margin + forest.base_score.astype(float)


def _value(forest: Forest, rows: Any, known: int, base: int, node: int) -> Any:
    at = base + node
    if forest.left[at] == LEAF:
        return forest.leaf_value[at].astype(float)
    children = int(forest.left[at]), int(forest.right[at])
    left, right = (_value(forest, rows, known, base, child) for child in children)
    if known >> int(forest.feature[at]) & 1:
        return np.where(_goes_left(forest, rows, at)[:, None], left, right)
    covers = [forest.cover[base + child] for child in children]  # type: ignore[index]
    share = covers[0] / sum(covers) if sum(covers) else 0.5
    return share * left + (1 - share) * right


def _goes_left(forest: Forest, rows: Any, at: int) -> Any:
    value = rows[:, forest.feature[at]]
    rule = forest.category_rule
    if at in forest.categories and rule is not None:
        left = np.isin(rule.codes(value), forest.categories[at]) == (rule.members_go == "left")
    elif forest.comparison == "<":
        left = value < forest.threshold[at]
    else:
        left = value <= forest.threshold[at]
    return np.where(np.isnan(value), forest.default_left[at], left)
