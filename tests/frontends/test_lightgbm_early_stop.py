"""LightGBM's `pred_early_stop`: the answers of LightGBM, which are not those of the whole model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lightgbm_models
import tvm_forest
from tvm_forest import InputError

pytestmark = pytest.mark.usefixtures("kept_code")
LONG = pytest.mark.long
NAMES = ["binary", "l1"]
NAMES += [
    pytest.param(name, marks=LONG)
    for name in ("multiclass", "ova", "lambdarank", "rank_xendcg", "random_forest_binary", "dart")
]


def build(model: Any) -> Any:
    """Build by a schedule that fits any tree and compiles fast."""
    return tvm_forest.build(model, schedule=lambda start: start.represent_as("sparse"))


@pytest.mark.parametrize("name", NAMES)
def test_rows_stop_where_they_do_in_lightgbm(name: str) -> None:
    model = lightgbm_models.MODELS[name]()
    predictor, booster = build(model), lightgbm_models.booster_of(model)
    rows = lightgbm_models.probe_rows(predictor.forest, 200)
    whole, differs = predictor.predict(rows), False
    for frequency in (3, 10):
        for margin in (0, 0.4, 10.0):
            options = {"pred_early_stop": True, "pred_early_stop_freq": frequency}
            options["pred_early_stop_margin"] = margin
            for more in ({}, {"raw_score": True}):
                right = booster.predict(rows, num_threads=1, **options, **more)
                found = predictor.predict(rows, **options, **more)
                assert found.tobytes() == np.asarray(right).tobytes()
            differs |= bool(np.any(predictor.predict(rows, **options) != whole))
    assert differs != (name in ("l1", "dart"))  # regressions want accurate predictions


def test_ranges_of_rounds_begin_to_count_anew() -> None:
    model = lightgbm_models.MODELS["binary"]()
    predictor = build(model)
    rows = lightgbm_models.probe_rows(predictor.forest, 100)
    options = {"pred_early_stop": True, "pred_early_stop_freq": 3, "pred_early_stop_margin": 0.2}
    options |= {"start_iteration": 2, "num_iteration": 7}
    right = model.predict(rows, num_threads=1, **options)
    assert predictor.predict(rows, **options).tobytes() == right.tobytes()


def test_estimators_give_labels_and_probabilities() -> None:
    from lightgbm import LGBMClassifier

    rows, _ = lightgbm_models.data()
    estimator = LGBMClassifier(n_estimators=10, num_leaves=6, verbose=-1, n_jobs=1)
    estimator.fit(rows, lightgbm_models.labels(2))
    predictor = build(estimator)
    options = {"pred_early_stop": True, "pred_early_stop_freq": 2, "pred_early_stop_margin": 0.5}
    assert np.array_equal(predictor.predict(rows, **options), estimator.predict(rows, **options))
    right = estimator.predict_proba(rows, **options)
    assert np.array_equal(predictor.predict_proba(rows, **options), right)
    assert not np.array_equal(right, estimator.predict_proba(rows))


def test_false_is_the_whole_model() -> None:
    predictor = build(lightgbm_models.MODELS["binary"]())
    rows = lightgbm_models.probe_rows(predictor.forest, 50)
    found = predictor.predict(rows, pred_early_stop=False, pred_early_stop_margin=0)
    assert np.array_equal(found, predictor.predict(rows))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"pred_early_stop": 1}, "'pred_early_stop': 1 is neither True nor False"),
        ({"pred_early_stop_freq": 0}, "'pred_early_stop_freq': expected a whole number from 1"),
        ({"pred_early_stop_freq": 2.5}, "'pred_early_stop_freq'"),
        ({"pred_early_stop_margin": -1}, "'pred_early_stop_margin': expected a number from 0"),
        ({"pred_early_stop_margin": float("nan")}, "'pred_early_stop_margin'"),
    ],
)
def test_wrong_options_are_refused_by_name(option: dict[str, Any], message: str) -> None:
    predictor = build(lightgbm_models.MODELS["binary"]())
    rows = lightgbm_models.probe_rows(predictor.forest, 5)
    with pytest.raises(InputError, match=message):
        predictor.predict(rows, **({"pred_early_stop": True} | option))
