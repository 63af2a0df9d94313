"""What a long life brings: reloads, rebuilds, updates, interrupts at any moment, forks meanwhile.

    python tools/hardship.py --loads 13000 --builds 2000 --updates 1000 --interrupts 1000
    python tools/hardship.py --swaps 1000 --forks 200

Each part prints what it counted, and the program fails if something is wrong. The tests run a few
of each.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

import _path  # noqa: F401 (what tests share)
import tvm_forest
from forests import drawn_forest
from parallel_model import BY_ROWS, BY_TREES, FOREST, MARGINS, ROWS, Launch, Task
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.threads.pool import POOL
from tvm_forest.runtime.threads.pool_code import compile_pool
from tvm_forest.system.archive import replace_file
from tvm_forest.system.code_cache import VARIABLE

N_THREADS = 8
"""Threads that predict while models are updated."""

DEADLINE = 120.0
"""Seconds after which what hangs has failed."""

WARM_UP = 20
"""Loads and builds before the first figure, which fill what is kept once for the process."""


class Memory(NamedTuple):
    """What a process has: mappings, memory in MB, and open files."""

    maps: int
    size: float
    files: int


def read_memory(process: int | str = "self") -> Memory:
    """Return what a process has."""
    gc.collect()
    place = Path(f"/proc/{process}")
    pages = int((place / "statm").read_text().split()[1])
    maps = (place / "maps").read_text().count("\n")
    files = len(os.listdir(place / "fd"))
    return Memory(maps, pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files)


def repeat(
    count: int, work: Callable[[], Any], process: int | str = "self"
) -> tuple[Memory, Memory]:
    """Return what a process has before and after work is done so many times."""
    for _ in range(WARM_UP):
        work()
    before = read_memory(process)
    for _ in range(count):
        work()
    return before, read_memory(process)


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Keep compiled code in a folder meanwhile, or nowhere if it is "off"."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        os.environ.update({} if before is None else {VARIABLE: before})


def load_often(count: int) -> tuple[Memory, Memory]:
    """Load a saved predictor, predict and drop it."""
    file = io.BytesIO()
    tvm_forest.build(FOREST, schedule=BY_ROWS).save(file)
    data = file.getvalue()

    def load() -> None:
        found = tvm_forest.load_predictor(data).predict_margin(ROWS[:3])
        assert np.array_equal(found, MARGINS[:3])

    return repeat(count, load)


def build_often(count: int) -> tuple[Memory, Memory]:
    """Build a model from the cache, predict and drop it."""

    def build() -> None:
        found = tvm_forest.build(FOREST, schedule=BY_ROWS).predict_margin(ROWS[:3])
        assert np.array_equal(found, MARGINS[:3])

    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        return repeat(count, build)


def update_often(count: int) -> tuple[Memory, Memory]:
    """Update a predictor beside threads that predict; each answer is of one of the two models."""
    both = [drawn_forest(n, 4, seed=n) for n in (20, 30)]
    rows = hard_rows(both[0], 70)
    wanted = [forest.predict_reference(rows)[:, 0] for forest in both]
    over, asked, wrong = threading.Event(), [0] * N_THREADS, list[Any]()

    def ask_all_the_time(number: int) -> None:
        while not over.is_set():
            n_rows = (1, 3, len(rows))[asked[number] % 3]
            found = predictor.predict_margin(rows[:n_rows], n_jobs=1)
            if not any(np.array_equal(found, x[:n_rows]) for x in tuple(wanted)):
                wrong.append(found)
            asked[number] += 1

    def update() -> None:
        both.reverse()
        wanted.reverse()
        predictor.update(both[0])
        assert np.array_equal(predictor.predict_margin(rows), wanted[0])

    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        predictor = tvm_forest.build(both[0], schedule=lambda sch: sch)
        threads = [
            threading.Thread(target=ask_all_the_time, args=(k,), daemon=True)
            for k in range(N_THREADS)
        ]
        for thread in threads:
            thread.start()
        found = repeat(count, update)
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong and all(asked), (len(wrong), asked)
    print(f"{sum(asked)} answers beside {count + WARM_UP} updates, each of one of both models")
    return found


def swap_often(count: int) -> tuple[Memory, Memory]:
    """Let a server load models anew beside clients; each answer is of one of the two models."""
    import httpx

    from served import PATIENCE_S, read, start, to_json

    forests = [drawn_forest(n, 4, seed=n) for n in (20, 30)]
    rows = hard_rows(forests[0], 70)
    wanted = [forest.predict_reference(rows)[:, 0] for forest in forests]
    over, asked, wrong = threading.Event(), [0] * N_THREADS, list[Any]()

    def ask_all_the_time(number: int) -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not over.is_set():
                found = read(client.post(f"{url}models/m/infer", content=body))["predict"]
                if not any(np.array_equal(found, x) for x in wanted):
                    wrong.append(found)
                asked[number] += 1

    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=PATIENCE_S) as client:
        files = [Path(folder, f"{k}.tvmf") for k in (0, 1)]
        for file, forest in zip(files, forests, strict=True):
            tvm_forest.build(forest, schedule=lambda sch: sch).save(file)
        data = [file.read_bytes() for file in files]
        process, port = start(f"m={files[0]}", "--allow-load")
        url, body = f"http://127.0.0.1:{port}/v2/", to_json(rows)

        def swap() -> None:
            data.reverse()
            replace_file(files[0], data[0])
            assert client.post(f"{url}repository/models/m/load").status_code == 200

        threads = [
            threading.Thread(target=ask_all_the_time, args=(k,), daemon=True)
            for k in range(N_THREADS)
        ]
        for thread in threads:
            thread.start()
        found = repeat(count, swap, process.pid)
        over.set()
        for thread in threads:
            thread.join()
        process.terminate()
        process.wait()
    assert not wrong and all(asked), (len(wrong), asked)
    print(f"{sum(asked)} answers beside {count + WARM_UP} swaps, each of one of both models")
    return found


class Late(Exception):
    """What the signal handler raises."""


def raise_late(*_: Any) -> None:
    raise Late


def interrupt_often(count: int, seed: int = 1) -> int:
    """Interrupt parallel calls by exceptions at random moments; returns how many calls it took."""
    exact = tvm_forest.build(FOREST, schedule=BY_ROWS)
    inexact = tvm_forest.build(FOREST, schedule=BY_TREES, exact=False)
    bound = inexact.tolerance(ROWS)
    drawn, interrupts, calls = random.Random(seed), 0, 0
    handler = signal.signal(signal.SIGALRM, raise_late)
    while interrupts < count:
        predictor, n_rows = drawn.choice([exact, inexact]), drawn.choice([3, 100, 400])
        calls += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, drawn.uniform(1e-5, 1e-3))
            found = predictor.predict_margin(ROWS[:n_rows], n_jobs=2)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert np.all(np.abs(found - MARGINS[:n_rows]) <= bound[:n_rows])
        except Late:  # also behind the call, if another thread was given the signal
            interrupts += 1
    with suppress(Late):
        signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    assert has_helper(), "later calls are not parallel"
    assert np.array_equal(exact.predict_margin(ROWS, n_jobs=2), MARGINS)
    return calls


def has_helper() -> bool:
    """Return whether a call gets a helper that works: each of two tasks waits for the other."""
    meeting, launch = threading.Barrier(2, timeout=DEADLINE), Launch(POOL.load(compile_pool))
    task = Task(lambda number, group, data: 0 if number > 1 else meeting.wait() * 0)
    called = tvm_ffi.convert(lambda: launch(task, None, 0))
    return POOL.run(called, (), helpers=1, waits=False) and not meeting.broken


def ends_well(function: Callable[[], bool]) -> bool:
    """Whether a function is true in a process that is forked now, and does not hang there."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if function() else 1)
        finally:  # an exception shall not run the tests twice
            os._exit(2)
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def fork_often(count: int) -> int:
    """Fork while other threads compile; returns the children that did not end well."""
    predictor, over = tvm_forest.build(FOREST, schedule=BY_ROWS), threading.Event()
    leaves = FOREST.predict_reference(ROWS, "apply")

    def compile_all_the_time() -> None:
        while not over.is_set():
            tvm_forest.build(FOREST, schedule=BY_ROWS).apply(ROWS[:3])

    def predict_and_compile() -> bool:
        right = np.array_equal(predictor.predict_margin(ROWS, n_jobs=2), MARGINS)
        return right and np.array_equal(predictor.apply(ROWS), leaves)

    threads = [threading.Thread(target=compile_all_the_time) for _ in range(2)]
    with cache_in("off"):
        for thread in threads:
            thread.start()
        failed = sum(not ends_well(predict_and_compile) for _ in range(count))
        over.set()
        for thread in threads:
            thread.join()
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for part in ("loads", "builds", "updates", "swaps", "interrupts", "forks"):
        parser.add_argument(f"--{part}", type=int, default=0)
    wanted = parser.parse_args()
    works = (("loads", load_often), ("builds", build_often), ("updates", update_often))
    works += (("swaps", swap_often),)
    for name, work in works:
        if count := getattr(wanted, name):
            before, after = work(count)
            print(f"{count} {name}: {before} -> {after}", flush=True)
            assert after.maps <= before.maps + 8 and after.files <= before.files
            assert after.size < before.size * 1.05 + 4
    if wanted.interrupts:
        calls = interrupt_often(wanted.interrupts)
        print(f"{wanted.interrupts} interrupts in {calls} calls: later ones right and parallel")
    if wanted.forks:
        failed = fork_often(wanted.forks)
        print(f"{wanted.forks} forks while two threads compile: {failed} did not end well")
        assert not failed


if __name__ == "__main__":
    main()
