"""A value in the document of a model, with its name for error messages.

takes: what a JSON or UBJSON reader returns; gives: checked numbers, texts and lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..forest import Array
from .refusals import damaged

# XGBoost takes digits alone for an integer of 64 bits, and stops at what belongs to no number.
_NUMBER = re.compile(
    r"\s*([Nn]a[Nn]|-?([0-9]{1,18}|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+))\s*"
)


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
        values = self.value
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
        try:
            if isinstance(self.value, str):
                texts = self.value.strip().strip("[]").split(",")
                if not all(map(_NUMBER.fullmatch, texts)):
                    raise self.wrong("numbers")
                value = np.array(texts, np.float32)
            else:
                value = np.array(self.value, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise self.wrong("numbers") from None
        return value
