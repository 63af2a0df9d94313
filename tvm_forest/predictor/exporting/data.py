"""The data of an exported library, which it holds as they are in memory.

takes: arrays, code; gives: bytes, and where in them each begins.
"""

from __future__ import annotations

import numpy as np

from ...forest import Array

ALIGNMENT = 64
"""Bytes of a cache line, on which each array begins."""


class Data:
    """Arrays and code, one after the other.

    Attributes:
        arrays: those of the model, by their numbers; those that are equal have one number.
        places: where they begin.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.arrays, self.places = list[Array](), list[int]()
        self._bytes, self._numbers = bytearray(), dict[tuple[str, bytes], int]()

    def number(self, array: Array) -> int:
        """Return the number of an array of the model, which is appended if it is not there."""
        content = np.ascontiguousarray(array).tobytes()
        number = self._numbers.setdefault((array.dtype.str, content), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
            self.places.append(self.place(content))
        return number

    def place(self, data: bytes) -> int:
        """Append bytes; return where they begin."""
        self._bytes += bytes(-len(self._bytes) % ALIGNMENT)
        place = len(self._bytes)
        self._bytes += data
        return place

    @property
    def size(self) -> int:
        """Bytes of `to_bytes`."""
        return len(self._bytes) + ALIGNMENT

    def to_bytes(self) -> bytes:
        """Return all bytes, and an empty cache line behind them."""
        return bytes(self._bytes + bytes(ALIGNMENT))
