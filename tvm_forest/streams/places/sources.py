"""Finds and opens the files of rows: from paths, patterns and folders.

takes: the places that users name; gives: `Part`s in order, and open files.

Folder names such as "year=2024" add columns to the rows of the files inside.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

from ...errors import InputError
from ..formats import name_format
from .addresses import Address, to_place
from .packing import ReadBy, name_packed, unpack

Place = str | os.PathLike[str] | BinaryIO
"""A path, an address, or a binary file object."""

Places = Place | Sequence[str | os.PathLike[str]]
"""A place, or several paths."""

_FROM = "--format (source_format)"
_AHEAD = 1 << 22  # bytes fetched from a store at once
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the folder of missing values in Hive and Spark
_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Part(NamedTuple):
    """One file of rows.

    Attributes:
        place: its path or address, or the stream.
        format: a name of `FORMATS`.
        where: beginning of messages about it.
        name: path of its predictions, if these are in a folder.
        packed: suffix of its compression; "" for none.
        folders: values of columns from folder names, by name; None is a missing value.
    """

    place: Path | Address | BinaryIO
    format: str
    where: str
    name: Path = Path()
    packed: str = ""
    folders: dict[str, int | str | None] = {}


class Sources(NamedTuple):
    """All files of rows.

    Attributes:
        parts: the files, in order.
        folders: the folders that were named.
        are_several: whether there could be several files, as with a folder, even if there is one.
    """

    parts: list[Part]
    folders: list[Path | Address]
    are_several: bool


def find_sources(source: Places, given: str | None, command: str = "predict") -> Sources:
    """Return the files of rows.

    Args:
        source: a path or address, a pattern, a folder, a list of these, or a binary file object.
        given: format of all files; None to decide by their suffixes.
        command: name of the command, with which messages begin.

    Raises:
        InputError: a file is missing, or a format is unknown.
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
        path = to_place(place, f"{command}: argument 'rows'")
        found = _find_matches(path, command)
        several |= found != [path] or path.is_dir()
        base = to_pure(path) if found == [path] else _find_base(to_pure(path))
        for match in found:
            folders += [match] if match.is_dir() else []
            files = _list_files(match, command)
            parts += [_make_part(file, given, base, command) for file in files]
    return Sources(_type_folders(parts), folders, several)


def to_pure(place: Path | Address) -> PurePath:
    """Return a place as a pure path, whose parts can be read without access to it."""
    return place.pure if isinstance(place, Address) else place


def _find_matches(path: Path | Address, command: str) -> list[Any]:
    """Return a place, or the places that match it if it is a pattern.

    Folders are left out if files match, and so are names that begin with an underscore.

    Raises:
        InputError: there are none.
    """
    is_pattern = path.has_magic if isinstance(path, Address) else has_magic(str(path))
    if path.exists() or not is_pattern:
        if not path.exists():
            raise InputError(f"{command}: rows file '{path}': there is no such file")
        return [path]
    found: list[Any] = (
        path.glob()
        if isinstance(path, Address)
        else [Path(name) for name in sorted(glob(str(path), recursive=True))]
    )
    found = [name for name in found if not name.name.startswith("_")]
    files = [name for name in found if not name.is_dir()] or found
    if not files:
        raise InputError(f"{command}: rows file '{path}': no file has such a name")
    return files


def _find_base(pattern: PurePath) -> PurePath:
    """Return the innermost folder that contains all matches of a pattern."""
    folders = [folder for folder in pattern.parents if not has_magic(str(folder))]
    return folders[0]


def _list_files(path: Any, command: str) -> Iterator[Any]:
    """Yield a file, or the files of a folder and of the folders in it named as "year=2024".

    Names that begin with a dot or an underscore are left out.

    Raises:
        InputError: a folder is empty, or one inside it has another name.
    """
    if not path.is_dir():
        yield path
        return
    is_empty = True
    for entry in sorted(path.iterdir(), key=attrgetter("name")):
        if entry.name.startswith((".", "_")):  # such as "_SUCCESS", by the writers of the rows
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


def _make_part(place: Path | Address, given: str | None, base: PurePath, command: str) -> Part:
    where, path = f"{command}: rows file '{place}'", to_pure(place)
    kind, packed = name_packed(path, given, where, _FROM)
    pairs = (name.partition("=") for name in path.parent.parts if "=" in name)
    folders = {
        unquote(name): None if text == _NO_VALUE else unquote(text) for name, _, text in pairs
    }
    name = path.relative_to(base) if path != base and path.is_relative_to(base) else path.name
    return Part(place, kind, where, Path(name), packed, dict(folders))


def _type_folders(parts: list[Part]) -> list[Part]:
    """Return the files; a column from folder names has ints if all of its values are whole."""
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
    """Open a file of rows, uncompressed; a stream that the user gave stays open at the end.

    Raises:
        InputError: it cannot be opened.
    """
    place = part.place
    if not isinstance(place, Path | Address):
        yield io.BufferedReader(_Borrowed(place))
        return
    try:
        opened = place.open("rb") if isinstance(place, Path) else place.open()
    except OSError as error:
        raise InputError(f"{part.where}: cannot be opened: {error.strerror}") from None
    with opened:
        file = opened
        if isinstance(place, Address):
            file = io.BufferedReader(_Fetched(opened, place.is_native), _AHEAD)
        yield unpack(file, part.packed, part.where) if part.packed else file


class _Borrowed(ReadBy):
    """A stream that reads from another one; closing it leaves the other open."""

    def __init__(self, file: Any) -> None:
        super().__init__(getattr(file, "read1", file.read))  # of a pipe, returns what has arrived
        self._file = file

    def seekable(self) -> bool:
        return bool(getattr(self._file, "seekable", bool)())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


class _Fetched(_Borrowed):
    """A file in a remote store, whose library may raise errors of any class: they become OSError.

    Attributes:
        native: file object for pyarrow: its own one if the store is native, else this stream.
    """

    def __init__(self, file: Any, is_native: bool) -> None:
        super().__init__(file)
        self.native, self._read = file if is_native else self, file.read

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and return their number.

        Raises:
            OSError: they cannot be read.
        """
        try:
            return super().readinto(buffer)
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
