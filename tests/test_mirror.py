"""The nest that we print is the nest that TVM runs, and every nest computes the same.

Random schedules are a few steps drawn from the directives' own `choices`. For a longer run by hand
raise `RANDOM_SCHEDULES`.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest_passes.ordering import arrange_by_round
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import DIRECTIVES, Schedule, replay
from tvm_forest.tir_gen import representation
from tvm_forest.tir_gen.canonical import emit_canonical

RANDOM_SCHEDULES = 60
SOME_ROWS = (1, 7, 33, 130)
FORESTS = {
    1: drawn_forest(37, 5, seed=1, base=[0.3], link="sigmoid"),
    3: drawn_forest(29, 4, seed=3, base=[0.3, -0.2, 0.1], link="softmax"),
}


def random_schedule(seed: int, start: Schedule) -> Schedule:
    """Take up to seven steps, each drawn from the choices of a drawn directive."""
    rng = random.Random(seed)
    sch = start
    for _ in range(rng.randint(1, 7)):
        directive = DIRECTIVES[rng.choice(sorted(DIRECTIVES))]
        choices = list(directive.choices(sch))
        if choices:
            try:
                sch = directive.apply(sch, rng.choice(choices))
            except ScheduleError:
                continue  # a choice may be refused, but may not break the schedule
            assert sch.problem() is None
    return sch


@functools.cache
def canonical(classes: int, output: str) -> tvm.IRModule:
    """Return the function that is scheduled."""
    forest = arrange_by_round(FORESTS[classes])
    rep, _ = representation.find("array").pack(forest)
    return emit_canonical(forest, rep, output)


def start(classes: int) -> Schedule:
    return tvm_forest.new_schedule(FORESTS[classes])


def loops_in_tvm(sch: Schedule, output: str, n: int) -> list[tuple[str, int, bool]]:
    """Replay a schedule; return name, count for n rows, and parallel, of the loops of the walk."""
    tir = s_tir.Schedule(canonical(sch.classes, output))
    replay(tir, sch)
    names = {"walk", "walk_update"}
    root = tir.get_sblock("root")
    blocks = [b for b in tir.get_child_blocks(root) if tir.get(b).name_hint in names]
    loops = [tir.get(loop) for loop in tir.get_loops(blocks[-1])]
    parallel = tirx.ForKind.PARALLEL
    return [
        (loop.annotations["tvm_forest.name"], _value(loop.extent, n), loop.kind == parallel)
        for loop in loops
    ]


def _value(extent: Any, n: int) -> int:
    """Evaluate an extent, whose only variable is the number of rows."""
    count = tvm_ffi.structural_map(extent, (tirx.Var, lambda _: tirx.IntImm("int64", n)))
    return int(sym.Analyzer().simplify(count))


def loops_printed(sch: Schedule, n: int) -> list[tuple[str, int, bool]]:
    """Return the same of the nest that we print."""

    def count(loop: Any) -> int:
        stop = n if loop.stop is None else loop.stop
        return -(-(stop - loop.start) // loop.step)

    return [(loop.name, count(loop), loop.parallel) for loop in sch.loops()]


ONE, THREE = start(1), start(3)
NAMED = {
    "new": ONE,
    "rows in tiles": ONE.tile("batch", "b0", "b1", 64),
    "nested partial tiles": ONE.tile("batch", "b0", "b1", 64).tile("b1", "b2", "b3", 24),
    "tree tiles": ONE.tile("tree", "t0", "t1", 8).tile("t0", "t2", "t3", 3),
    "one tile": ONE.tile("tree", "t0", "t1", 37),
    "tiles of one": ONE.tile("tree", "t0", "t1", 1).tile("batch", "b0", "b1", 1),
    "parts": ONE.tile("tree", "t0", "t1", parts=5),
    "parts that would leave some empty": ONE.tile("tree", "t0", "t1", parts=25),
    "a strided tile": ONE.tile("tree", "t0", "t1", 8).reorder("t1", "t0").tile("t0", "s0", "s1", 2),
    "trees outside": ONE.reorder("tree", "batch"),
    "trees outside of parallel rows": (
        ONE.tile("batch", "b0", "b1", 4).reorder("tree", "b0", "b1").parallel("b0")
    ),
    "parallel inside": ONE.tile("batch", "b0", "b1", 16).parallel("b1"),
    "all of one class": (
        ONE.tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .interleave("b1", 8)
        .parallel("b0")
    ),
    "odd interleave": ONE.reorder("tree", "batch").interleave("batch", 5),
    "classes": THREE,
    "classes outside": THREE.reorder("class", "tree", "batch").interleave("batch", 4),
    "parallel classes": THREE.reorder("class", "batch").parallel("class"),
    "class tiles": THREE.tile("class", "c0", "c1", 2).reorder("c1", "batch", "c0"),
    "trees around classes": THREE.tile("tree", "t0", "t1", 4).reorder("t0", "batch", "class", "t1"),
    "default": tvm_forest.default_schedule(FORESTS[3]),
}
RANDOM = [random_schedule(seed, (ONE, THREE)[seed % 2]) for seed in range(RANDOM_SCHEDULES)]


def check_mirror(sch: Schedule) -> None:
    for output in ("margin", "value", "per_tree", "apply"):
        for n in (1, 64, 130):
            assert loops_in_tvm(sch, output, n) == loops_printed(sch, n)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_named_schedule_is_printed_as_tvm_runs_it(name: str) -> None:
    check_mirror(NAMED[name])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RANDOM_SCHEDULES))
def test_a_random_schedule_is_printed_as_tvm_runs_it(seed: int) -> None:
    check_mirror(RANDOM[seed])


@pytest.mark.parametrize("seed", range(RANDOM_SCHEDULES))
def test_a_random_schedule_survives_json(seed: int) -> None:
    assert Schedule.from_json(RANDOM[seed].to_json()) == RANDOM[seed]


def test_random_schedules_use_every_directive_and_both_orders() -> None:
    used = {step.do for sch in RANDOM for step in sch.steps}
    assert used == set(DIRECTIVES)
    assert {sch.keeps_order for sch in RANDOM} == {True, False}


def check_results(forest: Forest, sch: Schedule) -> None:
    """Bit-equal if the schedule keeps the order; else refused, and close if that is allowed."""
    if not sch.keeps_order:
        with pytest.raises(ScheduleError, match="exact=False"):
            tvm_forest.build(forest, schedule=sch)
    predictor = tvm_forest.build(forest, schedule=sch, exact=sch.keeps_order)
    for n in SOME_ROWS:
        rows = hard_rows(forest, n, seed=n)
        margin = forest.predict_reference(rows)
        margin = margin if forest.n_outputs > 1 else margin[:, 0]
        for n_jobs in (1, 2):
            result = predictor.predict_margin(rows, n_jobs=n_jobs)
            if sch.keeps_order:
                assert np.array_equal(result, margin)
            assert np.all(np.abs(result - margin) <= rounding_bound(forest, rows))
            leaves = predictor.apply(rows, n_jobs=n_jobs)
            assert np.array_equal(leaves, forest.predict_reference(rows, "apply"))
            values = predictor.predict_per_tree(rows, n_jobs=n_jobs)
            assert np.array_equal(values, forest.predict_reference(rows, "per_tree"))


def rounding_bound(forest: Forest, rows: Any) -> Any:
    """How far two orders of one float32 sum can be apart: 2 (T + 1) u (|base| + sum of |leaf|)."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    unit = np.finfo(np.float32).eps / 2
    outputs = range(forest.n_outputs)
    sums = np.stack([leaves[:, forest.tree_class == c].sum(axis=1) for c in outputs], axis=1)
    bound = 2 * (forest.n_trees + 1) * unit * (np.abs(forest.base_score) + sums)
    return bound if forest.n_outputs > 1 else bound[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_named_schedule_computes_what_the_model_says(name: str) -> None:
    check_results(FORESTS[NAMED[name].classes], NAMED[name])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RANDOM_SCHEDULES))
def test_a_random_schedule_computes_what_the_model_says(seed: int) -> None:
    check_results(FORESTS[RANDOM[seed].classes], RANDOM[seed])
