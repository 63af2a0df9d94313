"""One predictor holds several schedules; the number of rows decides."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forests
import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import rounding_bound
from tvm_forest.errors import InputError, ScheduleError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import BIT_PLANES
from tvm_forest.predictor import saving
from tvm_forest.runtime.threads import FEW_ROWS
from tvm_forest.schedule_prims.batches import (
    arrange_by_batch,
    name_functions,
    select_schedule,
)
from tvm_forest.search import heuristic, layout_fit, workload
from tvm_forest.search.space import make_lanes
from tvm_forest.target import Target, cpu_vendor

SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 63, 64, 65, FEW_ROWS, FEW_ROWS + 1, 1000)
FOREST = drawn_forest(26, 5, base=(0.1, 0.2), link="softmax", seed=6)
START = tvm_forest.new_schedule(FOREST)
BLOCKS = START.tile("batch", "b0", "b1", 16).reorder("b0", "class", "tree", "b1")
SEVERAL = {
    1: START.tile_nodes(4).represent_as("sparse").interleave("tree", 5),
    8: BLOCKS.represent_as("ranked").interleave("b1", 8),
    64: BLOCKS.interleave("b1", 4).parallel("b0"),
}
BLOCKS_OF_64 = START.tile("batch", "b0", "b1", 64).reorder("b0", "class", "tree", "b1")
BACKWARDS = START.tile("tree", "t0", "t1", 7).reorder("t1", "t0")
"""A schedule of another order, so of other bits: it shows where it has been at work."""


@functools.cache
def predictor() -> tvm_forest.Predictor:
    return tvm_forest.build(FOREST, schedule=SEVERAL)


@functools.cache
def rows_and_margins() -> tuple[Any, Any]:
    rows = hard_rows(FOREST, max(SIZES), seed=3)
    return rows, FOREST.predict_reference(rows)


# -- predictions ----------------------------------------------------------------------------------


ANEW = pytest.param("compiled anew", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["built", "loaded", "pickled", ANEW])
def test_every_batch_has_the_bits_of_the_reference(kind: str) -> None:
    rows, margins = rows_and_margins()
    found = predictor()
    if kind == "pickled":
        found = pickle.loads(pickle.dumps(found))
    elif kind != "built":
        whole = saving.archive.unpack(saving.to_bytes(found), "test")
        whole.manifest["versions"]["tvm_forest"] += "x" * (kind == "compiled anew")
        found = saving.from_bytes(saving.archive.pack(whole))
    assert found.schedules == SEVERAL
    assert found.schedule == SEVERAL[64]
    for size in SIZES:
        for n_jobs in (None, 1, 2):
            assert np.array_equal(found.predict_margin(rows[:size], n_jobs), margins[:size])
    leaves = FOREST.predict_reference(rows, "apply")
    assert all(np.array_equal(found.apply(rows[:n]), leaves[:n]) for n in (1, 8, 64))


def test_the_number_of_rows_decides_which_schedule_runs() -> None:
    rows, margins = rows_and_margins()
    mixed = tvm_forest.build(FOREST, schedule={1: START, 3: BACKWARDS, 64: START}, exact=False)
    other = tvm_forest.build(FOREST, schedule=BACKWARDS, exact=False)
    for size in (1, 2, 3, 8, 63, 64, 65):
        said = other.predict_margin(rows[:size]) if 3 <= size < 64 else margins[:size]
        assert np.array_equal(mixed.predict_margin(rows[:size]), said)
        assert np.any(mixed.tolerance(rows[:size]) > 0) == (3 <= size < 64)
    assert not np.array_equal(other.predict_margin(rows), margins)


@pytest.mark.slow
def test_trees_in_parallel_for_a_single_row_stay_within_the_bound() -> None:
    sch = START.tile("tree", "t0", "t1", 5).reorder("t0", "batch", "class", "t1").parallel("t0")
    with pytest.raises(ScheduleError, match="exact=False"):
        tvm_forest.build(FOREST, schedule={1: sch, 8: BLOCKS})
    found = tvm_forest.build(FOREST, schedule={1: sch, 8: BLOCKS}, exact=False)
    rows, margins = rows_and_margins()
    for n_jobs in (1, 2):
        distance = np.abs(found.predict_margin(rows[:1], n_jobs) - margins[:1])
        assert np.all(distance <= rounding_bound(FOREST, rows[:1]))
    assert np.array_equal(found.predict_margin(rows[:8], n_jobs=2), margins[:8])


@pytest.mark.slow
def test_ranges_of_rounds_and_estimators_take_several_schedules() -> None:
    rows = rows_and_margins()[0][:9]
    part = predictor().rounds(0, 4)
    assert np.array_equal(part.predict_margin(rows), predictor().predict_margin(rows, None, (0, 4)))
    estimator = tvm_forest.ForestClassifier(FOREST, SEVERAL)
    assert np.array_equal(estimator.predict_proba(rows), predictor().predict_proba(rows))
    assert estimator.predictor_.schedules == SEVERAL


# -- what is shared -------------------------------------------------------------------------------


def test_equal_schedules_are_compiled_once() -> None:
    lowered = tvm_forest.lower(FOREST, {1: START, 4: BLOCKS, 9: START, 20: START})
    names = {var.name_hint for var in lowered.after.get_global_vars()}
    assert names == {"predict", "predict_from_4", "per_tree", "apply"}
    assert arrange_by_batch({1: START, 9: START}) == {1: START}
    assert name_functions({1: BLOCKS, 4: START, 9: BLOCKS, 20: SEVERAL[1]}) == {
        **{1: "predict_from_1", 9: "predict_from_1"},
        **{4: "predict_from_4", 20: "predict"},
    }


def test_schedules_of_one_layout_share_its_arrays() -> None:
    found = tvm_forest.build(FOREST, schedule={1: START.interleave("tree", 4), 8: BLOCKS})
    one, many = (found.arguments[name] for name in ("predict_from_1", "predict"))
    assert [id(array) for array in one[:-2]] == [id(array) for array in many[:-2]]
    alone = tvm_forest.build(FOREST, schedule=BLOCKS)
    counts = np.dtype(np.int64).itemsize  # the number of rounds
    assert found.model_bytes - alone.model_bytes == FOREST.base_score.nbytes + counts


@pytest.mark.parametrize(
    ("rows", "smallest"), [(0, 1), (1, 1), (7, 1), (8, 8), (63, 8), (64, 64), (9999, 64)]
)
def test_the_schedule_of_a_batch_is_that_of_the_greatest_key_not_above(
    rows: int, smallest: int
) -> None:
    assert select_schedule(SEVERAL, rows) is SEVERAL[smallest]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ({}, r"no schedule for batches of 1 row \(have: \); add the key 1"),
        ({8: START, 2: START}, r"no schedule for batches of 1 row \(have: 2, 8\)"),
        ({1: START, 0: START}, "0 is no number of rows"),
        ({1: START, -3: START}, "-3 is no number of rows"),
        ({True: START}, "True is no number of rows"),
        ({"1": START}, "'1' is no number of rows"),
        ({1: START, 8: START.to_json()}, "expected a Schedule at 8, got str"),
        ([START], "expected a Schedule, got list"),
        ({1: START, 8: tvm_forest.new_schedule(forest_of([1.0]))}, "made for 1 trees"),
    ],
)
def test_mappings_that_say_something_else_are_refused(schedules: Any, message: str) -> None:
    for function in (tvm_forest.build, tvm_forest.lower):
        with pytest.raises(ScheduleError, match=f"argument 'schedule': .*{message}"):
            function(FOREST, schedule=schedules)


# -- the short way --------------------------------------------------------------------------------


def short_and_long(rows: Any) -> tuple[Any, Any]:
    """What a predictor says, the short way if it takes these rows; and what it always says."""
    found = predictor()
    margin, value = found._sums(rows, None, None)
    return (found.predict_margin(rows), found.predict(rows)), (margin, value)


@pytest.mark.parametrize(
    "change",
    [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda rows: rows.astype(np.float64),
        lambda rows: rows.astype(rows.dtype.newbyteorder()),
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
        lambda rows: rows[::-1][::-1],
        lambda rows: rows.tolist(),
        lambda rows: rows.view(np.recarray),
    ],
)
@pytest.mark.parametrize("size", [1, 5, FEW_ROWS, FEW_ROWS + 1])
def test_rows_of_any_form_go_the_short_way_or_the_long_one(change: Any, size: int) -> None:
    rows, margins = rows_and_margins()
    some = change(rows[:size])
    short, long = short_and_long(some)
    assert all(np.array_equal(a, b) for a, b in zip(short, long, strict=True))
    assert np.array_equal(short[0], margins[:size])


def test_rows_that_cannot_be_written_are_read() -> None:
    rows, margins = rows_and_margins()
    some = rows[:3].copy()
    some.flags.writeable = False
    before = some.tobytes()
    assert np.array_equal(predictor().predict_margin(some), margins[:3])
    assert some.tobytes() == before


def test_results_belong_to_the_caller() -> None:
    rows, margins = rows_and_margins()
    first = predictor().predict_margin(rows[:2])
    second = predictor().predict_margin(rows[2:4])
    assert np.array_equal(first, margins[:2])
    first[:] = 0
    assert np.array_equal(second, margins[2:4])
    assert np.array_equal(predictor().predict_margin(rows[:2]), margins[:2])
    assert first.flags.writeable and first.flags.owndata


@pytest.mark.parametrize("size", [1, 3, 100])
def test_rows_of_another_shape_are_refused_whatever_their_number(size: int) -> None:
    rows = rows_and_margins()[0][:size]
    for wrong in (rows[0], rows[:, :-1], rows[None], np.float32(1), rows.astype("U8")):
        with pytest.raises(InputError, match="argument 'rows'"):
            predictor().predict(wrong)


@pytest.mark.parametrize("n_jobs", [0, True, 1.0, "1", -2])
def test_a_number_of_threads_is_checked_for_single_rows_too(n_jobs: Any) -> None:
    with pytest.raises(InputError, match="argument 'n_jobs'"):
        predictor().predict(rows_and_margins()[0][:1], n_jobs=n_jobs)


# -- threads --------------------------------------------------------------------------------------

COUNTED = """
import os, sys
import numpy as np
import tvm_forest
sys.path.append(sys.argv[1])
from forests import drawn_forest
forest = drawn_forest(30, 4)
predictor = tvm_forest.build(forest, schedule=tvm_forest.hop_schedule(forest))
rows = np.zeros((20000, 4), np.float32)
counts = [len(os.listdir("/proc/self/task"))]
for size in (1, 16, 64, 100, 20000):
    predictor.predict(rows[:size])
    counts.append(len(os.listdir("/proc/self/task")))
print(*np.diff(counts))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux does")
@pytest.mark.skipif(Target().cores < 2, reason="one core starts no threads")
def test_small_batches_start_no_threads() -> None:
    command = [sys.executable, "-c", COUNTED, Path(forests.__file__).parent]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *small, large = map(int, done.stdout.split())
    assert small == [0, 0, 0, 0]
    assert large > 0


# -- the default ----------------------------------------------------------------------------------

WIDE = drawn_forest(30, 4, n_features=40, seed=2)
CPU = Target(abilities=frozenset({"avx2", "avx512f"}))


def layouts(forest: Any, target: Target = CPU) -> list[str]:
    schedules = heuristic.default_schedules(forest, target).values()
    return ["tiles of " * bool(sch.rewrites) + sch.layout for sch in schedules]


def test_single_rows_and_large_batches_have_layouts_of_their_own() -> None:
    for cpu in ("x86-64", "x86-64-v3", "cascadelake", "znver4"):
        target = Target(options=(("mcpu", cpu),), cores=1)
        few, *_, many = layouts(FOREST, target)
        assert few != many


def test_every_default_is_exact_and_serves_single_rows() -> None:
    for forest in (FOREST, WIDE, forest_of([1.0]), drawn_forest(3, 12, dtype="float64")):
        schedules = heuristic.default_schedules(forest, CPU)
        assert arrange_by_batch(schedules)[1].keeps_order
        assert all(sch.keeps_order for sch in schedules.values())
        start = heuristic.hop_schedule(forest, CPU)
        assert start.keeps_order and not start.sliced
        assert all(loop.simdize is None for loop in start.leaves())


def test_threads_are_for_batches_that_begin_with_64_rows_or_more() -> None:
    target = Target(cores=2, abilities=CPU.abilities)
    schedules = heuristic.default_schedules(FOREST, target)
    parallel = {k: any(x.parallel for x in sch.loops()) for k, sch in schedules.items()}
    assert not parallel[1]
    assert all(parallel[k] for k in parallel if k >= 64)


def test_threads_do_not_cut_a_block_of_bit_planes_into_as_many_that_take_as_long() -> None:
    small, large = (
        START.represent_as("bitsliced")
        .tile("batch", "b0", "b1", size)
        .reorder("b0", "class", "tree", "b1")
        .simdize("b1", "bits")
        .parallel("b0")
        for size in (128, 512)
    )
    made = tvm_forest.build(FOREST, schedule={1: START, 128: small, 512: large})
    chosen = {
        (n, jobs): made._functions.plan(n, jobs)[0].rows_per_block
        for n in (256, 512, 1024)
        for jobs in (1, 2, 4, 8)
    }
    assert chosen == {
        **{(256, jobs): 128 for jobs in (1, 2, 4, 8)},
        **{(512, 1): 512, (512, 2): 512, (512, 4): 128, (512, 8): 128},
        **{(1024, 1): 512, (1024, 2): 512, (1024, 4): 512, (1024, 8): 128},
    }
    rows = hard_rows(FOREST, 1024, seed=7)
    for n_jobs in (1, 2, 4, 8):
        got = made.predict_margin(rows, n_jobs=n_jobs)
        assert np.array_equal(got, FOREST.predict_reference(rows))


def test_what_bits_do_not_hold_is_walked() -> None:
    many, few = (workload.Workload.of(FOREST, CPU) for _ in range(2))
    vars(many)["tests"] = 100_000
    assert layout_fit.find_obstacle_to_planes(many) == "100000 distinct tests, 60000 fit"
    assert layout_fit.find_obstacle_to_planes(few) is None


IN_PLANES = BLOCKS_OF_64.represent_as(BIT_PLANES).simdize("b1", "bits")


@pytest.mark.slow
def test_rows_behind_the_last_full_block_go_another_way() -> None:
    """By a schedule for few rows that adds backwards: it shows in the last bits."""
    one = {1: START, 64: IN_PLANES}
    exact = tvm_forest.build(FOREST, schedule=one)
    rows = hard_rows(FOREST, 70, seed=5)
    assert np.array_equal(exact.predict_margin(rows), FOREST.predict_reference(rows))
    two = {1: BACKWARDS, 64: IN_PLANES}
    mixed = tvm_forest.build(FOREST, schedule=two, exact=False)
    assert np.array_equal(mixed.predict_margin(rows), FOREST.predict_reference(rows))
    assert exact._functions.for_batches[-1].rows_per_block == 64
    assert mixed._functions.for_batches[-1].rows_per_block == 0


def test_large_batches_are_shared_out_among_all_cores() -> None:
    found = heuristic.default_schedules(full_forest(2, 13), replace(CPU, cores=2))
    assert select_schedule(found, 100_000).nest.children[0].parallel


@pytest.mark.slow
def test_rows_of_large_trees_are_lanes_and_parts_of_a_tile_are_exact() -> None:
    forest = drawn_forest(20, 6)
    sch = tvm_forest.new_schedule(forest).represent_as("packed")
    sch = make_lanes(sch.tile("batch", "b0", "b1", 256).reorder("b0", "tree", "b1"))
    tiles = tvm_forest.new_schedule(forest).tile_nodes(8).represent_as("sparse")
    tiles = tiles.tile("batch", "b0", "b1", 256).reorder("b0", "tree", "b1").interleave("b1", 16)
    rows = hard_rows(forest, 330)
    for schedule in (sch.cache("tree", "stream"), tiles):
        predictor = tvm_forest.build(forest, schedule=schedule)
        for size in (1, 63, 64, 65, 79, 255, 257, 330):
            margin = predictor.predict_margin(rows[:size])
            assert np.array_equal(margin, forest.predict_reference(rows[:size])[:, 0])


def test_a_named_cpu_and_given_abilities_have_no_vendor() -> None:
    assert Target().vendor == cpu_vendor()
    assert Target(options=(("mcpu", "znver4"),)).vendor == CPU.vendor == ""


def test_threads_take_smaller_blocks_where_larger_ones_would_be_for_one() -> None:
    small, large = (
        START.tile("batch", "b0", "b1", size).reorder("b0", "class", "tree", "b1").parallel("b0")
        for size in (16, 64)
    )
    made = tvm_forest.build(FOREST, schedule={1: START, 8: small, 64: large})
    chosen = {
        (n, jobs): made._functions.plan(n, jobs)[0].rows_per_thread
        for n in (64, 128)
        for jobs in (1, 2, 4)
    }
    assert chosen == {
        **{(64, 1): 64, (64, 2): 16, (64, 4): 16},
        **{(128, 1): 64, (128, 2): 64, (128, 4): 16},
    }
    rows = hard_rows(FOREST, 64, seed=5)
    assert np.array_equal(made.predict_margin(rows, n_jobs=2), FOREST.predict_reference(rows))


def test_rows_that_were_pickled_go_the_short_way() -> None:
    predictor = tvm_forest.build(FOREST, schedule=START)
    rows = pickle.loads(pickle.dumps(rows_and_margins()[0][:3]))
    assert rows.dtype is not np.dtype(rows.dtype.str)
    predictor.predict(rows)
    assert predictor._small_batches.usual.values(rows) is not None


@functools.cache
def near(dtype: str, other: str | None) -> tvm_forest.Predictor:
    """A model whose thresholds tell the neighbours of 2^24 and 0.1 apart."""
    points = [2.0**24, 0.1, float(np.float32(0.1)), 0.0]
    trees = [Split(k % 2, point, -1.0 - k, 1.0 + k, True) for k, point in enumerate(points)]
    forest = forest_of(trees, n_features=2, dtype=dtype, comparison="<=", other_dtype=other)
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


@pytest.mark.parametrize("given", ["f4", "f8", "f2", "i8", "u8", "i1", "?", ">f4", ">f8", "g"])
@pytest.mark.parametrize(
    ("dtype", "other"), [("float32", None), ("float64", None), ("float64", "float32")]
)
def test_few_rows_of_other_dtypes_are_those_that_many_rows_are(
    dtype: str, other: str | None, given: str
) -> None:
    predictor = near(dtype, other)
    values = [2**24 - 1, 2**24, 2**24 + 1, 0.1, np.float32(0.1), 0, -0.0, 1e300, np.nan, np.inf]
    with np.errstate(all="ignore"):
        rows = np.array(np.meshgrid(values, values), np.float64).reshape(2, -1).T.astype(given)
    rows = np.tile(rows, (3, 1))
    with np.errstate(all="raise"):
        long = predictor.predict(rows)
        few = 3 * [predictor.predict(rows[i : i + 1]) for i in range(len(rows) // 3)]
    assert len(rows) not in predictor._small_batches.frames
    assert (predictor._small_batches.usual.values(rows) is None) == (given not in ("f4", "f8"))
    assert np.concatenate(few).tobytes() == long.tobytes()


@pytest.mark.parametrize("given", ["f4", "f8", "i8", "?"])
@pytest.mark.parametrize("other", [None, "float32"])
def test_few_rows_of_any_numbers_go_the_short_way(other: str | None, given: str) -> None:
    predictor = near("float64", other)
    short, rows = predictor._small_batches, np.zeros((3, 2), given)
    short.frames.clear()
    predictor.predict(rows)
    has_frame = len(short.frames.get(3, [])) == 1
    assert has_frame == (given not in ("f4", "f8")) == (short.usual.values(rows) is None)


def test_few_rows_are_refused_as_many_are() -> None:
    forest = drawn_forest(6, 3, refuses=("nan", "inf"))
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    rows = np.zeros((3, forest.n_features))
    for value, found in ((np.nan, "NaN"), (np.inf, "inf"), (-1e39, "-inf")):
        rows[1, 0] = value
        with pytest.raises(InputError, match=rf"row 1, column 0.* is {found} as float32, which"):
            predictor.predict_margin(rows)
    rows[1, 0] = 1e38
    expected = forest.predict_reference(rows)[:, 0]
    assert np.array_equal(predictor.predict_margin(rows), expected)
    assert np.array_equal(predictor._small_batches.usual.margins(rows), expected)


@pytest.mark.parametrize(
    ("outputs", "rule"), [(1, "half"), (1, "cut"), (3, "argmax_margin"), (3, "argmax_probability")]
)
def test_few_rows_get_the_labels_and_probabilities_of_many(outputs: int, rule: Any) -> None:
    link = "softmax" if outputs > 1 else "sigmoid"
    labels = np.array([7, -2, 40][: max(2, outputs)])
    forest = drawn_forest(6, 3, base=(0.0,) * outputs, seed=3, link=link)
    forest = replace(forest, label_rule=rule, labels=labels)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    rows = hard_rows(forest, 200, seed=2)
    for predict in (predictor.predict, predictor.predict_proba):
        few = np.concatenate([predict(rows[i : i + 8]) for i in range(0, 200, 8)])
        assert few.tobytes() == predict(rows).tobytes()
    assert not predictor._small_batches.frames  # builtin functions have taken them


def test_few_rows_of_signalling_nans_are_taken_in_silence() -> None:
    rows = np.full((1, 2), 0x7F800001, np.uint32).view(np.float32)
    with np.errstate(all="raise"):
        assert np.array_equal(
            near("float64", None).predict(rows), near("float64", None).predict([[np.nan] * 2])
        )


@pytest.mark.parametrize("dtype", ["complex128", "object", "U3", "M8[s]", "V8"])
def test_few_rows_of_no_numbers_are_refused(dtype: str) -> None:
    with pytest.raises(InputError, match="rows must hold numbers"):
        near("float64", None).predict(np.zeros((1, 2), dtype))
