"""The layout of octets: one row goes through 8 trees at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import check_results, odd_forest
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts.octets import OctetsLayout
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search import heuristic
from tvm_forest.target import Target, cpu_abilities

CAN = Target(abilities=frozenset({"avx2", "avx512f", "avx512vbmi"}), cores=1)

SIZES = (1, 2, 9)


def in_octets(forest: Forest) -> Schedule:
    """The schedule of a row after the other."""
    sch = tvm_forest.new_schedule(forest).represent_as("octets")
    return sch.simdize("tree", "octets")


def coarse(forest: Forest) -> Forest:
    """Round thresholds, so that few differ."""
    return replace(forest, threshold=np.round(forest.threshold, 1))


def full(depth: int) -> Any:
    """A complete tree whose tests and leaves differ."""
    if depth == 0:
        return np.random.default_rng(depth).normal()
    return Split(
        depth % 3, depth / 4, full(depth - 1), 0.5 * depth if depth == 1 else full(depth - 1)
    )


@pytest.mark.parametrize("depth", [8, 1, 3, 4, 6, 7])
@pytest.mark.cases(1)
def test_trees_of_all_depths_have_the_bits_of_the_model(depth: int) -> None:
    kinds: Any = {
        "dtype": ("float32", "float64")[depth % 2],
        "comparison": ("<", "<=")[depth // 2 % 2],
    }
    forest = coarse(drawn_forest(7 + 5 * depth, depth, seed=depth, **kinds))
    check_results(forest, in_octets(forest), SIZES, jobs=(1,), outputs=("margin", "apply"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.cases(1)
def test_odd_forests_have_the_bits_of_the_model(seed: int) -> None:
    forest = odd_forest(seed)
    if OctetsLayout.unfit(forest) is None:
        check_results(forest, in_octets(forest), SIZES, jobs=(1,))


def test_full_trees_of_many_octets_have_the_bits_of_the_model() -> None:
    forest = coarse(full_forest(60, 6))
    check_results(forest, in_octets(forest), (3, 50), jobs=(1,), outputs=("margin",))


def test_classes_have_octets_of_their_own() -> None:
    forest = forest_of([full(k % 5) for k in range(33)], base=[0.5, 1.0, 2.0])
    assert forest.round_size == 3
    check_results(forest, in_octets(forest), SIZES, jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("features", [60, 1, 30])
@pytest.mark.cases(1, others="long")
def test_columns_of_two_registers_are_told_apart(features: int) -> None:
    forest = coarse(drawn_forest(60, 8, n_features=features, seed=features))
    check_results(forest, in_octets(forest), (5,), jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("comparison", ["<", "<="])
@pytest.mark.cases(1, others="long")
def test_255_thresholds_and_missing_values_are_exact(comparison: Literal["<", "<="]) -> None:
    drawn = np.sort(np.random.default_rng(3).normal(size=255))
    drawn[[0, 100, 254]] = -np.inf, 0.0, np.inf
    trees = [Split(1, float(t), i, -i, left) for left in (False, True) for i, t in enumerate(drawn)]
    forest = replace(forest_of(trees), comparison=comparison)
    check_results(forest, in_octets(forest), (200,), jobs=(1,), outputs=("margin",))


@pytest.mark.skipif("avx2" not in cpu_abilities(), reason="names a CPU with AVX2")
def test_without_permutes_bytes_are_fetched_one_by_one() -> None:
    forest = coarse(full_forest(11, 8))
    target = {"kind": "llvm", "mcpu": "x86-64-v3"}
    predictor = tvm_forest.build(forest, target, in_octets(forest))
    rows = hard_rows(forest, 50)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


def test_loops_over_trees_may_be_cut_between_octets() -> None:
    forest = drawn_forest(30, 5)
    sch = tvm_forest.new_schedule(forest).represent_as("octets")
    cut = sch.tile("tree", "t0", "t1", 16).reorder("t0", "batch", "t1").simdize("t1", "octets")
    check_results(forest, cut, SIZES, jobs=(1,), outputs=("margin",))
    parts = sch.split("tree", "d1", "d2", 8).simdize("d1", "octets").simdize("d2", "octets")
    check_results(forest, parts, SIZES, jobs=(1,), outputs=("margin",))
    odd = sch.tile("tree", "t0", "t1", 12).simdize("t1", "octets")
    with pytest.raises(ScheduleError, match="groups of 8 trees, but 't0' begins at tree 0 with"):
        tvm_forest.build(forest, schedule=odd)
    with pytest.raises(ScheduleError, match="begins at tree 5, trees go by 8"):
        sch.split("tree", "d1", "d2", 5).simdize("d2", "octets")


def test_octets_are_of_trees_and_of_their_layout_only() -> None:
    forest = drawn_forest(9, 4)
    sch = tvm_forest.new_schedule(forest)
    with pytest.raises(ScheduleError, match="'octets' is for layout 'octets', not for"):
        tvm_forest.build(forest, schedule=sch.simdize("tree", "octets"))
    with pytest.raises(ScheduleError, match="is walked by octets only, not as 'tree' is; put the"):
        tvm_forest.build(forest, schedule=sch.represent_as("octets"))
    with pytest.raises(ScheduleError, match="is not a tree index; choose a loop over trees"):
        sch.reorder("tree", "batch").simdize("batch", "octets")


@pytest.mark.parametrize(
    ("trees", "features", "message"),
    [
        ([Split(0, float(k), 0.0, 1.0) for k in range(256)], 3, "256 thresholds of a feature"),
        ([Split(k, 0.0, 0.0, 1.0) for k in range(129)], 129, "129 columns, 128 fit"),
        ([full(9)], 3, "9 levels of the deepest tree, 8 fit"),
    ],
)
def test_what_bytes_cannot_count_is_refused(trees: Any, features: int, message: str) -> None:
    forest = forest_of(trees, n_features=features)
    with pytest.raises(BuildError, match=f"layout 'octets': {message}"):
        tvm_forest.build(forest, schedule=in_octets(forest))


# -- the default ----------------------------------------------------------------------------------


def test_a_cpu_with_vbmi_walks_few_rows_in_octets() -> None:
    forest = forest_of([full(6)] * 40)
    chosen = heuristic.default_schedules(forest, CAN)
    assert {k: sch.layout for k, sch in chosen.items()}[1] == "octets"
    can_not = replace(CAN, abilities=CAN.abilities - {"avx512vbmi"})  # type: ignore[operator]
    other = heuristic.default_schedules(forest, can_not).values()
    assert "octets" not in {sch.layout for sch in other}
