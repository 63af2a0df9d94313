"""Small trained CatBoost models for the tests, each a function that trains once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import catboost as cb
import numpy as np

N_ROWS = 400
OPTIONS: dict[str, Any] = {
    "iterations": 10,
    "depth": 4,
    "thread_count": 1,
    "verbose": 0,
    "allow_writing_files": False,
}
CATEGORIES = [4, 5, 6]


@lru_cache
def data() -> tuple[Any, Any]:
    """Rows float32 (R, 4), some of them missing, and a target."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
    target = rows[:, 0] * 2 + rows[:, 1] ** 2 + rng.normal(size=N_ROWS) / 4
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[:, 3] = np.nan_to_num(rows[:, 3])
    return rows, target


@lru_cache
def with_categories() -> tuple[Any, Any]:
    """Rows of objects (R, 7), the last three of categories, and a target."""
    rows, target = data()
    rng = np.random.default_rng(8)
    few, some, many = (rng.integers(0, size, N_ROWS) for size in (3, 12, 40))
    mixed = np.empty((N_ROWS, 7), object)
    mixed[:, :4] = rows.astype(float)
    mixed[:, 4], mixed[:, 5] = [f"a{code}" for code in few], some
    mixed[:, 6] = [f"city {code}" for code in many]
    return mixed, target + (few == 1) * 2 + np.sin(some) + np.cos(many)


def classes(target: Any, count: int) -> Any:
    """Return classes 0 to `count` - 1 of equal size."""
    return np.argsort(np.argsort(target)) * count // len(target)


def train(kind: str, target: Any = None, coded: bool = False, **options: Any) -> Any:
    """Train an estimator on the common rows."""
    rows, own = with_categories() if coded else data()
    target = own if target is None else target(own)
    options = OPTIONS | options | ({"cat_features": CATEGORIES} if coded else {})
    if kind == "CatBoost":
        return cb.CatBoost(options).fit(rows, target)
    if kind == "CatBoostRanker":
        groups = np.arange(N_ROWS) // 10
        pool = cb.Pool(rows, target, group_id=groups)
        return cb.CatBoostRanker(**options).fit(pool)
    return getattr(cb, kind)(**options).fit(rows, target)


def yes(target: Any) -> Any:
    return (target > 0).astype(int)


def words(target: Any) -> Any:
    return np.array(["no", "yes"])[yes(target)]


def three(target: Any) -> Any:
    return classes(target, 3)


def letters(target: Any) -> Any:
    return np.array(list("abc"), object)[three(target)]


def pairs(target: Any) -> Any:
    return np.stack([target, target**2], axis=1)


def flags(target: Any) -> Any:
    return np.stack([yes(target), 1 - yes(target)], axis=1)


TARGETS = ["Borders:TargetBorderCount=3", "Buckets:TargetBorderCount=2"]
MODELS: dict[str, Callable[[], Any]] = {
    name: lru_cache(partial(train, kind, target, **options))
    for name, (kind, target, options) in {
        "regressor": ("CatBoostRegressor", None, {}),
        "missing_above": ("CatBoostRegressor", None, {"nan_mode": "Max"}),
        "depthwise": ("CatBoostRegressor", None, {"grow_policy": "Depthwise"}),
        "lossguide": ("CatBoostClassifier", three, {"grow_policy": "Lossguide"}),
        "poisson": ("CatBoostRegressor", np.exp, {"loss_function": "Poisson"}),
        "uncertainty": ("CatBoostRegressor", None, {"loss_function": "RMSEWithUncertainty"}),
        "targets": ("CatBoostRegressor", pairs, {"loss_function": "MultiRMSE"}),
        "classifier": ("CatBoostClassifier", words, {}),
        "classes": ("CatBoostClassifier", letters, {}),
        "one_versus_all": ("CatBoostClassifier", three, {"loss_function": "MultiClassOneVsAll"}),
        "labels": ("CatBoostClassifier", flags, {"loss_function": "MultiLogloss"}),
        "margins": ("CatBoost", yes, {"loss_function": "Logloss"}),
        "ranker": ("CatBoostRanker", yes, {"loss_function": "YetiRank"}),
        "categories": ("CatBoostRegressor", None, {"coded": True, "nan_mode": "Max"}),
        "category_classes": (
            "CatBoostClassifier",
            three,
            {"coded": True, "simple_ctr": [*TARGETS, "BinarizedTargetMeanValue", "Counter"]},
        ),
        "one_hot": ("CatBoostClassifier", yes, {"coded": True, "one_hot_max_size": 50}),
        "category_leaves": (
            "CatBoostRegressor",
            None,
            {"coded": True, "grow_policy": "Depthwise", "max_ctr_complexity": 3},
        ),
    }.items()
}


def margins(model: Any, rows: Any, **span: Any) -> Any:
    """CatBoost's margins, float64 (R,) or (R, C)."""
    return cb.CatBoost.predict(model, rows, "RawFormulaVal", thread_count=1, **span)


def with_leaves(model: Any, factor: float) -> Any:
    """Return a model of the same class with leaves that are so much larger."""
    with tempfile.TemporaryDirectory() as folder:  # a copy of a model cannot be changed
        model.save_model(f"{folder}/model.json", format="json")
        large = type(model)().load_model(f"{folder}/model.json", format="json")
    large.set_leaf_values(large.get_leaf_values() * factor)
    return large
