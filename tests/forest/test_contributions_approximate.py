"""Approximate contributions: the bits of XGBoost's `approx_contribs`, or a refusal."""

from __future__ import annotations

import json
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost as xgb

import shapley
import tvm_forest
from forests import drawn_forest
from quick_builds import build
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load

CATEGORIES = 9
KINDS: dict[str, dict[str, Any]] = {
    "numbers": {},
    "logistic": {"objective": "binary:logistic"},
    "classes": {"objective": "multi:softprob", "num_class": 3},
    "forest": {"num_parallel_tree": 3, "subsample": 0.5, "base_score": 2.0},
    "poisson": {"objective": "count:poisson"},
    "dart, without weights": {"booster": "dart"},
}


def matrix(rows: Any, target: Any = None) -> xgb.DMatrix:
    kinds = ["q"] * (rows.shape[1] - 1) + ["c"]
    return xgb.DMatrix(rows, target, feature_types=kinds, enable_categorical=True)


def train(kind: str, seed: int, **more: Any) -> xgb.Booster:
    """Train on rows with missing values, whose last column holds categories."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(300, rng.integers(3, 9))).round(2)
    rows[:, -1] = rng.integers(0, CATEGORIES, 300)
    target = rows[:, 0] + rows[:, 1] + np.isin(rows[:, -1], [1, 4, 5])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    if kind in ("logistic", "classes", "poisson"):
        target = np.clip(np.floor(target + 1), 0, 1 + (kind != "logistic"))
    drawn = {"max_depth": int(rng.integers(1, 9)), "eta": float(rng.choice([0.1, 0.3, 1]))}
    drawn |= {"max_cat_to_onehot": int(rng.choice([1, 20])), "seed": seed, "nthread": 1}
    drawn |= {"min_child_weight": float(rng.choice([0, 0.01, 1]))}
    return xgb.train(drawn | KINDS[kind] | more, matrix(rows, target), int(rng.integers(1, 12)))


def rows_for(trained: xgb.Booster, n: int = 150) -> Any:
    """Return hard rows that a DMatrix takes."""
    rows = hard_rows(load(trained), n, seed=n)
    rows[np.isinf(rows)] = np.nan
    rows[~((rows[:, -1] >= 0) & (rows[:, -1] < CATEGORIES)), -1] = np.nan
    return rows


def approximate(trained: xgb.Booster, rows: Any, **more: Any) -> Any:
    return trained.predict(matrix(rows), pred_contribs=True, approx_contribs=True, **more)


def assert_same(found: Any, expected: Any) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drawn_models_have_the_bits_of_xgboost(kind: str) -> None:
    for seed in range(4):
        trained = train(kind, seed)
        predictor, rows = build(trained), rows_for(trained)
        expected = approximate(trained, rows)
        for n_jobs in (None, 2):
            assert_same(predictor.predict_contributions(rows, n_jobs, approximate=True), expected)
        for n in (0, 1, 65):
            assert_same(predictor.predict_contributions(rows[:n], approximate=True), expected[:n])


def test_the_arguments_of_xgboost() -> None:
    trained = train("classes", 3)
    predictor, rows = build(trained), rows_for(trained)
    asked = {"pred_contribs": True, "approx_contribs": True}
    assert_same(predictor.predict(rows, **asked), approximate(trained, rows))
    expected = approximate(trained, rows, iteration_range=(0, 2))
    assert_same(predictor.predict(rows, iteration_range=(0, 2), **asked), expected)
    assert_same(predictor.predict(rows, approx_contribs=True), predictor.predict(rows))
    with pytest.raises(UnsupportedModel, match="'approx_contribs' and 'pred_interactions': intera"):
        predictor.predict(rows, pred_interactions=True, approx_contribs=True)
    with pytest.raises(InputError, match="arguments 'approximate' and 'background': give one of"):
        predictor.predict_contributions(rows, background=rows, approximate=True)
    with pytest.raises(InputError, match="'n_jobs'"):
        predictor.predict_contributions(rows, 0, approximate=True)


def test_nodes_that_no_row_of_training_reached_give_the_nan_of_xgboost() -> None:
    trained = train("numbers", 1, max_depth=3)
    model = json.loads(trained.save_raw("json"))
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    for node in (1, tree["left_children"][1], tree["right_children"][1]):
        tree["sum_hessian"][node] = 0.0
    trained = xgb.Booster({"nthread": 1}, model_file=bytearray(json.dumps(model).encode()))
    rows = rows_for(trained)
    expected = approximate(trained, rows)
    assert np.isnan(expected).any()
    assert_same(build(trained).predict_contributions(rows, approximate=True), expected)


def test_models_without_such_contributions_are_refused() -> None:
    dart = train("dart, without weights", 2, rate_drop=0.9, one_drop=True)
    rows, target = np.random.default_rng(0).normal(size=(2, 60, 3))
    fixed = {"verbose": -1, "num_threads": 1, "num_leaves": 3}
    other = lightgbm.train(fixed, lightgbm.Dataset(rows, target[:, 0]), 2)
    alike = [xgb.XGBRegressor(n_estimators=2, n_jobs=1).fit(rows, target[:, k]) for k in (0, 1)]
    vectors = xgb.XGBRegressor(n_estimators=2, multi_strategy="multi_output_tree", n_jobs=1)
    sums = shapley.with_cover(drawn_forest(2, 2))
    refused = {
        "squarederror dart': its trees are weighted, .* leave it out": build(dart),
        "lightgbm .*': only XGBoost has such contributions; leave it out": build(other),
        "2 models of .*: it is a list of models; build them one by one": build(alike),
        "leaves are vectors": build(vectors.fit(rows, target[:, :2])),
        "build for the target 'llvm'": tvm_forest.build(sums, "simt"),
    }
    for match, predictor in refused.items():
        given = np.zeros((2, predictor.forest.row_width))
        with pytest.raises(UnsupportedModel, match=f"argument 'approximate': .*{match}"):
            predictor.predict_contributions(given, approximate=True)
