"""Detects whether an object has changed since it was compiled.

takes: arrays, objects; gives: digests and stamps that differ if these have changed.

Any code may hold a view of a scikit-learn tree and write to it, so arrays are compared by their
contents. The trees of a booster can only be changed by its methods; each method that may change it
gives it a new stamp.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from ..forest import Array
from ..system.process.locks import make_lock

Held = TypeVar("Held")


class WeakTable(Generic[Held]):
    """A table of values by the identity of objects; a value is dropped with its object.

    Unlike a WeakKeyDictionary, it needs no hash, which estimators that define `__eq__` lack.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Held]] = {}
        self._lock = make_lock()  # an object may be collected while the table is written

    def get(self, key: Any) -> Held | None:
        """Return the value of an object, None if there is none."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: Any, value: Held) -> None:
        """Store a value for the lifetime of the object."""
        place = id(key)

        def forget(reference: weakref.ref[Any]) -> None:
            with self._lock:
                entry = self._entries.get(place)
                if entry is not None and entry[0] is reference:
                    del self._entries[place]

        with self._lock:
            self._entries[place] = (weakref.ref(key, forget), value)

    def find(self, key: Any, make: Callable[[], Held]) -> Held:
        """Return the value of an object, creating it if there is none."""
        found = self.get(key)
        if found is None:
            with self._lock:
                found = self.get(key)
                if found is None:
                    found = make()
                    self.set(key, found)
        return found

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._entries.clear()


_STAMPS = WeakTable[int]()
_NEW = itertools.count()


def stamp_of(model: Any) -> int:
    """Return the stamp of an object: a number of its own, another one once it may have changed."""
    return _STAMPS.find(model, lambda: next(_NEW))


def with_new_stamp(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that its object gets a new stamp before and after the call."""

    @functools.wraps(method)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        _STAMPS.set(self, next(_NEW))
        try:
            return method(self, *args, **kwargs)
        finally:
            _STAMPS.set(self, next(_NEW))

    return changed


_WEIGHTS = np.zeros(0, np.uint64)


def _weights(size: int) -> Array:
    """Return at least `size` odd random numbers for `digest_arrays`, the same in every call."""
    global _WEIGHTS
    if len(_WEIGHTS) < size:
        drawn = np.random.default_rng(0).integers(0, 2**63, 2 * size, dtype=np.uint64)
        _WEIGHTS = drawn * np.uint64(2) + np.uint64(1)
    return _WEIGHTS


def digest_arrays(arrays: Iterable[Array]) -> tuple[Any, ...]:
    """Return a digest of the contents of arrays, computed at memory speed.

    The digest of an array is the sum of its 64-bit words times odd random numbers. A change of one
    word always changes it; changes of several words cancel as rarely as 64-bit hashes collide.

    Raises:
        TypeError: an array of Python objects.
    """
    found: list[Any] = []
    for array in arrays:
        if array.dtype.hasobject:
            raise TypeError("an array of objects")
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        n_words = len(octets) // 8
        words = octets[: n_words * 8].view(np.uint64)
        total = int(np.dot(words, _weights(n_words)[:n_words]))
        found.append((array.shape, total, octets[n_words * 8 :].tobytes()))
    return tuple(found)
