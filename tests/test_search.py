"""The spaces and how they are walked through, with planted times; nothing is compiled."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

import tvm_forest
from forests import drawn_forest, full_forest
from tvm_forest.errors import ScheduleError
from tvm_forest.schedule_prims import DIRECTIVES, Schedule, recipes
from tvm_forest.search import gpu
from tvm_forest.search.gpu import GpuPoint, Problem
from tvm_forest.search.space import Point, Space, wish_of
from tvm_forest.search.strategies import STRATEGIES, StopSearch, fastest, moves, staged
from tvm_forest.target import Target

MODEL = drawn_forest(20, 5)
CLASSES = drawn_forest(20, 4, base=(0.0, 0.5))
TWO = Target(cores=2, abilities=frozenset({"avx2", "avx512f"}))
VBMI = Target(abilities=frozenset({"avx512vbmi"}), cores=1)


def space(batch: int = 256, forest: Any = MODEL, n_jobs: int | None = None) -> Space:
    return Space.of(forest, TWO, batch, n_jobs)


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


def distance(wish: Point) -> Callable[[Schedule], float]:
    """Times that grow with every parameter that is not as wished, the layout above all."""

    def seconds(sch: Schedule) -> float:
        here = {**Point()._asdict(), **wish_of(sch)}
        words = [step.do for step in sch.steps]
        here["hops"] = "depth" if "unroll_walk" in words else here["hops"]
        wrong = [name for name, value in wish._asdict().items() if here[name] != value]
        return 1 + len(wrong) + 10 * ("layout" in wrong)

    return seconds


# -- the space of CPUs ----------------------------------------------------------------------------


@pytest.mark.parametrize("forest", [MODEL, CLASSES], ids=["one class", "two classes"])
@pytest.mark.parametrize("batch", [1, 33])
def test_every_point_is_a_schedule_that_keeps_the_order(batch: int, forest: Any) -> None:
    where = space(batch, forest)
    points = list(where.points())
    some = random.Random(0).sample(points, 60)
    schedules = [where.schedule(point) for point in some]
    assert all(sch.keeps_order and sch.problem() is None for sch in schedules)
    assert len(set(points)) == len(points) > 300
    assert len(set(schedules)) == len(some)


@pytest.mark.parametrize("forest", [MODEL, CLASSES], ids=["one class", "two classes"])
@pytest.mark.parametrize("batch", [1, 8, 64, 4096])
def test_the_default_schedule_is_a_point(batch: int, forest: Any) -> None:
    where = space(batch, forest)
    assert where.schedule(where.nearest(wish_of(where.default))) == where.default


def test_a_default_by_permutes_is_a_point_though_its_block_is_larger() -> None:
    where = Space.of(MODEL, VBMI, 8)
    assert where.nearest(wish_of(where.default)).walks == "permute"
    assert where.schedule(where.nearest(wish_of(where.default))) == where.default


def test_the_space_holds_what_the_directives_declare() -> None:
    points = list(space(32).points())
    sizes = {x["size"] for x in DIRECTIVES["tile"].choices(space().start) if x["index"] == "batch"}
    layouts = {x["name"] for x in DIRECTIVES["represent_as"].choices(space().start)}
    assert {p.block for p in points} == {0} | {size for size in sizes if size < 64}
    assert {p.layout for p in points} == {"array", "levels"} | layouts
    assert {p.tile for p in points} == {1, 2, 4, 8}
    assert {p.hops for p in points} == {"loop", "depth", "peel 1", "peel 2"}


def test_bit_slices_come_in_blocks_of_words_and_nothing_else() -> None:
    sliced = [p for p in space(512).points() if p.layout == "bitsliced"]
    assert {p.block for p in sliced} == {64, 128, 256, 512}
    assert {(p.tile, p.order, p.walks, p.hops) for p in sliced} == {(1, "rows", "bits", "loop")}


def test_permutes_come_in_groups_of_rows_and_nothing_else() -> None:
    permuted = [p for p in space(64).points() if p.layout == "levels"]
    assert {p.block for p in permuted} == {16, 32, 64}
    assert {(p.tile, p.order, p.walks, p.hops) for p in permuted} == {
        (1, "rows", "permute", "loop")
    }


def test_a_single_row_has_no_blocks_no_slices_and_no_threads() -> None:
    points = list(space(1).points())
    assert {(p.block, p.parallel) for p in points} == {(0, False)}
    assert not {"bitsliced", "levels"} & {p.layout for p in points}


def test_one_thread_leaves_parallel_out() -> None:
    assert not any(p.parallel for p in space(16, n_jobs=1).points())


def test_a_value_that_is_no_option_is_refused_by_name() -> None:
    with pytest.raises(ScheduleError, match="parameter 'block': 3 is no option .have: 0, 4, 8"):
        space().schedule(Point(block=3))


def test_a_variation_keeps_the_layout_unless_it_is_varied() -> None:
    sliced = space().nearest({"layout": "bitsliced"})
    assert space().varied(sliced, ("tile",), {}) == [sliced]
    assert {p.layout for p in space().varied(sliced, ("layout",), {})} > {"array", "ranked"}


# -- strategies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "wish"),
    [
        (1, Point(8, "array", 0, "trees", 4, "depth")),
        (64, Point(1, "packed", 16, "rows", 4, "loop", True)),
        (4096, Point(4, "sparse", 256, "rows", 2, "depth", True)),
        (4096, Point(1, "bitsliced", 512, "rows", "bits", "loop", True)),
    ],
)
def test_the_staged_search_finds_a_planted_optimum_in_few_trials(batch: int, wish: Point) -> None:
    where, times = space(batch), distance(wish)
    asked = walk("heuristic", where, times)
    assert min(asked, key=times) == where.schedule(wish)
    assert asked[0] == where.default
    assert 12 <= len(set(asked)) <= 28


def test_the_staged_search_goes_on_where_nothing_can_be_built() -> None:
    asked = walk("heuristic", space(), lambda sch: math.inf)
    assert len(set(asked)) > 10


def test_exhaustive_visits_every_point_and_the_default_first() -> None:
    where = space(1)
    asked = walk("exhaustive", where, lambda sch: 1.0)
    assert asked[0] == where.default
    assert set(asked) == {where.schedule(p) for p in where.points()}


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

    where = space()
    asked = walk("beam", where, seconds)
    best = min(asked, key=seconds)
    assert asked[:2] == [where.default, where.start]
    assert seconds(best) < seconds(where.default) - 1
    assert {len(sch.steps) - len(where.start.steps) for sch in asked} >= {1, 2}


def test_moves_keep_the_order_and_are_for_cpus() -> None:
    found = list(moves(space().default))
    assert len(found) > 15
    assert all(sch.keeps_order and "gpu" not in str(sch) for sch in found)


def test_a_strategy_ends_where_measure_says_stop() -> None:
    assert len(walk("heuristic", space(), lambda sch: 1.0, 5)) == 5


def test_the_fastest_are_those_with_a_time_or_else_the_first() -> None:
    times = {"a": math.inf, "b": 2.0, "c": 1.0, "d": 2.0}
    assert fastest(list(times), times.__getitem__, 3) == ["c", "b", "d"]
    assert fastest(["x", "y"], lambda _: math.inf, 2) == ["x"]


def test_staged_is_the_heuristic() -> None:
    assert STRATEGIES["heuristic"] is staged


# -- the space of the paper, and its algorithm ----------------------------------------------------

SMALL, LARGE = Problem(512, 28, 100), Problem(4096, 28, 100)


def test_the_paper_has_5184_points_of_which_3888_have_sound_blocks() -> None:
    points = list(gpu.all_points())
    threads = [p.rows_tb // p.rows_thread * p.tree_threads for p in points]
    assert len(set(points)) == 5184
    assert sum(32 <= count <= 1024 for count in threads) == 3888


@pytest.mark.parametrize("problem", [SMALL, LARGE, Problem(4096, 129, 100), Problem(2047, 1, 9)])
def test_algorithm_1_visits_exactly_its_39_points(problem: Problem) -> None:
    measure, asked = watched(lambda p: p.factor + p.rows_tb)
    gpu.algorithm_1(problem, measure)
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
    wish = gpu.first_points(LARGE)[17]
    for found in (wish, wish._replace(shared=True)):
        times = {wish: 2.0, found: 1.0}
        assert gpu.algorithm_1(LARGE, lambda p, times=times: times.get(p, 3.0)) == found


def test_blocks_of_1600_threads_are_filtered_so_27_points_run() -> None:
    allowed = [p for p in gpu.first_points(SMALL) if gpu.refusal(p, SMALL) is None]
    assert len(allowed) == 27
    measure, asked = watched(lambda p: 1.0)
    gpu.algorithm_1(SMALL, measure, lambda p: gpu.refusal(p, SMALL) is None)
    assert asked[:27] == allowed
    assert len(asked) == 30
    assert gpu.algorithm_1(SMALL, measure, lambda p: False) is None


PLAIN = GpuPoint(32, 1, 10, True, False, False, 1, False, "array")


@pytest.mark.parametrize(
    ("change", "problem", "reason"),
    [
        ({}, LARGE, None),
        ({"tree_threads": 50}, LARGE, "1600 threads of a block, allowed are 32 to 1024"),
        ({"rows_tb": 8, "tree_threads": 2}, LARGE, "16 threads of a block"),
        ({"rows_tb": 6, "rows_thread": 4}, LARGE, "6 rows of a block are not dealt out 4"),
        ({}, Problem(4096, 28, 9), "10 threads share 9 trees"),
        ({"rows_tb": 8}, Problem(64, 1536, 100), "49184 bytes of shared memory, must be below"),
        ({"rows_tb": 8}, Problem(64, 1535, 100), None),
        ({"shared": True}, Problem(64, 370, 100, 2), "50048 bytes of shared memory"),
        ({"cache_trees": True}, Problem(64, 1, 100, tree_bytes=5000), "50128 bytes"),
        ({"cache_trees": True, "factor": 2}, LARGE, "cached trees are not tested"),
        ({}, Problem(2**37, 28, 100), "4294967296 blocks, a grid holds 2147483647"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_built(
    change: dict[str, Any], problem: Problem, reason: str | None
) -> None:
    said = gpu.refusal(PLAIN._replace(**change), problem)
    assert said is None if reason is None else said is not None and reason in said


def test_a_point_is_the_arguments_of_the_template() -> None:
    forest = full_forest(20, 3)
    points = random.Random(0).sample(list(gpu.all_points()), 200)
    fit = [p for p in points if gpu.refusal(p, Problem(512, 3, 20)) is None]
    start = tvm_forest.new_schedule(forest)
    assert len({recipes.gpu_template(start, **p._asdict()) for p in fit}) == len(fit) > 20
