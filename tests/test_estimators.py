"""Compiled forests as estimators of scikit-learn."""

import pickle
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import models
import tvm_forest
from tvm_forest import ForestClassifier, ForestRegressor, InputError, UnsupportedModel
from tvm_forest.estimators import CHECKS_OF_TRAINING

CHECKED = {ForestClassifier: RandomForestClassifier, ForestRegressor: RandomForestRegressor}
ROWS = models.data()[0]


@lru_cache
def trained(names: bool = False) -> Any:
    """A forest of three classes with names."""
    rows = pd.DataFrame(ROWS, columns=list("abcdef")) if names else ROWS
    labels = np.array(["bad", "fair", "good"])[models.labels(3)]
    return RandomForestClassifier(5, max_depth=4, random_state=0, n_jobs=1).fit(rows, labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKED)
def test_scikit_learns_checks_pass_but_for_those_of_training(kind: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 10))
    model = CHECKED[kind](3, random_state=0, n_jobs=1).fit(rows, rows[:, 0] > 0)
    failed, passed = set(), 0
    for estimator, check in estimator_checks_generator(kind(model)):
        try:
            check(estimator)
            passed += 1
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                failed.add(check.func.__name__)
    of_kind = {check.func.__name__ for _, check in estimator_checks_generator(kind(model))}
    assert failed == of_kind & CHECKS_OF_TRAINING.keys()
    assert passed >= 19


def test_a_classifier_predicts_what_its_model_predicts() -> None:
    model = trained()
    found = ForestClassifier(model).fit(ROWS, models.labels(3))
    np.testing.assert_array_equal(found.predict(ROWS), model.predict(ROWS))
    np.testing.assert_array_equal(found.predict_proba(ROWS), model.predict_proba(ROWS))
    np.testing.assert_array_equal(found.apply(ROWS), model.apply(ROWS))
    np.testing.assert_array_equal(found.classes_, model.classes_)
    assert found.score(ROWS, model.predict(ROWS)) == 1
    assert np.isneginf(found.predict_log_proba(ROWS)).any()
    assert found.n_features_in_ == 6
    assert not hasattr(found, "feature_names_in_")


def test_a_classifier_of_several_targets_gives_lists_as_its_model_does() -> None:
    labels = np.stack([models.labels(3), models.labels(2) * 7], axis=1)
    model = RandomForestClassifier(4, max_depth=3, random_state=0, n_jobs=1).fit(ROWS, labels)
    found = ForestClassifier(model)
    np.testing.assert_array_equal(found.predict(ROWS), model.predict(ROWS))
    for method in ("predict_proba", "predict_log_proba"):
        with np.errstate(divide="ignore"):
            expected = getattr(model, method)(ROWS)
        for ours, own in zip(getattr(found, method)(ROWS), expected, strict=True):
            np.testing.assert_array_equal(ours, own)
    assert [part.tolist() for part in found.classes_] == [[0, 1, 2], [0, 7]]


def test_a_booster_has_classes_by_number_and_margins_for_decisions() -> None:
    booster = models.MODELS["logistic"]()
    found = ForestClassifier(booster)
    likely = models.values(booster, ROWS)[:, 0]
    np.testing.assert_allclose(found.predict_proba(ROWS)[:, 1], likely, rtol=1e-6)
    np.testing.assert_array_equal(found.predict(ROWS), found.predict_proba(ROWS)[:, 1] > 0.5)
    np.testing.assert_array_equal(
        found.decision_function(ROWS), models.margins(booster, ROWS)[:, 0]
    )
    assert found.classes_.tolist() == [0, 1]


def test_a_regressor_predicts_and_scores() -> None:
    booster, target = models.MODELS["regression"](), models.data()[1]
    found = ForestRegressor(booster, n_jobs=1)
    np.testing.assert_array_equal(found.predict(ROWS), models.values(booster, ROWS)[:, 0])
    assert 0.5 < found.score(ROWS, target) < 1


def test_a_clone_keeps_the_trained_model() -> None:
    found = clone(ForestClassifier(trained(), n_jobs=1))
    assert found.model is trained()
    assert found.get_params() == {
        "model": trained(),
        "schedule": None,
        "target": "llvm",
        "n_jobs": 1,
    }


def test_a_new_model_is_compiled_anew() -> None:
    found = ForestRegressor(models.MODELS["regression"]())
    first = found.predict(ROWS)
    found.set_params(model=models.MODELS["stumps"]())
    assert not np.array_equal(found.predict(ROWS), first)


def test_a_pickle_predicts_without_the_training_library(tmp_path: Path) -> None:
    found = ForestClassifier(models.MODELS["estimator_classifier"]())
    wanted = found.predict_proba(ROWS[:2])
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(found))
    program = f"""
import pickle, sys, numpy
sys.modules["xgboost"] = None
found = pickle.load(open({str(tmp_path / "a.pickle")!r}, "rb"))
rows = numpy.array({ROWS[:2].tolist()}, "float32")
assert found.predict_proba(rows).tolist() == {wanted.tolist()}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_last_step_of_a_pipeline_and_a_frozen_one_work() -> None:
    scaler = StandardScaler().fit(ROWS)
    model = RandomForestClassifier(3, n_jobs=1).fit(scaler.transform(ROWS), models.labels(3))
    steps = make_pipeline(StandardScaler(), ForestClassifier(model)).fit(ROWS, models.labels(3))
    wanted = model.predict_proba(scaler.transform(ROWS))
    np.testing.assert_array_equal(steps.predict_proba(ROWS), wanted)
    calibrated = CalibratedClassifierCV(FrozenEstimator(steps)).fit(ROWS, models.labels(3))
    assert calibrated.predict_proba(ROWS).shape == (len(ROWS), 3)


def test_names_of_columns_are_checked() -> None:
    found = ForestClassifier(trained(names=True))
    assert found.feature_names_in_.tolist() == list("abcdef")
    frame = pd.DataFrame(ROWS, columns=list("abcdef"))
    np.testing.assert_array_equal(found.predict(frame), trained(names=True).predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(frame[list("bacdef")])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[0], "Reshape your data"),
        (ROWS[:, :4], "X has 4 features, but ForestClassifier is expecting 6 features"),
        (ROWS[:0], "0 sample"),
        (ROWS + 1j, "Complex data not supported"),
        (np.where(ROWS > 2, np.inf, ROWS), "inf"),
    ],
)
def test_rows_of_the_wrong_kind_are_value_errors_of_scikit_learn(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForestClassifier(trained()).predict(rows)


def test_without_a_model_nothing_is_fitted() -> None:
    with pytest.raises(InputError, match=r"fit: argument 'model': .*does not train"):
        ForestRegressor().fit(ROWS, models.data()[1])
    with pytest.raises(NotFittedError, match="give a model"):
        ForestRegressor().predict(ROWS)
    assert not hasattr(ForestClassifier(), "classes_")


def test_models_of_the_other_task_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="use ForestClassifier"):
        ForestRegressor(trained()).predict(ROWS)
    with pytest.raises(UnsupportedModel, match="use ForestRegressor"):
        ForestClassifier(models.MODELS["regression"]()).predict(ROWS)


def test_the_package_imports_scikit_learn_for_the_estimators_only() -> None:
    program = "import sys; sys.modules['sklearn'] = None; from tvm_forest import *; load"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert tvm_forest.ForestClassifier is ForestClassifier
