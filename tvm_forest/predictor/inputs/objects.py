"""Converts numbers given as Python objects or strings, such as Decimal, None or "1.5".

takes: arrays of objects or texts, lists; gives: arrays of numbers, rounded as the model's training
library rounds them.

XGBoost and LightGBM turn lists into numpy arrays, and then objects into float32; estimators of
LightGBM turn arrays of objects into float64. scikit-learn converts the values of lists, of arrays
of objects and of strings to the dtype of its rows. CatBoost converts each value to a double. All
take None for a missing value. Other libraries accept no objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array, Forest
from .checks import refusal

_OBJECTS, _TEXTS = "O", "US"
"""The `kind` letters of numpy's dtypes for objects, and for strings."""


def read_objects(array: Array, forest: Forest) -> Array:
    """Convert an array of objects to numbers, if the training library does so.

    Arrays of strings are converted too for libraries that do so (`reads_lists_as_objects`). Any
    other array is returned unchanged.

    Raises:
        InputError: numpy cannot convert a value to a number.
    """
    kinds = _OBJECTS + _TEXTS if reads_lists_as_objects(forest) else _OBJECTS
    if forest.object_dtype is None or array.dtype.kind not in kinds:
        return array
    return _to_numbers(array, forest.object_dtype)


def read_list(rows: Any, forest: Forest) -> Array:
    """Convert a list to an array.

    Its dtype is numpy's choice, unless the training library has one for lists or their objects.

    Raises:
        InputError: a value is not a number, and must be converted to one.
    """
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
    """Convert objects, in an array or a list, to numbers of a dtype.

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
