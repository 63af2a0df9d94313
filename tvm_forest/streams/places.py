"""Where rows come from and predictions go to: files, folders of files, streams.

takes: paths, and what is open in binary; gives: `Files`, of which all is checked that can be before
a row is read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .. import archive
from ..errors import InputError
from .formats import FORMATS, name_format

OUTPUT = "predict: argument '--output'"

Place = str | os.PathLike[str] | BinaryIO
"""A path, or what is open in binary."""


class Part(NamedTuple):
    """One file of rows.

    Attributes:
        place: its path, or the stream.
        format: a name of `FORMATS`.
        where: begins messages.
    """

    place: Path | BinaryIO
    format: str
    where: str


class Files(NamedTuple):
    """All files of a call.

    Attributes:
        parts: the rows, in order.
        target: the file of predictions, the stream, or the folder.
        format: of predictions; None for that of each part.
        is_folder: whether each part gets a file of its own in a folder.
    """

    parts: list[Part]
    target: Path | BinaryIO
    format: str | None
    is_folder: bool

    def name_output(self, part: Part) -> tuple[str, str]:
        """Return the name of the file of a part in the folder, and its format."""
        assert isinstance(part.place, Path)
        if self.format in (None, part.format):
            return part.place.name, part.format
        assert self.format is not None
        return part.place.with_suffix(FORMATS[self.format][0]).name, self.format


def find_files(
    source: Place, target: Place, source_format: str | None, target_format: str | None
) -> Files:
    """Return the files of rows and of predictions.

    Raises:
        InputError: rows that are not there, a format that is unknown, or a place that cannot be
            written to or that holds the rows.
    """
    parts = _list_parts(source, source_format)
    if not isinstance(target, str | os.PathLike):
        if not hasattr(target, "write"):
            raise InputError(f"{OUTPUT}: a {type(target).__name__} is no path and no open file")
        return Files(parts, target, name_format(None, target_format, OUTPUT, _TO), False)
    path = archive.to_path(target, OUTPUT)
    suffixes = [suffix for own in FORMATS.values() for suffix in own]
    folder = Path(source) if isinstance(source, str | os.PathLike) else None
    if folder is None or not folder.is_dir():
        _check_apart(parts, path)
        kind = name_format(path, target_format, OUTPUT, _TO)
        archive.check_place(path, OUTPUT)
        return Files(parts, path, kind, False)
    if folder.resolve() in [path.resolve(), *path.resolve().parents]:
        raise InputError(f"{OUTPUT}: '{path}' is in the folder of the rows; name another place")
    if path.suffix.lower() in suffixes:
        archive.check_place(path, OUTPUT)
        return Files(parts, path, name_format(path, target_format, OUTPUT, _TO), False)
    _check_folder(path)
    if target_format is not None:
        name_format(path, target_format, OUTPUT, _TO)
    files = Files(parts, path, target_format, True)
    names = [files.name_output(part)[0] for part in parts]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise InputError(f"{OUTPUT}: two files of rows would become '{doubled}'; rename one")
    return files


_FROM, _TO = "--format (source_format)", "--output-format (target_format)"


def _list_parts(source: Place, given: str | None) -> list[Part]:
    if not isinstance(source, str | os.PathLike):
        where = "predict: the stream of rows"
        if not hasattr(source, "read"):
            raise InputError(f"{where}: a {type(source).__name__} is no path and no open file")
        return [Part(source, name_format(None, given, where, _FROM), where)]
    path = archive.to_path(source, "predict: argument 'rows'")
    where = f"predict: rows file '{path}'"
    if not path.is_dir():
        if not path.exists():
            raise InputError(f"{where}: there is no such file")
        return [Part(path, name_format(path, given, where, _FROM), where)]
    parts = []
    for file in sorted(path.iterdir()):
        if not file.name.startswith((".", "_")):  # of those who wrote the rows
            where = f"predict: rows file '{file}'"
            if file.is_dir():
                raise InputError(f"{where}: a folder in a folder; give one folder of files")
            parts.append(Part(file, name_format(file, given, where, _FROM), where))
    if not parts:
        raise InputError(f"predict: folder of rows '{path}': there is no file in it")
    return parts


def _check_apart(parts: list[Part], target: Path) -> None:
    for part in parts:
        if isinstance(part.place, Path) and target.exists() and target.samefile(part.place):
            raise InputError(f"{OUTPUT}: '{target}' is the file of rows; name another one")


def _check_folder(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{OUTPUT}: '{path}' is there already; remove it, or name a new folder")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{OUTPUT}: there is no folder '{path.absolute().parent}'; make it first")


@contextmanager
def open_part(part: Part) -> Iterator[BinaryIO]:
    """Open a file of rows; a stream stays open at the end.

    Raises:
        InputError: it cannot be opened.
    """
    if not isinstance(part.place, Path):
        yield io.BufferedReader(_Borrowed(part.place))
        return
    try:
        file = part.place.open("rb")
    except OSError as error:
        raise InputError(f"{part.where}: cannot be opened: {error.strerror}") from None
    with file:
        yield file


class _Borrowed(io.RawIOBase):
    """A stream that whoever closes this one leaves open."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._read = getattr(file, "read1", file.read)  # a pipe gives what is there

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seekable(self) -> bool:
        return bool(getattr(self._file, "seekable", bool)())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


@contextmanager
def refuse_unwritable(target: Path | BinaryIO) -> Iterator[None]:
    """Turn errors of the operating system about predictions into one for the user."""
    try:
        yield
    except BrokenPipeError:
        raise InputError(f"{OUTPUT}: who reads the predictions has closed the pipe") from None
    except OSError as error:
        name = f"'{target}'" if isinstance(target, Path) else "the stream"
        raise InputError(
            f"{OUTPUT}: cannot write {name} ({error.strerror or error}); nothing is left of it; "
            "make room, or name another place"
        ) from None
