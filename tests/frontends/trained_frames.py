"""Models of all libraries with categories, and the frames that they were trained on, of every kind.

`LIBRARIES` trains on frames of `KINDS`; what a library does not train on is made from the first
kind that it takes. `python tests/frontends/trained_frames.py` prints which pairs predict as
the library does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import catboost
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import xgboost
import ydf
from sklearn.ensemble import HistGradientBoostingClassifier

import tvm_forest

ROWS = 90
_rng = np.random.default_rng(9)
_CITIES = ["New York", "Oslo", "O'Higgins", "a,b;c", "12"]
PLAIN = ("size", "count", "flag", "city")
AGE: list[float] = np.where(_rng.random(ROWS) < 0.1, np.nan, _rng.normal(size=ROWS)).tolist()
COUNT: list[int] = _rng.integers(0, 2**20, ROWS).tolist()
FLAG: list[bool] = (_rng.random(ROWS) < 0.5).tolist()
_CITY: list[str] = _rng.choice(_CITIES, ROWS).tolist()
TARGET = (np.isin(_CITY, ("Oslo", "12")) ^ (np.array(COUNT) > 900_000)).astype(int)


Cities = list[str | None]


def _pandas(city: Any) -> pd.DataFrame:
    return pd.DataFrame(dict(zip(PLAIN, (AGE, COUNT, FLAG, city), strict=True)))


def _polars(city: Cities, dtype: Any) -> pl.DataFrame:
    column = pl.Series(city, dtype=pl.String).cast(dtype)
    return pl.DataFrame(dict(zip(PLAIN, (AGE, COUNT, FLAG, column), strict=True)))


def _arrow(city: Any) -> pa.Table:
    return pa.table(dict(zip(PLAIN, (AGE, COUNT, FLAG, city), strict=True)))


KINDS: dict[str, Callable[[Cities], Any]] = {
    "pandas text": lambda city: _pandas(city),
    "pandas category": lambda city: _pandas(pd.Categorical(city)),
    "pandas object": lambda city: _pandas(pd.Series(city, dtype=object)),
    "pandas string": lambda city: _pandas(pd.Series(city, dtype="string")),
    "pandas nullable": lambda city: _pandas(city).convert_dtypes(),
    "pandas of pyarrow": lambda city: _pandas(city).convert_dtypes(dtype_backend="pyarrow"),
    "polars text": lambda city: _polars(city, pl.String),
    "polars categorical": lambda city: _polars(city, pl.Categorical),
    "polars enum": lambda city: _polars(city, pl.Enum(_CITIES)),
    "pyarrow text": lambda city: _arrow(pa.array(city)),
    "pyarrow large text": lambda city: _arrow(pa.array(city, pa.large_string())),
    "pyarrow text view": lambda city: _arrow(pa.array(city, pa.string_view())),
    "pyarrow dictionary": lambda city: _arrow(pa.array(city).dictionary_encode()),
}
"""Frames of the same rows; numbers are float64, int64 and bools."""


class Library(NamedTuple):
    """A library, and how it trains.

    Attributes:
        train: returns a model of a frame; the names of its columns follow.
        predict: returns the margins of the library for a frame.
        kinds: those of KINDS that it trains on.
        has_gaps: whether it trains on cities some of which are missing.
        names: of the columns, as odd as it takes them.
    """

    train: Callable[[Any, tuple[str, ...]], Any]
    predict: Callable[[Any, Any], Any]
    kinds: tuple[str, ...]
    has_gaps: bool
    names: tuple[str, ...]


def _train_xgboost(frame: Any, names: tuple[str, ...]) -> Any:
    model = xgboost.XGBClassifier(n_estimators=3, enable_categorical=True, n_jobs=1)
    return model.fit(frame, TARGET)


def _train_lightgbm(frame: Any, names: tuple[str, ...]) -> Any:
    options = {"min_data_per_group": 1, "cat_smooth": 0, "min_child_samples": 2, "verbose": -1}
    return lightgbm.LGBMClassifier(n_estimators=3, n_jobs=1, **options).fit(frame, TARGET)


def _train_catboost(frame: Any, names: tuple[str, ...]) -> Any:
    quiet = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
    model = catboost.CatBoostClassifier(iterations=3, cat_features=[names[3]], **quiet)
    return model.fit(frame, TARGET)


def _train_hist(frame: Any, names: tuple[str, ...]) -> Any:
    options = {"max_iter": 3, "min_samples_leaf": 2, "categorical_features": [names[3]]}
    return HistGradientBoostingClassifier(**options).fit(frame, TARGET)


def _train_ydf(frame: Any, names: tuple[str, ...]) -> Any:
    ydf.verbose(0)
    whole = frame.assign(y=TARGET) if hasattr(frame, "assign") else frame.with_columns(y=TARGET)
    options = {"label": "y", "num_trees": 3, "min_examples": 2}  # a regression, of margins alone
    return ydf.GradientBoostedTreesLearner(**options, task=ydf.Task.REGRESSION).train(whole)


_PANDAS = ("pandas text", "pandas category", "pandas object", "pandas string")
_ANY = ('both "quotes"', "tab\there", "[x] {y} <z>, a:b", "größe 日本 100%")

LIBRARIES = {
    "xgboost": Library(
        _train_xgboost,
        lambda model, frame: model.predict(frame, output_margin=True),
        ("pandas category", "polars categorical", "polars enum"),
        True,
        ('both "quotes"', "tab\there", "{y}, a:b", "größe 日本 100%"),
    ),
    "lightgbm": Library(
        _train_lightgbm,
        lambda model, frame: model.predict(frame, raw_score=True),
        ("pandas category",),
        True,
        ("it's a blank", "tab\there", " <z> ", "größe 日本 100%"),
    ),
    "catboost": Library(
        _train_catboost,
        lambda model, frame: model.predict(frame, prediction_type="RawFormulaVal"),
        _PANDAS,
        False,
        _ANY,
    ),
    "scikit-learn": Library(
        _train_hist,
        lambda model, frame: model.decision_function(frame),
        (*_PANDAS[:3], "polars text"),
        False,
        _ANY,
    ),
    "ydf": Library(
        _train_ydf,
        lambda model, frame: model.predict(frame),
        (*_PANDAS, "polars text"),
        False,
        _ANY,
    ),
}


def name_columns(frame: Any, names: tuple[str, ...]) -> Any:
    """Return a frame with other names of columns."""
    if isinstance(frame, pa.Table):
        return frame.rename_columns(list(names))
    if isinstance(frame, pl.DataFrame):
        return frame.rename(dict(zip(frame.columns, names, strict=True)))
    return frame.set_axis(list(names), axis=1)


def make_frame(library: str, kind: str) -> Any:
    """Return rows as a frame of a kind, with the names that are for a library."""
    about = LIBRARIES[library]
    gaps = about.has_gaps
    frame = KINDS[kind]([None if gaps and i % 9 == 0 else x for i, x in enumerate(_CITY)])
    return name_columns(frame, about.names)


@lru_cache
def train(library: str, kind: str) -> tuple[Any, Any]:
    """Return the model of a library for a kind of frames, and its margins for its rows."""
    about = LIBRARIES[library]
    frame = make_frame(library, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = about.train(frame, about.names)
        return model, np.asarray(about.predict(model, frame))


@lru_cache
def build(library: str, kind: str) -> tvm_forest.Predictor:
    """Return the compiled model of a library for a kind of frames."""
    return tvm_forest.build(train(library, kind)[0], schedule=lambda start: start)


def predict_both(library: str, kind: str) -> tuple[Any, Any]:
    """Return the margins of a compiled model for a frame of a kind, and those of the library."""
    own = LIBRARIES[library].kinds
    trained_on = kind if kind in own else own[0]
    expected, predictor = train(library, trained_on)[1], build(library, trained_on)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return predictor.predict_margin(make_frame(library, kind)), expected


def print_table() -> None:
    """Print for which kinds of frames the margins are those of the library."""
    print(f"| pandas {pd.__version__}", *LIBRARIES, sep=" | ", end=" |\n")
    print("|---" * (1 + len(LIBRARIES)), end="|\n")
    for kind in KINDS:
        cells = []
        for library in LIBRARIES:
            try:
                cells.append("equal" if np.array_equal(*predict_both(library, kind)) else "differs")
            except Exception as error:
                cells.append(f"{type(error).__name__}: {error}")
        print(f"| {kind}", *cells, sep=" | ", end=" |\n")


if __name__ == "__main__":
    print_table()
