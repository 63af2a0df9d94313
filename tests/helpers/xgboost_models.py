"""XGBoost models with categories, targets, vector leaves, weighted trees and own missing values.

`KINDS` maps a name to a function that trains the model on its first call, as `models.MODELS` does;
`odd_rows` are rows that tell its rules apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
import xgboost as xgb

from models import COMMON, ESTIMATOR, N_ROWS, data, is_dart, labels, train
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

KINDS: dict[str, Callable[[], Any]] = {}
TYPES = ["c", "float", "c", "float", "float", "float"]
N_CATEGORIES = (70, 4)  # of features 0 and 2
NAMES = ("hue", "b", "size", "d", "e", "f")
ODD_CODES = np.array(
    [0, 1, -1, -0.5, -0.0, 0.5, 0.99999994, 2**24 - 1, 2**24, 2.0**31, 2.0**32, 1e9, 3e38, -3e38]
    + [31, 32, 31.5, 63, 64, 69, 69.9, 70, 71, 1e5, 1e-40, -1e-40, np.nan, np.inf, -np.inf],
    np.float32,
)


@lru_cache
def coded() -> tuple[Any, Any]:
    """Rows (R, F) with codes in features 0 and 2, and a positive target that depends on them."""
    rng = np.random.default_rng(11)
    rows, target = data()[0].copy(), data()[1].copy()
    for feature, count in zip((0, 2), N_CATEGORIES, strict=True):
        rows[:, feature] = rng.integers(0, count, N_ROWS)
        target += 3 * rng.random(count).astype(np.float32)[rows[:, feature].astype(int)]
    return rows, target


def targets() -> Any:
    """Three positive targets (R, 3) of different sizes."""
    first = data()[1]
    return np.column_stack([first, first.max() - first + 1, np.abs(data()[0][:, 2]) + 0.1])


def flags() -> Any:
    """Three targets (R, 3) that are 0 or 1."""
    return (targets() > np.median(targets(), axis=0)).astype(np.float32)


def kind(build: Callable[[], Any]) -> Callable[[], Any]:
    """Register a model under the name of the function that trains it."""
    KINDS[build.__name__] = lru_cache(build)
    return KINDS[build.__name__]


def train_coded(objective: str, rounds: int = 10, holes: float = 0, **params: Any) -> Any:
    """Train a Booster on categorical rows; `num_class` asks for that many classes."""
    rows, target = coded()
    rows = np.where(np.random.default_rng(1).random(rows.shape) < holes, np.float32(np.nan), rows)
    if "num_class" in params:
        target = labels(params["num_class"])
    if objective == "binary:logistic":
        target = labels(2)
    matrix = xgb.DMatrix(rows, target, feature_types=TYPES, enable_categorical=True)
    return xgb.train(COMMON | {"objective": objective} | params, matrix, rounds)


ONE_HOT, PARTITION = {"max_cat_to_onehot": 100}, {"max_cat_to_onehot": 1}
SQUARED = "reg:squarederror"
VECTORS = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}

for name, (objective, params) in {
    "categories_one_hot": (SQUARED, ONE_HOT),
    "categories_in_sets": (SQUARED, PARTITION),
    "categories_in_both": (SQUARED, {"max_depth": 7}),
    "categories_approximate": (SQUARED, PARTITION | {"tree_method": "approx"}),
    "categories_with_holes": (SQUARED, PARTITION | {"holes": 0.2, "max_depth": 6}),
    "categories_logistic": ("binary:logistic", PARTITION | {"base_score": 0.3}),
    "categories_classes": ("multi:softprob", PARTITION | {"num_class": 4}),
    "categories_dart": (SQUARED, PARTITION | {"booster": "dart", "rate_drop": 0.5}),
    "categories_forest": (SQUARED, PARTITION | {"num_parallel_tree": 3, "subsample": 0.6}),
}.items():
    KINDS[name] = lru_cache(partial(lambda o, p: train_coded(o, **p), objective, params))

for name, (objective, target_of, params) in {
    "quantiles": ("reg:quantileerror", lambda: data()[1], {"quantile_alpha": [0.1, 0.5, 0.95]}),
    "quantiles_of_a_forest": (
        "reg:quantileerror",
        lambda: data()[1],
        {"quantile_alpha": [0.2, 0.7], "num_parallel_tree": 3, "subsample": 0.5, "rounds": 4},
    ),
    "targets": (SQUARED, targets, {}),
    "targets_with_one_base_score": (SQUARED, targets, {"base_score": 0.7}),
    "targets_of_a_forest": (SQUARED, targets, {"num_parallel_tree": 4, "subsample": 0.6}),
    "targets_dart": (SQUARED, targets, {"booster": "dart", "rate_drop": 0.4}),
    "targets_logistic": ("binary:logistic", flags, {}),
    "targets_regression_logistic": ("reg:logistic", flags, {"base_score": 0.2}),
    "targets_logitraw": ("binary:logitraw", flags, {}),
    "targets_hinge": ("binary:hinge", flags, {}),
    "targets_poisson": ("count:poisson", lambda: np.floor(targets()), {}),
    "targets_gamma": ("reg:gamma", targets, {}),
    "targets_tweedie": ("reg:tweedie", targets, {}),
    "targets_absolute_error": ("reg:absoluteerror", targets, {}),
    "targets_squared_log_error": ("reg:squaredlogerror", targets, {}),
    "targets_pseudo_huber": ("reg:pseudohubererror", targets, {}),
    "vectors": (SQUARED, targets, VECTORS),
    "vectors_deep": (SQUARED, targets, VECTORS | {"max_depth": 10, "min_child_weight": 0}),
    "vectors_of_single_leaves": (SQUARED, targets, VECTORS | {"gamma": 1e9}),
    "vectors_of_a_forest": (SQUARED, targets, VECTORS | {"num_parallel_tree": 3, "subsample": 0.6}),
    "vectors_logistic": ("binary:logistic", flags, VECTORS),
    "vectors_two_trees_many_classes": (
        "multi:softprob",
        lambda: labels(9),
        VECTORS | {"num_class": 9, "rounds": 2},
    ),
    "vectors_softmax_classes": ("multi:softmax", lambda: labels(4), VECTORS | {"num_class": 4}),
}.items():
    KINDS[name] = lru_cache(
        partial(lambda o, t, p: train(o, t(), **p), objective, target_of, params)
    )


# -- frames, whose categories have names ----------------------------------------------------------


@lru_cache
def frame() -> Any:
    """The rows of `coded` as a frame: words for feature 0, numbers for feature 2."""
    rows = coded()[0]
    words = [f"hue-{(code * 37) % 70}" for code in range(N_CATEGORIES[0])]
    columns = {name: rows[:, place] for place, name in enumerate(NAMES)}
    columns["hue"] = pd.Categorical.from_codes(rows[:, 0].astype(int), words)
    columns["size"] = pd.Categorical.from_codes(rows[:, 2].astype(int), [8, 3, 11, 5])
    return pd.DataFrame(columns)


@kind
def named_categories() -> Any:
    matrix = xgb.DMatrix(frame(), coded()[1], enable_categorical=True)
    return xgb.train(COMMON | PARTITION, matrix, 10)


@kind
def named_categories_dart() -> Any:
    matrix = xgb.DMatrix(frame(), coded()[1], enable_categorical=True)
    return xgb.train(COMMON | PARTITION | {"booster": "dart", "rate_drop": 0.5}, matrix, 10)


@kind
def estimator_named_categories() -> Any:
    options = ESTIMATOR | PARTITION | {"enable_categorical": True}
    return xgb.XGBRegressor(**options).fit(frame(), coded()[1])


# -- estimators -----------------------------------------------------------------------------------


def holed(missing: float) -> Any:
    """Rows in which one value in five is `missing`, and some are nan."""
    rng = np.random.default_rng(5)
    rows = np.where(rng.random(data()[0].shape) < 0.2, np.float32(missing), data()[0])
    return np.where(rng.random(rows.shape) < 0.05, np.float32(np.nan), rows)


def estimator(cls: type, rows: Any, target: Any, **options: Any) -> Any:
    """Fit an estimator."""
    return cls(**ESTIMATOR | options).fit(rows, target)


def stopped_early(target: Any, **options: Any) -> Any:
    """Fit an estimator until its error grows."""
    params = ESTIMATOR | {"n_estimators": 100, "early_stopping_rounds": 4} | options
    rows = data()[0]
    held_out = [(rows[300:], target[300:])]
    return xgb.XGBRegressor(**params).fit(
        rows[:300], target[:300], eval_set=held_out, verbose=False
    )


DART = {"booster": "dart", "rate_drop": 0.4}
for name, build in {
    "estimator_missing_999": lambda: estimator(
        xgb.XGBRegressor, holed(-999), data()[1], missing=-999
    ),
    "estimator_missing_zero": lambda: estimator(xgb.XGBClassifier, holed(0), labels(2), missing=0),
    "estimator_missing_tenth": lambda: estimator(
        xgb.XGBRegressor, holed(0.1), data()[1], missing=0.1
    ),
    "estimator_missing_infinity": lambda: estimator(
        xgb.XGBRegressor, holed(np.inf), data()[1], missing=np.inf
    ),
    "estimator_missing_999_classes": lambda: estimator(
        xgb.XGBClassifier, holed(-999), labels(3), missing=-999
    ),
    "estimator_targets": lambda: estimator(xgb.XGBRegressor, data()[0], targets()),
    "estimator_targets_of_a_forest": lambda: estimator(xgb.XGBRFRegressor, data()[0], targets()),
    "estimator_targets_stopped_early": lambda: stopped_early(targets()),
    "estimator_vectors_stopped_early": lambda: stopped_early(targets(), **VECTORS),
    "estimator_vectors_classifier": lambda: estimator(
        xgb.XGBClassifier, data()[0], labels(4), **VECTORS
    ),
    "estimator_categories_classes": lambda: estimator(
        xgb.XGBClassifier, coded()[0], labels(3), feature_types=TYPES, enable_categorical=True
    ),
    "estimator_labels": lambda: estimator(xgb.XGBClassifier, data()[0], flags()),
    "estimator_labels_two": lambda: estimator(xgb.XGBClassifier, data()[0], flags()[:, :2]),
    "estimator_labels_vectors": lambda: estimator(xgb.XGBClassifier, data()[0], flags(), **VECTORS),
    "estimator_labels_hinge": lambda: estimator(
        xgb.XGBClassifier, holed(-999), flags(), missing=-999, objective="binary:hinge"
    ),
    "estimator_labels_of_a_forest": lambda: estimator(xgb.XGBRFClassifier, data()[0], flags()),
    "estimator_dart": lambda: estimator(xgb.XGBRegressor, *data(), n_jobs=1, **DART),
    "estimator_dart_targets": lambda: estimator(xgb.XGBRegressor, data()[0], targets(), **DART),
    "estimator_dart_classifier": lambda: estimator(xgb.XGBClassifier, data()[0], labels(2), **DART),
    "estimator_dart_classifier_classes": lambda: estimator(
        xgb.XGBClassifier, data()[0], labels(4), **DART
    ),
    "estimator_dart_stopped_early": lambda: stopped_early(data()[1], **DART),
    "estimator_dart_missing_zero": lambda: estimator(
        xgb.XGBRegressor, holed(0), data()[1], missing=0, **DART
    ),
}.items():
    KINDS[name] = lru_cache(build)


# -- rows -----------------------------------------------------------------------------------------


def odd_rows(trained: Any, forest: Forest, n: int, seed: int = 0) -> Any:
    """Return `hard_rows` with odd codes and values that are missing to the estimator."""
    rng = np.random.default_rng(seed)
    rows = hard_rows(forest, n, seed)
    asked = forest.feature[list(forest.categories)] if forest.categories else []
    for feature in np.unique(asked):
        codes = np.concatenate([np.repeat(ODD_CODES, 3), np.arange(N_CATEGORIES[0])])
        rows[:, feature] = rng.choice(codes.astype(np.float32), n)
    if forest.missing is not None:
        rows[rng.random(rows.shape) < 0.2] = forest.missing
    return np.nan_to_num(rows, nan=np.nan) if is_dart(trained) else rows
