"""Columns of categories in the frames of all libraries are numbered by the labels of the model."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost

from bad_inputs import FOREST, ROWS
from bad_rows import LABELLED, LABELS, STRICT, held
from forests import forest_of
from test_inputs import equal_bits
from tvm_forest.errors import InputError
from tvm_forest.frontends import load
from tvm_forest.predictor.inputs import to_rows

TAKEN = ["high", None, "none", "top", "low"]
CODES = np.array([1, np.nan, 2, np.nan, 0], np.float32)
OTHERS = {"age": [0.0] * 5, "weight": [1.0] * 5}


def _split_table() -> Any:
    """Chunks with dictionaries of their own."""
    chunks = [pa.array(part).dictionary_encode() for part in (TAKEN[:2], TAKEN[2:])]
    return pa.table(
        {"age": OTHERS["age"], "height": pa.chunked_array(chunks), "weight": OTHERS["weight"]}
    )


def _with(make: Any, column: Any) -> Any:
    return make({"age": OTHERS["age"], "height": column, "weight": OTHERS["weight"]})


CATEGORIES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: _with(pd.DataFrame, pd.Categorical(TAKEN)),
    "pandas in another order": lambda: _with(
        pd.DataFrame, pd.Categorical(TAKEN, categories=["top", "none", "never", "low", "high"])
    ),
    "polars": lambda: _with(pl.DataFrame, pl.Series(TAKEN, dtype=pl.Categorical)),
    "polars enum": lambda: _with(
        pl.DataFrame, pl.Series(TAKEN, dtype=pl.Enum(["top", "none", "never", "low", "high"]))
    ),
    "polars slice": lambda: _with(
        pl.DataFrame, pl.Series(["never", *TAKEN], dtype=pl.Categorical)[1:]
    ),
    "table": lambda: _with(pa.table, pa.array(TAKEN).dictionary_encode()),
    "table in chunks": _split_table,
    "record batch": lambda: _with(pa.record_batch, pa.array(TAKEN).dictionary_encode()),
    "a null among labels": lambda: _with(
        pa.table, pa.array(TAKEN).dictionary_encode(null_encoding="encode")
    ),
}


@pytest.mark.parametrize("kind", CATEGORIES)
def test_categories_are_numbered_by_their_labels(kind: str) -> None:
    rows = np.stack([np.zeros(5), CODES, np.ones(5)], axis=1).astype(np.float32)
    assert equal_bits(to_rows(CATEGORIES[kind](), LABELLED), rows)


@pytest.mark.parametrize("kind", CATEGORIES)
def test_no_column_of_categories_is_modified(kind: str) -> None:
    frame = CATEGORIES[kind]()
    before = held(frame)
    to_rows(frame, LABELLED)
    assert held(frame) == before


@pytest.mark.parametrize("kind", CATEGORIES)
def test_a_column_of_nothing_but_missing_categories_is_missing(kind: str) -> None:
    frame = CATEGORIES[kind]()
    gaps = frame[1:2] if hasattr(frame, "iloc") else frame.slice(1, 1)
    none = frame[:0] if hasattr(frame, "iloc") else frame.slice(0, 0)
    assert np.isnan(to_rows(gaps, STRICT)[0, 1])
    assert to_rows(none, STRICT).shape == (0, 3)


def test_an_unused_label_that_the_model_does_not_know_does_no_harm() -> None:
    frame = _with(pd.DataFrame, pd.Categorical(["low"] * 5, categories=["top", "low"]))
    assert to_rows(frame, STRICT)[:, 1].tolist() == [0] * 5


def test_labels_may_be_numbers_and_dates() -> None:
    day = datetime.date(2020, 1, 1)
    forest = replace(FOREST, category_names={0: (30, 10), 1: (day, "x"), 2: (True, False)})
    frame = pd.DataFrame({
        "age": pd.Categorical([10, 30]),
        "height": pd.Categorical([day, day]),
        "weight": pd.Categorical([False, True]),
    })  # fmt: skip
    assert to_rows(frame, forest).tolist() == [[1, 0, 1], [0, 0, 0]]


def test_plain_rows_hold_codes() -> None:
    assert np.shares_memory(to_rows(ROWS, LABELLED), ROWS)


def _frame_to_train(n: int = 300) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(5)
    height = rng.choice(LABELS, n)
    rows = rng.normal(size=(n, 2))
    column = pd.Categorical(height, categories=LABELS)
    frame = pd.DataFrame({"age": rows[:, 0], "height": column, "weight": rows[:, 1]})
    return frame, rows @ [0.1, 0.1] + (height == "high") * 2.0 + (height == "none")


def test_lightgbm_numbers_categories_the_same_way() -> None:
    frame, target = _frame_to_train()
    options = {"verbose": -1, "min_data_per_group": 1, "cat_smooth": 0}
    model = lightgbm.train(options, lightgbm.Dataset(frame, target), 5)
    forest = replace(forest_of([1.0], dtype="float64"), category_names={1: LABELS})
    for kind in ("pandas", "pandas in another order"):
        rows = CATEGORIES[kind]()
        assert equal_bits(model.predict(rows), model.predict(to_rows(rows, forest)))


@pytest.mark.parametrize("kind", ["pandas in another order", "polars enum", "table"])
def test_xgboost_numbers_categories_the_same_way_and_refuses_unknown_ones(kind: str) -> None:
    frame, target = _frame_to_train()
    model = xgboost.train({}, xgboost.DMatrix(frame, target, enable_categorical=True), 5)
    rows = CATEGORIES[kind]()
    with pytest.raises(ValueError, match="category not in the training set"):
        model.predict(xgboost.DMatrix(rows, enable_categorical=True))
    known = rows.to_pandas() if kind != "pandas in another order" else rows
    known = known.assign(height=known["height"].cat.set_categories(["none", "low", "high"]))
    answer = model.predict(xgboost.DMatrix(known, enable_categorical=True))
    assert equal_bits(answer, model.inplace_predict(to_rows(known, LABELLED)))


KNOWN: dict[str, list[Any]] = {
    "bools": [False, True],
    "bools in another order": [True, False],
    "integers": [0, 1],
    "integers in another order": [1, 0],
    "floats": [0.0, 1.0],
    "texts": ["0", "1"],
    "integers beyond float64": [2**53, 2**53 + 1],
}
GIVEN: dict[str, Callable[[], Any]] = {
    "bools": lambda: pd.Categorical([True, False, None]),
    "bools of numpy in objects": lambda: pd.Categorical(np.array([True, False, None], object)),
    "nullable bools": lambda: pd.Categorical(pd.array([True, False, None], "boolean")),
    "integers": lambda: pd.Categorical([1, 0, None]),
    "integers backwards": lambda: pd.Categorical([1, 0, None], categories=[1, 0]),
    "small integers": lambda: pd.Categorical(np.array([1, 0, 1], np.int8)),
    "nullable integers": lambda: pd.Categorical(pd.array([1, 0, None], "Int64")),
    "integers in order": lambda: pd.Categorical([1, 0, None], categories=[0, 1, 2], ordered=True),
    "floats": lambda: pd.Categorical([1.0, 0.0, np.nan]),
    "large floats": lambda: pd.Categorical([2.0**53, 2.0**53 + 2, np.nan]),
    "large integers": lambda: pd.Categorical([2**53 + 1, 2**53, None]),
    "texts": lambda: pd.Categorical(["1", "0", None]),
    "texts of pandas": lambda: pd.Categorical(pd.array(["1", "0", None], "string")),
    "words": lambda: pd.Categorical(["True", "False", "1.0"]),
    "labels of all kinds": lambda: pd.Categorical(np.array([1, "1", 0.5], object)),
}


@lru_cache
def lightgbm_on(known: str) -> Any:
    """A model that tells two categories apart."""
    place = np.arange(200) % 2
    column = pd.Categorical.from_codes(place, KNOWN[known])
    params = {"verbose": -1, "min_data_per_group": 1, "cat_smooth": 0, "num_threads": 1}
    return lightgbm.train(params, lightgbm.Dataset(pd.DataFrame({"c": column}), place * 3.0), 2)


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("known", KNOWN)
def test_labels_of_other_types_are_those_that_lightgbm_finds(known: str, given: str) -> None:
    model, frame = lightgbm_on(known), pd.DataFrame({"c": GIVEN[given]()})
    forest = load(model)
    assert equal_bits(
        forest.predict_reference(to_rows(frame, forest))[:, 0], np.asarray(model.predict(frame))
    )


def test_a_bool_is_no_number_among_the_labels_of_xgboost() -> None:
    rows = pd.DataFrame({"c": pd.Categorical(np.arange(100) % 2)})
    model = xgboost.XGBRegressor(n_estimators=2, n_jobs=1, enable_categorical=True).fit(
        rows, np.arange(100) % 2
    )
    with pytest.raises(InputError, match="row 0, column 'c' is True, a category that the model"):
        to_rows(pd.DataFrame({"c": pd.Categorical([True, False])}), load(model))
