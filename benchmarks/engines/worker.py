"""One engine and one model in a process of its own, and the handle by which the benchmark has it.

takes: requests, JSON lines on standard input; gives: answers, JSON lines on standard output.

A process each, so that threads of one engine cannot wait in the way of another, peaks of memory are
those of one engine, and an engine that crashes or compiles for ever ends alone. The handle waits
for one answer at a time: while one engine runs, the others sleep.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import engines, environment
from benchmarks.checks import compare
from benchmarks.models import Model
from benchmarks.timing import time_round

SHIFT = 4096
"""Rows from the beginning of one batch to that of the next, if batches are longer than that."""
FIRST = 0.005
"""Seconds of a call, up to which a turn begins with one that does not count."""


class Refused(Exception):
    """An engine that has no figures: a short code, and why."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.why = code, why


# -- in the benchmark -----------------------------------------------------------------------------


class Worker:
    """A running engine."""

    def __init__(
        self, engine: str, model: Model, threads: int, folder: Path, python: str = sys.executable
    ) -> None:
        """Start the process.

        Args:
            threads: the most that will be asked for.
            folder: for files that the engine makes and that nobody needs afterwards.
            python: interpreter whose environment has the engine, and numpy.
        """
        variables = environment() | {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": str(folder),
        }
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.engines.worker", engine, model.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,  # compilers that it starts end with it
        )

    def ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            Refused: the engine raises, dies, or takes more than `patience` seconds.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._dead() from None
        if not select.select([stdout], [], [], patience)[0]:
            raise Refused("slow", f"no answer within {patience:.0f} s to '{request['do']}'")
        line = stdout.readline()
        if not line:
            raise self._dead()
        answer: dict[str, Any] = json.loads(line)
        if "code" in answer:
            raise Refused(answer["code"], answer["why"])
        return answer

    def _dead(self) -> Refused:
        status = self.process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return Refused("crashed", f"its process ended with {how}")

    def close(self) -> None:
        """End the process and those that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


# -- in the process -------------------------------------------------------------------------------


class Served:
    """The engine, once it has been made."""

    def __init__(self, name: str, model: Model) -> None:
        self.model, self.batches, self.rows = model, {}, None
        self.cls, self.argument = engines.find(name)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says."""
        methods = {f.__name__: f for f in (self.make, self.use, self.check, self.run)}
        return methods[request.pop("do")](**request)

    def make(self) -> dict[str, Any]:
        """Import what the engine needs, make it, and predict a few rows."""
        for module in self.cls.modules(self.model):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise Refused("absent", f"cannot import {module}: {error}") from error
        imported, begin = peak(), time.perf_counter()
        self.engine = self.cls(self.model, self.argument)
        self.engine.use_threads(1)
        few = self._in_dtype(self.model.rows()[:8])
        self.engine.predict(few)
        seconds = time.perf_counter() - begin
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        return {
            "make_s": seconds,
            "import_bytes": imported,
            "peak_bytes": max(peak(), children),  # before the model is written to be measured
            "model_bytes": self.engine.model_bytes(),
            "must_equal": self.engine.must_equal,
        }

    def use(self, threads: int) -> dict[str, Any]:
        """Tell the engine how many threads, and the pools that ask nobody."""
        try:
            import threadpoolctl

            threadpoolctl.threadpool_limits(threads)
        except ImportError:
            pass
        self.engine.use_threads(threads)
        return {}

    def check(self, path: str, kind: str, sizes: list[int]) -> dict[str, Any]:
        """Compare with the training library; the first rows also as batches of small sizes."""
        known = np.load(path)
        rows, found = self._in_dtype(known[f"{kind}_rows"]), {}
        for what, function in (("margin", self.engine.margin), ("value", self.engine.predict)):
            if function is not None:
                expected = known[f"{kind}_{what}"]
                parts = [slice(size) for size in (*sizes, len(rows))]
                found[what] = [compare(function(rows[part]), expected[part]) for part in parts]
        return found

    def run(self, batch: int, seconds: float) -> dict[str, Any]:
        """Take a turn; see `timing.Round`."""
        turns = self._turns(batch)
        once = time_round(self.engine.predict, turns, 0.0)
        if once.call > max(FIRST, seconds):
            return once._asdict()
        return time_round(self.engine.predict, turns, seconds)._asdict()

    def _turns(self, batch: int) -> Any:
        if batch not in self.batches:
            if self.rows is None:
                self.rows = self._in_dtype(self.model.rows())
                self.rows.max()  # reads all pages, so that no call waits for the disk
            step = min(batch, SHIFT)
            begins = range(0, len(self.rows) - batch + 1, step)
            self.batches = {
                batch: itertools.cycle([self.rows[begin : begin + batch] for begin in begins])
            }
        return self.batches[batch]

    def _in_dtype(self, rows: Any) -> Any:
        return engines.in_dtype(rows, self.engine.dtype)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would begin with the peak of the process that started this one
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("VmHWM"))
    kilo = 1 if sys.platform == "darwin" else 1024
    return kilo * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def serve() -> None:
    """Answer until the input ends; what libraries print goes nowhere."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    served = Served(sys.argv[1], Model.from_json(sys.argv[2]))
    for line in sys.stdin:
        try:
            answer = served.answer(json.loads(line))
        except Refused as refused:
            answer = {"code": refused.code, "why": refused.why}
        except Exception as error:  # libraries raise what they like
            text = (str(error).splitlines() or [""])[0][:200]
            answer = {"code": "refused", "why": f"{type(error).__name__}: {text}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
