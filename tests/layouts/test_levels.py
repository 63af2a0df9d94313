"""The layout of levels: its bytes, and walks of 16 rows in 4 trees with and without permutes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import check_results, in_blocks, odd_forest, with_vectors
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import protocol
from tvm_forest.layouts.levels import LevelsLayout
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.batches import select_schedule
from tvm_forest.search import heuristic
from tvm_forest.target import Target, cpu_abilities

CAN = Target(abilities=frozenset({"avx2", "avx512f", "avx512vbmi"}), cores=1)
COMPARISONS: tuple[Literal["<", "<="], ...] = ("<", "<=")
SIZES = (0, 1, 15, 16, 17, 33, 65)


def permuted(forest: Forest, rows: int = 16) -> Schedule:
    return in_blocks(forest, "levels", rows)


def chain(depth: int) -> Any:
    """A tree with a leaf at every depth."""
    tree: Any = -1.0
    for level in range(depth):
        tree = Split(level % 3, float(level), float(level), tree, level % 2 == 0)
    return tree


def full(depth: int, shift: int = 0) -> Any:
    """A complete tree whose tests differ from level to level, and from node to node of most."""
    if depth == 0:
        return 0.5
    column = (depth + shift) % 3
    return Split(column, depth / 4, full(depth - 1, shift), full(depth - 1, shift + 1))


# -- the layout -----------------------------------------------------------------------------------


def test_a_level_says_where_its_nodes_and_the_leaves_below_are() -> None:
    forest = forest_of([Split(2, 0.5, -1.0, Split(1, 2.0, 3.0, 5.0)), 7.0])
    _, arrays = protocol.find("levels").pack(canonicalize(forest))
    fields = [[int(word) >> shift & 255 for shift in (0, 32, 40)] for word in arrays["levels"][:3]]
    assert fields == [[0, 1, 255], [1, 0, 1], [2, 0, 0]]
    nodes = [arrays[f"node_{x}"][:3].tolist() for x in ("rank", "column", "left", "right")]
    assert nodes == [[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert arrays["leaf_value"][:4].tolist() == [-1.0, 3.0, 5.0, 7.0]
    assert arrays["first_leaf"].tolist() == [0, 3]


@pytest.mark.parametrize(
    ("trees", "features", "message"),
    [
        ([Split(0, float(k), 0.0, 1.0) for k in range(256)], 3, "256 thresholds of a feature"),
        ([Split(k, 0.0, 0.0, 1.0) for k in range(257)], 257, "257 columns, 256 fit"),
        ([full(9)], 3, "256 inner nodes on a level of a tree, 128 fit"),
        ([chain(256)], 3, "257 leaves of a tree, 256 fit"),
    ],
)
def test_what_bytes_cannot_count_is_refused(trees: Any, features: int, message: str) -> None:
    forest = forest_of(trees, n_features=features)
    assert message in (LevelsLayout.unfit(forest) or "")
    with pytest.raises(BuildError, match=f"layout 'levels': {message}"):
        tvm_forest.build(forest, schedule=permuted(forest))


def test_the_widest_level_is_counted_tree_by_tree() -> None:
    assert LevelsLayout.widest_level(forest_of([full(3), full(5), 1.0])) == 16
    assert LevelsLayout.widest_level(forest_of([1.0])) == 0


def test_leaves_that_hold_vectors_are_refused() -> None:
    forest = with_vectors(drawn_forest(3, 3, dtype="float64"), 2)
    sch = tvm_forest.new_schedule(forest).represent_as("levels").tile("batch", "b0", "b1", 16)
    sch = sch.reorder("b0", "tree", "b1", "class").simdize("b1", "permute")
    with pytest.raises(ScheduleError, match="the leaves of this model hold vectors"):
        tvm_forest.build(forest, schedule=sch)


def test_blocks_whose_groups_begin_elsewhere_are_refused() -> None:
    sch = tvm_forest.new_schedule(drawn_forest(3, 3)).represent_as("levels")
    sch = sch.tile("batch", "b0", "b1", 200).tile("b1", "b2", "b3", 24).tile("b3", "b4", "b5", 16)
    sch = sch.reorder("b0", "b2", "b4", "tree", "b5").simdize("b5", "permute")
    message = "'permute' takes groups of 16 rows, but 'b2' begins at multiples of 24 in a block"
    with pytest.raises(ScheduleError, match=re.escape(message)):
        tvm_forest.build(drawn_forest(3, 3), schedule=sch)


# -- compiled results -----------------------------------------------------------------------------


DEEP = forest_of([chain(255), full(7), 2.0, chain(40), full(3)])


@pytest.mark.slow
@pytest.mark.parametrize("forest", [full_forest(5, 8), DEEP], ids=["wide", "deep"])
@pytest.mark.cases(0)
def test_wide_levels_and_deep_trees_are_exact(forest: Forest) -> None:
    check_results(forest, permuted(forest, 64), (33, 64), jobs=(1,))


@pytest.mark.parametrize("features", [9, 100])
@pytest.mark.cases(1, others="long")
def test_columns_of_many_registers_are_told_apart(features: int) -> None:
    forest = drawn_forest(24, 6, n_features=features, seed=features)
    predictor = tvm_forest.build(forest, schedule=permuted(forest))
    rows = hard_rows(forest, 100)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.cases(1, others="long")
def test_255_thresholds_and_missing_values_are_exact(comparison: Literal["<", "<="]) -> None:
    drawn = np.sort(np.random.default_rng(3).normal(size=255))
    drawn[[0, 100, 254]] = -np.inf, 0.0, np.inf
    trees = [Split(1, float(t), i, -i, left) for left in (False, True) for i, t in enumerate(drawn)]
    forest = replace(forest_of(trees), comparison=comparison)
    predictor = tvm_forest.build(forest, schedule=permuted(forest))
    rows = hard_rows(forest, 200)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


@pytest.mark.skipif("avx2" not in cpu_abilities(), reason="names a CPU with AVX2")
@pytest.mark.long
def test_without_permutes_bytes_are_fetched_one_by_one() -> None:
    forest = odd_forest(3)
    target = {"kind": "llvm", "mcpu": "x86-64-v3"}
    predictor = tvm_forest.build(forest, target, permuted(forest, 32))
    rows = hard_rows(forest, 50)
    assert np.array_equal(predictor.apply(rows), forest.predict_reference(rows, "apply"))
    margin = predictor.predict_margin(rows).reshape(50, -1)
    assert np.array_equal(margin, forest.predict_reference(rows))


NESTS = {
    "rows of one tree": lambda s: s.tile("tree", "t0", "t1", 3).reorder("b0", "t0", "t1", "b1"),
    "trees fetched ahead": lambda s: s.reorder("b0", "tree", "b1").cache("tree", "prefetch"),
    "special parts": lambda s: s.reorder("b0", "tree", "b1").split("tree", "d1", "d2", 5),
}


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.cases(1)
def test_loops_over_trees_may_be_cut(name: str) -> None:
    forest = drawn_forest(7, 4)
    sch = tvm_forest.new_schedule(forest).represent_as("levels").tile("batch", "b0", "b1", 32)
    sch = NESTS[name](sch)
    for leaf in [loop.name for loop in sch.leaves()]:
        sch = sch.simdize(leaf, "permute")
    check_results(forest, sch, (1, 40), jobs=(1,), outputs=("margin",))


# -- the default ----------------------------------------------------------------------------------

WIDE = forest_of([full(8)] * 40)


def test_groups_begin_with_the_first_row_of_their_block_if_trees_are_parallel_too() -> None:
    """Blocks of 24 rows are walked in groups of 16 and 8."""
    forest = drawn_forest(16, 4)
    sch = tvm_forest.new_schedule(forest).represent_as("levels").tile("batch", "b0", "b1", 24)
    sch = sch.tile("b1", "b2", "b3", 16).tile("tree", "t0", "t1", 8)
    sch = sch.reorder("b0", "t0", "b2", "t1", "b3").simdize("b3", "permute")
    sch = sch.parallel("b0").parallel("t0").ordered_reduce("t0")
    rows = hard_rows(forest, 100)
    found = tvm_forest.build(forest, schedule=sch).predict_margin(rows, n_jobs=2)
    assert np.array_equal(found, forest.predict_reference(rows)[:, 0])


def test_a_cpu_with_vbmi_walks_tens_of_rows_by_permutes() -> None:
    chosen = heuristic.default_schedules(WIDE, CAN)
    assert select_schedule(chosen, 32).layout == "levels"
    can_not = replace(CAN, abilities=CAN.abilities - {"avx512vbmi"})  # type: ignore[operator]
    other = heuristic.default_schedules(WIDE, can_not).values()
    assert "levels" not in {sch.layout for sch in other}


def test_a_default_without_permutes_is_a_start_for_ones_own() -> None:
    assert heuristic.hop_schedule(WIDE, CAN).layout != "levels"
