"""The library of a driver: where it is, what its functions take, and what helps against errors.

Only functions that take addresses or sizes are here.

Without, ctypes would pass these as 32 bits. The launch of a kernel is not among them: its caller
wraps the addresses, for checking 11 arguments would take longer than the rest of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any

_copy = (c_void_p, c_void_p, c_size_t, c_void_p)
_out = POINTER(c_void_p)
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "MemAlloc": (_out, c_size_t),
    **dict.fromkeys(("MemFree", "MemFreeHost", "StreamSynchronize"), (c_void_p,)),
    "MemHostAlloc": (_out, c_size_t, c_uint),
    **dict.fromkeys(("MemcpyHtoDAsync", "MemcpyDtoHAsync", "MemcpyDtoDAsync"), _copy),
    "ModuleGetFunction": (_out, c_void_p, c_char_p),
    "FuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "FuncSetAttribute": (c_void_p, c_int, c_int),
    "CtxPushCurrent": (c_void_p,),
    "CtxRecordEvent": (c_void_p, c_void_p),
    "StreamCreate": (_out, c_uint),
    "StreamIsCapturing": (c_void_p, POINTER(c_int)),
    "StreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "EventCreate": (_out, c_uint),
    "EventRecord": (c_void_p, c_void_p),
    **dict.fromkeys(("EventQuery", "EventDestroy", "EventSynchronize"), (c_void_p,)),
    "EventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}
"""By the names that `driver` has for them: those of CUDA without "cu" and "_v2"."""

NON_BLOCKING = 1
"""Says of a new stream that it does not wait for the default one."""

RELAXED = 2
"""What may be done on a thread while some stream is captured: all that does not touch it."""

NOT_READY = 600
"""The error of a query about work that is not done yet."""

FORKED = (
    "a GPU that is open does not survive a fork; start processes by 'spawn', or let none but the "
    "children predict"
)
SMALLER = "use smaller tiles in the schedule"
CAPTURING = dict.fromkeys(
    range(900, 909),
    "while a graph is captured, predict rows that are on the GPU, on the stream that is captured, "
    "and read results afterwards",
)
"""Remedies for the errors of streams that are captured."""


def find_library(names: Sequence[str]) -> Any | None:
    """Return the first shared library of some names that is there, or None."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
