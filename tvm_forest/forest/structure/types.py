"""Checks the types of a Forest's fields.

takes: Forest; gives: a sentence about the first field of a wrong type, or None.

Files that others wrote may hold anything, and compiled code does not check types again.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..rules import Aggregate, LabelRule, Link

if TYPE_CHECKING:
    from ..model import Forest

_ARRAYS = {
    **dict.fromkeys(("tree_offset", "feature", "left", "right", "node_id", "tree_class"), ("i", 1)),
    **dict.fromkeys(("tree_id", "tree_round", "tile", "hits", "term_feature"), ("i", 1)),
    **dict.fromkeys(("threshold", "base_score", "cover", "leaf_const", "tree_weight"), ("f", 1)),
    **dict.fromkeys(("leaf_value", "copied_value", "bare_value"), ("f", 2)),
    "default_left": ("b", 1),
    "leaf_terms": ("i", 2),
    "term_coefficient": ("f", 1),
    "labels": ("biufSUO", 1),
}
"""For each field that is an array, the allowed kinds of dtype, and the number of dimensions."""

_WORDS = {
    "aggregate": get_args(Aggregate),
    "link": get_args(Link),
    "label_rule": get_args(LabelRule),
    "row_dtype": ("float32", "float64"),
    "value_dtype": (None, "float32", "float64"),
    "other_dtype": (None, "float32", "float64"),
    "object_dtype": (None, "float32", "float64"),
}


_TYPES: dict[str, Any] = {
    "bool": (bool, np.bool_),
    "int": Integral,
    "float": Real,
    "str": str,
    "int | None": (Integral, type(None)),
    "float | None": (Real, type(None)),
    "tuple[int, ...]": tuple,
}
"""By annotation, the types that a field's value may have; other fields are checked elsewhere."""


def find_array_problem(forest: Forest) -> str | None:
    """Return a sentence about the first array of a wrong kind or shape, or None."""
    for name, (kinds, n_axes) in _ARRAYS.items():
        array = getattr(forest, name)
        if array is None:
            continue
        if not isinstance(array, np.ndarray):
            return f"field '{name}' is a {type(array).__name__}, expected an array"
        dtype = array.dtype
        if dtype.kind not in kinds or array.ndim != n_axes or not dtype.isnative:
            return f"field '{name}' is {dtype} of shape {array.shape}, expected kind {kinds!r}"
        if dtype.kind == "f" and name != "labels" and dtype.itemsize not in (4, 8):
            return f"field '{name}' is {dtype}, expected float32 or float64"
    return None


def find_value_problem(forest: Forest) -> str | None:
    """Return a sentence about the first value that has a wrong type or is an unknown word.

    None if there is no such value.
    """
    for name, words in _WORDS.items():
        if getattr(forest, name) not in words:
            return f"field '{name}' is {getattr(forest, name)!r:.80}, expected one of {words}"
    for entry in fields(forest):
        value, kind = getattr(forest, entry.name), str(entry.type)
        fits = isinstance(value, _TYPES.get(kind, object))
        if kind.startswith("tuple[int, ...]"):
            fits = fits and all(isinstance(x, Integral) for x in value)
        if not fits:
            return f"field '{entry.name}' is {value!r:.80}, expected {kind}"
    return None
