"""The space of GPUs, how it is walked through with planted times, and searches of tiny models."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import planted
import tvm_forest
from emulated_cuda import emulated, libcuda, settings
from forests import drawn_forest
from quick_builds import lower_sums
from schedules import rounding_bound
from tvm_forest import api
from tvm_forest.cli import main
from tvm_forest.errors import BuildError, DeviceError, InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import BANKED, COPIED
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.batches import select_schedule
from tvm_forest.search import gpu_facts, silvanforge
from tvm_forest.search import measuring as tuning
from tvm_forest.search.gpu_space import GpuSpace
from tvm_forest.search.measuring import measure
from tvm_forest.search.measuring.gpu import GpuTimer, check_near_margins
from tvm_forest.search.records import (
    NAMELESS,
    TrialRecord,
    describe_context,
    load_schedules,
    read_records,
)
from tvm_forest.search.silvanforge import GpuPoint, GpuProblem
from tvm_forest.search.strategies import StopSearch, search_by_algorithm_1, strategies_of
from tvm_forest.target import cpu_name, parse_target
from tvm_forest.targets import backends

MODEL = drawn_forest(100, 4)
CLASSES = drawn_forest(60, 3, base=(0.0, 0.5))
TINY = drawn_forest(12, 3)
MIXED = drawn_forest(60, 8, seed=3)
SIMT = parse_target("simt")


def space(batch: int, exact: bool, forest: Any = MODEL) -> GpuSpace:
    return GpuSpace.of(forest, SIMT, batch, exact)


class Noting(GpuSpace):
    """Knows of which point each schedule was made."""

    made: ClassVar[dict[Schedule, GpuPoint]] = {}

    def schedule(self, point: GpuPoint) -> Schedule:
        sch = super().schedule(point)
        self.made[sch] = point
        return sch


def asked_of(where: GpuSpace, seconds: Any) -> list[Schedule]:
    """Return the schedules that the heuristic asks for, in order."""
    asked: list[Schedule] = []

    def measure(sch: Schedule) -> float:
        asked.append(sch)
        return float(seconds(sch))

    search_by_algorithm_1(where, measure, random.Random(0))
    return asked


# -- the space ------------------------------------------------------------------------------------


@pytest.mark.parametrize("forest", [MODEL, CLASSES], ids=["one class", "two classes"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.cases(2, others="long")
def test_every_point_is_a_schedule_for_gpus(exact: bool, forest: Any) -> None:
    where = space(4096, exact, forest)
    points = list(where.points())
    schedules = [where.schedule(p) for p in random.Random(0).sample(points, 25)]
    assert all(sch.problem() is None for sch in schedules)
    assert all({"grid.x", "block.x"} <= {x.gpu for x in sch.loops()} for sch in schedules)
    assert all(sch.keeps_order for sch in schedules) == exact
    assert len(set(points)) == len(points) > 500
    assert len(set(schedules)) == 25


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.cases(1, others="long")
def test_points_with_near_trees_have_a_copy_of_them(exact: bool) -> None:
    where = space(64, exact, TINY)
    near = {p.layout: p for p in where.points() if p.cache_trees}
    assert set(near) == set(COPIED)
    for point in near.values():
        text = lower_sums(TINY, where.schedule(point), "simt").after["predict"].script()
        assert "near_nodes = T.alloc_shared" in text, point


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.cases(1, others="long")
def test_each_straight_line_has_near_trees_of_its_own(exact: bool) -> None:
    where = space(4096, exact, MIXED)
    points = [p for p in where.points() if p.cache_trees and p.unroll]
    assert where.problem.lines > 2
    for point in sorted(points, key=lambda p: -silvanforge.count_shared_bytes(p, where.problem))[
        :2
    ]:
        lower_sums(MIXED, where.schedule(point), "simt")


def test_a_search_in_any_order_has_the_points_of_the_paper() -> None:
    where = space(4096, exact=False)
    ours = set(where.points())
    paper = {
        p for p in silvanforge.paper_points() if silvanforge.find_obstacle(p, where.problem) is None
    }
    assert paper <= ours
    assert any(p.tree_blocks > 1 and p.shared == "atomic" for p in ours - paper)
    assert any(p.layout == "ranked" and p.shared == "shuffle" for p in ours - paper)


def test_trees_on_threads_are_added_one_by_one_where_the_order_is_kept() -> None:
    points = list(space(64, exact=True).points())
    assert {(p.is_alone, p.shared) for p in points} == {(True, False), (False, "ordered")}
    assert {p.rows_tb // p.rows_thread for p in points if p.is_alone} == {32, 64, 128, 256, 512}
    assert {p.tree_threads for p in points} == {1, 2, 10, 20, 32, 50}
    assert {p.tree_blocks for p in points} == {1, 4, 16}


def test_terms_that_do_not_fit_are_added_chunk_by_chunk() -> None:
    where = space(4096, True, drawn_forest(1000, 2))
    points = [p for p in where.points() if p.tree_chunk]
    assert points
    for point in random.Random(0).sample(points, 5):
        whole = point._replace(tree_chunk=0)
        assert silvanforge.count_shared_bytes(whole, where.problem) >= where.problem.block_bytes
        assert where.schedule(point).keeps_order


def test_classes_have_a_dimension_of_their_own() -> None:
    ways = {p.class_on for p in space(64, True, drawn_forest(8, 3, base=(0.0, 0.5))).points()}
    assert ways == {"", "grid.z", "block.z"}
    assert {p.class_on for p in space(64, True, TINY).points()} == {""}


def test_straight_lines_of_mixed_depths_keep_the_order() -> None:
    forest = drawn_forest(200, 5, seed=3)
    point = GpuPoint(64, 1, 1, True, False, True, 2, False, "packed")
    sch = space(64, True, forest).schedule(point)
    assert sch.keeps_order
    assert {loop.hops for loop in sch.leaves()} == {"depth"}


def test_what_cannot_be_run_is_no_point() -> None:
    where = space(64, exact=False)
    point = GpuPoint(32, 1, 10, True, False, False, 1, False, "array")
    assert where.allows(point)
    for change in (
        {"tree_threads": 1, "shared": True},
        {"tree_threads": 1, "shared": "atomic"},
        {"tree_blocks": 16},
        {"rows_tb": 256},
    ):
        assert not where.allows(point._replace(**change)), change
    cached = point._replace(cache_rows=True)
    taken = silvanforge.count_shared_bytes(cached, where.problem)
    for room, fits in ((taken, False), (taken + 1, True)):
        smaller = replace(where, problem=where.problem._replace(block_bytes=room))
        assert smaller.allows(cached) == fits


def test_rows_that_do_not_fit_stay_where_they_are() -> None:
    forest = drawn_forest(60, 2, n_features=30_000)
    for exact in (True, False):
        first = space(64, exact, forest).first_points()
        assert first
        assert not any(p.cache_rows for p in first)


# -- the estimate ---------------------------------------------------------------------------------

POINT = GpuPoint(32, 1, 10, True, False, False, 1, False, "array")


@pytest.mark.parametrize(
    ("better", "worse", "problem"),
    [
        ({"factor": 4}, {"factor": 1}, GpuProblem(512, 28, 100)),
        ({"tree_threads": 20}, {"tree_threads": 2}, GpuProblem(64, 28, 100)),
        ({"tree_blocks": 4}, {"tree_blocks": 1}, GpuProblem(8, 28, 1000)),
        ({"shared": True}, {"shared": False}, GpuProblem(10**6, 28, 100)),
        ({"cache_rows": True}, {"cache_rows": False}, GpuProblem(10**6, 28, 100)),
        ({}, {"tree_blocks": 16}, GpuProblem(10**6, 28, 100)),
    ],
)
def test_the_estimate_prefers(better: Any, worse: Any, problem: GpuProblem) -> None:
    assert silvanforge.estimate_cycles(
        POINT._replace(**better), problem
    ) < silvanforge.estimate_cycles(POINT._replace(**worse), problem)


@pytest.mark.parametrize("forest", [MODEL, CLASSES], ids=["one class", "two classes"])
@pytest.mark.parametrize("target", ["cuda", {"kind": "cuda", "arch": "sm_86"}], ids=str)
def test_defaults_are_exact_and_fill_a_gpu_at_every_size(target: Any, forest: Any) -> None:
    schedules = tvm_forest.default_schedules(forest, target)
    processors = gpu_facts.facts_of(parse_target(target)).processors
    assert all(sch.keeps_order for sch in schedules.values())
    layouts = {sch.layout for smallest, sch in schedules.items() if smallest < 65_536}
    assert len(layouts) == 1
    for batch in (1, 32, 512, 4096, 65_536, 1_000_000):
        blocks, threads = launched(select_schedule(schedules, batch), batch)
        assert threads <= 1024
        assert blocks >= min(batch, 0.7 * processors)
        assert blocks * threads >= min(batch * 50, processors * 240), batch


SMALL_GPUS = ({"kind": "cuda", "arch": "sm_86"}, {"kind": "rocm", "mcpu": "gfx942"})


@pytest.mark.parametrize("target", [*SMALL_GPUS, {"kind": "cuda", "arch": "sm_90"}], ids=str)
def test_large_batches_walk_ranks_through_trees_in_shared_memory(target: Any) -> None:
    sch = tvm_forest.default_schedules(drawn_forest(100, 6), target)[65_536]
    assert (sch.layout, sch.keeps_order) == (BANKED, True)
    lower_sums(drawn_forest(100, 6), sch, target)  # is refused if it asks for too much


@pytest.mark.parametrize(("features", "rows"), [(6, 512), (120, 256)])
def test_blocks_of_a_million_rows_are_larger_where_their_ranks_fit(
    features: int, rows: int
) -> None:
    forest = drawn_forest(300, 6, n_features=features)
    schedules = tvm_forest.default_schedules(forest, {"kind": "cuda", "arch": "sm_86"})
    sch = select_schedule(schedules, 1_000_000)
    assert (sch.layout, sch.keeps_order) == (BANKED, True)
    assert launched(sch, 1_000_000) == (-(-1_000_000 // rows), rows)
    lower_sums(forest, sch, {"kind": "cuda", "arch": "sm_86"})


def test_few_trees_for_many_columns_walk_rows_as_they_are() -> None:
    forest = drawn_forest(10, 4, seed=2, n_features=6)
    sch = tvm_forest.default_schedules(forest, "cuda")[65_536]
    assert (sch.layout, sch.keeps_order) == ("array", True)
    by_rank = tvm_forest.default_schedules(drawn_forest(10, 4, seed=2), "cuda")[65_536]
    assert by_rank.layout == BANKED
    rows = hard_rows(forest, 300, seed=1)
    predictor = tvm_forest.build(forest, "simt", sch)
    for n in (0, 1, 255, 257, 300):
        margins = predictor.predict_margin(rows[:n]).reshape(n, 1)
        assert margins.tobytes() == forest.predict_reference(rows[:n]).tobytes()


@pytest.mark.parametrize("target", SMALL_GPUS, ids=str)
def test_a_round_of_trees_that_does_not_fit_is_left_in_memory(target: Any) -> None:
    forest = drawn_forest(40, 8, base=(0.0,) * 40)
    schedules = tvm_forest.default_schedules(forest, target)
    assert BANKED not in {sch.layout for sch in schedules.values()}
    on_large = tvm_forest.default_schedules(forest, {"kind": "cuda", "arch": "sm_90"})
    assert on_large[65_536].layout == BANKED


def launched(sch: Schedule, batch: int) -> tuple[int, int]:
    """Return the blocks of a batch, and the threads of each."""
    loops = [loop for loop in sch.loops() if loop.gpu]
    counts = {str(x.gpu): x.count or -(-batch // x.step) for x in loops}
    blocks, threads = (prod(n for d, n in counts.items() if x in d) for x in ("grid", "block"))
    return blocks, threads


def test_architectures_are_known_by_their_family() -> None:
    known = [
        gpu_facts.facts_of(parse_target({"kind": "cuda", "arch": x})) for x in ("sm_90a", "any")
    ]
    assert known == [gpu_facts.KNOWN["sm_90"], gpu_facts.ASSUMED]
    amd = gpu_facts.facts_of(parse_target({"kind": "rocm", "mcpu": "gfx942"}))
    assert amd.processors == 304


# -- the strategy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("batch", [64, 4096])
def test_the_heuristic_finds_what_one_move_after_the_other_leads_to(
    batch: int, exact: bool
) -> None:
    where = Noting.of(MODEL, SIMT, batch, exact)
    first = next(p for p in where.first_points() if p.tree_threads < 50 and p.layout == "array")
    wish = first._replace(layout="ranked", cache_rows=False)
    wish = wish if exact else wish._replace(shared="shuffle", tree_blocks=4)

    def seconds(sch: Schedule) -> float:
        here = Noting.made.get(sch)
        return 99.0 if here is None else sum(a != b for a, b in zip(here, wish, strict=True))

    asked = asked_of(where, seconds)
    assert asked[0] == where.default
    assert min(asked, key=seconds) == where.schedule(wish)
    assert len(asked) == len(set(asked)) < (60 if exact else 75)


def test_algorithm_1_comes_first() -> None:
    where = space(4096, exact=False)
    asked = asked_of(where, lambda sch: len(str(sch)))
    points = filter(where.allows, silvanforge.first_phase(where.problem))
    assert set(asked[1:37]) == set(map(where.schedule, points))
    assert all("reduce shared" in str(sch) for sch in asked[37:40])


def test_a_forest_too_small_for_the_paper_is_searched_all_the_same() -> None:
    asked = asked_of(space(64, False, drawn_forest(5, 2)), lambda sch: 1.0)
    assert len(asked) > 10


def test_the_exhaustive_search_draws_points_of_the_space() -> None:
    where, asked = Noting.of(TINY, SIMT, 4, exact=True), list[Schedule]()

    def measure(sch: Schedule) -> float:
        asked.append(sch)
        if len(asked) == 9:
            raise StopSearch
        return 1.0

    with pytest.raises(StopSearch):
        strategies_of(SIMT)["exhaustive"](where, measure, random.Random(0))
    assert asked[0] == select_schedule(tvm_forest.default_schedules(TINY, "simt"), 4)
    assert len(set(asked)) == 9
    assert all(where.allows(Noting.made[sch]) for sch in asked[1:])


def test_there_are_strategies_for_each_kind_of_target() -> None:
    assert set(strategies_of(SIMT)) == {"heuristic", "exhaustive"}
    with pytest.raises(InputError, match="'beam' is unknown .have: heuristic, exhaustive"):
        tvm_forest.tune(TINY, "simt", strategy="beam")


# -- measuring ------------------------------------------------------------------------------------


def test_margins_are_near_or_refused_with_their_row() -> None:
    margins = np.array([[1.0], [np.inf], [np.nan]], np.float32)
    bound = np.array([[1e-6], [np.inf], [np.nan]])
    check_near_margins(margins[:, 0] + np.float32(5e-7), margins, bound)
    with pytest.raises(BuildError, match="row 0 of 3: margin .* is further from the reference"):
        check_near_margins(margins + np.float32(5e-6), margins, bound)
    with pytest.raises(BuildError, match="row 2 of 3"):
        check_near_margins(np.nan_to_num(margins, posinf=np.inf), margins, bound)


def test_what_cannot_be_measured_here_is_said_before_anything_is() -> None:
    try:
        CudaDriver()
    except DeviceError:
        with pytest.raises(DeviceError, match="tune: cuda: no driver of NVIDIA found .* use"):
            tvm_forest.tune(TINY, "cuda", [8])


@pytest.mark.slow
def test_schedules_for_gpus_are_searched_on_the_cpu_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "load", lambda model: TINY)
    path = tmp_path / "tune.jsonl"
    words = ["tune", "m.json", "--target", "simt", "--batch-size", "33", "--records", str(path)]
    assert main([*words, "--trials", "2", "--any-order", "--strategy", "exhaustive"]) == 0
    said = capsys.readouterr().out
    assert "build('m.json', 'simt', records=" in said and "exact=False" in said
    records = read_records(path)
    assert [record.problem for record in records] == [None] * 2
    assert records[0].schedule != records[1].schedule
    assert all(record.seconds is not None for record in records)
    rows = hard_rows(TINY, 40, seed=1)
    margin = tvm_forest.build(TINY, "simt", records=path, exact=False).predict_margin(rows)
    expected = TINY.predict_reference(rows)
    assert np.all(np.abs(margin[:, None] - expected) <= rounding_bound(TINY, rows))


@pytest.mark.slow
def test_a_launch_that_fails_ends_the_child_and_not_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "prepare", planted.prepare_failing)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tuned = tuning.tune(
        TINY, parse_target("cuda"), [16], strategy=lambda space, measure, rng: measure(FAST)
    )
    (record,) = tuned.records
    assert "crashed: exit status 1: RuntimeError: cuda: cuLaunchKernel" in str(record.problem)
    assert tuned.schedules == {1: tuned.defaults[16]}


@pytest.mark.slow
@pytest.mark.long
def test_a_search_for_cuda_measures_on_the_gpu_and_builds_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "prepare", planted.prepare_emulated)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the child is killed, and leaves its files
    path, start = tmp_path / "tune.jsonl", GpuSpace.of(TINY, SIMT, 16, exact=False)

    def three(space: Any, measure: Any, rng: random.Random) -> None:
        measure(space.default)
        for point in start.first_points()[:2]:
            measure(start.schedule(point._replace(shared="atomic")))

    tuned = tuning.tune(TINY, parse_target("cuda"), [16], None, three, records=path, exact=False)
    assert [record.problem for record in tuned.records] == [None] * 3
    assert all(0 < record.seconds < 10 for record in tuned.records if record.seconds)
    context = tuned.records[0].context
    assert context["rows"] == "typical 0, in any order"
    assert context["cpu"] == "emulated, sm_90, 132 multiprocessors, 81920 MB"
    predictor = emulated(tvm_forest.build(TINY, "cuda", records=path, exact=False))
    rows = hard_rows(TINY, 20, seed=1)
    margin = predictor.predict_margin(rows)[:, None]
    assert np.all(np.abs(margin - TINY.predict_reference(rows)) <= rounding_bound(TINY, rows))


# -- times of a GPU -------------------------------------------------------------------------------


class PlantedGpu:
    """A GPU whose copies take 1 ms, beside a host that takes 30 us to hand in a call."""

    memory = 80 << 30

    def __init__(self, call: float) -> None:
        self.pool, self.call_seconds = self, call
        self.now = self.busy_until = 0.0

    def take(self, size: int, stream: int) -> Any:
        return SimpleNamespace(pointer=0)

    def clock(self) -> float:
        return self.now

    def work(self, seconds: float, handing_in: float) -> None:
        self.now += handing_in
        self.busy_until = max(self.now, self.busy_until) + seconds

    def copy(self, *_: Any) -> None:
        self.work(1e-3, 5e-6)

    def call(self, number: int) -> None:
        self.work(self.call_seconds, 30e-6)

    def mark(self, stream: int) -> float:
        return max(self.now, self.busy_until)

    def is_done(self, event: float) -> bool:
        return self.now >= event

    def seconds(self, first: float, last: float) -> float:
        self.now = max(self.now, last)
        return last - first


@pytest.mark.parametrize("seconds", [2e-6, 20e-6, 60e-6, 1e-3, 0.5])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_short_calls_of_a_gpu_are_not_timed_by_the_host(seconds: float, count: int) -> None:
    gpu = PlantedGpu(seconds)
    timer = GpuTimer(gpu, gpu.clock)
    assert timer(gpu.call, count) == pytest.approx(count * seconds, rel=0.02)


# -- records of several GPUs ----------------------------------------------------------------------

CUDA = parse_target("cuda")
FAST = tvm_forest.hop_schedule(TINY, "cuda").represent_as("sparse")


@pytest.fixture
def gpu_here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the emulated GPU be at hand, and set what it says of itself; None for no driver."""

    def report(**facts: int) -> None:
        for name, value in facts.items():
            settings().emulated_set(name.encode(), value)
        monkeypatch.setattr(
            backends, "open_driver", lambda kind, device: CudaDriver(device, libcuda())
        )

    yield report
    report(processors=132, memory=80 << 30, minor=0)


def recorded(path: Path, *gpus: str) -> Path:
    """Write a record of each GPU."""
    contexts = [describe_context(TINY, CUDA, machine=gpu) for gpu in gpus]
    lines = [TrialRecord(context, 8, FAST, 1.0, 1.0, 3).to_line() for context in contexts]
    path.write_text("".join(line + "\n" for line in lines))
    return path


OURS = "emulated, sm_90, 132 multiprocessors, 81920 MB"


@pytest.mark.parametrize(
    "other", [{"processors": 114}, {"memory": 40 << 30}, {"minor": 1}], ids=lambda x: [*x][0]
)
def test_records_of_another_gpu_are_not_taken(
    other: dict[str, int], gpu_here: Any, tmp_path: Path
) -> None:
    path = recorded(tmp_path / "tune.jsonl", OURS)
    gpu_here()
    assert tvm_forest.build(TINY, "cuda", records=path).schedule == FAST
    gpu_here(**other)
    with pytest.raises(InputError, match=rf"no record of cpu emulated, sm_.* .have: {OURS}"):
        tvm_forest.build(TINY, "cuda", records=path)


def test_records_that_do_not_name_their_gpu_are_passed_over(gpu_here: Any, tmp_path: Path) -> None:
    path = recorded(tmp_path / "tune.jsonl", NAMELESS)
    said = "no record of one GPU by name, and none is at hand .have: a GPU.; build where the GPU is"
    with pytest.raises(InputError, match=said):
        load_schedules(path, TINY, CUDA)
    gpu_here()
    with pytest.raises(InputError, match=f"no record of cpu {OURS} .have: a GPU"):
        tvm_forest.build(TINY, "cuda", records=path)


def test_without_a_gpu_the_records_must_be_of_a_single_one(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one.jsonl", NAMELESS, OURS)
    assert load_schedules(one, TINY, CUDA) == {1: FAST}
    two = recorded(tmp_path / "two.jsonl", OURS, "another")
    with pytest.raises(InputError, match=f"one GPU by name, .* .have: another, {OURS}"):
        load_schedules(two, TINY, CUDA)
    assert load_schedules(two, TINY, CUDA, "another") == {1: FAST}


def test_records_of_simt_are_those_of_the_cpu_that_ran_it() -> None:
    assert describe_context(TINY, SIMT)["cpu"] == f"{cpu_name()}, 1 cores"
