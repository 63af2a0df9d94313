"""Converts a Forest to values for JSON and arrays, and back.

takes: Forest; gives: its fields, and back.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ..errors import ModelFormatError, UnsupportedModel
from .encoder import Encoder
from .model import ROLES, Forest
from .rules import Array, CategoryRule

_BY_NUMBER = [entry.name for entry in fields(Forest) if entry.default_factory is dict]
"""Fields that are dicts with integer keys; JSON stores them as lists of pairs."""

_OF_ENCODER = "encoder_"
"""Prefix of the names of an encoder's arrays."""
_SPOKEN = ("width", "names")
"""Fields of an encoder that go into JSON; the others are arrays."""

_STORABLE = (str, bool, int, float, type(None))


def to_fields(forest: Forest) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the fields of a forest by name: those that JSON can store, and those that are arrays.

    `with_all_rounds` is left out.

    Raises:
        UnsupportedModel: the labels are Python objects that JSON cannot store.
    """
    values = {name: getattr(forest, name) for name in ROLES if name != "with_all_rounds"}
    if forest.labels is not None and forest.labels.dtype == object:
        values["labels"] = _list_labels(forest.labels)
    arrays = {k: values.pop(k) for k, v in list(values.items()) if isinstance(v, np.ndarray)}
    values |= {name: list(values[name].items()) for name in _BY_NUMBER}
    rule, encoder = forest.category_rule, forest.encoder
    if encoder is not None:
        parts = {entry.name: getattr(encoder, entry.name) for entry in fields(encoder)}
        arrays |= {_OF_ENCODER + k: parts.pop(k) for k in list(parts) if k not in _SPOKEN}
        values["encoder"] = parts
    return {**values, "category_rule": None if rule is None else asdict(rule)}, arrays


def from_fields(values: dict[str, Any], arrays: dict[str, Array]) -> Forest:
    """Rebuild a forest from its fields.

    Raises:
        ModelFormatError: a field is unknown, or the fields contradict each other.
        TypeError: a field is missing.
    """
    arrays, values = dict(arrays), dict(values)
    coded = {k: arrays.pop(k) for k in list(arrays) if k.startswith(_OF_ENCODER)}
    if values.get("encoder") is not None:
        names = {name: _to_tuples(value) for name, value in values["encoder"].items()}
        values["encoder"] = _to_encoder(
            {**names, **{k.removeprefix(_OF_ENCODER): v for k, v in coded.items()}}
        )
    arguments = {**{name: _to_tuples(value) for name, value in values.items()}, **arrays}
    unknown = sorted(set(arguments) - set(ROLES) | {"with_all_rounds"} & set(arguments))
    if unknown:
        raise ModelFormatError(
            f"forest: field '{unknown[0]}' is unknown to this version of tvm_forest; update it, or "
            "save the model again"
        )
    for name in _BY_NUMBER:
        arguments[name] = dict(arguments.get(name, ()))
    if values.get("category_rule") is not None:
        arguments["category_rule"] = CategoryRule(**values["category_rule"])
    if isinstance(arguments.get("labels"), tuple):
        labels = np.empty(len(arguments["labels"]), object)
        labels[:] = arguments["labels"]
        arguments["labels"] = labels
    return Forest(**arguments)


def _to_encoder(parts: dict[str, Any]) -> Encoder:
    try:
        return Encoder(**parts)
    except TypeError as error:
        raise ModelFormatError(f"forest: field 'encoder': {error}; save the model again") from None


def _list_labels(labels: Array) -> list[Any]:
    """Return labels that are Python objects as a list that JSON can hold; refuse other labels."""
    listed = [label.item() if isinstance(label, np.generic) else label for label in labels]
    odd = next((label for label in listed if not isinstance(label, _STORABLE)), None)
    if odd is not None:
        raise UnsupportedModel(
            f"save: field 'labels': {odd!r} of type {type(odd).__name__} cannot be stored; train "
            "with labels that are texts or numbers"
        )
    return listed


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
