"""Models of CatBoost, drawn from a seed, and what CatBoost says about rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import catboost as cb
import numpy as np
import pandas as pd

from sweep_drawn import Drawn, Options, Table, drawn_job, pick
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import given_rows, hard_rows, typical_rows

OPTIONS: Table = {
    "depth": (1, 2, 4, 8),
    "learning_rate": (0.01, 1, 3),
    "l2_leaf_reg": (0, 100),
    "random_strength": (0, 10),
    "border_count": (1, 3, 32, 1000),
    "feature_border_type": ("Uniform", "UniformAndQuantiles", "MaxLogSum", "MinEntropy", "Median"),
    "nan_mode": ("Min", "Max", "Forbidden"),
    "boosting_type": ("Ordered", "Plain"),
    "grow_policy": ("SymmetricTree", "Depthwise", "Lossguide"),
    "bootstrap_type": ("Bayesian", "Bernoulli", "MVS", "No"),
    "has_time": (True,),
    "boost_from_average": (True, False),
    "leaf_estimation_method": ("Newton", "Gradient"),
    "leaf_estimation_iterations": (1, 5),
    "model_shrink_rate": (0.1,),
    "min_data_in_leaf": (5, 50),
    "rsm": (0.5,),
    "score_function": ("Cosine", "L2"),
    "fold_permutation_block": (4,),
    "approx_on_full_history": (True,),
}
OF_CATEGORIES: Table = {
    "one_hot_max_size": (1, 2, 5, 255),
    "max_ctr_complexity": (1, 2, 4),
    "counter_calc_method": ("Full", "SkipTest"),
    "simple_ctr": (
        ["Borders"],
        ["Buckets"],
        ["BinarizedTargetMeanValue"],
        ["Counter"],
        ["Borders:TargetBorderCount=4", "Buckets:TargetBorderCount=2", "Counter:CtrBorderCount=40"],
        ["Borders:Prior=0.3/1:Prior=2/1", "BinarizedTargetMeanValue:CtrBorderType=Median"],
    ),
    "combinations_ctr": (["Borders:TargetBorderCount=3"], ["Buckets", "Counter"], ["Counter"]),
    "model_size_reg": (0, 5),
    "store_all_simple_ctr": (True,),
}
CLASSIFIERS = {
    "Logloss": "flags",
    "CrossEntropy": "share",
    "Focal:focal_alpha=0.4;focal_gamma=2": "flags",
    "MultiClass": "classes",
    "MultiClassOneVsAll": "classes",
    "MultiLogloss": "labels",
    "MultiCrossEntropy": "labels",
}
REGRESSORS = {
    **dict.fromkeys(("RMSE", "MAE", "MAPE", "LogCosh", "RMSEWithUncertainty"), "real"),
    **dict.fromkeys(("Quantile:alpha=0.2", "Expectile:alpha=0.3", "Huber:delta=0.4"), "real"),
    **dict.fromkeys(("Lq:q=3", "LogLinQuantile", "MultiQuantile:alpha=0.1,0.5,0.9"), "real"),
    **dict.fromkeys(("Poisson", "Tweedie:variance_power=1.4"), "counts"),
    **dict.fromkeys(("MultiRMSE", "MultiRMSEWithMissingValues"), "several"),
    "Cox": "real",
}
RANKERS = ("YetiRank", "QueryRMSE", "QuerySoftMax", "PairLogit", "YetiRankPairwise", "LambdaMart")
WORDS = ([7, -2, 40], ["b", "a", "äh"], [0.5, -1.0, 8.0])
CATEGORIES = (
    lambda codes: [f"k{code}" for code in codes],
    lambda codes: [*map(int, codes)],
    lambda codes: [("", "ä", "b c", "D")[code % 4] + str(code // 4) for code in codes],
)


def drawn_model(rng: Any, folder: Path) -> Drawn:
    """Train a `CatBoost` or an estimator."""
    job = drawn_job(rng, folder, 0.0)
    rows: Any = job.rows.astype(np.float32)
    form = pick(rng, ("CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker", "CatBoost"))
    losses = {
        "CatBoostClassifier": [*CLASSIFIERS],
        "CatBoostRegressor": [*REGRESSORS],
        "CatBoostRanker": RANKERS,
        "CatBoost": [*CLASSIFIERS, *REGRESSORS],
    }
    loss = pick(rng, losses[form])
    options = job.options_of(OPTIONS)
    count = pick(rng, (0, 0, 1, 2, 3))
    at = [*range(rows.shape[1], rows.shape[1] + count)]
    if count:
        options |= job.options_of(OF_CATEGORIES, 0.3)
        codes = [rng.integers(0, pick(rng, (2, 3, 12, 100)), len(rows)) for _ in at]
        columns = [np.array(pick(rng, CATEGORIES)(code), object)[:, None] for code in codes]
        rows = np.concatenate([rows.astype(float).astype(object), *columns], axis=1)
    trees = pick(rng, (1, 2, 5, 10, 20, 40))
    kind = {**CLASSIFIERS, **REGRESSORS}.get(loss, "classes")
    target = _target(job, kind, form)
    model = (
        getattr(cb, form)({**options, "loss_function": loss, "iterations": trees, **_FIXED})
        if form == "CatBoost"
        else getattr(cb, form)(loss_function=loss, iterations=trees, **options, **_FIXED)
    )
    data: Options = {"cat_features": at or None}
    if form == "CatBoostRanker":
        data["group_id"] = np.arange(len(rows)) // 10
    names = [f"f{i}" for i in range(rows.shape[1])] if job.says("named", 0.3) else None
    model.fit(cb.Pool(rows, target, feature_names=names, **data))
    job.said |= {"form": form, "loss": loss, "trees": trees, "categories": count}
    if job.says("scaled", 0.15):
        bias = model.get_scale_and_bias()[1]
        model.set_scale_and_bias(0.7, bias)
    elif form != "CatBoost" and job.says("summed", 0.05):
        model = cb.sum_models([model, model], weights=[0.3, 0.9])
    drawn = Drawn(model, model, rows, {}, job.said, model.tree_count_)
    if form == "CatBoost" or job.said.get("summed"):
        return drawn
    if job.says("file", 0.4):  # of which CatBoost itself reads only the other kind as it is
        drawn.given = folder / pick(rng, ("model.cbm", "model.json"))
        model.save_model(str(drawn.given), format=drawn.given.suffix[1:])
    return drawn


_FIXED: Options = {"verbose": 0, "allow_writing_files": False, "thread_count": 1, "random_seed": 7}


def _target(job: Any, kind: str, form: str) -> Any:
    classes = pick(job.rng, (2, 3, 6))
    if kind == "labels":
        return np.stack([job.target("flags"), job.target("flags")], axis=1).astype(int)
    if kind == "several":
        return np.stack([job.target("real"), job.target("real")], axis=1)
    target = job.target(kind, classes)
    if kind == "classes" or kind == "flags":
        target = target.astype(int)
        if form == "CatBoostClassifier":
            return np.array(pick(job.rng, WORDS), object)[target % (2 if kind == "flags" else 3)]
    return target


def drawn_rows(drawn: Drawn, forest: Forest, rng: Any, n: int) -> Any:
    """Rows (n, F) of borders and what lies beside them, known and unknown categories."""
    seed = int(rng.integers(1 << 30))
    with np.errstate(all="ignore"):
        made = [hard_rows(forest, n - n // 2, seed), typical_rows(forest, n // 4, seed, 0.05)]
    seen = drawn.rows[rng.integers(len(drawn.rows), size=n // 2 - n // 4)]
    if forest.encoder is not None:
        made = [given_rows(forest, part, seed) for part in made]
    return np.concatenate([*made, seen])


def kinds_of_rows(drawn: Drawn) -> tuple[str, ...]:
    """Return the other kinds in which rows may be given."""
    return ("objects", "frame") if drawn.rows.dtype == object else ("float64", "frame")


def in_kind(kind: str, drawn: Drawn, forest: Forest, rows: Any) -> Any:
    """Return rows like these as users may have them."""
    if kind != "frame":
        return rows.astype(object if kind == "objects" else kind)
    frame = pd.DataFrame(rows)
    if forest.encoder is not None:
        for at in range(rows.shape[1]):
            frame[at] = frame[at] if at in forest.encoder.categories else rows[:, at].astype(float)
    frame.columns = list(forest.given_names or frame.columns)
    return frame


def answers(drawn: Drawn, rows: Any, part: tuple[int, int] | None) -> Options:
    """Return what CatBoost says, by the methods of a Predictor."""
    model, span = drawn.model, {"thread_count": 1}
    if part:
        span |= {"ntree_start": part[0], "ntree_end": part[1]}
    if len(rows) == 0:
        return {}
    found = {
        "predict_margin": cb.CatBoost.predict(model, rows, "RawFormulaVal", **span),
        "predict": np.asarray(model.predict(rows, **span)),
    }
    if hasattr(model, "predict_proba"):
        found["predict_proba"] = model.predict_proba(rows, **span)
    return found


def leaves(drawn: Drawn, rows: Any) -> Any:
    """Return the leaf numbers (R, T), unless they are those of a JSON file."""
    if str(drawn.given).endswith(".json"):
        return None
    at = drawn.model.get_cat_feature_indices()
    names = drawn.model.feature_names_
    pool = cb.Pool(rows, cat_features=at or None, feature_names=names)
    return drawn.model.calc_leaf_indexes(pool, thread_count=1)
