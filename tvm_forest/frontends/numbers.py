"""Parses many numbers at once into arrays.

takes: JSON texts, or lists of numbers; gives: arrays, or None where anything else is among them.

A model has millions of numbers, and to look at each of them in Python takes longer than all else
that is done with them. Nothing here is lenient: whoever gets None reads them with care, one by one,
and says what is wrong.
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
    orjson = import_late("orjson")  # which texts alone need

_RECORDS: dict[type, tuple[int, np.dtype[Any]]] = {
    kind: (ord(tag), np.dtype([("tag", "u1"), ("value", dtype)]))
    for kind, tag, dtype in ((int, "i", "<i4"), (float, "g", "<f8"))
}
"""What version 2 of `marshal` writes for a number in a list, if an integer has up to 32 bits: a
letter, and the number."""
_LIST_BYTES, _VERSION = 5, 2

_SURELY_FLOAT = 2.0**63
"""What orjson reads as a float from there on may be an integer of too many digits."""


def to_array(elements: list[Any], kind: type, *others: type) -> Array | None:
    """Convert a list to an array if all elements have allowed types; bools are not ints.

    The bytes that `marshal` makes of a list tell the type of each element as well as its value, so
    that neither costs a look at each object.

    Args:
        elements: any objects.
        kind: float, for float64, or int, for int64.
        others: further kinds that are allowed.
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
        what `to_array` makes of them; None unless the text is JSON between brackets, and each of so
        many numbers is as `json` would read it.
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
