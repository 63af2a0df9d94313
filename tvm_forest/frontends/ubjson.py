"""A reader of Universal Binary JSON that steps over the big arrays of a model.

takes: bytes; gives: dicts and lists, as `json.loads` would.

treelite reads the trees; this reader is for the header around them. Arrays under the keys in `skip`
are not built, so that a model of 26,000 trees is read in a second and in little memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat
from typing import Any

MAX_DEPTH = 100
_NUMBERS = {
    marker: struct.Struct(">" + code) for marker, code in zip(b"iUIlLdD", "bBhiqfd", strict=True)
}
_LENGTHS = {marker: _NUMBERS[marker] for marker in b"iUIlL"}
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_NOTHING = ord("N")


def loads(data: bytes, skip: frozenset[str] = frozenset()) -> Any:
    """Read one UBJSON value.

    Args:
        data: the whole document.
        skip: keys whose typed arrays become None instead of lists.

    Raises:
        ValueError: the document is cut off or damaged; the message says at which byte.
    """
    reader = _Reader(data, skip)
    try:
        value = reader.value(reader.marker(), 0)
    except (struct.error, IndexError):
        raise ValueError(f"ends within a value at byte {len(data)}") from None
    except UnicodeDecodeError:
        raise ValueError(f"text before byte {reader.at} is not UTF-8") from None
    if data[reader.at :].strip(b"N"):
        raise ValueError(f"{len(data) - reader.at} bytes too many from byte {reader.at}")
    return value


def places(data: bytes, key: str) -> list[tuple[int, int]]:
    """Return where the values of a key begin and end in a document that `loads` can read."""
    reader = _Reader(data, frozenset(), key)
    reader.value(reader.marker(), 0)
    return reader.places


class _Reader:
    """A position in a document."""

    def __init__(self, data: bytes, skip: frozenset[str], wanted: str | None = None) -> None:
        self.data, self.skip, self.at = data, skip, 0
        self.wanted, self.places = wanted, list[tuple[int, int]]()

    def marker(self) -> int:
        """Step over one type marker."""
        while self.data[self.at] == _NOTHING:
            self.at += 1
        self.at += 1
        return self.data[self.at - 1]

    def value(self, marker: int, depth: int) -> Any:
        """Read the value that follows its marker."""
        number = _NUMBERS.get(marker)
        if number is not None:
            self.at += number.size
            return number.unpack_from(self.data, self.at - number.size)[0]
        if marker == ord("S"):
            return self.text()
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep at byte {self.at}")
        if marker == ord("["):
            return self.array(depth)
        if marker == ord("{"):
            return self.object(depth)
        if marker in b"CH":
            return self.text() if marker == ord("H") else chr(self.value(ord("U"), depth))
        raise ValueError(f"unknown type marker {bytes([marker])!r} at byte {self.at - 1}")

    def length(self) -> int:
        """Read a length, which is an integer with its own marker."""
        integer = _LENGTHS.get(self.data[self.at])
        if integer is None:
            raise ValueError(f"no length at byte {self.at}")
        length: int = integer.unpack_from(self.data, self.at + 1)[0]
        self.at += 1 + integer.size
        if length < 0 or length > len(self.data) - self.at:
            raise ValueError(f"ends before the {length} entries announced at byte {self.at}")
        return length

    def text(self) -> str:
        """Read a string."""
        length = self.length()
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def sizes(self) -> tuple[int | None, int | None]:
        """Read the optional common type and count of a container."""
        kind = count = None
        if self.data[self.at] == ord("$"):
            kind = self.data[self.at + 1]
            self.at += 2
        if self.data[self.at] == ord("#"):
            self.at += 1
            count = self.length()
        if kind is not None and count is None:
            raise ValueError(f"typed container without a count at byte {self.at}")
        return kind, count

    def array(self, depth: int, skipped: bool = False) -> list[Any] | None:
        """Read an array; one of numbers is stepped over if `skipped`."""
        kind, count = self.sizes()
        if kind in _NUMBERS and count is not None:
            return self.numbers(_NUMBERS[kind], count, skipped)
        values: list[Any] = []
        for _ in self.entries(kind, count, ord("]")):
            marker = self.marker() if kind is None else kind
            values.append(self.value(marker, depth + 1))
        return values

    def numbers(self, number: struct.Struct, count: int, skipped: bool) -> list[Any] | None:
        """Read or step over `count` numbers of one type."""
        begin, self.at = self.at, self.at + number.size * count
        if self.at > len(self.data):
            raise ValueError(f"ends within the {count} numbers that begin at byte {begin}")
        if skipped:
            return None
        return [value for (value,) in number.iter_unpack(self.data[begin : self.at])]

    def object(self, depth: int) -> dict[str, Any]:
        """Read an object; the arrays under the keys of `skip` become None."""
        kind, count = self.sizes()
        found: dict[str, Any] = {}
        for _ in self.entries(kind, count, ord("}")):
            key = self.text()
            begin = self.at
            marker = self.marker() if kind is None else kind
            if marker == ord("[") and key in self.skip:
                found[key] = self.array(depth + 1, skipped=True)
            else:
                found[key] = self.value(marker, depth + 1)
            if key == self.wanted:
                self.places.append((begin, self.at))
        return found

    def entries(self, kind: int | None, count: int | None, end: int) -> Iterator[None]:
        """Yield before each entry of a container, up to its count or its end marker."""
        if kind in _CONSTANTS or kind == _NOTHING:
            raise ValueError(f"container of constants at byte {self.at}")
        if count is not None:
            yield from repeat(None, count)
            return
        while self.data[self.at] != end:
            if self.data[self.at] == _NOTHING:
                self.at += 1
            else:
                yield
        self.at += 1
