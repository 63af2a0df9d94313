"""Locks and lazily computed values that are safe with forks and signal handlers.

takes: nothing; gives: locks, which are free again in a child; properties that need none.

A fork copies the locks that other threads hold, and not the threads that would give them back. And
a signal handler or a destructor may run in the middle of any line, on the thread that holds a lock:
what it calls may ask for the lock again. So all locks of the package are made here, and are taken
by `with` alone, which no exception can interrupt between taking a lock and being bound to give it
back.
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
"""Held while a module is imported, since a fork would copy a half-imported module."""

_gate = make_lock()
"""Held during a fork, so that no further call starts for which it would have to wait."""

_sections = WeakSet[Any]()
"""A lock per thread, held while a fork has to wait for it."""

_held = list[Any]()
"""Locks held by the current fork."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.lock = make_lock()
        _sections.add(self.lock)


_of_thread = _OfThread()


def holds_off_forks(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """Decorator: forks by other threads wait for calls of this function.

    A fork in the middle would copy locks of LLVM and of the system that nobody gives back.
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
        """An attribute that is computed when it is first read.

        That of functools has a lock up to Python 3.11, which all objects of a class share.
        """

        def __init__(self, compute: Callable[[Any], Value]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return the value; from then on the object has it as an attribute of its own."""
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
