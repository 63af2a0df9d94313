"""Collects the arrays and GPU code of an exported library in one block of bytes.

takes: arrays, code; gives: bytes, and the offset of each array in them.
"""

from __future__ import annotations

import numpy as np

from ...forest import Array

ALIGNMENT = 64
"""Bytes of a cache line; each array begins at a multiple of it."""


class Data:
    """A block of bytes with arrays and code, one after the other.

    Attributes:
        arrays: arrays of the model, by number; equal arrays are stored once.
        places: offset of each array in the block.
    """

    def __init__(self) -> None:
        """Make an empty block."""
        self.arrays, self.places = list[Array](), list[int]()
        self._bytes, self._numbers = bytearray(), dict[tuple[str, bytes], int]()

    def number(self, array: Array) -> int:
        """Return the number of an array, which is appended unless an equal one is there."""
        content = np.ascontiguousarray(array).tobytes()
        number = self._numbers.setdefault((array.dtype.str, content), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
            self.places.append(self.place(content))
        return number

    def place(self, data: bytes) -> int:
        """Append bytes, aligned to a cache line, and return their offset."""
        self._bytes += bytes(-len(self._bytes) % ALIGNMENT)
        place = len(self._bytes)
        self._bytes += data
        return place

    @property
    def size(self) -> int:
        """Length of the result of `to_bytes`."""
        return len(self._bytes) + ALIGNMENT

    def to_bytes(self) -> bytes:
        """Return the block, with a cache line of zeros at its end."""
        return bytes(self._bytes + bytes(ALIGNMENT))
