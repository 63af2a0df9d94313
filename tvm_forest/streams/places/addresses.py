"""Files in remote stores, with addresses such as s3://bucket/rows.parquet.

takes: addresses; gives: `Address`, which has the methods of a path that this package needs.

File systems are pyarrow's, or fsspec's for stores that pyarrow does not support. Rows are read from
the store directly. Predictions are written to this machine and sent when they are complete, so a
call that fails leaves nothing in the store.
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

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")  # a single letter is a Windows drive
_PASSWORD, _OPTIONS = re.compile(r"://[^/@\s]*:[^/@\s]*@"), re.compile(r"(://[^\s?]*)\?\S*")
_PIECE_BYTES = 1 << 22  # sent at once


def hide_secrets(text: str) -> str:
    """Return a text whose addresses have no passwords and no options, which may hold keys."""
    return _OPTIONS.sub(r"\1", _PASSWORD.sub("://***@", text))


class Address:
    """A file or folder in a remote store.

    Attributes:
        store: a pyarrow file system.
        path: its path in the store.
        pure: the same as a PurePosixPath, without options.
        name, suffix: those of `pure`.
        is_native: whether pyarrow reads the store without fsspec.
    """

    def __init__(self, store: Any, path: str, before: tuple[str, str], where: str) -> None:
        """Make an address; the store is not contacted.

        Args:
            store, path: see the attributes.
            before: beginning of addresses, and the beginning of paths that it replaces; for example
                ("s3://", "").
            where: beginning of messages.
        """
        self.store, self.path, self._before, self._where = store, path, before, where
        self.pure = PurePosixPath(path.partition("?")[0])
        self.name, self.suffix = self.pure.name, self.pure.suffix
        self.is_native = not hasattr(store, "handler")
        self._info: Any = None

    def __str__(self) -> str:
        """Return the address without passwords and options."""
        text = self._before[0] + self.path.removeprefix(self._before[1])
        return hide_secrets(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(other) == str(self)

    @property
    def has_magic(self) -> bool:
        """Whether the address is a pattern; never for web servers, which cannot list files."""
        return "://" not in self.path and has_magic(self.path)

    def exists(self) -> bool:
        """Return whether the file or folder exists."""
        return bool(self._look().type.name != "NotFound")

    def is_dir(self) -> bool:
        """Return whether there is a folder at the address."""
        return bool(self._look().type.name == "Directory")

    def iterdir(self) -> Iterator[Address]:
        """Return an iterator over the entries of a folder."""
        return iter(self._list(self.path, False))

    def glob(self) -> list[Address]:
        """Return the files and folders that match the pattern, sorted by path."""
        parts = self.path.split("/")
        at = next(at for at, part in enumerate(parts) if has_magic(part))
        base, wild = "/".join(parts[:at]), parts[at:]
        found = self._list(base, len(wild) > 1 or "**" in wild)
        fitting = [x for x in found if _fits(x.path[len(base) :].strip("/").split("/"), wild)]
        return sorted(fitting, key=attrgetter("path"))

    def open(self) -> Any:
        """Open a file for reading, as a pyarrow file object.

        Raises:
            InputError: it cannot be opened.
        """
        with _refuse(self._where, "cannot be opened"):
            return self.store.open_input_file(self.path)

    def resolve(self) -> Address:
        """Return this address; it corresponds to `Path.resolve`."""
        return self

    @property
    def parents(self) -> list[Address]:
        """The folders that contain this file or folder, the innermost first."""
        return [self._name(str(path)) for path in self.pure.parents]

    def send(self, file: Path) -> None:
        """Copy a file of this machine to the address.

        Raises:
            OSError: it cannot be stored.
        """
        try:
            if not self.is_native:
                self.store.handler.fs.put_file(str(file), self.path)
                return
            stream = self.store.open_output_stream(self.path, compression=None)
            # pyarrow completes the file when the stream is freed. If this happens when Python
            # exits, it can hang. So after an error the stream is never freed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
            with file.open("rb") as read:
                shutil.copyfileobj(read, stream, _PIECE_BYTES)
            stream.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(stream))
        except Exception as error:  # of any library
            raise OSError(f"{type(error).__name__}: {error}") from error

    def send_folder(self, folder: Path) -> None:
        """Copy the files of a folder of this machine to the address.

        Raises:
            OSError: see `send`.
        """
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            self._name(f"{self.path}/{file.relative_to(folder).as_posix()}").send(file)

    def _name(self, path: str, info: Any = None) -> Address:
        made = Address(self.store, path, self._before, self._where)
        made._info = info
        return made

    def _look(self) -> Any:
        """Return what the store says of this file or folder; it is asked once only."""
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
    """Return whether the parts of a path match those of a pattern, by the rules of `glob`."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    is_hidden = names[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or (not is_hidden and _fits(names[1:], pattern))
    return not is_hidden and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


@contextmanager
def _refuse(where: str, what: str) -> Iterator[None]:
    """Turn errors of a store, which can be of any class, into InputError."""
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
        place: a path or a text; a text with "file://" is a path, with another scheme an address.
        what: name of the argument, with which messages begin.

    Raises:
        InputError: it is neither, or no installed library supports such addresses.
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
    """Return a pyarrow file system for an address, and the path in it.

    Raises:
        InputError: no library opens such addresses, or the store cannot be reached.
    """
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
    """Raise InputError if no file can be written to a path or address."""
    if isinstance(place, Path):
        archive.check_place(place, where)
    elif "://" in place.path:
        raise InputError(f"{where}: '{place}' is on a web server, which takes no files")
    elif place.is_dir():
        raise InputError(f"{where}: '{place}' is a folder; name a file")


@contextmanager
def open_replacement(place: Path | Address, where: str) -> Iterator[BinaryIO]:
    """Open a file for writing, which appears under its name when the block ends without an error.

    Raises:
        BuildError: this machine has no room for the temporary file that an address needs.
        OSError: the file cannot be written, or sent to the address.
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
    """Yield a temporary folder, which appears at its place when the block ends without an error.

    Raises:
        BuildError, OSError: see `open_replacement`.
    """
    if isinstance(place, Path):
        with archive.make_replacement(place) as folder:
            yield folder
        return
    with scratch.make_folder(where) as folder:
        (folder / "draft").mkdir()
        yield folder / "draft"
        place.send_folder(folder / "draft")
