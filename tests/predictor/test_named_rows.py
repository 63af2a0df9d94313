"""Rows as dicts and as Series of pandas are rows of a frame."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

import tvm_forest
from tvm_forest.errors import InputError

CITIES = ["Oslo", "Rome", "Lima"]
LIBRARIES = ("xgboost", "lightgbm", "catboost")


@lru_cache
def frame() -> Any:
    rng = np.random.default_rng(0)
    found = pd.DataFrame(rng.normal(size=(200, 2)).astype(np.float32), columns=["age", "debt"])
    found.loc[::7, "debt"] = np.nan
    return found.assign(city=pd.Categorical(rng.choice(CITIES, 200), categories=CITIES))


@lru_cache
def predictor(library: str) -> Any:
    rows = frame()
    label = rows["age"] + (rows["city"] == "Rome") > 0.3
    if library == "xgboost":
        data = xgboost.DMatrix(rows, label, enable_categorical=True)
        model: Any = xgboost.train({"objective": "binary:logistic", "nthread": 1}, data, 5)
    elif library == "lightgbm":
        options = {"objective": "binary", "verbose": -1, "num_threads": 1, "min_data_in_leaf": 3}
        model = lightgbm.train(options, lightgbm.Dataset(rows, label), 5)
    else:
        model = catboost.CatBoostClassifier(
            iterations=5, verbose=False, thread_count=1, allow_writing_files=False
        ).fit(rows, label, cat_features=["city"])
    return tvm_forest.build(model, schedule=lambda start: start)


def to_dicts() -> list[dict[str, Any]]:
    """Return the rows as dicts, whose values come in other orders and are missing in two ways."""
    found = frame().astype({"city": object}).to_dict("records")
    for number, row in enumerate(found):
        if number % 14 == 0:
            row["debt"] = None
        found[number] = dict(reversed(row.items())) if number % 2 else row
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_row_is_a_dict_or_a_series(library: str) -> None:
    expected = predictor(library).predict(frame())
    for number, row in enumerate(to_dicts()[:30]):
        for given in (row, pd.Series(row)):
            found = predictor(library).predict(given)
            assert (
                found.shape == (1,) and found.tobytes() == expected[number : number + 1].tobytes()
            )


@pytest.mark.parametrize("library", LIBRARIES)
def test_several_rows_are_a_list_of_dicts(library: str) -> None:
    expected = predictor(library).predict(frame())
    assert predictor(library).predict(to_dicts()).tobytes() == expected.tobytes()
    leaves = predictor(library).apply(frame())
    assert np.array_equal(predictor(library).apply(to_dicts()), leaves)


REFUSED: dict[str, tuple[Any, str]] = {
    "without a name": ({"age": 1.0, "city": "Rome"}, "no value of 'debt'; give each, None"),
    "with another": ({"age": 1, "debt": 2, "city": "Rome", "id": 7}, "no feature 'id'; leave it"),
    "in a list": ([{"age": 1, "debt": 2, "city": "Rome"}, {}], "row 1: no value of 'age', 'debt'"),
    "columns": ({"age": [1.0], "debt": [2.0], "city": ["Rome"]}, "use pandas.DataFrame"),
    "a text": ({"age": "x", "debt": 2, "city": "Rome"}, "column 'age'"),
    "an object": ({"age": object(), "debt": 2, "city": "Rome"}, "column 'age': .* is no number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    rows, message = REFUSED[name]
    with pytest.raises(InputError, match=f"predict: argument 'rows': .*{message}"):
        predictor("xgboost").predict(rows)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_bools_and_large_integers_are_numbers_beside_others(library: str) -> None:
    ages = [0.5, True, np.bool_(False), 2**70, None, np.int64(3)]
    rows = [{"age": age, "debt": 1.0, "city": "Oslo"} for age in ages]
    numbers = [np.nan if age is None else float(age) for age in ages]
    same = pd.DataFrame({"age": numbers, "debt": 1.0, "city": pd.Categorical(["Oslo"] * 6)})
    expected = predictor(library).predict_margin(same)
    assert np.array_equal(predictor(library).predict_margin(rows), expected)
    with pytest.raises(InputError, match="column 'age': int too large"):
        predictor(library).predict_margin([{**rows[0], "age": 10**400}])


def test_names_that_come_twice_are_refused() -> None:
    twice = pd.Series([1.0, 2.0, 3.0, 4.0], index=["age", "debt", "city", "age"])
    with pytest.raises(InputError, match="names a value twice"):
        predictor("xgboost").predict(twice)


def test_a_model_without_names_asks_for_an_array() -> None:
    rows = np.zeros((20, 2), np.float32)
    booster = xgboost.train({}, xgboost.DMatrix(rows, rows[:, 0]), 1)
    made = tvm_forest.build(booster, schedule=lambda start: start)
    with pytest.raises(InputError, match="the model has no names; give a numpy array"):
        made.predict({"a": 1.0, "b": 2.0})
