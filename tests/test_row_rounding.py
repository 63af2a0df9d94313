"""Large integers, Python objects and texts as rows: rounded as the library of the model does.

`ODD` lies just above the middle of two float32, and becomes the upper one; float64 rounds it to
this middle, which then becomes the lower one. The models tell the two apart.
"""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier

from tvm_forest.errors import InputError
from tvm_forest.forest import Forest
from tvm_forest.frontends import load
from tvm_forest.inputs import to_rows

ODD = 2**60 + 2**36 + 1
LOW = float(2**60)
HIGH = float(np.nextafter(np.float32(LOW), np.float32(np.inf)))

MODELS: dict[str, Callable[[], Any]] = {
    "forest": lambda: RandomForestRegressor(3, bootstrap=False, n_jobs=1).fit(*trained_on()),
    "tree": lambda: DecisionTreeClassifier().fit(*trained_on()),
    "histogram": lambda: HistGradientBoostingRegressor(max_iter=2, min_samples_leaf=1).fit(
        *trained_on()
    ),
    "xgboost": lambda: xgboost.XGBRegressor(n_estimators=2, reg_lambda=0, n_jobs=1).fit(
        *trained_on()
    ),
    "lightgbm estimator": lambda: lightgbm.LGBMRegressor(
        n_estimators=2, min_child_samples=1, verbose=-1, n_jobs=1
    ).fit(*trained_on()),
    "lightgbm": lambda: model("lightgbm estimator").booster_,
    "catboost": lambda: catboost.CatBoostRegressor(
        iterations=2, verbose=0, thread_count=1, allow_writing_files=False
    ).fit(*trained_on()),
}
SKLEARN = ("forest", "tree", "histogram")


def trained_on() -> Any:
    rows = np.stack([np.repeat([LOW, HIGH], 40), np.tile([0.1, np.float32(0.1)], 40)], axis=1)
    return rows, np.arange(80) // 20 % 4


@lru_cache
def model(name: str) -> Any:
    return MODELS[name]()


@lru_cache
def forest_of(name: str) -> Forest:
    return load(model(name))


def check(name: str, rows: Any) -> None:
    """Compare predictions; what the library refuses must be refused."""
    forest = forest_of(name)
    try:
        expected = np.ravel(model(name).predict(rows))
    except Exception:
        with pytest.raises(InputError):
            to_rows(rows, forest)
        return
    value = forest.predict_reference(to_rows(rows, forest), "value")
    found = value.argmax(axis=1) if name == "tree" else value[:, 0]
    np.testing.assert_array_equal(found, expected)


OTHERS = ["float64", "float32", "int64", "uint64", "int32", "uint32", "int8", "bool", "float16"]
FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "nullable": lambda columns: pd.DataFrame({x: pd.array(columns[x]) for x in columns}),
}


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("large", ["int64", "uint64"])
def test_large_integers_beside_other_columns_are_rounded_as_by_the_library(
    name: str, kind: str, large: str
) -> None:
    if name == "catboost" and kind == "pyarrow":
        pytest.skip("CatBoost takes no such frame")
    for other in OTHERS[: -1 if name.startswith("lightgbm") else None]:
        columns = {"a": np.array([ODD, 3], large), "b": np.array([1, 0], other)}
        if name.startswith("lightgbm"):  # which makes up names, and asks for them
            columns = {"Column_0": columns["a"], "Column_1": columns["b"]}
        check(name, FRAMES[kind](columns))


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("name", SKLEARN)
def test_integers_beside_missing_ones_are_rounded_as_by_scikit_learn(name: str) -> None:
    for other in ([0.5, 1.0], [5, 6]):
        for make in (pl.DataFrame, pa.table, lambda x: pd.DataFrame(x).convert_dtypes()):
            check(name, make({"a": [ODD, None], "b": other}))


VALUES: dict[str, Any] = {
    "integers": [[ODD, 1], [5, 0]],
    "integers of 65 bits": [[2**70, 1], [5, -(2**64)]],
    "integers beyond all floats": [[10**400, 1], [5, 0]],
    "reals": [[LOW, 0.1], [HIGH, 0.1]],
    "None": [[ODD, None], [None, 0.5]],
    "Decimal": [[Decimal(ODD), Decimal("0.1")], [Decimal("Infinity"), True]],
    "scalars of numpy": [[np.int64(ODD), np.float32(0.1)], [np.uint8(5), np.bool_(True)]],
    "fractions": [[Fraction(1, 10), 0.1], [ODD, 1]],
    "digits beside numbers": [["0.1", 1], [HIGH, "0.1"]],
    "words": [["a", 1], [2, 3]],
    "missing values of pandas": [[pd.NA, 1], [2, 3]],
    "lists": [[[1, 2], 1], [[3, 4], 2]],
}


def objects(values: list[Any]) -> Any:
    array = np.empty((2, 2), object)
    for row, own in enumerate(values):
        for column, value in enumerate(own):
            array[row, column] = value
    return array


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", VALUES)
def test_objects_and_lists_are_numbers_where_they_are_to_the_library(name: str, kind: str) -> None:
    check(name, objects(VALUES[kind]))
    if kind not in ("lists", "digits beside numbers", "words"):
        check(name, VALUES[kind])


@pytest.mark.parametrize("name", SKLEARN)
def test_texts_of_digits_are_numbers_to_scikit_learn(name: str) -> None:
    for rows in (np.array([["0.1", "2"], ["3", "0.1"]]), [["0.1", "2"], ["3", "0.1"]]):
        check(name, rows)
