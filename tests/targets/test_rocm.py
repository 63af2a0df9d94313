"""Code objects for AMD's GPUs: what they say of themselves, and what their code computes.

No GPU runs them here. Kernels run on the CPU by way of the LLVM IR that became the code object.
"""

from __future__ import annotations

import os
import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

import tvm_forest
from amd_assembly import unwaited
from forests import drawn_forest
from linear_models import by_hand
from recipe_cases import CASES, ON_GPU
from rocm_kernels import (
    GPUS,
    atomic_schedule,
    check_code_object,
    check_results,
    forest,
    kernels_of,
    made,
    needs_gcc,
    needs_linker,
    runtime_for,
)
from tvm_forest.errors import BuildError, InputError, ScheduleError
from tvm_forest.passes.gpu.launch_plan import split_kernels
from tvm_forest.runtime.gpu import code_object
from tvm_forest.target import Target
from tvm_forest.targets import cpu, rocm

LAYOUTS = ("array", "packed", "reorg", "sparse")


# -- recipes --------------------------------------------------------------------------------------


@needs_linker
@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.cases(2)
def test_a_recipe_becomes_sound_code_that_computes_what_the_model_says(
    name: str, tmp_path: Path
) -> None:
    turn = ON_GPU.index(name)
    model = forest(3 if name in ("E4", "E5") else 1)
    layout, runs_on = LAYOUTS[turn % len(LAYOUTS)], list(GPUS)[turn % len(GPUS)]
    sch = CASES[name].schedule(tvm_forest.new_schedule(model)).represent_as(layout)
    for gpu in [*GPUS][turn % 2 :: 2]:
        compiled, plan = made(model, sch, gpu)
        check_code_object(compiled, plan, gpu)
        if gpu == runs_on:
            check_results(compiled, plan, tmp_path, gpu, model, sch)


@needs_linker
def test_a_build_without_a_gpu_says_nothing_and_leaves_what_others_say(capfd: Any) -> None:
    os.write(2, b"before\n")
    tvm_forest.build(
        drawn_forest(3, 2, seed=0), {"kind": "rocm", "mcpu": "gfx942"}, CASES["E4"].schedule
    )
    os.write(2, b"after\n")
    with rocm._quiet():
        os.write(2, b"Unable to detect ROCm version, assuming\nbetween\n")
    assert capfd.readouterr().err == "before\nafter\nbetween\n"


def test_blocks_may_have_more_threads_than_tvm_says() -> None:
    sch = CASES["E13"].schedule(tvm_forest.new_schedule(forest()))
    compiled, plan = made(forest(), sch, "gfx942")
    (launch,) = plan.launches
    assert prod(launch.block) == 320
    assert code_object.read(compiled.image).kernels["predict_kernel"].threads == 320
    check_code_object(compiled, plan, "gfx942")


@needs_linker
@pytest.mark.parametrize("gpu", ["gfx942", "gfx1100"])
def test_barriers_of_tvm_alone_would_not_wait(gpu: str) -> None:
    sch = CASES["E8"].schedule(tvm_forest.new_schedule(forest()))
    kernels, _, machine = kernels_of(forest(), sch, gpu)
    compiled = rocm.compile_kernels(kernels, machine)
    kernels = tirx.compilation_pipeline.finalize_device_passes()(kernels)
    _, _, bare = rocm._generate(kernels, machine, rocm.own_functions())
    assert compiled.asm.count("s_barrier") == bare.count("s_barrier") == 6
    assert unwaited(compiled.asm) == []
    assert len(unwaited(bare)) == 6


@needs_linker
@needs_gcc
def test_a_barrier_left_out_is_seen_in_results(tmp_path: Path) -> None:
    sch = CASES["E5b"].schedule(tvm_forest.new_schedule(forest()))
    compiled, plan = made(forest(), sch, "gfx942")
    call = re.compile(r".*call void @llvm\.amdgcn\.s\.barrier\(\).*\n")
    without = compiled._replace(ir=call.sub("", compiled.ir, count=1))
    with pytest.raises(AssertionError):
        check_results(without, plan, tmp_path, "gfx942", forest(), sch)


@needs_linker
def test_shared_memory_stays_apart_and_is_never_taken_for_other_memory() -> None:
    sch = CASES["E8"].schedule(tvm_forest.new_schedule(forest()))
    compiled, _ = made(forest(), sch, "gfx90a")
    assert len(re.findall(r"^@shmem.* addrspace\(3\)", compiled.ir, re.M)) == 2  # rows and sums
    assert "addrspacecast" not in compiled.ir
    assert code_object.read(compiled.image).kernels["predict_kernel"].shared == 4 * (20 + 52)


@needs_linker
@needs_gcc
@pytest.mark.parametrize("gpu", GPUS)
def test_atomic_sums_are_added_by_the_hardware(gpu: str, tmp_path: Path) -> None:
    sch = atomic_schedule(forest())
    compiled, plan = made(forest(), sch, gpu)
    has_instruction = gpu != "gfx1030"  # which compares and swaps
    assert ("global_atomic_add_f32" in compiled.asm) == has_instruction
    assert ("cmpswap" in compiled.asm) != has_instruction
    check_code_object(compiled, plan, gpu)
    if gpu == "gfx942":
        check_results(compiled, plan, tmp_path, gpu, forest(), sch)


@needs_linker
@pytest.mark.parametrize("gpu", ["gfx942", "gfx1100"])
def test_products_and_sums_are_rounded_one_after_the_other(gpu: str) -> None:
    linear = by_hand(1.0, [2.0, 3.0])
    compiled, _ = made(linear, CASES["E4"].schedule(tvm_forest.new_schedule(linear)), gpu)
    fused = re.findall(r"v_fm\w+_f64\w* .*", compiled.asm)
    assert all("0xc1f00000" in operation for operation in fused)  # numbers from two halves
    assert "v_mul_f64" in compiled.asm


# -- functions of our own -------------------------------------------------------------------------


def on_cpu(name: str, dtype: str, x: Any) -> Any:
    """Compute one of the functions for kernels on the CPU at hand."""

    @T.prim_func(s_tir=True)
    def f(a: T.handle, b: T.handle) -> None:
        n = T.int64()
        x = T.match_buffer(a, (n,), dtype, align=4)
        y = T.match_buffer(b, (n,), dtype, align=4)
        for i in range(n):
            y[i] = T.call_pure_extern(dtype, name, x[i])

    text = tvm.ir.StringImm(rocm.ARITHMETIC.read_text())
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, f.body)
    func = f.with_body(body).with_attr("global_symbol", "f")
    library = cpu.compile_module(tvm.IRModule({"f": func}), cpu.tvm_target(Target()))
    result = np.empty_like(x)
    library["f"](x, result)
    return result


BOUNDS = {"exp": 0.9, "exp2": 0.95, "log1p": 2.0}
"""In units of the last place, for float64."""


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(3, others="long")
def test_functions_for_kernels_are_as_exact_as_they_say(name: str, dtype: str) -> None:
    rng, wide = np.random.default_rng(0), np.longdouble
    if np.finfo(wide).nmant < 60:
        pytest.skip("no longer floats to compare with")
    most = {"exp": 700, "exp2": 1000, "log1p": 1e300}[name] / (1 if dtype == "float64" else 8)
    x = np.concatenate([rng.uniform(-most, most, 5000), rng.normal(size=5000)])
    x = np.concatenate([x, x * 1e-8, [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-40]])
    with np.errstate(over="ignore", invalid="ignore"):
        x = (np.abs(x) if name == "log1p" else x).astype(dtype)
        exact = getattr(np, name)(x.astype(wide))
        nearest, found = exact.astype(dtype), on_cpu(f"tvmf_{name}_{dtype}", dtype, x)
    same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    error = np.abs(found[~same].astype(wide) - exact[~same]) / np.spacing(np.abs(nearest[~same]))
    assert np.all(error <= (BOUNDS[name] if dtype == "float64" else 0.5001))


@needs_linker
@pytest.mark.parametrize("link", ["softmax", "log1p_exp", "halving"])
def test_links_need_no_library_of_amd(link: str) -> None:
    fields = {"link_scale": 4.0} if link == "halving" else {}
    base = (0.5,) * (3 if link == "softmax" else 1)
    model = drawn_forest(6, 2, base=base, dtype="float64", link=link, **fields)
    compiled, plan = made(model, CASES["E4"].schedule(tvm_forest.new_schedule(model)), "gfx90a")
    assert len(plan.launches) == 1  # sums, then values
    assert "__ocml" not in compiled.ir
    check_code_object(compiled, plan, "gfx90a")


@T.prim_func
def sums_of_warps(a: T.Buffer((64,), "float64", align=8), out: T.Buffer((2,), "float64", align=8)):
    for tx in T.thread_binding(T.int64(64), thread="threadIdx.x"):
        x: T.float64 = a[tx]
        for step in range(5):
            x = x + T.tvm_warp_shuffle_down(
                T.uint32(0xFFFFFFFF), x, T.shift_right(16, step), 32, 32
            )
        if tx % T.int64(32) == T.int64(0):
            out[tx // T.int64(32)] = x


@needs_linker
@needs_gcc
@pytest.mark.parametrize("gpu", ["gfx90a", "gfx1100"])
def test_shuffles_read_what_other_threads_have(gpu: str, tmp_path: Path) -> None:
    machine = rocm.tvm_target(gpu)
    func = sums_of_warps.with_attr("global_symbol", "sums")
    kernels, plans = split_kernels(tvm.IRModule({"sums": func}), machine)
    compiled = rocm.compile_kernels(kernels, machine)
    assert "ds_bpermute_b32" in compiled.asm
    numbers, out = np.arange(64.0), np.zeros(2)
    runtime_for(compiled, tmp_path, gpu)[1](plans["sums"], numbers, out)
    assert out.tolist() == [numbers[:32].sum(), numbers[32:].sum()]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mcpu": "gfx9999"}, "LLVM knows no GPU 'gfx9999' of AMD; use one of: gfx1010"),
        ({"mcpu": "gfx942", "arch": 1}, "option 'arch' of 'rocm' is unknown; use 'mcpu'"),
        ({"mcpu": "gfx942", "device": -1}, "option 'device' of 'rocm': -1 is no number"),
    ],
)
def test_a_target_that_names_no_gpu_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_forest.build(forest(), {"kind": "rocm", **options}, CASES["E4"].schedule)


@needs_linker
def test_code_is_made_for_all_of_a_list_where_no_gpu_is_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(rocm, "_ask_gpu", lambda device: "")
    predictor = tvm_forest.build(forest(), "rocm", CASES["E4"].schedule)
    images = predictor.library.images
    assert tuple(images) == rocm.DEFAULT_GPUS
    for gpu, image in images.items():
        assert code_object.read(image).gpu == gpu
        assert f'.amdgcn_target "amdgcn-amd-amdhsa-hcc-{gpu}"' in predictor.source("rocm")
    named = {"kind": "rocm", "mcpu": "gfx1100"}
    alone = tvm_forest.build(forest(), named, predictor.schedules)
    assert images["gfx1100"] == alone.library.image("gfx1100")
    assert repr(predictor).endswith(f"target rocm ({', '.join(rocm.DEFAULT_GPUS)})>")


def test_a_machine_without_a_linker_is_told_where_to_get_one(monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(rocm, "ROCM_LINKERS", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"needs LLVM's linker.*pip install ziglang"):
        tvm_forest.build(forest(), {"kind": "rocm", "mcpu": "gfx942"}, CASES["E4"].schedule)


def test_a_schedule_for_cpus_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no loop is mapped to the threads of a GPU"):
        sch = tvm_forest.new_schedule(forest())
        tvm_forest.build(forest(), {"kind": "rocm", "mcpu": "gfx942"}, sch)


@needs_linker
def test_what_is_no_code_object_is_refused() -> None:
    compiled, _ = made(forest(), CASES["E4"].schedule(tvm_forest.new_schedule(forest())), "gfx942")
    whole = code_object.read(compiled.image)
    for end in range(0, len(compiled.image), 37):
        with pytest.raises(InputError, match=f"the image of {end} bytes is no code object"):
            code_object.read(compiled.image[:end])
    with pytest.raises(InputError, match="begins with b'MZ"):
        code_object.read(b"MZ" + compiled.image[2:])
    assert list(whole.kernels) == ["predict_kernel"]
