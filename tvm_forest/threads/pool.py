"""The threads that help with parallel loops: one pool for the process.

takes: a number of threads, libraries; gives: helpers, for one call at a time.

TVM keeps a pool for each thread that calls, which outlives that thread, and whose workers a process
that was forked lacks, so it waits for them for ever. Here, the code of a library that the pool
serves hands its parallel loops to `pool.ll`: the caller and the helpers take tasks until none is
left. Nobody waits for a helper that has not begun, so a late one costs nothing, and a missing one,
as after a fork, is started by the next call.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PrimType, StringImm

ZERO = tirx.const(0, "int32")

PATIENCE = 2000
"""How often a helper looks for a task in vain, yielding its core each time, before it sleeps."""

SET_LAUNCHER = "set_launcher"
"""The function of a library that takes the address of what runs its parallel loops."""

SLOT = """
@__TVMBackendParallelLaunch = external global ptr
define i32 @tvm_forest_set_launcher(i64 %address) {
  %launcher = inttoptr i64 %address to ptr
  store ptr %launcher, ptr @__TVMBackendParallelLaunch
  ret i32 0
}
"""
"""TVM's code calls what this variable points to; TVM sets it when it loads a library."""


def launcher_setter() -> tirx.PrimFunc:
    """Return the function `SET_LAUNCHER`, which belongs into libraries with parallel loops."""
    address = tirx.Var("address", "int64")
    done = tirx.call_extern("int32", "tvm_forest_set_launcher", address)
    body = tirx.AttrStmt(ZERO, "pragma_import_llvm", StringImm(SLOT), tirx.Evaluate(done))
    return tirx.PrimFunc([address], body).with_attr("global_symbol", SET_LAUNCHER)


class _Native:
    """The functions and the variable of `pool.ll`.

    Attributes:
        launcher: the address of what runs parallel loops.
        help: take tasks as a helper of some number, until none came for `PATIENCE` looks.
        reset: forget a job that was going on when the process was forked.
        helpers: how many helpers the next loop may have.
    """

    def __init__(self) -> None:
        code = Path(__file__).with_name("pool.ll").read_text("ascii")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pool.ll")
            file.write_text(f"{_target_lines()}\n{code}", "ascii")
            self._library = tvm.runtime.load_module(str(file))
        address = self._library["address"]
        self.launcher: int = address(0)
        self.help = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address(1))
        self.reset = ctypes.CFUNCTYPE(None)(address(2))
        self.helpers = ctypes.c_int64.from_address(address(3))


def _target_lines() -> str:
    """Return how LLVM's text names the machine at hand."""
    nothing = tirx.PrimFunc([], tirx.Return(ZERO), PrimType("int32"))
    mod = tvm.IRModule({"nothing": nothing.with_attr("global_symbol", "nothing")})
    text = tvm.compile(mod, target=tvm.target.Target({"kind": "llvm"})).mod.inspect_source("ll")
    return "\n".join(line for line in text.splitlines() if line.startswith("target "))


class _Helper:
    """A thread that takes tasks of the loops of others, and sleeps when there are none for long.

    Attributes:
        sleeps: whether it must be woken.
    """

    def __init__(self, number: int, native: _Native) -> None:
        self._number, self._native = number, native
        self._call, self.sleeps = threading.Lock(), False
        self._call.acquire()
        threading.Thread(target=self._run, name=f"tvm_forest {number}", daemon=True).start()

    def wake(self) -> None:
        """Let it look for tasks; only the holder of the pool may ask."""
        if self.sleeps:
            self.sleeps = False
            self._call.release()

    def _run(self) -> None:
        while True:
            self._native.help(self._number, PATIENCE)
            self.sleeps = True
            self._call.acquire()


class Pool:
    """All helpers of a process. They are started when they are asked for first.

    Attributes:
        started: the helpers that there are.
    """

    def __init__(self) -> None:
        self._native: _Native | None = None
        self._loading = threading.Lock()
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew without helpers; a process that was forked has none, and no callers."""
        self._held = threading.Lock()
        self.started = list[_Helper]()
        if self._loading.locked():
            self._loading = threading.Lock()
        if self._native is not None:
            self._native.reset()

    def serve(self, library: Any) -> None:
        """Let the parallel loops of a library, made with `launcher_setter`, run here."""
        library[SET_LAUNCHER](self.launcher)

    @property
    def launcher(self) -> int:
        """The address of what runs parallel loops, as TVM's TVMBackendParallelLaunch does it."""
        with self._loading:
            self._native = self._native or _Native()
        return self._native.launcher

    @contextmanager
    def helpers(self, count: int, waits: bool) -> Iterator[bool]:
        """Lend helpers to the parallel loops that this thread runs meanwhile.

        Args:
            count: of helpers, beside the calling thread; there are fewer if the system gives none.
            waits: whether to wait while another thread has them; else there are none then.

        Yields:
            Whether this thread has them.
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
"""The one of this process."""
