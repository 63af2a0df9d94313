"""Forests whose nodes ask for sets of categories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forests import Split, forest_of
from tvm_forest.forest import CategoryRule, Forest

TOP = 1 << 24


SETS = ((0, 3), (1,), (2, 7, 40), (), (5, 6, 7, 8), (TOP - 1,), (TOP + 2, 1 << 31))


RULES = {
    "xgboost": CategoryRule("right"),
    "lightgbm": CategoryRule("left", negative_fractions=True, highest=1 << 31),
    "onnx": CategoryRule("left", fractions_none=True),
    "scikit-learn": CategoryRule("left", fractions_missing=True),
}


def asks(rule: str, dtype: str, sets: Any = SETS, others: Any = (), **fields: Any) -> Forest:
    """Trees that ask feature 0 for one set each, with missing values on both sides, and others."""
    trees = [Split(0, 0.0, i, -i, i % 2 > 0) for i, _ in enumerate(2 * sets, 1)]
    forest = forest_of([*trees, *others], n_features=2, dtype=dtype)
    nodes = forest.tree_offset[: 2 * len(sets)].tolist()
    asked = dict(zip(nodes, [s for s in sets for _ in range(2)], strict=True))
    return replace(forest, categories=asked, category_rule=RULES[rule], **fields)
