"""Small models of every kind that a schedule may meet, and what they say about hard rows.

`forest_named` gives a model of `MODELS`: trees of unequal depth, single leaves, classes, vectors in
leaves, categories, missing values, straight lines in leaves, float64 and other aggregates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xgboost as xgb

import catboost_models
import lightgbm_models
import models
import sklearn_models
import tvm_forest
import xgboost_models
from schedules import odd_forest, rounding_bound
from tvm_forest.forest import Array, Forest
from tvm_forest.forest.probe_rows import hard_rows

MOST_ROWS = 3001


def many_features() -> Any:
    """A Booster with 300 features."""
    rows = np.random.default_rng(5).normal(size=(300, 300)).astype(np.float32)
    matrix = xgb.DMatrix(rows, rows[:, 7] * rows[:, 250] + rows[:, 290:].sum(axis=1))
    return xgb.train({"max_depth": 3, "nthread": 1, "colsample_bynode": 0.1}, matrix, 15)


def vectors() -> Any:
    """A Booster whose leaves hold a value for each of three targets."""
    matrix = xgb.DMatrix(models.data()[0], xgboost_models.targets())
    options = {"max_depth": 4, "nthread": 1, "multi_strategy": "multi_output_tree"}
    return xgb.train(options, matrix, 9)


def uneven() -> Any:
    """A Booster of LightGBM, whose trees are deep and unequal."""
    return lightgbm_models.train(rounds=30, num_leaves=40, min_data_in_leaf=3)


def aggregate(how: Any, seed: int) -> Forest:
    """A forest that takes the least or the greatest of its leaves."""
    return replace(odd_forest(seed), aggregate=how, base_first=False)


TAKEN: dict[str, tuple[dict[str, Callable[[], Any]], str]] = {
    "xgboost": (
        models.MODELS,
        "default_options some_single_leaves single_leaves deep dart softprob one_feature pruned "
        "missing_values_classes softprob_26_classes",
    ),
    "xgboost kind": (
        xgboost_models.KINDS,
        "categories_in_both categories_with_holes categories_classes",
    ),
    "lightgbm": (
        lightgbm_models.MODELS,
        "missing_zero_and_nan categories_and_holes multiclass one_leaf_classes linear_holes "
        "linear_classes random_forest_classes far_thresholds stumps",
    ),
    "scikit-learn": (
        {name.replace(" ", "_"): model for name, model in sklearn_models.MODELS.items()},
        "rf_several_classes rf_classes_holes et gb_classes extra_tree isolation "
        "hist_holes hist_categories",
    ),
    "catboost": (catboost_models.MODELS, "regressor lossguide classes targets"),
}
"""The models of other tests that are taken, by name."""
MODELS: dict[str, Callable[[], Any]] = {
    "xgboost many_features": many_features,
    "xgboost vectors": vectors,
    "lightgbm uneven": uneven,
    **{f"drawn {seed}": partial(odd_forest, seed) for seed in range(6)},
    "drawn least": partial(aggregate, "min", 7),
    "drawn greatest": partial(aggregate, "max", 11),
    **{
        f"{library} {name}": kinds[name]
        for library, (kinds, names) in TAKEN.items()
        for name in names.split()
    },
}


@lru_cache
def forest_named(name: str, seen: bool = False) -> Forest:
    """Return a model that refuses no rows, with the hits of hard rows if it is `seen`."""
    forest = replace(tvm_forest.load(MODELS[name]()), refuses=(), refuses_unseen=())
    if not seen:
        return forest
    ends = forest.reference_nodes(hard_rows(forest, 60)).ravel()
    return replace(forest, hits=np.bincount(ends, minlength=forest.n_nodes).astype(np.int64))


class Answers:
    """What a model says about hard rows."""

    def __init__(self, name: str) -> None:
        self.forest = forest_named(name)
        self.rows: Array = hard_rows(self.forest, MOST_ROWS, seed=1)
        with np.errstate(all="ignore"):
            self.margins = self.forest.predict_reference(self.rows)
            self.per_tree = self.forest.predict_reference(self.rows, "per_tree")
            self.leaves = self.forest.predict_reference(self.rows, "apply")
            self.bound = rounding_bound(self.forest, self.rows)


answers_of = lru_cache(maxsize=None)(Answers)
