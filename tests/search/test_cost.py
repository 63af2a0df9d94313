"""What schedules are expected to cost: how often operations are done, and what they take."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chosen_schedules import GOLDEN, golden_text
from forests import Split, drawn_forest, forest_of, full_forest
from tvm_forest.errors import InputError
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.tiling import tile_nodes
from tvm_forest.layouts import WORD_NODES
from tvm_forest.layouts.protocol import find
from tvm_forest.search import heuristic, machines
from tvm_forest.search.cost import count_operations, estimate, price, price_parts, price_spaces
from tvm_forest.search.guesses import FLOAT64, guess
from tvm_forest.search.hop_walks import node_bytes
from tvm_forest.search.machines import Machine, nearest, shipped_machines
from tvm_forest.search.measuring import caches, calibrating, calls
from tvm_forest.search.measuring.calls import SMALL, Cell
from tvm_forest.search.measuring.drawn_forests import Shape, draw_forest
from tvm_forest.search.space import Point, Space
from tvm_forest.search.workload import Workload
from tvm_forest.target import CPUS, Target, cpu_name, parse_target


def chain(depth: int) -> Any:
    return functools.reduce(lambda tree, i: Split(0, float(i), 1.0, tree), range(depth), 0.0)


CHAIN = chain(24)
MODEL = drawn_forest(20, 5)
MODELS = {
    "drawn": MODEL,
    "classes": drawn_forest(20, 4, base=(0.0, 0.5)),
    "deep": forest_of([CHAIN] * 5),
    "wide": drawn_forest(30, 4, n_features=400, dtype="float64"),
}
NOT_WALKED = ("leaf_id", "tile_id", "column_feature", "column_cuts", "cuts")
TARGETS = {name: Target(abilities=frozenset(name.split()), cores=1) for name in CPUS}


class _Free(dict[str, float]):
    """Times of operations; those that are not said take none."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, 0.0)


# -- counts ---------------------------------------------------------------------------------------


def hops(forest: Any, together: int, levels: float = 1.0) -> float:
    return Workload.of(forest, Target()).count_hops(together, levels)


def unasked(forest: Any, levels: float = 1.0) -> float:
    return Workload.of(forest, Target()).count_unasked_hops(levels)


def test_all_walks_through_complete_trees_are_equally_long() -> None:
    forest = full_forest(7, 4)
    assert hops(forest, 1) == hops(forest, 8) == unasked(forest) == 28
    assert hops(forest, 8, levels=2.0) == 14
    assert hops(forest, 8, levels=3.0) == unasked(forest, levels=3.0) == 14


@pytest.mark.parametrize("depth", [20, 41, 83])
def test_trees_of_any_depth_have_a_price(depth: int) -> None:
    """A tile decides 1.4 levels; 15 of them were 21.000000000000004 levels, and so one too many."""
    chain: Any = 0.0
    for _ in range(depth):
        chain = Split(0, 0.5, chain, 1.0)
    assert hops(forest_of([chain]), 1, levels=1.4) < depth


def test_walks_together_end_with_the_last() -> None:
    """Rows end at any of the 25 leaves of a chain alike."""
    forest = forest_of([CHAIN])
    depths = np.array([*range(1, 25), 24])
    assert hops(forest, 1) == pytest.approx(depths.mean())
    most = np.random.default_rng(0).choice(depths, (100_000, 4)).max(axis=1).mean()
    assert hops(forest, 4) == pytest.approx(most, rel=0.01)
    assert unasked(forest) == 24


def test_walks_that_do_not_ask_go_on_to_the_depth_of_each_tree() -> None:
    forest = forest_of([chain(depth) for depth in (2, 5, 1, 3, 4)])
    assert unasked(forest) == 15
    assert unasked(forest, levels=3.0) == 7


def test_a_cache_that_holds_nothing_misses_every_node_and_a_large_one_none() -> None:
    work = Workload.of(full_forest(3, 6), Target())
    assert work.count_far_nodes(0, 1, 8.0, 0.0) == pytest.approx(3 * 7)
    assert work.count_far_nodes(1 << 30, 1, 8.0, 0.0) == 0
    shared = [work.count_far_nodes(3 * 127 * 4, rows, 8.0, 0.0) for rows in (1, 8, 64)]
    assert shared[0] > shared[1] > shared[2] > 0


@pytest.mark.parametrize("cpu", ["znver4", "x86-64-v3", "cascadelake"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(3, others="long")
def test_no_default_is_dearer_than_the_function_of_a_smaller_batch(cpu: str, dtype: Any) -> None:
    target = parse_target({"kind": "llvm", "mcpu": cpu})
    for shape in (Shape(1, 1, 20), Shape(40, 12, 20), Shape(500, 6, 1000, outputs=3)):
        work = Workload.of(draw_forest(shape._replace(dtype=dtype)), target)
        chosen = heuristic.choose(work)
        for batch in chosen:
            of_smaller = [price(x.point, work, batch) for k, x in chosen.items() if k <= batch]
            assert of_smaller[-1] <= min(of_smaller) * (1 + 1e-9)


def test_trees_that_are_fetched_as_a_whole_are_counted_by_lines() -> None:
    """Nodes of 8 bytes; a block of rows fetches every tree, whatever its rows meet of it."""
    nowhere = replace(shipped_machines()[0], cache_bytes=(0, 0, 0))
    work = Workload(canonicalize(full_forest(3, 6)), Target(), nowhere)
    point = Point(1, "packed", 16, "rows", 8, "peel", "stream")
    counts = [
        count_operations(point._replace(block=block, cache=cache), work, 64)["wait memory stream"]
        for block, cache in ((16, "stream"), (64, "stream"), (16, ""))
    ]
    assert counts == [3 * 127 * 8 / 64 / 16, 3 * 127 * 8 / 64 / 64, 0]


def test_copies_of_rows_load_all_their_lines_and_spare_walks_the_wait() -> None:
    work = Workload.of(drawn_forest(20, 5, n_features=3200), Target())
    point = Point(1, "packed", walks=8)
    plain, packed = (count_operations(point._replace(cache=x), work, 8) for x in ("", "pack"))
    line = "wait row line, trees"
    assert plain[line] == work.count_lines(plain["walk packed, trees 8"]) > packed[line] == 0
    assert packed["wait row line, packed"] == 3200 * 4 / 64


def test_blocks_of_planes_cost_the_same_whether_they_are_full() -> None:
    work = Workload.of(MODEL, Target())
    point = Point(1, "bitsliced", 256, "rows", "bits")
    counts = {batch: count_operations(point, work, batch) for batch in (64, 128, 256, 512)}
    name = "walk slot 256"
    assert counts[64][name] == 2 * counts[128][name] == 4 * counts[256][name] > 0
    assert counts[512][name] == counts[256][name]
    assert counts[64]["code float32 unit"] == counts[256]["code float32 unit"] > 0
    assert count_operations(point, work, 65)["code float32 unit"] == pytest.approx(
        counts[64]["code float32 unit"] * 128 / 65
    )


def test_levels_that_take_two_registers_are_counted() -> None:
    assert [Workload.of(full_forest(3, x), Target()).wide_hops for x in (6, 7, 8)] == [0, 0, 3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["array", "reorg", "sparse", "packed", "ranked"])
def test_bytes_of_nodes_are_near_those_of_layouts(layout: str, dtype: str) -> None:
    forest = draw_forest(Shape(20, 8, dtype=dtype))
    work, rep = Workload.of(forest, Target()), find(layout)
    for tile in (1, 2, 4, 8) if layout in ("array", "sparse") else (1,):
        tiled = tile_nodes(work.forest, tile)
        if rep.unfit(tiled) is None:
            _, arrays = rep.pack(tiled)
            taken = sum(x.nbytes for name, x in arrays.items() if name not in NOT_WALKED)
            expected = node_bytes(layout, tile, work)
            assert taken / forest.n_nodes == pytest.approx(expected, rel=0.2)


def test_tiles_and_vectors_are_looked_up_where_walks_end_too() -> None:
    forest = draw_forest(Shape(20, 8, outputs=3))
    work = Workload.of(forest, Target())
    assert len(work.vectors) == 20 * 256
    assert work.count_far_ends(1, 1, 8.0, 0.0, 20 * 256) == pytest.approx(20, rel=0.01)
    assert work.count_far_ends(1 << 30, 1, 8.0, 0.0, 20 * 256) == 0
    assert len(Workload.of(draw_forest(Shape(20, 8)), Target()).vectors) == 0


def test_cuts_that_the_first_cache_does_not_hold_are_waited_for() -> None:
    """Each column has one step, of 64 bytes."""
    times = Machine("", "", (), frozenset(), (1024,), {}, "")
    work = Workload(draw_forest(Shape(64, 6, 40, cuts=12)), Target(), times)
    counts = count_operations(Point(1, "ranked", 0, "trees", 8), work, 1)
    assert counts["wait cuts second"] == 40 - 1024 / 64


def test_vectors_of_leaves_take_bytes_too() -> None:
    one, three = (draw_forest(Shape(20, 8, outputs=x)) for x in (1, 3))
    few, many = (node_bytes("packed", 1, Workload.of(x, Target())) for x in (one, three))
    more = many - few
    assert more == 20 * 256 * 3 * 4 / one.n_nodes


def test_the_last_cache_is_as_large_as_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "read_caches", lambda: (32 << 10, 1 << 20, 32 << 20))
    for held, expected in ((8 << 20, 8 << 20), (1 << 30, 32 << 20), (2 << 20, 2 << 20)):
        monkeypatch.setattr(caches, "time_lines", lambda size, x=held: 1 + 8 * (size > x))
        assert caches.measure_caches() == (
            32 << 10,
            1 << 20,
            pytest.approx(expected, rel=0.01),
        )
    monkeypatch.setattr(caches, "read_caches", lambda: (32 << 10, 1 << 20))
    assert caches.measure_caches() == (32 << 10, 1 << 20)


# -- prices ---------------------------------------------------------------------------------------


def test_times_of_operations_add_up_part_by_part() -> None:
    work = Workload.of(full_forest(10, 3), Target())
    times = _Free({"walk packed, rows 8": 2.0, "walk end, rows": 0.5, "leaf rows": 3})
    times["call"] = 64.0
    point = Point(1, "packed", 64, "rows", 8, "loop")
    known = Machine("some", "", (), frozenset(), (1 << 15,), times, "by hand")
    parts = price_parts(point, work, 64, known)
    assert {k: x for k, x in parts.items() if x} == {"call": 1.0, "walk": 75.0, "leaf": 30.0}
    assert price(point, work, 64, known) == 106.0
    assert price(point, work, 512, known) == 106 - 1 + 64 / 512


def test_what_a_machine_has_no_time_for_is_guessed() -> None:
    point, work = Point(1, "packed", 64, "rows", 8), Workload.of(MODEL, Target())
    counts = count_operations(point, work, 64)
    guessed = sum(guess(name) * count for name, count in counts.items())
    assert price(point, work, 64, Machine("", "", (), frozenset(), (1,), {}, "")) == guessed


def test_guesses_are_longer_for_float64() -> None:
    assert guess("code float64 3 alone") == FLOAT64 * guess("code float32 3 alone")
    assert guess("code float32 3 in panels") > guess("code float32 3 alone")


def test_rows_with_few_lines_are_fetched_by_the_cpu() -> None:
    narrow, wide = (drawn_forest(20, 5, n_features=x) for x in (60, 3200))
    assert Workload.of(narrow, Target()).count_lines(1000) == 0
    work = Workload.of(wide, Target())
    assert work.count_lines(1e9) == 200 - 4 > work.count_lines(300) > 100 > work.count_lines(0)


@pytest.mark.parametrize("target", TARGETS.values(), ids=[x or "old" for x in TARGETS])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(8, others="long")
def test_every_point_has_a_price_on_the_machine_that_is_nearest(name: str, target: Target) -> None:
    work = Workload.of(MODELS[name], target)
    for batch in (1, 8, 64, 4096):
        points = list(Space(work, work.start, batch, threads=False).points())
        assert np.all(np.isfinite(estimate(points, work, batch)))


@pytest.mark.slow
def test_golden_schedules_are_those_that_are_chosen() -> None:
    """If this change is wanted, run `make golden` and look at the difference."""
    assert GOLDEN.read_text(encoding="utf-8") == golden_text()


@pytest.mark.parametrize("name", MODELS)
def test_points_of_several_spaces_cost_what_each_costs_alone(name: str) -> None:
    work = Workload.of(MODELS[name], TARGETS[list(CPUS)[-1]])
    spaces = [Space(work, work.start, batch, threads=False) for batch in (1, 16, 4096)]
    for space, prices in zip(spaces, price_spaces(spaces), strict=True):
        alone = [price(point, work, space.batch) for point in space.candidates()[::7]]
        assert prices[::7].tolist() == pytest.approx(alone, rel=1e-12)


def test_a_workload_goes_when_nobody_asks_it_any_more() -> None:
    work = Workload.of(MODEL, Target())
    heuristic.default_schedules_for(work)
    gone = weakref.ref(work)
    del work
    assert gone() is None


def test_the_choice_is_explained_part_by_part() -> None:
    target = TARGETS[list(CPUS)[-1]]
    said = heuristic.explain(MODEL, target)
    assert said[0].startswith("nanoseconds a row on one thread, as on ")
    batches = [line for line in said if line.startswith("batches of ")]
    assert len(batches) == len(heuristic.default_schedules(MODEL, target))
    assert batches[0] == "batches of 1 row and more:"
    assert len(said) == 1 + len(batches) + heuristic.SHOWN * len(batches)
    assert ": call " in said[2]


# -- machines -------------------------------------------------------------------------------------


def test_the_nearest_machine_has_the_name_or_the_abilities() -> None:
    for known in shipped_machines():
        for cpu in known.cpus:
            assert nearest(shipped_machines(), parse_target({"kind": "llvm", "mcpu": cpu})) is known
    for target in TARGETS.values():
        found = nearest(shipped_machines(), target)
        for ability in ("avx512vbmi", "avx512bw", "avx2"):
            assert (ability in found.abilities) == target.has(ability)


def test_an_unknown_machine_is_not_taken_for_one_that_is_unlike_all_others() -> None:
    kinds = [("a", 8.0, {"avx2"}), ("b", 2.0, {"avx"}), ("c", 2.0, {"neon"})]
    made = tuple(
        Machine(name, name, (name,), frozenset(can), (1,), {"call": x, f"walk {name}": x}, "")
        for name, x, can in kinds
    )
    target = Target(abilities=frozenset({"avx2"}), cores=1)
    assert nearest(made, target).nanoseconds == {"call": 4.0, "walk a": 8.0}
    known = Machine("d", target.vendor, (), frozenset({"avx2"}), (1,), {"call": 1.0}, "")
    assert nearest((*made, known), target) is known


def test_a_further_ability_tells_machines_of_one_maker_apart() -> None:
    old = Machine("old", "maker", (), frozenset({"avx2"}), (1,), {"call": 1.0}, "")
    new = replace(old, name="new", abilities=frozenset({"avx2", "vaes"}))
    for shipped in ((old, new), (new, old)):
        for can, vendor, name in (
            ({"avx2"}, "maker", "old"),
            ({"avx2", "vaes"}, "maker", "new"),
            ({"avx2", "vaes"}, "another", shipped[0].name),
        ):
            target = replace(Target(abilities=frozenset(can), cores=1), vendor=vendor)
            assert nearest(shipped, target).name == name


def test_cells_of_one_batch_have_predictors_of_their_own() -> None:
    one, two = Shape(4, 3), Shape(5, 3)
    point = Point(1, "packed", 0, "trees", 8)
    cells = [Cell(one, point, 1), Cell(one, point, 256), Cell(two, point), Cell(one, point)]
    assert calls.group_cells(cells) == [cells[:2], cells[3:], cells[2:3]]


def test_what_is_disturbed_once_does_not_count() -> None:
    rng = np.random.default_rng(0)
    counts, truth = rng.random((200, 4)) * 100, np.array([3.0, 1.0, 2.0, 4.0])
    times = counts @ truth
    times[:10] *= 5
    assert calibrating.solve(counts, times, np.full(4, 2.0)) == pytest.approx(truth, rel=0.1)


def test_a_machine_of_the_users_own_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.json"
    monkeypatch.setenv(machines.VARIABLE, str(file))
    assert machines.own_machine() is None
    for name, expected in (("another CPU", False), (cpu_name(), True)):
        own = Machine(name, "", (), frozenset({"avx2"}), (1, 2, 3), {"call": 1.5}, "by hand")
        file.write_text(own.to_json(), encoding="utf-8")
        assert (machines.machine_of(Target()) == own) == expected
        assert machines.machine_of(parse_target({"kind": "llvm", "mcpu": "haswell"})) != own
        file.unlink()
    file.write_text(own.to_json(), encoding="utf-8")
    monkeypatch.setenv(machines.VARIABLE, "off")
    assert machines.own_machine() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"call": 1.5', '"call": -1.5'),
        lambda text: text.replace('"call": 1.5', '"call": NaN'),
        lambda text: text.replace('"cpus"', '"gpus"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_description_of_a_machine_is_one_error(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.json"
    own = Machine(cpu_name(), "", (), frozenset(), (1,), {"call": 1.5}, "by hand")
    file.write_text(change(own.to_json()), encoding="utf-8")
    monkeypatch.setenv(machines.VARIABLE, str(file))
    with pytest.raises(InputError, match="tvm-forest calibrate"):
        heuristic.default_schedules(MODEL, Target())


# -- calibration ----------------------------------------------------------------------------------


def test_rows_spread_over_all_leaves_of_a_drawn_tree() -> None:
    forest = draw_forest(Shape(1, 6, 8))
    rows = np.random.default_rng(0).random((4096, 8), np.float32)
    shares = np.unique(forest.predict_reference(rows), return_counts=True)[1] / len(rows)
    assert len(shares) == 64 and shares.max() < 8 / 64


def test_times_of_operations_are_found_where_calls_tell_them() -> None:
    rng = np.random.default_rng(0)
    counts, truth = rng.random((600, 6)) * 100, np.array([3, 1, 2, 4, 3, 0.0])
    counts[:, 5] = 0  # no call needs it
    found = calibrating.solve(counts, counts @ truth, np.array([2, 2, 2, 2, 2, 7.0]))
    assert found[:5] == pytest.approx(truth[:5], rel=0.1)
    assert found[5] == pytest.approx(7)


def test_what_is_timed_needs_most_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here calls take what the guesses say, so these are found."""
    monkeypatch.setattr(calls, "TALL", Shape(4, 9))
    monkeypatch.setattr(calls, "THIRD", Shape(300, 8))

    def planted(cells: list[Cell], forest: Any, target: Target, clock: Any) -> list[float]:
        work = Workload.of(forest, target)
        counts = [count_operations(x.point, work, x.batch) for x in cells]
        return [sum(guess(name) * n for name, n in x.items()) / clock.readings[0] for x in counts]

    clock = SimpleNamespace(readings=[2.0])
    monkeypatch.setattr(calibrating, "Clock", lambda target: clock)
    monkeypatch.setattr(calibrating, "time_cells", planted)
    monkeypatch.setattr(caches, "read_caches", tuple)  # so those of the nearest machine
    done = list[int]()
    found = calibrating.calibrate(TARGETS[list(CPUS)[-1]], lambda now, all: done.append(now))
    assert len(found.nanoseconds) > 100 and done == sorted(done)
    for name, time in found.nanoseconds.items():
        assert time == pytest.approx(guess(name), rel=0.05)


def test_calls_are_timed_beside_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "TURNS", 1)
    monkeypatch.setattr(calibrating, "TURN_SECONDS", 1e-6)
    target, forest = parse_target("llvm"), draw_forest(SMALL)
    clock = calibrating.Clock(target)
    points = [calls.walk_point(WORD_NODES, 1, "rows", rows) for rows in (4, 8)]
    cells = [Cell(SMALL, point, batch) for point, batch in zip(points, (8, 64), strict=True)]
    times = calibrating.time_cells(cells, forest, target, clock)
    assert len(times) == len(clock.readings) == 2 and min(*times, *clock.readings) > 0


def test_caches_of_data_are_those_that_the_system_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(caches, "FOLDER", str(tmp_path))
    assert caches.read_caches() == ()
    told = ("1 Data 32K", "1 Instruction 64K", "2 Unified 512K", "3 Unified 16M", "4")
    for number, words in enumerate(told):  # of the last one the size is kept secret
        (tmp_path / f"index{number}").mkdir()
        for name, word in zip(("level", "type", "size"), words.split(), strict=False):
            (tmp_path / f"index{number}" / name).write_text(word + "\n")
    assert caches.read_caches() == (32 << 10, 512 << 10, 16 << 20)
    assert caches.time_lines(64 << 10) > 0
