"""Dataclasses whose methods are shared, so that there are many within milliseconds.

takes: a class; gives: a frozen dataclass.

Python writes, compiles and runs the text of each method of each dataclass while it is imported: two
thirds of the time that this package took to import. What equality, hashes and texts depend on are
the fields alone, so one method each does for all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen, eq=True, repr=True, kw_only=False):
        """Do what the decorator of the standard library does for classes that are frozen."""
        assert frozen, "methods that write to an object are not shared"

        def make(cls):
            own = cls.__dict__
            shared = {"__repr__": _repr} if repr else {}
            if eq:
                shared |= {"__eq__": _eq, "__hash__": _hash}
            for name, method in shared.items():
                if own.get(name) is None:  # Python says so of the hash of a class with `__eq__`
                    setattr(cls, name, method)
            return dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=kw_only)(cls)

        return make


def _repr(self: Any) -> str:
    """Return the text that makes such an object."""
    shown = (x.name for x in dataclasses.fields(self) if x.repr)
    text = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({text})"


def _eq(self: Any, other: Any) -> bool:
    """Return whether all fields are equal, of two objects of one class."""
    if type(other) is not type(self):
        return NotImplemented
    read = _reader(type(self))
    return bool(read(self) == read(other))


def _hash(self: Any) -> int:
    """Return the hash of all fields."""
    return hash(_reader(type(self))(self))


_readers = dict[type, Callable[[Any], Any]]()
"""What reads the fields of objects that are compared, by their class."""


def _reader(kind: type) -> Callable[[Any], Any]:
    if kind not in _readers:
        names = [x.name for x in dataclasses.fields(kind) if x.compare]
        _readers[kind] = attrgetter(*names) if names else lambda _: ()
    return _readers[kind]
