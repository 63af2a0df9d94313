"""Damaged files, odd rows, bad calls at every door: only our errors, and no wrong answer.

By hand, for any number of inputs, with a table at the end; what fails is kept in a folder:

    python tools/fuzz.py --inputs 200000 [--seed S] [--door "XGBoost files"] [--kind "json values"]
    python tools/fuzz.py --inputs 1000000 --json build/fuzz.json --seconds 500  # goes on
    python tools/fuzz.py --only "json values" 4711     # one input, in this process

An input is told by its kind and its seed; those of a kind are numbered from the seed of the run on.
Inputs are tried in a forked process with bounds on time and memory, so that crashes, hangs and
floods of memory are found and have a name. It tries one input after another until one ends it;
another then takes its place. With `--json`, inputs that failed are tried again at the beginning.

Each model that we take is walked by `Forest.predict_reference` and compared with its library; one
in `fuzz_files.COMPILED` of them is also compiled and compared with that walk.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_commands
import fuzz_files
import fuzz_models
import fuzz_row_files
import fuzz_server
import fuzz_stores
import fuzz_values
from tvm_forest.system import archive

LIMITS = {"preparing": 60.0, "ours": 20.0, "compiling": 120.0, "library": 5.0}
"""Seconds of wall time after which an input hangs, by who has it."""
LIBRARY_SECONDS = 0.5
"""Processor time after which it hangs in a library; sound files take some milliseconds."""
MOST_SECONDS = 1.0
"""Processor time that an answer of ours may take."""
MOST_MEMORY = 1 << 30
"""Bytes that a process may take beyond what it has at the beginning."""
CHUNK = 50
"""Inputs of one kind that a process is given at once."""
FAILURES = ("crash", "hang", "slow", "wrong", "foreign")
"""What must not be: of these, "foreign" is an exception that is not one of ours."""
DOORS: dict[str, dict[str, float]] = {
    "XGBoost files": {
        "json bytes": 30,
        "json values": 40,
        "ubjson bytes": 30,
        "ubjson values": 40,
        "binary bytes": 30,
        "binary values": 30,
    },
    "LightGBM files": {"lightgbm bytes": 20, "lightgbm values": 40},
    "ONNX files": {"onnx bytes": 20, "onnx values": 40},
    "treelite files": {"treelite bytes": 20, "treelite values": 30},
    "CatBoost files": {"catboost bytes": 20, "catboost values": 30, "cbm bytes": 5},
    "YDF folders": {"ydf folders": 5},
    "fitted estimators": {"estimators": 10},
    "saved predictors": {
        "predictor bytes": 10,
        "predictor values": 5,
        "predictors compiled anew": 0.2,
    },
    "schedules": {"schedule bytes": 40, "schedule values": 40, "directives": 60},
    "records of tuning": {"record bytes": 20, "record values": 10},
    "machines": {"machine bytes": 20, "machine values": 20},
    "entries of the code cache": {"cache bytes": 20, "cache values": 5},
    "profiles": {"profile csv": 20, "profile json": 20, "profile bytes": 10},
    "rows in memory": {"arrays": 40, "named rows": 70},
    "files of rows": {
        f"{form} rows {word}": 4 for form in fuzz_row_files.FORMATS for word in ("bytes", "values")
    },
    "commands": {"commands": 2},
    "requests to the server": {"request bytes": 50, "request values": 50, "requests": 100},
}
"""The kinds of inputs at each door by which strangers come in, and how often each is drawn."""
MODULES: tuple[Any, ...] = (
    *(fuzz_values, fuzz_row_files, fuzz_models, fuzz_stores, fuzz_commands, fuzz_server),
)
CHECKS: dict[str, Callable[..., str]] = {k: c for m in MODULES for k, c in m.CHECKS.items()}
SHARES = {kind: share for kinds in DOORS.values() for kind, share in kinds.items()}
Case = tuple[str, int]
Found = tuple[str, str]


def check(kind: str, seed: int, said: Any = lambda phase: None) -> str:
    """Try one input; return what became of it."""
    if kind in CHECKS:
        return CHECKS[kind](random.Random(f"{kind} {seed}"), said)
    return fuzz_files.check_file(kind, seed, said)


# -- the process that tries -----------------------------------------------------------------------


def _try_all(pipe: Connection, other: Connection, log: str) -> None:
    """Answer inputs until there are no more, or nobody asks."""
    other.close()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # tvm_ffi's handler may take for ever in a fork
    faulthandler.enable()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    while (cases := pipe.recv()) is not None:
        for case in cases:
            os.ftruncate(output, 0)
            os.lseek(output, 0, os.SEEK_SET)
            pipe.send(("done", time.monotonic(), *_tried(*case, pipe)))


def _tried(kind: str, seed: int, pipe: Connection) -> Found:
    marks: list[tuple[str, float]] = []

    def said(phase: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, LIBRARY_SECONDS if phase == "library" else 0)
        marks.append((phase, time.process_time()))
        pipe.send((phase, time.monotonic()))

    signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        outcome = check(kind, seed, said)
    except AssertionError:
        return "wrong", traceback.format_exc(limit=-6)
    except BaseException:  # whatever goes wrong is told with its input, and the next one follows
        return "foreign", traceback.format_exc(limit=-6)
    (_, begin), (_, end), *_ = [*marks, ("", time.process_time()), ("", time.process_time())]
    if end - begin > MOST_SECONDS and "compiling" not in dict(marks):
        return "slow", f"{end - begin:.1f} s"
    return outcome, ""


class Worker:
    """A forked process, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.log = tempfile.NamedTemporaryFile(suffix=".log")
        self.cases: list[Case] = []
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        arguments = (theirs, self.pipe, self.log.name)
        self.process = context.Process(target=_try_all, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, cases: list[Case]) -> None:
        """Let it try inputs one after another."""
        self.cases, self.phase, self.since = list(cases), "preparing", time.monotonic()
        self.pipe.send(self.cases)

    def outcomes(self) -> Iterator[tuple[Case, Found]]:
        """Yield what became of the inputs that were tried since."""
        how = None
        try:
            while self.pipe.poll():
                word, self.since, *rest = self.pipe.recv()
                self.phase = "preparing" if word == "done" else word
                if word == "done":
                    yield self.cases.pop(0), (rest[0], rest[1])
        except (EOFError, ConnectionError):
            how = "crash"
        if how is None and self.cases and time.monotonic() - self.since > LIMITS[self.phase]:
            how = "hang"
        if how is not None:
            case, *others = self.cases
            yield case, self._ended(how)
            self.cases = []
            if others:
                self.give(others)

    def _ended(self, how: str) -> Found:
        self.process.kill()
        self.process.join()
        said = Path(self.log.name).read_text(errors="replace")[-3000:]
        code = self.process.exitcode
        self._start()
        if self.phase == "library":
            how = "hang" if code == -signal.SIGPROF else how
            return f"{how} of the library", ""
        return how, f"while {self.phase}, exit code {code}\n{said}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


# -- the process that counts ----------------------------------------------------------------------


def run(chunks: Iterator[list[Case]], tell: Callable[[Case, Found], None], jobs: int = 1) -> None:
    """Try all inputs, and tell what became of each."""
    prepare()
    workers = [Worker() for _ in range(jobs)]
    busy = [worker for worker in workers if _next(worker, chunks)]
    while busy:
        for worker in list(busy):
            for case, found in worker.outcomes():
                tell(case, found)
            if not worker.cases and not _next(worker, chunks):
                busy.remove(worker)
        time.sleep(0.02)  # the processes need the processor more than this one
    for worker in workers:
        worker.close()


def prepare() -> None:
    """Make all sound inputs, and fill the caches, before any process is forked."""
    fuzz_files.silence()
    for files in fuzz_files.FILES.values():
        for data in files.sound():
            files.damage(data, random.Random(0))
    for module in MODULES:
        module.prepare()
    gc.collect()
    gc.freeze()  # or each process collects, and so copies, all that was made before it


def _next(worker: Worker, chunks: Iterator[list[Case]]) -> bool:
    cases = next(chunks, None)
    if cases is not None:
        worker.give(cases)
    return cases is not None


class Journal:
    """What became of all inputs of a run, in a file that the next run goes on from.

    Attributes:
        seed: of the run.
        counts: inputs by kind and outcome.
        failed: what fails, by kind and seed.
        mended: what failed once, and does no longer.
        seconds: that all runs have taken.
    """

    def __init__(self, seed: int, path: Path | None, folder: Path) -> None:
        self.seed, self.path, self.folder = seed, path, folder
        self.counts: dict[str, Counter[str]] = {}
        self.failed: dict[Case, Found] = {}
        self.mended: dict[Case, Found] = {}
        self.seconds, self.begin, self.written = 0.0, time.monotonic(), 0.0
        if path is not None and path.exists():
            self._read(json.loads(path.read_text(encoding="utf-8")))

    def _read(self, data: dict[str, Any]) -> None:
        if data["seed"] != self.seed:
            raise SystemExit(f"{self.path} is a run of seed {data['seed']}, not {self.seed}")
        self.counts = {kind: Counter(counts) for kind, counts in data["counts"].items()}
        for name in ("failed", "mended"):
            for kind, seed, *found in data[name]:
                getattr(self, name)[kind, seed] = tuple(found)
        self.seconds = data["seconds"]

    def chunks(self, goals: dict[str, int], seconds: float) -> Iterator[list[Case]]:
        """Yield what failed, and then inputs of all kinds in turn, until there are enough."""
        again = [case for case in self.failed if case[0] in goals]
        if again:
            yield again
        done = {kind: sum(self.counts.get(kind, Counter()).values()) for kind in goals}
        while time.monotonic() - self.begin < seconds:
            kind = min(goals, key=lambda kind: done[kind] / max(1, goals[kind]))
            count = min(CHUNK, goals[kind] - done[kind])
            if count <= 0:
                break
            first = self.seed * 10_000_000 + done[kind]
            yield [(kind, seed) for seed in range(first, first + count)]
            done[kind] += count

    def tell(self, case: Case, found: Found) -> None:
        """Note what became of an input; keep the file of one that fails."""
        counts = self.counts.setdefault(case[0], Counter())
        if case in self.failed:
            counts[self.failed[case][0]] -= 1
            self.mended[case] = self.failed.pop(case)
        counts[found[0]] += 1
        if found[0] in FAILURES:
            self.failed[case] = found
            self.mended.pop(case, None)
            _keep(self.folder, case, found)
        if time.monotonic() - self.written > 10:
            self.write()

    def write(self) -> None:
        """Write the file."""
        self.written = time.monotonic()
        if self.path is None:
            return
        data: dict[str, Any] = {
            "seed": self.seed,
            "seconds": self.seconds + self.written - self.begin,
            "counts": {kind: {k: n for k, n in x.items() if n} for kind, x in self.counts.items()},
        }
        for name in ("failed", "mended"):
            data[name] = [[*case, *found] for case, found in getattr(self, name).items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        archive.replace_file(self.path, json.dumps(data, indent=1).encode())


def _keep(folder: Path, case: Case, found: Found) -> None:
    (kind, seed), (outcome, why) = case, found
    print(f'{outcome}: --only "{kind}" {seed}\n{why}', flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.replace(' ', '-')}-{seed}"
    path.with_suffix(".txt").write_text(f"{outcome}\n{why}")
    if kind in fuzz_files.FILES:
        path.with_suffix(fuzz_files.FILES[kind].suffix).write_bytes(
            fuzz_files.drawn_file(kind, seed)
        )


def table(counts: dict[str, Counter[str]]) -> str:
    """Return lines with the number of inputs of each kind, by outcome."""
    lines = []
    total: Counter[str] = Counter()
    for kind in [kind for kind in SHARES if kind in counts]:
        lines.append(_line(kind, counts[kind]))
        total += counts[kind]
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, counts: Counter[str]) -> str:
    said = ", ".join(f"{outcome} {n}" for outcome, n in sorted(counts.items()) if n)
    return f"{name:<18}{sum(counts.values()):>8}  {said}"


def main() -> int:
    """Read the command line; return whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=2000, help="of all doors together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--door", action="append", choices=sorted(DOORS))
    parser.add_argument("--kind", action="append", choices=sorted(SHARES))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then it ends")
    parser.add_argument("--json", type=Path, help="file that a later run goes on from")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-failed")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "SEED"))
    options = parser.parse_args()
    if options.only:
        prepare()
        print(check(options.only[0], int(options.only[1]), print))
        return 0
    doors = options.door or ([] if options.kind else DOORS)
    kinds = [*(options.kind or []), *(kind for door in doors for kind in DOORS[door])]
    whole = sum(SHARES[kind] for kind in kinds)
    goals = {kind: math.ceil(options.inputs * SHARES[kind] / whole) for kind in kinds}
    journal = Journal(options.seed, options.json, options.folder)
    run(journal.chunks(goals, options.seconds), journal.tell, options.jobs)
    journal.write()
    seconds = time.monotonic() - journal.begin
    print(f"{table(journal.counts)}\n{seconds:.0f} s; {len(journal.failed)} inputs fail")
    return int(bool(journal.failed))


if __name__ == "__main__":
    sys.exit(main())
