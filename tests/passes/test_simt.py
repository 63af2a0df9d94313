"""Schedules for GPUs, run on the CPU: what the target "simt" computes and what it refuses."""

from __future__ import annotations

import functools
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

import tvm_forest
from benchmarks.gpu import recipes as bench
from drawn_schedules import GPU_LAYOUTS as LAYOUTS
from forests import Split, drawn_forest, forest_of
from gpu_schedules import BACKWARDS, ORDERS, check, check_sums
from quick_builds import lower_sums
from recipe_cases import CASES, ON_GPU
from schedules import compare
from shared_models import shared_model
from tvm_forest.errors import BuildError, InputError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import COPIED
from tvm_forest.passes.gpu.run_threads import run_threads
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.recipes import gpu_template
from tvm_forest.target import Target
from tvm_forest.targets import cpu


@functools.cache
def forest(classes: int) -> Forest:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes])


# -- what schedules compute -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_GPU)
def test_a_gpu_recipe_computes_what_the_model_says(name: str) -> None:
    model = forest(1)
    check_sums(model, CASES[name].schedule(tvm_forest.new_schedule(model)), BACKWARDS)


NEAR_TREES = ("E6", "E7")
SERVED = [
    x for x in product(ON_GPU, LAYOUTS) if x[1] in COPIED or x[0] not in (*NEAR_TREES, "ranks")
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [*SERVED[::2], *(pytest.param(*x, marks=pytest.mark.long) for x in SERVED[1::2])],
)
@pytest.mark.cases(4)
def test_a_gpu_recipe_serves_every_layout_and_several_classes(name: str, layout: str) -> None:
    model = forest(3)
    sch = CASES[name].schedule(tvm_forest.new_schedule(model)).represent_as(layout)
    check(model, sch, ORDERS[LAYOUTS.index(layout) % 2])


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "cache_trees"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("rows_thread", [1, 2])
@pytest.mark.cases(1)
def test_the_template_computes_what_the_model_says(
    rows_thread: int, factor: int, cache_trees: bool
) -> None:
    model = forest(1)
    for unroll, shared in ((False, True), (True, False)):
        start = tvm_forest.new_schedule(model)
        rest = (unroll, cache_trees, unroll, factor, shared)
        check_sums(model, gpu_template(start, 8, rows_thread, 3, *rest), BACKWARDS, (1, 7, 33))


def test_tiles_of_nodes_are_walked_by_threads() -> None:
    model = forest(1)
    start = tvm_forest.new_schedule(model).tile_nodes(4).represent_as("sparse")
    check(model, CASES["E4"].schedule(start))


def test_trees_on_the_grid_and_in_the_block_are_added_up() -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("tree", "g", "t", 3).tile("t", "t1", "t0", 2)
    sch = sch.tile("batch", "b0", "b1", 4).reorder("b0", "g", "b1", "t1", "t0")
    for name, dimension in (
        ("b0", "grid.x"),
        ("g", "grid.y"),
        ("b1", "block.x"),
        ("t1", "block.y"),
    ):
        sch = sch.gpu_dimension(name, dimension)
    for changed in (sch, sch.atomic_reduce("g"), sch.shared_reduce("t1")):
        check_sums(model, changed, BACKWARDS)


@pytest.mark.parametrize("sums", ["", "ordered_reduce"])
def test_serial_trees_may_stand_between_two_loops_over_the_grid(sums: str) -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 2).tile("tree", "t0", "t1", 3)
    sch = sch.reorder("b0", "t0", "b1", "t1").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "grid.z").gpu_dimension("t1", "grid.y")
    check_sums(model, getattr(sch, sums)("t1") if sums else sch, BACKWARDS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["airline", "higgs", "epsilon"])
def test_real_models_are_exact_by_default_at_every_size_of_batch(name: str) -> None:
    model = tvm_forest.load(shared_model(f"{name}.json"))
    predictor = tvm_forest.build(model, BACKWARDS)
    shared = [any(x.reduce for x in sch.loops()) for sch in predictor.schedules.values()]
    assert shared[0] and all(sch.keeps_order for sch in predictor.schedules.values())
    for n in (0, 1, 33, 513, 4100):
        rows = hard_rows(model, n, seed=n)
        expected = model.predict_reference(rows)[:, 0]
        assert predictor.predict_margin(rows).tobytes() == expected.tobytes(), n


@pytest.mark.slow
@pytest.mark.parametrize("name", ["airline", pytest.param("year", marks=pytest.mark.long)])
def test_real_models_are_exact_with_a_thread_for_each_row(name: str) -> None:
    model = tvm_forest.load(shared_model(f"{name}.json"))
    predictor = tvm_forest.build(model, "simt", tvm_forest.hop_schedule(model, "simt"))
    rows = hard_rows(model, 100, seed=1)
    expected = model.predict_reference(rows)[:, 0]
    assert predictor.schedule.keeps_order
    assert predictor.predict_margin(rows).tobytes() == expected.tobytes()
    template = gpu_template(tvm_forest.new_schedule(model), 32, 1, 10)
    near = tvm_forest.build(model, "simt", template, exact=False)
    assert np.all(np.abs(near.predict_margin(rows) - expected) <= near.tolerance(rows)[:, 0])


SLICE = list(
    zip(("airline", "year") * 4, (*LAYOUTS, "array in tiles", "sparse in tiles"), strict=False)
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), SLICE)
@pytest.mark.cases(1)
def test_a_slice_of_the_matrix_of_recipes_and_layouts(name: str, layout: str) -> None:
    model = tvm_forest.load(shared_model(f"{name}.json"))
    rows, first = hard_rows(model, 70, seed=1), SLICE.index((name, layout))
    expected = model.predict_reference(rows)
    schedules = [*bench.template(model, layout), *bench.of_the_literature(model, layout)]
    for number, (label, sch) in list(enumerate(schedules))[first::8]:
        found = bench.outcome(model, sch, number, rows, expected)
        assert found in ("equal", "within the bound"), (label, found)  # "equal" where it must be


def test_the_default_schedule_is_exact_and_no_rows_are_no_launch() -> None:
    model = forest(3)
    predictor = tvm_forest.build(model, "simt")
    assert all(
        {"grid.x", "block.x"} <= {x.gpu for x in s.loops()} for s in predictor.schedules.values()
    )
    assert len(predictor.schedules) > 1 and all(x.keeps_order for x in predictor.schedules.values())
    compare(predictor, model, predictor.schedule, (1, 33, 513, 4100), outputs=("margin",))
    assert predictor.predict_margin(np.empty((0, 4), np.float32)).shape == (0, 3)


def test_no_trees_are_walked_for_classes_behind_the_last_one() -> None:
    model = forest(3)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4).tile("class", "c0", "c1", 2)
    sch = sch.reorder("b0", "b1", "tree", "c0", "c1").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x")
    text = lower_sums(model, sch, "simt").after["predict"].script()
    assert re.search(r"if class__0 \* 2 \+ class__1 < 3:\s+first = T.alloc_local", text)
    check(model, sch, BACKWARDS)


# -- kernels --------------------------------------------------------------------------------------


def test_a_kernel_is_written_as_it_will_run_on_a_gpu() -> None:
    sch = CASES["E8"].schedule(tvm_forest.new_schedule(forest(1)))
    text = lower_sums(forest(1), sch, "simt").after["predict"].script()
    for part in (
        'thread="blockIdx.x"',
        'thread="threadIdx.x"',
        "near = T.alloc_shared((T.int64(4)",
    ):
        assert part in text
    assert text.count("T.tvm_storage_sync") == 6  # rows, walks, 13 sums to 7 to 4 to 2 to 1


@pytest.mark.parametrize("layout", COPIED)
@pytest.mark.parametrize("name", NEAR_TREES)
@pytest.mark.cases(4, others="long")
def test_trees_are_copied_into_shared_memory(name: str, layout: str) -> None:
    sch = CASES[name].schedule(tvm_forest.new_schedule(forest(1)).represent_as(layout))
    text = lower_sums(forest(1), sch, "simt").after["predict"].script()
    assert "near_nodes = T.alloc_shared" in text
    assert len(re.findall(r"(?<!near_)nodes\[", text)) == 1  # where they are copied


@pytest.mark.parametrize("layout", ["reorg", "array of tiles", "sparse of tiles"])
@pytest.mark.parametrize("name", NEAR_TREES)
def test_trees_that_cannot_be_copied_are_refused_by_loop_and_layout(name: str, layout: str) -> None:
    word, _, tiles = layout.partition(" ")
    start = tvm_forest.new_schedule(forest(1)).represent_as(word)
    sch = CASES[name].schedule(start.tile_nodes(4) if tiles else start)
    loop = "t0" if name == "E6" else "g"
    said = f"trees of '{loop}' in layout '{word}'{' of tiles' * bool(tiles)} cannot be copied into "
    for make in (tvm_forest.lower, functools.partial(tvm_forest.build, exact=False)):
        for target in ("simt", "cuda"):
            with pytest.raises(ScheduleError, match=f"{said}.*; use one of array, packed"):
                make(forest(1), target=target, schedule=sch)


def test_walks_of_near_trees_advance_together_where_the_loop_outside_is_cached() -> None:
    model, start = forest(1), tvm_forest.new_schedule(forest(1)).tile("batch", "b0", "b1", 8)
    start = start.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    with pytest.raises(ScheduleError, match="tile it, and cache the outer loop"):
        start.cache("tree").interleave("tree", 4)
    sch = start.tile("tree", "t0", "t1", 4).cache("t0").interleave("t1", 4)
    text = lower_sums(model, sch, "simt").after["predict"].script()
    assert "near_nodes = T.alloc_shared" in text and "node_3" in text
    check(model, sch, BACKWARDS, (1, 20))


def run(kernel: Any, *arrays: Any) -> None:
    """Run a kernel that was written by hand, in both orders, with the same result."""
    before = [array.copy() for array in arrays]
    for backwards in (False, True):
        given = arrays if backwards else before
        func = run_threads(kernel, backwards).with_attr("global_symbol", "f")
        library = cpu.compile_module(tvm.IRModule({"f": func}), cpu.tvm_target(Target()))
        library["f"](*given)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, before, strict=True))


@T.prim_func
def reversed_in_blocks(a: T.Buffer((64,), "float32", align=4)):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            near = T.alloc_buffer((32,), "float32", scope="shared")
            x: T.float32 = a[bx * 32 + tx]
            near[tx] = x
            T.tvm_storage_sync("shared")
            a[bx * 32 + tx] = near[31 - tx] + x


def test_values_of_a_thread_outlive_a_barrier() -> None:
    a = np.arange(64, dtype=np.float32)
    expected = a.reshape(2, 32)[:, ::-1].ravel() + a
    run(reversed_in_blocks, a)
    assert np.array_equal(a, expected)


@T.prim_func
def sum_of_a_warp(a: T.Buffer((32,), "float32", align=4), out: T.Buffer((1,), "float32", align=4)):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        x: T.float32 = a[tx]
        for step in range(5):
            x = x + T.tvm_warp_shuffle_down(
                T.uint32(0xFFFFFFFF), x, T.shift_right(16, step), 32, 32
            )
        if tx == 0:
            out[0] = x


def test_a_shuffle_reads_what_other_threads_had() -> None:
    a, out = np.arange(32, dtype=np.float32), np.zeros(1, np.float32)
    run(sum_of_a_warp, a, out)
    assert out[0] == a.sum()


@T.prim_func
def barrier_for_some(a: T.Buffer((32,), "float32", align=4)):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        if tx < 16:
            T.tvm_storage_sync("shared")
            a[tx] = T.float32(1)


@T.prim_func
def barrier_in_loops(a: T.Buffer((32,), "float32", align=4)):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        count: T.int32 = tx
        T.tvm_storage_sync("shared")
        for i in range(count):
            T.tvm_storage_sync("shared")
            a[tx] = T.float32(i)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (barrier_for_some, r"inside a condition, .*, which depends on the thread \('tx'\)"),
        (barrier_in_loops, r"inside a loop of .* iterations, which depends on the thread"),
    ],
)
def test_a_barrier_that_some_threads_miss_is_refused(kernel: tirx.PrimFunc, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        run_threads(kernel)


# -- refusals -------------------------------------------------------------------------------------


def start() -> Schedule:
    return tvm_forest.new_schedule(forest(1))


REFUSALS = {
    "a CPU schedule": (lambda: start(), "no loop is mapped to the threads of a GPU"),
    "parallel": (lambda: start().parallel("batch"), "'batch' is parallel, which is for CPU"),
    "shared memory": (
        lambda: start().tile("batch", "b0", "b1", 16384).gpu_dimension("b0", "grid.x").cache("b0"),
        r"327680 \(near 16384 x 5\) bytes of shared memory per block, the target allows 232448",
    ),
    "bits": (
        lambda: CASES["E4"].schedule(start().represent_as("bitsliced")),
        "'bitsliced' is for CPUs only|'bitsliced' is walked by bits only",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_schedule_that_no_gpu_could_run_is_refused(name: str) -> None:
    make, message = REFUSALS[name]
    with pytest.raises(ScheduleError, match=message):
        tvm_forest.build(forest(1), "simt", make())
    with pytest.raises(ScheduleError, match=message):
        tvm_forest.lower(forest(1), make(), "simt")


def test_what_leaves_need_of_shared_memory_is_refused_by_build() -> None:
    """Sums are added up by several kernels, which share rows in the memory of the device."""
    sch = start().tile("batch", "b0", "b1", 16384).tile("tree", "t0", "t1", 3)
    sch = sch.reorder("b0", "t0", "t1", "b1").cache("b0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t0", "grid.y").ordered_reduce("t0")
    with pytest.raises(ScheduleError, match=r"327680 \(near 16384 x 5\) bytes of shared memory"):
        tvm_forest.build(forest(1), "simt", sch)


def test_threads_of_loops_beside_each_other_are_counted_together() -> None:
    model = forest_of([Split(0, 0.5, 1.0, 2.0)] * 80)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 64)
    sch = sch.reorder("b0", "tree", "b1").split("tree", "d1", "d2", 40)
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension(sch.copies("b1")[0], "block.x")
    sch = sch.gpu_dimension("d2", "block.y")
    with pytest.raises(ScheduleError, match="40 x 64 = 2560 threads per block"):
        tvm_forest.build(model, "simt", sch, exact=False)


def test_an_unknown_order_of_threads_is_refused() -> None:
    with pytest.raises(InputError, match="option 'order' of 'simt': 'shuffled' is unknown"):
        tvm_forest.build(forest(1), {"kind": "simt", "order": "shuffled"})
