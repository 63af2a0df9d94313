"""Delays the end of a program while daemon threads predict or compile.

takes: functions that release the interpreter's lock; gives: an exit of the program without a crash.

When a program ends, Python ends a daemon thread as soon as it acquires the interpreter's lock. C++
code in a call of TVM cannot be ended so, and aborts the process. Python also frees objects that the
thread still uses, such as the library whose code it runs. So, at the end of a program, this file
waits for calls that have begun, and delays others. Calls before the end cost nothing more.
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
"""Seconds for which a call is delayed that begins while the program ends. Usually the process is
gone by then; if the program waits for the thread at its end, the call is made after all."""

POLL_SECONDS = 0.001

PACKAGE = __name__.partition(".")[0]

Marked = TypeVar("Marked", bound=Callable[..., Any])

_marked = list[FunctionType]()


def is_waited_for(function: Marked) -> Marked:
    """Decorate a function so that the end of the program waits for calls of it."""
    assert isinstance(function, FunctionType)
    _marked.append(function)
    return function


@atexit.register
def _end() -> None:
    codes = {function.__code__ for function in _marked}
    for function in _marked:
        for owner in _owners(function):
            setattr(owner, function.__name__, _hold_up(function, codes))
    time.sleep(POLL_SECONDS)  # a thread that has just looked up a function begins its call
    others = sys._current_frames().keys() - {threading.get_ident()}
    while any(_is_inside(sys._current_frames().get(thread), codes) for thread in others):
        time.sleep(POLL_SECONDS)


def _owners(function: FunctionType) -> Iterator[Any]:
    """Yield what has a function as an attribute: its class, or modules of the package."""
    *classes, name = function.__qualname__.split(".")
    if classes:
        yield functools.reduce(getattr, classes, sys.modules[function.__module__])
        return
    ours = [x for key, x in list(sys.modules.items()) if key.partition(".")[0] == PACKAGE]
    yield from (module for module in ours if vars(module).get(name) is function)


def _hold_up(function: FunctionType, codes: set[CodeType]) -> Callable[..., Any]:
    """Return a replacement for a function that delays calls while the program ends.

    Calls on the thread that ends the program, or inside a call in progress, are not delayed.
    """
    ending = threading.get_ident()

    @functools.wraps(function)
    def begin_late(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != ending and not _is_inside(sys._getframe(1), codes):
            time.sleep(GRACE_SECONDS)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(args))  # so that nothing it uses is freed
        return function(*args, **kwargs)

    return begin_late


def _is_inside(frame: FrameType | None, codes: set[CodeType]) -> bool:
    """Return whether a frame is inside a call of a function with one of these code objects."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
