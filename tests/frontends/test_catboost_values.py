"""Values, probabilities and labels of CatBoost to the bit, for each loss and prediction type."""

from __future__ import annotations

from typing import Any

import catboost as cb
import numpy as np
import pytest

import catboost_configurations as configurations
import tvm_forest
from catboost_models import MODELS, data, with_leaves
from tvm_forest import InputError

pytestmark = pytest.mark.usefixtures("kept_code")  # models that differ in leaves alone

LOSSES = ["RMSE", "Poisson", "RMSEWithUncertainty", "Logloss", "MultiClass", "MultiClassOneVsAll"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.cases(3, others="long")
def test_every_prediction_type_is_that_of_catboost_to_the_bit(loss: str) -> None:
    found = configurations.count_equal_values(loss, 3003)
    assert found and all(equal == total for equal, total in found.values()), found


@pytest.mark.long
@pytest.mark.parametrize("loss", sorted(configurations.LOSSES.keys() - set(LOSSES)))
def test_every_other_loss_too(loss: str) -> None:
    found = configurations.count_equal_values(loss, 1001)
    assert found and all(equal == total for equal, total in found.values()), found


@pytest.mark.parametrize("n_rows", [1, 3, 4, 6, 129])
@pytest.mark.parametrize("name", ["poisson", "uncertainty", "classes"])
@pytest.mark.cases(6, others="long")
def test_values_beyond_the_range_of_powers_are_those_of_catboost(name: str, n_rows: int) -> None:
    model = with_leaves(MODELS[name](), 5000)
    rows = np.resize(data()[0], (n_rows, 4))
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    assert np.ptp(predictor.predict_margin(data()[0])) > 1420
    if name == "classes":
        assert predictor.predict_proba(rows).tobytes() == model.predict_proba(rows).tobytes()
    else:
        assert np.ascontiguousarray(predictor.predict(rows)).tobytes() == (
            np.ascontiguousarray(model.predict(rows)).tobytes()
        )


@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_margins_have_the_values_of_catboost(sign: int) -> None:
    model = MODELS["poisson"]().copy()
    model.set_scale_and_bias(1e308, -1e308 * sign)
    rows = data()[0][:103]
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    assert np.isinf(predictor.predict_margin(rows)).any()
    assert np.array_equal(predictor.predict(rows), model.predict(rows))


@pytest.mark.parametrize("name", ["margins", "regressor", "classes", "labels", "ranker"])
def test_what_catboost_cannot_give_is_refused(name: str) -> None:
    predictor = tvm_forest.build(MODELS[name](), schedule=lambda start: start)
    gives = ["RawFormulaVal", "Class", "Probability", "LogProbability", "Exponent"]
    lacks: list[Any] = ["VirtEnsembles", "class", 3]
    if name in ("regressor", "ranker"):
        gives.remove("Class")
        lacks.append("Class")
    gives, lacks = (
        ([*gives, "RMSEWithUncertainty"], lacks)
        if name in ("classes", "labels")
        else (gives, [*lacks, "RMSEWithUncertainty"])
    )
    for kind in lacks:
        with pytest.raises(InputError, match=rf"'prediction_type': .*\(have: {', '.join(gives)}\)"):
            predictor.predict(data()[0], prediction_type=kind)


def test_a_file_is_read_as_the_object_that_its_loss_is_for(tmp_path: Any) -> None:
    model = cb.CatBoost({"loss_function": "Poisson", "iterations": 3, "verbose": 0})
    model.fit(data()[0], np.exp(data()[1] / 2))
    model.save_model(str(tmp_path / "model.cbm"))
    predictor = tvm_forest.build(tmp_path / "model.cbm", schedule=lambda start: start)
    rows = data()[0]
    assert np.array_equal(predictor.predict(rows), model.predict(rows, "Exponent"))
    assert np.array_equal(predictor.predict_margin(rows), model.predict(rows))
