"""Rows of pandas, polars and pyarrow, and rows by name.

takes: frames, tables, record batches; gives: (R, F) arrays.

Each library gives its columns in one form, `FrameColumn`; the rest is common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..forest import Array, Forest
from .checks import NUMBERS, refusal
from .named_rows import NamedRows
from .values import check_labels, list_some

Kind = Literal["pandas", "polars", "pyarrow", "named"]
_NUMERIC_TYPE = re.compile(r"u?int(8|16|32|64)|float(16|32|64)?|halffloat|double|bool(ean)?")

_NOT_READABLE = "its rows cannot be read back: give the array or frame that it was made from"
_REMEDIES = {
    **dict.fromkeys(("xgboost", "lightgbm", "catboost"), _NOT_READABLE),
    **dict.fromkeys(("dask", "dask_expr"), "use rows.compute()"),
    "modin": "use rows.modin.to_pandas()",
    "pyspark": "use rows.toPandas(), or rows.to_pandas() of pandas on Spark",
    "cudf": "use rows.to_pandas()",
}
"""By library, what users can do whose rows it holds."""


class FrameColumn(NamedTuple):
    """A column of a frame.

    Attributes:
        values: (R,) numbers, or places in `labels`.
        missing: bool (R,), where the value is missing; None for nowhere.
        labels: what the values stand for in a column of categories; None among them is missing.
    """

    values: Array
    missing: Array | None = None
    labels: Sequence[Any] | None = None


def kind_of(rows: Any) -> Kind | None:
    """Return which library's frame rows are, None if they are no frame.

    Raises:
        InputError: the frame of a library that is not supported (numpy could read it, but without
            its names, and so perhaps in another order), or an object that holds rows and does not
            give them back, such as a DMatrix.
    """
    if isinstance(rows, NamedRows):
        return "named"
    library = type(rows).__module__.split(".")[0]
    if library in _REMEDIES:
        raise refusal(f"{type(rows).__name__} of {library}: {_REMEDIES[library]}")
    first = rows[0] if isinstance(rows, list | tuple) and rows else rows
    if isinstance(first, dict) and not hasattr(first, "tocsr"):
        raise refusal("columns by name without a frame; use pandas.DataFrame(rows)")
    if library == "polars" and hasattr(rows, "collect"):
        raise refusal("a lazy frame; use rows.collect()")
    if not (hasattr(rows, "columns") or hasattr(rows, "column_names")):
        return None
    if hasattr(rows, "iloc"):
        return "pandas"
    if library == "polars":
        return "polars"
    if library == "pyarrow" and hasattr(rows, "schema"):
        return "pyarrow"
    raise refusal(f"a {library} frame is not supported yet; use rows.to_pandas()")


def frame_rows(frame: Any, kind: Kind, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Return the columns of a frame in its order, each converted on its own; nulls become NaN.

    A column of categories (category, Categorical, Enum, dictionary) is recoded by label with
    `forest.category_names`, or, column after column, with `forest.pandas_categories`. A label that
    is not there becomes NaN or `forest.other_label`, or is refused if the source object or the user
    refuses it. Without stored names labels are numbers if `forest.labels_are_numbers`, and else
    refused: the codes of a frame depend on the labels that happen to be in it.

    Args:
        frame: of pandas or polars, or a table or record batch of pyarrow.
        kind: see `kind_of`.
        forest: the model; columns are checked by name if it has names.
        dtype: of the result.

    Raises:
        InputError: wrong number, names or types of columns, or an unknown label.
    """
    names = names_of(frame, kind)
    check_names(names, kind, forest)
    if kind == "pandas" and _is_one_block(frame, forest):
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(frame.to_numpy(), dtype)
    seen, joined = 0, _join_dtypes(frame, kind, forest, dtype)  # `seen` columns of categories
    array = np.empty((len(frame) if kind != "pyarrow" else frame.num_rows, len(names)), dtype)
    for i, name in enumerate(names):
        try:
            column = _READ_COLUMN[kind](frame, i, joined)
        except (TypeError, ValueError) as error:
            raise refusal(f"column '{name}': {error}; convert it to numbers first") from None
        known, given = forest.category_names.get(i), column
        if column.labels is not None and seen < len(forest.pandas_categories):
            known = forest.pandas_categories[seen]
            column = _recode_pandas(frame.iloc[:, i], known) if kind == "pandas" else column
        seen += column.labels is not None
        numbers = _to_numbers(column, known, name, forest)
        if column.missing is not None and kind == "pyarrow" and _joins_columns(forest):
            numbers = numbers.astype(np.float64)  # as numpy reads nulls
        with np.errstate(all="ignore"):
            array[:, i] = numbers if joined == dtype else numbers.astype(joined)
        if column.missing is not None:
            array[column.missing, i] = np.nan
        if given.labels is not None and (
            "category" in forest.refuses or i in forest.refuses_unseen
        ):
            places = (
                given.values if given.missing is None else np.where(given.missing, -1, given.values)
            )
            check_labels(given.labels, places, array[:, i], i, forest, known)
    if seen < len(forest.pandas_categories):
        raise refusal(
            f"the frame has {seen} columns of categories, the model was trained with "
            f"{len(forest.pandas_categories)}; make the same columns categories"
        )
    return array


def names_of(frame: Any, kind: Kind) -> list[str]:
    """Return the names of a frame's columns."""
    return [str(name) for name in (frame.schema.names if kind == "pyarrow" else frame.columns)]


def check_names(names: list[str], kind: Kind, forest: Forest) -> None:
    """Raise InputError unless the columns are those of the rows that a forest is given."""
    if len(names) != forest.given_width:
        raise refusal(f"expected {forest.given_width} columns, got {len(names)}")
    known = forest.given_names
    if known is not None and tuple(names) != known:
        at = next(i for i, name in enumerate(names) if name != known[i])
        order = "list(predictor.forest.given_names)"
        remedy = f"rows.select({order})" if kind != "pandas" else f"rows[{order}]"
        raise refusal(
            f"column {at} is '{names[at]}', the model has '{known[at]}' there; use {remedy}"
        )


def _to_numbers(
    column: FrameColumn, known: tuple[Any, ...] | None, name: str, forest: Forest
) -> Array:
    """Return the values of a column, for categories their places among the known ones."""
    if column.labels is None and known is None:
        return column.values
    if known is None and forest.labels_are_numbers:
        return _read_numeric_labels(column, name)
    if known is None:
        raise refusal(
            f"column '{name}' holds categories, but the model stores no labels to number them by; "
            "convert it to the numbers that the model was trained on"
        )
    if column.labels is None:
        raise refusal(
            f"column '{name}' holds numbers, but the model was trained on categories "
            f"({list_some(known)}); make it a column of categories, or give codes as a numpy array"
        )
    code = {_label_key(label): float(code) for code, label in enumerate(known)}
    other = np.nan
    if forest.other_label is not None:
        other, code = forest.other_label, code | dict.fromkeys([(False, ""), (False, None)], np.nan)
        _check_texts(column.labels, name)
    # One more code, NaN, is for the place -1.
    codes = np.array([code.get(_label_key(label), other) for label in column.labels] + [np.nan])
    return codes[column.values]


def _read_numeric_labels(column: FrameColumn, name: str) -> Array:
    """Return the numbers that the labels of a column are."""
    labels = column.labels or ()
    for label in labels:
        is_number = isinstance(label, bool | int | float | np.number | np.bool_ | None)
        if not is_number or (label is not None and label == label and float(label) != label):
            raise refusal(
                f"column '{name}' has the category {label!r:.80}, and the model has numbers there; "
                "convert it"
            )
    numbers = [np.nan if label is None else float(label) for label in labels] + [np.nan]
    return np.array(numbers)[column.values]


def _check_texts(labels: Sequence[Any], name: str) -> None:
    wrong = [label for label in labels if not isinstance(label, str | None)]
    if wrong:
        raise refusal(
            f"column '{name}' has the category {wrong[0]!r:.80}, and those of the model are texts; "
            "convert it, e.g. with str"
        )


def _label_key(label: Any) -> tuple[bool, Any]:
    """Return a key that tells True from 1, which are equal in Python."""
    return isinstance(label, bool | np.bool_), label


# -- columns of each library ----------------------------------------------------------------------


def _is_one_block(frame: Any, forest: Forest) -> bool:
    """Tell whether all columns have one dtype of numpy; mixed ones would be rounded twice."""
    if forest.category_names or forest.pandas_categories:
        return False
    dtypes = set(frame.dtypes)
    return len(dtypes) == 1 and all(
        isinstance(dtype, np.dtype) and dtype.kind in NUMBERS for dtype in dtypes
    )


def _joins_columns(forest: Forest) -> bool:
    """Return whether the library makes one array of a frame, and then float32 of that.

    scikit-learn does, so that float32 is rounded twice of large integers beside real numbers.
    """
    return forest.source.startswith("scikit-learn") and forest.row_dtype == "float32"


def _join_dtypes(frame: Any, kind: Kind, forest: Forest, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float64 if the columns become that before they become rows in `dtype`."""
    if not _joins_columns(forest) or kind not in ("pandas", "polars"):
        return dtype
    dtypes = list(frame.dtypes)
    if kind == "pandas" and not all(isinstance(x, np.dtype) and x.kind in "iuf" for x in dtypes):
        return dtype  # scikit-learn converts them one by one
    if kind == "polars":
        names = [str(x).lower().replace("boolean", "bool") for x in dtypes]
        if not all(map(_NUMERIC_TYPE.fullmatch, names)):
            return dtype
        counts = frame.null_count().row(0)
        names += ["float64" for x, count in zip(names, counts, strict=True) if count and "int" in x]
        dtypes = [np.dtype(name) for name in names]
    joined = np.result_type(*dtypes) if dtypes else dtype
    return joined if joined == np.float64 else dtype


def _read_pandas(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.iloc[:, i]
    if hasattr(column.dtype, "categories"):
        return FrameColumn(column.cat.codes.to_numpy(), None, list(column.dtype.categories))
    if getattr(column.dtype, "kind", "O") not in NUMBERS:
        raise TypeError(f"dtype {column.dtype} holds no numbers")
    with np.errstate(all="ignore"):
        return FrameColumn(column.to_numpy(dtype=dtype, na_value=np.nan))


def _recode_pandas(column: Any, known: tuple[Any, ...]) -> FrameColumn:
    """Number categories as LightGBM does: pandas matches labels, unless the lists are equal."""
    if list(column.dtype.categories) != list(known):  # lists to which True equals 1
        column = column.cat.set_categories(list(known))
    return FrameColumn(column.cat.codes.to_numpy(), None, known)


def _read_polars(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.to_series(i)
    missing = column.is_null().to_numpy() if column.null_count() else None
    if type(column.dtype).__name__ in ("Categorical", "Enum"):  # their codes may be any
        present = column.drop_nulls().unique()
        label = dict(zip(present.to_physical().to_list(), present.to_list(), strict=True))
        physical = column.to_physical().fill_null(strategy="zero").to_numpy()
        codes, places = np.unique(physical, return_inverse=True)
        return FrameColumn(places, missing, [label.get(int(code)) for code in codes])
    kind = str(column.dtype)
    _check_type(kind)
    if missing is not None:  # polars would make float64 of them
        column = column.fill_null(False) if kind == "Boolean" else column.fill_null(strategy="zero")
    return FrameColumn(column.to_numpy(), missing)


def _read_arrow(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.column(i)
    if hasattr(column, "combine_chunks"):  # of a table; one dictionary for all of its chunks
        column = column.combine_chunks()
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    labels = None
    if hasattr(column, "dictionary"):
        labels, column = column.dictionary.to_pylist(), column.indices
    _check_type(str(column.type))
    if missing is not None:
        column = column.fill_null(False if str(column.type) == "bool" else 0)
    return FrameColumn(column.to_numpy(zero_copy_only=False), missing, labels)


def _read_named(frame: NamedRows, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    values = frame.values[i]
    missing = np.array([value is None for value in values], bool)
    if i in frame.labelled or any(isinstance(value, str) for value in values):
        keys = {_label_key(value): value for value in values if value is not None}
        places = {key: place for place, key in enumerate(keys)}
        found = [places.get(_label_key(value), -1) for value in values]
        return FrameColumn(np.array(found, np.int64), missing, list(keys.values()))
    array = np.array([0 if value is None else value for value in values])
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{values[0]!r:.80} is no number")
    return FrameColumn(array, missing)


def _check_type(name: str) -> None:
    if not _NUMERIC_TYPE.fullmatch(name.lower()):
        raise TypeError(f"type {name} holds no numbers")


class ReadFrame:
    """The columns of a frame for a model that takes categories by their texts."""

    def __init__(self, frame: Any, kind: Kind) -> None:
        self.frame, self.kind = frame, kind

    def read_numbers(self, at: int) -> Array:
        """Return a column of numbers, nulls as NaN."""
        name = names_of(self.frame, self.kind)[at]
        try:
            column = _READ_COLUMN[self.kind](self.frame, at, np.dtype(np.float32))
        except (TypeError, ValueError) as error:
            raise refusal(f"column '{name}': {error}; convert it to numbers first") from None
        if column.labels is not None:
            raise refusal(f"column '{name}' holds categories, the model has numbers there")
        values = column.values.astype(np.float32)
        if column.missing is not None:
            values[column.missing] = np.nan
        return values

    def read_categories(self, at: int) -> tuple[list[Any], Array | None]:
        """Return the values of a column, missing ones as None, row by row."""
        if self.kind == "pyarrow":
            return self.frame.column(at).to_pylist(), None
        if self.kind == "polars":
            return self.frame.to_series(at).to_list(), None
        if self.kind == "named":
            return self.frame.values[at], None
        column = self.frame.iloc[:, at]
        if hasattr(column.dtype, "categories"):
            codes = column.cat.codes.to_numpy()
            if codes.size and codes.min() >= 0:
                places, codes = np.unique(codes, return_inverse=True)
                return [column.dtype.categories[place] for place in places], codes.ravel()
        return column.tolist(), None


_READ_COLUMN: dict[Kind, Callable[[Any, int, np.dtype[Any]], FrameColumn]] = {
    "pandas": _read_pandas,
    "polars": _read_polars,
    "pyarrow": _read_arrow,
    "named": _read_named,
}
