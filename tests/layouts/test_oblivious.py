"""Oblivious trees: the tests of their levels are the bits of their leaves, without selections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from schedules import check_results, in_blocks, with_vectors
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts.bitsliced import BY_LEVELS, BitslicedLayout
from tvm_forest.layouts.row_codes.selections import has_levels
from tvm_forest.search.workload import Workload
from tvm_forest.target import Target
from tvm_forest.tir_gen.walks.bits import BitWalk

SIZES = (0, 1, 7, 63, 64, 65, 130)
DEPTHS = ([0, 1, 2, 3, 4, 5], [6] * 9, [8, 7], [10, 9, 3])
FEATURES = 5


def oblivious(depth: int, seed: int = 0) -> Any:
    """Draw a tree whose levels have one test each, missing values to either side."""
    rng = np.random.default_rng([depth, seed])
    tests = [
        (int(rng.integers(FEATURES)), float(rng.integers(-8, 9)) / 4, bool(rng.integers(2)))
        for _ in range(depth)
    ]

    def grow(level: int) -> Any:
        if level == depth:
            return float(rng.normal())
        feature, threshold, default = tests[level]
        return Split(feature, threshold, grow(level + 1), grow(level + 1), default)

    return grow(0)


def model(depths: list[int], **fields: Any) -> Forest:
    trees = [oblivious(depth, seed) for seed, depth in enumerate(depths)]
    return forest_of(trees, n_features=FEATURES, **fields)


def mixed() -> Forest:
    """Oblivious trees beside complete ones, a list of selections and a single leaf."""
    drawn = [Split(0, 0.5, Split(1, 0.25, 1.0, 2.0), Split(2, -0.5, 3.0, 4.0)), 0.5]
    deep: Any = 1.0
    for level in range(20):
        deep = Split(level % 3, level / 4, float(level), deep)
    return forest_of([oblivious(4), *drawn, oblivious(3), deep, oblivious(6)], n_features=FEATURES)


def test_a_forest_knows_which_trees_are_oblivious() -> None:
    assert mixed().is_oblivious.tolist() == [True, False, True, True, False, True]
    other_side = Split(0, 0.5, Split(1, 0.0, 1.0, 2.0, True), Split(1, 0.0, 1.0, 2.0, False))
    uneven = Split(0, 0.5, Split(1, 0.0, 1.0, 2.0), 3.0)
    assert not forest_of([other_side, uneven]).is_oblivious.any()


def test_stumps_alone_are_complete_trees_as_before() -> None:
    stumps = [Split(0, float(k), 1.0, 2.0) for k in range(5)]
    assert not has_levels(forest_of(stumps)).any()
    assert has_levels(forest_of([*stumps, oblivious(2)], n_features=FEATURES)).all()


def test_a_slot_of_each_level_is_all_that_is_kept() -> None:
    forest = forest_of([Split(2, 0.5, Split(1, 2.0, -1.0, 1.0), Split(1, 2.0, 3.0, 5.0)), 7.0])
    rep, arrays = BitslicedLayout.pack(canonicalize(forest))
    assert isinstance(rep, BitslicedLayout)
    assert (rep.depths, rep.levels, rep.lists, rep.table) == ((), 2, False, 64)
    zeros = rep.code.tests
    assert arrays["tests"][:4].tolist() == [0, 1, zeros, zeros]
    assert arrays["depth"].tolist() == [BY_LEVELS] * 2
    assert arrays["leaf_value"][[0, 1, 2, 3, 64]].tolist() == [5.0, 3.0, 1.0, -1.0, 7.0]


def test_nothing_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a selection")

    for name in ("_select", "_walk_list"):
        monkeypatch.setattr(BitWalk, name, refuse)
    forest = model([3, 2, 3], dtype="float64")
    lowered = tvm_forest.lower(forest, schedule=in_blocks(forest, "bitsliced", 64))
    assert lowered.after["predict"]
    with pytest.raises(AssertionError, match="a selection"):  # of other trees there are some
        tvm_forest.lower(mixed(), schedule=in_blocks(mixed(), "bitsliced", 64))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [64, 512])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("depths", DEPTHS, ids=str)
@pytest.mark.cases(1)
def test_every_depth_is_exact(depths: list[int], dtype: str, rows: int) -> None:
    comparison = "<=" if len(depths) % 2 else "<"
    forest = model(depths, dtype=dtype, comparison=comparison)
    check_results(
        forest, in_blocks(forest, "bitsliced", rows), SIZES, jobs=(1,), outputs=("margin", "apply")
    )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [64, 256])
@pytest.mark.cases(1)
def test_other_trees_beside_them_are_exact(rows: int) -> None:
    check_results(
        mixed(), in_blocks(mixed(), "bitsliced", rows), SIZES, jobs=(1,), outputs=("margin",)
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 26, 40])
@pytest.mark.cases(1)
def test_vectors_of_several_trees_are_added_in_order(width: int) -> None:
    forest = with_vectors(model([4, 3, 4, 4, 2], dtype="float64"), width)
    sch = in_blocks(forest, "bitsliced", 64)
    check_results(forest, sch, (1, 65, 130), jobs=(1,), outputs=("margin", "per_tree"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 26])
@pytest.mark.cases(1)
def test_one_row_finds_vectors_by_octets(width: int) -> None:
    """More trees than one octet has: each is of all classes, and none of them is skipped."""
    forest = with_vectors(model([4, 3, 4, 4, 2] * 4, dtype="float64"), width)
    sch = tvm_forest.new_schedule(forest).represent_as("octets").simdize("tree", "octets")
    check_results(forest, sch, (1, 5), jobs=(1,), outputs=("margin", "per_tree"))


@pytest.mark.slow
@pytest.mark.cases(1)
def test_trees_of_classes_are_added_to_their_sums() -> None:
    forest = model([4, 3, 4, 4, 2, 4, 4, 1, 0, 3], base=(0.5, -0.5))
    check_results(
        forest, in_blocks(forest, "bitsliced", 128), (1, 130), jobs=(1,), outputs=("margin",)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "cascadelake"])
@pytest.mark.cases(2)
def test_other_cpus_have_the_same_bits(mcpu: str, dtype: str) -> None:
    forest = model([6] * 5 + [4], dtype=dtype)
    target = {"kind": "llvm", "mcpu": mcpu}
    try:
        predictor = tvm_forest.build(forest, target, in_blocks(forest, "bitsliced", 128))
    except tvm_forest.errors.BuildError as error:
        assert "lacks" in str(error)  # this machine is older
        return
    rows = hard_rows(forest, 150)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


def test_large_batches_take_them_for_planes() -> None:
    """Leaves are looked up as a machine of AVX-512 can, and as one without."""
    forest = model([6] * 100, dtype="float64")
    for abilities, kind in (({"avx512f"}, "64 float64"), ({"avx2"}, "far")):
        work = Workload.of(forest, Target("llvm", abilities=frozenset(abilities)))
        assert work.all_oblivious
        assert work.leaf_look_up == kind
        assert work.slots == 600
    assert not Workload.of(drawn_forest(5, 4), Target("llvm")).all_oblivious
