"""A file of named parts with a checksum, which is read completely or refused.

takes: a manifest, bytes and arrays; gives: the bytes of a file, and the reverse. It also replaces
files and folders so that they appear only when they are complete.

The file is a zip archive without compression, so that common tools can list it. Its first member is
the manifest, arrays are `.npy` members. The comment at its end is the SHA-256 of all bytes before
it, including the directory: a damaged file is never parsed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import reprlib
import shutil
import stat
import struct
import sys
import time
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InputError, ModelFormatError

MANIFEST = "tvm_forest.json"
_NAME_AT = 30  # offset of the name in the local header of a zip member
_LENGTHS_AT = 26  # offset of the lengths of the name and of the extra field
_EXTRA_HEAD, _PADDING = 4, 0xD935  # size of an extra field's header, and its kind for padding
_ALIGNMENT = 64  # of arrays in the file, since they are used in place, without a copy
_ARRAY_HEAD = 1 << 16  # enough bytes for the header of any array
_DIGEST = 64
_PAUSES = (0.01, 0.05, 0.1, 0.3, 0.5)  # seconds between tries, in which readers close the file
_ACCESS_LIST = "system.posix_acl_access"  # Linux lists users besides owner and group there
HEADER_ERRORS = (SyntaxError, TypeError, RecursionError, OverflowError, tokenize.TokenError)
"""Exceptions, besides ValueError, that numpy raises for a damaged array header."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class Archive(NamedTuple):
    """The contents of an archive file.

    Attributes:
        manifest: a dict of JSON values.
        parts: parts by name: arrays if the name ends in ".npy", else bytes.
    """

    manifest: dict[str, Any]
    parts: dict[str, Any]


def is_archive(data: bytes) -> bool:
    """Return whether the first bytes of a file look like those of an archive of this package."""
    name = MANIFEST.encode()
    return data[:4] == b"PK\x03\x04" and data[_NAME_AT : _NAME_AT + len(name)] == name


def is_archive_file(path: Any) -> bool:
    """Return whether an object is the path of a file that looks like such an archive."""
    if not isinstance(path, str | os.PathLike):
        return False
    try:
        with open(path, "rb") as file:
            return is_archive(file.read(64))
    except (OSError, ValueError):  # the error is raised when the file is read
        return False


def digest_of(data: bytes) -> str:
    """Return the SHA-256 at the end of an archive file, which identifies its content."""
    return data[-_DIGEST:].decode()


def pack(archive: Archive) -> bytes:
    """Return the bytes of an archive file; equal archives give equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        text = json.dumps(archive.manifest, indent=1, default=_to_number)
        for name, part in {MANIFEST: text.encode(), **archive.parts}.items():
            about = zipfile.ZipInfo(name)
            about.extra = _pad(file.tell() + _NAME_AT + len(name.encode()))
            members.writestr(about, _write_array(part) if name.endswith(".npy") else part)
        members.comment = bytes(_DIGEST)
    file.seek(-_DIGEST, io.SEEK_END)
    file.write(_checksum(file.getbuffer()))
    return file.getvalue()


def unpack(data: bytes, where: str) -> Archive:
    """Return the contents of an archive file.

    Args:
        data: the whole file.
        where: name of the file in messages.

    Raises:
        ModelFormatError: it is not an archive of this package, or it is damaged.
    """
    if not is_archive(data):
        looks = f"begins with {data[:8]!r}" if data else "is empty"
        raise ModelFormatError(
            f"{where}: no saved predictor, it {looks}; give what Predictor.save wrote, and use "
            "tvm_forest.build for a model"
        )
    if _checksum(memoryview(data)) != data[-_DIGEST:]:
        raise ModelFormatError(
            f"{where}: the file is damaged, or its end is missing ({len(data)} bytes, and their "
            "checksum is wrong); copy or save it again"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            parts = {x.filename: _read_part(x.filename, _find(data, x)) for x in members.filelist}
        manifest = json.loads(parts.pop(MANIFEST))
        if not isinstance(manifest, dict):
            raise TypeError("the manifest is no object")
    except (LookupError, ValueError, struct.error, zipfile.error, *HEADER_ERRORS) as error:
        raise ModelFormatError(
            f"{where}: the file has the right checksum, but not the parts of a saved predictor "
            f"({type(error).__name__}: {error!s:.300}); save it again"
        ) from None
    return Archive(manifest, parts)


def to_path(path: str | os.PathLike[str], where: str) -> Path:
    """Convert a user's path to a Path.

    Raises:
        InputError: it is not a path; bytes are refused too, as they may be a file's content.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{where}: a {type(path).__name__} is no path; give a str")
    return Path(os.fsdecode(path))


def read_file(path: Path, where: str) -> bytes:
    """Return the bytes of an archive; only the beginning if the file is something else.

    Raises:
        ModelFormatError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if is_archive(head):
                file.seek(0)
                return file.read()
            return head
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFormatError(
            f"{where}: cannot be read ({reason}); give the path that Predictor.save was given"
        ) from None


def write_file(path: Path, data: bytes, where: str) -> None:
    """Write a file, which appears under its name only when it is complete.

    Raises:
        InputError: the file cannot be written.
    """
    with refuse_unwritable(path, where):
        replace_file(path, data)


def check_place(path: Path, where: str) -> None:
    """Raise the InputError that `write_file` would raise, before there are data to write."""
    with refuse_unwritable(path, where), _open_draft(_follow(path)):
        pass


def replace_file(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file as `write_file` does, but raise the operating system's exceptions.

    Args:
        path: path of the file.
        data: its new content.
        private: give only the user access, whoever has access to the file that is replaced.

    Raises:
        OSError: the file cannot be written.
    """
    with open_replacement(path, private) as draft:
        draft.write(data)


@contextlib.contextmanager
def open_replacement(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces another when the block ends without an error.

    The new file has the permissions of the old one, unless it is private. The target of a symbolic
    link is replaced, not the link.

    Raises:
        OSError: the file cannot be written.
    """
    place = _follow(path)
    with _open_draft(place, private) as draft:
        yield draft
        draft.flush()
        os.fsync(draft.fileno())
        draft.close()
        _replace(Path(draft.name), place)


def _replace(draft: Path, place: Path) -> None:
    """Rename a draft to its final name; on Windows, try again while a reader has that file open."""
    for pause in _PAUSES if sys.platform == "win32" else ():
        with contextlib.suppress(PermissionError):
            os.replace(draft, place)
            return
        time.sleep(pause)
    try:
        os.replace(draft, place)
    except PermissionError as error:
        if sys.platform == "win32":
            error.strerror = "another program has the file open, or you may not write there"
        raise


@contextlib.contextmanager
def make_replacement(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces an empty or missing one if the block raises no error.

    Raises:
        OSError: the folder cannot be made, or the one to replace is not empty.
    """
    place = _follow(folder)
    draft, old = _name_draft(place), _look_at(place)
    try:
        draft.mkdir(0o777 if old is None else 0o700)
        if old is not None:
            _keep_access(place, old, draft)
        yield draft
        _replace(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def refuse_unwritable(path: Path, where: str) -> Iterator[None]:
    """Convert the errors of writing a file into an InputError."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{where}: cannot write {shorten(str(path))} ({reason}); name a file in a folder that "
            "exists and can be written to"
        ) from None


@contextlib.contextmanager
def _open_draft(place: Path, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file next to another; it is removed unless renamed.

    Raises:
        OSError: the other is not a regular file, or the folder cannot be written to.
    """
    draft, old = _name_draft(place), _look_at(place)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(0, "not a regular file")
    mode = 0o666 if old is None and not private else 0o600
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if old is not None and not private:
                _keep_access(place, old, draft)
            yield file
    finally:
        with contextlib.suppress(OSError, ValueError):
            draft.unlink(missing_ok=True)


def _name_draft(place: Path) -> Path:
    return place.parent / f".{os.urandom(16).hex()}.draft"


def _follow(path: Path) -> Path:
    """Return the target of a path that is a symbolic link; other paths unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _look_at(place: Path) -> os.stat_result | None:
    """Return `os.stat` of a file or folder; None if it does not exist."""
    try:
        return os.stat(place)
    except FileNotFoundError:
        return None


def _keep_access(place: Path, old: os.stat_result, draft: Path) -> None:
    """Copy the permissions of the replaced file to a draft, as far as the system allows."""
    mode = stat.S_IMODE(old.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):  # only root gives files away
            os.chown(draft, old.st_uid, -1)
        try:
            os.chown(draft, -1, old.st_gid)
        except OSError:  # another group must not get the access that this one had
            mode &= ~stat.S_IRWXG
    os.chmod(draft, mode)
    if hasattr(os, "setxattr"):
        with contextlib.suppress(OSError):  # most files have no such list
            os.setxattr(draft, _ACCESS_LIST, os.getxattr(place, _ACCESS_LIST))


def shorten(value: Any) -> str:
    """Shorten a value for a message by leaving out its middle."""
    return _SHORT.repr(value)


def _checksum(data: memoryview) -> bytes:
    return hashlib.sha256(data[:-_DIGEST]).hexdigest().encode()


def _write_array(array: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _pad(at: int) -> bytes:
    """Return a zip extra field that aligns the data of a member whose field begins at `at`."""
    size = -(at + _EXTRA_HEAD) % _ALIGNMENT
    return struct.pack("<HH", _PADDING, size) + bytes(size)


def _find(data: bytes, about: zipfile.ZipInfo) -> memoryview:
    """Return the bytes of a member without a copy; the checksum was verified before.

    Raises:
        ModelFormatError: the member is compressed.
    """
    if about.compress_type != zipfile.ZIP_STORED:
        raise ModelFormatError(f"archive: member '{about.filename}' is compressed; save it again")
    lengths = struct.unpack_from("<HH", data, about.header_offset + _LENGTHS_AT)
    begin = about.header_offset + _NAME_AT + sum(lengths)
    return memoryview(data)[begin : begin + about.file_size]


def _read_part(name: str, data: memoryview) -> Any:
    if not name.endswith(".npy"):
        return bytes(data)
    file = io.BytesIO(data[:_ARRAY_HEAD])
    if np.lib.format.read_magic(file) != (1, 0):
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds objects")
    array = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    whole = array.reshape(shape, order="F" if is_fortran else "C")
    return whole if whole.flags.aligned else whole.copy(order="K")  # of an older file


def _to_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can say")
