"""The results of compiled functions, and the arrays that they read.

takes: Forest and Layout; gives: names and dtypes of results, specs of the model's buffers.

Callers of compiled code use this without TVM; `tir_gen.canonical` emits the code itself.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..errors import UnsupportedModel
from ..forest import Array, Forest
from ..forest.coarse_powers import COARSE_LINKS, power_table
from ..forest.contributions import CONTRIBUTIONS, INTERACTIONS
from ..layouts.protocol import BufferSpec, Layout
from .leaves import leaf_buffers

Output = Literal["predict", "resume", "per_tree", "apply", "contributions", "interactions"]

SUMS: Output = "predict"
RESUMED: Output = "resume"
"""Output whose sums start from the values in the result arrays instead of the base scores."""
OF_SUMS: tuple[Output, ...] = (SUMS, RESUMED)
"""Outputs that sum leaves; one build of a model compiles only one of them."""
OF_LEAVES: tuple[Output, ...] = ("per_tree", "apply")
"""Outputs with a value for each leaf that a row reaches; they are compiled on first use."""
OUTPUTS: tuple[Output, ...] = (SUMS, *OF_LEAVES)
"""Outputs that have schedules."""
OF_TABLES: tuple[Output, ...] = (CONTRIBUTIONS, INTERACTIONS)
"""Outputs that are computed from tables, see `ContributionTables`, without a schedule."""

SHARED = "_shared"
"""Suffix of the names of tallies in which the samples of a leaf share one weight."""

_SELECTED = {"floor": "int32", "ceil": "int32"}

OF_SAMPLES: dict[str, dict[str, str]] = {
    "totals": {"total": "int64"},
    "totals_shared": {"total": "float64"},
    "select": {**_SELECTED, "below": "int64", "weight": "int64"},
    "select_shared": {**_SELECTED, "below": "float64", "weight": "float64"},
    "mean": {"mean": "float64"},
    "mean_shared": {"mean": "float64"},
    "mean_in_order": {"mean": "float64"},
    "crps": {"score": "float64"},
    "proximity": {"proximity": "int32"},
}
"""Names and dtypes of the results of each tally of samples.

A result has a number for each row; those of `select` have one for each row and threshold, those of
`proximity` one for each row and training row.
"""


def result_names(forest: Forest) -> tuple[str, ...]:
    """Return the names of the results of "predict": some of "sum", "margin" and "value".

    "sum" is left out if the sums are the margins, as they are unless they are divided or the base
    score is added last. "value" is left out if the values are the margins, as they are if the link
    is the identity and nothing is rounded.
    """
    sums = () if forest.base_first and forest.aggregate != "average" else ("sum",)
    linked = forest.link != "identity" or forest.value_dtype is not None
    return (*sums, "margin", *(("value",) if linked else ()))


def result_dtype(forest: Forest, name: str) -> str:
    """Return the dtype of a result of "predict": "sum", "margin" or "value"."""
    return forest.value_dtype or forest.sum_dtype if name == "value" else forest.sum_dtype


def model_buffers(forest: Forest, layout: Layout, output: Output) -> tuple[BufferSpec, ...]:
    """Return the buffers of the model that a function reads: the layout's, then the leaves'."""
    if output == "apply":
        return layout.id_buffers()
    return (*layout.value_buffers(), *leaf_buffers(forest))


SIZES = "sizes"
"""The last array of a model that a sum reads: int64 (1,), the number of rounds of trees."""


def sizes_array(forest: Forest) -> Array:
    """Return int64 (1,), the number of rounds of trees.

    Code that several models share reads it at run time.
    """
    return np.array([forest.n_trees // forest.round_size], np.int64)


def link_arrays(forest: Forest) -> dict[str, Array]:
    """Return the arrays that the link reads, by name; functions take them after base scores."""
    return {"powers": power_table()} if forest.link in COARSE_LINKS else {}


def check_forest(forest: Forest) -> None:
    """Refuse a forest that cannot be compiled.

    Raises:
        UnsupportedModel: the forest has no features, or its thresholds have another dtype than the
            values of its leaves, unless these are vectors.
    """
    threshold = forest.threshold
    if forest.n_features == 0:
        refused = "'n_features': 0"
    elif threshold.dtype != forest.leaf_value.dtype and not forest.has_vectors:
        refused = f"'threshold': {threshold.dtype} {threshold.shape}"
    else:
        return
    raise UnsupportedModel(
        f"build: argument 'model': field {refused} cannot be compiled yet; "
        "predict with Forest.predict_reference or the source library"
    )


def columns_of_trees(forest: Forest) -> Array:
    """Return which columns of the results "per_tree" and "apply" belong to each tree.

    Returns:
        int64 (T, W): for each of the T trees of the source model, the numbers of its columns. W is
        C where leaves hold vectors, else the number of trees of the forest that were made of one
        tree of the source model, mostly 1.
    """
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.argsort(forest.tree_id[known], kind="stable")]
    if forest.has_vectors:
        return order[:, None] * forest.n_outputs + np.arange(forest.n_outputs)
    trees = np.count_nonzero(np.bincount(forest.tree_id[known]))
    return order.reshape(trees, -1) if trees else order.reshape(0, 1)
