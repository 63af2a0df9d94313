"""The spaces and how they are walked through, with planted times; nothing is compiled."""

from __future__ import annotations

import errno
import functools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from scheduled_models import MODELS, forest_named
from tvm_forest.predictor import kept_choices
from tvm_forest.predictor.kept_choices import keep_or_choose
from tvm_forest.schedule_prims import DIRECTIVES, Schedule, recipes
from tvm_forest.search import heuristic, silvanforge, strategies, workload
from tvm_forest.search.cost import Surrogate, estimate
from tvm_forest.search.heuristic import find_spaces
from tvm_forest.search.silvanforge import GpuPoint, GpuProblem
from tvm_forest.search.space import BLOCKS, SMALL_BLOCK_BATCH, Point, Space
from tvm_forest.search.strategies import (
    STRATEGIES,
    StopSearch,
    neighbours,
    search_guided,
    select_fastest,
)
from tvm_forest.search.workload import Workload
from tvm_forest.system import archive
from tvm_forest.system.code_cache import CodeCache
from tvm_forest.target import Target

MODEL = drawn_forest(20, 5)
MANY_TREES = drawn_forest(300, 5)
CHAIN: Any = functools.reduce(lambda tree, i: Split(0, float(i), 1.0, tree), range(24), 0.0)
WIDE = drawn_forest(6, 3, n_features=300)
DEEP = forest_of([CHAIN] * 5)
CLASSES = drawn_forest(20, 4, base=(0.0, 0.5))
TWO = Target(cores=2, abilities=frozenset({"avx2", "avx512f"}))
VBMI = Target(abilities=frozenset({"avx512vbmi"}), cores=1)
OLD = Target(abilities=frozenset(), cores=1)


def space(batch: int = 256, forest: Any = MODEL, n_jobs: int | None = None) -> Space:
    return space_of(forest, TWO, batch, n_jobs)


def space_of(forest: Any, target: Target, batch: int, n_jobs: int | None = None) -> Space:
    return find_spaces(forest, target, [batch], n_jobs)[batch]


Times = Callable[[Any], float]


def watched(times: Times, most: int = 10**6) -> tuple[Times, list[Any]]:
    """Return a measure with planted times that stops after so many, and what it is asked for."""
    asked: list[Any] = []

    def measure(point: Any) -> float:
        if len(asked) == most:
            raise StopSearch
        asked.append(point)
        return times(point)

    return measure, asked


def walk(strategy: str, where: Space, times: Times, most: int = 10**6, seed: int = 0) -> list[Any]:
    """Return the schedules that a strategy asks for, in order."""
    measure, asked = watched(times, most)
    try:
        STRATEGIES[strategy](where, measure, random.Random(seed))
    except StopSearch:
        assert len(asked) == most
    return asked


# -- models that are trained again ----------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeCache:
    """An empty cache, in a process that knows of no model before."""
    monkeypatch.setattr(kept_choices, "_known", {})
    return CodeCache(tmp_path)


def test_a_model_keeps_the_schedules_of_one_that_is_like_it(
    cache: CodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workload.of(MODEL, VBMI)
    first = keep_or_choose(work, cache)
    assert first == heuristic.default_schedules(MODEL, VBMI)
    moved = replace(MODEL, threshold=MODEL.threshold * 2, leaf_value=MODEL.leaf_value + 1)
    others = (MANY_TREES, CLASSES, drawn_forest(20, 6), drawn_forest(20, 5, n_features=5))
    for known in (kept_choices._known, {}):  # the second is another process
        with monkeypatch.context() as patched:
            patched.setattr(kept_choices, "_known", known)
            patched.setattr(heuristic, "price_spaces", None)
            assert keep_or_choose(Workload.of(moved, VBMI), cache) == first
    for forest, target in [*((x, VBMI) for x in others), (MODEL, OLD)]:
        chosen = heuristic.default_schedules(forest, target)
        assert keep_or_choose(Workload.of(forest, target), cache) == chosen


@pytest.mark.parametrize(("more", "kept"), [(1.09, 1), (1.12, 2)])
def test_models_whose_sizes_are_a_tenth_apart_or_more_are_not_alike(
    more: float, kept: int, cache: CodeCache
) -> None:
    works = [Workload.of(MODEL, VBMI) for _ in range(2)]
    vars(works[1])["hops"] = round(more * works[0].hops)
    for work in works:
        keep_or_choose(work, cache)
    (known,) = kept_choices._known.values()
    assert len(known) == kept


def test_schedules_are_chosen_where_a_directive_refuses_those_of_a_model_before(
    cache: CodeCache,
) -> None:
    first = keep_or_choose(Workload.of(MODEL, VBMI), cache)
    (known,) = kept_choices._known.values()
    refused = known[0].points[1][0]._replace(layout="of nobody")
    known[0].points[1] = (refused, False)
    assert space_of(MODEL, VBMI, 1).schedule(refused) is None
    assert keep_or_choose(Workload.of(MODEL, VBMI), cache) == first


@pytest.mark.filterwarnings("error")
def test_choices_that_cannot_be_kept_are_no_reason_to_warn(
    cache: CodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*file: Any, **how: Any) -> None:
        raise OSError(errno.EROFS, "only read")

    monkeypatch.setattr(archive, "replace_file", refuse)
    chosen = keep_or_choose(Workload.of(MODEL, VBMI), cache)
    assert chosen == heuristic.default_schedules(MODEL, VBMI) and not list(cache.folder.iterdir())


# -- the space of CPUs ----------------------------------------------------------------------------


@pytest.mark.parametrize("forest", [MODEL, CLASSES], ids=["one class", "two classes"])
@pytest.mark.parametrize(("batch", "least", "most"), [(1, 60, 150), (33, 120, 250)])
def test_every_point_is_a_schedule_that_keeps_the_order(
    batch: int, least: int, most: int, forest: Any
) -> None:
    found = space(batch, forest).points()
    assert all(sch.keeps_order and sch.problem() is None for sch in found.values())
    assert least < len(found) == len(set(found.values())) < most


@pytest.mark.parametrize("name", MODELS)
def test_threads_can_share_every_batch_of_64_rows_and_more(name: str) -> None:
    schedules = heuristic.default_schedules(forest_named(name), TWO)
    for least, sch in schedules.items():
        serves_more = least >= 64 or least == max(x for x in schedules if x <= 64)
        assert not serves_more or any(loop.parallel for loop in sch.loops()), (least, sch)


@pytest.mark.parametrize("forest", [MODEL, CLASSES, DEEP], ids=["one class", "two", "deep"])
@pytest.mark.parametrize("target", [TWO, VBMI, OLD], ids=["two cores", "permutes", "old"])
@pytest.mark.cases(5, others="long")
def test_the_default_schedule_is_a_point(target: Target, forest: Any) -> None:
    for smallest, sch in heuristic.default_schedules(forest, target).items():
        where = space_of(forest, target, max(smallest, sch.sliced))  # for a full block
        assert sch in where.points().values() or sch.on_one_thread() in where.points().values()


def test_a_point_has_the_schedule_that_the_space_lists() -> None:
    where = space(64)
    listed = where.points()
    assert all(where.schedule(point) == listed[point] for point in list(listed)[::17])


def test_the_space_holds_what_the_directives_declare() -> None:
    layouts = {x["name"] for x in DIRECTIVES["represent_as"].choices(space().start)}
    one, many = list(space(1).points()), list(space(SMALL_BLOCK_BATCH - 1).points())
    assert {p.layout for p in one} == {"array"} | layouts
    assert {p.tile for p in one} == {p.tile for p in many} == {1, 4, 8}
    blocks = {p.block for p in many if p.hops != "loop"}
    assert blocks == {0, *(size for size in BLOCKS if size < SMALL_BLOCK_BATCH)}
    assert {p.hops for p in many} == {"loop", "peel"}
    assert {2, 4, 8, 10, 16} == {p.walks for p in one}
    assert {4, 8, 16, "gather"} <= {p.walks for p in many if p.order == "rows"}


def test_bit_slices_come_in_blocks_of_words_and_nothing_else() -> None:
    sliced = [p for p in space(512).points() if p.layout == "bitsliced"]
    assert {p.block for p in sliced} == {64, 128, 256, 512}
    assert {(p.tile, p.order, p.walks, p.hops) for p in sliced} == {(1, "rows", "bits", "loop")}


def test_permutes_are_for_processors_that_have_them() -> None:
    permuted = [p for p in space_of(MODEL, VBMI, 64).points() if p.layout == "levels"]
    assert {p.block for p in permuted} == {16, 32, 64}
    assert {(p.tile, p.order, p.walks, p.hops) for p in permuted} == {
        (1, "rows", "permute", "loop")
    }
    assert not any(p.layout == "levels" for p in space(64).points())


def test_a_single_row_has_no_blocks_no_slices_and_no_threads() -> None:
    points = list(space(1).points())
    assert {(p.block, p.order, p.parallel) for p in points} == {(0, "trees", "")}
    assert not {"bitsliced", "levels"} & {p.layout for p in points}


def test_threads_are_for_large_batches_of_callers_that_allow_them() -> None:
    shared = {n: {p.parallel for p in space(4096, n_jobs=n).points()} for n in (1, None)}
    assert shared == {1: {""}, None: {"rows"}}
    assert {p.parallel for p in space(2).points()} == {""}


def test_large_trees_stay_out_of_layouts_that_cannot_hold_them_and_may_be_fetched_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = space(4096, DEEP)
    points = list(where.points())
    assert not {"array", "reorg"} & {p.layout for p in points}
    assert not any(p.cache for p in points)
    monkeypatch.setattr(workload, "MAX_SMALL_TREE_NODES", 1)
    streams = [p for p in space(4096, DEEP).points() if p.cache == "stream"]
    assert {(p.layout, p.order) for p in streams} == {("packed", "rows"), ("ranked", "rows")}


def test_wide_rows_may_be_copied_before_walks_hop_by_hop() -> None:
    packed = [p for p in space(8, WIDE).points() if p.cache == "pack"]
    assert {(p.block, p.order) for p in packed} == {(0, "trees")}
    hopping = {p.layout for p in space(8, WIDE).points() if type(p.walks) is int}
    assert {p.layout for p in packed} == hopping - {"ranked"}
    assert not any(p.cache for p in space(8).points())


# -- what a search learns -------------------------------------------------------------------------


def test_what_is_measured_corrects_points_that_are_alike() -> None:
    points = [Point(1, "packed", 64, "rows", 8, x) for x in ("loop", "peel")]
    points.append(Point(8, "sparse", 0, "trees", 10))
    surrogate = Surrogate(points, np.zeros(3))
    before = surrogate.predict()[1]
    surrogate.learn(0, math.e)
    expected, spread = surrogate.predict()
    assert expected[0] > 0.99
    assert expected[0] > expected[1] > expected[2] > 0.5
    assert spread[0] < 0.05 < spread[1] < spread[2] < before[2]


def test_prices_that_are_far_off_are_trusted_less() -> None:
    points = [Point(1, "packed", x, "rows", 8) for x in (64, 256, 16)]
    spreads = []
    for second in (0.1, -1.5):
        surrogate = Surrogate(points, np.zeros(3))
        surrogate.learn(0, math.exp(0.1))
        surrogate.learn(1, math.exp(second))
        spreads.append(surrogate.predict()[1][2])
    assert spreads[1] > 3 * spreads[0]


# -- strategies -----------------------------------------------------------------------------------


def planted(where: Space, seed: int) -> dict[Schedule, float]:
    """Times that are foreseen but for an error of each layout and of each point."""
    rng, points = np.random.default_rng(seed), list(where.points())
    layouts = sorted({p.layout for p in points})
    off = dict(zip(layouts, rng.normal(scale=0.15, size=len(layouts)), strict=True))
    error = np.array([off[p.layout] for p in points]) + rng.normal(scale=0.02, size=len(points))
    hop = np.exp(estimate(points, where.facts, where.batch) + error)
    return dict(zip(where.points().values(), hop.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch", [1, 64, 4096])
@pytest.mark.cases(4)
def test_the_guided_search_comes_near_a_planted_optimum_in_few_trials(
    batch: int, seed: int
) -> None:
    where = space_of(MANY_TREES, VBMI, batch)
    times = planted(where, seed)
    hop = 1e-9 * where.hops
    asked = walk("heuristic", where, lambda sch: times[sch] * hop)
    assert asked[0] == where.default
    assert len(asked) == len(set(asked)) <= max(2, len(times) // 20)
    assert min(map(times.__getitem__, asked)) <= 1.06 * min(times.values())


def test_the_guided_search_goes_on_where_nothing_can_be_built() -> None:
    asked = walk("heuristic", space(), lambda sch: math.inf)
    assert len(set(asked)) == len(space().points()) // 20


def test_the_guided_search_ends_with_a_small_space(monkeypatch: pytest.MonkeyPatch) -> None:
    where = space(1)
    few = dict(list(where.points().items())[:3])
    small = replace(where, default=list(few.values())[1])
    monkeypatch.setattr(Space, "points", lambda self: few)
    monkeypatch.setattr(strategies, "LEAST_TRIALS", 9)
    asked = walk("heuristic", small, lambda sch: 1.0)
    assert len(asked) == 3
    assert set(asked) == set(few.values())


def test_exhaustive_visits_every_point_and_the_default_first() -> None:
    where = space(1)
    asked = walk("exhaustive", where, lambda sch: 1.0)
    assert asked[0] == where.default
    assert set(asked) == set(where.points().values())


@pytest.mark.parametrize("strategy", ["exhaustive", "beam"])
def test_a_seed_decides_the_order(strategy: str) -> None:
    first, again, other = (
        walk(strategy, space(1), lambda sch: len(str(sch)), 30, seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_the_beam_takes_one_directive_at_a_time_to_a_planted_optimum() -> None:
    def seconds(sch: Schedule) -> float:
        words = [step.do for step in sch.steps]
        return 9.0 - len({"unroll", "cache", "unroll_walk"}.intersection(words)) + len(words) / 99

    where = replace(space(), default=space().start.tile("batch", "b0", "b1", 4))
    asked = walk("beam", where, seconds, seed=1)
    best = min(asked, key=seconds)
    assert asked[:2] == [where.default, where.start]
    assert {"unroll", "cache", "unroll_walk"} <= {step.do for step in best.steps}
    assert {len(sch.steps) - len(where.start.steps) for sch in asked} >= {1, 2}


def test_neighbours_keep_the_order_and_are_for_cpus() -> None:
    found = list(neighbours(space().default))
    assert len(found) > 15
    assert all(sch.keeps_order and "gpu" not in str(sch) for sch in found)


def test_a_strategy_ends_where_measure_says_stop() -> None:
    assert len(walk("heuristic", space(), lambda sch: 1.0, 5)) == 5


def test_the_fastest_are_those_with_a_time_or_else_the_first() -> None:
    times = {"a": math.inf, "b": 2.0, "c": 1.0, "d": 2.0}
    assert select_fastest(list(times), times.__getitem__, 3) == ["c", "b", "d"]
    assert select_fastest(["x", "y"], lambda _: math.inf, 2) == ["x"]


def test_guided_is_the_heuristic() -> None:
    assert STRATEGIES["heuristic"] is search_guided


# -- the space of the paper, and its algorithm ----------------------------------------------------

SMALL, LARGE = GpuProblem(512, 28, 100), GpuProblem(4096, 28, 100)


def test_the_paper_has_5184_points_of_which_3888_have_sound_blocks() -> None:
    points = list(silvanforge.paper_points())
    threads = [p.rows_tb // p.rows_thread * p.tree_threads for p in points]
    assert len(set(points)) == 5184
    assert sum(32 <= count <= 1024 for count in threads) == 3888


@pytest.mark.parametrize(
    "problem", [SMALL, LARGE, GpuProblem(4096, 129, 100), GpuProblem(2047, 1, 9)]
)
def test_algorithm_1_visits_exactly_its_39_points(problem: GpuProblem) -> None:
    measure, asked = watched(lambda p: p.factor + p.rows_tb)
    strategies.run_algorithm_1(silvanforge.first_phase(problem), measure, lambda p: True)
    few = problem.batch < 2048 or problem.features > 128
    first, last = asked[:36], asked[36:]
    assert {p.rows_tb for p in first} == ({8, 32} if few else {32, 64})
    assert {p.tree_threads for p in first} == ({20, 50} if few else {2, 10})
    assert {p.layout for p in first} == {"array", "sparse", "reorg"}
    assert len(set(first)) == 36
    assert {p[1:2] + p[3:5] for p in first} == {(1, True, False)}
    assert all(p.unroll == (p.factor != 1) and not p.shared for p in first)
    best = sorted(first, key=lambda p: p.factor + p.rows_tb)[:3]
    assert last == [p._replace(shared=True) for p in best]


def test_algorithm_1_finds_the_planted_optimum_of_either_phase() -> None:
    wish = silvanforge.first_phase(LARGE)[17]
    for found in (wish, wish._replace(shared=True)):
        times = {wish: 2.0, found: 1.0}
        first, times_of = silvanforge.first_phase(LARGE), lambda p, times=times: times.get(p, 3.0)
        assert strategies.run_algorithm_1(first, times_of, lambda p: True) == found


def test_blocks_of_1600_threads_are_filtered_so_27_points_run() -> None:
    first, find = silvanforge.first_phase(SMALL), silvanforge.find_obstacle
    allowed = [p for p in first if find(p, SMALL) is None]
    assert len(allowed) == 27
    measure, asked = watched(lambda p: 1.0)
    strategies.run_algorithm_1(first, measure, lambda p: find(p, SMALL) is None)
    assert asked[:27] == allowed
    assert len(asked) == 30
    assert strategies.run_algorithm_1(first, measure, lambda p: False) is None


PLAIN = GpuPoint(32, 1, 10, True, False, False, 1, False, "array")


@pytest.mark.parametrize(
    ("change", "problem", "reason"),
    [
        ({}, LARGE, None),
        ({"tree_threads": 50}, LARGE, "1600 threads of a block, allowed are 32 to 1024"),
        ({"rows_tb": 8, "tree_threads": 2}, LARGE, "16 threads of a block"),
        ({"rows_tb": 6, "rows_thread": 4}, LARGE, "6 rows of a block are not dealt out 4"),
        ({}, GpuProblem(4096, 28, 9), "10 threads share 9 trees"),
        ({"rows_tb": 8}, GpuProblem(64, 1536, 100), "49184 bytes of shared memory, must be below"),
        ({"rows_tb": 8}, GpuProblem(64, 1535, 100), None),
        ({"shared": True}, GpuProblem(64, 370, 100, 2), "50048 bytes of shared memory"),
        ({"cache_trees": True}, GpuProblem(64, 1, 100, tree_bytes=5000), "50128 bytes"),
        ({"cache_trees": True, "factor": 2}, LARGE, "trees are cached one after the other"),
        ({"cache_trees": True, "layout": "reorg"}, LARGE, "layout 'reorg' cannot be cached"),
        ({}, GpuProblem(2**37, 28, 100), "4294967296 blocks, a grid holds 2147483647"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_built(
    change: dict[str, Any], problem: GpuProblem, reason: str | None
) -> None:
    said = silvanforge.find_obstacle(PLAIN._replace(**change), problem)
    assert said is None if reason is None else said is not None and reason in said


def test_a_point_is_the_arguments_of_the_template() -> None:
    forest = full_forest(20, 3)
    points = random.Random(0).sample(list(silvanforge.paper_points()), 200)
    fit = [p for p in points if silvanforge.find_obstacle(p, GpuProblem(512, 3, 20)) is None]
    start = tvm_forest.new_schedule(forest)
    assert len({recipes.gpu_template(start, **p._asdict()) for p in fit}) == len(fit) > 20
