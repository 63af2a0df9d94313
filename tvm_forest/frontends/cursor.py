"""A bounds-checked position in the bytes of a binary format.

takes: bytes; gives: numbers and arrays, or a refusal that names the part that was cut off.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ..forest import Array
from .refusals import TRUNCATED, damaged


class Cursor:
    """A position in the bytes of a model.

    Methods raise ModelFormatError if the bytes end too early; `field` names what they read.

    Attributes:
        data: all bytes.
        at: index of the byte that is read next.
        part: prefix of the names of fields in error messages, such as "tree 3, ".
    """

    def __init__(self, data: bytes, at: int = 0, part: str = "") -> None:
        self.data, self.at, self.part = data, at, part

    def read_array(self, dtype: Any, count: int, field: str = "") -> Array:
        """Return a view of the next `count` numbers, after a check that they are there."""
        dtype = np.dtype(dtype)
        size = count * dtype.itemsize
        if size > len(self.data) - self.at:
            what = f"needs {size} bytes at byte {self.at}, the file ends at {len(self.data)}"
            raise damaged(self.part + field, what, TRUNCATED)
        self.at += size
        return np.frombuffer(self.data, dtype, count, self.at - size)

    def read_numbers(self, form: str, field: str = "") -> tuple[Any, ...]:
        """Return the next numbers, given in a format of the module `struct`, such as "<iii"."""
        return struct.unpack(form, self.read_array("u1", struct.calcsize(form), field).tobytes())

    def read_number(self, form: str, field: str = "") -> Any:
        """Return the next number, given in a format of the module `struct`, such as "<i"."""
        return self.read_numbers(form, field)[0]

    def read_text(self, field: str = "") -> bytes:
        """Return the bytes of a text, which are preceded by their number in 8 bytes."""
        return self.read_array("u1", self.read_number("<Q", field), field).tobytes()
