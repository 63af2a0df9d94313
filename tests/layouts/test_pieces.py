"""The layout of pieces: one row goes through all trees at once, a line of the cache at a step."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import check_results, odd_forest
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import pieces as layout
from tvm_forest.layouts.pieces import PiecesLayout, packing, shapes
from tvm_forest.layouts.pieces.lines import AT, GROUP, SPARE_EXITS
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search import heuristic
from tvm_forest.search.machines import TELLING
from tvm_forest.search.measuring.drawn_forests import Shape, draw_forest
from tvm_forest.target import cpu_abilities, parse_target
from tvm_forest.tir_gen.walks import pieces as walks

ZEN4 = parse_target({"kind": "llvm", "mcpu": "znver4"})

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


@pytest.mark.parametrize("depth", [14, 1, 2, 3, 5, 9])
@pytest.mark.cases(1)
def test_trees_of_all_depths_have_the_bits_of_the_model(depth: int) -> None:
    kinds: Any = {"comparison": ("<", "<=")[depth % 2]}
    forest = drawn_forest(7 + 5 * depth, depth, seed=depth, **kinds)
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,), outputs=("margin", "apply"))


@pytest.mark.parametrize("turns", [0b0110_1101_0011, 0, -1])
@pytest.mark.cases(1, others="long")
def test_lopsided_trees_have_the_bits_of_the_model(turns: int) -> None:
    forest = forest_of([lopsided(depth, turns) for depth in range(1, 24)])
    check_results(forest, in_pieces(forest), (40,), jobs=(1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.cases(1)
def test_odd_forests_have_the_bits_of_the_model(seed: int) -> None:
    forest = odd_forest(seed)
    if PiecesLayout.unfit(forest) is None:
        check_results(forest, in_pieces(forest), SIZES, jobs=(1,))


def test_trees_of_one_leaf_have_a_line_for_it() -> None:
    forest = forest_of([1.5, Split(0, 0.5, 1.0, 2.0), -2.5, 0.25])
    for each in (forest, forest_of([3.5])):
        check_results(each, in_pieces(each), SIZES, jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("trees", [260, 126, 127])
@pytest.mark.cases(1, others="long")
def test_more_trees_than_walk_together_are_added_in_order(trees: int) -> None:
    forest = full_forest(trees, 4)
    check_results(forest, in_pieces(forest), (3,), jobs=(1,), outputs=("margin",))


def test_classes_are_walked_one_after_the_other() -> None:
    forest = drawn_forest(33, 5, base=(0.5, 1.0, 2.0))
    assert forest.round_size == 3
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("features", [1, 8, 9, 32, 33, 64, 65, 256])
@pytest.mark.cases(2)
def test_rows_of_any_width_are_picked_from(features: int) -> None:
    forest = drawn_forest(30, 7, n_features=features, seed=features)
    check_results(forest, in_pieces(forest), (5,), jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "cascadelake"])
@pytest.mark.parametrize("features", [5, 20, 50, 70])
@pytest.mark.cases(3, others="long")
def test_code_for_other_cpus_gives_the_same(cpu: str, features: int) -> None:
    target = {"kind": "llvm", "mcpu": cpu}
    if not cpu_abilities() >= (parse_target(target).abilities or set()) & set(TELLING):
        pytest.skip("this CPU cannot run it")
    forest = drawn_forest(20, 8, n_features=features)
    predictor, rows = tvm_forest.build(forest, target, in_pieces(forest)), hard_rows(forest, 60)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


def test_float64_thresholds_of_float32_rows_are_rounded() -> None:
    forest = drawn_forest(30, 8, dtype="float64", row_dtype="float32", comparison="<=")
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,), outputs=("margin",))


def test_loops_over_trees_may_be_cut_anywhere_and_rows_be_shared_out() -> None:
    forest = drawn_forest(30, 5)
    start = tvm_forest.new_schedule(forest).represent_as("pieces")
    cut = start.tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 7)
    cut = cut.reorder("b0", "t0", "b1", "t1").simdize("t1", "pieces").parallel("b0")
    check_results(forest, cut, SIZES, outputs=("margin",))
    parts = start.split("tree", "d1", "d2", 13).simdize("d1", "pieces").simdize("d2", "pieces")
    check_results(forest, parts, SIZES, outputs=("margin",))


def test_exits_are_counted_from_a_base_where_lines_are_many(monkeypatch: Any) -> None:
    for module in (packing, walks):
        monkeypatch.setattr(module, "UNIT_BITS", 3)
    monkeypatch.setattr(packing, "UNIT", 8)
    monkeypatch.setattr(packing, "MAX_REACH", 200)
    monkeypatch.setattr(layout, "GROUP", 2)
    forest = drawn_forest(40, 7)
    assert cast(PiecesLayout, PiecesLayout.pack(forest)[0]).has_bases
    check_results(forest, in_pieces(forest), SIZES, jobs=(1,), outputs=("margin", "apply"))


# -- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_every_shape_leads_each_outcome_to_the_exit_that_its_tests_say(count: int) -> None:
    grown = shapes.grow(count)
    for tests, shape in zip(grown.tests.tolist(), grown.shape, strict=True):
        ends = [find_end(tests, outcome) for outcome in range(1 << count)]
        assert grown.ends[shape].tolist() == ends
    assert len(np.unique(grown.ends, axis=0)) == [1, 2, 5, 14, 42][count - 1]


def find_end(tests: list[int], outcome: int) -> int:
    """Walk: of the tests in a range, the earliest one is the root."""
    first, last = 0, len(tests)
    while first < last:
        root = min(range(first, last), key=tests.__getitem__)
        first, last = (first, root) if outcome >> root & 1 else (root + 1, last)
    return first


@pytest.mark.parametrize("depth", [3, 6, 11])
def test_lines_are_full_enough_for_what_is_said_of_their_number(depth: int) -> None:
    forest = drawn_forest(40, depth)
    lines = PiecesLayout.pack(forest)[1]["lines"]
    groups = -(-forest.n_trees // GROUP)
    assert len(lines) * shapes.LEAST_EXITS <= forest.n_nodes + SPARE_EXITS * groups
    assert not lines[:, AT["zero"]].any()


def test_equal_values_of_leaves_are_kept_once() -> None:
    trees = [Split(0, k / 50, 1.0, float(k % 3)) for k in range(50)]
    arrays = PiecesLayout.pack(forest_of(trees))[1]
    assert sorted(arrays["leaf_value"]) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("forest", "message"),
    [
        (drawn_forest(2, 3, dtype="float64"), "rows are float64, but a line holds float32 only"),
        (drawn_forest(2, 3, n_features=257), "257 features, 256 fit"),
    ],
)
def test_what_lines_cannot_hold_is_refused(forest: Forest, message: str) -> None:
    with pytest.raises(
        BuildError, match=f"layout 'pieces': {message}; use represent_as\\('sparse'\\)"
    ):
        tvm_forest.build(forest, schedule=in_pieces(forest))
    tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest).represent_as("sparse"))


def test_pieces_are_of_trees_and_of_their_layout_only() -> None:
    forest = drawn_forest(9, 4)
    sch = tvm_forest.new_schedule(forest)
    with pytest.raises(ScheduleError, match="'pieces' is for layout 'pieces', not for"):
        tvm_forest.build(forest, schedule=sch.simdize("tree", "pieces"))
    with pytest.raises(ScheduleError, match="is walked by pieces only, not as 'tree' is; put the"):
        tvm_forest.build(forest, schedule=sch.represent_as("pieces"))
    with pytest.raises(ScheduleError, match="is not a tree index; choose a loop over trees"):
        sch.reorder("tree", "batch").simdize("batch", "pieces")


# -- the default ----------------------------------------------------------------------------------


def test_forests_beyond_the_second_cache_are_walked_in_pieces() -> None:
    near, far = draw_forest(Shape(20, 6, 20)), draw_forest(Shape(20, 14, 20))
    assert "pieces" not in {x.layout for x in heuristic.default_schedules(near, ZEN4).values()}
    assert heuristic.default_schedules(far, ZEN4)[1].layout == "pieces"
    arm = parse_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert "pieces" not in {x.layout for x in heuristic.default_schedules(far, arm).values()}
