"""The data of an exported library, which it holds as they are in memory.

takes: arrays, code; gives: bytes, and where in them each begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array

ALIGNMENT = 64


class Data:
    """Arrays one after the other, each on a cache line of its own.

    Attributes:
        arrays: those of the model, by their numbers.
        places: where they begin.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.arrays, self.places = list[Array](), list[int]()
        self._bytes, self._known = bytearray(), dict[int, int]()

    def number(self, tensor: Any, array: Array) -> int:
        """Return the number of an array of the model; functions share tensors."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = len(self.arrays)
            self.arrays.append(array)
            self.places.append(self.place(np.ascontiguousarray(array).tobytes()))
        return self._known[id(tensor)]

    def place(self, data: bytes) -> int:
        """Append bytes; return where they begin."""
        self._bytes += bytes(-len(self._bytes) % ALIGNMENT)
        place = len(self._bytes)
        self._bytes += data
        return place

    def to_bytes(self) -> bytes:
        """Return all of it."""
        return bytes(self._bytes + bytes(ALIGNMENT))
