"""Modules that are imported when they are first used.

takes: the name of a module; gives: what stands for it until then; whether the files of the package
are still those whose code runs.

The compiler takes a second to import, and a process that finds its code in a file or in the cache
never needs it. A room that does says so at its top, as if it imported the module:

    if TYPE_CHECKING:
        from .. import compiler
    else:
        compiler = import_late("tvm_forest.compiler")

Where an upgrade changes the files of the package meanwhile, nobody can tell which code the process
runs, so this room, which is imported with the package, notes how they are then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from .errors import BuildError


class LateModule(ModuleType):
    """Stands for a module, which it imports when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_module(self.__name__)
        except ModuleNotFoundError as error:
            if error.name != "tvm":
                raise
            raise BuildError(
                f"build: {self.__name__} needs the compiler, which is not installed; install "
                "apache-tvm, or load what Predictor.save wrote on a machine like this one"
            ) from None
        return getattr(module, name)

    def __reduce__(self) -> Any:
        """Say how to pickle it: by its name."""
        return import_late, (self.__name__,)


def import_late(name: str) -> Any:
    """Return what stands for a module of this package until it is used."""
    return LateModule(name)


PACKAGE = os.path.dirname(os.path.abspath(__file__))
"""The folder of this package."""

SUFFIXES = (".py", ".pyc", ".so", ".pyd", ".ll", ".c", ".h", ".cuh", ".json")
"""Of the files that decide what the package computes. Byte code counts where it stands for sources,
and not where Python caches it."""

About = tuple[int, int, int]
"""Number, size and time of a file, of which an upgrade changes one at least."""


def list_files() -> dict[str, About]:
    """Return the files of the package as they are now, by their paths inside it.

    Without files of its own, as in an archive or in a frozen program, there are none.
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
"""What was there when the package was imported."""


def find_change() -> tuple[str, str] | None:
    """Say why nobody can tell which code this process runs, and what helps; None if one can."""
    if os.path.basename(__file__) not in FILES:
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
