"""Checks that all kinds of rows must pass.

takes: rows, shapes, dtypes; gives: nothing, or InputError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError, RowError
from ...forest import Array, Forest

NUMBERS = "fiub"
"""Kinds of dtypes that hold numbers or bools."""


WHERE = "predict: argument 'rows'"
"""The beginning of this room's error messages."""


def refusal(text: str) -> InputError:
    """Return an InputError about the rows; `text` names the fault and a remedy."""
    return InputError(f"{WHERE}: {text}")


def row_refusal(row: int, text: str) -> RowError:
    """Return an error about the row with index `row`; `text` names the fault and a remedy."""
    return RowError(WHERE, row, text)


def check_shape(shape: tuple[int, ...], forest: Forest) -> None:
    """Raise InputError unless the shape is (R, row_width)."""
    if len(shape) != 2 or shape[1] != forest.row_width:
        hint = "; for one row use rows.reshape(1, -1)" if len(shape) == 1 else ""
        raise refusal(f"rows must have shape (R, {forest.row_width}), got {shape}{hint}")


def is_copied(rows: Any) -> bool:
    """Return whether XGBoost's estimator copies rows of this type into a DMatrix first."""
    kinds = {cls.__name__ for cls in type(rows).__mro__}
    frame = hasattr(rows, "columns") and "RecordBatch" not in kinds
    is_array = any(hasattr(rows, f"__{kind}array_interface__") for kind in ("", "cuda_"))
    return not (frame or is_array or kinds & {"list", "tuple", "csr_matrix"})


def check_in_place(rows: Any, forest: Forest) -> None:
    """Raise InputError if XGBoost copies these rows, and the model is not for copied rows."""
    if forest.in_place and is_copied(rows):
        raise refusal(
            f"a {type(rows).__name__}, which XGBoost copies into a DMatrix, and then rounds a "
            "'dart' model in another way; give a numpy array, scipy.sparse.csr_matrix(rows), or a "
            "frame or table, or compile model.get_booster(), which always rounds in that way"
        )


def check_numbers(given_dtype: np.dtype[Any], dtype: np.dtype[Any]) -> None:
    """Raise InputError unless rows of `given_dtype` are real numbers or bools.

    The message suggests `dtype`, that of the model's rows.
    """
    if given_dtype.kind not in NUMBERS:
        raise refusal(
            f"rows must hold numbers, got dtype {given_dtype}; convert them, e.g. with "
            f"rows.astype('{dtype}')"
        )


def as_array(given: Any) -> Array:
    """Return an argument that should be numbers as an array, which callers check by its dtype.

    Masked arrays, which hide numbers, and lists whose parts differ in length become objects.
    """
    dtype = object if isinstance(given, np.ma.MaskedArray) else None
    try:
        return np.asarray(given, dtype)
    except (TypeError, ValueError):
        return np.array(None)
