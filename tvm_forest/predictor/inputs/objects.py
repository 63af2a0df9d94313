"""Numbers given as Python objects or strings, in arrays and lists: Decimal, None, "1.5".

takes: arrays of objects or texts, lists; gives: arrays of numbers, with the roundings of the
library of the model.

XGBoost and LightGBM make numpy arrays of lists, and then float32 of objects, but estimators of
LightGBM float64 of arrays of them. scikit-learn makes the dtype of its rows of the values in both,
and of texts. CatBoost takes each value for a double. None is missing to all. Other libraries take
no objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array, Forest
from .checks import refusal

_OBJECTS, _TEXTS = "O", "US"
"""Kinds of numpy's dtypes for objects, and for strings."""


def read_objects(array: Array, forest: Forest) -> Array:
    """Convert an array of objects or strings to numbers; return any other array unchanged.

    Raises:
        InputError: numpy cannot convert a value to a number.
    """
    kinds = _OBJECTS + _TEXTS if reads_lists_as_objects(forest) else _OBJECTS
    if forest.object_dtype is None or array.dtype.kind not in kinds:
        return array
    return _to_numbers(array, forest.object_dtype)


def read_list(rows: Any, forest: Forest) -> Array:
    """Convert a list to an array, of numbers if the library converts values one by one."""
    if forest.object_dtype is None or not reads_lists_as_objects(forest):
        array = np.asarray(rows)
        if forest.other_dtype is None or array.dtype.kind != _OBJECTS:
            return array
        return _to_numbers(array, forest.other_dtype)
    return _to_numbers(rows, forest.object_dtype)


def reads_lists_as_objects(forest: Forest) -> bool:
    """Return whether the library converts the values of a list one by one, whatever their type."""
    return forest.library in ("scikit-learn", "catboost")


def _to_numbers(values: Any, dtype: str) -> Array:
    """Return objects as numbers of a dtype.

    Raises:
        InputError: one of them is not a number.
    """
    try:
        with np.errstate(all="ignore"):
            return np.asarray(values, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise refusal(
            f"rows must hold numbers ({error}); give each as one, and None where it is missing"
        ) from None
