"""Forests of Relax modules on GPUs: what becomes of them, and what the emulators compute."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import tvm_forest.relax
from emulated_relax import Work, compile_for, device_module, emulate, module_of, target_of
from forests import Split, drawn_forest, forest_of
from recipe_cases import CASES
from rocm_kernels import needs_gcc, needs_linker
from schedules import rounding_bound
from tvm_forest.errors import InputError, ScheduleError
from tvm_forest.forest import Forest, choose_labels
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.relax.comparison import is_nan, order_of, order_of_number, order_with_nan_last
from tvm_forest.runtime.gpu import cuda_compiler

SIZES = (0, 1, 7, 64, 600)
OUTPUTS = ["margin", "value", "label", "leaf", "per_tree"]


def subnormal() -> Forest:
    """All that fast math would take for zero: thresholds, leaves, sums, and rows beside a zero."""
    trees = [
        Split(0, 1e-40, 1e-41, -2e-42),
        Split(1, -1e-42, Split(0, -0.0, 1e-45, -3e-40), 2e-39),
        Split(2, 0.0, 1e-44, -0.0, True),
    ]
    labels = np.array([3, 9])
    return forest_of(
        trees, base=(1e-45,), labels=labels, label_rule="cut", label_cut=0.0, missing=0.0
    )


def classes() -> Forest:
    labels = np.array([5.0, -1.0, 2.5])
    return drawn_forest(
        39,
        3,
        seed=3,
        base=(0.5, 0.25, -1),
        link="softmax",
        labels=labels,
        label_rule="argmax_margin",
    )


def wide() -> Forest:
    labels = np.array([0, 1])
    return drawn_forest(
        13,
        4,
        seed=5,
        base=(0.1,),
        dtype="float64",
        link="sigmoid",
        labels=labels,
        label_rule="half",
    )


def powers() -> Forest:
    return drawn_forest(9, 3, seed=8, base=(0.25,), link="log1p_exp")


MODELS = {"subnormal": subnormal, "classes": classes, "wide": wide, "powers": powers}
SUBNORMAL_ROWS = np.array(
    [[1e-40, -1e-42, 1e-45], [0.0, -0.0, -1e-45], [-0.0, 1e-42, 0], [-1e-45, np.nan, 9e-41]]
)


def batches_of(model: Forest) -> list[Any]:
    hard = hard_rows(model, max(SIZES), seed=2)
    if model.row_width == 3:
        hard = np.concatenate([SUBNORMAL_ROWS.astype(hard.dtype), hard])
    return [np.ascontiguousarray(hard[:size]).astype(model.row_dtype) for size in SIZES]


def bits(array: Any) -> Any:
    """Return floats as whole numbers in their order."""
    whole = array.view(f"i{array.dtype.itemsize}").astype(object)
    return np.where(whole < 0, -(whole & (2 ** (8 * array.dtype.itemsize - 1) - 1)), whole)


def check(kind: str, models: list[Forest], folder: Path, schedules: Any = None) -> None:
    """Compare what modules compute with predictors on the CPU."""
    asked = [[x for x in OUTPUTS if x != "label" or model.labels is not None] for model in models]
    works = [
        Work(model, names, batches_of(model), schedules, schedules is None)
        for model, names in zip(models, asked, strict=True)
    ]
    for work, found in zip(works, emulate(kind, works, folder), strict=True):
        made = tvm_forest.build(work.forest, schedule=tvm_forest.new_schedule(work.forest))
        for rows, results in zip(work.batches, found, strict=True):
            check_batch(made, rows, dict(zip(work.outputs, results, strict=True)), work.exact)


def check_batch(made: Any, rows: Any, found: dict[str, Any], exact: bool) -> None:
    forest, (margin, value) = made.forest, made._functions.compute_sums(rows, 1)
    if not exact:
        bound = rounding_bound(forest, rows) if len(rows) else 0
        assert np.all(np.abs(found["margin"] - margin) <= bound)
        return
    assert np.array_equal(bits(found["margin"]), bits(margin))
    assert np.abs(bits(found["value"]) - bits(value)).max(initial=0) <= LINK_ULPS[forest.link]
    assert np.array_equal(found["leaf"], made.apply(rows))
    per_tree = made.predict_per_tree(rows)
    assert np.array_equal(bits(found["per_tree"]), bits(per_tree))
    if "label" in found:
        assert np.array_equal(found["label"], choose_labels(forest, margin, value))


# -- what the emulators compute -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("names", [["subnormal"], ["classes", "wide", "powers"]])
@pytest.mark.cases(1)
def test_a_module_for_cuda_computes_what_a_predictor_does(names: list[str], tmp_path: Path) -> None:
    check("cuda", [MODELS[name]() for name in names], tmp_path)


@pytest.mark.long
@needs_linker
@needs_gcc
@pytest.mark.parametrize("names", [["subnormal"], ["classes", "wide", "powers"]])
def test_a_module_for_rocm_computes_what_a_predictor_does(names: list[str], tmp_path: Path) -> None:
    check("rocm", [MODELS[name]() for name in names], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("first", "other"), [("E6", "E8"), ("E13", "E4"), ("E5b", "E3")])
def test_a_module_picks_among_schedules_with_shared_memory_by_the_number_of_rows(
    first: str, other: str, tmp_path: Path
) -> None:
    model = classes()
    start = tvm_forest.new_schedule(model)
    schedules = {1: CASES[first].schedule(start), 60: CASES[other].schedule(start)}
    check("cuda", [model], tmp_path, schedules)


@pytest.mark.long
def test_memory_between_kernels_is_kept_apart(tmp_path: Path) -> None:
    model = drawn_forest(13, 3, seed=3, base=(0.5,))
    sch = tvm_forest.new_schedule(model).represent_as("ranked")
    sch = sch.tile("tree", "t0", "t1", 4).tile("batch", "b0", "b1", 32)
    sch = sch.reorder("t0", "b0", "b1", "t1").gpu_dimension("t0", "grid.y")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    check("cuda", [model], tmp_path, sch)


@pytest.mark.long
@needs_linker
@needs_gcc
def test_layouts_that_code_rows_work_on_both_gpus(tmp_path: Path) -> None:
    model = drawn_forest(13, 3, seed=3, base=(0.5,))
    rows = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 64)
    rows = rows.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    check("cuda", [model], tmp_path, rows.cache("b0").represent_as("ranked"))
    for layout in ("sparse", "reorg", "packed"):
        check("rocm", [model], tmp_path, rows.represent_as(layout))


# -- what they are made of ------------------------------------------------------------------------


def text_of(model: Forest, outputs: list[str], schedules: Any = None) -> str:
    executable = compile_for("cuda", module_of(Work(model, outputs, [], schedules, False)))
    return str(device_module(executable).inspect_source())


def test_a_module_for_cuda_has_our_kernels_and_no_arithmetic_that_options_could_change() -> None:
    schedule = tvm_forest.hop_schedule(classes(), "cuda")
    text = text_of(classes(), ["margin", "value", "leaf"], {1: schedule})
    kernels = re.findall(
        r"__global__ void __launch_bounds__\((\d+)\) (\w+)\(.*\) \{\n(.*)\n\}", text
    )
    forests = [x for x in kernels if x[1].startswith("forest")]
    assert [threads for threads, _, _ in forests] == ["128", "128"]
    assert all(re.fullmatch(r"  tvmf_[0-9a-f]{12}\(.*\);", body) for _, _, body in forests)
    own = text[text.index("#endif\nstatic __forceinline__ __device__ void tvmf_") :]
    assert "tvmf_add_float32(" in own and "tvmf_lt_float32(" in own and "tvmf_exp_float32(" in own
    assert not re.search(r"\b(expf|__expf|fmaf)\(|x_ptr\[0\] <", own)
    assert "__shared__" in own
    heads = re.findall(r"void tvmf_[0-9a-f]{12}\(.*\) \{\n((?:  TVMF_WRITTEN.*\n)*)", own)
    assert len(heads) == 2 and "TVMF_WRITTEN(margin_ptr)" in "".join(heads)


@pytest.mark.slow
def test_fast_math_leaves_subnormal_numbers_products_and_powers_alone(tmp_path: Path) -> None:
    nvcc = cuda_compiler.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    source, made = tmp_path / "kernels.cu", tmp_path / "kernels.ptx"
    text = text_of(subnormal(), ["margin", "label", "leaf"])
    source.write_text(text, encoding="utf-8")
    command = [nvcc, "-ptx", "-arch=sm_90", "--use_fast_math", "-o", str(made), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    ptx = made.read_text()
    assert "setp.lt.f32" in ptx and "add.rn.f32" in ptx
    flushing = [x for x in ptx.splitlines() if ".ftz" in x or ".approx" in x or "fma" in x]
    assert [x for x in flushing if not re.search(MISSING_ZERO, x)] == []


MISSING_ZERO = r"abs\.ftz\.f32|setp\.gtu?\.ftz\.f32.*0f0554AD2E|setp\.leu?\.ftz\.f32.*0f0554AD2E"
"""|x| <= 1e-35, which holds of subnormal numbers and of zero alike."""


def test_a_module_for_rocm_calls_our_functions_and_shares_no_memory() -> None:
    pytest.importorskip("ziglang")
    executable = compile_for("rocm", module_of(Work(classes(), ["value", "label"], [])))
    code = device_module(executable).inspect_source("llvm")
    assert "addrspace(3)" not in code and "__ocml" not in code
    assert len(re.findall(r"^define .*amdgpu_kernel void @forest", code, re.M)) == 1


def test_the_order_of_floats_is_that_of_their_places() -> None:
    for dtype in ("float32", "float64"):
        tiny = np.finfo(dtype).smallest_subnormal
        x = np.array([-np.inf, -1, -tiny, -0.0, 0.0, tiny, 2.5, np.inf, np.nan, -np.nan], dtype)
        places = [evaluate(f, x) for f in (order_of, order_with_nan_last)]
        numbers = [int(order_of_number(float(value), dtype).value) for value in x[:8]]
        assert np.array_equal(places[0][:8], numbers)
        assert np.array_equal(np.sign(np.diff(places[0][:8])), [1, 1, 1, 0, 1, 1, 1])
        assert places[1][8] == places[1][9] > places[1][7]
        assert np.array_equal(evaluate(is_nan, x), np.isnan(x))


def evaluate(function: Any, x: Any) -> Any:
    given = te.placeholder(x.shape, str(x.dtype))
    result = te.compute(x.shape, lambda i: function(given[i]).astype("int64"))
    found = tvm.runtime.empty(x.shape, "int64")
    tvm.compile(te.create_prim_func([given, result]), "llvm")(tvm.runtime.tensor(x), found)
    return found.numpy()


# -- devices and errors ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_forest_is_on_the_cpu_of_a_module_for_a_gpu_where_its_rows_are() -> None:
    model, target = subnormal(), target_of("cuda")
    there, here = relax.VDevice(target, 0, "global"), relax.VDevice(target.host, 0, "global")
    builder = relax.BlockBuilder(tvm.IRModule(global_infos={"vdevice": [there, here]}))
    shape = (tirx.Var("n", "int64"), model.row_width)
    rows = relax.Var("rows", relax.TensorType(shape, model.row_dtype, vdevice=there))
    with builder.function("main", [rows]):
        with builder.dataflow():
            near = builder.emit(relax.op.to_vdevice(rows, here))
            on_cpu, on_gpu = tvm_forest.new_schedule(model), tvm_forest.hop_schedule(model, "cuda")
            label = builder.emit(tvm_forest.relax.predict(near, model, "label", on_cpu))
            value = builder.emit(tvm_forest.relax.predict(rows, model, "value", on_gpu))
            back = builder.emit_output(relax.Tuple([relax.op.to_vdevice(label, there), value]))
        builder.emit_func_output(back)
    with target:
        mod = relax.transform.LegalizeOps()(builder.get())
    functions = {
        var.name_hint: func.attrs.get("target")
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }
    kinds = {name: None if found is None else found.kind.name for name, found in functions.items()}
    on_cpu, on_gpu = {"clean", "forest", "labels"}, {"clean1", "forest1"}
    assert kinds == dict.fromkeys(on_cpu, "llvm") | dict.fromkeys(on_gpu)
    linked = tvm_forest.relax.LinkForests()(builder.get()).script()
    assert linked.count("R.tvm_forest.predict") == 1 and linked.count("R.call_dps_packed") == 1
    executable = tvm.compile(builder.get(), target)
    assert "labels" not in device_module(executable).inspect_source()
    assert "forest1_kernel" in device_module(executable).inspect_source()


def schedules_of(model: Forest) -> dict[str, Any]:
    start = tvm_forest.new_schedule(model)
    tiled = {size: start.tile("batch", "b0", "b1", size) for size in (32, 512)}
    on_gpu = {
        size: sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
        for size, sch in tiled.items()
    }
    shared = on_gpu[32].cache("b0")
    return {"cpu": tiled[32].parallel("b0"), "gpu": on_gpu[32], "wide": on_gpu[512], "near": shared}


@pytest.mark.parametrize(
    ("schedule", "target", "message"),
    [
        ("cpu", "cuda", "'b0' is parallel, which is for CPU threads, but the target is 'cuda'"),
        ("cpu", "rocm", "'b0' is parallel, which is for CPU threads, but the target is 'rocm'"),
        ("gpu", "llvm", r"'b0' is for a GPU \(grid.x\), but the target is a CPU"),
        ("near", "rocm", r"\('near'\) would lie in shared memory, .*; leave out cache and"),
        ("wide", "rocm", "512 threads per block, TVM allows 256 for 'rocm'; use smaller tiles"),
    ],
)
def test_a_schedule_for_another_device_is_refused(schedule: str, target: str, message: str) -> None:
    model = classes()
    mod = module_of(Work(model, ["margin"], [], schedules_of(model)[schedule]))
    machine = tvm.target.Target("llvm") if target == "llvm" else target_of(target)
    with machine, pytest.raises(ScheduleError, match=message):
        relax.transform.LegalizeOps()(mod)


def test_a_gpu_of_another_kind_is_refused() -> None:
    mod = module_of(Work(classes(), ["margin"], []))
    with tvm.target.Target({"kind": "opencl", "host": "llvm"}):
        with pytest.raises(InputError, match="'opencl' is none .*; use 'llvm', 'cuda', 'rocm'"):
            relax.transform.LegalizeOps()(mod)


def test_a_launch_whose_size_depends_on_the_model_is_refused() -> None:
    model = classes()
    sch = tvm_forest.new_schedule(model).tile("tree", "t0", "t1", 8).tile("batch", "b0", "b1", 4)
    sch = sch.reorder("b0", "t0", "b1", "t1", "class").unroll("t0").cache("t0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t1", "grid.y")
    mod = module_of(Work(model, ["margin"], [], sch, False))
    with target_of("cuda"), pytest.raises(ScheduleError, match="size of a launch depends on the m"):
        relax.transform.LegalizeOps()(mod)
