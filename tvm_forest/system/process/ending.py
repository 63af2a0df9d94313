"""Delays the end of a program while daemon threads predict or compile.

takes: functions that run code without the interpreter's lock; gives: an end without a crash.

Python ends such a daemon thread where it next asks for the interpreter's lock, and the C++ under a
call of TVM cannot be ended: it aborts the process. Python also drops what the thread's calls hold,
such as the library whose code it runs. So, when a program ends, calls that have begun are waited
for, and others do not begin. That costs a call nothing before.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)]
"""Signals that end a program; Windows has SIGBREAK, and never sends SIGTERM."""

GRACE_SECONDS = 1.0
"""Seconds for which a call that begins too late is delayed. Python has ended by then, unless what a
program does at its end waits for the thread: then the call goes on."""

POLL_SECONDS = 0.001

PACKAGE = __name__.partition(".")[0]

Marked = TypeVar("Marked", bound=Callable[..., Any])

_marked = list[FunctionType]()


def is_waited_for(function: Marked) -> Marked:
    """Decorator: the end of the program waits for calls of this function."""
    assert isinstance(function, FunctionType)
    _marked.append(function)
    return function


@atexit.register
def _end() -> None:
    codes = {function.__code__ for function in _marked}
    for function in _marked:
        for owner in _owners(function):
            setattr(owner, function.__name__, _hold_up(function, codes))
    time.sleep(POLL_SECONDS)  # who has looked a function up begins it meanwhile
    others = sys._current_frames().keys() - {threading.get_ident()}
    while any(_is_inside(sys._current_frames().get(thread), codes) for thread in others):
        time.sleep(POLL_SECONDS)


def _owners(function: FunctionType) -> Iterator[Any]:
    """Yield the class of a method, or the modules that refer to a function by name."""
    *classes, name = function.__qualname__.split(".")
    if classes:
        yield functools.reduce(getattr, classes, sys.modules[function.__module__])
        return
    ours = [x for key, x in list(sys.modules.items()) if key.partition(".")[0] == PACKAGE]
    yield from (module for module in ours if vars(module).get(name) is function)


def _hold_up(function: FunctionType, codes: set[CodeType]) -> Callable[..., Any]:
    """Return a function whose late calls are delayed, except on the main thread."""
    ending = threading.get_ident()

    @functools.wraps(function)
    def begin_late(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != ending and not _is_inside(sys._getframe(1), codes):
            time.sleep(GRACE_SECONDS)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(args))  # what it needs stays till the end
        return function(*args, **kwargs)

    return begin_late


def _is_inside(frame: FrameType | None, codes: set[CodeType]) -> bool:
    """Return whether a frame is inside a call of one of these functions."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
