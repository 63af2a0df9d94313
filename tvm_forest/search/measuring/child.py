"""A child process, which may crash, hang or run out of memory without harming this process.

takes: functions with arguments; gives: their results, or a Failure.

The child is a fresh interpreter, so scripts need no `if __name__ == "__main__"`. Functions are
passed by name and arguments by pickle, through pipes. One child answers many calls; after a crash,
or when time or memory runs out, the next call starts and prepares another child.

The duration of a call is wall time minus the time that its threads wait for busy cores. So a call
that would finish in time on an idle machine is not ended on a busy one, but endless loops and waits
are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import BuildError, ForestError
from ...system.code_cache import OFF, VARIABLE

START = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"
PREPARE_SECONDS = 300.0
"""Time limit for preparing a child, in seconds."""

LOOK_SECONDS = 0.05
"""Seconds between two checks of a child."""

STATUSES = {
    0xC0000005: "access violation",
    0xC0000017: "no memory",
    0xC000001D: "illegal instruction",
    0xC0000094: "division by zero",
    0xC00000FD: "stack overflow",
    0xC0000374: "heap corruption",
    0xC0000409: "abort",
}
"""Windows exit codes that correspond to signals."""

ORPHAN_SECONDS = 600.0
"""A call that takes ten times its limit plus so many seconds ends itself: its parent is gone."""


class Failure(NamedTuple):
    """The reason why a call has no result.

    Attributes:
        reason: the reason in words.
        timed_out: whether it ran out of time.
    """

    reason: str
    timed_out: bool = False


class Child:
    """A child process that runs functions.

    It starts at once, restarts with the next call if it has ended, and is ended by `close`.

    A request is a pickled function, its arguments and a time limit; the answer is the pickled
    result or a `Failure`.
    """

    def __init__(self, *modules: str, megabytes: float = math.inf) -> None:
        """Start the process.

        Args:
            modules: modules that it imports while it waits for the first call.
            megabytes: the process is killed when it uses more memory than this.
        """
        self._modules, self._megabytes = modules, megabytes
        self._prepare: tuple[Callable[..., Any], tuple[Any, ...]] = os.getpid, ()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Any = None
        self._start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, function: Callable[..., None], *arguments: Any) -> None:
        """Set the function that the process, and any replacement, runs before its next call."""
        self._prepare, self._is_ready = (function, arguments), False

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Run a function in the child; return its result, or a `Failure`.

        Args:
            function: the child imports it by its name.
            arguments: picklable values.
            seconds: time limit, see the module; starting the child does not count.

        Raises:
            BuildError: a child cannot be prepared.
        """
        self.ready()
        return self._ask(function, arguments, seconds)

    def ready(self) -> None:
        """Wait until the process is prepared; start one if there is none.

        Raises:
            BuildError: it cannot be prepared.
        """
        if self._process is None:
            self._start()
        if self._is_ready:
            return
        answer = self._ask(*self._prepare, PREPARE_SECONDS)
        if isinstance(answer, Failure):
            self.close()
            raise BuildError(
                f"tune: the process that measures cannot be prepared: {answer.reason}; see that "
                "tvm_forest.build works"
            )
        self._is_ready = True

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._output.close()
            self._process = None

    def _start(self) -> None:
        # The output of a candidate, and the message of a crash, are read back if it fails.
        self._output = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._output}
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-c", START, *self._modules]
        self._is_ready = False
        # No cache: code that is built once, to be timed, would only evict other code.
        environment = {**os.environ, "PYTHONPATH": paths, VARIABLE: OFF}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def _ask(self, function: Any, arguments: tuple[Any, ...], seconds: float) -> Any:
        process, answered = self._process, threading.Event()
        assert process is not None and process.stdin is not None and process.stdout is not None
        ended: list[Failure] = []

        def guard() -> None:
            """End the process when it exceeds its time or memory."""
            taken = TimeTaken(process.pid)
            while not answered.wait(min(LOOK_SECONDS, seconds)):
                if taken.measure() >= seconds:
                    ended.append(Failure(f"over {seconds:.3g} s", timed_out=True))
                elif read_megabytes(process.pid) > self._megabytes:
                    ended.append(Failure(f"over {self._megabytes:.0f} MB of memory"))
                if ended:
                    return process.kill()

        watch = threading.Thread(target=guard, daemon=True)
        watch.start()
        try:
            pickle.dump((function, arguments, seconds), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            reason = self._explain_end(process)
            self.close()
            return ended[0] if ended else Failure(reason)
        except KeyboardInterrupt:
            self.close()
            raise
        finally:
            answered.set()
            watch.join()

    def _explain_end(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"crashed: {signal.Signals(-code).name}"
        if code in STATUSES:
            return f"crashed: {STATUSES[code]} (0x{code:08X})"
        return f"crashed: exit status {code}: {lines[-1] if lines else 'nothing said'}"


class Looked(NamedTuple):
    """Processor time, and waits for it, of a process and its descendants, as Linux reports them.

    Attributes:
        waits: seconds that each thread, by process and thread id, has waited for cores.
        worked: seconds on all cores, including ended threads and processes.
        sleeps: whether no thread is running or ready to run.
    """

    waits: dict[tuple[int, str], float]
    worked: float
    sleeps: bool


class TimeTaken:
    """Measures how long a process has worked or slept since this object was made.

    That is wall time minus the time its threads waited for busy cores. The thread that waited
    longest counts; child processes are assumed to run one after the other. Waits of threads that
    end between two checks are missed, so the result is at most the time on cores plus the time
    asleep.
    """

    def __init__(self, process: int) -> None:
        """Begin to measure a process, given by its id."""
        self._process, self._begin = process, time.monotonic()
        self._first = look_at(process)
        self._known = dict(self._first.waits) if self._first else {}
        self._looked, self._slept = self._begin, 0.0

    def measure(self) -> float:
        """Return the seconds that the process has worked or slept so far."""
        now, found = time.monotonic(), look_at(self._process)
        if found is None or self._first is None:
            return now - self._begin
        self._known |= found.waits
        if found.sleeps:  # if this check is late, it is unknown for how long
            self._slept += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        longest: dict[int, float] = {}
        for (process, thread), wait in self._known.items():
            since = wait - self._first.waits.get((process, thread), 0.0)
            longest[process] = max(since, longest.get(process, 0.0))
        taken = now - self._begin - sum(longest.values())
        return min(taken, found.worked - self._first.worked + self._slept)


def look_at(process: int) -> Looked | None:
    """Return Linux's figures of a process now; None if it has ended, and on other systems."""
    try:
        times = _read_stat(Path(f"/proc/{process}"))[11:15]
        threads = list(Path(f"/proc/{process}/task").iterdir())
    except (OSError, IndexError):
        return None
    found = Looked({}, sum(map(int, times)) / os.sysconf("SC_CLK_TCK"), True)
    for task in threads:
        with contextlib.suppress(OSError, IndexError):
            wait = (task / "schedstat").read_text(encoding="ascii").split()[1]
            found.waits[process, task.name] = int(wait) / 1e9
            found = found._replace(sleeps=found.sleeps and _read_stat(task)[0] != "R")
            for started in (task / "children").read_text(encoding="ascii").split():
                other = look_at(int(started)) or Looked({}, 0.0, True)
                found = Looked(
                    found.waits | other.waits,
                    found.worked + other.worked,
                    found.sleeps and other.sleeps,
                )
    return found


def _read_stat(place: Path) -> list[str]:
    """Return the fields of /proc's `stat` of a process or thread after its name."""
    return (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def read_megabytes(process: int) -> float:
    """Return the resident memory of a process on Linux, in MiB; 0 on other systems."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def serve(*modules: str) -> None:
    """Import modules, and answer calls until the pipe is closed; the child's main function.

    Our own errors are sent as answers; any other ends the child, with its last output as the
    reason.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with answers
    for name in modules:
        importlib.import_module(name)
    with contextlib.suppress(EOFError):
        while True:
            _answer(sys.stdin.buffer, answers)


def _answer(questions: BinaryIO, answers: BinaryIO) -> None:
    function, arguments, seconds = pickle.load(questions)
    # If the parent is gone, nobody else ends an endless call.
    faulthandler.dump_traceback_later(10 * seconds + ORPHAN_SECONDS, exit=True)
    try:
        result = function(*arguments)
    except ForestError as error:
        result = Failure(f"refused: {str(error).splitlines()[0]}")
    faulthandler.cancel_dump_traceback_later()
    pickle.dump(result, answers)
    answers.flush()
