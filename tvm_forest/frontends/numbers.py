"""Many numbers at once: lists of them as arrays.

takes: JSON texts, or lists of numbers; gives: arrays, or None where anything else is among them.

A model has millions of numbers, and to look at each of them in Python takes longer than all else
that is done with them. So nothing here is lenient: whoever gets None reads them with care, one by
one, and says what is wrong.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from ..forest import Array

_RECORDS: dict[type, tuple[int, np.dtype[Any]]] = {
    kind: (ord(tag), np.dtype([("tag", "u1"), ("value", dtype)]))
    for kind, tag, dtype in ((int, "i", "<i4"), (float, "g", "<f8"))
}
"""What version 2 of `marshal` writes for numbers in a list: a letter, and the number."""
_LIST_BYTES, _VERSION = 5, 2

_SURELY_FLOAT = 2.0**63
"""What orjson reads as a float from there on may be an integer of too many digits."""


def to_array(elements: list[Any], kind: type) -> Array | None:
    """Return a list as an array if all its elements are floats, or integers of 32 bits.

    The bytes that `marshal` makes of a list tell the type of each element as well as its value, so
    that neither costs a look at each object.

    Args:
        elements: any objects.
        kind: float, for float64, or int, for int32; no bool is one.
    """
    tag, record = _RECORDS[kind]
    try:
        data = marshal.dumps(elements, _VERSION)
    except ValueError:
        return None
    if len(data) != _LIST_BYTES + record.itemsize * len(elements):
        return None
    records = np.frombuffer(data, record, len(elements), _LIST_BYTES)
    return records["value"] if np.all(records["tag"] == tag) else None


def parse_lists(texts: Sequence[bytes], kind: type) -> tuple[Array, Array] | None:
    """Read the numbers of some texts, each separated by commas, and how many each has.

    Returns:
        what `to_array` does of all of them, one text after the other, and the size of each text;
        None unless every text is JSON between brackets, and every number as `json` would read it.
    """
    joined = b",".join(filter(None, texts))
    try:
        values = to_array(orjson.loads(b"[%s]" % joined), kind)
    except orjson.JSONDecodeError:
        return None
    sizes = np.array([text.count(b",") + 1 if text else 0 for text in texts], np.int64)
    if values is None or len(values) != sizes.sum():
        return None
    if kind is float and np.abs(values).max(initial=0.0) >= _SURELY_FLOAT:
        return None
    return values, sizes
