"""Locks and lazily computed values that are safe with forks and signal handlers.

takes: nothing; gives: locks that are free in a forked process; cached properties without a lock.

A fork copies locks that other threads hold, but not the threads, which would release them. And a
signal handler or a destructor may run between any two instructions, on the thread that holds a
lock, and may acquire the lock again. So all locks of the package are made here, are reentrant, and
are acquired only by `with`, which no exception can interrupt between acquiring a lock and making
sure that it is released.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

Given = ParamSpec("Given")
Value = TypeVar("Value")

_locks = WeakSet[Any]()
"""All locks made in this process."""


def make_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked process."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


importing = make_lock()
"""Lock held while a module is imported, since a fork would copy a half-imported module."""

_gate = make_lock()
"""Lock held during a fork, so that no further call of a `holds_off_forks` function starts."""

_sections = WeakSet[Any]()
"""The locks of all threads; a thread holds its own while forks have to wait for it."""

_held = list[Any]()
"""Locks that the fork in progress has acquired."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.lock = make_lock()
        _sections.add(self.lock)


_of_thread = _OfThread()


def holds_off_forks(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """Decorate a function so that forks by other threads wait for calls of it.

    A fork during a call would copy locks of LLVM and of the system that no thread releases.
    """

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        own: Any = _of_thread.lock
        if not own._is_owned():
            with _gate:
                pass
        with own:
            return function(*args, **kwargs)

    return call


def _wait_for_others() -> None:
    for lock in (_gate, *list(_sections), importing):
        lock.acquire()
        _held.append(lock)


def _go_on() -> None:
    while _held:
        _held.pop().release()


def _free_all() -> None:
    """Free the locks of threads that do not exist in the forked process."""
    _held.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_others, after_in_parent=_go_on, after_in_child=_free_all)


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(Generic[Value]):
        """An attribute that is computed, without a lock, when it is first read.

        Up to Python 3.11, `functools.cached_property` has a lock that all objects of a class share.
        """

        def __init__(self, compute: Callable[[Any], Value]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute and return the value, and store it as an attribute of the object."""
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
