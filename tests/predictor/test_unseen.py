"""Categories that a model never saw: predicted as its library does, or refused as an option."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import catboost
import lightgbm
import numpy as np
import onnx
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

import tvm_forest
from test_inputs import equal_bits
from tvm_forest import InputError, UnsupportedModel
from tvm_forest.frontends.library_predictions import predict_by_library
from tvm_forest.predictor.inputs import to_rows

CITIES = ("Lima", "Oslo", "Rome", "Turin")
N = 400


def frame_of(cities: Any, categories: Any = CITIES) -> Any:
    """Rows of a number and a city, and another number."""
    rng = np.random.default_rng(len(cities))
    city = pd.Categorical(cities, categories=categories)
    return pd.DataFrame({
        "age": rng.normal(size=len(cities)).astype(np.float32),
        "city": city,
        "debt": rng.normal(size=len(cities)).astype(np.float32),
    })  # fmt: skip


@lru_cache
def trained() -> tuple[Any, Any]:
    """Rows, in which cities are missing, and targets that cities decide."""
    rng = np.random.default_rng(0)
    cities = rng.choice(CITIES, N).astype(object)
    cities[::9] = None
    rows = frame_of(cities)
    codes = rows["city"].cat.codes.to_numpy()
    return rows, rows["age"].to_numpy() * 0.1 + np.array([3.0, 1.0, -2.0, 4.0, 2.0])[codes]


def as_codes(rows: Any) -> Any:
    """The rows as an array; cities that are no category of the column are missing."""
    codes = rows["city"].cat.codes.replace(-1, np.nan)
    return rows.assign(city=codes).to_numpy(np.float64)


def boost(rows: Any) -> Any:
    kinds = ["q", "c", "q"] if isinstance(rows, np.ndarray) else None
    data = xgboost.DMatrix(rows, trained()[1], feature_types=kinds, enable_categorical=True)
    return xgboost.train({"max_depth": 3, "nthread": 1}, data, 4)


def lighten(rows: Any) -> Any:
    options = {"verbose": -1, "num_threads": 1, "min_data_per_group": 1, "cat_smooth": 0}
    named = {} if isinstance(rows, pd.DataFrame) else {"categorical_feature": [1]}
    return lightgbm.train(options, lightgbm.Dataset(rows, trained()[1], **named), 4)


def histogram(rows: Any) -> Any:
    model = HistGradientBoostingRegressor(max_iter=4, categorical_features=[1], random_state=0)
    return model.fit(rows, trained()[1])


def cat(rows: Any, **options: Any) -> Any:
    texts = rows.assign(city=rows["city"].astype(object).fillna("none"))
    model = catboost.CatBoostRegressor(
        iterations=4, verbose=False, thread_count=1, allow_writing_files=False, **options
    )
    return model.fit(texts, trained()[1], cat_features=["city"])


def yggdrasil(rows: Any) -> Any:
    ydf = pytest.importorskip("ydf", reason="YDF has no wheel for this Python")
    texts = rows.assign(city=rows["city"].astype(object).fillna(""), target=trained()[1])
    texts.loc[:60, "city"] = [f"village {k}" for k in range(61)]  # too rare to be listed
    learner = ydf.GradientBoostedTreesLearner("target", task=ydf.Task.REGRESSION, num_trees=4)
    return learner.train(texts, verbose=0)


MODELS: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: boost(trained()[0]),
    "xgboost codes": lambda: boost(as_codes(trained()[0])),
    "lightgbm": lambda: lighten(trained()[0]),
    "lightgbm codes": lambda: lighten(as_codes(trained()[0])),
    "scikit-learn": lambda: histogram(trained()[0]),
    "scikit-learn codes": lambda: histogram(as_codes(trained()[0])),
    "catboost": lambda: cat(trained()[0]),
    "catboost one-hot": lambda: cat(trained()[0], one_hot_max_size=9),
    "ydf": lambda: yggdrasil(trained()[0]),
}


@lru_cache
def model(name: str) -> Any:
    return MODELS[name]()


NEW = ("Paris", "Oslo", None, "Rome", "", "Lima")
"""Cities, of which the first and the one before the last are unseen."""
BY_LABEL = ("lightgbm", "scikit-learn", "catboost", "catboost one-hot", "ydf")
BY_CODE = ("xgboost codes", "lightgbm codes", "scikit-learn codes", "xgboost", "lightgbm")


def ask_library(name: str, rows: Any) -> Any:
    """Return what the library of a model predicts for a frame."""
    if name.startswith("catboost"):
        return model(name).predict(to_texts(rows))
    if name == "ydf":
        return model(name).predict(rows.assign(city=rows["city"].astype(object).fillna("")))
    return model(name).predict(rows)


def to_texts(rows: Any) -> Any:
    return rows.assign(city=rows["city"].astype(object).fillna("none"))


def given(name: str, rows: Any) -> Any:
    """Return rows as they are passed to a predictor: those of CatBoost have no missing texts."""
    return to_texts(rows) if name.startswith("catboost") else rows


@pytest.mark.parametrize("name", BY_LABEL)
def test_unseen_labels_are_treated_as_the_library_treats_them(name: str) -> None:
    rows = frame_of(NEW, ["Rome", "Paris", "", "Oslo", "Lima"])
    forest = tvm_forest.load(model(name))
    found = forest.predict_reference(to_rows(given(name, rows), forest))[:, 0]
    assert equal_bits(found, np.asarray(ask_library(name, rows), found.dtype))


def test_labels_that_xgboost_refuses_are_refused() -> None:
    """XGBoost 3.2 takes a label that comes before a known one in the alphabet for that one."""
    forest = tvm_forest.load(model("xgboost"))
    for new in ("Zurich", "Paris", ""):
        with pytest.raises(InputError, match=f"row 1, column 'city' is '{new}', a category that"):
            to_rows(frame_of(["Oslo", new], ["Oslo", new]), forest)
    with pytest.raises(ValueError, match="category not in the training set"):
        model("xgboost").inplace_predict(frame_of(["Oslo", "Zurich"], ["Oslo", "Zurich"]))


@pytest.mark.parametrize("name", BY_CODE)
def test_unseen_codes_are_treated_as_the_library_treats_them(name: str) -> None:
    rows = np.zeros((9, 3))
    rows[:, 1] = [0, 1, 2, 3, 4, 31, 32, 1e6, np.nan]
    forest = tvm_forest.load(model(name))
    theirs = predict_by_library(model(name), forest, rows.astype(forest.row_dtype))
    assert not isinstance(theirs, str), theirs
    assert theirs.row_mask.all()
    assert equal_bits(forest.predict_reference(rows), theirs.margin)


# -- refused as an option -------------------------------------------------------------------------

STRICT = ("xgboost", "lightgbm", "scikit-learn", "catboost", "ydf")
"""Models that list the labels of a column."""


def strict(name: str, columns: Any = True) -> Any:
    return tvm_forest.load(model(name)).refuse_unseen(columns)


KINDS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda rows: rows,
    "polars": lambda rows: pl.from_pandas(rows),
    "table": lambda rows: pa.Table.from_pandas(rows),
    "record batch": lambda rows: pa.RecordBatch.from_pandas(rows),
    "dicts": lambda rows: rows.astype({"city": object}).to_dict("records"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRICT)
def test_labels_that_the_model_does_not_know_are_refused(name: str, kind: str) -> None:
    forest, plain = strict(name), tvm_forest.load(model(name))
    known = given(name, frame_of(["Oslo", None, "Rome"], ["Rome", "never", "Oslo"]))
    if name.startswith("catboost"):
        known = known.assign(city=["Oslo", "none", "Rome"])
    rows = KINDS[kind](known)
    assert equal_bits(to_rows(rows, forest), to_rows(rows, plain))
    new = given(name, frame_of(["Oslo", "Rome", "Paris"], ["Rome", "Paris", "Oslo"]))
    with pytest.raises(InputError, match="row 2, column 'city' is 'Paris', a category that the mo"):
        to_rows(KINDS[kind](new), forest)


@pytest.mark.parametrize("name", BY_CODE[1:])
@pytest.mark.parametrize("code", [-2.0, 4.0, 31.0, 1e6, np.inf])
def test_codes_that_the_model_does_not_know_are_refused(name: str, code: float) -> None:
    forest = strict(name)
    rows = np.zeros((6, 3))
    rows[:, 1] = [0, 1, 2, 3, np.nan, 0]
    assert to_rows(rows, forest).shape == (6, 3)
    rows[4:, 1] = code
    message = rf"row 4, column ('city'|1) is {code:g}, a category that the .*have: 0, 1, 2, 3\)"
    for given in (rows, rows.tolist(), rows.astype(np.float32)):
        with pytest.raises(InputError, match=message.replace("+", r"\+")):
            to_rows(given, forest)


def test_arrays_of_texts_are_looked_at() -> None:
    forest = strict("catboost")
    rows = to_texts(frame_of(["Oslo", None, "Rome"])).to_numpy(object)
    assert to_rows(rows, forest).shape == (3, forest.row_width)
    rows[1, 1] = "Paris"
    for given in (rows, rows.tolist()):
        with pytest.raises(
            InputError, match="row 1, column 'city' is 'Paris', a category that the"
        ):
            to_rows(given, forest)


def test_a_declared_category_without_rows_is_one_that_lightgbm_does_not_know() -> None:
    rows = trained()[0]
    wide = rows.assign(city=rows["city"].cat.set_categories(["Paris", *CITIES]))
    forest = tvm_forest.load(lighten(wide)).refuse_unseen()
    assert to_rows(wide, forest).shape == rows.shape
    with pytest.raises(InputError, match=r"'Paris', .* \(have: 'Lima', 'Oslo', 'Rome', 'Turin'\)"):
        to_rows(frame_of(["Paris"], ["Paris"]), forest)


def test_a_fraction_is_no_category_of_scikit_learn() -> None:
    rows = np.array([[0.0, 1.5, 0.0]])
    with pytest.raises(InputError, match=r"is 1.5, a category that the model does not know"):
        to_rows(rows, strict("scikit-learn codes"))


@pytest.mark.parametrize("name", ["xgboost codes", "catboost one-hot"])
def test_a_model_that_does_not_list_its_categories_says_so(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="does not list the categories of column"):
        tvm_forest.build(model(name), refuse_unseen=True)


def test_columns_are_chosen_by_name_and_number() -> None:
    for columns in (["city"], [1], (np.int64(1),), True):
        assert strict("catboost", columns).refuses_unseen == (1,)
    for columns in (False, []):
        assert strict("catboost").refuse_unseen(columns).refuses_unseen == ()
    for columns in (["town"], [3], [-1], [True], "city", 1, [None]):
        with pytest.raises(InputError, match="refuse_unseen: argument 'columns'"):
            strict("catboost", columns)
    with pytest.raises(UnsupportedModel, match=r"of column 'age' .* \(have: 'city'\)"):
        strict("catboost", ["city", "age"])


def test_sets_of_onnx_say_nothing_of_what_was_seen() -> None:
    members = onnx.helper.make_tensor("m", onnx.TensorProto.FLOAT, (3,), [2.0, 5.0, np.nan])
    node = onnx.helper.make_node(
        "TreeEnsemble",
        ["rows"],
        ["values"],
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_featureids=[1],
        nodes_modes=onnx.helper.make_tensor("k", onnx.TensorProto.UINT8, (1,), [6]),
        nodes_splits=onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, (1,), [0.0]),
        membership_values=members,
        nodes_truenodeids=[0],
        nodes_falsenodeids=[1],
        nodes_trueleafs=[1],
        nodes_falseleafs=[1],
        tree_roots=[0],
        leaf_targetids=[0, 0],
        leaf_weights=onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (2,), [1.0, 2.0]),
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("rows", onnx.TensorProto.FLOAT, [None, 2])],
        [value("values", onnx.TensorProto.FLOAT, [None, 1])],
    )
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("ai.onnx.ml", 5)], ir_version=10
    )
    forest = tvm_forest.load(made)
    rows = np.array([[0, 2], [0, 5], [0, 7], [0, 1e6], [0, -1], [0, np.nan]], np.float32)
    theirs = predict_by_library(made, forest, rows)
    assert not isinstance(theirs, str), theirs
    assert equal_bits(forest.predict_reference(rows)[theirs.row_mask], theirs.margin)
    with pytest.raises(UnsupportedModel, match="does not list the categories of column 1 that"):
        forest.refuse_unseen()


WAYS = (
    lambda predictor: predictor.predict,
    lambda predictor: predictor.predict_margin,
    lambda predictor: predictor.apply,
    lambda predictor: predictor.predict_per_tree,
    lambda predictor: partial(predictor.predict, iteration_range=(0, 2)),
    lambda predictor: partial(predictor.predict, pred_leaf=True),
)


def test_every_method_refuses_also_after_saving_and_no_library_is_exported(tmp_path: Any) -> None:
    predictor = tvm_forest.build(
        model("lightgbm codes"), schedule=lambda start: start, refuse_unseen=[1]
    )
    with pytest.raises(UnsupportedModel, match="field 'refuses_unseen': .* build the model"):
        predictor.export_library(tmp_path / "model.so")
    predictor.save(tmp_path / "strict.tvmf")
    loaded = tvm_forest.load_predictor(tmp_path / "strict.tvmf", model("lightgbm codes"))
    rows = as_codes(trained()[0])
    expected = model("lightgbm codes").predict(rows)
    for made in (predictor, loaded):
        for size in (1, 3, N):
            assert equal_bits(made.predict(rows[:size]), expected[:size])
            bad = rows[:size].copy()
            bad[-1, 1] = 7
            for way in WAYS:
                with pytest.raises(InputError, match=f"row {size - 1}, column 1 is 7, a category"):
                    way(made)(bad)


def test_verification_goes_on() -> None:
    for name in ("lightgbm codes", "catboost"):
        report = tvm_forest.verify(strict(name), n_rows=40, schedule=lambda start: start)
        assert report.ok and not report.refused


# -- labels of scikit-learn -----------------------------------------------------------------------


def test_labels_of_scikit_learn_are_texts_and_numbers() -> None:
    rows = trained()[0]
    wide = rows.assign(age=pd.Categorical([4, 2] * (N // 2)), far=pd.Categorical([0.5, None] * 200))
    source = HistGradientBoostingRegressor(max_iter=4, random_state=0).fit(
        wide.assign(far=wide["far"].astype(float)), trained()[1]
    )
    report = tvm_forest.verify(source, n_rows=100, schedule=lambda start: start)
    assert report.ok and not isinstance(report.library, str), report
    forest = tvm_forest.load(source)
    other = wide.assign(age=pd.Categorical([3, 2] * (N // 2)))
    for given in (wide, other):
        found = forest.predict_reference(to_rows(given, forest))[:, 0]
        assert equal_bits(found, source.predict(given))
    with pytest.raises(InputError, match="row 0, column 'age' is 3, a category that the model"):
        to_rows(other, forest.refuse_unseen())
    with pytest.raises(InputError, match="column 'age' has the category 'x', and the mod"):
        to_rows(other.assign(age=pd.Categorical(["x"] * N)), forest)


def test_trees_of_scikit_learn_take_the_numbers_of_labels() -> None:
    rows = pd.DataFrame({"a": pd.Categorical([7, 3, 5, 3] * 20), "b": np.arange(80.0)})
    source = RandomForestRegressor(5, random_state=0, n_jobs=1).fit(rows, np.arange(80.0))
    forest = tvm_forest.load(source)
    found = forest.predict_reference(to_rows(rows, forest))[:, 0]
    assert equal_bits(found, source.predict(rows))
