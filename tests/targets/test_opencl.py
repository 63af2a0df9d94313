"""OpenCL text: what it says, and what a device such as PoCL computes with it where there is one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from drawn_schedules import GPU_LAYOUTS
from forests import drawn_forest
from gpu_schedules import check
from linear_models import by_hand
from links import LINKS
from opencl_here import on_device, opencl_driver
from random_schedules import check_margins, drawn
from recipe_cases import CASES, ON_GPU
from referees import MOST_TEXT
from rocm_kernels import atomic_schedule, forest
from scheduled_models import MODELS, answers_of, forest_named
from shapley import explain, with_cover
from shared_models import shared_model
from tvm_forest.errors import BuildError, ForestError, InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.schedule_prims import recipes


def built(name: str, layout: str = "packed", classes: int = 1) -> Any:
    sch = CASES[name].schedule(tvm_forest.new_schedule(forest(classes))).represent_as(layout)
    return tvm_forest.build(forest(classes), "opencl", sch, exact=False)


# -- text -----------------------------------------------------------------------------------------


def test_barriers_are_for_all_memory_and_kernels_are_declared_once() -> None:
    text = built("E5b").source("opencl")
    fences = re.findall(r"barrier\((.*)\);", text)
    assert fences and set(fences) == {"CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"}
    assert len(re.findall("__kernel .* void", text)) == 1
    assert "#pragma OPENCL FP_CONTRACT OFF" in text


def test_a_kernel_says_how_large_its_blocks_are() -> None:
    predictor = built("E5b")
    (launch,) = predictor.library.plans["predict"].launches
    block = ", ".join(map(str, launch.block))
    promise = f"__kernel __attribute__((reqd_work_group_size({block}))) void {launch.kernel}("
    assert promise in predictor.source("opencl")


def test_bits_are_read_as_numbers_by_opencls_own_words() -> None:
    text = built("E4", "packed").source("opencl")
    assert "as_float(" in text and not re.search(r"\*\((\w+) ?\*\)\(&", text)


def test_only_kernels_that_divide_ask_for_rounded_division() -> None:
    option = "-cl-fp32-correctly-rounded-divide-sqrt"
    assert option not in built("E4").source("opencl")
    model = replace(forest(), link="sigmoid")
    text = tvm_forest.build(model, "opencl", CASES["E4"].schedule).source("opencl")
    assert text.startswith(f"// Build with {option}")


def test_atomic_sums_compare_and_swap() -> None:
    predictor = tvm_forest.build(forest(), "opencl", atomic_schedule(forest()), exact=False)
    text = predictor.source("opencl")
    assert text.index("float tvmf_atomic_add_float32(") < text.index("__kernel")
    assert "atomic_cmpxchg" in text


def test_sums_in_memory_of_a_block_have_a_function_of_their_own() -> None:
    sch = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 3)
    sch = sch.reorder("b0", "b1", "t0", "t1").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x").gpu_dimension("t0", "block.y").shared_reduce("t0")
    sch = sch.gpu_dimension("t1", "block.z").atomic_reduce("t1")
    predictor = tvm_forest.build(forest(), "opencl", sch, exact=False)
    text = predictor.source("opencl")
    assert re.search(r"tvmf_atomic_add_float32_shared\(volatile __local float\* p", text)
    check(forest(), sch, "opencl", (1, 33), on_device)


def test_logarithms_have_the_name_that_opencl_knows() -> None:
    model = replace(forest(), link="log1p_exp")
    text = tvm_forest.build(model, "opencl", CASES["E4"].schedule).source("opencl")
    assert "log1p(" in text and "log1pf" not in text


def test_linear_leaves_need_nothing_of_another_compiler() -> None:
    made = tvm_forest.build(by_hand(1.0, [2.0]), "opencl", CASES["E4"].schedule)
    assert "llvm" not in made.source("opencl")


def test_shuffles_are_refused_by_name() -> None:
    sch = recipes.gpu_template(tvm_forest.new_schedule(forest()), shared="shuffle")
    with pytest.raises(BuildError, match="OpenCL has no shuffles; use shared_reduce"):
        tvm_forest.build(forest(), "opencl", sch, exact=False)


def test_comparisons_of_vectors_are_refused_by_name() -> None:
    sch = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1")
    sch = sch.gpu_dimension("b0", "grid.x").simdize("b1", "gather")
    with pytest.raises(BuildError, match="-1 is true, which TVM takes for 1.*leave simdize out"):
        tvm_forest.build(forest(), "opencl", sch)


def test_gathers_of_vectors_are_refused_by_name() -> None:
    sch = tvm_forest.new_schedule(forest()).tile_nodes(4).pad_trees("tree")
    sch = sch.tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1")
    sch = sch.gpu_dimension("b0", "grid.x").simdize("b1", "gather")
    with pytest.raises(BuildError, match="TVM gathers no vectors of bytes; leave simdize out"):
        tvm_forest.build(forest(), "opencl", sch)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InputError, match="option 'arch' of 'opencl' is unknown; use 'device'"):
        tvm_forest.build(forest(), {"kind": "opencl", "arch": "any"}, CASES["E4"].schedule)


def test_constants_keep_all_their_bits() -> None:
    """TVM prints seven digits of a constant, which are not all of it."""
    model = forest_named("lightgbm linear_holes")  # numbers up to float32(1e-35) count as zero
    text = tvm_forest.build(model, "opencl", tvm_forest.hop_schedule(model, "opencl")).source(
        "opencl"
    )
    assert f"as_double((long){np.float64(np.float32(1e-35)).view(np.int64)})" in text


# -- results --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["airline", "higgs"])
def test_real_models_are_exact_by_default(name: str) -> None:
    opencl_driver()
    model = tvm_forest.load(shared_model(f"{name}.json"))
    predictor = on_device(tvm_forest.build(model, "opencl"))
    assert len(predictor.schedules) > 1
    for n in (0, 1, 33, 513, 4100):
        rows = hard_rows(model, n, seed=n)
        expected = model.predict_reference(rows)[:, 0]
        assert predictor.predict_margin(rows).tobytes() == expected.tobytes(), n


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.cases(2)
def test_models_of_every_kind_are_exact_by_default(name: str) -> None:
    opencl_driver()
    predictor = on_device(tvm_forest.build(forest_named(name), "opencl"))
    assert all(sch.keeps_order for sch in predictor.schedules.values())
    for part in (slice(0, 0), slice(5, 6), slice(0, 33), slice(0, 700)):
        check_margins(answers_of(name), predictor, predictor.schedule, part, None)


@pytest.mark.slow
@pytest.mark.parametrize("layout", GPU_LAYOUTS)
@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.cases(2)
def test_recipes_compute_what_the_model_says_over_every_layout(name: str, layout: str) -> None:
    opencl_driver()
    model = forest(3 if name in ("E6", "E13b") else 1)
    try:
        sch = CASES[name].schedule(tvm_forest.new_schedule(model)).represent_as(layout)
        check(model, sch, "opencl", (1, 33), on_device, outputs=("margin",))
    except ForestError as error:
        assert re.search(
            "shuffles|ballots|leave simdize out|argument 'layout'|be copied", str(error)
        ), error


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.cases(2)
def test_drawn_schedules_compute_what_the_model_says(seed: int) -> None:
    opencl_driver()
    name, sch, _ = drawn("simt", seed)
    try:
        predictor = tvm_forest.build(forest_named(name), "opencl", sch, exact=sch.keeps_order)
    except ForestError:
        return  # many are refused; what is built must be right
    if len(predictor.source("opencl")) < MOST_TEXT:
        for part in (slice(0, 0), slice(7, 8), slice(0, 129)):
            check_margins(answers_of(name), on_device(predictor), sch, part, None)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("link", "targets"), [*LINKS, ("log1p_exp", ())])
@pytest.mark.cases(2)
def test_values_differ_as_far_as_functions_of_two_libraries_do(
    link: Any, targets: tuple[int, ...], dtype: str
) -> None:
    opencl_driver()
    model = drawn_forest(12, 3, seed=3, base=[0.3, -0.2, 0.1], dtype=dtype)
    model = replace(model, link=link, targets=targets)
    rows = hard_rows(model, 40)
    found = on_device(tvm_forest.build(model, "opencl", CASES["E4"].schedule)).predict(rows)
    unit = np.finfo(np.float32 if link == "rounded_softmax" else dtype).eps
    apart = LINK_ULPS[model.link] and LINK_ULPS[model.link] + 3  # OpenCL's own bound for `exp`
    expected = model.predict_reference(rows, "value")
    assert np.allclose(found, expected, rtol=apart * unit, atol=unit / 2)


@pytest.mark.slow
def test_single_trees_and_contributions_are_those_of_the_cpu() -> None:
    opencl_driver()
    model = with_cover(forest(3))
    predictor = on_device(tvm_forest.build(model, "opencl", CASES["E4"].schedule))
    rows = hard_rows(model, 65)
    trees = model.predict_reference(rows, "per_tree")
    assert np.array_equal(predictor.predict_per_tree(rows), trees)
    alone, _ = explain(model, rows)
    found = predictor.predict_contributions(rows)
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-12)
