"""Damaged files, odd arrays, estimators and directives: only our errors, and no wrong answer.

By hand, for any number of inputs, with a table at the end; what fails is kept in a folder:

    python tests/fuzz.py 200000 [--seed S] [--kind "json values"] [--jobs 2]
    python tests/fuzz.py --only "json values" 4711     # one input, in this process

An input is told by its kind and its seed. Inputs are tried in a forked process with bounds on time
and memory, so that crashes, hangs and floods of memory are found and have a name. It tries one
input after another until one ends it; another then takes its place.

Each model that we take is walked by `Forest.predict_reference` and compared with its library; one
in `fuzz_files.COMPILED` of them is also compiled and compared with that walk.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
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
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fuzz_files
import fuzz_values

LIMITS = {"preparing": 60.0, "ours": 20.0, "compiling": 120.0, "library": 5.0}
"""Seconds of wall time after which an input hangs, by who has it."""
LIBRARY_SECONDS = 0.5
"""Processor time after which it hangs in a library; sound files take some milliseconds."""
MOST_SECONDS = 1.0
"""Processor time that an answer of ours may take."""
MOST_MEMORY = 1 << 30
"""Bytes that a process may take beyond what it has at the beginning."""
FAILURES = ("crash", "hang", "slow", "wrong")
SHARES = {kind: files.share for kind, files in fuzz_files.FILES.items()}
SHARES |= {kind: 8 for kind in fuzz_values.CHECKS}


def check(kind: str, seed: int, said: Any = lambda phase: None) -> str:
    """Try one input; return what became of it."""
    if kind in fuzz_values.CHECKS:
        return fuzz_values.CHECKS[kind](random.Random(f"{kind} {seed}"), said)
    return fuzz_files.check_file(kind, seed, said)


def drawn(count: int, seed: int, kinds: list[str]) -> Iterator[tuple[str, int]]:
    """Yield kinds and seeds."""
    rng = random.Random(seed)
    weights = [SHARES[kind] for kind in kinds]
    for number in range(count):
        yield rng.choices(kinds, weights)[0], seed * 10_000_000 + number


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
    while (case := pipe.recv()) is not None:
        os.ftruncate(output, 0)
        os.lseek(output, 0, os.SEEK_SET)
        pipe.send(("done", *_tried(*case, pipe)))


def _tried(kind: str, seed: int, pipe: Connection) -> tuple[str, str]:
    marks: list[tuple[str, float]] = []

    def said(phase: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, LIBRARY_SECONDS if phase == "library" else 0)
        marks.append((phase, time.process_time()))
        pipe.send((phase,))

    signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        outcome = check(kind, seed, said)
    except BaseException:  # whatever goes wrong is told with its input, and the next one follows
        return "wrong", traceback.format_exc(limit=-6)
    (_, begin), (_, end), *_ = [*marks, ("", time.process_time())]
    if end - begin > MOST_SECONDS and not kind.startswith("predictor"):  # these may compile
        return "slow", f"{end - begin:.1f} s"
    return outcome, ""


class Worker:
    """A forked process, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.log = tempfile.NamedTemporaryFile(suffix=".log")
        self.case: tuple[str, int] | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        arguments = (theirs, self.pipe, self.log.name)
        self.process = context.Process(target=_try_all, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, case: tuple[str, int]) -> None:
        """Let it try an input."""
        self.case, self.phase = case, "preparing"
        self.since = time.monotonic()
        self.pipe.send(case)

    def outcome(self) -> tuple[str, str] | None:
        """Return what became of the input, None while it is being tried."""
        how = None
        try:
            while self.pipe.poll():
                word, *rest = self.pipe.recv()
                if word == "done":
                    return rest[0], rest[1]
                self.phase, self.since = word, time.monotonic()
        except (EOFError, ConnectionError):
            how = "crash"
        if how is None and time.monotonic() - self.since > LIMITS[self.phase]:
            how = "hang"
        return self._ended(how) if how else None

    def _ended(self, how: str) -> tuple[str, str]:
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


def run(cases: Iterator[tuple[str, int]], folder: Path, jobs: int = 1) -> Counter[Any]:
    """Try all inputs; print failures, keep their files, and count what became of them."""
    prepare()
    counts: Counter[Any] = Counter()
    workers = [Worker() for _ in range(jobs)]
    busy = [worker for worker in workers if _next(worker, cases)]
    while busy:
        wait([worker.pipe for worker in busy], 0.1)
        for worker in list(busy):
            found = worker.outcome()
            if found is None:
                continue
            assert worker.case is not None
            counts[worker.case[0], found[0]] += 1
            if found[0] in FAILURES:
                _keep(folder, *worker.case, *found)
            if not _next(worker, cases):
                busy.remove(worker)
    for worker in workers:
        worker.close()
    return counts


def prepare() -> None:
    """Make all sound inputs, and fill the caches, before any process is forked."""
    fuzz_files.silence()
    for files in fuzz_files.FILES.values():
        for data in files.sound():
            files.damage(data, random.Random(0))
    fuzz_values.prepare()
    gc.collect()
    gc.freeze()  # or each process collects, and so copies, all that was made before it


def _next(worker: Worker, cases: Iterator[tuple[str, int]]) -> bool:
    case = next(cases, None)
    if case is not None:
        worker.give(case)
    return case is not None


def _keep(folder: Path, kind: str, seed: int, outcome: str, why: str) -> None:
    print(f'{outcome}: --only "{kind}" {seed}\n{why}', flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.replace(' ', '-')}-{seed}"
    path.with_suffix(".txt").write_text(f"{outcome}\n{why}")
    if kind in fuzz_files.FILES:
        path.with_suffix(fuzz_files.FILES[kind].suffix).write_bytes(
            fuzz_files.drawn_file(kind, seed)
        )


def table(counts: Counter[Any]) -> str:
    """Return lines with the number of inputs of each kind, by outcome."""
    lines = []
    for kind in SHARES:
        own = {outcome: n for (of, outcome), n in counts.items() if of == kind}
        if own:
            said = ", ".join(f"{outcome} {n}" for outcome, n in sorted(own.items()))
            lines.append(f"{kind:<18}{sum(own.values()):>8}  {said}")
    total: Counter[str] = Counter()
    for (_, outcome), n in counts.items():
        total[outcome] += n
    said = ", ".join(f"{outcome} {n}" for outcome, n in sorted(total.items()))
    return "\n".join([*lines, f"{'all':<18}{total.total():>8}  {said}"])


def main() -> int:
    """Read the command line; return whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=sorted(SHARES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-failed")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "SEED"))
    options = parser.parse_args()
    if options.only:
        prepare()
        print(check(options.only[0], int(options.only[1]), print))
        return 0
    begin = time.perf_counter()
    cases = drawn(options.count, options.seed, options.kind or list(SHARES))
    counts = run(cases, options.folder, options.jobs)
    seconds = time.perf_counter() - begin
    print(f"{table(counts)}\n{seconds:.0f} s, {counts.total() / seconds:.0f} inputs a second")
    return int(any(outcome in FAILURES for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
