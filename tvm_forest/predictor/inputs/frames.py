"""Reads rows of pandas, polars and pyarrow, and rows by name.

takes: frames, tables, record batches; gives: (R, F) arrays.

One function for each library reads its columns into a `FrameColumn`; the rest is common.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...forest import Array, Forest
from .checks import NUMBERS, refusal
from .column_names import Kind, names_of, take_columns
from .labels import (
    FrameColumn,
    code_of_gaps,
    find_labels,
    find_none,
    is_listed,
    read_values,
    to_numbers,
)
from .named_rows import NamedRows
from .roundings import join_columns, pass_column, pass_numbers
from .values import check_labels

_NUMERIC_TYPE = re.compile(r"u?int(8|16|32|64)|float(16|32|64)?|halffloat|double|bool(ean)?")

_TEXTS = ("string", "large_string", "string_view")
"""Pyarrow's string types."""

_NOT_READABLE = "its rows cannot be read back: give the array or frame that it was made from"
_REMEDIES = {
    **dict.fromkeys(("xgboost", "lightgbm", "catboost"), _NOT_READABLE),
    **dict.fromkeys(("dask", "dask_expr"), "use rows.compute()"),
    "modin": "use rows.modin.to_pandas()",
    "pyspark": "use rows.toPandas(), or rows.to_pandas() of pandas on Spark",
    "cudf": "use rows.to_pandas()",
}
"""Remedies for users, by the library of their object, which is refused."""


def kind_of(rows: Any) -> Kind | None:
    """Return the library that made a frame, "named" for `NamedRows`, or None for other rows.

    Raises:
        InputError: a frame of an unsupported library (numpy could read it, but would lose the
            names, and so perhaps the order of the columns), or an object whose rows cannot be read
            back, such as a DMatrix.
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
    """Return the model's columns of a frame as numbers, (R, row_width), rounded as in its library.

    Nulls become NaN, or the code of None in a column in which None is a label of the model.

    Categories (dtypes category, Categorical, Enum, dictionary) and texts become the codes that the
    model has for their labels: those of `forest.category_names`, or the next list of
    `forest.pandas_categories`. A label that is not listed becomes NaN or `forest.other_label`, or
    is refused if the source object or the user refuses it. If the model stores no labels, they are
    read as numbers if `forest.labels_are_numbers`, and refused otherwise: the frame's own codes
    depend on the labels that happen to be in it.

    Args:
        frame: of pandas or polars, a table or record batch of pyarrow, or `NamedRows`.
        kind: see `kind_of`.
        forest: the model; columns are found by name if it has names.
        dtype: the dtype of the result, unless `join_columns` returns one of another dtype.

    Raises:
        InputError: wrong number, names or types of columns, or an unknown label.
    """
    frame = take_columns(frame, kind, forest)
    joined = join_columns(frame, kind, forest, dtype)
    if joined is not None:
        return joined
    names = forest.given_names or names_of(frame, kind)
    blocks = _find_blocks(frame, forest) if kind == "pandas" else {}
    if blocks:
        return _read_blocks(frame, blocks, forest, dtype)
    seen, lists = 0, iter(forest.pandas_categories)  # `seen` counts columns of categories
    array = np.empty((len(frame) if kind != "pyarrow" else frame.num_rows, len(names)), dtype)
    for i, name in enumerate(names):
        known = forest.category_names.get(i)
        column = given = find_labels(_read_column(frame, i, kind, dtype, name), known, forest)
        if is_listed(column, i, forest):
            seen += 1
            known = next(lists, None)
            if known is not None and kind == "pandas" and not column.is_text:
                column = _recode_pandas(frame.iloc[:, i], known)
        numbers = to_numbers(column, known, i, name, forest)
        with np.errstate(all="ignore"):
            series = frame.iloc[:, i] if kind == "pandas" else None
            array[:, i] = pass_column(numbers, column.missing, series, kind, forest)
        if column.missing is not None:
            array[column.missing, i] = code_of_gaps(known)
        if "category" in forest.refuses or i in forest.refuses_unseen:
            _check_column(given, array[:, i], i, forest, known)
    if seen < len(forest.pandas_categories):
        raise refusal(
            f"the frame has {seen} columns of categories, the model was trained with "
            f"{len(forest.pandas_categories)}; make the same columns categories"
        )
    return array


def _read_column(frame: Any, at: int, kind: Kind, dtype: np.dtype[Any], name: str) -> FrameColumn:
    try:
        with np.errstate(all="ignore"):
            return _READ_COLUMN[kind](frame, at, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal(f"column '{name}': {error}; convert it to numbers first") from None


def _check_column(
    column: FrameColumn, codes: Array, at: int, forest: Forest, known: tuple[Any, ...] | None
) -> None:
    """Raise InputError if a column has a label that is refused.

    Args:
        column: the column as it was given.
        codes: (R,), the numbers that it was converted to.
        at: its index in the frame.
        forest: the model.
        known: the model's labels for it, None if it has none.
    """
    if column.labels is not None:
        places = column.values if column.labels else np.full(len(codes), -1)
        places = places if column.missing is None else np.where(column.missing, -1, places)
        check_labels(column.labels, places, codes, at, forest, known)


# -- columns of each library ----------------------------------------------------------------------


def _find_blocks(frame: Any, forest: Forest) -> dict[np.dtype[Any], list[int]]:
    """Return the indices of the columns of each dtype; {} if columns must be read one by one.

    Columns of one dtype are read together. Those of different dtypes never are: pandas would first
    convert them to a common dtype, which rounds once more.
    """
    blocks = dict[np.dtype[Any], list[int]]()
    if forest.category_names or forest.pandas_categories:
        return blocks
    for place, dtype in enumerate(frame.dtypes):
        if not isinstance(dtype, np.dtype) or dtype.kind not in NUMBERS:
            return {}
        blocks.setdefault(dtype, []).append(place)
    is_plain = all(dtype.isnative and dtype.itemsize <= 8 for dtype in blocks)
    return blocks if is_plain or len(blocks) == 1 else {}


def _read_blocks(
    frame: Any, blocks: dict[np.dtype[Any], list[int]], forest: Forest, dtype: np.dtype[Any]
) -> Array:
    """Return the columns of a pandas frame, reading all columns of one dtype together."""
    with np.errstate(all="ignore"):
        if len(blocks) == 1:
            return np.ascontiguousarray(pass_numbers(frame.to_numpy(), forest), dtype)
        array = np.empty(frame.shape, dtype)
        for places in blocks.values():
            array[:, places] = pass_numbers(frame.take(places, axis=1).to_numpy(), forest)
    return array


def _read_pandas(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.iloc[:, i]
    kind = getattr(column.dtype, "kind", "O")
    if hasattr(column.dtype, "categories"):
        return FrameColumn(column.cat.codes.to_numpy(), None, list(column.dtype.categories))
    if kind in "OU":
        return _read_objects(column)
    if kind not in NUMBERS:
        raise TypeError(f"dtype {column.dtype} holds no integers, floats or bools")
    if isinstance(column.dtype, np.dtype):
        return FrameColumn(column.to_numpy())
    if kind != "f" and hasattr(column.dtype, "numpy_dtype"):  # it may have gaps
        missing, own = column.isna().to_numpy(), column.dtype.numpy_dtype
        return FrameColumn(column.to_numpy(dtype=own, na_value=own.type(0)), missing)
    return FrameColumn(column.to_numpy(dtype=dtype, na_value=np.nan))


def _read_objects(column: Any) -> FrameColumn:
    """Return a pandas column of strings, or of objects such as strings and numbers."""
    places, labels = column.factorize()
    if not all(isinstance(label, str) for label in labels):  # `factorize` takes True for 1
        values = zip(column.tolist(), places >= 0, strict=True)
        return read_values([x if known or x is None else np.nan for x, known in values])
    missing = None
    if column.dtype == object:
        missing = places < 0
        missing[missing] = find_none(column.to_numpy()[missing])
    return FrameColumn(places, missing, list(labels), True)


def _recode_pandas(column: Any, known: tuple[Any, ...]) -> FrameColumn:
    """Recode a column of categories by the list `known`, as LightGBM does, with pandas.

    Lists that compare equal are taken for the same, as LightGBM takes them, though True == 1.
    """
    if list(column.dtype.categories) != list(known):
        column = column.cat.set_categories(list(known))
    return FrameColumn(column.cat.codes.to_numpy(), None, known)


def _read_polars(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.to_series(i)
    missing = column.is_null().to_numpy() if column.null_count() else None
    if type(column.dtype).__name__ in ("Categorical", "Enum"):  # whose codes may have gaps
        present = column.drop_nulls().unique()
        if present.is_empty():
            return FrameColumn(np.zeros(len(column)), missing, ())
        label = dict(zip(present.to_physical().to_list(), present.to_list(), strict=True))
        physical = column.to_physical().fill_null(strategy="zero").to_numpy()
        codes, places = np.unique(physical, return_inverse=True)
        return FrameColumn(places, missing, [label.get(int(code)) for code in codes])
    kind = str(column.dtype)
    if kind == "String":
        from polars import Categorical

        return _read_polars(column.cast(Categorical).to_frame(), 0, dtype)._replace(is_text=True)
    if kind == "Null":
        return FrameColumn(np.zeros(len(column)), missing, (), True)
    _check_type(kind)
    if missing is not None:  # polars would make float64 of them
        column = column.fill_null(False) if kind == "Boolean" else column.fill_null(strategy="zero")
    return FrameColumn(column.to_numpy(), missing)


def _read_arrow(frame: Any, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    column = frame.column(i)
    if hasattr(column, "combine_chunks"):  # of a table; one dictionary for all of its chunks
        column = column.combine_chunks()
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    labels, kind = None, str(column.type)
    if kind == "null":
        return FrameColumn(np.zeros(len(column)), missing, (), True)
    is_text = kind in _TEXTS
    if is_text:
        column = column.cast("large_string").dictionary_encode()
    if hasattr(column, "dictionary"):
        labels, column = column.dictionary.to_pylist(), column.indices
    _check_type(str(column.type))
    if missing is not None:
        column = column.fill_null(False if str(column.type) == "bool" else 0)
    values = column.to_numpy(zero_copy_only=False)
    if labels is not None and not is_text and missing is not None:  # categories, as pandas' are
        values, missing = np.where(missing, -1, values.astype(np.int64)), None
    return FrameColumn(values, missing, labels, is_text)


def _read_named(frame: NamedRows, i: int, dtype: np.dtype[Any]) -> FrameColumn:
    return read_values(frame.values[i], i in frame.labelled)


def _check_type(name: str) -> None:
    if not _NUMERIC_TYPE.fullmatch(name.lower()):
        raise TypeError(f"type {name} holds no integers, floats or bools")


class ReadFrame:
    """Reads the columns of a frame for a model that hashes categories (`encoding`)."""

    def __init__(self, frame: Any, kind: Kind, forest: Forest) -> None:
        self.frame, self.kind, self.forest = frame, kind, forest

    def read_numbers(self, at: int) -> Array:
        """Return the numbers in column `at`, float32 (R,), NaN in place of nulls; refuse texts."""
        name = names_of(self.frame, self.kind)[at]
        column = _read_column(self.frame, at, self.kind, np.dtype(np.float32), name)
        if column.labels:
            raise refusal(
                f"column '{name}' holds categories or texts, the model has numbers there; "
                "convert it to numbers first"
            )
        series = self.frame.iloc[:, at] if self.kind == "pandas" else None
        passed = pass_column(column.values, column.missing, series, self.kind, self.forest)
        values = passed.astype(np.float32)
        if column.missing is not None:
            values[column.missing] = np.nan
        return values

    def read_categories(self, at: int) -> tuple[list[Any], Array | None]:
        """Return the categories in column `at`.

        Either one value per row, and None; or the distinct values, and each row's index in them.
        """
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
