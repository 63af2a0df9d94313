"""Which files rows come from: paths, patterns, folders in which names of folders give columns.

takes: what users name; gives: `Part`s in order, and what opens them.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from ... import archive
from ...errors import InputError
from ..batches import import_arrow
from ..formats import TEXTS, name_format

Place = str | os.PathLike[str] | BinaryIO
"""A path, or what is open in binary."""

Places = Place | Sequence[str | os.PathLike[str]]
"""A place, or several paths."""

PACKED = (".gz", ".zst")
"""Suffixes of text that is compressed."""

_FROM = "--format (source_format)"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark call the folder of nulls
_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Part(NamedTuple):
    """One file of rows.

    Attributes:
        place: its path, or the stream.
        format: a name of `FORMATS`.
        where: begins messages.
        name: its path in a folder of predictions.
        packed: one of `PACKED`, or nothing.
        folders: values of columns that names of folders give, by name.
    """

    place: Path | BinaryIO
    format: str
    where: str
    name: Path = Path()
    packed: str = ""
    folders: dict[str, int | str | None] = {}


class Sources(NamedTuple):
    """All files of rows.

    Attributes:
        parts: in their order.
        folders: those that were named.
        are_several: whether more than one file could have been meant.
    """

    parts: list[Part]
    folders: list[Path]
    are_several: bool


def find_sources(source: Places, given: str | None, command: str = "predict") -> Sources:
    """Return the files of rows.

    Args:
        source: a path, a pattern, a folder, several of these, or what can be read in binary.
        given: format of all, None for by the suffix.
        command: begins messages.

    Raises:
        InputError: rows that are not there, or a format that is unknown.
    """
    places: list[Any] = [source] if not isinstance(source, list | tuple) else list(source)
    if not places:
        raise InputError(f"{command}: argument 'rows': no files; name one or more")
    if not isinstance(places[0], str | os.PathLike):
        where = f"{command}: the stream of rows"
        if len(places) > 1 or not hasattr(places[0], "read"):
            raise InputError(
                f"{where}: a {type(places[0]).__name__} is no path and no open file"
                if len(places) == 1
                else f"{where}: it is read alone; name no other files"
            )
        return Sources([Part(places[0], name_format(None, given, where, _FROM), where)], [], False)
    parts, folders, several = [], [], len(places) > 1
    for place in places:
        path = archive.to_path(place, f"{command}: argument 'rows'")
        found = _find_matches(path, command)
        several |= found != [path] or path.is_dir()
        base = path if found == [path] else _find_base(path)
        for match in found:
            folders += [match] if match.is_dir() else []
            files = _list_files(match, command)
            parts += [_make_part(file, given, base, command) for file in files]
    return Sources(_type_folders(parts), folders, several)


def _find_matches(path: Path, command: str) -> list[Path]:
    """Return a path, or those that a pattern stands for."""
    if path.exists() or not has_magic(str(path)):
        if not path.exists():
            raise InputError(f"{command}: rows file '{path}': there is no such file")
        return [path]
    found = [Path(name) for name in sorted(glob(str(path), recursive=True))]
    found = [name for name in found if not name.name.startswith("_")]
    files = [name for name in found if not name.is_dir()] or found
    if not files:
        raise InputError(f"{command}: rows file '{path}': no file has such a name")
    return files


def _find_base(pattern: Path) -> Path:
    """Return the folder in which all that matches a pattern lies."""
    folders = [folder for folder in pattern.parents if not has_magic(str(folder))]
    return folders[0]


def _list_files(path: Path, command: str) -> Iterator[Path]:
    """Yield a file, or those of a folder and of the folders in it that give columns."""
    if not path.is_dir():
        yield path
        return
    is_empty = True
    for entry in sorted(path.iterdir()):
        if entry.name.startswith((".", "_")):  # of those who wrote the rows
            continue
        is_empty = False
        if entry.is_dir() and "=" not in entry.name:
            raise InputError(
                f"{command}: rows file '{entry}': a folder in a folder, and its name is not as in "
                "year=2024; give one folder of files, or a pattern such as 'rows/**/*.csv'"
            )
        yield from _list_files(entry, command)
    if is_empty:
        raise InputError(f"{command}: folder of rows '{path}': there is no file in it")


def _make_part(path: Path, given: str | None, base: Path, command: str) -> Part:
    where = f"{command}: rows file '{path}'"
    packed = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    kind = name_format(path.with_suffix("") if packed else path, given, where, _FROM)
    if packed and kind not in TEXTS:
        raise InputError(f"{where}: only text is read from '{packed}'; unpack it")
    pairs = (name.partition("=") for name in path.parent.parts if "=" in name)
    folders = {
        unquote(name): None if text == _NO_VALUE else unquote(text) for name, _, text in pairs
    }
    name = path.relative_to(base) if path != base and path.is_relative_to(base) else path.name
    return Part(path, kind, where, Path(name), packed, dict(folders))


def _type_folders(parts: list[Part]) -> list[Part]:
    """Return files with columns of whole numbers where all folders of a column are called so."""
    texts = {
        name
        for part in parts
        for name, value in part.folders.items()
        if not (value is None or _WHOLE.fullmatch(str(value)))
    }
    return [
        part._replace(
            folders={
                name: value if value is None or name in texts else int(value)
                for name, value in part.folders.items()
            }
        )
        for part in parts
    ]


# -- opening --------------------------------------------------------------------------------------


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
        yield _unpack(file, part) if part.packed else file


def _unpack(file: BinaryIO, part: Part) -> BinaryIO:
    if part.packed == ".gz":
        return io.BufferedReader(Unpacked(gzip.GzipFile(fileobj=file), file))
    arrow = import_arrow(f"{part.where}: .zst")
    stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(Unpacked(stream, file))


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


class _Borrowed(ReadBy):
    """A stream that whoever closes this one leaves open."""

    def __init__(self, file: Any) -> None:
        super().__init__(getattr(file, "read1", file.read))  # a pipe gives what is there
        self._file = file

    def seekable(self) -> bool:
        return bool(getattr(self._file, "seekable", bool)())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())
