"""SHAP values of CatBoost, YDF and isolation forests: those of each library, on drawn models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import catboost as cb
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import IsolationForest

import shapley
from quick_builds import build
from tvm_forest.errors import ModelFormatError, UnsupportedModel
from tvm_forest.forest.contributions import find_players
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load

pytestmark = pytest.mark.usefixtures("kept_code")  # one model is built in several ways

SEEDS = [0, pytest.param(1, marks=pytest.mark.long)]
NAMES = ["a", "b", "c", "d"]
TEXTS = ["c", "d"]


def frame(seed: int = 0, rows: int = 200, holes: bool = True) -> tuple[Any, Any, Any]:
    """Return rows with two columns of texts, a target of numbers, and one of three classes."""
    rng = np.random.default_rng(seed)
    data = pd.DataFrame(rng.normal(size=(rows, 2)), columns=NAMES[:2])
    data["c"], data["d"] = rng.choice(list("xyzw"), rows), rng.choice(list("pqrst"), rows)
    score = data.a + (data.c == "x") + (data.d == "p") * data.b
    if holes:
        data.loc[::7, "b"] = np.nan
    return data, score, np.digitize(score, [0.2, 1.0])


def train_catboost(seed: int, texts: bool, **params: Any) -> tuple[Any, Any]:
    """Return a fitted model, and rows that are hard for it."""
    data, score, classes = frame(seed)
    data = data if texts else data[NAMES[:2]]
    of_classes = str(params.get("loss_function", "")).startswith("Multi")
    own: dict[str, Any] = {"iterations": 5, "depth": 4, "random_seed": seed, "thread_count": 1}
    kind = cb.CatBoostClassifier if of_classes else cb.CatBoostRegressor
    model = kind(verbose=0, allow_writing_files=False, **(own | params))
    model.fit(data, classes if of_classes else score, cat_features=TEXTS if texts else [])
    rows = data[:60].copy()
    if texts:
        rows.loc[:4, "c"] = "never seen"
        return model, rows
    hard = hard_rows(load(model), 60)
    return model, pd.DataFrame(hard, columns=data.columns)


CATBOOST: dict[str, dict[str, Any]] = {
    "numbers": {"texts": False},
    "texts": {"texts": True},
    "texts together": {"texts": True, "max_ctr_complexity": 3, "model_size_reg": 0},
    "single texts": {"texts": True, "one_hot_max_size": 10},
    "classes": {"texts": True, "loss_function": "MultiClass", "class_weights": [1, 5, 2]},
    "each class": {"texts": False, "loss_function": "MultiClassOneVsAll"},
    "quantile": {"texts": False, "loss_function": "Quantile", "model_shrink_rate": 0.2},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CATBOOST)
def test_catboost(name: str, seed: int) -> None:
    model, rows = train_catboost(seed, **CATBOOST[name])
    pool = cb.Pool(rows, cat_features=[x for x in TEXTS if x in rows])
    theirs = model.get_feature_importance(pool, type="ShapValues", thread_count=1)
    predictor = build(model)
    found = predictor.predict_contributions(rows)
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
    margins = predictor.predict_margin(rows)
    np.testing.assert_allclose(found.sum(axis=-1), margins, rtol=0, atol=1e-12)
    if seed == 1 or name in ("texts together", "classes"):  # each is code of its own
        pairs = predictor.predict_interactions(rows)
        theirs = model.get_feature_importance(pool, type="ShapInteractionValues")
        np.testing.assert_allclose(pairs[..., :-1, :-1], theirs[..., :-1, :-1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(pairs.sum(axis=-1), found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", ["Depthwise", "Lossguide"])
def test_catboosts_other_trees_are_explained_by_definition(policy: str, seed: int) -> None:
    """CatBoost's own values of them do not add up to its margins."""
    model, rows = train_catboost(seed, False, grow_policy=policy)
    alone, pairs = shapley.explain(load(model), rows.to_numpy(np.float32))
    predictor = build(model)
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(found, alone[:, 0], rtol=0, atol=1e-12)
    found = predictor.predict_interactions(rows)
    np.testing.assert_allclose(found, pairs[:, 0], rtol=0, atol=1e-12)


def test_columns_that_are_looked_up_together_are_one_player() -> None:
    data = frame(rows=400)[0][TEXTS]
    target = (data.c.isin(["x", "y"]) ^ data.d.isin(["p", "q"])).astype(float)
    model = cb.CatBoostRegressor(
        iterations=10, depth=2, max_ctr_complexity=2, model_size_reg=0, verbose=0
    )
    model.fit(data, target, cat_features=TEXTS)
    players, _ = find_players(load(model))
    assert players == [(0,), (0, 1), (1,)]
    found = build(model).predict_contributions(data)
    pool = cb.Pool(data, cat_features=TEXTS)
    theirs = model.get_feature_importance(pool, type="ShapValues", thread_count=1)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
    pairs = build(model).predict_interactions(data)
    np.testing.assert_allclose(pairs.sum(axis=-1), found, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pairs, np.swapaxes(pairs, 1, 2), rtol=0, atol=1e-12)


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    for policy in ("SymmetricTree", "Lossguide"):
        model, rows = train_catboost(0, False, grow_policy=policy)
        path = tmp_path / "model.json"
        model.save_model(str(path), format="json")
        predictor = build(load(path))
        found = predictor.predict_contributions(rows)
        assert np.array_equal(found, build(model).predict_contributions(rows))
        text = path.read_text().replace('"leaf_weights"', '"other"').replace('"weight"', '"other"')
        path.write_text(text)
        assert load(path).cover is None
        with pytest.raises(UnsupportedModel, match="field 'cover'"):
            build(load(path)).predict_contributions(rows)


def test_weights_of_other_leaves_are_damage(tmp_path: Path) -> None:
    model, _ = train_catboost(0, False)
    path = tmp_path / "model.json"
    model.save_model(str(path), format="json")
    document = json.loads(path.read_text())
    document["oblivious_trees"][1]["leaf_weights"].pop()
    with pytest.raises(ModelFormatError, match="'leaf_weights': .* numbers for"):
        load(json.dumps(document).encode())


# -- YDF ------------------------------------------------------------------------------------------


def train_ydf(seed: int, learner: str, label: str, **options: Any) -> tuple[Any, Any]:
    ydf = pytest.importorskip("ydf")
    data, score, classes = frame(seed)
    data["score"], data["class"] = score, np.array(["low", "mid", "high"])[classes]
    task = ydf.Task.REGRESSION if label == "score" else ydf.Task.CLASSIFICATION
    own = {"num_trees": 5, "max_depth": 5, "num_threads": 1, "random_seed": seed}
    learn = getattr(ydf, f"{learner}Learner")(
        label=label, task=task, features=NAMES, **(own | options)
    )
    return learn.train(data, verbose=0), data[NAMES]


@pytest.mark.parametrize(
    ("learner", "label", "options"),
    [
        ("GradientBoostedTrees", "score", {}),
        ("GradientBoostedTrees", "class", {"max_depth": 3}),
        ("RandomForest", "score", {"allow_na_conditions": True}),
        ("RandomForest", "class", {"winner_take_all": False}),
    ],
)
def test_ydf(learner: str, label: str, options: dict[str, Any]) -> None:
    model, rows = train_ydf(0, learner, label, **options)
    theirs, first = model.predict_shap(rows)
    predictor = build(model)
    found = predictor.predict_contributions(rows)
    values = np.stack([theirs[name] for name in predictor.forest.feature_names], axis=-1)
    np.testing.assert_allclose(found[..., :-1], values, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found[0, ..., -1], first, rtol=0, atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), predictor.predict_margin(rows), atol=2e-6)


def test_ydf_by_definition() -> None:
    model, rows = train_ydf(1, "GradientBoostedTrees", "score")
    predictor = build(model)
    names = predictor.forest.category_names
    numbers = np.column_stack(
        [rows.a, rows.b, *(rows[x].map(names[2 + at].index) for at, x in enumerate(TEXTS))]
    )
    alone, _ = shapley.explain(load(model), numbers)
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(found, alone[:, 0], rtol=0, atol=1e-12)


# -- isolation forests ----------------------------------------------------------------------------


def test_isolation_forests_are_those_of_shap_times_the_number_of_trees() -> None:
    shap = pytest.importorskip("shap")
    rows = frame(holes=False)[0][NAMES[:2]].to_numpy()
    trained = IsolationForest(n_estimators=7, max_samples=50, random_state=0).fit(rows)
    theirs = shap.TreeExplainer(trained).shap_values(rows)
    predictor = build(trained)
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(found[:, :-1], 7 * theirs, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.sum(-1), predictor.predict_margin(rows), atol=1e-9)
