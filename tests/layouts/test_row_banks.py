"""Ranks in banks of shared memory, trees of words, and kernels that launches give memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

import tvm_forest
from emulated_cuda import emulated
from forests import Split, drawn_forest, forest_of
from gpu_schedules import ORDERS, check
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts.banked import BankedLayout
from tvm_forest.layouts.row_codes.banks import LANES, WORD_BYTES, bank_tests
from tvm_forest.runtime.gpu.plan import Launch
from tvm_forest.schedule_prims.recipes import gpu_shared_ranks
from tvm_forest.target import parse_target
from tvm_forest.targets.byte_offsets import LOAD_AT, load_by_bytes


def forest_of_cuts(count: int) -> Forest:
    cuts = np.random.default_rng(count).permutation(count) - count / 3
    return forest_of([Split(0, float(cut), 1.0, 2.0) for cut in cuts])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100, 255, 256])
def test_a_search_from_the_middle_outwards_finds_the_rank(count: int) -> None:
    tests = bank_tests(forest_of_cuts(count))
    cuts, at = tests.arrays["cuts"], int(tests.arrays["column_cuts"][0])
    sorted_cuts = np.unique(cuts[~np.isnan(cuts)])
    assert len(sorted_cuts) == count
    for x in [*sorted_cuts, -np.inf, np.inf, np.nan, sorted_cuts[0] + 0.5]:
        place, levels = 1, tests.code.groups[0].steps
        for _ in range(levels):
            place = 2 * place + int(cuts[at + place] <= x)
        assert place - 2**levels == np.count_nonzero(sorted_cuts <= x)


@pytest.mark.parametrize("count", [100, 300])
def test_codes_of_a_row_are_in_a_bank_that_no_other_row_of_the_group_has(count: int) -> None:
    splits = [Split(f, float(cut), 1.0, 2.0) for f in range(5) for cut in range(count)]
    code = bank_tests(forest_of(splits, n_features=5)).code
    item = np.dtype(code.dtype).itemsize
    assert item == (1 if count < 256 else 2)
    places = np.array(
        [[lane * code.in_word + code.place(c) for c in range(5)] for lane in range(32)]
    )
    assert len(np.unique(places)) == 5 * LANES and places.max() < code.group_size
    banks = places * item // WORD_BYTES % LANES
    assert np.array_equal(banks, np.repeat(np.arange(LANES)[:, None], 5, axis=1))


def test_the_recipe_is_exact_where_the_launch_gives_shared_memory() -> None:
    model = drawn_forest(220, 5, seed=9)
    sch = gpu_shared_ranks(tvm_forest.new_schedule(model), rows=128, tree_bytes=64 << 10)
    rows = hard_rows(model, 129, seed=2)
    expected = model.predict_reference(rows)
    for target in (ORDERS[1], "cuda"):
        predictor = tvm_forest.build(model, target, sch)
        if target == "cuda":
            launch = next(
                x for x in predictor.library.plans["predict"].steps if isinstance(x, Launch)
            )
            assert 48 << 10 < launch.shared <= 227 << 10
            assert LOAD_AT in predictor.source("cuda")
            emulated(predictor, seed=5)
        for n in (0, 1, 129):
            assert predictor.predict_margin(rows[:n]).tobytes() == expected[:n].tobytes()


def test_threads_that_code_a_row_each_have_memory_of_their_own() -> None:
    model = drawn_forest(13, 3, seed=3)
    sch = tvm_forest.new_schedule(model).represent_as("banked").tile("batch", "b0", "b1", 8)
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.z")
    for order in ORDERS:
        check(model, sch.cache("b0").cache("b1"), order, (1, 7, 40))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.cases(1)
def test_trees_are_copied_out_of_a_copy(padded: bool) -> None:
    model = drawn_forest(30, 4, seed=4)
    sch = tvm_forest.new_schedule(model).represent_as("banked")
    sch = sch.pad_trees("forest") if padded else sch
    sch = sch.tile("batch", "b0", "b1", 32).tile("tree", "t0", "t", 12).tile("t", "t1", "t2", 5)
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    sch = sch.cache("t0").cache("t1").interleave("t2", 2)
    check(model, sch, ORDERS[1], (1, 40))
    check(model, sch, "cuda", (1, 40), on=emulated)


def test_the_limit_of_shared_memory_is_that_of_the_architecture() -> None:
    limits = {"sm_90": 227, "sm_80": 163, "sm_86": 99, "any": 99}
    for arch, kilobytes in limits.items():
        assert parse_target({"kind": "cuda", "arch": arch}).shared_bytes == kilobytes << 10
    model = drawn_forest(20, 3, seed=9, n_features=40)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 700).cache("b0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    tvm_forest.lower(model, sch, {"kind": "cuda", "arch": "sm_90"})
    for arch in ("sm_86", "any"):
        with pytest.raises(ScheduleError, match="the target allows 101376"):
            tvm_forest.lower(model, sch, {"kind": "cuda", "arch": arch})


def test_places_are_loaded_by_bytes_only_where_they_are_proven_multiples() -> None:
    @T.prim_func
    def aligned(words: T.Buffer((64,), "uint32"), out: T.Buffer((1,), "uint32")) -> None:
        node = T.alloc_buffer((1,), "int32", scope="local")
        node[0] = 4
        node[0] = node[0] * 2 + T.Select(out[0] > T.uint32(3), 0, 4)
        out[0] = words[node[0] // 4 + 3]

    @T.prim_func
    def odd(words: T.Buffer((64,), "uint32"), out: T.Buffer((1,), "uint32")) -> None:
        node = T.alloc_buffer((1,), "int32", scope="local")
        node[0] = 4
        node[0] = node[0] * 2 + T.Select(out[0] > T.uint32(3), 0, 5)
        out[0] = words[node[0] // 4 + 3]

    changed = [load_by_bytes(tvm.IRModule({"k": f})).script() for f in (aligned, odd)]
    assert [LOAD_AT in text for text in changed] == [True, False]


def test_more_columns_than_a_word_has_places_for_are_refused() -> None:
    splits = [Split(0, float(cut), 1.0, 2.0) for cut in range(300)]
    splits += [Split(f, 0.5, 1.0, 2.0) for f in range(1, 2050)]
    forest = forest_of(splits, n_features=2050)
    assert "ranks of 16 bits leave places for 2048" in str(BankedLayout.unfit(forest))
    with pytest.raises(BuildError, match=r"represent_as\('ranked'\)"):
        tvm_forest.build(forest, "llvm", tvm_forest.new_schedule(forest).represent_as("banked"))


@pytest.mark.long
def test_columns_are_searched_side_by_side_and_in_groups_without_barriers() -> None:
    model = drawn_forest(40, 5, seed=6, n_features=11)
    sch = gpu_shared_ranks(tvm_forest.new_schedule(model), 64)
    text = tvm_forest.lower(model, sch, "simt").after.script()
    coding = text.partition("column_feature[0]")[2].partition("tvm_storage_sync")[0]
    assert coding.count("column_feature[") == 11  # beside the first
    assert "feature_3[0] = column_feature[turn * 4 + 4]" in coding
    for order in ORDERS:
        check(model, sch, order, (1, 31, 64, 100))
