"""Parses many numbers at once into arrays.

takes: JSON texts, or lists of numbers; gives: arrays, or None if anything else is among them.

A model has millions of numbers, and a look at each of them in Python takes longer than everything
else that is done with them. These functions are strict: if they return None, the caller reads the
numbers one by one, and says what is wrong.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

import numpy as np

from ..forest import Array
from ..system.late import import_late

if TYPE_CHECKING:
    import orjson
else:
    orjson = import_late("orjson")  # needed for texts only

_RECORDS: dict[type, tuple[int, np.dtype[Any]]] = {
    kind: (ord(tag), np.dtype([("tag", "u1"), ("value", dtype)]))
    for kind, tag, dtype in ((int, "i", "<i4"), (float, "g", "<f8"))
}
"""By type, the letter and the record that version 2 of `marshal` writes for a number in a list.

An integer must have at most 32 bits.
"""
_LIST_BYTES, _VERSION = 5, 2

_SURELY_FLOAT = 2.0**63
"""Floats from here on may be integers with too many digits, which orjson reads as floats."""


def to_array(elements: list[Any], kind: type, *others: type) -> Array | None:
    """Return a list as an array; None if an element has another type, or does not fit.

    `marshal` writes the type and the value of each element, so the bytes of the whole list can be
    checked and converted at once. Bools are not ints.

    Args:
        elements: any objects.
        kind: float for an array of float64, or int for one of int64.
        others: further types that are allowed.
    """
    tag, record = _RECORDS[kind]
    dtype = np.float64 if kind is float else np.int64
    try:
        data = marshal.dumps(elements, _VERSION)
        if len(data) == _LIST_BYTES + record.itemsize * len(elements):
            records = np.frombuffer(data, record, len(elements), _LIST_BYTES)
            if np.all(records["tag"] == tag):
                return records["value"].astype(dtype)
        fits = set(map(type, elements)) <= {kind, *others}
        return np.array(elements, dtype) if fits else None
    except (OverflowError, ValueError):  # an integer of too many bits, an object of another kind
        return None


def parse_numbers(text: bytes, count: int, kind: type, *others: type) -> Array | None:
    """Parse comma-separated numbers.

    Returns:
        what `to_array` makes of them; None unless the text, put in brackets, is a JSON list of
        `count` numbers that `json` would read alike.
    """
    try:
        values = to_array(orjson.loads(b"[%s]" % text), kind, *others)
    except orjson.JSONDecodeError:
        return None
    if values is None or len(values) != count:
        return None
    if kind is float and np.abs(values).max(initial=0.0) >= _SURELY_FLOAT:
        return None
    return values
