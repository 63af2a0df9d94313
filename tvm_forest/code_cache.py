"""A folder of compiled code, and of models that were read, which processes share.

takes: a key, an archive; gives: the archive again, or None.

The folder is `~/.cache/tvm_forest`, or as the environment says: `XDG_CACHE_HOME` moves all caches,
`TVM_FOREST_CACHE` this one, and turns it off if it is "off" or empty. Nothing here raises: what
cannot be read is not there, and what cannot be written is not kept.

Code that is loaded is run, so nobody else may have written it: the folder and its files belong to
the user, who alone may write them. A file appears under its name once it is complete, and holds a
checksum of its bytes and its own key. So any number of processes may read, write and remove at
once, and a damaged file is as good as none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

from . import archive
from .archive import Archive
from .errors import ForestError

LOG = logging.getLogger(__name__)

VARIABLE = "TVM_FOREST_CACHE"
OFF = "off"
"""Value of the variable that turns the cache off, as does an empty one."""

MAX_BYTES = 256 * 2**20
"""Size of all files beyond which those go that were used least recently."""

MAX_ENTRY_BYTES = MAX_BYTES // 4
"""Size of arrays up to which they are worth an entry: one model must not displace all others."""

PACKAGE = Path(__file__).resolve().parent
"""The sources of this package."""

SUFFIX = ".code"
DRAFT_SECONDS = 3600
"""Age of a file without its final name from which on nobody is writing it any more."""


class Contents(NamedTuple):
    """What a cache holds.

    Attributes:
        entries: number of files.
        size: of all files, in bytes.
    """

    entries: int
    size: int


class CodeCache:
    """The files of a folder, by key.

    Attributes:
        folder: that holds them, which need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> Archive | None:
        """Return what was written under a key, and note that it was used."""
        file = self._file(key)
        try:
            with open(file, "rb") as opened:
                if not (self.is_safe() and _is_own(os.fstat(opened.fileno()))):
                    _warn_once(f"{self.folder} is not used, for others may write to it")
                    return None
                data = opened.read()
            os.utime(file)
            found = archive.unpack(data, VARIABLE)
        except ForestError as error:
            LOG.warning("%s is not used: %s", file, error)
            return None
        except OSError:
            return None
        return found if found.manifest.get("key") == key else None

    def write(self, key: str, entry: Archive) -> None:
        """Keep an archive under a key, and remove what was not used for long if there is much."""
        manifest = {"key": key, **entry.manifest}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.is_safe():
                data = archive.pack(entry._replace(manifest=manifest))
                archive.replace_file(self._file(key), data, private=True)
                self._trim()
        except OSError as error:
            _warn_once(f"{self.folder} keeps nothing: {error.strerror}")

    def is_safe(self) -> bool:
        """Return whether the folder is the user's own, and only the user may write to it."""
        try:
            return _is_own(os.stat(self.folder))
        except OSError:
            return False

    def contents(self) -> Contents:
        """Count the files."""
        sizes = [about.st_size for _, about in self._list()]
        return Contents(len(sizes), sum(sizes))

    def clear(self) -> Contents:
        """Remove all files of the cache; return what there was."""
        found = self._list()
        for file, _ in [*found, *self._list(".draft")]:
            _remove(file)
        return Contents(len(found), sum(about.st_size for _, about in found))

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _list(self, suffix: str = SUFFIX) -> list[tuple[Path, os.stat_result]]:
        """Return the files with what the system says of them, the least recently used first."""
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
    """Return the cache that the environment names; None if it is off, or no folder is known."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return None if named.lower() in (OFF, "") else CodeCache(Path(named).absolute())
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody knows where this user is at home
        return None
    return CodeCache(base / "tvm_forest") if base.is_absolute() else None


def digest(*parts: str | bytes) -> str:
    """Return the hex digest of some texts, each with its end."""
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        state.update(f"{len(data)} ".encode())
        state.update(data)
    return state.hexdigest()


@functools.cache
def digest_sources() -> str:
    """Return the hex digest of the files of this package, which all decide what is kept."""
    files = (file for file in PACKAGE.rglob("*") if file.suffix in (".py", ".ll", ".c", ".json"))
    return digest(*(f"{f.relative_to(PACKAGE)} {digest(f.read_bytes())}" for f in sorted(files)))


def _is_own(about: os.stat_result) -> bool:
    """Return whether a file or folder is the user's own, and only the user may write to it."""
    if not hasattr(os, "geteuid"):  # elsewhere folders of users are theirs alone
        return True
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _warn_once(message: str) -> None:
    LOG.warning(message)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
