"""Forests with linear leaves, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from forests import forest_of
from tvm_forest.forest import Forest


def by_hand(const: Any, coefficients: Any, **fields: Any) -> Forest:
    """One leaf with terms of features 0, 1, ..., whose plain value is 7."""
    terms = {"leaf_terms": np.array([[0, len(coefficients)]])}
    terms |= {"term_feature": np.arange(len(coefficients), dtype=np.int32)}
    terms |= {"leaf_const": np.array([const]), "term_coefficient": np.array(coefficients)}
    return forest_of([7.0], dtype="float64", **(terms | fields))
