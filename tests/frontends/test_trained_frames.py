"""The frame that a model was trained on predicts what its library predicts, without a word."""

import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost
import ydf
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier

import tvm_forest
from trained_frames import (
    KINDS,
    LIBRARIES,
    ROWS,
    TARGET,
    make_frame,
    predict_both,
    train,
)
from tvm_forest import InputError
from tvm_forest.clusters import Score

pytestmark = pytest.mark.usefixtures("kept_code")  # one model takes frames of many kinds


def build(model: Any) -> tvm_forest.Predictor:
    return tvm_forest.build(model, schedule=lambda start: start)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_every_kind_predict_what_the_library_does(library: str, kind: str) -> None:
    np.testing.assert_array_equal(*predict_both(library, kind))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_category_decides_in_these_models(library: str) -> None:
    model, _ = train(library, LIBRARIES[library].kinds[0])
    frame = make_frame(library, "pandas text")
    moved = frame.assign(**{frame.columns[3]: "Oslo"})
    predict = build(model).predict_margin
    assert not np.array_equal(predict(frame), predict(moved))


# -- names ----------------------------------------------------------------------------------------


def without_a_word(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


@cache
def on_iris() -> tuple[Any, Any]:
    """LightGBM on a frame whose columns are called "sepal length (cm)" and so on."""
    frame, labels = load_iris(return_X_y=True, as_frame=True)
    return lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1).fit(frame, labels), frame


def test_columns_with_blanks_are_those_that_lightgbm_writes_without() -> None:
    model, frame = on_iris()
    predictor, expected = build(model), model.predict_proba(frame)
    underscored = frame.rename(columns=lambda name: name.replace(" ", "_"))
    for given in (frame, underscored, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        np.testing.assert_allclose(predictor.predict_proba(given), expected, rtol=1e-15)
    for row in (dict(frame.iloc[7]), frame.iloc[7], [dict(underscored.iloc[7])]):
        np.testing.assert_allclose(predictor.predict_proba(row), expected[7:8], rtol=1e-15)
    compiled = tvm_forest.accelerate(model, schedule=lambda start: start)
    np.testing.assert_array_equal(
        without_a_word(lambda: compiled.predict(frame)), model.predict(frame)
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_with_blanks_in_names_are_scored(tmp_path: Path, suffix: str) -> None:
    model, frame = on_iris()
    rows, out = tmp_path / f"rows{suffix}", tmp_path / "out.csv"
    mixed = frame.assign(note=1.5)[[*frame.columns[::-1], "note"]]
    mixed.to_csv(rows, index=False) if suffix == ".csv" else mixed.to_parquet(rows)
    tvm_forest.predict_file(build(model), rows, out)
    found = np.loadtxt(out, skiprows=1, delimiter=",")
    np.testing.assert_array_equal(found, model.predict(frame))
    batch = Score(build(model))(pa.Table.from_pandas(mixed))
    np.testing.assert_array_equal(batch["prediction"].to_numpy(), model.predict(frame))


KINDS_OF_NAMES: dict[str, Any] = {
    "levels": pd.MultiIndex.from_product([["A", "B"], [1, 2]]),
    "numbers": [0, 1, 2, 3],
    "texts and numbers": ["x", 1, "y y", 2.5],
}


@pytest.mark.parametrize("kind", KINDS_OF_NAMES)
def test_names_that_are_no_texts_are_those_of_xgboost(kind: str) -> None:
    rows = np.random.default_rng(4).normal(size=(60, 4))
    frame = pd.DataFrame(rows, columns=KINDS_OF_NAMES[kind])
    model = xgboost.XGBRegressor(n_estimators=2, n_jobs=1).fit(frame, rows[:, 0])
    for predict in (
        build(model).predict,
        tvm_forest.accelerate(model, schedule=lambda start: start).predict,
    ):
        found = without_a_word(lambda predict=predict: predict(frame))
        np.testing.assert_array_equal(found, model.predict(frame))
    np.testing.assert_array_equal(build(model).predict(frame.iloc[3]), model.predict(frame[3:4]))


@pytest.mark.parametrize("library", ["scikit-learn", "ydf"])
def test_columns_by_name_may_stand_in_any_order_and_among_others(library: str) -> None:
    model, expected = train(library, "pandas text")
    for kind in ("pandas text", "polars text", "pyarrow dictionary"):
        frame = make_frame(library, kind)
        names = [*LIBRARIES[library].names]
        wide = pa.table({"label": TARGET, **{name: frame[name] for name in names[::-1]}})
        if kind != "pyarrow dictionary":
            wide = pl.from_arrow(wide) if kind == "polars text" else wide.to_pandas()
            np.testing.assert_array_equal(LIBRARIES[library].predict(model, wide), expected)
        np.testing.assert_array_equal(build(model).predict_margin(wide), expected)
    row = {"label": 1, **dict(zip(names, (0.5, 7, True, "Oslo"), strict=True))}
    assert build(model).predict(row).shape == (1,)


def test_a_ranker_of_xgboost_leaves_out_its_queries() -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {"x": rng.normal(size=60), "qid": np.arange(60) // 6, "z": rng.normal(size=60)}
    )
    model = xgboost.XGBRanker(n_estimators=2, n_jobs=1).fit(frame, np.arange(60) % 3)
    for given in (frame, frame[["x", "z"]], frame[["qid", "x", "z"]]):
        np.testing.assert_array_equal(build(model).predict(given), model.predict(given))
        np.testing.assert_array_equal(build(model).apply(given), model.apply(given))
    restored = pickle.loads(pickle.dumps(build(model)))
    np.testing.assert_array_equal(restored.predict(frame), model.predict(frame))
    with pytest.raises(
        InputError, match="expected 2 columns, got 3: the model has no column 'qid'"
    ):
        build(model.get_booster()).predict(frame)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("convert", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])
def test_the_remedy_for_columns_that_are_misplaced_or_too_many_works(
    library: str, convert: Any
) -> None:
    rng = np.random.default_rng(6)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a b", "c", "d  e"])
    kind = {"xgboost": xgboost.XGBRegressor, "lightgbm": lightgbm.LGBMRegressor}[library]
    model = kind(n_estimators=2, n_jobs=1).fit(frame, frame["c"])
    predictor = build(model)
    for wrong in (frame[["c", "a b", "d  e"]], frame.assign(more=1.0)):
        rows = convert(wrong)
        with pytest.raises(InputError, match="; use rows") as caught:
            predictor.predict(rows)
        remedy = str(caught.value).partition("; use ")[2]
        mended = eval(remedy, {"rows": rows, "predictor": predictor})
        np.testing.assert_array_equal(predictor.predict(mended), model.predict(frame))


# -- texts ----------------------------------------------------------------------------------------


GAPS: dict[str, Callable[[list[Any]], Any]] = {
    "object": lambda city: pd.DataFrame({"x": 0.0, "c": pd.Series(city, dtype=object)}),
    "object with NaN": lambda city: pd.DataFrame(
        {"x": 0.0, "c": pd.Series([np.nan if x is None else x for x in city], dtype=object)}
    ),
    "text": lambda city: pd.DataFrame({"x": 0.0, "c": pd.Series(city, dtype="str")}),
    "string": lambda city: pd.DataFrame({"x": 0.0, "c": pd.Series(city, dtype="string")}),
    "category": lambda city: pd.DataFrame({"x": 0.0, "c": pd.Categorical(city)}),
    "polars": lambda city: pl.DataFrame({"x": [0.0] * 60, "c": city}),
    "polars category": lambda city: pl.DataFrame(
        {"x": [0.0] * 60, "c": pl.Series(city, dtype=pl.Categorical)}
    ),
    "pyarrow": lambda city: pa.table({"x": [0.0] * 60, "c": city}),
}


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("trained_on", ["object", "object with NaN", "string"])
@pytest.mark.cases(8, others="long")
def test_none_is_a_category_where_scikit_learn_takes_it_for_one(trained_on: str, kind: str) -> None:
    city = [None, "a", "b"] * 20
    known = [x or "a" for x in city] if trained_on == "string" else city
    options = {"max_iter": 2, "min_samples_leaf": 2, "categorical_features": ["c"]}
    target = np.resize([3.0, 1.0, 2.0, 0.0], 60)
    model = HistGradientBoostingClassifier(**options).fit(GAPS[trained_on](known), target > 1.5)
    for rows in (GAPS[kind](city), GAPS[kind](["a", "b", "top"] * 20)):
        found = build(model).predict_margin(rows)
        np.testing.assert_array_equal(found, model.decision_function(rows))


@pytest.mark.parametrize("library", LIBRARIES)
def test_texts_that_the_model_has_not_seen_are_what_unseen_categories_are(library: str) -> None:
    model, _ = train(library, LIBRARIES[library].kinds[0])
    frame = make_frame(library, "pandas text")
    city = frame.columns[3]
    texts = frame.assign(**{city: ["Oslo", "Bergen"] * (ROWS // 2)})
    labels = texts.astype({city: "category"})
    predictor = build(model)
    if library == "xgboost":
        with pytest.raises(
            InputError, match="is 'Bergen', a category that the model does not know"
        ):
            predictor.predict(texts)
        return
    np.testing.assert_array_equal(predictor.predict_margin(texts), predictor.predict_margin(labels))
    with pytest.raises(InputError, match="is 'Bergen'"):
        tvm_forest.build(model, schedule=lambda start: start, refuse_unseen=[city]).predict(texts)


def test_a_column_without_a_value_is_missing_whatever_its_type() -> None:
    model, _ = train("xgboost", "pandas category")
    frame = make_frame("xgboost", "pandas category")
    city = frame.columns[3]
    none = frame.assign(**{city: frame[city].where([False] * ROWS)})
    expected = model.predict(none, output_margin=True)
    bare = make_frame("xgboost", "pandas text").drop(columns=city)
    predict = build(model).predict_margin
    for column in (np.full(ROWS, np.nan), np.full(ROWS, None), pd.array([None] * ROWS, "string")):
        given = bare.assign(**{city: column})
        np.testing.assert_array_equal(predict(given), expected)
    table = pa.Table.from_pandas(bare).append_column(city, pa.nulls(ROWS))
    empty = pl.from_arrow(table)
    typed = [empty.cast({city: x}) for x in (pl.String, pl.Categorical, pl.Enum(["Oslo"]))]
    for rows in (table, empty, *typed, typed[0].to_arrow(), typed[1].to_arrow()):
        np.testing.assert_array_equal(predict(rows), expected)


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["top"])])
def test_a_number_of_which_polars_has_no_value_is_missing_whatever_its_type(dtype: Any) -> None:
    rows = np.random.default_rng(3).normal(size=(60, 2))
    frame = pl.DataFrame({"x": rows[:, 0], "z": pl.Series([None] * 60, dtype=dtype)})
    for kind in (xgboost.XGBRegressor, lightgbm.LGBMRegressor):
        model = kind(n_estimators=2, n_jobs=1).fit(
            pd.DataFrame(rows, columns=["x", "z"]), rows[:, 1]
        )
        gaps = pd.DataFrame({"x": rows[:, 0], "z": np.nan})
        np.testing.assert_array_equal(build(model).predict(frame), model.predict(gaps))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "Int32", "category", "object"])
def test_integers_are_the_digits_that_ydf_knows_categories_by(dtype: str) -> None:
    rng = np.random.default_rng(7)
    number = rng.integers(0, 6, 120)
    frame = pd.DataFrame({"n": number.astype(str), "y": np.isin(number, (1, 4)).astype(int)})
    ydf.verbose(0)
    model = ydf.RandomForestLearner(label="y", num_trees=3).train(frame)
    given = pd.DataFrame({"n": pd.Series(number).astype(dtype)})
    np.testing.assert_array_equal(model.predict(given), model.predict(frame))
    np.testing.assert_array_equal(build(model).predict(given), model.predict(frame))
    if dtype == "int64":
        for rows in (pl.from_pandas(given), pa.Table.from_pandas(given), given.to_dict("records")):
            np.testing.assert_array_equal(build(model).predict(rows), model.predict(frame))


def test_bools_are_the_words_that_ydf_knows_categories_by() -> None:
    words = pd.DataFrame({"b": ["true", "false", "maybe"] * 40, "y": [1, 0, 0] * 40})
    ydf.verbose(0)
    model = ydf.RandomForestLearner(label="y", num_trees=3).train(words)
    for column in ([True, False], pd.Series([True, False], dtype=object)):
        given = pd.DataFrame({"b": column})
        np.testing.assert_array_equal(build(model).predict(given), model.predict(given))
    with pytest.raises(InputError, match="column 'b' holds numbers, but the model was trained on"):
        build(model).predict(pd.DataFrame({"b": [1.5]}))


REFUSED = {
    "numbers are texts": (lambda x: x.assign(a=x["a"].astype(str)), "'a' holds texts such as '0."),
    "texts for integers": (lambda x: x.assign(k=x["k"].astype(str)), "are 0, 1, 2; convert it to"),
    "codes": (lambda x: x.assign(c=x["c"].cat.codes), "has 1 columns of categories, the model was"),
    "one too many": (
        lambda x: x.assign(b="x"),
        "column 'b' holds texts such as 'x', and the model",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_texts_that_no_category_of_lightgbm_can_be_are_refused(case: str) -> None:
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"a": rng.random(90), "b": rng.random(90)})
    frame["k"] = pd.Categorical(rng.integers(0, 3, 90))
    frame["c"] = pd.Categorical(rng.choice(["x", "y"], 90))
    target = frame["a"] + frame["b"] + (frame["c"] == "x") + frame["k"].cat.codes
    options = {"min_data_per_group": 1, "min_child_samples": 2, "n_jobs": 1, "verbose": -1}
    model = lightgbm.LGBMRegressor(n_estimators=4, **options).fit(frame, target)
    texts = frame.assign(c=frame["c"].astype(str))
    np.testing.assert_array_equal(build(model).predict(texts), model.predict(frame))
    change, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        build(model).predict(change(frame))


def test_objects_that_are_numbers_are_read_as_scikit_learn_reads_them() -> None:
    rng = np.random.default_rng(10)
    frame = pd.DataFrame({"a": rng.random(80), "n": rng.integers(0, 9, 80)}).astype(object)
    frame.iloc[::7, 0] = None
    model = HistGradientBoostingClassifier(max_iter=3).fit(frame, rng.integers(0, 2, 80))
    found = build(model).predict_margin(frame)
    np.testing.assert_array_equal(found, model.decision_function(frame))
