"""The directives about memory and GPUs: their nests, what they refuse, what their code computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from quick_builds import lower_sums
from tvm_forest.errors import ScheduleError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts.protocol import LAYOUTS
from tvm_forest.schedule_prims import Schedule

START = Schedule(100)
BLOCKS = START.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
TEAMS = BLOCKS.tile("tree", "t0", "t1", 20).reorder("b0", "b1", "t1", "t0")
FEW = BLOCKS.tile("tree", "t0", "t1", 4).reorder("b0", "b1", "t1", "t0")
GPU = TEAMS.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")

REFUSALS: dict[str, tuple[Schedule, Callable[[Schedule], Any], str]] = {
    "cache: a class loop": (
        Schedule(6, classes=3),
        lambda s: s.cache("class"),
        "cache: argument 'index': 'class' has no working set",
    ),
    "cache: another word": (
        BLOCKS,
        lambda s: s.cache("b0", "near"),
        "cache: argument 'how': 'near' is unknown; use auto, pack, prefetch, shared",
    ),
    "cache: trees are not packed": (
        BLOCKS,
        lambda s: s.cache("tree", "pack"),
        "cache: argument 'how': 'pack' is unknown; use auto, prefetch, stream, shared",
    ),
    "cache: twice": (
        BLOCKS.cache("b0"),
        lambda s: s.cache("b0", "prefetch"),
        "cache: argument 'index': 'b0' already has cache auto",
    ),
    "cache: trees of which several are walked together": (
        FEW.interleave("t0", 4),
        lambda s: s.cache("t0"),
        "cache: argument 'index': 't0' has cache auto, one iteration at a time, but its walks "
        "advance together; tile it, and cache the outer loop",
    ),
    "interleave: rows that are fetched one after the other": (
        BLOCKS.cache("b1", "prefetch"),
        lambda s: s.interleave("b1", 8),
        "interleave: argument 'index': 'b1' has cache prefetch, one iteration at a time",
    ),
    "simdize: rows that are packed one after the other": (
        BLOCKS.cache("b1", "pack"),
        lambda s: s.simdize("b1"),
        "simdize: argument 'index': 'b1' has cache pack, one iteration at a time",
    ),
    "cache: rows without bound": (
        START.tile("batch", "b0", "b1", parts=4),
        lambda s: s.cache("b0"),
        "cache: argument 'index': 'b0' holds 'b1' of n iterations; tile it first",
    ),
    "cache: between loops that are to be fused": (
        BLOCKS.tile("tree", "t0", "t1", 20).parallel("b0").parallel("t0"),
        lambda s: s.cache("b0"),
        "cache: argument 'index': 'b0' has cache auto and holds parallel 't0'; cache another loop",
    ),
    "cache: rows that reorder would make endless": (
        START.tile("batch", "b0", "b1", 64).cache("b1", "pack"),
        lambda s: s.reorder("b1", "b0"),
        "reorder: argument 'indices': 'b1' has cache pack but holds 'b0' of n iterations",
    ),
    "represent_as: no name": (
        START,
        lambda s: s.represent_as(3),
        "represent_as: argument 'name': 3 is no name of a layout",
    ),
    "gpu_dimension: unknown": (
        BLOCKS,
        lambda s: s.gpu_dimension("b0", "warp.x"),
        "gpu_dimension: argument 'dimension': 'warp.x' is unknown; use grid.x, grid.y",
    ),
    "gpu_dimension: symbolic block": (
        START,
        lambda s: s.gpu_dimension("batch", "block.x"),
        "gpu_dimension: argument 'index': block extent must be constant, 'batch' has n iterations",
    ),
    "gpu_dimension: used twice on a path": (
        FEW.gpu_dimension("b1", "block.x"),
        lambda s: s.gpu_dimension("t1", "block.x"),
        "gpu_dimension: argument 'dimension': 'block.x' is already used by 'b1' on this path; "
        "choose another one",
    ),
    "gpu_dimension: used by a loop inside": (
        FEW.gpu_dimension("b1", "grid.x"),
        lambda s: s.gpu_dimension("b0", "grid.x"),
        "gpu_dimension: argument 'dimension': 'grid.x' is already used by 'b1' on this path",
    ),
    "gpu_dimension: a grid inside a block": (
        TEAMS.gpu_dimension("b1", "block.x"),
        lambda s: s.gpu_dimension("t1", "grid.y"),
        "gpu_dimension: argument 'index': grid index 't1' lies inside block index 'b1'; reorder",
    ),
    "gpu_dimension: too many threads": (
        GPU,
        lambda s: s.gpu_dimension("t1", "block.y"),
        "gpu_dimension: argument 'index': 64 x 20 = 1280 threads per block, the target allows 1024",
    ),
    "gpu_dimension: parallel": (
        BLOCKS.parallel("b0"),
        lambda s: s.gpu_dimension("b0", "grid.x"),
        "gpu_dimension: argument 'index': 'b0' is already parallel",
    ),
    "gpu_dimension: on a CPU": (
        Schedule(100, target="cpu"),
        lambda s: s.gpu_dimension("batch", "grid.x"),
        "gpu_dimension: argument 'index': 'batch' cannot be mapped on a CPU; use parallel",
    ),
    "parallel: on a GPU": (
        Schedule(100, target="gpu"),
        lambda s: s.parallel("batch"),
        "parallel: argument 'index': 'batch' cannot use CPU threads on a GPU; use gpu_dimension",
    ),
    "shared_reduce: on a CPU": (
        Schedule(100, target="cpu").parallel("tree"),
        lambda s: s.shared_reduce("tree"),
        "shared_reduce: argument 'index': 'tree' is not mapped to a block dimension",
    ),
    "shared_reduce: rows": (
        GPU,
        lambda s: s.shared_reduce("b1"),
        "shared_reduce: argument 'index': 'b1' runs over rows, nothing conflicts",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_fault_shows_the_nest_and_changes_nothing(name: str) -> None:
    sch, call, message = REFUSALS[name]
    before = str(sch)
    with pytest.raises(ScheduleError) as caught:
        call(sch)
    first, *nest = str(caught.value).splitlines()
    assert first.startswith(message)
    assert "\n".join(nest).replace("   <----", "") == before == str(sch)


def test_marks_are_printed_and_survive_json() -> None:
    sch = GPU.cache("b0", "shared").represent_as("sparse")
    small = sch.tile("t0", "u0", "u1", 2)
    assert str(small).splitlines()[:3] == [
        "represent as sparse",
        "for b0 in (0, n, 64)                     # batch; grid.x; cache shared",
        "  for b1 in (0, 64, 1)                   # batch; guard b0 + b1 < n; block.x",
    ]
    assert Schedule.from_json(small.to_json()) == small != sch


def test_a_schedule_for_a_gpu_is_refused_by_build_and_shown_by_lower() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)] * 4)
    sch = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 8).gpu_dimension("b0", "grid.x")
    with pytest.raises(ScheduleError, match="'b0' is for a GPU"):
        tvm_forest.build(forest, schedule=sch)
    assert '"tvm_forest.name": "b0"' in tvm_forest.lower(forest, sch).after.script()


def test_an_unknown_layout_is_refused_when_it_is_written() -> None:
    with pytest.raises(ScheduleError, match=r"no layout 'origami' \(have: array, .*sparse"):
        Schedule(1).represent_as("origami")


def test_a_layout_that_only_another_process_knows_is_refused_by_build() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)])
    text = tvm_forest.new_schedule(forest).represent_as("sparse").to_json()
    sch = Schedule.from_json(text.replace("sparse", "origami"))
    with pytest.raises(ScheduleError, match="no layout 'origami'"):
        tvm_forest.build(forest, schedule=sch)


@pytest.mark.parametrize("how", ["prefetch", "stream"])
@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {"sparse_peeled"}))
@pytest.mark.cases(6)
def test_trees_of_every_layout_may_be_asked_for_ahead(layout: str, how: str) -> None:
    forest = drawn_forest(19, 4)
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("tree", "t0", "t1", 8)
    walks, rows = LAYOUTS[layout].walks, 64
    if walks in ("octets", "pieces"):
        sch = sch.cache("t0", how).simdize("t1", walks)
    else:
        sch = sch.tile("batch", "b0", "b1", rows).reorder("b0", "t0", "t1", "b1")
        sch = sch.cache("t0", how).cache("t1", how)
        sch = sch if walks == "hops" else sch.simdize("b1", walks)
    sch = sch.pad_trees("forest") if layout == "banked" else sch
    found = tvm_forest.build(forest, schedule=sch).predict_margin(hard_rows(forest, 70))
    assert np.array_equal(found, forest.predict_reference(hard_rows(forest, 70))[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["array", "sparse"])
@pytest.mark.parametrize(
    "words",
    [
        [("b0", "pack")],
        [("b0", "prefetch")],
        [("tree", "prefetch")],
        [("b0", "auto"), ("tree", "auto")],
    ],
    ids=str,
)
def test_caches_keep_every_bit(layout: str, words: list[tuple[str, str]]) -> None:
    tree = Split(0, 0.5, Split(1, -1.0, 1.0, Split(2, 3.0, 2.0, 3.0, True)), 4.0)
    forest = forest_of([tree, 0.25, tree, Split(1, 0.0, -1.0, 1.0)])
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("batch", "b0", "b1", 8)
    sch = sch.reorder("b0", "tree", "b1").interleave("b1", 4).parallel("b0")
    for index, how in words:
        sch = sch.cache(index, how)
    predictor = tvm_forest.build(forest, schedule=sch)
    for n in (1, 7, 8, 9, 33):
        rows = hard_rows(forest, n, n)
        for n_jobs in (1, 2):
            margin = predictor.predict_margin(rows, n_jobs=n_jobs)
            assert np.array_equal(margin, forest.predict_reference(rows)[:, 0])


@pytest.mark.parametrize("layout", ["array", "packed", "ranked", "reorg", "sparse"])
def test_streamed_trees_give_margins_and_numbers_of_leaves(layout: str) -> None:
    forest = forest_of([full_tree(3), 0.1, full_tree(2)], n_features=7, dtype="float64")
    forest = replace(forest, row_dtype="float32")  # packed nodes hold no leaves of float64
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("batch", "b0", "b1", 8)
    sch = sch.reorder("b0", "tree", "b1").cache("tree", "stream")
    predictor = tvm_forest.build(forest, schedule=sch)
    rows = hard_rows(forest, 33)
    margins = forest.predict_reference(rows)[:, 0]
    assert np.array_equal(predictor.predict_margin(rows), margins)
    assert np.array_equal(predictor.apply(rows), forest.predict_reference(rows, "apply"))


def full_tree(depth: int, first: int = 0) -> Any:
    """A tree that asks every node about a feature of its own."""
    if depth == 0:
        return 1.0
    half = 2 ** (depth - 1)
    return Split(first, 0.5, full_tree(depth - 1, first + 1), full_tree(depth - 1, first + half))


def default_layout(*trees: Any) -> str:
    return tvm_forest.hop_schedule(forest_of(trees, n_features=1000)).layout


def test_the_default_layout_is_not_padded_where_padding_would_explode() -> None:
    chain = full_tree(8)
    for threshold in range(25):
        chain = Split(0, threshold, chain, 1.0)
    assert not {default_layout(chain), default_layout(0.5, chain.left)} & {"array", "reorg"}


@pytest.mark.long
def test_a_default_layout_holds_what_it_is_chosen_for() -> None:
    for bits in (10, 14, 18):
        many = [Split(f % 1000, float(f), 1.0, 2.0, f % 3 == 0) for f in range(2**bits // 64)]
        forest = forest_of(many, n_features=1000)
        rows = hard_rows(forest, 20)
        margin = tvm_forest.build(forest).predict_margin(rows)
        assert np.array_equal(margin, forest.predict_reference(rows)[:, 0])


WALKS: dict[str, Callable[[Schedule], Schedule]] = {
    "plain": lambda s: s,
    "trees together": lambda s: s.interleave("t1", 4),
    "rows together": lambda s: (
        s.tile("b1", "b2", "b3", 4).reorder("b2", "t0", "t1", "b3").interleave("b3", 4)
    ),
    "written out": lambda s: s.unroll_walk("t1"),
    "peeled": lambda s: s.peel_walk("t1", 2),
    "unrolled": lambda s: s.unroll("t1"),
}


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("layout", ["array", "sparse", "packed", "ranked", "reorg", "tiled"])
@pytest.mark.cases(6)
def test_trees_that_a_gpu_is_to_cache_are_copied_or_refused(layout: str, walk: str) -> None:
    forest = drawn_forest(13, 3, seed=3)
    start = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 32)
    if layout == "tiled":
        start, layout = start.tile_nodes(4), "sparse"
    sch = start.represent_as(layout).tile("tree", "t0", "t1", 4).reorder("b0", "b1", "t0", "t1")
    sch = WALKS[walk](sch.gpu_dimension("b0", "grid.x")).cache("t0")
    sch = sch.gpu_dimension("b2" if walk == "rows together" else "b1", "block.x")
    if layout == "reorg" or sch.rewrites:
        with pytest.raises(ScheduleError, match="cache: .* cannot be copied into shared memory"):
            tvm_forest.lower(forest, sch, "simt")
        return
    text = lower_sums(forest, sch, "simt").after["predict"].script()
    assert "near_nodes = T.alloc_shared" in text
