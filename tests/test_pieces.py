"""The layout of pieces: one row goes through all trees at once, a line of the cache at a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import check_results, odd_forest
from tvm_forest.forest import Forest
from tvm_forest.layouts.pieces import PiecesLayout
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule import Schedule
from tvm_forest.target import Target

SIZES = (1, 2, 9)


def in_pieces(forest: Forest) -> Schedule:
    """The schedule of a row after the other."""
    return tvm_forest.new_schedule(forest).represent_as("pieces").simdize("tree", "pieces")


def lopsided(depth: int, turns: int = 0) -> Any:
    """A tree that is as deep to one side, with a leaf at each test; `turns` says to which."""
    tree: Any = float(depth)
    for level in range(depth):
        leaf = level / 8
        left, right = (leaf, tree) if turns >> level & 1 else (tree, leaf)
        tree = Split(level % 3, level / depth, left, right)
    return tree


# -- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 9, 14])
def test_trees_of_all_depths_have_the_bits_of_the_model(depth: int) -> None:
    kinds: Any = {"comparison": ("<", "<=")[depth % 2]}
    forest = drawn_forest(7 + 5 * depth, depth, seed=depth, **kinds)
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,))


@pytest.mark.parametrize("turns", [0, -1, 0b0110_1101_0011])
def test_lopsided_trees_have_the_bits_of_the_model(turns: int) -> None:
    forest = forest_of([lopsided(depth, turns) for depth in range(1, 24)])
    check_results(forest, in_pieces(forest), (40,), jobs=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.cases(2)
def test_odd_forests_have_the_bits_of_the_model(seed: int) -> None:
    forest = odd_forest(seed)
    if PiecesLayout.unfit(forest) is None:
        check_results(forest, in_pieces(forest), SIZES, jobs=(1,))


def test_trees_of_one_leaf_have_a_line_for_it() -> None:
    forest = forest_of([1.5, Split(0, 0.5, 1.0, 2.0), -2.5, 0.25])
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,))
    check_results(forest_of([3.5]), in_pieces(forest_of([3.5])), SIZES, jobs=(1,))


@pytest.mark.parametrize("trees", [126, 127, 260])
def test_more_trees_than_walk_together_are_added_in_order(trees: int) -> None:
    forest = full_forest(trees, 4)
    check_results(forest, in_pieces(forest), (3,), jobs=(1,))


def test_classes_are_walked_one_after_the_other() -> None:
    forest = drawn_forest(33, 5, base=(0.5, 1.0, 2.0))
    assert forest.round_size == 3
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,))


@pytest.mark.parametrize("features", [1, 8, 9, 32, 33, 64, 65, 256])
def test_rows_of_any_width_are_picked_from(features: int) -> None:
    forest = drawn_forest(30, 7, n_features=features, seed=features)
    check_results(forest, in_pieces(forest), (5,), jobs=(1,))


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "cascadelake"])
@pytest.mark.parametrize("features", [5, 20, 50, 70])
def test_code_for_other_cpus_gives_the_same(cpu: str, features: int) -> None:
    forest = drawn_forest(20, 8, n_features=features)
    target = {"kind": "llvm", "mcpu": cpu}
    if not Target().abilities >= tvm_forest.target.parse_target(target).abilities:
        pytest.skip("this CPU cannot run it")
    predictor, rows = tvm_forest.build(forest, target, in_pieces(forest)), hard_rows(forest, 60)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])
