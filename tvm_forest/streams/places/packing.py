"""Text that is compressed, by gzip or zstd.

takes: open files, suffixes; gives: what reads and writes the text itself.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any, BinaryIO

from ...errors import InputError
from ..batches import import_arrow
from ..formats import TEXTS, name_format

PACKED = (".gz", ".zst")
"""Suffixes of text that is compressed."""

_LEVEL = 6  # of gzip: the next ones take twice as long for a hundredth less


def name_packed(path: PurePath, given: str | None, where: str, option: str) -> tuple[str, str]:
    """Return the name of the format of a file, and how it is compressed: a suffix, or nothing.

    Args:
        path, given, where, option: see `name_format`.

    Raises:
        InputError: see `name_format`; or it is compressed, and no text.
    """
    packed = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    kind = name_format(path.with_suffix("") if packed else path, given, where, option)
    if packed and kind not in TEXTS:
        raise InputError(
            f"{where}: only text may be compressed as '{packed}', and {kind} is none; unpack the "
            f"file, or leave '{packed}' out"
        )
    return kind, packed


def unpack(file: Any, packed: str, where: str) -> io.BufferedReader:
    """Return what a compressed file holds."""
    if packed == ".gz":
        return io.BufferedReader(Unpacked(gzip.GzipFile(fileobj=file), file))
    arrow = import_arrow(f"{where}: .zst")
    stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(Unpacked(stream, file))


@contextmanager
def pack(file: BinaryIO, packed: str, where: str) -> Iterator[Any]:
    """Yield what writes into a file, compressed if a suffix says so, until the block ends."""
    if not packed:
        yield file
        return
    if packed == ".gz":  # without a name or a time, so that equal texts are equal files
        stream: Any = gzip.GzipFile("", "wb", _LEVEL, file, 0)
    else:
        arrow = import_arrow(f"{where}: .zst")
        stream = arrow.CompressedOutputStream(arrow.PythonFile(_Lent(file), mode="w"), "zstd")
    try:
        yield stream
    except BaseException:
        with suppress(OSError, ValueError):  # nothing is left of the file
            stream.close()
        raise
    stream.close()


class _Lent:
    """A file that whoever closes this leaves open."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Leave it open."""


class ReadBy(io.RawIOBase):
    """A stream of what a function reads: at most as many bytes as requested."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what comes next."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Unpacked(ReadBy):
    """What a compressed file holds.

    Attributes:
        packed: the file.
    """

    def __init__(self, stream: Any, packed: BinaryIO) -> None:
        super().__init__(stream.read)
        self.packed = packed

    def readinto(self, buffer: Any) -> int:
        """Read what comes next.

        Raises:
            OSError: the file is damaged.
        """
        try:
            return super().readinto(buffer)
        except (EOFError, zlib.error) as error:
            raise OSError(str(error)) from None
