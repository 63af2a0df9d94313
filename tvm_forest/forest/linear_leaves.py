"""Linear leaves: a linear function of the row in place of a leaf value.

takes: Forest, rows, leaves reached; gives: values of leaves.

    value = const + coefficient 0 * x 0 + coefficient 1 * x 1 + ...      in this order, in float64

No product and sum are fused into one operation. A value within 1e-35 of zero is zero. If one of
the leaf's features is missing (NaN), the value is `Forest.leaf_value`.

From Shi et al., "Gradient Boosting With Piece-Wise Linear Regression Trees" (IJCAI 2019); order
and missing values are LightGBM's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .rules import ZERO, Array

if TYPE_CHECKING:
    from .model import Forest

FIELDS = ("leaf_const", "leaf_terms", "term_feature", "term_coefficient")


def read_linear_fields(forest: Forest) -> tuple[Array, ...]:
    """Return the fields of linear leaves in the order of `FIELDS`."""
    fields = [getattr(forest, name) for name in FIELDS]
    assert all(field is not None for field in fields), "checked when the forest was made"
    return tuple(fields)


def evaluate_leaves(forest: Forest, rows: Array, ends: Array) -> Array:
    """Evaluate the linear leaves that rows reached.

    Args:
        forest: a forest with linear leaves.
        rows: (R, F) as `Forest.prepare_rows` returns them.
        ends: int64 (R, T), the leaf of each row in each tree.

    Returns:
        float64 (R, T, 1).
    """
    const, terms, features, coefficients = read_linear_fields(forest)
    total, missing = const[ends], np.zeros(ends.shape, bool)
    begin, end = np.moveaxis(terms[ends], 2, 0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for place in range(int((end - begin).max(initial=0))):
            at = np.nonzero(begin + place < end)
            term = begin[at] + place
            x = rows[at[0], features[term]].astype(np.float64)
            missing[at] |= np.isnan(x)
            total[at] += coefficients[term] * np.where(np.abs(x) <= ZERO, 0.0, x)
    return np.where(missing, forest.leaf_value[ends, 0], total)[:, :, None]


def find_linear_problem(forest: Forest) -> str | None:
    """Return what is wrong with the fields of linear leaves as a sentence, or None."""
    arrays = {name: getattr(forest, name) for name in FIELDS}
    unset = [name for name, array in arrays.items() if array is None]
    if unset:
        return None if len(unset) == len(arrays) else f"field '{unset[0]}' is missing"
    if forest.leaf_value.shape[1] != 1 or forest.leaf_value.dtype != np.float64:
        return "field 'leaf_terms' needs leaves of one float64 each"
    if forest.aggregate in ("min", "max"):
        return f"field 'aggregate' is {forest.aggregate!r}, but linear leaves can be NaN"
    nodes, terms = forest.n_nodes, len(arrays["term_feature"])
    for name, shape in zip(FIELDS, [(nodes,), (nodes, 2), (terms,), (terms,)], strict=True):
        if arrays[name].shape != shape:
            return f"field '{name}' has shape {arrays[name].shape}, expected {shape}"
    begin, end = arrays["leaf_terms"].T
    if np.any((begin < 0) | (begin > end) | (end > terms)):
        return f"field 'leaf_terms' leads beyond the {terms} terms"
    feature = arrays["term_feature"]
    if np.any((feature < 0) | (feature >= forest.row_width)):
        return f"field 'term_feature' names a feature beyond the {forest.row_width}"
    return None
