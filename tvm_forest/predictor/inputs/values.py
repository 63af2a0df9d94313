"""Checks rows for refused values: those of the source object, and unseen categories.

takes: rows, columns of categories; gives: nothing, or InputError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import RowError
from ...forest import Array, CategoryRule, Forest
from ...forest.memberships import mark_missing
from .checks import row_refusal

UNWANTED: dict[str, Callable[[Array], Array]] = {"nan": np.isnan, "inf": np.isinf}
"""For each word of `Forest.refuses` about numbers, the function that finds such numbers."""

_REMEDIES = {
    "nan": "fill in or drop rows with missing values first",
    "inf": "clip the values to the range of {dtype} first",
}
_WHOLE = CategoryRule("left", fractions_none=True)
"""Rule that converts values to codes of categories, for models without tests of categories."""


def check_values(array: Array, forest: Forest) -> None:
    """Raise InputError if rows contain values that the source object or the user refuses.

    Args:
        array: (R, row_width), converted to the row dtype, in which a number may become infinite.
        forest: its fields `refuses` and `refuses_unseen` decide.
    """
    if forest.refuses_unseen and forest.encoder is None:
        _check_codes(array, forest)
    if np.isfinite(array).all():
        return
    for word, find in UNWANTED.items():
        unwanted = find(array)
        if word in forest.refuses and unwanted.any():
            raise _refusal(array, unwanted, forest, _REMEDIES[word].format(dtype=array.dtype))
    unwanted = np.zeros(array.shape, bool)
    if forest.finite_columns:
        columns = list(forest.finite_columns)
        unwanted[:, columns] = np.isinf(array[:, columns])
    if unwanted.any():
        raise _refusal(array, unwanted, forest, "give NaN for an unknown category")


def _refusal(array: Array, unwanted: Array, forest: Forest, remedy: str) -> RowError:
    """Return the error about the first unwanted value, bool (R, row_width), of rows."""
    row, column = np.unravel_index(np.argmax(unwanted), unwanted.shape)
    names = forest.feature_names
    name = "" if names is None else f" ('{names[column]}')"
    value = "NaN" if np.isnan(array[row, column]) else array[row, column]
    return row_refusal(
        int(row),
        f"column {column}{name} is {value} as {array.dtype}, which the model refuses; {remedy}",
    )


def _check_codes(array: Array, forest: Forest) -> None:
    rule = forest.category_rule or _WHOLE
    for column in forest.refuses_unseen:
        known = forest.known_by_column[column]
        values = mark_missing(forest, array, {})[:, column]
        unseen = ~np.isnan(values) & ~np.isin(rule.codes(values), known)
        if rule.fractions_missing:
            unseen |= np.isfinite(values) & (values != np.trunc(values))
        if unseen.any():
            row = int(np.argmax(unseen))
            raise unknown_category(row, forest, column, f"{values[row]:g}", known.tolist())


def check_labels(
    labels: Sequence[Any], places: Array, codes: Array, column: int, forest: Forest, known: Any
) -> None:
    """Raise InputError if a column has a label that the model does not know.

    Args:
        labels: the distinct labels of the column; a label None stands for a missing value.
        places: (R,), the index in `labels` of each row's label; -1 where it is missing.
        codes: (R,), the model's code for each row's label, NaN where it has none.
        column: the index of the column, from 0.
        forest: the model.
        known: the model's labels, in the order of their codes; None if labels are numbers.
    """
    unknown = np.isnan(codes)
    if column in forest.refuses_unseen:
        codes_known = forest.known_by_column[column]
        unknown |= ~np.isin(codes, codes_known)
        names = dict(enumerate(known or ()))
        known = [names.get(code, code) for code in codes_known.tolist()]
    named = np.array([label is not None for label in labels] + [False])
    unknown &= named[places]
    if unknown.any():
        row = int(np.argmax(unknown))
        raise unknown_category(row, forest, column, repr(labels[places[row]]), known)


def unknown_category(
    row: int, forest: Forest, column: int, category: str, known: Sequence[Any] = ()
) -> Exception:
    """Return the error for a category that the model does not know.

    Args:
        row, column: indices of the row and of the column that holds it, from 0.
        forest: the model.
        category: the category as text.
        known: categories that the model knows in this column, for the message.
    """
    names = forest.given_names
    name = str(column) if names is None else f"'{names[column]}'"
    have = f" (have: {list_some(known)})" if known else ""
    return row_refusal(
        row,
        f"column {name} is {category:.80}, a category that the model does not know{have}; make it "
        "a missing value",
    )


def list_some(labels: Sequence[Any]) -> str:
    """Return the first eight labels as a text for messages."""
    return ", ".join(map(repr, labels[:8])) + (", ..." if len(labels) > 8 else "")
