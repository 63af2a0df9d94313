"""Dataclasses with shared methods, so that hundreds of classes are defined in milliseconds.

takes: a class; gives: a frozen dataclass; a base class that keeps answers.

When a module is imported, Python generates and compiles the source of six methods for each frozen
dataclass, which took half of the time of importing this package. All methods but `__init__` depend
only on the names of the fields, so here all classes share one of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import is_dataclass as is_dataclass
from dataclasses import replace as replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen, eq=True, repr=True, kw_only=False):
        """Make a frozen dataclass, as the decorator of the standard library does, but faster.

        A class that derives from a frozen dataclass of the standard library, such as a layout, must
        be one too; it shares only `__repr__`, `__eq__` and `__hash__`.
        """
        assert frozen, "methods that change an object are not shared"
        shared = {"__repr__": _repr} if repr else {}
        shared |= {"__eq__": _eq, "__hash__": _hash} if eq else {}

        def make(cls):
            bases = filter(dataclasses.is_dataclass, cls.__mro__[1:])
            is_derived = any(base.__dataclass_params__.frozen for base in bases)
            options = {"eq": False, "repr": False, "kw_only": kw_only}
            made = dataclasses.dataclass(cls, init=is_derived, frozen=is_derived, **options)
            methods = shared
            if not is_derived:
                frozen = {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
                methods = {**shared, **frozen, "__init__": _write_init(made)}
            for name, method in methods.items():
                if made.__dict__.get(name) is None:  # Python sets `__hash__` to None for `__eq__`
                    setattr(made, name, method)
            return made

        return make


def _write_init(cls: type) -> Callable[..., None]:
    """Return the `__init__` of a class, which sets the fields without `__setattr__`."""
    known, lines = dict[str, Any](), ["_fields = self.__dict__"]
    entries = sorted(dataclasses.fields(cls), key=lambda x: bool(x.kw_only))
    parameters = ["self"]
    for entry in entries:
        if entry.kw_only and "*" not in parameters:
            parameters.append("*")
        name, value, default = entry.name, entry.name, ""
        if entry.default_factory is not dataclasses.MISSING:
            known[f"make_{name}"], default = entry.default_factory, "=MISSING"
            value = f"make_{name}() if {name} is MISSING else {name}"
        elif entry.default is not dataclasses.MISSING:
            known[f"default_{name}"], default = entry.default, f"=default_{name}"
        parameters.append(name + default)
        lines.append(f"_fields[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    known["MISSING"] = dataclasses.MISSING
    text = "\n    ".join([f"def __init__({', '.join(parameters)}):", *lines])
    exec(text, known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {x.name: x.type for x in entries} | {"return": None}
    return init


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    """Refuse to assign to an attribute."""
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    """Refuse to delete an attribute."""
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _repr(self: Any) -> str:
    """Return the constructor call that makes an equal object."""
    shown = (x.name for x in dataclasses.fields(self) if x.repr)
    text = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({text})"


def _eq(self: Any, other: Any) -> bool:
    """Return whether all compared fields are equal; NotImplemented for another class."""
    if type(other) is not type(self):
        return NotImplemented
    read = _reader(type(self))
    return bool(read(self) == read(other))


def _hash(self: Any) -> int:
    """Return the hash of all fields that are compared."""
    return hash(_reader(type(self))(self))


_readers = dict[type, Callable[[Any], Any]]()
"""Functions that return the compared fields of an object, by its class."""


def _reader(kind: type) -> Callable[[Any], Any]:
    if kind not in _readers:
        names = [x.name for x in dataclasses.fields(kind) if x.compare]
        _readers[kind] = attrgetter(*names) if names else lambda _: ()
    return _readers[kind]


class AsksOnce:
    """An immutable object that keeps what functions found out about it."""

    def ask_once(self, answer: Callable[..., Any], *question: Hashable) -> Any:
        """Return `answer(self, *question)`, which is computed once for each question, and kept."""
        answers = self.__dict__.setdefault("_answers", {})
        key = (answer, *question)
        if key not in answers:
            answers[key] = answer(self, *question)
        return answers[key]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without answers, which other versions could not read."""
        return {name: value for name, value in self.__dict__.items() if name != "_answers"}
