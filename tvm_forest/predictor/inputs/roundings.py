"""Rounds numbers through the same intermediate dtypes as the training library.

takes: arrays, columns, frames; gives: numbers that are rounded as often as the library rounds them.

A large integer that is converted to float64 and then to float32 may differ from the nearest
float32. Each library does this for other inputs, some of them for one kind of frame only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...forest import Array, Forest
from .checks import refusal

if TYPE_CHECKING:
    from .column_names import Kind

_DIRECT = frozenset(map(np.dtype, ("float32", "float64")))
"""Dtypes that libraries convert directly, without `Forest.other_dtype` in between."""


def pass_array(array: Array, forest: Forest) -> Array:
    """Convert an array to the dtype through which the training library converts such an array.

    Raises:
        InputError: XGBoost would misread its bytes.
    """
    if array.dtype in _DIRECT:
        return array
    if forest.other_dtype is not None:
        return array.astype(forest.other_dtype)
    return pass_numbers(array, forest)


def pass_numbers(array: Array, forest: Forest) -> Array:
    """Convert numbers like `pass_array`, but never to `Forest.other_dtype`; frames skip that.

    CatBoost converts long doubles, and numbers in foreign byte order, through Python floats.

    Raises:
        InputError: XGBoost would misread their bytes.
    """
    dtype, library = array.dtype, forest.library
    is_long = dtype.kind == "f" and dtype.itemsize > 8
    if library == "catboost" and (is_long or not dtype.isnative):
        return array.astype(np.float64)
    is_read = dtype.isnative and (not is_long or array.flags.c_contiguous)
    if library == "xgboost" and not is_read:
        raise refusal(
            f"numbers of dtype {dtype.str} whose bytes XGBoost takes for other numbers; use "
            "rows.astype('float64')"
        )
    return array


def pass_column(
    numbers: Array, missing: Array | None, series: Any, kind: Kind, forest: Forest
) -> Array:
    """Convert a column to the dtype through which the training library converts such a column.

    Args:
        numbers: (R,) values, of any dtype.
        missing: bool (R,), true where a value is missing; None if none is.
        series: the column as a pandas Series, or None for frames of other libraries.
        kind: the library of the frame.
        forest: the model.

    Raises:
        InputError: see `pass_numbers`.
    """
    library, dtype = forest.library, getattr(series, "dtype", None)
    is_object = getattr(dtype, "kind", "") == "O"
    has_gaps = missing is not None and bool(missing.any())
    if library == "catboost":
        is_split = kind == "pandas" and (has_gaps or is_object)
    elif library == "ydf":  # numpy converts Python's integers to floats, but not its own ones
        is_split = has_gaps or (is_object and int in set(map(type, series)))
    else:  # XGBoost reads pandas columns that Arrow stores as Arrow converts them
        is_split = library == "xgboost" and has_gaps and hasattr(dtype, "pyarrow_dtype")
    return numbers.astype(np.float64) if is_split else pass_numbers(numbers, forest)


def pass_entries(entries: Array, matrix: Any, forest: Forest) -> Array:
    """Convert the entries of a sparse matrix to the dtype through which the library converts them.

    CatBoost reads the entries of formats other than CSR and CSC one by one, as doubles.
    """
    is_split = forest.library == "catboost" and matrix.format not in ("csr", "csc")
    return entries.astype(np.float64) if is_split else pass_numbers(entries, forest)


def join_columns(frame: Any, kind: Kind, forest: Forest, dtype: np.dtype[Any]) -> Array | None:
    """Return a frame as the one array into which the library converts it, or None.

    None if the library converts the frame column by column, or if numpy cannot convert it.
    scikit-learn makes one array of all columns and converts it to float32, but converts the columns
    of pandas one by one if some are bools or may have gaps. XGBoost and LightGBM let numpy convert
    record batches.
    """
    library = forest.library
    if forest.category_names or forest.pandas_categories or kind == "named":
        return None
    try:
        with np.errstate(all="ignore"):
            if library == "scikit-learn" and forest.row_dtype == "float32":
                if kind == "pandas" and any(map(_is_converted_early, frame.dtypes)):
                    frame = frame.astype(dtype)
                return np.asarray(frame, dtype)
            if library in ("xgboost", "lightgbm") and type(frame).__name__ == "RecordBatch":
                array = np.asarray(frame)
                return array.astype(np.float32) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError):  # the caller reads, or refuses, each column
        pass
    return None


def _is_converted_early(dtype: Any) -> bool:
    """Return whether a column of this dtype makes scikit-learn convert a pandas frame by pandas."""
    if hasattr(dtype, "categories"):
        return bool(dtype.categories.dtype == bool)
    may_have_gaps = not isinstance(dtype, np.dtype) and not hasattr(dtype, "fill_value")
    return dtype.kind == "b" or (may_have_gaps and dtype.kind in "iuf")
