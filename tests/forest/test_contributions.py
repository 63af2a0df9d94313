"""SHAP values: equal to their definition, to each library's, and wherever they run."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from sklearn import ensemble, tree

import emulated_cuda
import shapley
import tvm_forest
from forests import Split, drawn_forest, forest_of
from quick_builds import build
from tvm_forest.errors import DeviceError, InputError, UnsupportedModel
from tvm_forest.forest import CategoryRule, Forest
from tvm_forest.forest.contributions import ContributionTables
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load

pytestmark = pytest.mark.usefixtures("kept_code")  # many tests build one model

CATEGORIES = 9


def data(holes: float = 0.1, width: int = 4) -> tuple[Any, Any]:
    """Return rows, the last column of which holds categories, and a target of three classes."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, width))
    rows[:, -1] = rng.integers(0, CATEGORIES, 300)
    rows[rng.random(rows.shape) < holes] = np.nan
    full = np.nan_to_num(rows)
    target = (full[:, 0] + full[:, 1] * full[:, 2] + np.isin(full[:, -1], [1, 4, 5]) > 0.3) + 0
    return rows, target + (full[:, 2] > 1)


def matrix(rows: Any, target: Any = None) -> xgb.DMatrix:
    kinds = ["q"] * (rows.shape[1] - 1) + ["c"]
    return xgb.DMatrix(rows, target, feature_types=kinds, enable_categorical=True)


def train_xgboost(rounds: int = 3, **params: Any) -> xgb.Booster:
    params = {"max_depth": 6, "min_child_weight": 0.01, "max_cat_to_onehot": 1} | params
    return xgb.train(params, matrix(*data()), rounds)


def train_lightgbm(**params: Any) -> lgb.Booster:
    rows, target = data()
    params = {"verbose": -1, "min_data_in_leaf": 3, "min_data_per_group": 2, **params}
    return lgb.train(params, lgb.Dataset(rows, target, categorical_feature=[3]), 4)


def assert_explained(forest: Forest, rows: Any, target: Any = "llvm") -> None:
    """Compare with the definition; values of XGBoost's size, so an absolute bound will do."""
    predictor = build(forest, target)
    alone, pairs = shapley.explain(forest, rows)
    shape = (len(rows), forest.n_outputs, forest.row_width + 1)
    found = predictor.predict_contributions(rows).reshape(shape)
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-12)
    found = predictor.predict_interactions(rows).reshape(*shape, forest.row_width + 1)
    np.testing.assert_allclose(found, pairs, rtol=0, atol=1e-12)


# -- by definition --------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 0])
@pytest.mark.cases(1, others="long")
def test_drawn_trees_are_explained_by_definition(least: int) -> None:
    forest = shapley.with_cover(drawn_forest(6, 6, base=(0.5, -1)), least=least)
    assert_explained(forest, hard_rows(forest, 40))


def test_repeated_features_are_one_feature() -> None:
    chain: Any = 0.25
    for step in range(9):
        chain = Split(step % 2, 0.5 - step / 8, *(chain, step)[:: 1 if step % 3 else -1])
    forest = shapley.with_cover(forest_of([chain, Split(1, 0.0, chain, 2.0)]))
    assert ContributionTables(forest).n_points == 1
    assert_explained(forest, hard_rows(forest, 40))


def test_sets_of_one_feature_are_one_feature() -> None:
    inner = Split(0, 0.0, 1.0, Split(0, 0.0, 4.0, 8.0))
    forest = shapley.with_cover(forest_of([Split(0, 0.5, inner, Split(1, 0.0, 2.0, inner))]))
    inside = [node for node in range(forest.n_nodes) if forest.feature[node] == 0][1:]
    chosen = dict(zip(inside, [(1, 2), (2, 5), (3,), (1, 2)], strict=False))
    forest = replace(forest, categories=chosen, category_rule=CategoryRule("left"))
    assert len(build(forest).forest.derived) > 1
    rows = np.array([[c, x, 0] for c in (-1, 0, 0.4, 1, 2, 3, 5, np.nan) for x in (-1, 1)])
    assert_explained(forest, rows)


def test_single_leaves_and_stumps() -> None:
    for trees in ([0.25], [0.25, Split(1, 0.5, -1.0, 2.0), -0.5], [Split(0, 0.0, 1.0, 1.0)]):
        forest = shapley.with_cover(forest_of(trees, base=[0.5]))
        assert_explained(forest, np.array([[0.0, 1, 2], [np.nan, 0.5, -1]]))


def test_deep_trees_need_more_points_than_are_unrolled() -> None:
    rng = np.random.default_rng(0)
    chain: Any = 0.0
    for feature in range(20):
        chain = Split(feature, float(rng.normal()), float(rng.normal()), chain)
    forest = shapley.with_cover(forest_of([chain], n_features=20))
    assert ContributionTables(forest).n_points == 10
    predictor, rows = build(forest), rng.normal(size=(70, 20))
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(found.sum(axis=1), predictor.predict_margin(rows), atol=1e-6)
    pairs = predictor.predict_interactions(rows[:3])
    np.testing.assert_allclose(pairs.sum(axis=2), found[:3], atol=1e-12)
    np.testing.assert_allclose(pairs, pairs.transpose(0, 2, 1), atol=1e-12)


# -- the libraries --------------------------------------------------------------------------------


XGBOOST: dict[str, dict[str, Any]] = {
    "classes": {"objective": "multi:softprob", "num_class": 3},
    "dart": {"booster": "dart", "rate_drop": 0.5, "rounds": 6},
    "forest": {"num_parallel_tree": 3, "subsample": 0.5, "base_score": 2.0},
    "logistic": {"objective": "binary:logistic", "num_class": 1, "max_depth": 2},
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost(name: str) -> None:
    params = dict(XGBOOST[name])
    if name == "logistic":
        rows, target = data()
        params.pop("num_class")
        trained = xgb.train(params, matrix(rows, target > 0), 3)
    else:
        trained = train_xgboost(**params)
    forest = load(trained)
    rows = hard_rows(forest, 60)
    rows[~(rows[:, 3] < CATEGORIES), 3] = np.nan  # XGBoost refuses some others
    rows[np.isinf(rows)] = np.nan
    given = matrix(rows)
    predictor = build(trained)
    found, theirs = (
        predictor.predict_contributions(rows),
        trained.predict(given, pred_contribs=True),
    )
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=0, atol=2e-6)
    margins = predictor.predict_margin(rows)
    np.testing.assert_allclose(found.sum(axis=-1), margins, rtol=0, atol=2e-6)
    found = predictor.predict_interactions(rows)
    theirs = trained.predict(given, pred_interactions=True)
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=0, atol=2e-6)


def test_rounds_of_a_model() -> None:
    trained, rows = train_xgboost(max_depth=2), data()[0]
    found = build(trained).predict_contributions(rows, iteration_range=(0, 2))
    theirs = trained.predict(matrix(rows), pred_contribs=True, iteration_range=(0, 2))
    np.testing.assert_allclose(found, theirs, rtol=0, atol=2e-6)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "params",
    [
        {"objective": "multiclass", "num_class": 3},
        {"boosting": "dart", "drop_rate": 0.5},
        {"zero_as_missing": True},
    ],
    ids=["classes", "dart", "zeros"],
)
def test_lightgbm(params: dict[str, Any]) -> None:
    trained = train_lightgbm(**params)
    predictor = build(trained)
    rows = hard_rows(predictor.forest, 60)
    found, theirs = predictor.predict_contributions(rows), trained.predict(rows, pred_contrib=True)
    assert found.shape == theirs.shape
    assert predictor.predict_contributions(rows[:0]).shape == (0, theirs.shape[1])
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-12)
    pairs = predictor.predict_interactions(rows).sum(axis=-1)
    np.testing.assert_allclose(pairs.reshape(found.shape), found, rtol=0, atol=1e-12)


def test_lightgbms_random_forests_are_averages() -> None:
    trained = train_lightgbm(boosting="rf", bagging_fraction=0.7, bagging_freq=1)
    rows, predictor = data()[0], build(trained)
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(4 * found, trained.predict(rows, pred_contrib=True), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=-1), predictor.predict_margin(rows), atol=1e-12)


SKLEARN = {
    "trees of classes": lambda: tree.DecisionTreeClassifier(max_depth=5),
    "random forest": lambda: ensemble.RandomForestClassifier(4, max_depth=6, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=3, random_state=0),
    "histograms": lambda: ensemble.HistGradientBoostingClassifier(
        max_iter=2, max_leaf_nodes=15, categorical_features=[3], random_state=0
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", SKLEARN)
def test_scikit_learn(name: str) -> None:
    rows, target = data(holes=0.1 if name == "histograms" else 0)
    trained = SKLEARN[name]().fit(rows, target)
    assert_explained(load(trained), rows[:40])


def test_weights_of_training_rows_count() -> None:
    rows, target = data(holes=0)
    weight = np.random.default_rng(1).random(len(rows))
    trained = tree.DecisionTreeRegressor(max_depth=3).fit(rows, target, weight)
    expected = build(trained).predict_contributions(rows)[0, -1]
    np.testing.assert_allclose(expected, np.average(target, weights=weight), rtol=1e-12)


def test_old_binary_files_of_xgboost_tell_the_same() -> None:
    folder = Path(__file__).parents[1] / "data"
    for kind in ("logistic", "classes"):
        forests = [load(folder / f"xgboost-1.7.6-{kind}.{end}") for end in ("json", "model")]
        first, second = (forest.cover for forest in forests)
        assert first is not None and second is not None
        assert np.array_equal(first, second)


# -- wherever they run ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> xgb.Booster:
    return train_xgboost(**XGBOOST["classes"])


def test_batches_and_threads_change_no_bit(trained: xgb.Booster) -> None:
    predictor, rows = build(trained), data()[0].astype(np.float32)
    for predict in (predictor.predict_contributions, predictor.predict_interactions):
        whole = predict(rows, n_jobs=1)
        assert np.array_equal(predict(rows, n_jobs=2), whole)
        for count in (0, 1, 2, 3, 7, 65):
            assert np.array_equal(predict(rows[:count]), whole[:count])


@pytest.mark.cases(1)
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
def test_other_vectors(trained: xgb.Booster, mcpu: str) -> None:
    try:
        assert_explained(load(trained), data()[0][:40], {"kind": "llvm", "mcpu": mcpu})
    except (tvm_forest.errors.BuildError, InputError) as error:
        pytest.skip(f"this CPU is of another kind: {error}")


@pytest.mark.cases(1)
@pytest.mark.parametrize("target", ["simt", {"kind": "simt", "order": "backwards"}])
def test_threads_of_a_gpu(trained: xgb.Booster, target: Any) -> None:
    assert_explained(load(trained), data()[0][:70], target)


@pytest.mark.long
def test_cuda_gives_the_same(trained: xgb.Booster) -> None:
    predictor = emulated_cuda.emulated(build(trained, "cuda"), seed=1)
    alone, pairs = shapley.explain(load(trained), data()[0][:70])
    found = predictor.predict_contributions(data()[0][:70])
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-12)
    found = predictor.predict_interactions(data()[0][:70])
    np.testing.assert_allclose(found, pairs, rtol=0, atol=1e-12)


def test_saved_predictors_explain(trained: xgb.Booster, tmp_path: Any) -> None:
    predictor, rows = build(trained), data()[0][:9]
    found = predictor.predict_contributions(rows)
    predictor.save(tmp_path / "model.tvmf")
    for other in (
        pickle.loads(pickle.dumps(predictor)),
        tvm_forest.load_predictor(tmp_path / "model.tvmf"),
    ):
        assert np.array_equal(other.predict_contributions(rows), found)


def test_covers_decide_no_prediction(trained: xgb.Booster) -> None:
    forest = load(trained)
    assert replace(forest, cover=None).signature == forest.signature


# -- refusals -------------------------------------------------------------------------------------


def test_forests_that_cannot_be_explained_say_why() -> None:
    bare = forest_of([Split(0, 0.0, 1.0, 2.0)])
    forest = shapley.with_cover(bare)
    wrong = forest.cover * np.array([2, 1, 1])  # type: ignore[operator]
    linear = train_lightgbm(linear_tree=True)
    for model, message in (
        (bare, "field 'cover': the source does not tell"),
        (replace(forest, cover=wrong), "field 'cover': tree 0, node 0 has"),
        (replace(forest, aggregate="max"), "'max' is no sum"),
        (linear, "linear leaves have no SHAP values"),
    ):
        predictor = build(model)
        for predict in (predictor.predict_contributions, predictor.predict_interactions):
            with pytest.raises(UnsupportedModel, match=message):
                predict(np.zeros((1, predictor.forest.row_width)))


def test_wrong_arguments_are_refused(trained: xgb.Booster) -> None:
    predictor = build(trained)
    with pytest.raises(InputError, match="argument 'rows'"):
        predictor.predict_contributions(np.zeros((2, 3)))
    with pytest.raises(InputError, match="argument 'n_jobs'"):
        predictor.predict_contributions(np.zeros((2, 4)), n_jobs=0)
    with pytest.raises(InputError, match="iteration_range"):
        predictor.predict_interactions(np.zeros((2, 4)), iteration_range=(0, 99))
    elsewhere = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}
    distant = build(trained, elsewhere)
    with pytest.raises(DeviceError, match="another machine"):
        distant.predict_contributions(np.zeros((2, 4)))
