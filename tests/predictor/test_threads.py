"""One predictor, many threads."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from parallel_model import BY_TREES, FOREST, START
from schedules import rounding_bound
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import Schedule

pytestmark = pytest.mark.optimised

CALLERS, CALLS = 8, 90


@functools.cache
def predictor() -> tvm_forest.Predictor:
    return tvm_forest.build(FOREST, schedule={1: START, 64: EXACT})


@functools.cache
def batches() -> list[tuple[Any, Any, Any]]:
    """Rows of several sizes, their margins and their leaves."""
    sizes = (0, 1, 2, 7, 33, 64, 65, 130, 200)
    rows = [hard_rows(FOREST, size, seed=size) for size in sizes]
    answers = [(FOREST.predict_reference(r), FOREST.predict_reference(r, "apply")) for r in rows]
    return [(r, *answer) for r, answer in zip(rows, answers, strict=True)]


def wrong_answers(caller: int, n_jobs: int | None) -> int:
    """Call the one predictor many times with changing batches."""
    wrong = 0
    for call in range(CALLS):
        rows, margins, leaves = batches()[(caller + call) % len(batches())]
        wrong += not np.array_equal(predictor().predict_margin(rows, n_jobs=n_jobs), margins)
        if call % 4 == 0:
            wrong += not np.array_equal(predictor().apply(rows, n_jobs=n_jobs), leaves)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2, None])
def test_calls_from_many_threads_give_the_same_bits(n_jobs: int | None) -> None:
    predictor(), batches()
    start = threading.Barrier(CALLERS, timeout=600)

    def caller(number: int) -> int:
        start.wait()
        return wrong_answers(number, n_jobs)

    with ThreadPoolExecutor(CALLERS) as pool:
        assert list(pool.map(caller, range(CALLERS))) == [0] * CALLERS


@pytest.mark.slow
def test_callers_may_use_different_numbers_of_threads() -> None:
    predictor(), batches()
    with ThreadPoolExecutor(CALLERS) as pool:
        jobs = [pool.submit(wrong_answers, i, 1 + i % 3) for i in range(CALLERS)]
        assert [job.result() for job in jobs] == [0] * CALLERS


EACH = 125
"""Calls of each of the 8 callers, 1,000 together."""

EXACT = (
    START.tile("batch", "b0", "b1", 16)
    .reorder("b0", "class", "tree", "b1")
    .split("tree", "x", "y", 11)
    .interleave("b1@x", 4)
    .peel_walk("y", 2)
    .parallel("b0")
)
INEXACT = {
    "private sums": BY_TREES,
    "private sums, added as vectors": BY_TREES.vector_reduce("t0", 8),
    "private sums of blocks of rows": (
        START.tile("batch", "b0", "b1", 16)
        .tile("tree", "t0", "t1", 10)
        .reorder("b0", "t0", "class", "t1", "b1")
        .parallel("b0")
        .parallel("t0")
    ),
    "atomic additions": BY_TREES.atomic_reduce("t0"),
}


@functools.cache
def inexact(name: str) -> tvm_forest.Predictor:
    return tvm_forest.build(FOREST, schedule=INEXACT[name], exact=False)


def results_of_many_callers(predictor: Any, rows: Any) -> list[Any]:
    """Call from 8 threads at once, 1,000 times in total; returns all margins."""
    start = threading.Barrier(CALLERS, timeout=600)

    def caller(number: int) -> list[Any]:
        start.wait()
        return [predictor.predict_margin(rows, n_jobs=1 + number % 3) for _ in range(EACH)]

    with ThreadPoolExecutor(CALLERS) as pool:
        return [margin for margins in pool.map(caller, range(CALLERS)) for margin in margins]


@pytest.mark.slow
@pytest.mark.parametrize("sch", [EXACT, BY_TREES.ordered_reduce("t0")], ids=["rows", "trees"])
def test_a_thousand_calls_of_one_schedule_give_the_same_bits(sch: Schedule) -> None:
    predictor = tvm_forest.build(FOREST, schedule=sch)
    rows = hard_rows(FOREST, 130, seed=1)
    results = results_of_many_callers(predictor, rows)
    expected = FOREST.predict_reference(rows).tobytes()
    assert len(results) == 1000
    assert {margin.tobytes() for margin in results} == {expected}


@pytest.mark.slow
@pytest.mark.parametrize("name", INEXACT)
@pytest.mark.cases(2, others="long")
def test_a_thousand_calls_with_sums_of_their_own_stay_within_the_bound(name: str) -> None:
    predictor, rows = inexact(name), hard_rows(FOREST, 130, seed=1)
    margins, bound = FOREST.predict_reference(rows), rounding_bound(FOREST, rows)
    results = results_of_many_callers(predictor, rows)
    assert all(np.all(np.abs(margin - margins) <= bound) for margin in results)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in INEXACT if "private" in name])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.cases(3, others="long")
def test_private_sums_are_the_same_from_call_to_call(name: str, n_jobs: int) -> None:
    """They are added in one order, whichever thread ends first."""
    predictor, rows = inexact(name), hard_rows(FOREST, 130, seed=2)
    results = [predictor.predict_margin(rows, n_jobs=n_jobs) for _ in range(200)]
    assert len({margin.tobytes() for margin in results}) == 1


def longest_halt(work: Callable[[], Any]) -> float:
    """Return the longest time for which another thread stood still, as a share of the work's."""
    ticks, stop = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    begin = time.perf_counter()
    work()
    duration = time.perf_counter() - begin
    stop.set()
    thread.join()
    return float(np.diff(ticks).max()) / duration


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_other_threads_run_while_a_batch_is_computed(n_jobs: int) -> None:
    rows = np.tile(hard_rows(FOREST, 1000), (700, 1))
    predictor().predict(rows[:200], n_jobs=n_jobs)
    assert any(longest_halt(lambda: predictor().predict(rows, n_jobs=n_jobs)) < 0.5 for _ in "123")


@pytest.mark.slow
def test_a_held_interpreter_lock_would_be_noticed() -> None:
    numbers = np.random.default_rng(0).random(1_000_000).tolist()
    assert longest_halt(lambda: sorted(numbers)) > 0.5


# -- twins ----------------------------------------------------------------------------------------


def test_the_code_of_a_block_is_there_once() -> None:
    forest = drawn_forest(8, 4, base=[0.1, 0.2], seed=1)
    sch = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 16)
    sch = sch.reorder("b0", "class", "tree", "b1").parallel("b0")
    found = tvm_forest.build(forest, schedule=sch)
    code = found.library.mod.inspect_source("ll")
    parts = [part.split("(")[0] for part in code.split("\ndefine") if "fcmp" in part]
    assert [part.split("@")[1] for part in parts] == ["_internal_predict_parallel_0"]
    rows = hard_rows(forest, 100, seed=2)
    for n_jobs in (1, 2):
        assert np.array_equal(found.predict_margin(rows, n_jobs), forest.predict_reference(rows))


def test_sums_of_their_own_for_threads_keep_a_twin_without() -> None:
    sch = tvm_forest.new_schedule(FOREST).tile("tree", "t0", "t1", 4).parallel("t0")
    alone = tvm_forest.lower(FOREST, sch).after
    assert "part" in alone["predict_parallel"].script()
    assert "part" not in alone["predict"].script()
