"""How a command ends that a signal stops.

takes: a block; gives: its end as if by an error, so that no draft of a file is left.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that would end the process at once. Who sends one twice does not wait any more."""


@contextmanager
def unwind_when_stopped() -> Iterator[None]:
    """Leave a block by an exception when a signal stops the process, and let it end it then."""
    came: list[int] = []

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        came.append(number)
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # others set no handlers
    ours = [x for x in STOPPING if is_main and signal.getsignal(x) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])
