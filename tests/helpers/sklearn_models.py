"""Small fitted scikit-learn estimators, and what scikit-learn itself says about their rows.

`MODELS` maps a name to a function that fits the estimator on its first call and returns the same
object afterwards. `margins`, `values` and `leaves` are scikit-learn's own answers in the shapes of
`Forest.predict_reference`; `leaves` are None for estimators that tell none. All use one thread:
with more of them, forests add their trees in any order. `probe_rows` hold nothing that the
estimator refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn import ensemble, tree
from sklearn.dummy import DummyClassifier

from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

N_ROWS, N_FEATURES = 500, 6
CATEGORICAL = (4, 1)
"""Columns of `with_categories`, in no order."""


@lru_cache
def data() -> tuple[Any, Any]:
    """Rows (R, F) float64 that no float32 holds, and a positive target that depends on them."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(N_ROWS, N_FEATURES))
    score = rows[:, 0] * 2 + rows[:, 1] ** 2 - rows[:, 2] * rows[:, 3] + rng.normal(size=N_ROWS) / 4
    return rows, score - score.min() + 0.01


def with_holes() -> Any:
    """The same rows with missing values, more often where the target is large."""
    rows, target = data()
    holes = np.random.default_rng(6).random(rows.shape) < 0.4 * (target / target.max())[:, None]
    return np.where(holes, np.nan, rows)


def with_categories(holes: bool = False) -> Any:
    """The same rows with two columns of categories: 3, 6, 9, ... and many squares."""
    rows = (with_holes() if holes else data()[0]).copy()
    rows[:, 1] = np.floor(np.abs(rows[:, 1]) * 4) * 3 + 3
    rows[:, 4] = np.floor(np.abs(rows[:, 0] + 1) * 20) ** 2
    return rows


def classes(labels: Any) -> Any:
    """Labels of equal frequency, by the target."""
    return np.asarray(labels)[np.argsort(np.argsort(data()[1])) * len(labels) // N_ROWS]


def frame() -> Any:
    """The rows with categories as a frame of whole numbers, which tells them by dtype."""
    columns = {f"c{i}": column for i, column in enumerate(with_categories().T)}
    return (
        pd.DataFrame(columns)
        .astype({f"c{i}": "int64" for i in CATEGORICAL})
        .astype({f"c{i}": "category" for i in CATEGORICAL})
    )


def targets(n: int) -> Any:
    """Several targets (R, n)."""
    return np.stack([data()[1] * (i + 1) - data()[0][:, i] for i in range(n)], axis=1)


def _fit(kind: Any, rows: Any, target: Any, **options: Any) -> Any:
    weight = options.pop("sample_weight", None)
    model = kind(random_state=3, **options)
    return model.fit(rows() if callable(rows) else rows, target(), sample_weight=weight)


def _models() -> dict[str, Callable[[], Any]]:
    two, five = partial(classes, ["no", "yes"]), partial(classes, [40, -7, 3, 5, 1000])
    plain, target = lambda: data()[0], lambda: data()[1]
    few: dict[str, Any] = {"n_estimators": 12, "max_depth": 5}
    weight = {"sample_weight": np.arange(N_ROWS) % 4}
    coded, coded_nan = with_categories, partial(with_categories, True)
    cat: dict[str, Any] = {"max_iter": 8, "categorical_features": list(CATEGORICAL)}
    hist: dict[str, Any] = {"max_iter": 8, "max_leaf_nodes": 12}
    constant = lambda: np.zeros((N_ROWS, 2))  # noqa: E731
    several = lambda: np.stack([five(), classes([9]), classes([2, 3])], axis=1)  # noqa: E731
    flags = lambda: (targets(3) > np.median(targets(3), axis=0)).astype(float)  # noqa: E731
    words = lambda: np.stack([two(), classes(["red", "a", "äh"])], axis=1)  # noqa: E731
    t, e = tree, ensemble
    gbc, gbr = e.GradientBoostingClassifier, e.GradientBoostingRegressor
    hgc, hgr = e.HistGradientBoostingClassifier, e.HistGradientBoostingRegressor
    configs: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
        "tree classes": (t.DecisionTreeClassifier, plain, five, {"max_depth": 5}),
        "tree deep": (t.DecisionTreeRegressor, plain, target, {}),
        "tree holes": (t.DecisionTreeRegressor, with_holes, target, {"max_leaf_nodes": 20}),
        "tree targets": (t.DecisionTreeRegressor, plain, lambda: targets(3), {"max_depth": 4}),
        "tree several classes": (t.DecisionTreeClassifier, plain, several, {"max_depth": 5}),
        "extra tree several flags": (t.ExtraTreeClassifier, plain, flags, {"max_depth": 6}),
        "rf several classes": (e.RandomForestClassifier, plain, several, few),
        "rf several classes holes": (e.RandomForestClassifier, with_holes, several, few),
        "rf several words": (e.RandomForestClassifier, plain, words, few),
        "et several objects": (e.ExtraTreesClassifier, plain, lambda: words().astype(object), few),
        "rf flags": (e.RandomForestClassifier, plain, flags, few),
        "extra tree strings": (t.ExtraTreeClassifier, plain, two, {"max_depth": 6}),
        "extra tree": (t.ExtraTreeRegressor, plain, target, {"ccp_alpha": 0.01}),
        "rf strings": (e.RandomForestClassifier, plain, two, few),
        "rf classes": (e.RandomForestClassifier, plain, five, few),
        "rf ties": (e.RandomForestClassifier, plain, five, {"n_estimators": 4}),
        "rf classes holes": (e.RandomForestClassifier, with_holes, five, few),
        "rf weights": (e.RandomForestClassifier, plain, five, {**few, **weight}),
        "rf": (e.RandomForestRegressor, plain, target, {**few, "n_jobs": 1}),
        "rf holes": (e.RandomForestRegressor, with_holes, target, few),
        "rf targets": (e.RandomForestRegressor, plain, lambda: targets(3), few),
        "rf absolute": (
            e.RandomForestRegressor,
            plain,
            target,
            {**few, "criterion": "absolute_error"},
        ),
        "rf monotonic": (
            e.RandomForestClassifier,
            plain,
            two,
            {**few, "monotonic_cst": [1, 0, 0, -1, 0, 0]},
        ),
        "et classes": (e.ExtraTreesClassifier, plain, five, few),
        "et": (e.ExtraTreesRegressor, plain, target, {**few, "bootstrap": True}),
        "gb": (gbr, plain, target, {"n_estimators": 12, "learning_rate": 0.3}),
        "gb huber": (gbr, plain, target, {"n_estimators": 12, "loss": "huber"}),
        "gb quantile": (gbr, plain, target, {"n_estimators": 12, "loss": "quantile"}),
        "gb zero": (gbr, plain, target, {"n_estimators": 12, "init": "zero", "subsample": 0.5}),
        "gb binary": (gbc, plain, two, {"n_estimators": 12, "n_iter_no_change": 3}),
        "gb exponential": (gbc, plain, two, {"n_estimators": 12, "loss": "exponential"}),
        "gb classes": (gbc, plain, five, {"n_estimators": 5, **weight}),
        "gb dummy": (
            gbc,
            plain,
            five,
            {"n_estimators": 4, "init": DummyClassifier(strategy="prior")},
        ),
        "gb constant": (gbc, constant, two, {"n_estimators": 2, "init": "zero"}),
        "hist": (hgr, plain, target, hist),
        "hist holes": (hgr, with_holes, target, hist),
        "hist poisson": (hgr, plain, target, {**hist, "loss": "poisson"}),
        "hist gamma": (hgr, with_holes, target, {**hist, "loss": "gamma"}),
        "hist quantile": (hgr, plain, target, {**hist, "loss": "quantile", "quantile": 0.7}),
        "hist binary": (hgc, with_holes, two, hist),
        "hist classes": (hgc, plain, five, {**hist, "early_stopping": True}),
        "hist constant": (hgc, constant, two, hist),
        "hist categories": (hgr, coded, target, cat),
        "hist categories holes": (hgc, coded_nan, five, cat),
        "hist only categories": (
            hgc,
            lambda: with_categories()[:, list(CATEGORICAL)],
            partial(classes, [False, True]),
            {**cat, "categorical_features": [True, True]},
        ),
        "hist frame": (hgr, frame, target, {"max_iter": 8, "categorical_features": "from_dtype"}),
        "isolation": (e.IsolationForest, plain, target, {"n_estimators": 20}),
        "isolation columns": (
            e.IsolationForest,
            plain,
            target,
            {"n_estimators": 20, "max_features": 3},
        ),
        "isolation share": (
            e.IsolationForest,
            plain,
            target,
            {"n_estimators": 20, "contamination": 0.1, "max_samples": 50},
        ),
    }
    return {
        name: lru_cache(partial(_fit, *entry[:3], **entry[3])) for name, entry in configs.items()
    }


MODELS = _models()


def margins(model: Any, rows: Any) -> Any:
    """Sums before the link, (R, C)."""
    name = type(model).__name__
    if name == "IsolationForest":
        return _path_lengths(model, rows)
    if name.startswith("Hist"):
        return model._raw_predict(rows)
    if name == "GradientBoostingClassifier":
        return _columns(model.decision_function(rows))
    if not hasattr(model, "classes_"):
        return _columns(model.predict(rows))
    found = model.predict_proba(rows)
    return np.concatenate(found, axis=1) if isinstance(found, list) else found


def values(model: Any, rows: Any) -> Any:
    """What the estimator makes of margins, (R, C)."""
    if type(model).__name__ == "IsolationForest":
        return _columns(model.score_samples(rows))
    if not hasattr(model, "classes_"):
        return _columns(model.predict(rows))
    margin, found = margins(model, rows), model.predict_proba(rows)
    if isinstance(found, list):
        return margin
    return found[:, 1:] if margin.shape[1] == 1 else found


def leaves(model: Any, rows: Any) -> Any:
    """Leaf numbers, (R, T), or None."""
    if type(model).__name__ == "IsolationForest" or not hasattr(model, "apply"):
        return None
    return model.apply(rows).reshape(len(rows), -1)


def probe_rows(model: Any, forest: Forest, n: int) -> Any:
    """Rows (n, F) float64 on thresholds, their neighbours in both dtypes, and special numbers."""
    rng = np.random.default_rng(n)
    near = hard_rows(forest, n).astype(np.float64)
    inner = ~forest.is_leaf
    for feature in np.unique(forest.feature[inner]):
        exact = forest.threshold[inner & (forest.feature == feature)]
        exact = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)])
        where = rng.random(n) < 0.4
        near[where, feature] = rng.choice(exact, where.sum())
    for feature, known in forest.known_categories.items():
        codes = [*known, -1, -3, 0.5, known[0] + 0.5, max(known) + 1, 255, 256, 2.0**24, 1e9, -0.0]
        where = rng.random(n) < 0.8
        near[where, feature] = rng.choice(codes, where.sum())
    if getattr(model, "is_categorical_", None) is not None:  # the encoder takes no infinities
        coded = near[:, model.is_categorical_]
        near[:, model.is_categorical_] = np.where(np.isinf(coded), 1e300, coded)
    if "inf" in forest.refuses:
        near = np.clip(near, *np.array([-1, 1]) * np.finfo(np.float32).max)
    return np.where(np.isnan(near), 0.5, near) if "nan" in forest.refuses else near


def _columns(array: Any) -> Any:
    return array[:, None] if array.ndim == 1 else array


def _path_lengths(model: Any, rows: Any) -> Any:
    """Sums of path lengths, of which isolation forests tell the score only."""
    total = np.zeros(len(rows))
    for number, estimator in enumerate(model.estimators_):
        part = rows
        if model._max_features != rows.shape[1]:
            part = rows[:, model.estimators_features_[number]]
        leaf = estimator.tree_.apply(part.astype(np.float32))
        lengths = model._decision_path_lengths[number], model._average_path_length_per_tree[number]
        total += lengths[0][leaf] + lengths[1][leaf] - 1.0
    return total[:, None]
