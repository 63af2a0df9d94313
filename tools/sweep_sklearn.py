"""Estimators of scikit-learn, drawn from a seed, and what scikit-learn says about rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn import dummy, ensemble, tree

import _path  # noqa: F401 (what tests share)
import sklearn_models
from sweep_drawn import (
    Drawn,
    Job,
    Options,
    Table,
    drawn_job,
    drawn_target,
    frame_of,
    handed_over,
    pick,
)

TREE: Table = {
    "max_depth": (1, 3, 8),
    "max_leaf_nodes": (2, 5, 30),
    "min_samples_leaf": (2, 20),
    "min_samples_split": (0.2, 10),
    "min_weight_fraction_leaf": (0.1,),
    "min_impurity_decrease": (0.01, 1e9),
    "max_features": ("sqrt", "log2", 0.5, 1),
    "ccp_alpha": (0.001, 0.05),
}
CLASSES: Table = {
    "criterion": ("gini", "entropy", "log_loss"),
    "class_weight": ("balanced", "balanced_subsample"),
}
NUMBERS: Table = {"criterion": ("absolute_error", "poisson", "friedman_mse")}
SINGLE: Table = {"splitter": ("best", "random")}
FOREST: Table = {
    "bootstrap": (True, False),
    "verbose": (0,),
    "max_samples": (0.4, 1),
    "oob_score": (True,),
    "n_jobs": (1, 2),
}
BOOSTING: Table = {
    "learning_rate": (0.01, 1.0),
    "subsample": (0.5,),
    "init": ("zero", "dummy", "tree"),
    "n_iter_no_change": (2,),
    "criterion": ("squared_error",),
}
HIST: Table = {
    "learning_rate": (0.01, 1.0),
    "max_leaf_nodes": (2, 5, None),
    "max_depth": (1, 3),
    "min_samples_leaf": (1, 5),
    "l2_regularization": (1.0,),
    "max_features": (0.5,),
    "max_bins": (2, 16, 100),
    "early_stopping": (True, False),
    "interaction_cst": ("pairwise", "no_interactions"),
    "scoring": ("loss", None),
    "validation_fraction": (0.3, None),
}
LOSSES: Table = {"loss": ("squared_error", "absolute_error", "huber", "quantile")}
HIST_LOSSES: Table = {"loss": ("squared_error", "absolute_error", "gamma", "poisson", "quantile")}
ISOLATION: Table = {
    "max_samples": (1, 2, 0.5, 50),
    "contamination": (0.1, 0.4),
    "max_features": (0.5, 1),
    "bootstrap": (True,),
    "n_jobs": (2,),
}
ESTIMATORS: dict[str, tuple[Table, ...]] = {
    "DecisionTreeClassifier": (TREE, CLASSES, SINGLE),
    "DecisionTreeRegressor": (TREE, NUMBERS, SINGLE),
    "ExtraTreeClassifier": (TREE, CLASSES, SINGLE),
    "ExtraTreeRegressor": (TREE, NUMBERS, SINGLE),
    "RandomForestClassifier": (TREE, CLASSES, FOREST),
    "RandomForestRegressor": (TREE, NUMBERS, FOREST),
    "ExtraTreesClassifier": (TREE, CLASSES, FOREST),
    "ExtraTreesRegressor": (TREE, NUMBERS, FOREST),
    "GradientBoostingClassifier": (TREE, BOOSTING, {"loss": ("log_loss", "exponential")}),
    "GradientBoostingRegressor": (TREE, BOOSTING, LOSSES, {"alpha": (0.2, 0.7)}),
    "HistGradientBoostingClassifier": (HIST, {"class_weight": ("balanced",)}),
    "HistGradientBoostingRegressor": (HIST, HIST_LOSSES),
    "IsolationForest": (ISOLATION,),
}
WORDS = {
    "whole": [7, -2, 40, 5, 1000, 3],
    "text": ["red", "a", "äh", "b", "z", "B"],
    "objects": np.array(["red", "a", "äh", "b", "z", "B"], object),
    "flags": [True, False],
    "floats": [3.0, -1.0, 4.0, 9.0, 7.0, 8.0],
}


def drawn_model(rng: Any, folder: Path) -> Drawn:
    """Fit an estimator."""
    name = pick(rng, ESTIMATORS)
    job = drawn_job(rng, folder, 0.5 if name.startswith("Hist") else 0.0)
    # Where categories are bools, scikit-learn fits and cannot predict.
    odd = any(names and isinstance(names[0], bool) for names in job.labels.values())
    if odd or not any(job.labels.values()) or rng.random() < 0.5:
        job.labels = {i: None for i in job.labels}
    options: Options = {}
    for table in ESTIMATORS[name]:
        options |= job.options_of(table, 0.8 if "loss" in table else None)
    job.options = options | {"random_state": int(rng.integers(99))}
    job.said |= {"estimator": name}
    _sizes(job, name)
    target = _target(job, name)
    job.said["dtype"] = dtype = pick(rng, ("float64", "float64", "float32"))
    rows = job.rows.astype(dtype)
    model = (getattr(tree, name, None) or getattr(ensemble, name))(**job.options)
    fields: Options = {} if (weight := job.weight()) is None else {"sample_weight": weight}
    given = _as_given(job, rows, name)
    model.fit(given, target, **fields)
    more = "max_iter" if name.startswith("Hist") else "n_estimators"
    if more in job.options and job.says("warm start", 0.1):
        model.set_params(**{"warm_start": True, more: getattr(model, more) + 4})
        model.fit(given, target, **fields)
    return Drawn(model, handed_over(job, model), job.rows, job.labels, job.said)


def _as_given(job: Job, rows: Any, name: str) -> Any:
    """Return the rows in one of the kinds that an estimator may be fitted on."""
    if job.labels and job.x is not job.rows:
        return frame_of(rows, job.labels)
    if job.says("fitted on a frame", 0.15):
        return frame_of(rows, {})
    if not name.startswith("Hist") and not np.isnan(rows).any() and job.says("sparse", 0.1):
        return scipy.sparse.csr_matrix(rows)
    return rows


def _sizes(job: Job, name: str) -> None:
    """Draw options that the table cannot tell: how many trees, and what depends on the rows."""
    options, rng, width = job.options, job.rng, job.rows.shape[1]
    counts = pick(rng, (1, 3, 5, 10, 10, 20, 40))
    if name.startswith("Hist"):
        options["max_iter"] = job.said["max_iter"] = min(counts, 10)
        if job.labels:
            named = job.x is not job.rows and None not in job.labels.values()
            options["categorical_features"] = [*job.labels]
            if named and job.says("categories by dtype", 0.5):
                options["categorical_features"] = "from_dtype"
    elif "_tree" not in name and not name.endswith(("TreeClassifier", "TreeRegressor")):
        options["n_estimators"] = job.said["n_estimators"] = counts
    if options.get("init") == "tree":
        options["init"] = tree.DecisionTreeRegressor(max_depth=2)
    if options.get("init") == "dummy":
        regressor = name.endswith("Regressor")
        kinds = ("mean", "median") if regressor else ("prior", "most_frequent", "uniform")
        kind = dummy.DummyRegressor if regressor else dummy.DummyClassifier
        job.said["init"] = strategy = pick(rng, kinds)
        options["init"] = kind(strategy=strategy)
    if name[:4] in ("Deci", "Extr", "Rand", "Hist") and job.says("monotone", 0.07):
        drawn = [int(x) for x in rng.integers(-1, 2, width)]
        options["monotonic_cst"] = [0 if i in job.labels else x for i, x in enumerate(drawn)]
    if options.get("loss") == "quantile" and name.startswith("Hist"):
        options["quantile"] = pick(rng, (0.2, 0.9))


def _target(job: Job, name: str) -> Any:
    rng, boosted = job.rng, "Boosting" in name
    if name.endswith("Regressor"):
        chosen = (job.options.get("criterion"), job.options.get("loss"))
        positive = "poisson" in chosen or "gamma" in chosen
        kind = "positive" if positive else "real"
        target = job.target(kind)
        if not boosted and job.says("several", 0.2):
            return np.column_stack([target, drawn_target(rng, job.rows, kind)])
        return target
    if name == "IsolationForest":
        return None
    classes, words = pick(rng, (1, 2, 2, 2, 3, 3, 6)), pick(rng, WORDS)
    if job.options.get("loss") == "exponential":
        classes = 2
    job.said["words"] = words
    made = [_words(job, classes, words)]
    if not boosted and job.says("several", 0.2):
        made += [_words(job, pick(rng, (2, 3)), words) for _ in range(2)]
    return np.column_stack(made) if len(made) > 1 else made[0]


def _words(job: Job, classes: int, words: str) -> Any:
    codes = job.target("classes", classes)
    return np.asarray(WORDS[words])[codes % len(WORDS[words])]


def kinds_of_rows(drawn: Drawn) -> tuple[str, ...]:
    """Return the other kinds in which rows may be given."""
    dense = ("float32", "whole", "frame") + (() if drawn.labels else ("mixed frame",))
    hist = type(drawn.model).__name__.startswith("Hist")
    return dense if hist else (*dense, "csr_matrix", "csr_array", "csc_matrix")


def answers(drawn: Drawn, rows: Any, part: tuple[int, int] | None) -> Options:
    """Return what scikit-learn says, by the methods of a Predictor."""
    model = drawn.model
    if "n_jobs" in model.get_params():  # more threads add in any order
        model.set_params(n_jobs=1)
    found = {"predict": model.predict(rows)}
    if type(model).__name__ == "IsolationForest":
        return found
    found["predict_margin"] = _squeezed(sklearn_models.margins(model, rows))
    if hasattr(model, "predict_proba"):
        found["predict_proba"] = model.predict_proba(rows)
    return found


def _squeezed(array: Any) -> Any:
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def leaves(drawn: Drawn, rows: Any) -> Any:
    """Return the leaf numbers (R, T), or None."""
    return sklearn_models.leaves(drawn.model, rows)
