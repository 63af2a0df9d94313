"""The nest that we print is the nest that TVM runs, and every nest computes the same.

Loops that S-TIR cannot hold are written by the pass WriteNest, so TVM's nest is looked at behind
it. `test_random_schedules.py` has random schedules of random forests.
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

import tvm_forest
from drawn_schedules import drawn_schedule
from forests import drawn_forest
from interpreter import amount
from schedules import check_results
from tvm_forest.errors import ScheduleError
from tvm_forest.forest.rewrites.ordering import arrange_by_round
from tvm_forest.layouts import protocol
from tvm_forest.passes import pipeline
from tvm_forest.passes.reading.read_nest import read_nest
from tvm_forest.schedule_prims import Schedule, replay
from tvm_forest.schedule_prims.nest import Share
from tvm_forest.schedule_prims.walks import TreeDepths, find_walk_forms
from tvm_forest.tir_gen.canonical import emit_canonical

RANDOM_SCHEDULES = 60
FORESTS = {
    1: drawn_forest(37, 5, seed=1, base=[0.3], link="sigmoid"),
    3: drawn_forest(29, 4, seed=3, base=[0.3, -0.2, 0.1], link="softmax"),
}


@functools.cache
def canonical(classes: int, output: str) -> tvm.IRModule:
    """Return the function that is scheduled, in a layout on which no loop depends."""
    forest = arrange_by_round(FORESTS[classes])
    rep, _ = protocol.find("array").pack(forest)
    return emit_canonical(forest, rep, output)


def start(classes: int) -> Schedule:
    return tvm_forest.new_schedule(FORESTS[classes])


def nest_in_tvm(sch: Schedule, output: str) -> list[tirx.For]:
    """Return the loops around walks as they are behind WriteNest, outermost first."""
    tir = s_tir.Schedule(canonical(sch.classes, output))
    replay(tir, sch)
    mod = tir.mod
    for step in pipeline(read_nest(mod["main"]), None).passes:
        mod = step(mod)
        if step.info.name == "tvm_forest.WriteNest":
            break
    found: list[tirx.For] = []
    named = (tirx.For, lambda x: found.append(x) if "tvm_forest.name" in x.annotations else None)
    tvm_ffi.structural_walk(mod["main"].body, named, order="pre")
    return found


def facts_in_tvm(loop: tirx.For, n: int) -> tuple[str, int]:
    """Return name, and count for n rows."""
    count = tvm_ffi.structural_map(loop.extent, (tirx.Var, lambda _: tirx.IntImm("int64", n)))
    extent = int(sym.Analyzer().simplify(count))
    return str(loop.annotations["tvm_forest.name"]), extent


def facts_printed(loop: Any, n: int) -> tuple[str, int]:
    """Return the same of a loop that we print."""
    count = -(-(amount(loop.stop, n) - loop.start) // amount(loop.step, n))
    return loop.name, count


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
    "parallel trees": ONE.tile("tree", "t0", "t1", parts=4).parallel("t0"),
    "strided parallel trees": (
        THREE.tile("tree", "t0", "t1", 3).reorder("t1", "t0").parallel("t1").vector_reduce("t1", 8)
    ),
    "parallel rows and trees": (
        ONE.tile("batch", "b0", "b1", 16)
        .tile("tree", "t0", "t1", parts=3)
        .reorder("b0", "t0", "t1", "b1")
        .parallel("b0")
        .parallel("t0")
    ),
    "parallel trees in three levels": (
        ONE.tile("tree", "t0", "t1", 12).tile("t1", "t2", "t3", 4).parallel("t0").parallel("t2")
    ),
    "parallel trees inside blocks of classes": (
        THREE.tile("class", "c0", "c1", 2).reorder("c0", "batch", "tree", "c1").parallel("tree")
    ),
    "parallel trees inside strided rows": (
        ONE.tile("batch", "b0", "b1", 64)
        .reorder("b1", "tree", "b0")
        .parallel("tree")
        .vector_reduce("tree", 4)
    ),
    "rows in parts": ONE.tile("batch", "b0", "b1", parts=4).parallel("b0"),
    "rows in parts, trees in copies": (
        ONE.tile("batch", "b0", "b1", parts=3)
        .reorder("b0", "tree", "b1")
        .parallel("b0")
        .split("tree", "x", "y", 9)
        .interleave("b1@y", 4)
    ),
    "parallel trees inside parts of rows": (
        ONE.tile("batch", "b0", "b1", parts=3).reorder("b0", "tree", "b1").parallel("tree")
    ),
    "atomic trees": ONE.tile("tree", "t0", "t1", 9).parallel("t0").atomic_reduce("t0"),
    "split": ONE.tile("batch", "b0", "b1", 16)
    .reorder("b0", "tree", "b1")
    .split("tree", "x", "y", 9),
    "split rows": ONE.tile("batch", "b0", "b1", 10).split("b1", "x", "y", 6),
    "split inside parallel rows": (
        THREE.tile("batch", "b0", "b1", 16).parallel("b0").split("tree", "x", "y", 4)
    ),
    "special": (
        ONE.tile("tree", "t0", "t1", 10).specialize("t0").unroll("t1@t0=1").interleave("t1@t0=0", 3)
    ),
    "by depth": ONE.split_by_depth("tree"),
    "rows in lanes": ONE.tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").simdize("b1"),
    "default": tvm_forest.hop_schedule(FORESTS[3]),
}


def drawn(seed: int) -> Schedule:
    """Draw schedules until the walks of one can be written."""
    rng, forest = random.Random(seed), FORESTS[(1, 3)[seed % 2]]
    while True:
        sch = drawn_schedule(rng, tvm_forest.new_schedule(forest), forest)
        with contextlib.suppress(ScheduleError):
            find_walk_forms(sch, TreeDepths.of(arrange_by_round(forest)))
            return sch


def check_mirror(sch: Schedule) -> None:
    for output in ("predict", "per_tree", "apply"):
        nest = nest_in_tvm(sch, output)
        # TVM runs all of a number of parts, also those that few rows leave empty
        in_parts = any(isinstance(loop.step, Share) for loop in sch.loops())
        for n in (64, 130) if in_parts else (1, 64, 130):
            assert [facts_in_tvm(loop, n) for loop in nest] == [
                facts_printed(loop, n) for loop in sch.loops()
            ], output


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.cases(18, others="long")
def test_a_named_schedule_is_printed_as_tvm_runs_it(name: str) -> None:
    check_mirror(NAMED[name])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(RANDOM_SCHEDULES))
@pytest.mark.cases(10)
def test_a_random_schedule_is_printed_as_tvm_runs_it(seed: int) -> None:
    check_mirror(drawn(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.cases(4)
def test_a_named_schedule_computes_what_the_model_says(name: str) -> None:
    sizes = (0, 1, 7, 33, 130)
    check_results(FORESTS[NAMED[name].classes], NAMED[name], sizes, outputs=("margin",))
