"""Frames and arrays with other columns, orders and types than CatBoost's model was trained on."""

from __future__ import annotations

from functools import cache
from typing import Any

import catboost as cb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tvm_forest
from catboost_models import OPTIONS
from tvm_forest import InputError


@cache
def frame() -> Any:
    """Two columns of numbers, one that says nothing, and three of categories."""
    rng = np.random.default_rng(3)
    columns = {"a": rng.normal(size=200), "idle": np.ones(200), "b": rng.normal(size=200)}
    columns |= {"text": rng.choice(["x", "12", "ü"], 200), "whole": rng.integers(0, 30, 200)}
    return pd.DataFrame(columns | {"digits": rng.integers(0, 30, 200).astype(str)})


CODED = ["text", "whole", "digits"]


@cache
def trained(names: bool, coded: bool) -> tuple[Any, Any]:
    """Return a model and its predictor."""
    rows = frame() if coded else frame()[["a", "idle", "b"]]
    target = rows["a"] * rows["b"] + frame()["whole"] % 3 + (frame()["text"] == "x")
    options = {"cat_features": CODED if names else [3, 4, 5]} if coded else {}
    given = rows if names else rows.to_numpy()
    model = cb.CatBoostRegressor(**OPTIONS, **options).fit(given, target)
    return model, tvm_forest.build(model, schedule=lambda start: start)


COLUMNS = {
    "one behind": lambda rows: rows.assign(more=7.0),
    "one ahead": lambda rows: rows.assign(more=7.0)[["more", *rows.columns]],
    "in another order": lambda rows: rows[rows.columns[::-1]],
    "without the idle one": lambda rows: rows.drop(columns="idle"),
    "another in place of it": lambda rows: rows.rename(columns={"idle": "more"})[
        [*rows.columns[2:], "more", "a"]
    ],
}


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("case", COLUMNS)
def test_columns_are_found_by_name_as_catboost_finds_them(case: str, coded: bool) -> None:
    model, predictor = trained(True, coded)
    whole = frame() if coded else frame()[["a", "idle", "b"]]
    rows, expected = COLUMNS[case](whole), model.predict(whole)
    if not coded:  # columns of categories have to stand in their places, and here need not
        assert np.array_equal(model.predict(rows), expected)
    for given in (rows, pl.from_pandas(rows), pa.Table.from_pandas(rows, preserve_index=False)):
        assert np.array_equal(predictor.predict(given), expected)


@pytest.mark.parametrize("coded", [False, True])
def test_rows_without_names_may_be_wider(coded: bool) -> None:
    model, predictor = trained(False, coded)
    rows = frame() if coded else frame()[["a", "idle", "b"]]
    wider = rows.assign(more=1.0)
    for given in (wider, wider.to_numpy(), wider.rename(columns={"a": "b", "b": "a"})):
        assert np.array_equal(predictor.predict(given), model.predict(given))
    with pytest.raises(InputError, match=rf"shape \(R, {len(rows.columns)}\), got \(200, 2\)"):
        predictor.predict(rows.to_numpy()[:, :2])
    with pytest.raises(cb.CatBoostError, match="not in pool|Invalid cat_features"):
        model.predict(rows.to_numpy()[:, :2])


def test_rows_may_lack_last_columns_that_nothing_reads() -> None:
    rows = np.array(frame()[["a", "b", "idle"]])
    model = cb.CatBoostRegressor(**OPTIONS).fit(rows, rows[:, 0] * rows[:, 1])
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    for given in (rows[:, :2], pd.DataFrame(rows[:, :2]), rows):
        assert np.array_equal(predictor.predict(given), model.predict(given))


def test_a_column_that_trees_read_must_be_there() -> None:
    for coded, name in ((False, "b"), (True, "whole")):
        model, predictor = trained(True, coded)
        rows = (frame() if coded else frame()[["a", "idle", "b"]]).drop(columns=name)
        with pytest.raises(InputError, match=f"no column '{name}'"):
            predictor.predict(rows)
        with pytest.raises(cb.CatBoostError):
            model.predict(rows)


TYPES: dict[str, dict[str, Any]] = {
    "texts": dict.fromkeys(CODED, str),
    "texts of pandas": dict.fromkeys(CODED, "string"),
    "objects": dict.fromkeys(CODED, object),
    "numbers as objects": dict.fromkeys("ab", object),
    "categories": dict.fromkeys(CODED, "category"),
    "small integers": {"whole": "int8", "digits": "uint16"},
    "integers that may be missing": {"whole": "Int64", "digits": "int64"},
    "integers as texts": {"whole": str},
    "texts as integers": {"digits": int},
}


@pytest.mark.parametrize("case", TYPES)
def test_types_of_categories_are_read_as_catboost_reads_them(case: str) -> None:
    model, predictor = trained(True, True)
    rows = frame().astype(TYPES[case])
    assert np.array_equal(predictor.predict(rows), model.predict(rows))
    assert np.array_equal(predictor.predict(rows), model.predict(frame()))


@pytest.mark.parametrize("kind", [float, np.float32, "Float64"])
def test_fractions_are_no_categories_to_catboost(kind: Any) -> None:
    model, predictor = trained(True, True)
    rows = frame().astype({"whole": kind})
    with pytest.raises(InputError, match="column 'whole' holds categories, got .*e.g. with str"):
        predictor.predict(rows)
    with pytest.raises(cb.CatBoostError, match="must be integer or string"):
        model.predict(rows)
    texts = rows.astype({"whole": str})  # what the remedy says
    assert np.array_equal(predictor.predict(texts), model.predict(texts))
