"""Teams of threads of a GPU that decide each tile together, see the directive `cooperate`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_schedules
import tvm_forest
from category_models import asks
from emulated_cuda import emulated
from forests import drawn_forest, full_forest
from gpu_schedules import ORDERS
from rocm_kernels import GPUS, check_code_object, check_results, has_linker, made
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

FORESTS: dict[str, Callable[[], Forest]] = {
    "unequal depths": lambda: drawn_forest(13, 5, seed=3, n_features=6),
    "equal depths": lambda: full_forest(6, 4),
    "classes": lambda: drawn_forest(12, 4, seed=5, base=(0.5, -1.0, 2.0)),
    "float64": lambda: drawn_forest(9, 4, seed=7, dtype="float64"),
    "categories": lambda: asks("xgboost", "float32"),
}
LAYOUTS = ("sparse", "array")


def start(model: Forest, size: int, layout: str = "sparse") -> Schedule:
    """Map blocks of 16 rows to the grid, and their rows to threads beside those of a team."""
    sch = tvm_forest.new_schedule(model).tile_nodes(size).represent_as(layout)
    sch = sch.tile("batch", "b0", "b1", 16)
    return sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.y")


def of_trees(model: Forest, size: int) -> Schedule:
    """Let trees be on threads too, with their sums in the order of the model."""
    sch = start(model, size).tile("tree", "t0", "t1", 4)
    classes = ["class"] if model.n_outputs > 1 else []
    sch = sch.reorder("b0", "b1", *classes, "t1", "t0")
    return sch.gpu_dimension("t1", "block.z").cooperate("t1").ordered_reduce("t1")


def unrolled(model: Forest, size: int) -> Schedule:
    """Let every walk take as many hops as the deepest, two trees side by side."""
    sch = start(model, size).cooperate("b0").pad_trees()
    return sch.unroll_walk("tree").interleave("tree", 2)


SHAPES: dict[str, Callable[[Forest, int], Schedule]] = {
    "rows": lambda model, size: start(model, size).cooperate("b1"),
    "array": lambda model, size: start(model, size, "array").cooperate("tree"),
    "rows near": lambda model, size: start(model, size).cache("b1").cooperate("b1"),
    "trees on threads": of_trees,
    "unrolled": unrolled,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.cases(4)
def test_teams_compute_what_the_model_says(name: str, size: int) -> None:
    for layout in LAYOUTS:
        sch = start(FORESTS[name](), size, layout).cooperate("b1")
        gpu_schedules.check(FORESTS[name](), sch, ORDERS[size % 2], (1, 7, 33))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.cases(1)
def test_teams_go_with_other_directives(shape: str) -> None:
    for model in (FORESTS["unequal depths"](), FORESTS["classes"]()):
        for target in ORDERS:
            gpu_schedules.check_sums(model, SHAPES[shape](model, 4), target, (1, 20))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.cases(1)
def test_the_text_for_cuda_has_ballots_and_computes_what_the_model_says(shape: str) -> None:
    model = FORESTS["unequal depths"]()
    sch = SHAPES[shape](model, 3)
    predictor = tvm_forest.build(model, "cuda", sch)
    text = predictor.source("cuda")
    assert len(re.findall(r"tvmf_ballot\(", text)) > 1 and "__ballot_sync" in text
    gpu_schedules.check(model, sch, "cuda", (1, 7, 33), lambda made: emulated(made, 5))


@pytest.mark.slow
@pytest.mark.skipif(not has_linker(), reason="no ld.lld, and no ziglang")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.cases(2)
def test_code_objects_have_ballots_and_compute_what_the_model_says(
    gpu: str, tmp_path: Path
) -> None:
    model = FORESTS["unequal depths"]()
    sch = SHAPES["rows"](model, 4)
    compiled, plan = made(model, sch, gpu)
    check_code_object(compiled, plan, gpu)
    check_results(compiled, plan, tmp_path, gpu, model, sch)


def test_a_team_is_a_dimension_of_the_block() -> None:
    model = FORESTS["unequal depths"]()
    predictor = tvm_forest.build(model, "cuda", start(model, 3).cooperate("b1"))
    (launch,) = predictor.library.plans["predict"].launches
    assert [int(x) for x in launch.block] == [4, 16, 1]


def test_a_team_is_printed_kept_and_drawn() -> None:
    sch = start(FORESTS["classes"](), 4).cooperate("b1")
    assert "block.y; cooperate" in str(sch) and sch.keeps_order
    assert Schedule.from_json(sch.to_json()) == sch


WRONG: dict[str, tuple[Callable[[Schedule], Any], str]] = {
    "no tiles": (
        lambda sch: tvm_forest.new_schedule(FORESTS["classes"]()).cooperate("batch"),
        "walks node by node; use tile_nodes",
    ),
    "no such loop": (lambda sch: sch.cooperate("b7"), "b7"),
    "twice": (lambda sch: sch.cooperate("b1").cooperate("tree"), "has the teams of 'b1' already"),
    "around": (lambda sch: sch.cooperate("tree").cooperate("b0"), "has the teams of 'tree'"),
    "threads of the team are taken": (
        lambda sch: sch.tile("tree", "t0", "t1", 4).gpu_dimension("t1", "block.x").cooperate("b1"),
        "decided by the threads of block.x",
    ),
    "taken later": (
        lambda sch: sch.tile("tree", "t0", "t1", 4).cooperate("b1").gpu_dimension("t1", "block.x"),
        "decided by the threads of block.x",
    ),
    "too many threads": (
        lambda sch: sch.tile("tree", "t0", "t1", 32).gpu_dimension("t1", "block.z").cooperate("b1"),
        "threads per block",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_schedule_that_cannot_have_teams_is_refused(case: str) -> None:
    model = drawn_forest(64, 3, seed=3)
    edit, message = WRONG[case]
    with pytest.raises(ScheduleError, match=re.escape(message)):
        edit(start(model, 4))


def test_targets_without_teams_are_refused() -> None:
    model = FORESTS["unequal depths"]()
    with pytest.raises(ScheduleError, match="is for a GPU"):
        tvm_forest.build(model, "llvm", start(model, 4).cooperate("b1"))
    with pytest.raises(BuildError, match="OpenCL has no ballots"):
        tvm_forest.build(model, "opencl", start(model, 4).cooperate("b1"))
    bare = tvm_forest.new_schedule(model).tile_nodes(4).represent_as("sparse")
    with pytest.raises(ScheduleError, match="no loop is mapped to the threads of a GPU"):
        tvm_forest.build(model, "simt", bare.cooperate("tree"))


def test_a_team_does_the_whole_walk_where_rows_are_copied_right_before_it() -> None:
    model = FORESTS["unequal depths"]()
    sch = tvm_forest.new_schedule(model).tile_nodes(5).represent_as("sparse")
    sch = tvm_forest.with_depths(sch, model).unroll_walk("tree", "depth").cooperate("batch")
    sch = sch.cache("batch").gpu_dimension("tree", "grid.y")
    gpu_schedules.check(model, sch, sizes=(7, 33))
