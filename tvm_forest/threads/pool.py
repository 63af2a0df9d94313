"""The threads that help with parallel loops: one pool for the process.

takes: a number of threads, libraries; gives: helpers, for one call at a time.

TVM keeps a pool for each thread that calls. Such a pool outlives its thread, and a forked process
waits for its workers for ever, for a fork does not copy them. Here, a library that the pool serves
hands its parallel loops to the code in `pool.ll`: the calling thread and the helpers take tasks
until none is left. No thread waits for a helper that has not begun, so a late helper costs nothing,
and the next call starts a missing one, as after a fork.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..late import import_late

if TYPE_CHECKING:
    from . import pool_code
else:
    pool_code = import_late("tvm_forest.threads.pool_code")

PATIENCE = 2000
"""Looks for a task that a helper takes in vain, yielding its core each time, before it sleeps."""

SET_LAUNCHER = "set_launcher"
"""Name of the function of a library that takes the address of what runs its parallel loops."""


class _Native:
    """The functions and the variable of `pool.ll`.

    Attributes:
        launcher: the address of what runs parallel loops.
        help: takes tasks as the helper of a number, until so many looks found none.
        reset: forgets a job that was going on when the process was forked.
        helpers: number of helpers that the next loop may have.
    """

    def __init__(self, library: Any) -> None:
        address = library["address"]
        self._library = library  # whose code this is, and which must stay as long
        self.launcher: int = address(0)
        self.help = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address(1))
        self.reset = ctypes.CFUNCTYPE(None)(address(2))
        self.helpers = ctypes.c_int64.from_address(address(3))


class _Helper:
    """A thread that takes tasks of loops that other threads run, and sleeps if none comes for long.

    Attributes:
        sleeps: whether the thread must be woken before it takes tasks.
    """

    def __init__(self, number: int, native: _Native) -> None:
        self._number, self._native = number, native
        self._call, self.sleeps = threading.Lock(), False
        self._call.acquire()
        threading.Thread(target=self._run, name=f"tvm_forest {number}", daemon=True).start()

    def wake(self) -> None:
        """Let the thread look for tasks; only the caller that has the helpers may do so."""
        if self.sleeps:
            self.sleeps = False
            self._call.release()

    def _run(self) -> None:
        while True:
            self._native.help(self._number, PATIENCE)
            self.sleeps = True
            self._call.acquire()


class Pool:
    """All helpers of a process, each of which is started when a call asks for it first.

    Attributes:
        started: the helpers that run or sleep.
    """

    def __init__(self) -> None:
        self._native: _Native | None = None
        self._loading = threading.Lock()
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew without helpers, for a forked process has none of them, and no callers."""
        self._held = threading.Lock()
        self.started = list[_Helper]()
        if self._loading.locked():
            self._loading = threading.Lock()
        if self._native is not None:
            self._native.reset()

    def serve(self, library: Any, holds_pool: bool = False) -> None:
        """Let a library, which holds `make_launcher_setter`, run its parallel loops here.

        Args:
            library: with parallel loops.
            holds_pool: whether the code of `pool.ll` is linked into it, as into those of files.
                The first one gives it to the process; without one it is compiled.
        """
        library[SET_LAUNCHER](self._load(library if holds_pool else None).launcher)

    @property
    def launcher(self) -> int:
        """The address of what runs parallel loops, as TVM's TVMBackendParallelLaunch does it."""
        return self._load(None).launcher

    def _load(self, library: Any) -> _Native:
        with self._loading:
            self._native = self._native or _Native(library or pool_code.compile_pool())
        return self._native

    @contextmanager
    def helpers(self, count: int, waits: bool) -> Iterator[bool]:
        """Lend helpers to the parallel loops that this thread runs meanwhile.

        Args:
            count: number of helpers; fewer help if the system gives no more threads.
            waits: whether to wait while another thread has the helpers, or to go on without.

        Yields:
            Whether this thread has the helpers.
        """
        held, native = self._held, self._native
        if native is None or not held.acquire(blocking=waits):
            yield False
            return
        try:
            native.helpers.value = self._wake(count, native)
            yield True
        finally:
            native.helpers.value = 0
            held.release()

    def _wake(self, count: int, native: _Native) -> int:
        while len(self.started) < count:
            try:
                self.started.append(_Helper(len(self.started), native))
            except RuntimeError:  # the system gives no more threads, or Python is about to end
                break
        for helper in self.started[:count]:
            helper.wake()
        return min(count, len(self.started))


POOL = Pool()
"""The pool of this process."""
