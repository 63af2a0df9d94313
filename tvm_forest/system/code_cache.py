"""The code cache: a folder of compiled code, and of parsed models, shared by processes.

takes: a key, an archive; gives: the archive again, or None.

The folder is `~/.cache/tvm_forest`. The environment variable `XDG_CACHE_HOME` moves all caches,
`TVM_FOREST_CACHE` this one; the latter turns it off if it is "off" or empty, and may name several
folders, as PATH does: entries are written to the first folder, and searched in the first and then
in the others, such as a folder of a container image. Nothing here raises an error: an entry that
cannot be read counts as missing, and one that cannot be written is dropped; one warning tells why.

Code that is loaded is run, so nobody else may have written it: the folder and its files must belong
to the user or the superuser, and nobody else may have write access. A file appears under its name
when it is complete, and holds a checksum of its bytes and its own key. So any number of processes
may read, write and remove at once, and a damaged file counts as missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ForestError
from . import archive
from .archive import Archive
from .process import sources

LOG = logging.getLogger(__name__)

VARIABLE = "TVM_FOREST_CACHE"
OFF = "off"
"""Value of the environment variable that turns the cache off, as an empty one does."""

MAX_BYTES = 256 * 2**20
"""Total size above which the least recently used files are removed."""

MAX_ENTRY_BYTES = MAX_BYTES // 4
"""Largest size of arrays in an entry, so that one model does not displace all others."""

PACKAGE = Path(sources.PACKAGE)
"""The folder of this package's sources."""

_ANOTHER = f"let the environment variable {VARIABLE} name a folder of yours"

SUFFIX = ".code"
NOTE = ".sources"

TICK_SECONDS = 2.0
"""Resolution of file times: a file that is younger may change without getting a new time."""

DRAFT_SECONDS = 3600
"""Age in seconds from which a temporary file counts as abandoned, and is removed."""


class Contents(NamedTuple):
    """Number and size of the files in a cache.

    Attributes:
        entries: number of files.
        size: total size, in bytes.
    """

    entries: int
    size: int


class CodeCache:
    """A folder with an archive file for each key.

    Attributes:
        folder: the folder, which need not exist yet.
        others: further caches, only for reading, searched for entries that the folder lacks.
    """

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.others = [CodeCache(other) for other in others]

    def read(self, key: str) -> Archive | None:
        """Return the entry of a key, and mark it as used now; None if there is none."""
        found = (cache._read_own(key) for cache in (self, *self.others))
        return next((entry for entry in found if entry is not None), None)

    def _read_own(self, key: str) -> Archive | None:
        file = self._file(key)
        if not self._is_usable():
            return None
        try:
            data = read_own(file)
            if data is None:
                return None
            with contextlib.suppress(OSError):  # the folder may be read-only
                os.utime(file)
            found = archive.unpack(data, VARIABLE)
        except ForestError as error:
            LOG.warning("%s is not used: %s", file, error)
            return None
        except OSError:
            return None
        return found if found.manifest.get("key") == key else None

    def write(self, key: str, entry: Archive, *, warns: bool = True) -> None:
        """Store an archive under a key; remove the least recently used ones above the limit.

        Args:
            key: key of the entry.
            entry: the archive to store.
            warns: whether to warn if the file cannot be written.
        """
        manifest = {"key": key, **entry.manifest}
        if not (self._is_usable() and _is_known()):
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = archive.pack(entry._replace(manifest=manifest))
            archive.replace_file(self._file(key), data, private=True)
            self._trim()
        except OSError as error:
            if not warns:
                return
            _warn_once(
                f"{self.folder} keeps nothing ({error.strerror})", f"{_ANOTHER}, or make room"
            )

    def find_fault(self) -> tuple[str, str] | None:
        """Return why the folder cannot be used, and a remedy; None if it can, or is missing."""
        try:
            about = os.stat(self.folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"cannot be looked into ({error.strerror})", "make it a folder of yours"
        if not stat.S_ISDIR(about.st_mode):
            return "is no folder", "remove it"
        return _find_owner_fault(about)

    def _is_usable(self) -> bool:
        """Return whether entries may be read and written; warn once if not."""
        fault = self.find_fault()
        if fault is not None:
            _warn_once(
                f"{self.folder} is not used, for it {fault[0]}", f"{fault[1]}, or {_ANOTHER}"
            )
        return fault is None and bool(digest_sources())

    def contents(self) -> Contents:
        """Return the number and the size of the entries."""
        sizes = [about.st_size for _, about in self._list()]
        return Contents(len(sizes), sum(sizes))

    def clear(self) -> Contents:
        """Remove all files of the cache; return the number and size of the entries among them."""
        found = self._list()
        for file, _ in [*found, *self._list(".draft"), *self._list(NOTE)]:
            _remove(file)
        return Contents(len(found), sum(about.st_size for _, about in found))

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _list(self, suffix: str = SUFFIX) -> list[tuple[Path, os.stat_result]]:
        """Return the files with a suffix and their `os.stat`, the least recently used first."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has removed it
                    if entry.name.endswith(suffix):
                        found.append((Path(entry.path), entry.stat()))
        return sorted(found, key=lambda file: file[1].st_mtime)

    def _trim(self) -> None:
        found = self._list()
        size = sum(about.st_size for _, about in found)
        for file, about in found:
            if size <= MAX_BYTES:
                break
            _remove(file)
            size -= about.st_size
        for file, about in self._list(".draft"):
            if about.st_mtime < time.time() - DRAFT_SECONDS:
                _remove(file)


def find_cache() -> CodeCache | None:
    """Return the cache that the environment names, or the user's default one.

    None if it is turned off, or if no folder is known, of which a warning tells.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        folders = [Path(name).absolute() for name in named.split(os.pathsep) if name]
        is_off = named.lower() == OFF or not folders
        return None if is_off else CodeCache(folders[0], folders[1:])
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        _warn_once("there is no folder, for this user has no home", _ANOTHER)
        return None
    if not base.is_absolute():
        _warn_once(f"XDG_CACHE_HOME is {str(base)!r}, which is not absolute", _ANOTHER)
        return None
    return CodeCache(base / "tvm_forest")


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256 of several texts, in hex; the length of each is part of the input."""
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        state.update(f"{len(data)} ".encode())
        state.update(data)
    return state.hexdigest()


@functools.cache
def digest_sources() -> str:
    """Return the SHA-256 of the package's source files, in hex; "" if the running code is unknown.

    Reading hundreds of files takes longer than reading a model. So a note in the cache keeps the
    digest, and is used as long as the inodes, sizes and times of all files stay the same.
    """
    if not _is_known():
        return ""
    files = sorted(sources.FILES.items())
    state, note = digest(*map(str, files)), _find_note()
    with contextlib.suppress(OSError, ValueError):
        noted, _, found = ((note and read_own(note)) or b"").decode("ascii").partition(" ")
        if noted == state:
            return found
    try:
        parts = [f"{name} {digest((PACKAGE / name).read_bytes())}" for name, _ in files]
    except OSError:
        return ""
    found = digest(*parts)
    newest = max(changed for _, (_, _, changed) in files) / 1e9
    if note is not None and newest < time.time() - TICK_SECONDS:
        with contextlib.suppress(OSError):
            archive.replace_file(note, f"{state} {found}".encode(), private=True)
    return found


def _find_note() -> Path | None:
    """Return the path of the note with the digest; None if there is no usable cache folder."""
    cache = find_cache()
    if cache is None or not cache.folder.is_dir() or cache.find_fault() is not None:
        return None
    return cache.folder / f"{digest(sources.PACKAGE)}{NOTE}"


def _is_known() -> bool:
    """Return whether the running code is that of the source files; warn once if not."""
    obstacle = sources.find_change()
    if obstacle is not None:
        _warn_once(*obstacle)
    return obstacle is None


def read_own(file: Path) -> bytes | None:
    """Return the content of a file; None if others than the user and the superuser may write it.

    Raises:
        OSError: the file cannot be read.
    """
    with open(file, "rb") as opened:
        is_own = _find_owner_fault(os.fstat(opened.fileno())) is None
        return opened.read() if is_own else None


def _find_owner_fault(about: os.stat_result) -> tuple[str, str] | None:
    """Return why others may write to a file or folder, and a remedy; None if they may not."""
    if not hasattr(os, "geteuid"):  # Windows lets only the user write to the user's folders
        return None
    if about.st_uid not in (0, os.geteuid()):
        return f"belongs to another user ({about.st_uid})", "give it to yourself by chown"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(about.st_mode):04o}"
        return f"may be written to by others (mode {mode})", "forbid it by chmod go-w"
    return None


@functools.cache
def _warn_once(what: str, remedy: str) -> None:
    """Warn that models will be compiled again in each process, and why; once for each reason."""
    text = f"cache: {what}; models are compiled anew in each process; {remedy}"
    warnings.warn(f"{text}; {VARIABLE}=off says no more of it", RuntimeWarning, stacklevel=2)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
