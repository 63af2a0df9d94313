"""`predict` takes the arguments of the model's library, with the meaning that they have there."""

from functools import cache
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

import catboost_models
import lightgbm_models
import models
import sklearn_models
import tvm_forest
import xgboost_models
from tvm_forest import InputError
from tvm_forest.frontends.catboost import prediction_types

OF_XGBOOST = {**models.MODELS, **xgboost_models.KINDS}
XGBOOST = ["regression", "logistic_with_base_score", "softmax", "dart", "vectors_softmax_classes"]
ESTIMATORS = [
    *("estimator_classifier", "estimator_classifier_classes", "estimator_dart_stopped_early"),
    *("estimator_dart_targets", "estimator_dart_classifier", "estimator_dart_classifier_classes"),
]
LIGHTGBM = ["binary", "multiclass", "random_forest", "estimator_classifier_words"]


@cache
def built(name: str) -> tvm_forest.Predictor:
    trained = (lightgbm_models.MODELS if name in LIGHTGBM else OF_XGBOOST)[name]()
    forest = tvm_forest.load(trained)
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


def rows_of(name: str) -> Any:
    forest = built(name).forest
    if name not in LIGHTGBM:
        return np.clip(models.probe_rows(OF_XGBOOST[name](), forest, 60), -1e30, 1e30)
    return lightgbm_models.probe_rows(forest, 60)


def by_xgboost(name: str, rows: Any, **options: Any) -> Any:
    trained = OF_XGBOOST[name]()
    if not isinstance(trained, xgb.Booster):
        return trained.predict(rows, **options)
    matrix = models.matrix_of(trained, rows)
    if "base_margin" in options:
        matrix.set_base_margin(options.pop("base_margin"))
    return trained.predict(matrix, **options)


@pytest.mark.parametrize("name", XGBOOST + ESTIMATORS)
@pytest.mark.cases(5, others="long")
def test_output_margin_is_that_of_xgboost(name: str) -> None:
    rows = rows_of(name)
    found = built(name).predict(rows, output_margin=True)
    np.testing.assert_array_equal(found, by_xgboost(name, rows, output_margin=True))
    some = built(name).predict(rows, output_margin=True, iteration_range=(1, 2))
    wanted = by_xgboost(name, rows, output_margin=True, iteration_range=(1, 2))
    np.testing.assert_array_equal(some, wanted)


@pytest.mark.parametrize("name", XGBOOST)
def test_pred_leaf_is_that_of_xgboost(name: str) -> None:
    rows = rows_of(name)
    found = built(name).predict(rows, pred_leaf=True)
    np.testing.assert_array_equal(found, by_xgboost(name, rows, pred_leaf=True))


@pytest.mark.parametrize("name", XGBOOST + ESTIMATORS)
@pytest.mark.parametrize("span", [None, (1, 3)])
def test_base_margin_is_that_of_xgboost(name: str, span: Any) -> None:
    rows, predictor = rows_of(name), built(name)
    shape = (len(rows), predictor.forest.n_outputs)
    start = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    start = start[:, 0] if shape[1] == 1 else start
    options = {"base_margin": start, "output_margin": True, "iteration_range": span or (0, 0)}
    found = predictor.predict(rows, **options)
    np.testing.assert_array_equal(found, by_xgboost(name, rows, **options))
    del options["output_margin"]
    found, wanted = predictor.predict(rows, **options), by_xgboost(name, rows, **options)
    if found.dtype == np.float32:
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(found, wanted)


PROBA_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "estimator_classifier": [{"validate_features": False}, {"iteration_range": (1, 3)}],
    "estimator_classifier_classes": [{"validate_features": True}, {"iteration_range": (0, 2)}],
    "estimator_classifier_words": [
        *({kind: True} for kind in ("raw_score", "pred_leaf", "pred_contrib")),
        *({"start_iteration": 1, "num_iteration": count} for count in (1, None)),
        {"validate_features": False},
    ],
}


@pytest.mark.parametrize("name", PROBA_OPTIONS)
def test_arguments_of_predict_proba_are_those_of_the_library(name: str) -> None:
    made = (lightgbm_models.MODELS if name in LIGHTGBM else OF_XGBOOST)[name]()
    for options in PROBA_OPTIONS[name]:
        found = built(name).predict_proba(rows_of(name), **options)
        wanted = made.predict_proba(rows_of(name), **options)
        assert found.shape == wanted.shape, options
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", [x for x in ESTIMATORS if "classifier" in x])
def test_predict_proba_starts_from_a_base_margin_as_xgboost(name: str) -> None:
    rows, predictor = rows_of(name), built(name)
    start = np.random.default_rng(1).normal(size=(len(rows), predictor.forest.n_outputs))
    wanted = OF_XGBOOST[name]().predict_proba(rows, base_margin=start)
    for given in (start, start.ravel()):
        found = predictor.predict_proba(rows, base_margin=given)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_flat_base_margin_of_several_classes_is_read_row_by_row_as_a_matrix_does() -> None:
    rows, predictor = rows_of("softmax"), built("softmax")
    start = np.random.default_rng(2).normal(size=len(rows) * predictor.forest.n_outputs)
    matrix = xgb.DMatrix(rows, base_margin=start)
    wanted = models.MODELS["softmax"]().predict(matrix, output_margin=True)
    found = predictor.predict(rows, base_margin=start, output_margin=True)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(InputError, match=r"'base_margin': got shape \(\d+,\), the rows need"):
        predictor.predict(rows, base_margin=start[1:])


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("estimator_classifier", {"output_margin": True}, "`predict_proba` .* no such argument"),
        ("estimator_classifier_words", {"base_margin": [1]}, "that of lightgbm has raw_score"),
    ],
)
def test_what_predict_proba_of_the_library_does_not_take_is_refused(
    name: str, options: Any, message: str
) -> None:
    with pytest.raises(InputError, match=f"predict_proba: argument .*{message}"):
        built(name).predict_proba(rows_of(name), **options)


def test_contributions_are_those_of_the_library() -> None:
    rows, close = rows_of("regression"), np.testing.assert_allclose
    for option in ("pred_contribs", "pred_interactions"):
        found = built("regression").predict(rows, **{option: True})
        wanted = by_xgboost("regression", rows, **{option: True})
        close(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    rows, trained = rows_of("multiclass"), lightgbm_models.MODELS["multiclass"]()
    wanted = trained.predict(rows, pred_contrib=True)
    close(built("multiclass").predict(rows, pred_contrib=True), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [None, 2])
def test_contributions_of_a_random_forest_of_lightgbm_add_up_to_its_raw_scores(count: Any) -> None:
    rows, trained = rows_of("random_forest"), lightgbm_models.MODELS["random_forest"]()
    found = built("random_forest").predict(rows, pred_contrib=True, num_iteration=count)
    wanted = trained.predict(rows, pred_contrib=True, num_iteration=count)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_validate_features_lets_columns_have_other_names() -> None:
    frame = pd.DataFrame(models.data()[0], columns=list("abcdefghijklmnopqrstuvwxyz")[:6])
    labels = models.labels(2)
    trained = {
        "xgboost": xgb.XGBClassifier(n_estimators=3, max_depth=3).fit(frame, labels),
        "lightgbm": lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(frame, labels),
    }
    other = frame.rename(columns={"a": "z"})
    for library, model in trained.items():
        predictor = tvm_forest.build(model, schedule=tvm_forest.new_schedule(model))
        found = predictor.predict(other, validate_features=False)
        np.testing.assert_array_equal(found, model.predict(other, validate_features=False), library)
        with pytest.raises(InputError, match="no column 'a', and the model has no 'z'"):
            predictor.predict(other, validate_features=True)


@pytest.mark.parametrize("name", LIGHTGBM)
def test_raw_score_is_that_of_lightgbm(name: str) -> None:
    rows, trained = rows_of(name), lightgbm_models.MODELS[name]()
    found = built(name).predict(rows, raw_score=True)
    np.testing.assert_array_equal(found, trained.predict(rows, raw_score=True))


@pytest.mark.parametrize("name", LIGHTGBM)
def test_pred_leaf_is_that_of_lightgbm(name: str) -> None:
    rows, trained = rows_of(name), lightgbm_models.MODELS[name]()
    found = built(name).predict(rows, pred_leaf=True)
    np.testing.assert_array_equal(found, trained.predict(rows, pred_leaf=True))


@pytest.mark.parametrize("kind", ["raw_score", "pred_leaf", None])
@pytest.mark.parametrize("name", LIGHTGBM)
@pytest.mark.parametrize("begin, count", [(0, 10**6), (1, 10**6), (-3, 2), (10**6, None)])
def test_numbers_of_rounds_beyond_the_model_are_cut_off_as_by_lightgbm(
    name: str, begin: int, count: Any, kind: str | None
) -> None:
    rows, trained = rows_of(name), lightgbm_models.MODELS[name]()
    options = {"start_iteration": begin, "num_iteration": count, **({kind: True} if kind else {})}
    found, wanted = built(name).predict(rows, **options), trained.predict(rows, **options)
    if kind or found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("name", LIGHTGBM[:3])
@pytest.mark.parametrize("begin, count", [(0, 1), (1, 2), (2, -1), (0, None), (1, None)])
def test_numbers_of_rounds_are_those_of_lightgbm(name: str, begin: int, count: Any) -> None:
    rows, trained = rows_of(name), lightgbm_models.MODELS[name]()
    options = {"start_iteration": begin, "num_iteration": count}
    found = built(name).predict(rows, raw_score=True, **options)
    np.testing.assert_array_equal(found, trained.predict(rows, raw_score=True, **options))


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("regression", {"raw_score": True}, "'raw_score'.*xgboost has no such argument"),
        ("binary", {"output_margin": True}, "'output_margin'.*lightgbm has no such argument"),
        ("regression", {"output_margin": 1}, "'output_margin': 1 is neither True nor False"),
        ("regression", {"output_margin": True, "pred_leaf": True}, "give one of them"),
        ("regression", {"base_margin": [1.0]}, r"'base_margin': got shape \(1,\)"),
        ("regression", {"base_margin": ["a"]}, "'base_margin': it cannot be read as numbers"),
        ("regression", {"base_margin": [0.0], "pred_leaf": True}, "'pred_leaf' has no use for it"),
        ("binary", {"num_iteration": 1.5}, "'num_iteration': 1.5 is no whole number"),
        ("binary", {"num_iteration": 1, "iteration_range": (0, 1)}, "not both"),
    ],
)
def test_what_the_library_does_not_take_is_refused(name: str, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(name).predict(rows_of(name), **options)


def test_models_of_other_libraries_have_none_of_these_arguments() -> None:
    forest = tvm_forest.load(sklearn_models.MODELS["isolation"]())
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    with pytest.raises(InputError, match="scikit-learn has no such argument"):
        predictor.predict(np.zeros((1, forest.row_width), forest.row_dtype), raw_score=True)


NUMBERS = catboost_models.data()[0]
OF_CATBOOST = ("regressor", "classifier", "classes", "labels", "margins", "categories")


@cache
def built_of_catboost(name: str) -> tuple[Any, tvm_forest.Predictor]:
    model = catboost_models.MODELS[name]()
    return model, tvm_forest.build(model, schedule=lambda start: start)


@pytest.mark.parametrize("name", OF_CATBOOST)
@pytest.mark.parametrize("span", [{}, {"ntree_end": 3}, {"ntree_start": 2, "ntree_end": 7}])
@pytest.mark.cases(8, others="long")
def test_prediction_type_and_ntrees_are_those_of_catboost(name: str, span: Any) -> None:
    model, predictor = built_of_catboost(name)
    rows = catboost_models.with_categories()[0] if name == "categories" else NUMBERS
    margin = model.predict(rows, prediction_type="RawFormulaVal", **span)
    found = predictor.predict(rows, prediction_type="RawFormulaVal", **span)
    np.testing.assert_array_equal(found, margin)
    np.testing.assert_array_equal(predictor.predict(rows, **span), model.predict(rows, **span))
    for kind in prediction_types.list_types(predictor.forest):
        options = {"prediction_type": kind, "thread_count": 1, "verbose": False, **span}
        wanted = model.predict(rows, task_type="CPU", **options)
        found = predictor.predict(rows, task_type="CPU", **options)
        np.testing.assert_array_equal(found, wanted, kind)
    if name in ("classifier", "classes", "labels"):
        options = {"thread_count": 1, "verbose": False, "task_type": "CPU", **span}
        wanted = model.predict_proba(rows, **options)
        np.testing.assert_array_equal(predictor.predict_proba(rows, **options), wanted)


def test_other_arguments_of_catboost_are_refused() -> None:
    predictor = built_of_catboost("regressor")[1]
    with pytest.raises(InputError, match="'task_type': 'GPU' is not taken here; build for the"):
        predictor.predict(NUMBERS, task_type="GPU")
    with pytest.raises(InputError, match="'ntree_end': 'x' is no whole number"):
        predictor.predict(NUMBERS, ntree_end="x")
    with pytest.raises(InputError, match="not both"):
        predictor.predict(NUMBERS, ntree_end=2, iteration_range=(0, 1))
    with pytest.raises(InputError, match="catboost has no such argument .*prediction_type"):
        predictor.predict(NUMBERS, raw_score=True)


@pytest.mark.parametrize(
    "span", [{"ntree_start": 2}, {"ntree_start": 3, "ntree_end": 3}, {"ntree_end": -1}]
)
def test_ranges_that_catboost_takes_for_empty_are_refused(span: dict[str, int]) -> None:
    model, predictor = built_of_catboost("regressor")
    with pytest.raises(Exception, match=r"Empty tree range|Out of range"):
        model.predict(NUMBERS, **span)
    with pytest.raises(InputError, match="'ntree_end': CatBoost takes .* for an empty range"):
        predictor.predict(NUMBERS, **span)


@pytest.mark.parametrize("kind", ["pred_contribs", "pred_interactions"])
def test_shap_values_of_later_rounds_are_refused_for_xgboost_has_none(kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    options = {"booster": "dart", "rate_drop": 0.5, "max_depth": 2, "nthread": 1}
    data = xgb.DMatrix(rows, rows[:, 0])
    model = xgb.train(options, data, 5)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    first: dict[str, Any] = {kind: True, "iteration_range": (0, 3)}
    assert np.allclose(predictor.predict(rows, **first), model.predict(data, **first), atol=1e-5)
    later: dict[str, Any] = {kind: True, "iteration_range": (2, 5)}
    with pytest.raises(InputError, match=r"\(2, 5\): XGBoost explains rounds from the first on"):
        predictor.predict(rows, **later)
    assert predictor.predict_contributions(rows, iteration_range=(2, 5)).shape == (60, 4)
