"""OpenCL text: what it says, and what PoCL computes with it where that is installed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tvm_forest
from opencl_driver import OpenCLDriver
from recipe_cases import CASES
from schedules import rounding_bound
from test_linear_trees import by_hand
from test_rocm import atomic_schedule, forest
from tvm_forest.errors import BuildError, DeviceError, InputError
from tvm_forest.gpu_runtime.library import Backend
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import recipes


def built(name: str, layout: str = "packed", classes: int = 1) -> Any:
    sch = CASES[name].schedule(tvm_forest.new_schedule(forest(classes))).represent_as(layout)
    return tvm_forest.build(forest(classes), "opencl", sch, exact=False)


def test_barriers_are_for_all_memory_and_kernels_are_declared_once() -> None:
    text = built("E5b").source("opencl")
    fences = re.findall(r"barrier\((.*)\);", text)
    assert fences and set(fences) == {"CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"}
    assert text.count("__kernel void") == 1
    assert "#pragma OPENCL FP_CONTRACT OFF" in text


def test_atomic_sums_compare_and_swap() -> None:
    predictor = tvm_forest.build(forest(), "opencl", atomic_schedule(forest()), exact=False)
    text = predictor.source("opencl")
    assert text.index("float tvmf_atomic_add_float32(") < text.index("__kernel")
    assert "atomic_cmpxchg" in text


def test_linear_leaves_need_nothing_of_another_compiler() -> None:
    assert "llvm" not in tvm_forest.build(by_hand(1.0, [2.0]), "opencl").source("opencl")


def test_shuffles_are_refused_by_name() -> None:
    sch = recipes.gpu_template(tvm_forest.new_schedule(forest()), shared="shuffle")
    with pytest.raises(BuildError, match="OpenCL has no shuffles; use shared_reduce"):
        tvm_forest.build(forest(), "opencl", sch, exact=False)


def test_text_is_not_run_here() -> None:
    with pytest.raises(DeviceError, match=r"text only; take predictor.source\('opencl'\)"):
        built("E4").predict(np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match="option 'arch' of 'opencl' is unknown"):
        tvm_forest.build(forest(), {"kind": "opencl", "arch": "any"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"), [("E4", "sparse"), ("E5b", "packed"), ("E13b", "array")]
)
def test_pocl_computes_what_the_model_says(name: str, layout: str) -> None:
    cl = pytest.importorskip("pyopencl", reason="no pyopencl, or no OpenCL such as PoCL")
    try:
        driver = OpenCLDriver(cl)
    except cl.Error as error:
        pytest.skip(f"no OpenCL such as PoCL: {error}")
    predictor = built(name, layout)
    predictor.library.backend = Backend(lambda: driver, lambda source, *_: source.encode())
    for n in (1, 33):
        rows = hard_rows(forest(), n, seed=n)
        expected = forest().predict_reference(rows)[:, 0]
        keeps = predictor.schedule.keeps_order
        bound = 0 if keeps else rounding_bound(forest(), rows)[:, 0]
        assert np.all(np.abs(predictor.predict_margin(rows) - expected) <= bound), n
