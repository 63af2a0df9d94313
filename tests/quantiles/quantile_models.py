"""Small fitted estimators of quantile-forest, and hard rows for them.

`MODELS` maps a name to a function that fits the estimator on its first call and returns the same
object afterwards. `ARGUMENTS` are arguments of its `predict` that are worth a comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import quantile_forest

N_ROWS, N_FEATURES = 300, 5
MANY = [0.0, 0.001, 0.05, 0.25, 1 / 3, 0.5, 0.9, 0.999, 1.0]
RULES = ("linear", "lower", "higher", "midpoint", "nearest")


@lru_cache
def data(rows: int = N_ROWS, targets: int = 1, ties: bool = False) -> tuple[Any, Any]:
    """Rows (R, F) float32 and targets (R,) or (R, C), of which `ties` makes many equal."""
    rng = np.random.default_rng(rows + targets)
    x = rng.normal(size=(rows, N_FEATURES)).astype(np.float32)
    y = x[:, :targets] * 2 + np.abs(x[:, 1:2]) * rng.normal(size=(rows, targets)) - 0.7
    y = np.round(y) if ties else y
    return x, y[:, 0] if targets == 1 else y


@lru_cache
def train(kind: str, rows: int, targets: int, ties: bool, options: tuple[Any, ...]) -> Any:
    """Fit one estimator."""
    named = {k: list(x) if k == "default_quantiles" and type(x) is tuple else x for k, x in options}
    weighs = named.pop("weighs", False)
    name = {"forest": "RandomForest", "extra": "ExtraTrees"}[kind] + "QuantileRegressor"
    model = getattr(quantile_forest, name)(random_state=0, n_jobs=1, **named)
    x, y = data(rows, targets, ties)
    weights = np.random.default_rng(1).integers(0, 3, rows) if weighs else None
    return model.fit(x, y, sample_weight=weights)


def one(
    kind: str, *, rows: int = N_ROWS, targets: int = 1, ties: bool = False, **options: Any
) -> Callable[[], Any]:
    """Return what fits an estimator."""
    given = {"n_estimators": 12, **options}
    return partial(train, kind, rows, targets, ties, tuple(given.items()))


MODELS: dict[str, Callable[[], Any]] = {
    "default": one("forest"),
    "whole_leaves": one("forest", max_samples_leaf=None, min_samples_leaf=5),
    "shallow": one("forest", max_samples_leaf=None, max_depth=3),
    "stumps": one("forest", max_samples_leaf=None, max_depth=1),
    "deep": one("forest", max_samples_leaf=None),
    "few_per_leaf": one("forest", max_samples_leaf=4, min_samples_leaf=9),
    "share_per_leaf": one("forest", max_samples_leaf=0.02, min_samples_leaf=9),
    "no_bootstrap": one("forest", max_samples_leaf=None, bootstrap=False, max_features=2),
    "half_drawn": one("forest", max_samples_leaf=None, max_samples=0.5),
    "one_tree": one("forest", max_samples_leaf=None, n_estimators=1, max_depth=4),
    "one_deep_tree": one("forest", max_samples_leaf=None, n_estimators=1),
    "two_trees": one("forest", n_estimators=2),
    "ties": one("forest", max_samples_leaf=None, min_samples_leaf=3, ties=True),
    "ties_single": one("forest", ties=True),
    "two_targets": one("forest", max_samples_leaf=None, min_samples_leaf=4, targets=2),
    "three_targets_single": one("forest", targets=3),
    "weighed": one("forest", max_samples_leaf=None, min_samples_leaf=5, weighs=True),
    "weighed_single": one("forest", weighs=True),
    "several_defaults": one("forest", max_samples_leaf=None, default_quantiles=(0.9, 0.1)),
    "mean_default": one("forest", max_samples_leaf=None, default_quantiles="mean"),
    "monotonic": one("forest", monotonic_cst=(1, 0, -1, 0, 0), n_estimators=7),
    "extra": one("extra"),
    "extra_whole": one("extra", max_samples_leaf=None, min_samples_leaf=6),
    "extra_bootstrap": one("extra", max_samples_leaf=None, bootstrap=True, max_depth=5),
    "many_rows": one("forest", rows=1500, max_samples_leaf=None, min_samples_leaf=10),
    "many_rows_single": one("forest", rows=1500, n_estimators=40),
}

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"quantiles": "mean"},
    {"quantiles": "mean", "weighted_quantile": False},
    {"quantiles": "mean", "weighted_leaves": True},
    {"quantiles": "mean", "aggregate_leaves_first": False},
    *({"quantiles": MANY, "interpolation": rule} for rule in RULES),
    *({"quantiles": MANY, "interpolation": rule, "weighted_quantile": False} for rule in RULES),
    *({"quantiles": MANY, "interpolation": rule, "weighted_leaves": True} for rule in RULES),
    {"quantiles": MANY, "aggregate_leaves_first": False},
    {"quantiles": MANY, "aggregate_leaves_first": False, "weighted_quantile": False},
    {"quantiles": [0.5]},
    {"quantiles": 0.25, "weighted_quantile": False},
]


def hard(model: Any) -> Any:
    """Rows on thresholds of a model and beside them, and some of the training."""
    rng = np.random.default_rng(3)
    x, _ = data()
    tests = [(tree.tree_.feature, tree.tree_.threshold) for tree in model.estimators_]
    column, value = (np.concatenate(parts) for parts in zip(*tests, strict=True))
    column, value = column[column >= 0], value[column >= 0].astype(np.float32)
    rows = x[rng.integers(0, len(x), 60)].copy()
    for at in range(40):
        for k in rng.integers(0, len(column), 3):
            near = np.nextafter(value[k], np.float32((-np.inf, 0, np.inf)[at % 3]))
            rows[at, column[k]] = near if at % 3 != 1 else value[k]
    rows[40:44] = [[0.0] * 5, [-0.0] * 5, [1e-45] * 5, [3e38] * 5]
    return rows
