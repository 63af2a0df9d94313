"""Threads share few rows of a model that takes long, by the short way too."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import scheduled_models
import tvm_forest
from forests import drawn_forest
from scheduled_models import MODELS, forest_named
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor import functions
from tvm_forest.predictor.few_rows import builtin
from tvm_forest.runtime.threads.by_batch import ByBatch
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.batches import STEPS_BY_HOPS, STEPS_BY_VECTORS
from tvm_forest.search import heuristic, workload
from tvm_forest.search.measuring.drawn_forests import Shape, draw_forest
from tvm_forest.target import Target, parse_target

SIZES = (1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63)
LARGE = draw_forest(Shape(1000, 7))
SMALL = draw_forest(Shape(100, 6))
START = tvm_forest.new_schedule(LARGE)
STEPS = int(LARGE.depths.sum()) + LARGE.n_trees
BY_ROWS = START.represent_as("ranked").interleave("tree", 10)
TOGETHER = START.represent_as("ranked").reorder("tree", "batch").interleave("batch", 16)
CPUS = ("znver4", "cascadelake", "x86-64-v3")


def with_cores(count: int, given: Any = "llvm") -> Target:
    return replace(parse_target(given), cores=count)


def in_blocks(size: int, layout: str = "ranked", walk: str = "") -> Schedule:
    sch = START.represent_as(layout).tile("batch", "b0", "b1", size).reorder("b0", "tree", "b1")
    return sch.simdize("b1", walk) if walk else sch.interleave("b1", 8)


@functools.cache
def built(*schedules: tuple[int, Schedule]) -> tvm_forest.Predictor:
    """A predictor for two cores, with the schedules of batches from some sizes on."""
    return tvm_forest.build(LARGE, with_cores(2), dict(schedules))


def chosen(predictor: tvm_forest.Predictor, n_rows: int, n_jobs: int | None = None) -> Any:
    """Return the index of the function for a batch, and the number of threads."""
    function, threads = predictor._functions.plan(n_rows, n_jobs)
    at = next(k for k, x in enumerate(predictor._functions.for_batches) if x is function)
    return at, threads


# -- the default schedules ------------------------------------------------------------------------


def schedules_of_few_rows(forest: Any, cores: int, cpu: str) -> list[Schedule]:
    """Return the default schedules that serve no batch of 64 rows."""
    target = with_cores(cores, {"kind": "llvm", "mcpu": cpu})
    found = heuristic.default_schedules(forest, target)
    return [found[k] for k, end in pairwise(found) if end <= 64]


def are_shared(schedules: list[Schedule]) -> list[bool]:
    return [any(loop.parallel for loop in sch.loops()) for sch in schedules]


@pytest.mark.parametrize("cpu", CPUS)
def test_only_where_few_rows_take_long_is_their_code_compiled_for_threads(cpu: str) -> None:
    slow = draw_forest(Shape(300, 8, 28, 900))
    assert any(are_shared(schedules_of_few_rows(slow, 2, cpu)))
    for forest, cores in ((slow, 1), (SMALL, 2)):
        found = are_shared(schedules_of_few_rows(forest, cores, cpu))
        assert found and not any(found)


def test_neither_short_calls_nor_large_blocks_of_vectors_are_compiled_for_threads() -> None:
    short, long = (draw_forest(Shape(trees, 6)) for trees in (800, 1300))
    assert not any(are_shared(schedules_of_few_rows(short, 2, "cascadelake")))
    assert any(are_shared(schedules_of_few_rows(long, 2, "cascadelake")))
    vectors = schedules_of_few_rows(LARGE, 2, "znver4")
    assert vectors[-1].layout == "levels" and not are_shared(vectors)[-1]


def test_a_point_that_serves_two_ranges_of_batches_has_one_function() -> None:
    work = workload.Workload.of(LARGE, with_cores(2, {"kind": "llvm", "mcpu": "x86-64-v3"}))
    found = heuristic.choose(work).values()
    one, other, *_, last = (choice._replace(shared="") for choice in found)
    found = heuristic._share_long_batches(work, {1: one, 8: other, 16: one, 64: last})
    assert found[1] == found[16] and found[16].shared and not found[8].shared


@pytest.mark.parametrize("outputs, loop", [(1, "t0"), (3, "class")])
def test_threads_share_the_trees_or_classes_of_one_row_that_takes_long(
    outputs: int, loop: str
) -> None:
    forest = drawn_forest(4200, 9, base=[0.5] * outputs)
    target = {"kind": "llvm", "mcpu": "x86-64-v3"}
    found = heuristic.default_schedules(forest, with_cores(2, target))
    assert list(found)[:2] == [1, 2] and found[1].keeps_order
    assert [x.name for x in found[1].loops() if x.parallel] == [loop]
    assert [x.kind for x in found[2].loops() if x.parallel] == ["batch"]
    assert 2 not in heuristic.default_schedules(forest, with_cores(1, target))
    predictor = tvm_forest.build(forest, with_cores(2), {1: found[1], 2: found[2]})
    assert [chosen(predictor, n) for n in (1, 2)] == [(0, 2), (1, 2)]
    rows = hard_rows(forest, 3, seed=1)
    for n_jobs in (None, 1, 2, 3):
        for n in (1, 3):
            margin = predictor.predict_margin(rows[:n], n_jobs=n_jobs).reshape(n, -1)
            assert margin.tobytes() == forest.predict_reference(rows[:n]).tobytes()


# -- the number of threads ------------------------------------------------------------------------


def test_a_call_of_few_steps_stays_on_its_thread() -> None:
    predictor = built((1, BY_ROWS.parallel("batch")))
    first = -(-2 * STEPS_BY_HOPS // STEPS)
    assert 2 < first < 63
    assert [chosen(predictor, n)[1] for n in range(1, 64)] == [1] * (first - 1) + [2] * (64 - first)
    small = tvm_forest.build(SMALL, with_cores(2))
    assert {chosen(small, n)[1] for n in range(1, 64)} == {1}


def test_vectors_take_more_steps_before_threads_share_them() -> None:
    predictor = built((1, in_blocks(16, "levels", "permute").parallel("b0")))
    first = -(-2 * STEPS_BY_VECTORS["levels"] // STEPS)
    assert -(-2 * STEPS_BY_HOPS // STEPS) < first < 22  # when there is more than one block
    assert [chosen(predictor, n)[1] for n in (1, 21, 22, 63)] == [1, 1, 2, 2]
    functions = predictor._functions
    function = functions.for_batches[0]
    assert functions.count_threads(function, first - 1, None) == 1
    assert functions.count_threads(function, first, None) == 2


@pytest.mark.parametrize("cores", [2, 3, 6, 64])
def test_twice_the_rows_get_twice_the_threads(cores: int) -> None:
    functions = built((1, BY_ROWS.parallel("batch")))._functions
    function, per_row = functions.for_batches[0], functions.steps_per_row
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "cores", cores)
        for n in range(1, 100 * cores):
            threads = functions.count_threads(function, n, None)
            enough = n * per_row // STEPS_BY_HOPS
            assert threads == (cores if enough >= cores else 2 ** int(math.log2(max(1, enough))))


def test_a_block_and_a_bit_wake_no_thread() -> None:
    predictor = built((1, in_blocks(32).parallel("b0")))
    assert [chosen(predictor, n)[1] for n in (32, 33, 42, 43, 63)] == [1, 1, 1, 2, 2]


def test_a_function_without_threads_is_called_on_one() -> None:
    predictor = built((1, BY_ROWS))
    assert {chosen(predictor, n)[1] for n in (1, 8, 63, 5000)} == {1}


def test_rows_that_one_thread_takes_wake_no_other() -> None:
    functions, rows = built((1, in_blocks(32).parallel("b0")))._functions, hard_rows(LARGE, 43)
    calls = list[int]()
    noted = tvm_ffi.convert(lambda *arguments: calls.append(len(arguments)))
    function = functions.for_batches[0]._replace(parallel=noted)
    results = functions.new_results(32)
    functions.run(function, rows[:32], results, 2)
    assert not calls and np.array_equal(results[-1], LARGE.predict_reference(rows[:32]))
    functions.run(function, rows, functions.new_results(43), 2)
    assert len(calls) == 1


# -- which function -------------------------------------------------------------------------------


def test_threads_walk_rows_one_by_one_where_few_would_go_together() -> None:
    predictor = built((1, BY_ROWS.parallel("batch")), (2, TOGETHER))
    assert [chosen(predictor, n) for n in (1, 2, 3, 63)] == [(0, 1), (1, 1), (0, 2), (0, 2)]
    assert chosen(predictor, 63, n_jobs=1) == (1, 1)


def test_threads_do_not_turn_from_vectors_to_hops() -> None:
    """Unless they are many: a step takes about four times as long."""
    vectors = in_blocks(16, "levels", "permute")
    predictor = built((1, BY_ROWS.parallel("batch")), (8, vectors))
    assert {chosen(predictor, n)[0] for n in (8, 16, 24, 63)} == {1}
    assert [chosen(predictor, 16, n_jobs)[0] for n_jobs in (2, 4, 5, 8)] == [1, 1, 1, 0]


def test_larger_blocks_stay_unless_smaller_ones_keep_threads_much_busier() -> None:
    small, large = in_blocks(8).parallel("b0"), in_blocks(16).parallel("b0")
    predictor = built((1, BY_ROWS), (8, small), (16, large))
    assert [chosen(predictor, n) for n in (16, 24, 32, 48, 63)] == [
        *((1, 2), (2, 2), (2, 2), (1, 2), (2, 2)),
    ]


def test_smaller_blocks_must_leave_a_quarter_of_the_rows_to_others() -> None:
    predictor = built((1, BY_ROWS.parallel("batch")), (8, in_blocks(16).parallel("b0")))
    assert [chosen(predictor, n)[0] for n in (16, 40, 48, 49, 56, 63)] == [0, 0, 0, 1, 1, 1]


# -- the short way --------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [2, 3, 6, 64])
@pytest.mark.parametrize("n_jobs", [None, -1, 1, 2, 3, 5, 16])
@pytest.mark.parametrize("sizes", [(1,), (1, 16), (8, 16, 24), (64, 128, 512), (1, 64, 100)])
def test_turns_are_where_another_function_or_number_of_threads_begins(
    sizes: tuple[int, ...], n_jobs: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = built((1, BY_ROWS.parallel("batch")), (2, TOGETHER))._functions
    some = [
        functions.for_batches[k % 2]._replace(
            rows_per_thread=size, rows_per_block=size * (size >= 64), steps_per_thread=steps
        )
        for k, (size, steps) in enumerate(zip(sizes, (9000, 50000, 125000), strict=False))
    ]
    monkeypatch.setattr(functions, "cores", cores)
    monkeypatch.setattr(functions, "smallest_batches", [1, *sizes[1:]])
    monkeypatch.setattr(functions, "for_batches", some)
    turns, planned = functions.list_turns(4000, n_jobs), None
    for n in range(1, 4001):
        if n in turns:
            planned = functions.plan(n, n_jobs)
        assert planned == functions.plan(n, n_jobs), n


def test_the_short_way_takes_what_threads_share() -> None:
    planes = in_blocks(64, "bitsliced", "bits")
    predictor = built((1, BY_ROWS.parallel("batch")), (16, planes))
    rows = hard_rows(LARGE, 63, seed=1)
    first = -(-2 * STEPS_BY_HOPS // STEPS)
    one, other = predictor._functions.for_batches
    served = list(builtin.list_served(predictor._functions, 63))
    assert served == [(1, one, 0), (first, one, 1), (16, other, 0)]
    usual, alone = (predictor._small_batches.find_calls(n_jobs) for n_jobs in (2, 1))
    if usual.margins is builtin.take_none:
        pytest.skip("builtin functions are off")
    for n in range(1, 64):
        assert usual.margins(rows[:n]).tobytes() == alone.margins(rows[:n]).tobytes()


def test_no_other_function_is_chosen_for_sums_in_another_order() -> None:
    functions = built((1, BY_ROWS.parallel("batch")), (2, TOGETHER))._functions
    usual = functions.for_batches[1]
    for keeps_order, chosen_one in ((True, functions.for_batches[0]), (False, usual)):
        functions_of = ByBatch([1, 2], [functions.for_batches[0], usual], 8000, 2)
        functions_of.for_batches[1] = usual._replace(keeps_order=keeps_order)
        assert functions_of.plan(8, 2)[0].parallel is chosen_one.parallel


def test_functions_of_many_numbers_of_threads_are_not_all_kept() -> None:
    batches = built((1, BY_ROWS.parallel("batch")))._small_batches
    rows = hard_rows(LARGE, 3)
    wanted = LARGE.predict_reference(rows)[:, 0].tobytes()
    for n_jobs in range(1, 200):
        found = batches.find_calls(n_jobs).margins(rows)
        assert found is None or found.tobytes() == wanted
        assert len(batches._calls) <= 64


def test_the_short_way_leaves_out_sums_in_another_order_that_wait_for_threads() -> None:
    sch = START.represent_as("ranked").reorder("tree", "batch").parallel("tree")
    schedules = {1: sch, 8: BY_ROWS.parallel("batch")}
    functions = tvm_forest.build(LARGE, with_cores(2), schedules, exact=False)._functions
    assert not functions.for_batches[0].keeps_order
    served = [(x.begin, x.function is None) for x in builtin.list_served(functions, 20, 2)]
    assert served == [(1, True), (8, False)]


PINNED = """
import os, sys
sys.path[:0] = sys.argv[1:]
import numpy as np
from test_few_rows_in_threads import BY_ROWS, built, hard_rows, LARGE
predictor, rows = built((1, BY_ROWS.parallel("batch"))), hard_rows(LARGE, 40)
predictor.predict_margin(rows[:1])
count, cores = lambda: len(os.listdir("/proc/self/task")), os.sched_getaffinity(0)
begin = count()
os.sched_setaffinity(0, {min(cores)})
predictor.predict_margin(rows)
pinned = count()
os.sched_setaffinity(0, cores)
predictor.predict_margin(rows)
print(pinned - begin, count() - begin)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
@pytest.mark.skipif(Target().cores < 2, reason="one core starts no threads")
def test_a_call_on_one_core_starts_no_threads_whatever_was_at_the_first() -> None:
    folders = [str(Path(__file__).parent), str(Path(scheduled_models.__file__).parent)]
    done = subprocess.run([sys.executable, "-c", PINNED, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"]


# -- results --------------------------------------------------------------------------------------


@functools.cache
def batches() -> list[tuple[Any, bytes]]:
    """Rows of several sizes, and the bytes of their margins."""
    rows = [hard_rows(LARGE, size, seed=size) for size in SIZES]
    return [(x, LARGE.predict_reference(x)[:, 0].tobytes()) for x in rows]


@functools.cache
def default() -> tvm_forest.Predictor:
    return tvm_forest.build(LARGE, with_cores(2))


def several() -> tvm_forest.Predictor:
    """A predictor of whose functions threads take those for one row and for blocks."""
    return built((1, BY_ROWS.parallel("batch")), (2, TOGETHER), (32, in_blocks(16).parallel("b0")))


def are_right(predictor: tvm_forest.Predictor, repeats: int = 5) -> bool:
    return all(
        predictor.predict_margin(rows, n_jobs=n_jobs).tobytes() == wanted
        for _ in range(repeats)
        for rows, wanted in batches()
        for n_jobs in (None, 1, 2)
    )


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    assert {chosen(several(), n)[1] for n in SIZES} == {1, 2}
    assert are_right(several()) and are_right(default())


def test_several_callers_at_once_get_the_same_bits() -> None:
    predictor = several()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: are_right(predictor), range(4))) == [True] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_gets_the_same_bits() -> None:
    predictor = several()
    assert are_right(predictor, repeats=1)
    child = multiprocessing.get_context("fork").Process(target=leave, args=(predictor,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert are_right(predictor, repeats=1)


def leave(predictor: tvm_forest.Predictor) -> None:
    os._exit(0 if are_right(predictor, repeats=1) else 1)


# -- models of all libraries ----------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(6, others="long")
def test_every_model_has_the_same_bits_whichever_threads_share_its_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heuristic, "SHARED_NANOSECONDS", 0)
    monkeypatch.setattr(heuristic, "ROW_NANOSECONDS", 0)
    for room in (heuristic, functions):
        monkeypatch.setattr(room, "count_steps_of_a_thread", lambda _: 1)  # as if all were large
    forest = forest_named(name)
    schedules = heuristic.default_schedules(forest, with_cores(2))
    predictor = tvm_forest.build(forest, with_cores(2), schedules)
    rows = hard_rows(forest, 70, seed=5)
    finite = list(forest.finite_columns)
    rows[:, finite] = np.where(np.isinf(rows[:, finite]), np.nan, rows[:, finite])
    expected = forest.predict_reference(rows)
    assert chosen(predictor, 1)[1] == 2
    assert any(chosen(predictor, n)[1] == 2 for n in range(2, 64))
    for n in (0, 1, 2, 7, 16, 17, 33, 63, 64, 70):
        for n_jobs in (None, 1, 2, 3):
            margin = predictor.predict_margin(rows[:n], n_jobs=n_jobs)
            assert margin.tobytes() == expected[:n].tobytes(), (n, n_jobs)
