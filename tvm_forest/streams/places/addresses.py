"""Files of stores that have addresses, such as s3://bucket/rows.parquet.

takes: addresses; gives: `Address`, which answers what is asked of paths, by file systems of
pyarrow, and of fsspec where pyarrow has none.

What is in the store is read where it lies. What is written is complete on this machine before it
goes there, so that nothing appears of a call that fails.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import has_magic
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ...errors import ForestError, InputError
from ...system import archive
from ...system.process import scratch
from ..batches import import_arrow

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")  # of one letter it is a disk of Windows
_PASSWORD, _OPTIONS = re.compile(r"://[^/@\s]*:[^/@\s]*@"), re.compile(r"(://[^\s?]*)\?\S*")
_PIECE_BYTES = 1 << 22  # that are sent at once


def hide_secrets(text: str) -> str:
    """Return a text without passwords and options of the addresses in it."""
    return _OPTIONS.sub(r"\1", _PASSWORD.sub("://***@", text))


class Address:
    """A file or a folder of a store.

    Attributes:
        store: a file system of pyarrow.
        path: what the store calls it.
        pure: the same, as a path of which the parts are asked; and its name and suffix.
        is_native: whether pyarrow reads the store by itself.
    """

    def __init__(self, store: Any, path: str, before: tuple[str, str], where: str) -> None:
        """Name a place of a store.

        Args:
            store, path: see the attributes.
            before: what addresses begin with, and what their paths begin with instead.
            where: begins messages.
        """
        self.store, self.path, self._before, self._where = store, path, before, where
        self.pure = PurePosixPath(path.partition("?")[0])
        self.name, self.suffix = self.pure.name, self.pure.suffix
        self.is_native = not hasattr(store, "handler")
        self._info: Any = None

    def __str__(self) -> str:
        """Return the address without what only its owner may know."""
        text = self._before[0] + self.path.removeprefix(self._before[1])
        return hide_secrets(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(other) == str(self)

    @property
    def has_magic(self) -> bool:
        """Whether it is a pattern; a web server does not list its files."""
        return "://" not in self.path and has_magic(self.path)

    def exists(self) -> bool:
        """Tell whether there is such a file or folder."""
        return bool(self._look().type.name != "NotFound")

    def is_dir(self) -> bool:
        """Tell whether it is a folder."""
        return bool(self._look().type.name == "Directory")

    def iterdir(self) -> Iterator[Address]:
        """Yield what is in a folder."""
        return iter(self._list(self.path, False))

    def glob(self) -> list[Address]:
        """Return what a pattern stands for, in order."""
        parts = self.path.split("/")
        at = next(at for at, part in enumerate(parts) if has_magic(part))
        base, wild = "/".join(parts[:at]), parts[at:]
        found = self._list(base, len(wild) > 1 or "**" in wild)
        fitting = [x for x in found if _fits(x.path[len(base) :].strip("/").split("/"), wild)]
        return sorted(fitting, key=attrgetter("path"))

    def open(self) -> Any:
        """Open a file for reading, as pyarrow's own.

        Raises:
            InputError: it cannot be opened.
        """
        with _refuse(self._where, "cannot be opened"):
            return self.store.open_input_file(self.path)

    def resolve(self) -> Address:
        """Return the address, which leads nowhere else."""
        return self

    @property
    def parents(self) -> list[Address]:
        """The folders in which it lies."""
        return [self._name(str(path)) for path in self.pure.parents]

    def send(self, file: Path) -> None:
        """Put a file of this machine there.

        Raises:
            OSError: the store does not take it.
        """
        try:
            if not self.is_native:
                self.store.handler.fs.put_file(str(file), self.path)
                return
            stream = self.store.open_output_stream(self.path, compression=None)
            # pyarrow completes the file when the stream is freed, be it at the end of Python,
            # where it may wait for ever. So a stream that is broken off is never freed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
            with file.open("rb") as read:
                shutil.copyfileobj(read, stream, _PIECE_BYTES)
            stream.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(stream))
        except Exception as error:  # of any library
            raise OSError(f"{type(error).__name__}: {error}") from error

    def send_folder(self, folder: Path) -> None:
        """Put the files of a folder of this machine there."""
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._name(f"{self.path}/{file.relative_to(folder).as_posix()}").send(file)

    def _name(self, path: str, info: Any = None) -> Address:
        made = Address(self.store, path, self._before, self._where)
        made._info = info
        return made

    def _look(self) -> Any:
        """Return what the store says of it, which is asked once."""
        if self._info is None:
            with _refuse(self._where, "cannot be looked at"):
                self._info = self.store.get_file_info(self.path)
        return self._info

    def _list(self, folder: str, is_deep: bool) -> list[Address]:
        from pyarrow.fs import FileSelector

        with _refuse(self._where, "cannot be listed"):
            wanted = FileSelector(folder, allow_not_found=True, recursive=is_deep)
            return [self._name(info.path, info) for info in self.store.get_file_info(wanted)]


def _fits(names: list[str], pattern: list[str]) -> bool:
    """Tell whether the parts of a path are what a pattern says, as `glob` understands it."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    is_hidden = names[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or (not is_hidden and _fits(names[1:], pattern))
    return not is_hidden and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


@contextmanager
def _refuse(where: str, what: str) -> Iterator[None]:
    """Turn errors of a store, which are those of any library, into one for the user."""
    try:
        yield
    except ForestError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {hide_secrets(str(error)):.300}"
        raise InputError(
            f"{where}: {what} ({said}); see that the address is right, and that you may use it"
        ) from None


def to_place(place: Any, what: str) -> Path | Address:
    """Return the path or the address that a user gave.

    Args:
        place: a path, or a text that may be an address; of "file://" it is a path.
        what: the argument, which begins messages.

    Raises:
        InputError: it is neither, or no library that is there knows such addresses.
    """
    text = os.fsdecode(place) if isinstance(place, str | os.PathLike) else ""
    found = _ADDRESS.match(text)
    if found is None:
        return archive.to_path(place, what)
    if found[0].lower() == "file://":
        return Path(url2pathname(text[len(found[0]) :].removeprefix("localhost")))
    where = f"{what}: '{hide_secrets(text)}'"
    store, path = _open_store(text, where)
    shown = text if "://" in path else text.partition("?")[0].rstrip("/")
    shared = len(os.path.commonprefix([shown[::-1], path[::-1]]))
    before = shown[: len(shown) - shared], path[: len(path) - shared]
    return Address(store, path, before, where)


def _open_store(text: str, where: str) -> tuple[Any, str]:
    """Return a file system of pyarrow, and what it calls an address."""
    import_arrow(where)
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    parts = urlsplit(text)
    options = parts.query and f"?{parts.query}"
    with _refuse(where, "cannot be reached"):
        try:
            store, root = FileSystem.from_uri(f"{parts.scheme}://{parts.netloc}{options}")
            rest = text.partition("?")[0].partition("://")[2].removeprefix(parts.netloc)
            return store, (root.rstrip("/") + rest).rstrip("/")
        except (ValueError, NotImplementedError) as error:
            why = f"pyarrow: {hide_secrets(str(error)):.200}"
        try:
            import fsspec

            store, path = fsspec.url_to_fs(text)
            return PyFileSystem(FSSpecHandler(store)), path
        except (ImportError, ValueError) as error:
            is_missing = getattr(error, "name", None) == "fsspec"
            remedy = "pip install fsspec" if is_missing else "install what fsspec names"
            raise InputError(
                f"{where}: no library opens such addresses ({why}; fsspec: "
                f"{hide_secrets(str(error)):.200}); "
                f"{remedy}, or copy the file to this machine"
            ) from None


def check_place(place: Path | Address, where: str) -> None:
    """Refuse, before there is anything to write, a place where nothing can be written."""
    if isinstance(place, Path):
        archive.check_place(place, where)
    elif "://" in place.path:
        raise InputError(f"{where}: '{place}' is on a web server, which takes no files")
    elif place.is_dir():
        raise InputError(f"{where}: '{place}' is a folder; name a file")


@contextmanager
def open_replacement(place: Path | Address, where: str) -> Iterator[BinaryIO]:
    """Open a file that appears at its place when the block ends without an error.

    Raises:
        BuildError: this machine has no room for a file that is to be sent.
    """
    if isinstance(place, Path):
        with archive.open_replacement(place) as file:
            yield file
        return
    with scratch.make_folder(where) as folder:
        with open(folder / "draft", "xb") as file:
            yield file
        place.send(folder / "draft")


@contextmanager
def make_replacement(place: Path | Address, where: str) -> Iterator[Path]:
    """Make a folder whose files appear at their place when the block ends without an error."""
    if isinstance(place, Path):
        with archive.make_replacement(place) as folder:
            yield folder
        return
    with scratch.make_folder(where) as folder:
        (folder / "draft").mkdir()
        yield folder / "draft"
        place.send_folder(folder / "draft")
