"""A child process that tries cases, started when there is one, and anew after one that ended it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a case ended the process: "crash" or "hang", in which phase, and with which exit code."""

    how: str
    phase: str
    code: int | None


class Child:
    """A process, which is replaced when a case ends it.

    Args:
        serve: runs in the process; receives cases from a pipe until None comes, and sends an answer
            to each, a dict, after the names of the phases that it enters.
        limits: seconds after which a case hangs, by phase, the first of which it begins in.
    """

    process: Any = None

    def __init__(self, serve: Callable[[Connection], None], limits: Mapping[str, float]) -> None:
        self.serve, self.limits = serve, limits

    def _start(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("forkserver")  # imports only once
        self.process = context.Process(target=self.serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tried(self, case: tuple[Any, ...]) -> dict[str, Any] | Ended:
        """Try a case; return its answer, or how it ended the process."""
        if self.process is None:
            self._start()
        phase, how = next(iter(self.limits)), "crash"
        try:
            self.pipe.send(case)
            while self.pipe.poll(self.limits[phase]):
                answer = self.pipe.recv()
                if isinstance(answer, dict):
                    return answer
                phase = answer
            how = "hang"
        except (EOFError, ConnectionError):
            pass
        return Ended(how, phase, self.close())

    def close(self) -> int | None:
        """End the process; return its exit code."""
        ended, self.process = self.process, None
        if ended is None:
            return None
        ended.join(1)  # one that crashes says so itself
        ended.kill()
        ended.join()
        return int(ended.exitcode)
