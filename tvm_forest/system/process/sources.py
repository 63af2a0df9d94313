"""Detects whether the package's files have changed since this process imported them.

takes: nothing; gives: the files, and why they may differ from the running code.

If an upgrade changes the package's files while a process runs, the files no longer identify the
code that it runs. So this module, which is imported with the package, records their state then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
"""The folder of this package."""

SUFFIXES = (".py", ".pyc", ".so", ".pyd", ".ll", ".c", ".h", ".cuh", ".json")
"""Suffixes of files that affect results. Byte code counts if it is installed in place of sources,
but not in Python's cache."""

About = tuple[int, int, int]
"""Inode number, size and modification time of a file; an upgrade changes at least one of them."""


def list_files() -> dict[str, About]:
    """Return the state of each current file of the package (see `About`), by its relative path.

    The result is empty if the package is in an archive or a frozen program.
    """
    try:
        return dict(_walk(PACKAGE, ""))
    except OSError:
        return {}


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, About]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIXES):
                about = entry.stat()
                yield prefix + entry.name, (about.st_ino, about.st_size, about.st_mtime_ns)
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/")


FILES = list_files()
"""The package's files when it was imported."""


def find_change() -> tuple[str, str] | None:
    """Return why the files may differ from the running code, and a remedy; None if they do not."""
    if "__init__.py" not in FILES and "__init__.pyc" not in FILES:
        return (
            "the package has no files of its own, as in an archive or a frozen program",
            "load what Predictor.save wrote, which compiles nothing, or install the package",
        )
    if list_files() != FILES:
        return (
            "the files of the package have changed since this process imported it",
            "start the process again",
        )
    return None
