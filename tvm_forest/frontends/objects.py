"""Finds the library of an object by the names of its classes, without importing any library.

takes: an object; gives: names of libraries and classes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def library_of(cls: type) -> str:
    """Return the name of the top-level package that defines a class."""
    return cls.__module__.split(".")[0]


def find_class(model: Any, library: str, names: Collection[str]) -> str | None:
    """Return the name of an object's first class that is of `library` and in `names`, or None.

    Base classes count, in the order of the MRO.
    """
    classes = (cls for cls in type(model).__mro__ if library_of(cls) == library)
    return next((cls.__name__ for cls in classes if cls.__name__ in names), None)
