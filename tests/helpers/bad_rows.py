"""Frames, sparse matrices and values that must be refused, and what users must be told.

`BAD_ROWS` lists them; `tests/predictor/test_row_kinds.py` checks them one by one.
"""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp

from bad_inputs import FOREST, NAMES, Tensor
from tvm_forest.forest import Forest

LABELS = ("low", "high", "none")
LABELLED = replace(FOREST, category_names={1: LABELS})
STRICT = replace(LABELLED, refuses=("category",))
FINITE = replace(FOREST, refuses=("nan", "inf"))


class BadRows(NamedTuple):
    """Rows that a model must refuse.

    Attributes:
        name: what is wrong, for people.
        rows: makes the rows.
        parts: texts that the message contains.
        forest: the model.
    """

    name: str
    rows: Callable[[], Any]
    parts: tuple[str, ...]
    forest: Forest = FOREST


def columns(**changed: Any) -> dict[str, Any]:
    """Return two rows, column by column."""
    return {name: changed.get(name, [1.0, 2.0]) for name in NAMES}


def csr(data: Any, indices: Any, indptr: Any, form: Any = sp.csr_matrix) -> Any:
    """Return a matrix of two rows, as it is given."""
    return form((np.array(data), np.array(indices), np.array(indptr)), shape=(2, 3))


def held(rows: Any) -> Any:
    """What rows hold; pyarrow inside of pandas pickles differently once it was read."""
    return repr(rows.to_dict()) if hasattr(rows, "iloc") else pickle.dumps(rows)


def _outside() -> Any:
    matrix = csr([1.0, 2.0], [0, 2], [0, 1, 2])
    matrix.indices[1] = 3
    return matrix


def _negative() -> Any:
    matrix = csr([1.0, 2.0], [0, 2], [0, 1, 2])
    matrix.indices[1] = -1
    return matrix


SHAPE = "rows must have shape (R, 3), got "
NO_NUMBERS = (
    "column 'height': type ",
    " holds no integers, floats or bools",
    "convert it to numbers first",
)
TEXTS = ("column 'height' holds texts such as '1'", "has numbers there; convert it to numbers")
NO_LABELS = ("column 'height' holds categories", "stores no labels", "convert it to the numbers")
NUMBERS = ("column 'height' holds numbers", "'low', 'high', 'none'", "give codes as a numpy array")
UNKNOWN = ("row 1, column 'height' is 'top'", "'low', 'high', 'none'", "make it a missing value")
OTHER = {
    "date": [datetime.date(2020, 1, 1)] * 2,
    "time": [datetime.time(1)] * 2,
    "duration": [datetime.timedelta(1)] * 2,
    "decimal": [decimal.Decimal("1.5")] * 2,
    "list": [[1], [2]],
    "bytes": [b"1", b"2"],
}


def _frames(
    name: str, parts: tuple[str, ...], forest: Forest, labels: list[str] | None = None
) -> list[BadRows]:
    """The same mistake in a frame of each library."""
    made = {
        "pandas": (pd.DataFrame, pd.Categorical),
        "polars": (pl.DataFrame, lambda labels: pl.Series(labels, dtype=pl.Categorical)),
        "pyarrow": (pa.table, lambda labels: pa.array(labels).dictionary_encode()),
    }
    return [
        BadRows(
            f"{library}: {name}",
            lambda frame=frame, column=column: frame(
                columns() if labels is None else columns(height=column(labels))
            ),
            parts,
            forest,
        )
        for library, (frame, column) in made.items()
    ]


BAD_ROWS = [
    # values
    *(
        BadRows(
            f"{value} as {kind}",
            lambda value=value, make=make: make(np.array([[1, 2, 3], [1, 2, value]])),
            ("row 1, column 2 ('weight') is ", text, "as float32, which the model refuses", remedy),
            FINITE,
        )
        for kind, make in {
            "numpy": np.asarray,
            "list": np.ndarray.tolist,
            "sparse": sp.csr_array,
            "frame": lambda array: pd.DataFrame(array, columns=NAMES),
            "tensor": Tensor,
        }.items()
        for value, text, remedy in [
            (np.nan, "is NaN", "fill in or drop rows with missing values first"),
            (np.inf, "is inf", "clip the values to the range of float32 first"),
            (-1e39, "is -inf", "clip the values to the range of float32 first"),
        ]
    ),
    BadRows(
        "a model without names",
        lambda: [[np.nan, 0, 0]],
        ("row 0, column 0 is NaN",),
        replace(FINITE, feature_names=None),
    ),
    # sparse
    BadRows("narrow", lambda: sp.csr_matrix((4, 2)), (SHAPE + "(4, 2)",)),
    BadRows("wide", lambda: sp.coo_array((4, 5)), (SHAPE + "(4, 5)",)),
    BadRows("rank 1", lambda: sp.coo_array(np.ones(3)), (SHAPE + "(3,)", "rows.reshape(1, -1)")),
    BadRows("complex", lambda: sp.csr_array((2, 3), dtype=complex), ("got dtype complex128",)),
    BadRows("outside", _outside, ("the sparse matrix is damaged", "make it again")),
    BadRows("negative", _negative, ("the sparse matrix is damaged", "column -1 is negative")),
    BadRows(
        "twice in a row",
        lambda: csr([1.0, 2.0], [1, 1], [0, 2, 2]),
        ("two entries in one place", "use rows.sum_duplicates()"),
    ),
    BadRows(
        "twice in a column",
        lambda: sp.csc_array((np.ones(2), np.zeros(2, int), np.array([0, 2, 2, 2])), shape=(2, 3)),
        ("two entries in one place", "use rows.sum_duplicates()"),
    ),
    # frames
    *_frames("categories of a model without labels", NO_LABELS, FOREST, ["low", "high"]),
    *_frames("numbers for labels", NUMBERS, LABELLED),
    *_frames("an unknown label", UNKNOWN, STRICT, ["low", "top"]),
    *(
        BadRows(
            f"{library}: {kind}", lambda make=make, v=values: make(columns(height=v)), NO_NUMBERS
        )
        for library, make in {"polars": pl.DataFrame, "pyarrow": pa.table}.items()
        for kind, values in OTHER.items()
    ),
    BadRows(
        "pandas: periods",
        lambda: pd.DataFrame(columns(height=pd.period_range("2020", periods=2))),
        ("column 'height': Period('2020", "is no number; convert it to numbers first"),
    ),
    *(
        BadRows(
            f"{name}: text", lambda make=make, texts=texts: make(columns(height=texts())), TEXTS
        )
        for name, (make, texts) in {
            "pandas": (pd.DataFrame, lambda: pd.Series(["1", "2"], dtype="string")),
            "polars": (pl.DataFrame, lambda: ["1", "2"]),
            "pyarrow": (pa.table, lambda: pa.array(["1", "2"], pa.string_view())),
        }.items()
    ),
    *(
        BadRows(
            f"pandas: {dtype}",
            lambda dtype=dtype, v=values: pd.DataFrame(columns(height=pd.Series(v, dtype=dtype))),
            ("column 'height': dtype ", "holds no integers, floats or bools", "convert it to"),
        )
        for dtype, values in {
            "complex128": [1, 2],
            "timedelta64[ns]": [1, 2],
            "datetime64[ns, UTC]": [1, 2],
            "timestamp[us][pyarrow]": [1, 2],
        }.items()
    ),
    *(
        BadRows(
            f"{library}: another order",
            lambda make=make: make({name: [1.0] for name in ("age", "weight", "height")}),
            ("column 1 is 'weight'", "rows.select(list(predictor.forest.given_names))"),
        )
        for library, make in {"polars": pl.DataFrame, "pyarrow": pa.table}.items()
    ),
    *(
        BadRows(f"{library}: narrow", lambda make=make: make({"age": [1.0]}), ("got 1",))
        for library, make in {"polars": pl.DataFrame, "pyarrow": pa.table}.items()
    ),
    BadRows("polars: lazy", lambda: pl.LazyFrame(columns()), ("use rows.collect()",)),
    BadRows("polars: a series", lambda: pl.Series([1.0, 2.0]), (SHAPE + "(2,)",)),
    BadRows("pyarrow: an array", lambda: pa.array([1.0, 2.0]), (SHAPE + "(2,)",)),
]
