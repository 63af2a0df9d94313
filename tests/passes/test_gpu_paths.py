"""Paths of one nest that are mapped to different dimensions of a GPU, or to none."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import emulated, settings
from forests import drawn_forest, forest_of
from gpu_schedules import ORDERS, check
from quick_builds import lower_sums
from races import find_kernel_races
from schedules import compare
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule


@functools.cache
def forest(classes: int = 1) -> Forest:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes])


def mapped(sch: Schedule, **dimensions: str) -> Schedule:
    """Map all copies of loops to dimensions."""
    for name, dimension in dimensions.items():
        for copy in sch.copies(name):
            sch = sch.gpu_dimension(copy, dimension)
    return sch


def two_parts(**dimensions: str) -> Schedule:
    """Blocks of four rows, and a loop over tiles of trees that has two parts, of 2 and 3 tiles."""
    sch = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 3)
    sch = sch.reorder("b0", "t0", "t1", "b1").split("t0", "ta", "tb", 6)
    return mapped(sch, b0="grid.x", **dimensions)


def two_classes() -> Schedule:
    """Blocks of three rows, and a loop over classes that has two parts, inside one over trees."""
    sch = tvm_forest.new_schedule(forest(3)).tile("batch", "b0", "b1", 3)
    sch = sch.tile("tree", "t0", "t1", 1).reorder("b0", "t1", "class", "t0", "b1")
    sch = mapped(sch, b0="grid.x", b1="block.z").split("class", "ca", "cb", 2)
    return mapped(sch, **{"t0@ca": "grid.y"})


SCHEDULES = {
    "trees of a part on the grid": two_parts(ta="grid.y", b1="block.x"),
    "trees of the other part on the grid": two_parts(tb="grid.y", b1="block.x"),
    "fewer blocks for a part": two_parts(ta="grid.y", tb="grid.y", b1="block.x"),
    "fewer threads for a part": two_parts(ta="block.y", tb="block.y", b1="block.x"),
    "trees of a part on threads": two_parts(ta="block.y", b1="block.x"),
    "trees on the grid beside trees on threads": two_parts(ta="grid.y", tb="block.y", b1="block.x"),
    "rows of the other part on threads": two_parts(ta="grid.y", **{"b1@tb": "block.x"}),
    "a part on no threads": two_parts(ta="grid.y", **{"b1@ta": "block.x"}),
    "classes": two_classes(),
}


@pytest.mark.parametrize("how", ["", "ordered_reduce", "atomic_reduce"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.cases(5)
def test_a_path_without_a_dimension_of_another_one_adds_its_trees_once(name: str, how: str) -> None:
    sch = SCHEDULES[name]
    for loop in sch.loops():
        if how and loop.kind == "tree" and loop.gpu:
            sch = getattr(sch, how)(loop.name)
    check(forest(sch.classes), sch, ORDERS[len(name) % 2], (7, 33))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows of the other part on threads", "classes"])
def test_registers_are_of_one_kernel_whatever_order_threads_run_in(name: str) -> None:
    sch = SCHEDULES[name]
    made = emulated(tvm_forest.build(forest(sch.classes), "cuda", sch, exact=False))
    for seed in range(3):
        settings().emulated_set(b"seed", seed)
        compare(made, forest(sch.classes), sch, (1, 7))


def test_a_path_without_threads_copies_rows_once_for_its_block() -> None:
    """Its classes could have a thread each, but for the copy in shared memory, which is of all."""
    start = tvm_forest.new_schedule(forest(3)).tile("batch", "b0", "b1", 8)
    sch = start.reorder("b0", "class", "b1", "tree").split("class", "ca", "cb", 1)
    sch = sch.cache("b1@cb").gpu_dimension("b1@ca", "grid.x")
    function = lower_sums(forest(3), sch, "simt").after["predict"]
    assert find_kernel_races(function) == set()
    assert "near = T.alloc_shared" in function.script()
    check(forest(3), sch, sizes=(7, 33))


def test_a_team_decides_tiles_in_a_path_without_threads() -> None:
    start = tvm_forest.new_schedule(forest(3)).tile_nodes(3).represent_as("sparse")
    sch = start.tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 1)
    sch = sch.reorder("b0", "t1", "class", "t0", "b1").split("class", "ca", "cb", 2)
    sch = mapped(sch, **{"b0": "grid.x", "t0@ca": "grid.y"}).cooperate("cb")
    check(forest(3), sch, sizes=(7, 33))


def test_a_loop_on_threads_may_have_a_length_that_loops_around_it_decide() -> None:
    """Rows in two steps, the outer one of eights inside: the last tiles have unequal lengths."""
    sch = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", 8)
    sch = sch.tile("b0", "B", "b", 16).reorder("B", "tree", "b1", "b").split("tree", "ta", "tb", 6)
    sch = mapped(sch, B="grid.x", **{"b@tb": "block.x"})
    check(forest(), sch, sizes=(7, 130, 141))


def test_sums_of_any_number_of_rows_lie_in_memory_of_the_device() -> None:
    sch = tvm_forest.new_schedule(forest()).tile("batch", "b0", "b1", parts=2)
    sch = sch.tile("tree", "t0", "t1", 4).reorder("b0", "t1", "t0", "b1")
    sch = mapped(sch, b0="grid.x", t1="block.y").shared_reduce("t1")
    function = lower_sums(forest(), sch, "simt").after["predict"]
    assert "part = T.alloc_buffer" in function.script()
    check(forest(), sch, sizes=(1, 33))


def test_trees_of_one_leaf_have_no_records_with_values() -> None:
    """Without a hop, TVM looks through the number that is added to those of such records."""
    model: Any = forest_of([1.0, 2.0, 0.5])
    model = replace(model, hits=np.ones(model.n_nodes, np.int64))
    sch = tvm_forest.new_schedule(model).tile_nodes(7, "hybrid", (0.3, 0.5))
    sch = tvm_forest.with_depths(sch.represent_as("sparse_peeled"), model)
    check(model, sch.gpu_dimension("batch", "grid.x").unroll_walk("tree", "depth"), sizes=(1, 7))
