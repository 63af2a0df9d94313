"""What a schedule says about itself, compared with a plain run of its nest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter import Visit, runs, visits
from strategies import any_schedules, examples, problems, schedules_from
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.regions import find_ordered_regions

Check = Callable[[Schedule], None]


SIZES = (0, 1, 7, 19)
"""Numbers of rows."""


def sums(sch: Schedule, n: int) -> dict[tuple[int, int], list[int]]:
    """Return the rounds that each row adds to each output, in order."""
    found = defaultdict(list)
    for row, output, tree, _ in visits(sch, n):
        found[row, output].append(tree)
    return dict(found)


def adds_in_order(sch: Schedule, n: int) -> bool:
    """Whether a run adds ascending trees, none of them at the same time.

    Every time a region runs that adds in order, the trees that it visits are sorted.
    """
    regions = {x.name: r.name for r in find_ordered_regions(sch.nest) for x in r.traverse()}
    if any(x.kind == "tree" and x.parallel and x.name not in regions for x in sch.loops()):
        return False
    added, gathered = defaultdict[Any, list[list[int]]](list), dict[Any, list[int]]()
    for number, ((row, output, tree, leaf), around) in enumerate(runs(sch, n)):
        outside = [pair for pair in around.items() if pair[0] not in regions]
        run = (row, output, regions[leaf], *outside) if leaf in regions else number
        if run not in gathered:
            gathered[run] = []
            added[row, output].append(gathered[run])
        gathered[run].append(tree)
    in_order = ([tree for run in all_runs for tree in sorted(run)] for all_runs in added.values())
    return all(trees == sorted(trees) for trees in in_order)


def few_schedules(test: Check) -> Any:
    """Run a test on 50 schedules."""
    return given(sch=any_schedules())(examples(50)(test))


@few_schedules
def test_every_row_class_and_tree_is_visited_once(sch: Schedule) -> None:
    rounds = list(range(sch.trees // sch.classes))
    for n in SIZES:
        everything = {(row, c): rounds for row in range(n) for c in range(sch.classes)}
        found = {pair: sorted(trees) for pair, trees in sums(sch, n).items()}
        assert found == everything, f"n = {n}\n{sch}"


@few_schedules
def test_no_schedule_claims_an_order_that_it_does_not_keep(sch: Schedule) -> None:
    kept = all(adds_in_order(sch, n) for n in SIZES)
    assert kept or not sch.keeps_order, sch


@few_schedules
def test_a_leaf_knows_its_trees(sch: Schedule) -> None:
    met: dict[str, list[int]] = {leaf.name: [] for leaf in sch.leaves()}
    for visit in visits(sch, 19):
        met[visit.leaf].append(visit.tree)
    for leaf, trees in met.items():
        if trees:
            assert sorted(sch.trees_of(leaf)) == sorted(set(trees)), f"{leaf}\n{sch}"


@few_schedules
def test_a_random_schedule_survives_json(sch: Schedule) -> None:
    again = Schedule.from_json(sch.to_json())
    assert (again, hash(again), str(again)) == (sch, hash(sch), str(sch))
    assert (again.steps, again.replaced) == (sch.steps, sch.replaced)


@few_schedules
def test_a_random_schedule_breaks_no_invariant(sch: Schedule) -> None:
    assert sch.problem() is None


@few_schedules
def test_the_live_loops_are_the_pieces_of_the_first_ones(sch: Schedule) -> None:
    pieces = [name for root in sch.fresh().names() for name in sch.pieces(root)]
    assert sorted(pieces) == sorted(sch.names())
    for name in sch.names():
        assert sch.copies(name) == (name,)


@few_schedules
def test_a_schedule_without_its_threads_visits_the_same_in_the_same_order(sch: Schedule) -> None:
    serial = sch.on_one_thread()
    assert not any(loop.parallel or loop.reduce for loop in serial.loops())
    assert list(visits(serial, 7)) == list(visits(sch, 7))


CHECKS: list[Check] = [
    test.hypothesis.inner_test
    for test in (
        test_every_row_class_and_tree_is_visited_once,
        test_no_schedule_claims_an_order_that_it_does_not_keep,
        test_a_leaf_knows_its_trees,
        test_a_random_schedule_survives_json,
        test_a_random_schedule_breaks_no_invariant,
        test_the_live_loops_are_the_pieces_of_the_first_ones,
        test_a_schedule_without_its_threads_visits_the_same_in_the_same_order,
    )
]
"""All of the above, for one schedule."""


@pytest.mark.long
@given(sch=any_schedules())
@examples(600)
def test_many_schedules_say_what_their_nests_do(sch: Schedule) -> None:
    for check in CHECKS:
        check(sch)


@pytest.mark.rare
@given(sch=any_schedules())
@examples(5000, anew=True)
def test_new_schedules_say_what_their_nests_do(sch: Schedule) -> None:
    for check in CHECKS:
        check(sch)


@pytest.mark.long
def test_few_schedules_deny_an_order_that_they_keep() -> None:
    drawn = []

    @given(sch=any_schedules())
    @examples(600)
    def draw(sch: Schedule) -> None:
        is_moved = sch.has_rewrite("sort_trees")  # which changes the order whatever the loops do
        drawn.append(not sch.keeps_order and adds_in_order(sch, 19) and not is_moved)

    draw()
    assert sum(drawn) <= 0.05 * len(drawn)


@given(start=problems(), data=st.data())
@examples(50)
def test_schedules_that_look_alike_are_equal(start: Schedule, data: Any) -> None:
    """The printed nest says all that is computed, for one problem."""
    one, other = (data.draw(schedules_from(start, most=2)) for _ in range(2))
    assert (one == other) == (str(one) == str(other))
    assert one != other or hash(one) == hash(other)


# -- by hand --------------------------------------------------------------------------------------

TILED = Schedule(5).tile("tree", "t0", "t1", 2)


def walked(sch: Schedule, n: int = 1) -> list[tuple[int, int]]:
    return [(visit.row, visit.tree) for visit in visits(sch, n)]


def test_the_plain_nest_runs_row_by_row() -> None:
    assert walked(Schedule(2), 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(visits(Schedule(2, 2), 1)) == [Visit(0, 0, 0, "tree"), Visit(0, 1, 0, "tree")]


def test_a_partial_tile_stops_at_the_end() -> None:
    assert [tree for _, tree in walked(TILED)] == [0, 1, 2, 3, 4]
    assert [tree for _, tree in walked(TILED.reorder("t1", "t0"))] == [0, 2, 4, 1, 3]


def test_the_parts_of_a_split_run_one_after_the_other() -> None:
    sch = Schedule(3).reorder("tree", "batch").split("tree", "a", "b", 1)
    assert walked(sch, 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    inside = Schedule(3).split("tree", "a", "b", 1)
    assert walked(inside, 2) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_each_iteration_of_a_special_loop_runs_its_own_copy() -> None:
    sch = TILED.specialize("t0").split("t1@t0=1", "x", "y", 1)
    assert [(v.tree, v.leaf) for v in visits(sch, 1)] == [
        (0, "t1@t0=0"),
        (1, "t1@t0=0"),
        (2, "x"),
        (3, "y"),
        (4, "t1@t0=2"),
    ]


def test_copies_are_found_by_the_name_of_their_index() -> None:
    sch = Schedule(10).tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1")
    sch = sch.split("tree", "d1", "d2", 4)
    assert sch.copies("b1") == ("b1@d1", "b1@d2")
    assert sch.copies("batch") == ("b0", "b1@d1", "b1@d2")
    assert sch.pieces("tree") == ("d1", "d2")
    assert sch.split("d2", "d3", "d4", 7).copies("b1") == ("b1@d1", "b1@d2@d3", "b1@d2@d4")


@pytest.mark.parametrize(
    ("leaf", "trees"), [("t1@t0=0", [0, 1, 2]), ("x", [3]), ("y", [4, 5]), ("t1@t0=2", [6, 7])]
)
def test_a_leaf_in_a_copy_knows_its_trees(leaf: str, trees: list[int]) -> None:
    sch = Schedule(8).tile("tree", "t0", "t1", 3).specialize("t0").split("t1@t0=1", "x", "y", 1)
    assert list(sch.trees_of(leaf)) == trees


def test_a_leaf_in_nested_partial_tiles_knows_its_trees() -> None:
    sch = Schedule(8).tile("tree", "t0", "t1", 5).tile("t1", "t2", "t3", 3)
    assert list(sch.trees_of("t3")) == list(range(8))
    assert list(sch.split("t0", "x", "y", 5).trees_of("t3@x")) == [0, 1, 2, 3, 4]
