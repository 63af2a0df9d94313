"""The threads that help with parallel loops."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tvm_forest
from hardship import Late, ends_well, raise_late
from parallel_model import BY_ROWS, BY_TREES, FOREST, MARGINS, ROWS, Launch, Task
from tvm_forest.runtime.threads.pool import POOL, Pool
from tvm_forest.runtime.threads.pool_code import compile_pool

TASKS = Path("/proc/self/task")

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
DEADLINE = 60.0
"""Seconds after which what hangs has failed."""


@pytest.fixture(scope="module")
def by_rows() -> tvm_forest.Predictor:
    return tvm_forest.build(FOREST, schedule=BY_ROWS)


@pytest.fixture(scope="module")
def by_trees() -> tvm_forest.Predictor:
    return tvm_forest.build(FOREST, schedule=BY_TREES, exact=False)


@pytest.fixture(params=["by_rows", "by_trees"])
def predictor(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def launched(pool: Pool, helpers: int, task: Callable[[int], int]) -> int:
    """Run tasks as compiled code does it."""
    launch, results = Launch(pool.load(compile_pool)), list[int]()
    tasks = Task(lambda number, group, data: task(number))
    assert with_helpers(pool, lambda: results.append(launch(tasks, None, 0)), helpers)
    return results[0]


def with_helpers(pool: Pool, call: Callable[[], Any], helpers: int = 1, waits: bool = True) -> bool:
    """Call a function as compiled ones are called that have parallel loops."""
    return pool.run(tvm_ffi.convert(lambda: call() and None), (), helpers, waits)


def is_right(predictor: tvm_forest.Predictor) -> bool:
    found = predictor.predict_margin(ROWS, n_jobs=2)
    return bool(np.all(np.abs(found - MARGINS) <= predictor.tolerance(ROWS)))


# -- tasks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_each_task_runs_once(helpers: int) -> None:
    done = list[int]()
    for _ in range(50):
        done.clear()
        assert launched(POOL, helpers, lambda number: done.append(number) or 0) == 0
        assert Counter(done) == Counter(range(4 * (helpers + 1) if helpers else 1))


def test_helpers_take_tasks() -> None:
    """Each of two tasks waits for the other, so two threads must be there."""
    meeting = threading.Barrier(2, timeout=DEADLINE)

    def meet(number: int) -> int:
        if number < 2:
            meeting.wait()
        return 0

    for _ in range(20):
        assert launched(POOL, 1, meet) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed in /proc")
def test_helpers_that_sleep_are_woken() -> None:
    pool, before = Pool(), {task.name for task in TASKS.iterdir()}
    launched(pool, 2, lambda number: 0)
    helpers = [task for task in TASKS.iterdir() if task.name not in before]
    end = time.monotonic() + DEADLINE
    while not all(") S " in (task / "stat").read_text() for task in helpers):
        assert time.monotonic() < end, "helpers look for tasks for ever"
    assert len(helpers) == 2
    meeting = threading.Barrier(3, timeout=DEADLINE)
    assert launched(pool, 2, lambda number: meeting.wait() and 0 if number < 3 else 0) == 0


def test_a_task_that_fails_fails_the_loop() -> None:
    done = list[int]()
    assert launched(POOL, 1, lambda number: done.append(number) or -(number == 5)) == -1
    assert sorted(done) == list(range(8))
    assert launched(POOL, 1, lambda number: 0) == 0


def test_a_loop_inside_a_loop_runs_on_its_thread() -> None:
    launch, outer = Launch(POOL.load(compile_pool)), list[set[str]]()

    def nested(number: int) -> int:
        names = set[str]()
        inner = Task(lambda *_: names.add(threading.current_thread().name) or 0)
        result = launch(inner, None, 0)
        outer.append(names | {threading.current_thread().name})
        return int(result)

    assert launched(POOL, 1, nested) == 0
    assert {len(names) for names in outer} == {1}


# -- many callers ---------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed in /proc")
def test_threads_that_end_leave_no_threads_behind(by_rows: Any, by_trees: Any) -> None:
    for predictor in (by_rows, by_trees):
        assert is_right(predictor)
        before = len(list(TASKS.iterdir()))
        for _ in range(25):
            with ThreadPoolExecutor(4) as callers:
                assert all(callers.map(is_right, [predictor] * 4))
        end = time.monotonic() + DEADLINE  # a thread may be listed for a moment after its end
        while len(list(TASKS.iterdir())) > before:
            assert time.monotonic() < end, "threads of the callers are left"


def test_while_a_call_has_the_helpers_others_run_on_their_own_threads(by_rows: Any) -> None:
    with ThreadPoolExecutor(1) as other:
        found = list[bool]()
        assert with_helpers(
            POOL, lambda: found.append(other.submit(is_right, by_rows).result(DEADLINE))
        )
        assert found == [True]


def test_a_call_whose_sums_depend_on_it_waits_for_the_helpers(by_trees: Any) -> None:
    """Alone, it would add up in another order than usual."""
    usual = by_trees.predict_margin(ROWS, n_jobs=2)
    with ThreadPoolExecutor(1) as other:
        asked = list[Any]()

        def ask() -> None:
            asked.append(other.submit(by_trees.predict_margin, ROWS, 2))
            with pytest.raises(TimeoutError):
                asked[0].result(0.05)

        assert with_helpers(POOL, ask)
        assert np.array_equal(asked[0].result(DEADLINE), usual)


def test_calls_that_wait_are_all_served(by_trees: Any) -> None:
    with ThreadPoolExecutor(4) as others:
        asked = list[Any]()
        assert with_helpers(
            POOL, lambda: asked.extend(others.submit(is_right, by_trees) for _ in range(8))
        )
        assert all(found.result(DEADLINE) for found in asked)
    assert with_helpers(POOL, lambda: None, waits=False)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_no_thread_to_be_had_is_no_failure() -> None:
    """In a process of its own, which may have no more memory for the stacks of threads."""
    code = """
import resource, sys
sys.path[:0] = PATHS
from test_pool import POOL, launched
launched(POOL, 0, lambda number: 0)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**20,) * 2)
done = []
assert launched(POOL, 200, lambda number: done.append(number) or 0) == 0
assert sorted(done) == list(range(len(done))) and len(done) < 4 * 200, done
"""
    code = code.replace("PATHS", repr(sys.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- what happens in the middle of a call ----------------------------------------------------------


def happens(at: int, event: Callable[[], Any], call: Callable[[], Any]) -> bool:
    """Call a function; return whether an event happens at an operation of the package, counted."""
    left = at

    def trace(frame: FrameType, kind: str, _: Any) -> Any:
        nonlocal left
        if "tvm_forest" not in frame.f_globals.get("__name__", ""):
            return None
        frame.f_trace_opcodes = True
        left -= kind == "opcode"
        if left == 0 and kind == "opcode":
            sys.settrace(None)
            event()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0


WAYS = [("C", 20), ("F", 100)]
"""The orders of rows in memory that are read in place, and those that go the longer way, each with
fewer points than there are."""


@pytest.mark.slow
@pytest.mark.parametrize("order, least", WAYS)
def test_an_exception_at_any_point_leaves_the_helpers_to_later_calls(
    predictor: Any, order: Any, least: int
) -> None:
    rows = np.array(ROWS, order=order)
    for at in range(1, 10_000):
        try:
            assert not happens(at, raise_late, lambda: predictor.predict_margin(rows, n_jobs=2))
            break
        except Late:
            assert with_helpers(POOL, lambda: None, waits=False)
    assert at > least and is_right(predictor)


def predicts_at_each_point(predictor: Any, order: Any, least: int) -> bool:
    rows = np.array(ROWS[:100], order=order)
    usual, found = predictor.predict_margin(rows, 2), list[bool]()

    def predict() -> None:
        found.append(np.array_equal(predictor.predict_margin(rows, 2), usual))

    points = 1
    while happens(points, predict, predict):
        points += 1
    return points > least and all(found)


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("order, least", WAYS)
def test_a_handler_or_destructor_may_predict_at_any_point_of_a_call(
    predictor: Any, order: Any, least: int
) -> None:
    assert ends_well(lambda: predicts_at_each_point(predictor, order, least))


# -- forks ----------------------------------------------------------------------------------------


@needs_fork
def test_a_forked_process_runs_parallel_loops(predictor: Any) -> None:
    assert is_right(predictor)
    assert all(ends_well(lambda: all(is_right(predictor) for _ in range(5))) for _ in range(3))
    assert is_right(predictor)


@needs_fork
def test_a_fork_in_the_middle_of_another_threads_call_is_no_trap(by_trees: Any) -> None:
    with ThreadPoolExecutor(1) as other:
        begun, ended = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            ended.wait(DEADLINE)

        held = other.submit(with_helpers, POOL, hold)
        begun.wait(DEADLINE)
        well = ends_well(lambda: is_right(by_trees))
        ended.set()
        held.result(DEADLINE)
    assert well


@needs_fork
def test_the_child_of_a_forked_process_has_helpers_too(by_rows: Any) -> None:
    assert is_right(by_rows)
    assert ends_well(lambda: is_right(by_rows) and ends_well(lambda: is_right(by_rows)))


inherited = list[Any]()
"""What workers of multiprocessing find in their memory."""


def _is_right(_: int) -> bool:
    return is_right(inherited[-1])


@needs_fork
@pytest.mark.slow
def test_workers_of_multiprocessing_predict_in_parallel(by_rows: Any) -> None:
    assert is_right(by_rows)
    inherited.append(by_rows)
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map_async(_is_right, range(8)).get(DEADLINE) == [True] * 8


def test_the_settings_of_tvm_stay_as_they_are() -> None:
    load = "import tvm_forest.predictor.predictor"
    code = f"import os; old = dict(os.environ); {load}; print(old == os.environ)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
