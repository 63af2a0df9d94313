"""Compiled forests as estimators of scikit-learn."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone, is_classifier, is_outlier_detector
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

import models
import tvm_forest
from tvm_forest import ForestClassifier, ForestRegressor, InputError, UnsupportedModel
from tvm_forest.estimators.forests import METHODS

pytestmark = pytest.mark.usefixtures("kept_code")  # tests compile the same models

ROWS = models.data()[0]


class _Pretending:
    """Takes rows to train on, as scikit-learn's checks want, and looks at their columns."""

    def fit(self, X: Any = None, y: Any = None) -> Any:
        if X is not None:
            self._validate(X)  # type: ignore[attr-defined]
        return super().fit()  # type: ignore[misc]


class PretendingClassifier(_Pretending, ForestClassifier): ...


class PretendingRegressor(_Pretending, ForestRegressor): ...


CHECKED = {
    PretendingClassifier: RandomForestClassifier,
    PretendingRegressor: RandomForestRegressor,
}

_COLUMNS = """
    check_classifier_data_not_an_array check_classifiers_classes check_classifiers_train
    check_dict_unchanged check_dont_overwrite_parameters check_estimator_sparse_array
    check_estimator_sparse_matrix check_estimator_sparse_tag
    check_estimators_dtypes check_estimators_fit_returns_self check_estimators_overwrite_params
    check_estimators_pickle check_f_contiguous_array_estimator check_fit2d_1feature
    check_fit2d_predict1d check_fit_check_is_fitted check_fit_idempotent check_fit_score_takes_y
    check_methods_sample_order_invariance check_methods_subset_invariance
    check_n_features_in_after_fitting check_pipeline_consistency
    check_positive_only_tag_during_fit check_readonly_memmap_input
    check_regressors_no_decision_function check_supervised_y_2d
"""

CHECKS_OF_TRAINING: dict[str, str] = {
    **dict.fromkeys(
        _COLUMNS.split(),
        "it fits rows of its own, which have other columns than those that the model was trained "
        "with; fit and predict refuse them",
    ),
    "check_classifiers_one_label": "it trains on one class; the classes are those of the model",
    "check_classifiers_regression_target": "it wants an error for y, which fit does not look at",
    "check_n_features_in": "it wants no n_features_in_ before fit; the model has it from the start",
    "check_regressors_train": "it wants an error for y, which fit does not look at",
    "check_requires_y_none": "it wants y or a certain error; fit does without y",
}
"""The checks of `sklearn.utils.estimator_checks` that do not apply to an estimator which does not
train, and why. It passes all others."""


@lru_cache
def trained(names: bool = False) -> Any:
    """A forest of three classes with names."""
    rows = pd.DataFrame(ROWS, columns=list("abcdef")) if names else ROWS
    labels = np.array(["bad", "fair", "good"])[models.labels(3)]
    return RandomForestClassifier(5, max_depth=4, random_state=0, n_jobs=1).fit(rows, labels)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CHECKED)
@pytest.mark.long
def test_scikit_learns_checks_pass_but_for_those_of_training(kind: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 10))
    model = CHECKED[kind](3, random_state=0, n_jobs=1).fit(rows, rows[:, 0] > 0)
    failed, passed = set(), 0
    made = kind(model, schedule=tvm_forest.new_schedule(model))  # it compiles for each check
    for estimator, check in estimator_checks_generator(made):
        try:
            check(estimator)
            passed += 1
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                failed.add(check.func.__name__)
    of_kind = {check.func.__name__ for _, check in estimator_checks_generator(made)}
    assert failed == of_kind & CHECKS_OF_TRAINING.keys()
    assert passed >= 19


def test_a_classifier_predicts_what_its_model_predicts() -> None:
    model = trained()
    found = ForestClassifier(model).fit()
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
    found = compiled(model)
    np.testing.assert_array_equal(found.predict(ROWS), model.predict(ROWS))
    for method in ("predict_proba", "predict_log_proba"):
        with np.errstate(divide="ignore"):
            expected = getattr(model, method)(ROWS)
        for ours, own in zip(getattr(found, method)(ROWS), expected, strict=True):
            np.testing.assert_array_equal(ours, own)
    assert [part.tolist() for part in found.classes_] == [[0, 1, 2], [0, 7]]


def test_a_booster_has_classes_by_number_and_no_decisions_as_its_classifier() -> None:
    booster = models.MODELS["logistic"]()
    found = compiled(booster)
    likely = models.values(booster, ROWS)[:, 0]
    np.testing.assert_allclose(found.predict_proba(ROWS)[:, 1], likely, rtol=1e-6)
    np.testing.assert_array_equal(found.predict(ROWS), found.predict_proba(ROWS)[:, 1] > 0.5)
    assert not hasattr(found, "decision_function")
    assert found.classes_.tolist() == [0, 1]


SOURCES: dict[str, Callable[[], Any]] = {
    "random forest": lambda: RandomForestClassifier(4, max_depth=3, n_jobs=1, random_state=0),
    "tree": lambda: DecisionTreeClassifier(max_depth=3, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=4, random_state=0),
    "histogram": lambda: HistGradientBoostingClassifier(max_iter=4, random_state=0),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, n_jobs=1),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=4, n_jobs=1),
    "isolation": lambda: IsolationForest(n_estimators=8, contamination=0.2, random_state=0),
}
OTHERS = [name for name in SOURCES if name != "isolation"]


@lru_cache
def source(name: str, classes: int = 2) -> Any:
    return SOURCES[name]().fit(ROWS, models.labels(classes))


def compiled(model: Any) -> ForestClassifier:
    """Compile with a plain schedule, which takes a tenth of the time of the default one."""
    return ForestClassifier(model, tvm_forest.new_schedule(tvm_forest.load(model)))


def check_methods(found: ForestClassifier, model: Any) -> None:
    for name in METHODS:
        assert hasattr(found, name) == hasattr(model, name), name
    for name in set(METHODS[2:]) & set(dir(model)):
        own, ours = getattr(model, name)(ROWS), getattr(found, name)(ROWS)
        assert own.shape == ours.shape
        assert own.tobytes() == ours.tobytes(), name


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.cases(8, others="long")
def test_a_classifier_has_the_methods_of_its_source_with_their_bits(
    name: str, classes: int
) -> None:
    found = compiled(source(name, classes))
    check_methods(found, source(name, classes))
    check_methods(pickle.loads(pickle.dumps(found)), source(name, classes))


@pytest.mark.parametrize("name", ["random forest", "boosting", "histogram", "isolation"])
def test_a_forest_that_was_loaded_has_the_decisions_of_its_source(name: str) -> None:
    found = compiled(tvm_forest.load(source(name)))
    assert hasattr(found, "decision_function") == hasattr(source(name), "decision_function")
    assert hasattr(found, "score_samples") == hasattr(source(name), "score_samples")
    if hasattr(found, "decision_function"):
        assert np.array_equal(found.decision_function(ROWS), source(name).decision_function(ROWS))


def test_two_margins_of_two_classes_are_both_returned() -> None:
    model = lightgbm.LGBMClassifier(
        n_estimators=4, verbose=-1, n_jobs=1, objective="multiclassova", num_class=2
    ).fit(ROWS, models.labels(2))
    if hasattr(model, "decision_function"):  # since LightGBM 4.7
        check_methods(compiled(model), model)


def test_decisions_of_an_average_of_lightgbm_are_its_sums() -> None:
    model = lightgbm.LGBMClassifier(
        n_estimators=4, verbose=-1, boosting="rf", bagging_freq=1, bagging_fraction=0.5
    ).fit(ROWS, models.labels(3))
    if hasattr(model, "decision_function"):
        check_methods(compiled(model), model)


def test_an_isolation_forest_is_a_detector_of_outliers() -> None:
    found = compiled(source("isolation"))
    assert is_outlier_detector(found)
    assert not is_classifier(found)
    assert np.array_equal(found.predict(ROWS), source("isolation").predict(ROWS))


@pytest.mark.parametrize("contamination", ["auto", 0.3])
@pytest.mark.parametrize("samples, bootstrap", [(1, False), (1, True), (2, False), (0.004, True)])
@pytest.mark.cases(4, others="long")
def test_isolation_forests_of_one_or_two_rows_a_tree_score_as_their_source(
    samples: float, bootstrap: bool, contamination: Any
) -> None:
    model = IsolationForest(
        n_estimators=4,
        max_samples=samples,
        bootstrap=bootstrap,
        contamination=contamination,
        random_state=1,
    ).fit(ROWS)
    found = compiled(model)
    assert is_outlier_detector(found)
    for method in ("score_samples", "decision_function", "predict"):
        np.testing.assert_array_equal(getattr(found, method)(ROWS), getattr(model, method)(ROWS))


@pytest.mark.parametrize("name", OTHERS)
def test_calibrated_probabilities_are_those_of_the_calibrated_source(name: str) -> None:
    target = models.labels(2)
    own, ours = (
        CalibratedClassifierCV(FrozenEstimator(model)).fit(ROWS, target).predict_proba(ROWS)
        for model in (source(name), compiled(source(name)))
    )
    np.testing.assert_allclose(ours, own, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.cases(3)
def test_ensembles_and_scorers_find_in_a_compiled_forest_what_they_find_in_its_source(
    name: str,
) -> None:
    target, model = models.labels(2), source(name)
    pair = [("own", FrozenEstimator(model)), ("ours", FrozenEstimator(compiled(model)))]
    own, ours = (
        StackingClassifier([one], cv="prefit").fit(ROWS, target).predict_proba(ROWS) for one in pair
    )
    np.testing.assert_allclose(ours, own, rtol=1e-5)
    own, ours = (VotingClassifier([one], voting="soft").fit(ROWS, target) for one in pair)
    np.testing.assert_allclose(ours.predict_proba(ROWS), own.predict_proba(ROWS), rtol=1e-5)
    own, ours = (VotingClassifier([one]).fit(ROWS, target).predict(ROWS) for one in pair)
    np.testing.assert_array_equal(ours, own)
    for scoring in ("roc_auc", "neg_log_loss"):
        own, ours = (cross_val_score(one, ROWS, target, scoring=scoring, cv=3) for _, one in pair)
        np.testing.assert_allclose(ours, own, rtol=1e-5)


def test_a_regressor_predicts_and_scores() -> None:
    booster, target = models.MODELS["regression"](), models.data()[1]
    found = ForestRegressor(booster, lambda start: start, n_jobs=1)
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
    found = ForestRegressor(models.MODELS["regression"](), lambda start: start)
    first = found.predict(ROWS)
    found.set_params(model=models.MODELS["stumps"]())
    assert not np.array_equal(found.predict(ROWS), first)


def test_a_pickle_predicts_without_the_training_library(tmp_path: Path) -> None:
    found = compiled(models.MODELS["estimator_classifier"]())
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
    last = FrozenEstimator(compiled(model))
    steps = make_pipeline(StandardScaler(), last).fit(ROWS, models.labels(3))
    wanted = model.predict_proba(scaler.transform(ROWS))
    np.testing.assert_array_equal(steps.predict_proba(ROWS), wanted)
    calibrated = CalibratedClassifierCV(FrozenEstimator(steps)).fit(ROWS, models.labels(3))
    assert calibrated.predict_proba(ROWS).shape == (len(ROWS), 3)


def test_names_of_columns_are_checked() -> None:
    found = compiled(trained(names=True))
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
@pytest.mark.cases(2)
def test_rows_of_the_wrong_kind_are_value_errors_of_scikit_learn(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compiled(trained()).predict(rows)


def test_without_a_model_nothing_is_fitted() -> None:
    with pytest.raises(InputError, match=r"fit: argument 'model': .*does not train"):
        ForestRegressor().fit(ROWS, models.data()[1])
    with pytest.raises(NotFittedError, match="give a model"):
        ForestRegressor().predict(ROWS)
    assert not hasattr(ForestClassifier(), "classes_")


@pytest.mark.parametrize("arguments", [(ROWS,), (ROWS, models.labels(3)), (None, ROWS[:, 0])])
def test_rows_to_train_on_are_refused(arguments: Any) -> None:
    found = ForestClassifier(trained())
    with pytest.raises(InputError, match=r"fit: ForestClassifier .* do not train; .*Frozen"):
        found.fit(*arguments)
    with pytest.raises(ValueError, match="All the 3 fits failed(.|\n)*do not train"):
        cross_val_score(found, ROWS, models.labels(3), cv=3)


def test_models_of_the_other_task_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="use ForestClassifier"):
        ForestRegressor(trained()).predict(ROWS)
    with pytest.raises(UnsupportedModel, match="use ForestRegressor"):
        ForestClassifier(models.MODELS["regression"]()).predict(ROWS)


def test_the_package_imports_scikit_learn_for_the_estimators_only() -> None:
    program = "import sys; sys.modules['sklearn'] = None; from tvm_forest import *; load"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert tvm_forest.ForestClassifier is ForestClassifier
