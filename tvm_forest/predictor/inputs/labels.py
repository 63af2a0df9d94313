"""Converts the labels of categories in a frame's column to the codes that a model uses.

takes: columns of any library as `FrameColumn`; gives: (R,) numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.unseen import list_tested
from .checks import NUMBERS, refusal
from .values import list_some

_NUMBERS = (bool, int, float, np.number, np.bool_)


class FrameColumn(NamedTuple):
    """A column of a frame.

    Attributes:
        values: (R,) numbers, or indices into `labels`; a missing value has the index -1, or any
            number where `missing` is true.
        missing: bool (R,), true where a value is null, and in a column of Python objects also where
            it is NaN; may be None if no value is.
        labels: the labels of a column of categories or texts, whether or not a row has them; a
            label None stands for a missing value. None in a column of numbers.
        is_text: whether the column has a string type, not its library's type for categories.
        objects: the original values of a column that mixes bools with other numbers, in which True
            is 1 as a number but not as a label; empty otherwise.
    """

    values: Array
    missing: Array | None = None
    labels: Sequence[Any] | None = None
    is_text: bool = False
    objects: Sequence[Any] = ()


def read_values(values: list[Any], are_labels: bool = False) -> FrameColumn:
    """Return a column of Python objects, in which None and NaN are missing.

    Args:
        values: one for each row.
        are_labels: whether numbers are labels too; texts always are.

    Raises:
        TypeError: a value is neither a number nor a text.
    """
    kinds = {type(value) for value in values if value is not None and value == value}
    is_text = any(issubclass(kind, str) for kind in kinds)
    has_both = len(kinds) > 1 and not kinds.isdisjoint((bool, np.bool_))
    if are_labels or is_text or not kinds:
        keys = {_label_key(x): x for x in values if x is not None and x == x}
        places = {key: place for place, key in enumerate(keys)}
        found = np.array([places.get(_label_key(value), -1) for value in values], np.int64)
        return FrameColumn(found, find_none(values), list(keys.values()), is_text or not kinds)
    gaps = np.array([value is None or value != value for value in values], bool)
    numbers = [0 if gap else x for gap, x in zip(gaps, values, strict=True)]
    are_large = all(isinstance(x, _NUMBERS) for x in numbers) and np.array(numbers).dtype == object
    array = np.array(numbers, np.float64 if are_large else None)
    if array.dtype.kind not in NUMBERS:
        raise TypeError(f"{values[np.argmin(gaps)]!r:.80} is no number")
    return FrameColumn(array, gaps, objects=values if has_both else ())


def find_none(values: Iterable[Any]) -> Array:
    """Return a bool array (R,) that is true where a value is None."""
    return np.array([value is None for value in values], bool)


def code_of_gaps(known: tuple[Any, ...] | None) -> float:
    """Return the code of a null: NaN, or the code of None if the model knows it as a label."""
    return float(known.index(None)) if known is not None and None in known else np.nan


def find_labels(column: FrameColumn, known: tuple[Any, ...] | None, forest: Forest) -> FrameColumn:
    """Return a column of numbers as a column of labels, if the model takes the numbers for labels.

    YDF takes integers and bools for strings. Where the model knows labels, all values of a column
    that mixes bools with numbers are labels, and a column of NaN alone has only missing values.
    Any other column is returned as it is.
    """
    values = column.values
    if column.labels is not None or known is None:
        return column
    if column.objects:
        return read_values([*column.objects], are_labels=True)
    if values.dtype.kind == "f" and np.isnan(values).all():
        return FrameColumn(values, column.missing, (), True)
    if forest.other_label is None or values.dtype.kind not in "iub":
        return column
    labels, places = np.unique(values, return_inverse=True)
    return FrameColumn(places.ravel(), column.missing, labels.tolist())


def is_listed(column: FrameColumn, at: int, forest: Forest) -> bool:
    """Return whether a frame's column takes the next list of labels of `pandas_categories`.

    Those are columns of categories or texts. A column of texts without a value is one only if the
    model has a list for the column with the index `at`.
    """
    if column.labels is None or not forest.pandas_categories:
        return False
    is_empty = column.is_text and not column.labels  # it may be one of texts or of numbers
    return not is_empty or at in dict(forest.listed_categories)


def to_numbers(
    column: FrameColumn, known: tuple[Any, ...] | None, at: int, name: str, forest: Forest
) -> Array:
    """Return a column as numbers, (R,); categories become the indices of their labels in `known`.

    Unlisted labels become NaN or `forest.other_label`. The index -1 becomes NaN, but the caller
    has to replace the numbers of rows for which `column.missing` is true. Without `known`, labels
    that the model takes for numbers are returned as numbers.

    Args:
        column: the column, after `find_labels`.
        known: the model's labels, in the order of their codes; None if it has none.
        at: index of the column in the frame.
        name: its name, for messages.
        forest: the model.

    Raises:
        InputError: labels where the model has numbers or stores no labels, numbers where it has
            labels, texts where none of its labels is a text, or a label that YDF cannot have.
    """
    labels = column.labels
    if labels is None and known is None:
        return column.values
    if labels is None:
        raise refusal(
            f"column '{name}' holds numbers, but the model was trained on categories "
            f"({list_some(known or ())}); make it a column of categories, or give codes as a numpy "
            "array"
        )
    if not labels:
        return np.full(len(column.values), np.nan)
    if column.is_text:
        _check_texts(labels, known, at, name, forest)
    if known is None and forest.labels_are_numbers:
        return _read_numeric_labels(column, name)
    if known is None:
        raise refusal(
            f"column '{name}' holds categories, but the model stores no labels to number them by; "
            "convert it to the numbers that the model was trained on"
        )
    code = {_label_key(label): float(code) for code, label in enumerate(known)}
    other = np.nan
    if forest.other_label is not None:
        other, code = forest.other_label, code | dict.fromkeys([(False, ""), (False, None)], np.nan)
        labels = [_spell_label(label, name) for label in labels]
    # The appended NaN is the code for index -1, a missing value.
    codes = np.array([code.get(_label_key(label), other) for label in labels] + [np.nan])
    return codes[column.values]


def _check_texts(
    labels: Sequence[Any], known: tuple[Any, ...] | None, at: int, name: str, forest: Forest
) -> None:
    """Refuse strings in a column where the model has numbers, or labels of which none is a string.

    Strings that are merely not listed in `known` pass.

    Raises:
        InputError: there are such strings.
    """
    text = next(label for label in labels if isinstance(label, str))
    found = f"column '{name}' holds texts such as {text!r:.80}, and"
    is_number = forest.labels_are_numbers or at not in list_tested(forest)
    if (known is None and is_number) or (forest.pandas_categories and _is_compared(forest, at)):
        raise refusal(f"{found} the model has numbers there; convert it to numbers first")
    if known is not None and not any(isinstance(label, str) for label in known):
        raise refusal(
            f"{found} the categories of the model are {list_some(known)}; convert it to such"
        )


def _is_compared(forest: Forest, at: int) -> bool:
    """Return whether a test of the model compares this column with a threshold."""
    compares = ~forest.is_leaf
    compares[list(forest.categories)] = False
    return bool(np.any(forest.feature[compares] == at))


def _read_numeric_labels(column: FrameColumn, name: str) -> Array:
    """Return the label of each row as a number, NaN where it is missing; refuse other labels."""
    labels = column.labels or ()
    for label in labels:
        is_number = isinstance(label, (*_NUMBERS, type(None)))
        if not is_number or (label is not None and label == label and float(label) != label):
            raise refusal(
                f"column '{name}' has the category {label!r:.80}, and the model has numbers there; "
                "convert it"
            )
    numbers = [np.nan if label is None else float(label) for label in labels] + [np.nan]
    return np.array(numbers)[column.values]


def _spell_label(label: Any, name: str) -> str | None:
    """Return a label as the string by which YDF knows it; None stays None.

    Raises:
        InputError: it is no bool, integer or string.
    """
    if isinstance(label, bool | np.bool_):
        return "true" if label else "false"
    if isinstance(label, int | np.integer):
        return str(int(label))
    if not isinstance(label, str | None):
        raise refusal(
            f"column '{name}' has the category {label!r:.80}, and those of the model are texts; "
            "convert it, e.g. with str"
        )
    return label


def _label_key(label: Any) -> tuple[bool, Any]:
    """Return a dictionary key for a label; unlike the labels themselves, True and 1 differ."""
    return isinstance(label, bool | np.bool_), label
