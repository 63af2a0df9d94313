"""Kernels for CUDA: their text, run by an emulated driver, and what the driver is asked."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import multiprocessing
import pickle
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import catboost_models
import gpu_schedules
import tvm_forest
from drawn_schedules import GPU_LAYOUTS, drawn_schedule, layouts_of
from emulated_cuda import called, emulated, evaluate, libcuda, margins_with, settings, translate
from forests import Split, drawn_forest, forest_of
from gpu_schedules import each_row
from linear_models import by_hand
from recipe_cases import CASES
from schedules import odd_forest, rounding_bound
from tvm_forest.errors import BuildError, DeviceError, InputError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import CategoryRule
from tvm_forest.layouts.protocol import find
from tvm_forest.runtime.gpu import cuda_compiler, dlpack
from tvm_forest.runtime.gpu.arrays import DeviceArray
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.kernels import Arguments, BlockNeeds, LoadedKernel
from tvm_forest.runtime.gpu.library import KernelLibrary
from tvm_forest.runtime.gpu.plan import Allocate, HostLoop, Launch, Plan
from tvm_forest.schedule_prims import Schedule, recipes

BARRIER = "__syncthreads();"


@functools.cache
def forest(classes: int = 1, link: Any = "identity") -> Forest:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes], link=link)


def schedule(name: str, layout: str, model: Forest) -> Schedule:
    return CASES[name].schedule(tvm_forest.new_schedule(model)).represent_as(layout)


def plain(model: Forest, target: Any = "cuda") -> Any:
    return emulated(tvm_forest.build(model, target, each_row))


@functools.cache
def predictor(link: Any = "identity", classes: int = 1) -> Any:
    return emulated(tvm_forest.build(forest(classes, link), "cuda"))


def check(
    model: Forest, sch: Schedule, sizes: Any = (1, 7, 33, 100), seed: int = 0, on: Any = emulated
) -> None:
    """Compare what a GPU computes, the emulated one with its threads shuffled by a seed."""
    gpu_schedules.check(model, sch, "cuda", sizes, lambda made: on(made, seed))


# -- what kernels compute -------------------------------------------------------------------------

KERNELS = (
    *(("E3", "array", 1), ("E4", "packed", 3), ("E4", "ranked", 1), ("E5", "sparse", 1)),
    *(("E5", "reorg", 3), ("E5b", "array", 3), ("E6", "array", 1), ("E6", "packed", 3)),
    *(("E7", "sparse", 1), ("E7", "ranked", 3), ("E8", "reorg", 3), ("E8", "array", 1)),
    *(("E13", "array", 3), ("E13", "sparse", 1), ("E13b", "array", 3), ("E13b", "ranked", 1)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "classes"), KERNELS)
@pytest.mark.cases(2)
def test_the_text_of_a_recipe_computes_what_the_model_says(
    name: str, layout: str, classes: int
) -> None:
    model = forest(classes)
    check(model, schedule(name, layout, model), seed=classes)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "layout", "classes"), KERNELS)
def test_a_gpu_computes_what_the_model_says(name: str, layout: str, classes: int) -> None:
    model = forest(classes)
    check(model, schedule(name, layout, model), sizes=(1, 7, 100, 5000), on=lambda made, _: made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [24, *(pytest.param(n, marks=pytest.mark.long) for n in range(25, 32))]
)
def test_the_text_of_random_schedules_computes_what_the_model_says(seed: int) -> None:
    model, rng = forest(1 + 2 * (seed % 2)), random.Random(seed)
    start, built = tvm_forest.new_schedule(model), False
    while not built:
        sch = drawn_schedule(rng, start, model, gpu=True, layouts=GPU_LAYOUTS)
        with contextlib.suppress(ScheduleError, BuildError):
            check(model, sch, (1, 20), seed)
            built = True


@pytest.mark.slow
def test_a_thread_walks_four_rows_at_once() -> None:
    rows = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", 4)
    sch = rows.reorder("b0", "tree", "b1").gpu_dimension("b0", "grid.x").simdize("b1", "gather")
    check(forest(), sch)


@pytest.mark.slow
@pytest.mark.parametrize("reduce", [None, "ordered_reduce"])
@pytest.mark.cases(1, others="long")
def test_rows_side_by_side_may_begin_anywhere_in_memory(reduce: str | None) -> None:
    sch = tvm_forest.new_schedule(forest(3)).tile("batch", "b0", "b1", 10)
    sch = sch.tile("b1", "b2", "b3", 4).tile("tree", "t0", "t1", 4)
    sch = sch.reorder("b0", "t0", "t1", "class", "b2", "b3").gpu_dimension("b0", "grid.x")
    if reduce is not None:
        sch = getattr(sch.gpu_dimension("t1", "block.x"), reduce)("t1")
    check(forest(3), sch.simdize("b3", "gather").represent_as("packed"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", layouts_of(gpu=True))
@pytest.mark.cases(1)
def test_a_model_without_tests_reads_nothing_behind_its_arrays(layout: str) -> None:
    model = odd_forest(3)
    assert model.is_leaf.all()
    model = replace(model, hits=np.ones(model.n_nodes, np.int64))
    start = tvm_forest.new_schedule(model)
    size = max(x for x in find(layout).tile_sizes if x <= 4)
    sch = (start.tile_nodes(size) if size > 1 else start).represent_as(layout)
    sch = sch.tile("batch", "b0", "b1", 4).reorder("b0", "class", "tree", "b1")
    sch = sch.gpu_dimension("b0", "grid.x").unroll_walk("tree", 2)
    check(model, sch.simdize("b1", "gather"), sizes=(1, 33))


@pytest.mark.parametrize("target", ["cuda", "opencl"])
@pytest.mark.parametrize(("name", "layout", "classes"), KERNELS)
@pytest.mark.cases(8, others="long")
def test_no_array_that_threads_write_is_promised_to_one_of_them(
    name: str, layout: str, classes: int, target: str
) -> None:
    sch = schedule(name, layout, forest(classes))
    text = tvm_forest.build(forest(classes), target, sch, exact=False).source(target)
    kernels = re.findall(
        r"^\S[^\n]* void (?:__launch_bounds__\S+ )?\w+_kernel[^;{]*\{.*?^\}", text, re.M | re.S
    )
    assert "restrict" in text and kernels
    for kernel in kernels:
        promised = set(re.findall(r"restrict(?:__)? (\w+)[,)]", kernel))
        written = set(re.findall(r"^ *(\w+)\[.*?\] = ", kernel, re.M))
        written |= set(re.findall(r"tvmf_atomic_add_float32\(\(&\((\w+)\[", kernel))
        assert written and not promised & written


@pytest.mark.slow
def test_tiles_of_nodes_and_float64_are_walked_by_threads() -> None:
    model = drawn_forest(9, 4, seed=5, base=(0.1,), dtype="float64")
    start = tvm_forest.new_schedule(model).tile_nodes(4).represent_as("sparse")
    check(model, CASES["E4"].schedule(start))


@pytest.mark.parametrize("target", ["cuda", "opencl"])
def test_no_negative_number_is_shifted(target: str) -> None:
    sch = tvm_forest.new_schedule(forest()).tile("tree", "t0", "t1", 4)
    sch = sch.tile("batch", "b0", "b1", 8).reorder("b0", "b1", "t1", "t0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    sch = sch.gpu_dimension("t1", "block.y").ordered_reduce("t1")
    text = tvm_forest.build(forest(), target, sch).source(target)
    text = text.replace("(convert_int(get_local_id(1)))", "((int)threadIdx.y)")
    assert "(0 - ((((int)threadIdx.y) + 3) >> 2))" in text
    assert not re.search(r"\(0 - [^()]*(\([^()]*\)[^()]*)*\) >>", text)
    check(forest(), sch)


ONE_LOAD = re.compile(
    r"\*\((?:int|longlong)2\*\)\(record_ptr \+ 0\) = \*\(\w+\*\)\((\w+) \+ (.*)\);"
)
"""Both fields of a node, from memory of the device or from a copy in shared memory."""


@pytest.mark.parametrize(
    ("dtype", "near"), [("float32", False), ("float64", False), ("float32", True)]
)
def test_a_node_is_one_load(dtype: str, near: bool) -> None:
    model = drawn_forest(5, 3, seed=3, dtype=dtype)
    sch = recipes.gpu_template(
        tvm_forest.new_schedule(model),
        rows_tb=8,
        tree_threads=4,
        cache_trees=near,
        unroll=False,
        factor=1,
        shared="ordered",
    )
    (memory, index), *_ = ONE_LOAD.findall(tvm_forest.build(model, "cuda", sch).source("cuda"))
    assert memory == ("near_nodes_ptr" if near else "nodes_ptr")
    assert near or "int64_t" not in index
    check(model, sch, sizes=(1, 33))


@pytest.mark.slow
def test_launches_stand_in_loops_where_the_schedule_has_them() -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("tree", "t0", "t1", 5).tile("batch", "b0", "b1", 8)
    sch = sch.reorder("t0", "b0", "b1", "t1").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x")
    steps = tvm_forest.build(model, "cuda", sch).library.plans["predict"].steps
    assert [step.count for step in steps if isinstance(step, HostLoop)] == [3]
    check(model, sch)


@pytest.mark.slow
def test_the_size_of_a_launch_may_depend_on_the_model() -> None:
    model = forest(3)
    sch = tvm_forest.new_schedule(model).tile("tree", "t0", "t1", 8).tile("batch", "b0", "b1", 4)
    sch = sch.reorder("b0", "t0", "b1", "t1", "class").unroll("t0").cache("t0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t1", "grid.y")
    plan = tvm_forest.build(model, "cuda", sch, exact=False).library.plans["predict"]
    assert "('[]', 'offset'" in str(plan)
    check(model, sch, (1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
def test_values_are_those_of_the_link(classes: int) -> None:
    link = "softmax" if classes > 1 else "sigmoid"
    model = forest(classes, link)
    made = predictor(link, classes) if classes > 1 else plain(model)
    rows = hard_rows(model, 40, seed=1)
    expected = tvm_forest.build(model, schedule=lambda start: start).predict(rows)
    assert np.array_equal(made.predict_margin(rows).reshape(40, -1), model.predict_reference(rows))
    assert np.allclose(made.predict(rows), expected, rtol=1e-6, atol=1e-7)
    assert made.predict(rows[:0]).shape == expected[:0].shape


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needed"), [("E5b", 2), ("E6", 2), ("E13", 3), ("E13b", 3)])
@pytest.mark.cases(1)
def test_a_kernel_without_one_of_its_barriers_fails(name: str, needed: int) -> None:
    model = forest(3)
    made = tvm_forest.build(model, "cuda", schedule(name, "array", model), exact=False)
    rows = hard_rows(model, 37, seed=1)
    expected, bound = model.predict_reference(rows), rounding_bound(model, rows)
    parts = made.library.source.split(BARRIER)
    right = []
    for i in range(len(parts)):  # the last time with all of them
        text = ";".join(map(BARRIER.join, (parts[: i + 1], parts[i + 1 :])))
        found = margins_with(made, text, rows)
        if found is not None and np.all(np.abs(found - expected) <= bound):
            right.append(i)
    print(f"{name}: right without barrier {right[:-1]} of {len(parts) - 1}")
    assert right[-1:] == [len(parts) - 1], "it is right with all barriers"
    assert len(parts) - len(right) >= needed


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *(("default", "cuda"), ("E6", "cuda"), ("E6", "opencl")),
        pytest.param("default", "opencl", marks=pytest.mark.long),
    ],
)
def test_no_pointer_leads_before_an_array(name: str, target: str) -> None:
    model = forest(3)
    if (name, target) == ("default", "cuda"):
        made = predictor("softmax", 3)
    else:
        sch = None if name == "default" else schedule(name, "array", model)
        made = tvm_forest.build(model, target, sch)
    text = made.source(target)
    begins = re.findall(r"&\(?\w+\[([^]]*)\]", text)
    assert {*begins} <= {"0"} and (begins or name != "default" or target != "cuda")


# -- rows on the GPU ------------------------------------------------------------------------------


class Elsewhere:
    """An array of another library, on device 0 unless said otherwise."""

    def __init__(self, made: Any, rows: Any, device: tuple[int, int] = (2, 0)) -> None:
        driver = made.library.executor.driver
        self.array = DeviceArray(driver, rows.shape, rows.dtype, 0)
        driver.upload(self.array.pointer, rows, 0)
        self.device, self.streams = device, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream)


def test_rows_on_the_gpu_are_not_copied_and_nobody_waits() -> None:
    made, rows = predictor(), hard_rows(forest(), 33, seed=1)
    there = Elsewhere(made, rows)
    made.predict(there)
    names = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2")
    before = [called(name) for name in names]
    result = made.predict_margin(there)
    assert [called(name) for name in names] == before
    assert there.streams == [1, 1]  # DLPack's name of the default stream
    assert isinstance(result, DeviceArray)
    assert np.array_equal(result.numpy(), forest().predict_reference(rows)[:, 0])


def test_margins_of_rows_on_the_gpu_are_no_bare_sums() -> None:
    model = replace(forest(), base_first=False, base_score=np.array([3], np.float32))
    made, rows = plain(model), hard_rows(model, 9, seed=1)
    result = made.predict_margin(Elsewhere(made, rows)).numpy()
    assert np.array_equal(result, model.predict_reference(rows)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear leaves", "classes"])
def test_kernels_hold_nothing_of_what_keeps_llvm_from_fusing(name: str) -> None:
    linear = name == "linear leaves"
    model = by_hand(1.0, [2.0]) if linear else tvm_forest.load(catboost_models.MODELS[name]())
    made, rows = plain(model), hard_rows(model, 33)
    with np.errstate(all="ignore"):
        expected = model.predict_reference(rows, "value")
    found = made.predict_value(rows).reshape(expected.shape)
    assert np.array_equal(found, expected, equal_nan=True)


def test_a_result_goes_to_another_library_and_its_stream_waits() -> None:
    made, rows = predictor(), hard_rows(forest(), 33, seed=1)
    result = made.predict(Elsewhere(made, rows))
    waits = called("cuStreamWaitEvent")
    taken = dlpack.take(result, 77)
    assert called("cuStreamWaitEvent") == waits + 1
    assert (taken.pointer, taken.shape, taken.dtype) == (result.pointer, (33,), np.float32)
    assert result.__dlpack_device__() == (2, 0)
    asked = called("cuEventRecord")
    del result, taken
    assert called("cuEventRecord") == asked  # nobody asks stream 77, which may be gone
    made.predict_margin(rows)
    made.library.executor.driver.pool.let_go()
    assert not dlpack._exported


def test_other_libraries_give_and_take_arrays_of_the_gpu() -> None:
    made, rows = predictor(), hard_rows(forest(), 33, seed=1)
    result = made.predict(tvm_ffi.from_dlpack(Elsewhere(made, rows)))
    assert np.array_equal(result.numpy(), forest().predict_reference(rows)[:, 0])
    taken = tvm_ffi.from_dlpack(result)
    assert (str(taken.device), taken.shape) == ("cuda:0", (33,))
    capsule = result.__dlpack__(stream=1)
    del capsule, taken, result  # nobody took the array of the capsule
    assert not dlpack._exported


def test_threads_may_call_one_predictor_at_once() -> None:
    model = forest(3)
    made = emulated(tvm_forest.build(model, "cuda", schedule("E5", "array", model), exact=False))
    parts = [hard_rows(model, 20 + i, seed=i) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(made.predict_margin, parts))
    for rows, margin in zip(parts, found, strict=True):
        difference = np.abs(margin - model.predict_reference(rows))
        assert np.all(difference <= rounding_bound(model, rows))


@pytest.mark.slow
def test_some_rounds_of_rows_on_the_gpu() -> None:
    made, rows = predictor(), hard_rows(forest(), 9, seed=1)
    found = made.predict_margin(Elsewhere(made, rows), iteration_range=(0, 5)).numpy()
    plain = tvm_forest.build(forest(), schedule=lambda start: start)
    expected = plain.predict_margin(rows, iteration_range=(0, 5))
    assert np.array_equal(found, expected)


def test_work_is_done_on_the_stream_that_was_given() -> None:
    made, rows = copy.copy(predictor()), hard_rows(forest(), 3, seed=1)
    emulated(made).stream = 42
    there = Elsewhere(made, rows)
    result = made.predict(there)
    assert (there.streams, result.stream) == ([42], 42)
    assert np.array_equal(result.numpy(), forest().predict_reference(rows)[:, 0])


@pytest.mark.slow
def test_a_predictor_with_another_model_stays_on_its_gpu_and_stream() -> None:
    made, rows = plain(forest()), hard_rows(forest(), 3, seed=1)
    emulated(made).stream = 42
    newer = drawn_forest(9, 3, seed=4, base=(0.25,))
    made.update(newer)
    there = Elsewhere(made, rows)
    result = made.predict(there)
    assert (there.streams, result.stream) == ([42], 42)
    for found in (result.numpy(), made.predict(rows), made.predict_margin(rows)):
        assert np.array_equal(found, newer.predict_reference(rows)[:, 0])


def test_labels_and_leaves_of_rows_on_the_gpu_are_numpy_arrays() -> None:
    model = forest_of(
        [Split(0, 0.5, -1.0, 2.0)] * 3,
        link="sigmoid",
        labels=np.array(["no", "yes"]),
        label_rule="half",
    )
    made = plain(model)
    rows = np.array([[0, 0, 0], [1, 0, 0]], np.float32)
    there = Elsewhere(made, rows)
    assert made.predict(there).tolist() == made.predict(rows).tolist() == ["no", "yes"]
    assert np.array_equal(made.predict_proba(there), made.predict_proba(rows))
    assert np.array_equal(made.apply(there), made.apply(rows))
    assert np.array_equal(made.predict_per_tree(there), made.predict_per_tree(rows))
    values = made.predict_value(there)
    assert isinstance(values, DeviceArray)
    assert np.array_equal(values.numpy(), made.predict_value(rows))


@pytest.mark.parametrize(
    ("rows", "device", "message"),
    [
        (
            np.zeros((2, 4), np.float32),
            (2, 1),
            r"device \(2, 1\) of DLPack, the model is on \(2, 0",
        ),
        (np.zeros((2, 4), np.float32), (10, 0), r"device \(10, 0\) of DLPack"),
        (np.zeros((2, 3), np.float32), (2, 0), r"must have shape \(R, 4\), got \(2, 3\)"),
        (np.zeros((0, 3), np.float64), (2, 0), r"must have shape \(R, 4\), got \(0, 3\)"),
    ],
)
def test_rows_on_the_gpu_of_the_wrong_kind_are_refused(
    rows: Any, device: tuple[int, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        predictor().predict(Elsewhere(predictor(), rows, device))


CODES = CategoryRule("left", negative_fractions=True)
LOOKED_AT: dict[str, Any] = {
    "a number that is missing": lambda: replace(forest(), missing=-999.0),
    "zeros that are missing": lambda: replace(forest(), zero_missing=(0, 2)),
    "no infinities": lambda: replace(forest(), refuses=("inf",)),
    "neither NaN nor infinities": lambda: replace(forest(), refuses=("nan", "inf")),
    "known categories": lambda: replace(
        forest(), category_rule=CODES, known_categories={1: (0, 1, 5)}
    ),
    "rows of float64": forest,
    "rows of integers": forest,
}


@pytest.mark.parametrize("kind", LOOKED_AT)
@pytest.mark.cases(4, others="long")
def test_rows_on_the_gpu_that_must_be_looked_at_have_the_bits_of_those_of_the_host(
    kind: str,
) -> None:
    model = LOOKED_AT[kind]()
    made = plain(model)
    rows = hard_rows(model, 34, seed=1)
    rows[::3, 1], rows[::5, 2] = 5, -999
    bad = ~np.isfinite(rows) if "nan" in model.refuses else np.isinf(rows)
    rows[bad & bool(model.refuses)] = 0.1
    if "float64" in kind:
        rows = np.nextafter(rows.astype(np.float64), 1)
    if "integers" in kind:
        rows = np.arange(34 * 4).reshape(34, 4) % 3
    result = made.predict_margin(Elsewhere(made, rows))
    assert isinstance(result, DeviceArray)
    assert result.numpy().tobytes() == model.predict_reference(rows)[:, 0].tobytes()
    assert np.array_equal(made.apply(Elsewhere(made, rows)), model.predict_reference(rows, "apply"))


def test_rows_on_the_gpu_with_values_that_the_model_refuses_are_refused() -> None:
    made = plain(LOOKED_AT["no infinities"]())
    for value, dtype in ((np.inf, np.float32), (1e300, np.float64)):
        with pytest.raises(InputError, match="row 1, column 2 is inf as float32, which the model"):
            made.predict(Elsewhere(made, np.array([[0] * 4, [0, 0, value, 0]], dtype)))


def test_memory_is_kept_and_serves_again() -> None:
    model = forest(3)
    made = emulated(tvm_forest.build(model, "cuda", schedule("E5", "array", model), exact=False))
    rows = hard_rows(model, 64, seed=1)
    made.predict(rows)
    before = called("cuMemAlloc_v2"), called("cuModuleLoadDataEx")
    for n in (64, 63, 60):
        made.predict(rows[:n])
    assert (called("cuMemAlloc_v2"), called("cuModuleLoadDataEx")) == before
    assert settings().emulated_contexts() == 0


def test_the_gpu_gives_all_back_when_a_predictor_is_gone() -> None:
    unloaded, freed = called("cuModuleUnload"), called("cuMemFree_v2")
    made = plain(forest())
    made.predict(np.zeros((70, 4), np.float32))
    del made
    gc.collect()
    assert called("cuModuleUnload") == unloaded + 1
    assert called("cuMemFree_v2") > freed


WHILE_MEMORY_IS_TAKEN = """
import gc, sys
import numpy as np
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.arrays import DeviceArray

class Stream(int):
    def __hash__(self):  # at a moment when the garbage collector may run as well
        gc.collect()
        return int.__hash__(self)

driver = CudaDriver(library=sys.argv[1])
pool = driver.pool
gc.disable()
for _ in range(3):
    lost = [DeviceArray(driver, (100,), np.dtype("float32"), 7)]
    lost.append(lost)
    pointer = lost[0].pointer
    del lost
    pool.take(4096, Stream(7))
    piece = pool.take(400, 7)
    assert piece.pointer == pointer
    piece.stream = Stream(7)
    pool.give(piece)
    assert pool.take(400, 7) is piece
"""


def test_the_garbage_collector_may_give_memory_back_while_some_is_taken() -> None:
    command = [sys.executable, "-c", WHILE_MEMORY_IS_TAKEN, libcuda()]
    subprocess.run(command, check=True, timeout=600)


def test_a_process_that_is_forked_is_told_that_the_gpu_stays_behind() -> None:
    made, rows = predictor(), hard_rows(forest(), 5, seed=1)
    result = made.predict_margin(Elsewhere(made, rows))
    there, here = multiprocessing.Pipe()

    def forked() -> None:
        for deed in (lambda: made.predict(rows), result.numpy, lambda: made.predict(rows)):
            try:
                there.send(repr(deed()))
            except DeviceError as error:
                there.send(str(error))

    child = multiprocessing.get_context("fork").Process(target=forked)
    child.start()
    said = [here.recv() if here.poll(30) else "nothing" for _ in range(3)]
    child.join(30)
    assert child.exitcode == 0
    assert all(x.startswith("cuda: this process was forked; a GPU that is open") for x in said)
    assert np.array_equal(result.numpy(), made.predict(rows))  # as if nothing had happened


# -- plans and text -------------------------------------------------------------------------------


def test_a_plan_survives_json() -> None:
    blocks = ("//", ("+", "n", 7), 8)
    launch = Launch("k", (("pointer", "part"), ("int64", "n")), (blocks, 1, 1), (8, 13, 1))
    plan = Plan(
        ("rows",), (Allocate("part", ("*", blocks, 416)), HostLoop("i", ("<", 3, "n"), (launch,)))
    )
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.launches == (launch,)
    assert [evaluate(blocks, {"n": n}) for n in (1, 8, 9)] == [1, 1, 2]
    values = {"n": 3, "offset": np.array([[5, 6], [7, 8]])}
    assert evaluate(("if", ("<", "n", 4), ("[]", "offset", "n"), ("[]", "offset", 9)), values) == 8


def test_a_predictor_for_a_gpu_is_saved_with_its_code(tmp_path: Path) -> None:
    model = forest()
    made = plain(model, {"kind": "cuda", "device": 3})
    made.library.image("sm_90")
    made.save(tmp_path / "model.tvmf")
    back = tvm_forest.load_predictor(tmp_path / "model.tvmf")
    assert back.library.images.keys() == {"sm_90"}
    assert back.source("cuda") == made.library.source
    rows = hard_rows(model, 7, seed=1)
    assert np.array_equal(emulated(back).predict(rows), model.predict_reference(rows)[:, 0])
    with pytest.raises(DeviceError, match="device 3 is not there|no driver"):
        pickle.loads(pickle.dumps(back)).predict(rows)


def test_loops_may_have_names_that_cpp_keeps_for_itself() -> None:
    model = forest()
    sch = tvm_forest.new_schedule(model).tile("tree", "for", "int", 3)
    sch = sch.tile("batch", "b0", "b1", 8).reorder("b0", "b1", "for", "int")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    check(model, sch, (9,))


def test_constants_of_64_bits_are_exact_and_no_function_is_an_approximate_one() -> None:
    scale = 1.1234567890123e-7
    trees = [Split(0, 0.5, 1.0, 2.0)]
    wide = forest_of(trees, dtype="float64", link="sigmoid", link_scale=scale)
    text = plain(wide).source("cuda")
    bits = np.float64(scale).view(np.int64)
    assert f"__longlong_as_double((int64_t){bits})" in text
    assert "__expf" not in predictor("softmax", 3).source("cuda")
    with pytest.raises(BuildError, match="'ptx' is not there; use 'cuda'"):
        predictor().source("ptx")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.cases(1)
def test_compiled_kernels_compare_subnormal_numbers(tmp_path: Path, architecture: str) -> None:
    nvcc = cuda_compiler.find_nvcc()
    if nvcc is None or shutil.which("g++") is None:
        pytest.skip("no nvcc")
    model, text = forest(3, "softmax"), tmp_path / "kernels.cu"
    library = tvm_forest.build(model, {"kind": "cuda", "arch": architecture}, each_row).library
    assert library.images[architecture][:4] == b"\x7fELF"
    text.write_text(library.source, encoding="utf-8")
    command = [nvcc, "-ptx", "-o", "-", f"-arch={architecture}", *cuda_compiler.OPTIONS, str(text)]
    ptx = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    flushing = [line for line in ptx.splitlines() if ".ftz" in line and "ex2.approx" not in line]
    assert re.search(r"setp\.\w+\.f32", ptx)
    assert flushing == []  # expf scales by powers of two


# -- errors ---------------------------------------------------------------------------------------


def test_a_model_is_built_where_there_is_no_gpu_and_says_so_when_it_is_called() -> None:
    made = tvm_forest.build(forest(), "cuda", each_row)
    assert "predict_kernel" in made.source("cuda")
    try:
        CudaDriver()
    except DeviceError:
        with pytest.raises(DeviceError, match="no driver of NVIDIA found .* or use target 'llvm'"):
            made.predict(np.zeros((2, 4), np.float32))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("version", 11080, "driver is of version 11.8, needed is 12.0 or newer; update the driver"),
        ("devices", 0, "cuInit failed with 100, no CUDA-capable device .* nvidia-smi"),
        (
            "minor",
            5,
            "on sm_95, driver for CUDA 13.0; .* 209, no kernel image .* its 'arch'",
        ),
        ("threads", 64, r"takes 128 threads per block, 64 are allowed on emulated \(sm_90\); use"),
    ],
)
def test_a_gpu_that_will_not_do_is_refused(name: str, value: int, message: str) -> None:
    normal = {"version": 13000, "devices": 1, "minor": 0, "threads": 1024}
    made = plain(forest())
    made.library.images["sm_95"] = translate(made.library.source, "sm_90")
    settings().emulated_set(name.encode(), value)
    try:
        with pytest.raises(DeviceError, match=message):
            made.predict(np.zeros((2, 4), np.float32))
    finally:
        settings().emulated_set(name.encode(), normal[name])


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (
            "cuMemAlloc_v2",
            2,
            r"cuMemAlloc \(.* bytes\) failed with 2, out of memory; predict fewer",
        ),
        (
            "cuLaunchKernel",
            701,
            r"cuLaunchKernel \(.*, grid .*, block .*\) failed with 701, too many",
        ),
        (
            "cuModuleLoadDataEx",
            222,
            "failed with 222, .* unsupported toolchain.; update the driver",
        ),
        ("cuModuleGetFunction", 500, "kernel 'predict.*_kernel'.* failed with 500, named symbol"),
        ("cuStreamSynchronize", 999, "cuStreamSynchronize failed with 999, unknown error"),
    ],
)
def test_an_error_of_the_driver_says_call_and_remedy(call: str, code: int, message: str) -> None:
    made = plain(forest())
    settings().emulated_fail(call.encode(), code)
    try:
        with pytest.raises(DeviceError, match=message):
            made.predict(np.zeros((2, 4), np.float32))
    finally:
        settings().emulated_work()
    assert settings().emulated_contexts() == 0


def test_more_shared_memory_than_the_gpu_has_is_refused() -> None:
    driver = CudaDriver(library=libcuda())
    with pytest.raises(
        DeviceError,
        match=r"300000 bytes of shared memory per block, 232448 are allowed on emulated",
    ):
        kernel = LoadedKernel(None, "wide", BlockNeeds(1024, 1000))
        driver.launch(kernel, (1, 1, 1), (1, 1, 1), 299000, Arguments([]), 0)


def test_a_missing_compiler_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, found in (("find_nvrtcs", ()), ("find_nvcc", None)):
        monkeypatch.setattr(cuda_compiler, name, lambda found=found: found)
    with pytest.raises(DeviceError, match="neither NVRTC nor nvcc; pip install nvidia-cuda-nvrtc"):
        cuda_compiler.compile_cuda("", "sm_90")
    library: KernelLibrary = tvm_forest.build(
        forest(), {"kind": "cuda", "arch": "sm_90"}, each_row
    ).library
    assert library.images == {}


def test_the_builtins_that_a_python_package_brings_are_found(tmp_path: Path) -> None:
    def make(name: str, text: str) -> None:
        command = ["gcc", "-shared", "-fPIC", "-xc", "-", f"-Wl,-soname,{name}", "-ldl"]
        subprocess.run([*command, "-o", tmp_path / name], input=text, text=True, check=True)

    make("libnvrtc-builtins.so.0.1", "int there(void) { return 7; }")
    opens = '(void) { return dlopen("libnvrtc-builtins.so.0.1", RTLD_NOW) != 0; }'
    make("libnvrtc.so.0", f"#include <dlfcn.h>\nint has_builtins{opens}")
    assert cuda_compiler._open(str(tmp_path / "libnvrtc.so.0")).has_builtins() == 1
