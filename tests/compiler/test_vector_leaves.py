"""Leaves that hold vectors: one walk finds the values of all classes, to the bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestClassifier
from tvm import tirx

import tvm_forest
from forests import drawn_forest, forest_of
from gpu_schedules import BACKWARDS
from schedules import check_results, with_vectors
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.structure import leaf_table as vectors
from tvm_forest.layouts.laying_out import pack
from tvm_forest.layouts.protocol import LAYOUTS
from tvm_forest.passes.nest_facts import name_of
from tvm_forest.runtime import leaves
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search import heuristic
from tvm_forest.target import Target
from tvm_forest.tir_gen.ir import find_all

ORDERS = list(permutations(("batch", "tree", "class")))
WIDTHS = (2, 3, 7, 26)
SIZES = (0, 1, 13, 33)


def model(width: int, **fields: Any) -> Forest:
    """Return 11 trees of unequal depth, float64 in float32 rows as scikit-learn has them."""
    drawn = drawn_forest(11, 5, seed=width, dtype="float64")
    about = {"row_dtype": "float32", "comparison": "<=", **fields}
    return replace(with_vectors(drawn, width), **about)


def in_blocks(sch: Schedule, rows: int = 16) -> Schedule:
    """Let blocks of rows go through a tree."""
    return sch.tile("batch", "b0", "b1", rows).reorder("b0", "tree", "b1")


START = tvm_forest.new_schedule(model(7))
SCHEDULES = {
    "trees together": START.interleave("tree", 4),
    "rows together": in_blocks(START).interleave("b1", 5).parallel("b0"),
    "lanes": in_blocks(START).simdize("b1"),
    "straight lines": in_blocks(START).unroll_walk("tree").interleave("b1", 2).cache("b0"),
    "peeled": in_blocks(START).peel_walk("tree", 1).interleave("b1", 2),
    "classes in tiles": in_blocks(START).tile("class", "c0", "c1", 3).interleave("b1", 2),
    "classes apart": in_blocks(START).split("class", "c0", "c1", 3).interleave("b1", 2),
    "classes unrolled": START.unroll("class"),
    "classes in parallel": START.parallel("class"),
    "trees in parallel": START.tile("tree", "t0", "t1", 4).parallel("t0"),
    "trees in tiles": START.tile("batch", "b0", "b1", 16)
    .tile("tree", "t0", "t1", 3)
    .reorder("b0", "t0", "t1", "b1")
    .interleave("b1", 2),
}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_every_order_of_loops_has_the_bits_of_the_model(order: tuple[str, ...]) -> None:
    forest = model(WIDTHS[ORDERS.index(order) % len(WIDTHS)])
    sch = tvm_forest.new_schedule(forest).reorder(*order)
    check_results(forest, sch, SIZES, (1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.cases(3)
def test_a_schedule_computes_what_the_model_says(name: str) -> None:
    check_results(model(7), SCHEDULES[name], SIZES, outputs=("margin", "per_tree"))


@pytest.mark.parametrize(("layout", "how"), [("bitsliced", "bits"), ("array", "gather")])
def test_loops_over_classes_behind_a_vector_walk_may_be_cut(layout: str, how: str) -> None:
    forest = model(7)
    sch = in_blocks(tvm_forest.new_schedule(forest).represent_as(layout), 64).simdize("b1", how)
    sch = sch.split("class", "c0", "c1", 4).split("c1", "c2", "c3", 5).tile("c0", "c4", "c5", 2)
    rows = hard_rows(forest, 100)
    found = tvm_forest.build(forest, schedule=sch).predict_margin(rows)
    assert np.array_equal(found, forest.predict_reference(rows))


def test_no_tree_behind_the_last_is_walked_where_loops_over_classes_are_cut_twice() -> None:
    forest = model(7)
    size = forest.n_trees - 1
    sch = in_blocks(tvm_forest.new_schedule(forest).represent_as("bitsliced"), 64)
    sch = sch.tile("tree", "t0", "t1", size).simdize("b1", "bits")
    sch = sch.tile("class", "c0", "c1", 3).split("c1", "c2", "c3", 2)
    function = tvm_forest.lower(forest, schedule=sch).after["predict"]
    loops = find_all(function.body, tirx.For, lambda loop: name_of(loop) == "t1")
    assert loops and not any(isinstance(loop.extent, tirx.IntImm) for loop in loops)
    rows = hard_rows(forest, 100)
    found = tvm_forest.build(forest, schedule=sch).predict_margin(rows)
    assert np.array_equal(found, forest.predict_reference(rows))


@pytest.mark.parametrize("target", ["llvm", "simt", BACKWARDS], ids=str)
def test_rows_beyond_a_guard_around_concurrent_trees_are_left_to_others(target: Any) -> None:
    """Tiles of 24 do not divide blocks of 32 rows, and the guards of copies stay inside them."""
    forest = model(3)
    sch = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 32).tile("b1", "b2", "b3", 24)
    sch = sch.tile("tree", "t0", "t1", 2).reorder("t1", "class", "t0").specialize("class")
    if target == "llvm":
        sch = sch.parallel("t1").ordered_reduce("t1")
    else:
        sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t1", "block.x").ordered_reduce("t1")
    rows = hard_rows(forest, 100)
    found = tvm_forest.build(forest, target, sch).predict_margin(rows)
    assert np.array_equal(found, forest.predict_reference(rows))


@pytest.mark.slow
@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"levels", "octets", "pieces"}))
@pytest.mark.cases(3)
def test_every_layout_holds_the_numbers_of_leaves(layout: str) -> None:
    forest = model(WIDTHS[sorted(LAYOUTS).index(layout) % len(WIDTHS)])
    forest = replace(forest, hits=forest.is_leaf.astype(np.int64))
    sch = tvm_forest.new_schedule(forest).represent_as(layout)
    if layout == "bitsliced":
        sch = in_blocks(sch, 64).simdize("b1", "bits")
    else:
        sch = in_blocks(sch.tile_nodes(4) if layout == "sparse_peeled" else sch)
        sch = sch.interleave("b1", 8)
    check_results(forest, sch, (1, 63, 130))


def test_every_layout_is_walked_once_for_all_classes() -> None:
    lowered = tvm_forest.lower(model(7), SCHEDULES["trees in tiles"])
    text = lowered.after["predict"].script()
    assert text.count("for hop in") == 2, "a group of two rows, and one that is left"
    assert text.count("T.vectorized(T.int64(7)") == 3


@pytest.mark.parametrize("aggregate", ["sum", "average", "min", "max"])
def test_single_leaves_and_float32_are_held_too(aggregate: Any) -> None:
    stumps = with_vectors(forest_of([0.5, 1.5, 2.5]), 3)
    forest = replace(stumps, aggregate=aggregate, base_first=False)
    check_results(forest, tvm_forest.new_schedule(forest), (1, 5), (1,))


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["classes last", "classes around trees", "a thread a class"])
def test_kernels_compute_what_the_model_says(gpu: str) -> None:
    forest = model(7)
    sch = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 32)
    if gpu != "classes last":
        sch = sch.reorder("b0", "b1", "class", "tree")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    sch = sch.gpu_dimension("class", "block.y") if gpu == "a thread a class" else sch
    predictor, rows = tvm_forest.build(forest, "simt", sch), hard_rows(forest, 77)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows))


def test_a_schedule_says_that_walks_find_vectors() -> None:
    assert str(in_blocks(START).interleave("b1", 8)).splitlines()[-3:] == [
        "    for b1 in (0, 16, 1)                 # batch; guard b0 + b1 < n; interleave 8",
        "      for class in (0, 7, 1)",
        "        out[b0+b1, class] += walk(tree, b0+b1)[class]",
    ]
    assert [loop.name for loop in in_blocks(START).leaves()] == ["b1"]
    around = START.reorder("class", "batch", "tree")
    assert [loop.name for loop in around.leaves()] == ["tree"]
    assert Schedule(11, 7) != Schedule(11, 7, vectors=True)


def test_a_loop_whose_classes_have_walks_of_their_own_is_not_interleaved() -> None:
    with pytest.raises(ScheduleError, match=r"'tree' is not innermost \(contains 'class'\)"):
        START.parallel("class").interleave("tree", 2)
    with pytest.raises(ScheduleError, match="'tree' is interleaved but contains 'class'"):
        START.interleave("tree", 2).parallel("class")


def test_a_schedule_of_other_leaves_is_refused() -> None:
    with pytest.raises(ScheduleError, match="has 11 and 7 with vectors in their leaves"):
        tvm_forest.build(model(7), schedule=Schedule(11, 7))


def test_a_straight_line_at_a_loop_over_classes_holds_for_its_walk() -> None:
    text = tvm_forest.lower(model(7), START.unroll_walk("class")).after["predict"].script()
    assert "for hop in" not in text


def test_nodes_are_held_once_and_equal_leaves_too() -> None:
    values = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -0.0]])[[2, 0, 1, 0, 0, 1, 2]]
    forest = with_vectors(forest_of([float(k) for k in range(7)]), 2)
    forest = replace(forest, leaf_value=values.astype(np.float32))
    assert forest.leaf_table.number.tolist() == [0, 1, 2, 1, 1, 2, 0]
    assert np.signbit(forest.leaf_table.values[0, 1])
    many = model(26)
    arrays = pack(many, tvm_forest.new_schedule(many).represent_as("packed")).arrays
    assert arrays["nodes"].shape == (many.n_nodes,)
    assert len(arrays["leaf_vectors"]) <= many.is_leaf.sum()


def test_leaves_whose_keys_meet_are_told_apart() -> None:
    a, b = (int(x) for x in vectors.make_multipliers(2))
    wanted = word = a * pow(b, -1, 1 << 64) % (1 << 64)  # so that 1 * a = wanted * b
    for _ in range(3):
        word = wanted ^ (word >> 29)
    values = np.array([[1, 0], [0, word], [1, 0]], np.uint64).view(np.float64)
    first, kind = vectors.find_distinct(values)
    assert len(first) == 2
    assert kind[0] == kind[2] != kind[1]


def test_more_leaves_than_float32_counts_are_numbered_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaves, "MOST_IN_FLOAT32", 3)
    forest = model(3)
    assert leaves.with_leaf_numbers(canonicalize(forest)).leaf_value.dtype == np.float64
    check_results(forest, tvm_forest.new_schedule(forest).represent_as("sparse"), (1, 33), (1,))


def test_the_default_schedules_walk_once() -> None:
    target = Target(cores=2, abilities=frozenset())
    for sch in heuristic.default_schedules(model(7), target).values():
        assert all(loop.kind != "class" for loop in sch.leaves())


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_forests_of_scikit_learn_keep_their_bits_when_saved(kind: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 6)).astype(np.float32)
    if kind == "classifier":
        labels = (3 * rows[:, 0] + rng.normal(size=300)).astype(int)
        source: Any = RandomForestClassifier(13, random_state=0).fit(rows, labels)
        expected = source.predict_proba(rows)
    else:
        source = ExtraTreesRegressor(13, random_state=0).fit(rows, rows[:, :3] ** 2)
        expected = source.predict(rows)
    sch = in_blocks(tvm_forest.new_schedule(source).represent_as("packed")).interleave("b1", 4)
    tvm_forest.build(source, schedule=sch).save(tmp_path / "model.tvmf")
    saved = tvm_forest.load_predictor(tmp_path / "model.tvmf")
    for n in (0, 1, 9, 300):
        assert np.array_equal(saved.predict_margin(rows[:n]), expected[:n])
    assert np.array_equal(saved.apply(rows), source.apply(rows))
