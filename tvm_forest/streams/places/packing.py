"""Reads and writes text files that are compressed with gzip or zstd.

takes: open files, suffixes; gives: file objects of the uncompressed text.
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
"""Suffixes of compressed text files."""

_LEVEL = 6  # of gzip: higher levels take twice as long and save one percent


def name_packed(path: PurePath, given: str | None, where: str, option: str) -> tuple[str, str]:
    """Return the name of a file's format, and the suffix of its compression, "" for none.

    Args:
        path, given, where, option: see `name_format`.

    Raises:
        InputError: see `name_format`; or the file is compressed but not text.
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
    """Return a stream of the uncompressed content of a file.

    Args:
        file: the open file.
        packed: suffix of its compression, ".gz" or ".zst".
        where: beginning of messages.

    Raises:
        InputError: ".zst" needs pyarrow, which is not installed.
    """
    if packed == ".gz":
        return io.BufferedReader(Unpacked(gzip.GzipFile(fileobj=file), file))
    arrow = import_arrow(f"{where}: .zst")
    stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(Unpacked(stream, file))


@contextmanager
def pack(file: BinaryIO, packed: str, where: str) -> Iterator[Any]:
    """Yield a file object that compresses into `file`; `file` itself if `packed` is "".

    Raises:
        InputError: see `unpack`.
    """
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
        with suppress(OSError, ValueError):  # the file will be removed
            stream.close()
        raise
    stream.close()


class _Lent:
    """A file object that writes to another one; closing it leaves the other open."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Do nothing, so that the other file object stays open."""


class ReadBy(io.RawIOBase):
    """A stream that takes its bytes from a function, which gets the number of bytes wanted."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return their number."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Unpacked(ReadBy):
    """A stream of the uncompressed content of a file.

    Attributes:
        packed: the compressed file.
    """

    def __init__(self, stream: Any, packed: BinaryIO) -> None:
        super().__init__(stream.read)
        self.packed = packed

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return their number.

        Raises:
            OSError: the file is damaged.
        """
        try:
            return super().readinto(buffer)
        except (EOFError, zlib.error) as error:
            raise OSError(str(error)) from None
