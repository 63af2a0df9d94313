"""Checks the values in the document of an XGBoost model, and rounds its numbers as XGBoost does.

takes: the document that a JSON or UBJSON reader returns; gives: checked numbers, texts and lists.

Refused are values of another type than XGBoost writes, missing members, and unknown ones.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from ..refusals import damaged, unsupported

# XGBoost reads digits alone as a 64-bit integer, and stops at a character of no number.
_NUMBER = re.compile(
    r"\s*([Nn]a[Nn]|-?([0-9]{1,18}|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+))\s*"
)
_SPLITTER = 2.0**28 + 1
_BELOW_FLOATS, _MIDDLE = 2**29 - 1, 2**28  # bits of a double that a float32 lacks; the first alone
_LEAST_NORMAL = 2.0**-126


def once_rounded(text: str) -> float:
    """Return a double that rounds to the float32 nearest to the number in the text.

    This is the double nearest to the text, unless that is halfway between two float32 while the
    text is not; then it is the next double on the side of the text. An example is
    1.000000059604644775390625001, a little more than halfway between 1 and the next float32, which
    must not become 1.
    """
    number = float(text)
    product = number * _SPLITTER
    if product - (product - number) != number and abs(number) > _LEAST_NORMAL:
        return number  # it has more than 25 bits; halfway between two float32 are 25 bits
    _, exponent = math.frexp(number)
    if math.ldexp(number, min(25 - exponent, 150)) % 2 == 1:
        from fractions import Fraction  # takes as long to import as all of this room

        rest = Fraction(text) - Fraction(number)
        number = math.nextafter(number, math.copysign(math.inf, rest)) if rest else number
    return number


def lie_between(document: Any) -> bool:
    """Return whether a document has a number that `once_rounded` might have read differently.

    Such a number is halfway between two float32, or very small. These are rare, so a document is
    first read without `once_rounded`, which takes a third of the time.
    """
    numbers, rest = list[Any](), [document]
    while rest:
        value = rest.pop()
        if type(value) is dict:
            rest.extend(value.values())
        elif type(value) is list and value:
            if type(value[0]) is float:
                numbers += value
            elif type(value[0]) is not int:
                rest.extend(value)
        elif type(value) is float:
            numbers.append(value)
    try:
        return may_lie_between(np.array(numbers, np.float64))
    except (TypeError, ValueError):  # a list of numbers and others, which is refused later
        return True


def may_lie_between(numbers: Array) -> bool:
    """Return the same as `lie_between` for an array of float64."""
    bits = np.ascontiguousarray(numbers).view(np.uint64) & np.uint64(_BELOW_FLOATS)
    small = (np.abs(numbers) < _LEAST_NORMAL) & (numbers != 0)
    return bool(np.any((bits == _MIDDLE) | small))


@dataclass(frozen=True)
class Field:
    """A value of the document together with its name, for messages.

    Every method but `error` raises ModelFormatError if the value has another type, and
    `refuse_others` raises UnsupportedModel.
    """

    value: Any
    name: str

    def error(self, expected: str) -> Exception:
        """Return the error for a value that is not what was expected."""
        return damaged(self.name, f"expected {expected}, got {self.value!r:.80}")

    def member(self, name: str, *default: Any) -> Field:
        """Return a member of an object, which must be there unless a default is given."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if name not in self.value and not default:
            what = f"missing in '{self.name}'"
            raise damaged(name, what, "this is no complete XGBoost model")
        return Field(self.value.get(name, *default), name)

    def as_text(self) -> str:
        """Return the value, a text."""
        if not isinstance(self.value, str):
            raise self.error("text")
        return self.value

    def as_integer(self, least: int = 0) -> int:
        """Return the value as an integer from `least` on; it may be a text that spells one."""
        try:
            number = int(self.value)
        except (TypeError, ValueError, OverflowError):
            raise self.error("an integer") from None
        if not least <= number < 2**31 or isinstance(self.value, float):
            raise self.error(f"an integer of at least {least}")
        return number

    def as_integers(self) -> list[int]:
        """Return the value as a list of 64-bit integers."""
        values = self.value.tolist() if isinstance(self.value, np.ndarray) else self.value
        if not isinstance(values, list) or not set(map(type, values)) <= {int}:
            raise self.error("a list of integers")
        if values and not -(2**63) <= min(values) <= max(values) < 2**63:
            raise self.error("a list of integers of 64 bits")
        return values

    def as_bounds(self, size: int, parts: str) -> list[int]:
        """Return the value: ascending bounds from 0 to `size` that divide one list into several.

        `parts` names the elements of the list in messages.
        """
        bounds = self.as_integers() or [0]
        if bounds[0] != 0 or bounds[-1] != size or np.any(np.diff(bounds) < 0):
            raise self.error(f"bounds of {size} {parts}")
        return bounds

    def as_texts(self) -> list[str]:
        """Return the value, a list of texts."""
        if not isinstance(self.value, list) or not all(isinstance(v, str) for v in self.value):
            raise self.error("a list of texts")
        return self.value

    def as_numbers(self) -> Array:
        """Return float32 numbers (n,): of a list, a number, or a text such as "0.5" or "[1, 2]"."""
        values = self.value
        if isinstance(values, str):
            texts = values.strip().strip("[]").split(",")
            if not all(map(_NUMBER.fullmatch, texts)):
                raise self.error("numbers")
            values = list(map(once_rounded, texts))
        if isinstance(values, list) and not set(map(type, values)) <= {float}:
            raise self.error("numbers with a point or an exponent")
        try:
            with np.errstate(over="ignore"):
                return np.array(values, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise self.error("numbers") from None

    def refuse_others(self, *known: str) -> None:
        """Refuse an object with members that are not in `known`: they might change predictions."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        unknown = next((name for name in self.value if name not in known), None)
        if unknown is not None:
            what = f"'{self.name}' has this field of a later version of XGBoost"
            raise unsupported(unknown, what, "update tvm_forest; else it is damaged")
