"""A child process that compiles one model, and ends when its parent does.

takes: BuildRequest; gives: its schedules and code, or an error.

The child is a fresh interpreter, so scripts need no `if __name__ == "__main__"`. It reads the
request from its input, which stays open as long as its parent lives.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import BuildError, ForestError
from ...layouts.laying_out import Compiled
from ...layouts.laying_out.request import BuildRequest
from ...runtime.loading import MachineCode
from ...schedule_prims import Schedule
from ...targets.stored_code import load_library, to_machine_code
from ..compiling import compile_or_load

START = f"from {__name__} import serve; serve()"

LOOK_SECONDS = 1.0
"""Seconds between two checks that the parent lives. Its end may leave the pipe open, as another
child can hold it."""


class Outcome(NamedTuple):
    """The result of a request.

    Attributes:
        schedules: schedules of the request.
        code: machine code of each library.
        compiled: the compiled functions, without their libraries.
    """

    schedules: dict[int, Schedule]
    code: list[MachineCode]
    compiled: Compiled


class Compiling:
    """The child process, which starts at once.

    Attributes:
        is_ended: whether `end` was called, so that a failure is no error.
    """

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: there is no interpreter to start.
        """
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("this program is no interpreter of Python")
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.is_ended = False
        self._words = tempfile.TemporaryFile()  # standard error, for the message after a crash
        self._process = subprocess.Popen(
            [sys.executable, "-c", START],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
        )

    def end(self) -> None:
        """End the process if it is running."""
        self.is_ended = True
        self._process.kill()

    def compile(self, request: BuildRequest) -> tuple[BuildRequest, Compiled]:
        """Return the result of `compile_or_load`, computed in the child; may be called once.

        Raises:
            BuildError: the process ends without an answer, or its code cannot be loaded.
            ForestError: see `compile_or_load`.
        """
        answer = self._ask(_without_caches(request))
        if isinstance(answer, ForestError):
            raise answer
        libraries = [load_library(code, request.target) for code in answer.code]
        if None in libraries:
            raise BuildError(
                "build: the system refuses the code of the process that compiles; leave out 'wait'"
            )
        known = replace(request, schedules=answer.schedules, known_signature=request.signature)
        pairs = zip(answer.compiled.code, libraries, strict=True)
        code = [replace(part, library=library) for part, library in pairs]
        return known, answer.compiled._replace(code=code)

    def _ask(self, request: BuildRequest) -> Any:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with process, self._words:
            try:
                pickle.dump((os.getpid(), request), process.stdin)
                process.stdin.flush()
                return pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError):
                process.kill()
                with contextlib.suppress(OSError):  # a broken pipe, with bytes that it has not read
                    process.stdin.close()
                raise BuildError(f"build: the process that compiles {self._explain()}") from None

    def _explain(self) -> str:
        code = self._process.wait()
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            return f"was ended by signal {-code}; see that there is memory for it"
        what = lines[-1] if lines else f"exit status {code}"
        return f"failed: {what}; leave out 'wait' to see where"


def _without_caches(request: BuildRequest) -> BuildRequest:
    """Return a request that can be pickled: without caches that threads may be filling."""
    forest, origin = (replace(x, with_all_rounds=None) for x in (request.forest, request.origin))
    return replace(request, forest=forest, origin=origin, given=None)


def serve() -> None:
    """Compile the parent's request; the child's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that prints do not mix with the answer
    parent, request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    answer: Any
    try:
        known, compiled = compile_or_load(request)
        code = [to_machine_code(x.library, request.target) for x in compiled.code]
        bare: Any = [replace(x, library=None) for x in compiled.code]
        answer = Outcome(known.schedules, code, compiled._replace(code=bare))
    except ForestError as error:
        answer = error
    pickle.dump(answer, answers)
    answers.flush()
    os._exit(0)  # threads of compilers need not be waited for


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, which closes the pipe."""
    if sys.platform == "win32":
        os.read(0, 1)
    else:
        while os.getppid() == parent and not select.select([0], [], [], LOOK_SECONDS)[0]:
            pass
    os._exit(1)
