"""The pool of helper threads for parallel loops, one per process.

takes: a number of threads, libraries; gives: helpers, for one call at a time.

TVM has a pool for each calling thread. Such a pool outlives its thread, and a forked process waits
for its workers for ever, since a fork does not copy threads. Here, a library that the pool serves
passes its parallel loops to the code in `pool.ll`: the calling thread and the helpers take tasks
until none is left. No thread waits for a helper that has not begun, so a late helper costs nothing,
and the next call starts helpers that are missing, as after a fork.

The same native code acquires and releases the helpers, around the call of the compiled function. So
no signal handler, destructor or exception of Python can run in between, which might leave the
helpers acquired, or try to acquire them again on the same thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from ...system.process.locks import make_lock

SET_LAUNCHER = "set_launcher"
"""Name of a library's function that sets the address of the parallel launcher."""


class _Native:
    """The functions of `pool.ll`, `few_rows.ll` and `ranges.ll`.

    Attributes:
        launcher: address of the function that runs parallel loops.
        run: function that calls another one with helpers.
        reset: function that forgets the helpers, and a job that was in progress at a fork.
        few_rows: address of the code for calls of few rows.
        call_ranges: function that calls compiled functions for ranges of rows, by a plan's address.
    """

    def __init__(self, library: Any) -> None:
        # Helpers and functions of Python may run this code as long as the process lives.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
        address = library["address"]
        self.launcher: int = address(0)
        self.run = library["run"]
        self.reset = ctypes.CFUNCTYPE(None)(address(1))
        self.few_rows: int = address(2)
        self.call_ranges = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address(3))


class Pool:
    """All helper threads of a process; each starts when a call first needs it."""

    def __init__(self) -> None:
        self._native: _Native | None = None
        self._loading = make_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Reset the pool in a forked process, which has no helper threads."""
        if self._native is not None:
            self._native.reset()

    def serve(self, library: Any, find_code: Callable[[], Any]) -> None:
        """Register this pool as the launcher of a library's parallel loops.

        Args:
            library: library whose functions have parallel loops.
            find_code: see `load`.
        """
        library[SET_LAUNCHER](self.load(find_code))

    def load(self, find_code: Callable[[], Any]) -> int:
        """Return the address of the launcher, which replaces TVMBackendParallelLaunch.

        Args:
            find_code: function that returns a library with the code of `pool.ll`. It is called once
                in a process; the pool uses the code of that library from then on.
        """
        return self._load(find_code).launcher

    def load_few_rows(self, find_code: Callable[[], Any]) -> int:
        """Return the address of the code for few rows, see `load`."""
        return self._load(find_code).few_rows

    def load_ranges(self, find_code: Callable[[], Any]) -> Callable[[int], int]:
        """Return the function of `ranges.ll`, which takes the address of a plan, see `load`."""
        return self._load(find_code).call_ranges

    def _load(self, find_code: Callable[[], Any]) -> _Native:
        if self._native is None:
            with self._loading:
                self._native = self._native or _Native(find_code())
        return self._native

    def run(self, function: Any, arguments: tuple[Any, ...], helpers: int, waits: bool) -> bool:
        """Call a function with helpers for its parallel loops.

        Args:
            function: function to call, of a library that the pool serves.
            arguments: its arguments.
            helpers: number of helpers; there are fewer if the system starts no more threads.
            waits: whether to wait while another thread has the helpers.

        Returns:
            Whether the function was called; if not, another thread has the helpers.
        """
        assert self._native is not None, "no library is served yet"
        return bool(self._native.run(function, helpers, waits, *arguments))


POOL = Pool()
"""The pool of this process."""
