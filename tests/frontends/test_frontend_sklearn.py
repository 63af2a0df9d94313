"""Fitted scikit-learn estimators: bits of margins, labels, leaf numbers, and refusals."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble, svm, tree
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_models as cases
import tvm_forest
from sklearn_models import MODELS, classes, data, leaves, margins, probe_rows, values
from tvm_forest import load
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest import choose_labels

N = 1500
pytestmark = pytest.mark.filterwarnings("ignore")  # of scikit-learn, e.g. of columns without names
LINK_ULPS = {"identity": 0, "exp": 0, "softmax": 0, "sigmoid": 4, "isolation": 1}


@pytest.fixture(params=MODELS)
def case(request: Any) -> Any:
    """An estimator, its forest, and rows."""
    model = MODELS[request.param]()
    forest = load(model)
    return model, forest, probe_rows(model, forest, N)


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.int64)


def test_margins_equal_those_of_scikit_learn_to_the_bit(case: Any) -> None:
    model, forest, rows = case
    assert np.array_equal(bits(forest.predict_reference(rows)), bits(margins(model, rows)))


def test_values_are_within_the_bound_of_their_link(case: Any) -> None:
    model, forest, rows = case
    expected, found = values(model, rows), forest.predict_reference(rows, "value")
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert np.abs(bits(found) - bits(expected)).max() <= LINK_ULPS[forest.link]


def test_leaf_numbers_equal_those_of_apply(case: Any) -> None:
    model, forest, rows = case
    expected, found = leaves(model, rows), forest.predict_reference(rows, "apply")
    if expected is None:
        expected = found  # the estimator tells none
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_labels_equal_those_of_predict(case: Any) -> None:
    model, forest, rows = case
    if forest.labels is None:
        assert not hasattr(model, "classes_")
        return
    expected = model.predict(rows)
    margin = forest.predict_reference(rows)
    found = choose_labels(forest, margin, forest.predict_reference(rows, "value"))
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_a_compiled_model_of_several_targets_predicts_as_its_own_does(tmp_path: Any) -> None:
    model = MODELS["rf several words"]()
    rows = probe_rows(model, load(model), 300)
    tvm_forest.build(model, schedule=lambda start: start).save(tmp_path / "model.tvmf")
    predictor = tvm_forest.load_predictor(tmp_path / "model.tvmf", model)
    labels, likely = predictor.predict(rows), predictor.predict_proba(rows)
    assert labels.dtype == model.predict(rows).dtype
    assert np.array_equal(labels, model.predict(rows))
    assert len(likely) == 2
    for found, expected in zip(likely, model.predict_proba(rows), strict=True):
        assert np.array_equal(bits(found), bits(expected))


def test_a_target_may_have_a_single_class() -> None:
    target = np.stack([classes([4]), classes([0, 1])], axis=1)
    model = tree.DecisionTreeClassifier(max_depth=3).fit(data()[0], target)
    forest, rows = load(model), data()[0]
    margin = forest.predict_reference(rows)
    assert forest.targets == (1, 2)
    assert np.array_equal(choose_labels(forest, margin, margin), model.predict(rows))


def test_rows_are_cast_to_float32_before_they_are_compared() -> None:
    model = MODELS["rf"]()
    forest = load(model)
    rows = probe_rows(model, forest, N)
    uncast = replace(forest, row_dtype="float64").predict_reference(rows)[:, 0]
    expected = model.predict(rows)
    assert np.array_equal(forest.predict_reference(rows)[:, 0], expected)
    assert np.mean(uncast != expected) > 0.1


def test_a_single_tree_may_predict_a_negative_zero() -> None:
    model = tree.DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 5.0])
    model.tree_.value[:] = -0.0
    rows = np.array([[0.25], [0.75]])
    assert np.signbit(model.predict(rows)).all()
    assert np.signbit(load(model).predict_reference(rows)).all()


def test_trees_see_categorical_columns_first() -> None:
    forest = load(MODELS["hist categories holes"]())
    assert set(forest.known_categories) == set(cases.CATEGORICAL)
    assert {int(forest.feature[node]) for node in forest.categories} == set(cases.CATEGORICAL)


def test_a_margin_of_zero_is_the_second_class_for_boosting_and_the_first_for_histograms() -> None:
    rows = np.zeros((1, 2))
    found = {}
    for name in ("gb constant", "hist constant"):
        forest = load(MODELS[name]())
        margin = forest.predict_reference(rows)
        assert margin == 0
        found[name] = choose_labels(forest, margin, margin)[0]
    assert found == {"gb constant": "yes", "hist constant": "no"}


@pytest.mark.parametrize("offset", [-2.0, -0.75, -0.5, -0.45, 0.0, 0.5])
def test_inliers_follow_the_offset_even_on_a_score_that_occurs(offset: float) -> None:
    rows = data()[0]
    model = ensemble.IsolationForest(n_estimators=15, random_state=1).fit(rows)
    for cut in (offset, *np.unique(model.score_samples(rows))[::50]):
        model.offset_ = cut
        forest = load(model)
        margin = forest.predict_reference(rows)
        assert np.array_equal(choose_labels(forest, margin, margin), model.predict(rows))


def test_string_labels_give_equal_models_equal_signatures() -> None:
    def fit(names: list[str]) -> Any:
        target = classes(names).astype(object)
        return tree.DecisionTreeClassifier(max_depth=2, random_state=0).fit(data()[0], target)

    first, again, other = (load(fit(names)) for names in (["a", "b"], ["a", "b"], ["a", "c"]))
    assert first.labels is not None and first.labels.dtype == object
    assert first.signature == again.signature != other.signature


def test_column_names_are_taken_over() -> None:
    assert load(MODELS["hist frame"]()).feature_names == tuple(f"c{i}" for i in range(6))
    assert load(MODELS["rf"]()).feature_names is None


NAMES = [
    *("rf", "rf monotonic", "rf absolute", "et", "tree targets"),
    *("gb", "gb classes", "hist", "isolation"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("word", ["nan", "inf"])
def test_a_forest_refuses_the_rows_that_its_estimator_refuses(name: str, word: str) -> None:
    model = MODELS[name]()
    rows = np.full((1, cases.N_FEATURES), float(word))
    if word in load(model).refuses:
        with pytest.raises(ValueError, match="NaN|infinity"):
            model.predict(rows)
    else:
        assert len(model.predict(rows)) == 1


class Derived(ensemble.RandomForestRegressor):  # type: ignore[misc]
    """What a user may write."""


def fitted(kind: Any, target: Any = None, rows: Any = None, **options: Any) -> Any:
    rows = data()[0] if rows is None else rows
    return kind(**options).fit(rows, classes([0, 1]) if target is None else target)


def with_column(values: Any, **options: Any) -> Any:
    """A model with a categorical first column of these values."""
    rows = np.stack([np.resize(np.asarray(values, object), 500), data()[0][:, 0]], axis=1)
    rows = rows if isinstance(values[0], bytes) else rows.astype(np.float64)
    target = np.resize(np.arange(len(values)), 500)
    kind = ensemble.HistGradientBoostingRegressor
    if isinstance(values[0], bytes):
        rows = cases.pd.DataFrame(rows).astype({0: "category", 1: "float64"})
    return fitted(kind, target, rows, max_iter=3, categorical_features=[0], **options)


REFUSED = {
    "a support vector machine": (lambda: fitted(svm.SVC), "SVC cannot be loaded; give one of"),
    "AdaBoost": (lambda: fitted(ensemble.AdaBoostClassifier, n_estimators=2), "AdaBoost"),
    "a pipeline": (
        lambda: fitted(lambda: make_pipeline(StandardScaler(), tree.DecisionTreeClassifier())),
        r"Pipeline cannot be loaded; give its last step, .*; tvm_forest.accelerate\(model\)",
    ),
    "a search": (
        lambda: GridSearchCV(tree.DecisionTreeClassifier(), {}),
        "give its `best_estimator_`",
    ),
    "a subclass": (lambda: fitted(Derived, n_estimators=2), "give an object of the class Random"),
    "an init of its own": (
        lambda: fitted(ensemble.GradientBoostingRegressor, init=LinearRegression(), n_estimators=2),
        r"field 'init': sklearn\S*LinearRegression predicts",
    ),
    "categories of bytes": (lambda: with_column([b"a", b"b"]), "categories of dtype object"),
    "bytes that no tree asks for": (
        lambda: with_column([b"a", b"b"], min_samples_leaf=400),
        "categories of dtype object",
    ),
    "negative categories": (lambda: with_column([-1, 3, 5]), "has the category -1"),
    "fractional categories": (lambda: with_column([0.5, 3, 5]), "has the category 0.5"),
    "huge categories": (lambda: with_column([2**24, 3, 5]), "has the category 16777216"),
}
OF_ONE = {
    "a tree of one class": lambda: fitted(tree.DecisionTreeClassifier, classes([4])),
    "a forest of one class": lambda: fitted(
        ensemble.RandomForestClassifier, classes(["red"]), n_estimators=3
    ),
    "boosting of one class": lambda: fitted(
        ensemble.HistGradientBoostingClassifier, classes([4]), max_iter=2
    ),
    "trees of one row": lambda: fitted(ensemble.IsolationForest, max_samples=1, n_estimators=3),
    "trees of one row, most of them odd": lambda: fitted(
        ensemble.IsolationForest, max_samples=1, n_estimators=3, contamination=0.4
    ),
}


@pytest.mark.parametrize("name", OF_ONE)
def test_models_that_say_one_thing_of_all_rows_say_it(name: str) -> None:
    model = OF_ONE[name]()
    predictor = tvm_forest.build(load(model), schedule=lambda start: start)
    rows = data()[0][:9]
    assert np.array_equal(predictor.predict(rows), model.predict(rows))
    assert predictor.predict(rows).dtype == model.predict(rows).dtype
    if hasattr(model, "predict_proba"):
        expected = model.predict_proba(rows)
        assert np.array_equal(bits(predictor.predict_proba(rows)), bits(expected))
    else:
        scores = load(model).predict_reference(rows, "value")[:, 0]
        assert np.array_equal(bits(scores), bits(model.score_samples(rows)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message):
        load(make())


@pytest.mark.parametrize("kind", [tree.DecisionTreeRegressor, ensemble.IsolationForest])
def test_an_estimator_that_is_not_fitted_is_no_model(kind: Any) -> None:
    with pytest.raises(ModelFormatError, match="not fitted; fit it first"):
        load(kind())


def test_an_older_scikit_learn_is_refused_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["rf"]()
    monkeypatch.setattr(sys.modules["sklearn"], "__version__", "1.4.2")
    with pytest.raises(UnsupportedModel, match=r"scikit-learn 1\.4\.2 predicts by other rules"):
        load(model)


def test_a_missing_attribute_is_refused_by_its_name() -> None:
    model = fitted(ensemble.GradientBoostingClassifier, n_estimators=2)
    del model._loss
    with pytest.raises(UnsupportedModel, match="field '_loss': scikit-learn .* keeps no such"):
        load(model)


def test_a_damaged_tree_names_its_node() -> None:
    model = fitted(ensemble.HistGradientBoostingClassifier, max_iter=2)
    model._predictors[1][0].nodes["left"][0] = 10_000
    with pytest.raises(ModelFormatError, match="'trees'.*tree 1, node 0 has left child 10000"):
        load(model)


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_infinities_are_refused_in_columns_of_categories_as_scikit_learn_does(
    infinity: float,
) -> None:
    model = with_column([0, 1, 2, 5])
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    rows = np.zeros((4, 2))
    rows[2, 1] = infinity
    assert np.array_equal(predictor.predict(rows), model.predict(rows))
    rows[1, 0] = infinity
    with pytest.raises(ValueError, match="infinity"):
        model.predict(rows)
    for given in (rows, rows.astype(np.float32), np.tile(rows, (100, 1))):
        with pytest.raises(
            InputError, match="row 1, column 0 is -?inf as float64, which the model"
        ):
            predictor.predict(given)
    rows[1, 0] = np.nan  # as the error says
    assert np.array_equal(predictor.predict(rows), model.predict(rows))
    assert tvm_forest.verify(model, n_rows=100).ok
