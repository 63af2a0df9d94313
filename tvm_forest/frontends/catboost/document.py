"""Parses CatBoost's JSON format, with checks.

takes: bytes of a model file; gives: the parts of its document, or a refusal that names the field.

The numbers have enough digits to be read back exactly: borders as float32, leaf values as float64.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...forest import Array
from ..refusals import TRUNCATED, damaged

Document = dict[str, Any]


def parse(data: bytes) -> Document:
    """Return the document of a model file.

    Raises:
        ModelFormatError: the bytes are truncated or not JSON.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damaged("document", f"no valid JSON ({error})", TRUNCATED) from None
    if not isinstance(document, dict):
        raise damaged("document", f"expected an object, got {document!r:.40}", TRUNCATED)
    return document


def take(holder: Any, name: str, kind: type, *default: Any) -> Any:
    """Return a member of an object, after a check of its type.

    Args:
        holder: the object.
        name: of the member.
        kind: the expected type.
        default: returned if the member is missing or null; without one, that is an error.

    Raises:
        ModelFormatError: the member is missing, or of another type.
    """
    if not isinstance(holder, dict):
        raise damaged(name, f"expected an object that holds it, got {holder!r:.80}")
    if name not in holder and not default:
        raise damaged(name, "missing", TRUNCATED)
    value = holder.get(name)
    if value is None and default:
        return default[0]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise damaged(name, f"expected {_KINDS[kind]}, got {value!r:.80}")
    return value


def take_written(holder: Any, name: str) -> Document:
    """Return a member that is an object, or JSON text of one, as in older files.

    A missing member is an empty object.
    """
    value = take(holder, name, object, {})
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise damaged(name, f"no valid JSON ({error})") from None
    found: Document = take({name: value}, name, dict)
    return found


def take_index(holder: Any, name: str, end: int = 2**31) -> int:
    """Return an integer member from 0 to `end - 1`."""
    value: int = take(holder, name, int)
    if not 0 <= value < end:
        raise damaged(name, f"expected a number from 0 to {end - 1}, got {value}")
    return value


def take_number(holder: Any, name: str) -> float:
    """Return a member of an object that is a finite number."""
    return float(as_numbers([take(holder, name, object)], name)[0])


def as_numbers(values: Any, name: str) -> Array:
    """Return a list of finite numbers as float64."""
    if not isinstance(values, list) or not set(map(type, values)) <= {int, float}:
        raise damaged(name, f"expected a list of numbers, got {values!r:.80}")
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        numbers = np.array([np.inf])
    if not np.isfinite(numbers).all():
        raise damaged(name, f"expected finite numbers, got {values!r:.80}")
    return numbers


_KINDS = {dict: "an object", list: "a list", int: "an integer", str: "text", object: "a value"}
