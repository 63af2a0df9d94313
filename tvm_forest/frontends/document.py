"""A value in the document of a model, with its name for error messages.

takes: what a JSON or UBJSON reader returns; gives: checked numbers, texts and lists.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..forest import Array
from .refusals import damaged, unsupported

# XGBoost takes digits alone for an integer of 64 bits, and stops at what belongs to no number.
_NUMBER = re.compile(
    r"\s*([Nn]a[Nn]|-?([0-9]{1,18}|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+))\s*"
)
_SPLITTER = 2.0**28 + 1


def once_rounded(text: str) -> float:
    """Return a double that becomes the float32 which is nearest to the text.

    That is the double of the text, unless this lies in the middle between two float32 and the text
    does not: then it is the next double on the side of the text.
    """
    number = float(text)
    product = number * _SPLITTER
    if product - (product - number) != number and abs(number) > 2.0**-126:
        return number  # it has more than 25 bits, the middle of two normal numbers has 25
    _, exponent = math.frexp(number)
    if math.ldexp(number, min(25 - exponent, 150)) % 2 == 1:
        rest = Fraction(text) - Fraction(number)
        number = math.nextafter(number, math.copysign(math.inf, rest)) if rest else number
    return number


@dataclass(frozen=True)
class Node:
    """A value of the document together with its name, for messages.

    Every method raises ModelFormatError if the value is of another kind.
    """

    value: Any
    where: str
    name: str

    def wrong(self, expected: str) -> Exception:
        """Return the error for a value that is not what was expected."""
        return damaged(self.where, self.name, f"expected {expected}, got {self.value!r:.80}")

    def child(self, name: str) -> Node:
        """Return a member of an object, which must be there."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        if name not in self.value:
            raise damaged(
                self.where, name, f"missing in '{self.name}'", "this is no complete XGBoost model"
            )
        return Node(self.value[name], self.where, name)

    def get(self, name: str, default: Any) -> Node:
        """Return a member of an object, or a default."""
        if isinstance(self.value, dict) and name not in self.value:
            return Node(default, self.where, name)
        return self.child(name)

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self.value, str):
            raise self.wrong("text")
        return self.value

    def integer(self, least: int = 0) -> int:
        """Return an integer, or text that spells one."""
        try:
            number = int(self.value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong("an integer") from None
        if not least <= number < 2**31 or isinstance(self.value, float):
            raise self.wrong(f"an integer of at least {least}")
        return number

    def integers(self) -> list[int]:
        """Return a list of integers of 64 bits."""
        values = self.value.tolist() if isinstance(self.value, np.ndarray) else self.value
        if not isinstance(values, list) or not set(map(type, values)) <= {int}:
            raise self.wrong("a list of integers")
        if values and not -(2**63) <= min(values) <= max(values) < 2**63:
            raise self.wrong("a list of integers of 64 bits")
        return values

    def texts(self) -> list[str]:
        """Return a list of texts."""
        if not isinstance(self.value, list) or not all(isinstance(v, str) for v in self.value):
            raise self.wrong("a list of texts")
        return self.value

    def numbers(self) -> Array:
        """Float32 of a number, or of text with one number or with a vector in brackets."""
        values = self.value
        if isinstance(values, str):
            texts = values.strip().strip("[]").split(",")
            if not all(map(_NUMBER.fullmatch, texts)):
                raise self.wrong("numbers")
            values = list(map(once_rounded, texts))
        if isinstance(values, list) and not set(map(type, values)) <= {float}:
            raise self.wrong("numbers with a point or an exponent")
        try:
            with np.errstate(over="ignore"):
                return np.array(values, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise self.wrong("numbers") from None

    def knows(self, *names: str) -> None:
        """Refuse an object with members of other names, which may change predictions."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        unknown = next((name for name in self.value if name not in names), None)
        if unknown is not None:
            what = f"'{self.name}' has this field of a later version of XGBoost"
            raise unsupported(self.where, unknown, what, "update tvm_forest; else it is damaged")
