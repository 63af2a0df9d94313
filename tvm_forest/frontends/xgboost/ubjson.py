"""Reads Universal Binary JSON, the subset that XGBoost reads.

takes: bytes; gives: dicts and lists, as `json.loads` would, but numpy arrays for arrays of one
number type, so that a model of 26,000 trees is read in a second and in little memory.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

MAX_DEPTH = 100
NUMBERS = {
    marker: struct.Struct(">" + code) for marker, code in zip(b"CiUIlLdD", "bbBhiqfd", strict=True)
}
DTYPES = {marker: np.dtype(number.format) for marker, number in NUMBERS.items()}
_LONG = struct.Struct(">q")
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}


def loads(data: bytes) -> Any:
    """Read one UBJSON value.

    Arrays of one number type become views of `data`, in its byte order.

    Raises:
        ValueError: the document is truncated or damaged; the message names the byte.
    """
    reader = _DocumentReader(data)
    try:
        value = reader.read_value(0)
    except (struct.error, IndexError):
        raise ValueError(f"ends within a value at byte {len(data)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"text before byte {reader.at} is not UTF-8") from None
    if reader.at < len(data):
        raise ValueError(f"{len(data) - reader.at} bytes too many from byte {reader.at}")
    return value


class _DocumentReader:
    """A reader at a position in a UBJSON document; each method returns what begins there.

    The position is then behind it. If the document is damaged, methods raise ValueError, or, where
    it ends too early, struct.error or IndexError.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def read_value(self, depth: int) -> Any:
        """Read a value; `depth` is the number of arrays and objects around it."""
        marker = self.data[self.at]
        self.at += 1
        number = NUMBERS.get(marker)
        if number is not None:
            self.at += number.size
            return number.unpack_from(self.data, self.at - number.size)[0]
        if marker == ord("S"):
            return self.read_text()
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep at byte {self.at}")
        if marker == ord("["):
            return self.read_array(depth + 1)
        if marker == ord("{"):
            return self.read_object(depth + 1)
        raise ValueError(f"unknown type marker {bytes([marker])!r} at byte {self.at - 1}")

    def read_length(self, marker: bytes = b"L") -> int:
        """Read a length, which follows the given marker."""
        begin = self.at + len(marker)
        (length,) = _LONG.unpack_from(self.data, begin)
        if not self.data.startswith(marker, self.at):
            raise ValueError(f"no length at byte {self.at}")
        self.at = begin + _LONG.size
        if not 0 <= length <= len(self.data) - self.at:
            raise ValueError(f"ends before the {length} entries announced at byte {self.at}")
        return length

    def read_text(self) -> str:
        """Read a string, which is preceded by its length."""
        length = self.read_length()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def read_array(self, depth: int) -> Any:
        """Read an array: one with type and length, one with a length, or one with an end mark."""
        marker = self.data[self.at]
        if marker == ord("$"):
            dtype = DTYPES.get(self.data[self.at + 1])
            if dtype is None:
                raise ValueError(f"array of no known type at byte {self.at}")
            self.at += 2
            count = self.read_length(b"#L")
            begin, self.at = self.at, self.at + dtype.itemsize * count
            if self.at > len(self.data):
                raise ValueError(f"ends within the {count} numbers that begin at byte {begin}")
            return np.frombuffer(self.data, dtype, count, begin)
        if marker == ord("#"):
            return [self.read_value(depth) for _ in range(self.read_length(b"#L"))]
        values = []
        while self.data[self.at] != ord("]"):
            values.append(self.read_value(depth))
        self.at += 1
        return values

    def read_object(self, depth: int) -> dict[str, Any]:
        """Read an object; if two members have one name, the first counts, as in XGBoost."""
        members: dict[str, Any] = {}
        while self.data[self.at] != ord("}"):
            key = self.read_text()
            members.setdefault(key, self.read_value(depth))
        self.at += 1
        return members
