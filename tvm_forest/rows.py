"""What users pass as rows becomes an array that compiled code can read.

takes: arrays, frames, tensors, lists; gives: (R, F) numpy arrays, C order, in the model's dtype.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .errors import InputError
from .forest import Array, Forest

WHERE = "predict: argument 'rows'"
NUMBERS = "fiub"


def to_rows(rows: Any, forest: Forest) -> Array:
    """Return rows as a C-ordered array of the model's row dtype; the input is never modified.

    An array that has this form already is used as it is, without a copy. Numbers of other dtypes
    are converted as the training library converts them; float64 beyond float32 becomes infinite.

    Args:
        rows: (R, F) numpy array of numbers, pandas frame (columns are checked by name if the model
            has names), nested list, or any object with DLPack on the CPU.
        forest: the model that the rows are for.

    Raises:
        InputError: wrong rank, width, dtype or column names, or not on the CPU.
    """
    dtype = np.dtype(forest.row_dtype)
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):
        return _from_frame(rows, forest, dtype)
    array = rows if isinstance(rows, np.ndarray) else _from_object(rows)
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"{WHERE}: a masked array; use rows.filled(numpy.nan)")
    if array.ndim != 2 or array.shape[1] != forest.row_width:
        hint = "; for one row use rows.reshape(1, -1)" if array.ndim == 1 else ""
        raise InputError(
            f"{WHERE}: rows must have shape (R, {forest.row_width}), got {array.shape}{hint}"
        )
    if array.dtype.kind not in NUMBERS:
        raise InputError(
            f"{WHERE}: rows must hold numbers, got dtype {array.dtype}; convert them, e.g. with "
            f"rows.astype('{dtype}')"
        )
    return _as_dtype(array, dtype)


def writable_view(array: Array) -> Array:
    """Return the same memory as an array marked writable, for TVM, which takes no other.

    Compiled functions only read their rows.
    """
    if array.flags.writeable or not array.size:
        return array
    memory = memoryview((ctypes.c_char * array.nbytes).from_address(array.ctypes.data))
    return np.ndarray(array.shape, array.dtype, memory)


def _as_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype == dtype:  # entering `errstate` would take longer than the rest of a small call
        return np.ascontiguousarray(array)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array, dtype)


def _from_object(rows: Any) -> Array:
    """Lists and tensors."""
    if hasattr(rows, "columns") or hasattr(rows, "column_names"):
        # numpy could read it, but without its names, and so perhaps in another order
        raise InputError(
            f"{WHERE}: a {type(rows).__module__.split('.')[0]} frame is not supported yet; use "
            "rows.to_pandas()"
        )
    if hasattr(rows, "tocsr"):
        raise InputError(f"{WHERE}: sparse rows are not supported yet; use rows.toarray()")
    try:
        if hasattr(rows, "__dlpack__") and not np.isscalar(rows):
            return np.from_dlpack(rows)
        return np.asarray(rows)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"{WHERE}: a {type(rows).__name__} cannot be read ({error}); give a numpy array of "
            "shape (R, F) or a tensor on the CPU"
        ) from None


def _from_frame(frame: Any, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Columns in the order of the frame, each converted on its own."""
    names = [str(name) for name in frame.columns]
    if len(names) != forest.row_width:
        raise InputError(f"{WHERE}: expected {forest.row_width} columns, got {len(names)}")
    if forest.feature_names is not None and tuple(names) != forest.feature_names:
        at = next(i for i, name in enumerate(names) if name != forest.feature_names[i])
        raise InputError(
            f"{WHERE}: column {at} is '{names[at]}', the model has '{forest.feature_names[at]}' "
            "there; use frame[predictor.forest.feature_names]"
        )
    array = np.empty((len(frame), forest.row_width), dtype)
    for i, name in enumerate(names):
        column = frame.iloc[:, i]
        try:
            if not _is_numeric(column.dtype):
                raise TypeError(f"dtype {column.dtype} holds no numbers")
            with np.errstate(all="ignore"):
                array[:, i] = column.to_numpy(dtype=dtype, na_value=np.nan)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{WHERE}: column '{name}': {error}; convert it to numbers first"
            ) from None
    return array


def _is_numeric(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in NUMBERS
