"""A process that works for this one, and may crash or hang without harm to it.

takes: functions with arguments; gives: what they return, or why they did not.

The child is a fresh interpreter, so scripts need no `if __name__ == "__main__"`. Functions travel
by name and arguments by pickle, through pipes. One child answers many calls; after a crash, or when
time is up, the next call starts another one, and prepares it anew.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from ..errors import BuildError, ForestError

START = "from tvm_forest.tuning.child import serve; serve()"
PATIENCE = 300.0
"""Seconds in which a child must have prepared itself."""


class Failure(NamedTuple):
    """Why a call has no result.

    Attributes:
        reason: in words.
        timed_out: whether its time was up.
    """

    reason: str
    timed_out: bool = False


class Child:
    """The process; it starts with the first call and ends with `close`."""

    def __init__(self, prepare: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Say what a child does before its first call."""
        self._prepare = (prepare, arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return the result of a function of a module, or a `Failure`.

        Args:
            function: the child imports it by its name.
            arguments: what pickle can carry.
            seconds: after which the child is ended; to start it does not count.

        Raises:
            BuildError: a child cannot be prepared.
        """
        prepare, given = self._prepare
        if self._process is None:
            self._start()
            started = self._ask(prepare, given, PATIENCE) if prepare else None
            if isinstance(started, Failure):
                self.close()
                raise BuildError(
                    f"tune: the process that measures cannot be prepared: {started.reason}; see "
                    "that tvm_forest.build works"
                )
        return self._ask(function, arguments, seconds)

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._said.close()
            self._process = None

    def _start(self) -> None:
        # What a candidate prints, and the words of a crash, are read back if it fails.
        self._said = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": paths}
        self._process = subprocess.Popen([sys.executable, "-c", START], env=environment, **pipes)

    def _ask(self, function: Any, arguments: tuple[Any, ...], seconds: float) -> Any:
        process, late = self._process, threading.Event()
        assert process is not None and process.stdin is not None and process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            pickle.dump((function, arguments, seconds), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            reason = self._reason_of_end(process)
            self.close()
            return Failure(f"over {seconds:.3g} s" if late.is_set() else reason, late.is_set())
        except KeyboardInterrupt:
            self.close()
            raise
        finally:
            timer.cancel()

    def _reason_of_end(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"crashed: {signal.Signals(-code).name}"
        return f"crashed: exit status {code}: {lines[-1] if lines else 'nothing said'}"


def serve() -> None:
    """Answer calls until the pipe is closed; this is what the child runs.

    Errors of the package are answers; any other ends the child, and its last words are the reason.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    with contextlib.suppress(EOFError):
        while True:
            _answer(sys.stdin.buffer, answers)


def _answer(questions: BinaryIO, answers: BinaryIO) -> None:
    function, arguments, seconds = pickle.load(questions)
    # If the parent is gone, nobody else ends an endless call.
    faulthandler.dump_traceback_later(seconds + 10, exit=True)
    try:
        result = function(*arguments)
    except ForestError as error:
        result = Failure(f"refused: {str(error).splitlines()[0]}")
    faulthandler.cancel_dump_traceback_later()
    pickle.dump(result, answers)
    answers.flush()
