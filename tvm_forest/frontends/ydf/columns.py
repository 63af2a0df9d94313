"""Converts rows to the form in which YDF predicts: a dict of columns.

takes: model of ydf, its Forest, rows; gives: arrays by column name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array, Forest
from .nodes import BOOLEAN, CATEGORICAL


def find_sayable(forest: Forest, model: Any, rows: Array) -> Array:
    """Return bool (R,), true for rows that can be expressed as input of YDF.

    Its booleans must be 0 or 1, and its categories known or missing.
    """
    found = np.ones(len(rows), bool)
    for i, column in enumerate(_list_columns(model)):
        values = rows[:, i]
        if column.type == BOOLEAN:
            found &= (values == 0) | (values == 1)
        elif column.type == CATEGORICAL:
            known = (values >= 0) & (values < len(forest.category_names[i]))
            found &= np.isnan(values) | (known & (values == np.trunc(values)))
    return found


def to_columns(forest: Forest, model: Any, rows: Array) -> dict[str, Array]:
    """Return rows (R, F) as a dict of columns for YDF: numbers, bools and texts."""
    found: dict[str, Array] = {}
    for i, column in enumerate(_list_columns(model)):
        values: Array = np.ascontiguousarray(rows[:, i])
        if column.type == BOOLEAN:
            values = values != 0
        elif column.type == CATEGORICAL:
            texts = np.array(["", *forest.category_names[i]], object)  # an empty text is missing
            values = texts[np.where(np.isnan(values), -1, values).astype(int) + 1]
        found[column.name] = values
    return found


def _list_columns(model: Any) -> list[Any]:
    spec = model.data_spec()
    return [spec.columns[at] for at in model.input_features_col_idxs()]
