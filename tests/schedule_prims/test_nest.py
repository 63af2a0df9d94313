"""What is read off loops and nests made by hand: values, leaf loops, and each broken rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tvm_forest.schedule_prims.nest import (
    Guard,
    Loop,
    Nest,
    Share,
    find_leaf_loops,
    find_path,
    list_values,
    make_chain,
)
from tvm_forest.schedule_prims.nest.problems import does_each_once, list_problems
from tvm_forest.schedule_prims.regions import has_no_gaps, is_cut, list_values_inside

ROWS = Loop("b", "batch", 0, None, 1)
BLOCK = Loop("b1", "batch", 0, 8, 1)
TREES = Loop("t", "tree", 0, 10, 1)
TILES = Loop("t0", "tree", 0, 10, 4)
INSIDE = Loop("t1", "tree", 0, 4, 1)
CLASSES = Loop("c", "class", 0, 3, 1)
KINDS = {"batch", "tree"}


@pytest.mark.parametrize(
    ("start", "stop", "step", "count", "last"),
    [
        (0, 10, 1, 10, 9),
        (0, 10, 4, 3, 8),
        (2, 10, 4, 2, 6),
        (3, 3, 1, 0, 2),
        (4, 3, 1, 0, 3),
        (0, None, 1, None, None),
        (0, 10, Share(2), None, None),
        (0, Share(2), 1, None, None),
    ],
)
def test_a_loop_counts_its_values(start: int, stop: Any, step: Any, count: Any, last: Any) -> None:
    loop = Loop("x", "tree", start, stop, step)
    assert (loop.count, loop.last) == (count, last)


@pytest.mark.parametrize(
    ("loop", "gathers", "concurrent", "assigned"),
    [
        (TREES, False, False, False),
        (replace(TREES, parallel=True), True, True, True),
        (replace(ROWS, parallel=True), True, True, True),
        (replace(TREES, gpu="block.x"), True, True, True),
        (replace(ROWS, gpu="block.y"), True, True, True),
        (replace(TREES, gpu="grid.x"), True, True, True),
        (replace(ROWS, gpu="grid.x"), False, True, True),
        (replace(TREES, unroll=True), False, False, True),
        (replace(TREES, interleave=2), False, False, True),
        (replace(TREES, simdize="gather"), False, False, True),
    ],
)
def test_a_loop_says_what_runs_at_the_same_time(
    loop: Loop, gathers: bool, concurrent: bool, assigned: bool
) -> None:
    assert (loop.gathers_sums, loop.is_concurrent, loop.is_assigned) == (
        gathers,
        concurrent,
        assigned,
    )


def test_an_iteration_is_taken_by_its_number() -> None:
    taken = replace(TILES, start=2).take_iteration(1)
    assert (taken.start, taken.stop, taken.count) == (6, 7, 1)


def test_values_are_sums_that_guards_allow() -> None:
    path = (ROWS, TILES, INSIDE)
    assert list_values(path, [Guard(("t0", "t1"), 10)]).tolist() == list(range(10))
    assert list_values(path, []).tolist() == list(range(12))
    assert list_values(path, [Guard(("t0", "t1"), None)]).tolist() == list(range(12))
    assert list_values(path, [Guard(("b", "t1"), 1)]).tolist() == list(range(12))
    assert list_values((ROWS,), []).tolist() == [0]
    assert list_values((CLASSES, TREES), [], "class").tolist() == [0, 1, 2]


def test_of_a_specialized_loop_one_iteration_counts() -> None:
    copy = replace(INSIDE, case=1)
    assert list_values((replace(TILES, children=(copy,)), copy), []).tolist() == [4, 5, 6, 7]


def test_a_loop_over_classes_is_no_leaf_loop_if_walks_find_vectors() -> None:
    inner = replace(TREES, children=(CLASSES,))
    nest = make_chain([ROWS, inner])
    leaf = nest.children[0]
    assert find_leaf_loops(nest, False) == (CLASSES,)
    assert find_leaf_loops(nest, True) == (leaf,)
    mapped = make_chain([ROWS, replace(TREES, children=(replace(CLASSES, gpu="block.x"),))])
    assert [x.name for x in find_leaf_loops(mapped, True)] == ["c"]
    special = make_chain([ROWS, replace(TREES, children=(replace(CLASSES, case=0),))])
    assert [x.name for x in find_leaf_loops(special, True)] == ["c"]


def test_a_path_leads_to_a_loop_or_nowhere() -> None:
    nest = make_chain([ROWS, TILES, INSIDE])
    assert [x.name for x in find_path(nest, "t1")] == ["b", "t0", "t1"]
    assert find_path(nest, "x") == ()


def problems(*loops: Loop, wanted: set[str] = KINDS) -> list[str]:
    """Return what is wrong with a chain of loops."""
    nest = make_chain(loops)
    path = find_path(nest, loops[-1].name)
    return [f"{x.loop}: {x.what}" for x in list_problems(path, wanted)]


@pytest.mark.parametrize(
    ("loops", "expected"),
    [
        ((ROWS, TREES), []),
        ((TREES,), ["t: the loops around 't' run over tree only"]),
        ((ROWS, TREES, CLASSES), ["c: the loops around 'c' run over batch, class, tree only"]),
        ((ROWS, replace(TREES, interleave=2)), []),
        (
            (replace(BLOCK, interleave=2), TREES),
            ["b1: 'b1' is interleaved but contains 't'"],
        ),
        ((replace(BLOCK, simdize="gather"), TREES), ["b1: 'b1' is simdized but contains 't'"]),
        # Caches: one iteration at a time, and never of a number of rows that is not known.
        ((ROWS, replace(TREES, cache="pack")), []),
        (
            (ROWS, replace(TREES, cache="pack", interleave=2)),
            ["t: 't' has cache pack, one iteration at a time, but its walks advance together"],
        ),
        (
            (ROWS, replace(TREES, cache="pack", simdize="gather")),
            ["t: 't' has cache pack, one iteration at a time, but its walks advance together"],
        ),
        ((replace(TREES, cache="pack"), ROWS), []),
        ((replace(BLOCK, cache="pack"), replace(BLOCK, name="b2"), TREES), []),
        (
            (replace(BLOCK, cache="pack"), ROWS, TREES),
            ["b1: 'b1' has cache pack but holds 'b' of n iterations"],
        ),
        (
            (replace(BLOCK, cache="pack"), TREES, ROWS),
            ["b1: 'b1' has cache pack but holds 'b' of n iterations"],
        ),
        ((replace(BLOCK, cache="prefetch"), ROWS, TREES), []),
        # Parallel loops are adjacent.
        ((replace(ROWS, parallel=True), replace(TREES, parallel=True)), []),
        (
            (replace(ROWS, parallel=True), TILES, replace(INSIDE, parallel=True)),
            ["t1: 't1' lies inside parallel 'b' with 't0' between them"],
        ),
        (
            (replace(ROWS, parallel=True, cache="auto"), replace(TREES, parallel=True)),
            ["b: 'b' has cache auto and holds parallel 't'"],
        ),
        # Dimensions of a GPU.
        ((replace(ROWS, gpu="grid.x"), replace(TREES, gpu="block.x")), []),
        (
            (replace(BLOCK, gpu="block.x"), replace(TREES, gpu="grid.x")),
            ["t: grid index 't' lies inside block index 'b1'"],
        ),
        ((ROWS, replace(INSIDE, gpu="block.x", reduce="vector", width=4)), []),
        ((ROWS, replace(INSIDE, gpu="block.x", reduce="vector", width=2)), []),
        ((ROWS, replace(TREES, gpu="block.x", reduce="vector", width=1)), []),
        (
            (ROWS, replace(TREES, gpu="block.x", reduce="vector", width=4)),
            ["t: 't' adds up 4 threads at a time, but has 10"],
        ),
        (
            (ROWS, replace(TREES, stop=3, gpu="block.x", reduce="vector", width=2)),
            ["t: 't' adds up 2 threads at a time, but has 3"],
        ),
        (
            (ROWS, replace(TREES, stop=None, gpu="block.x", reduce="vector", width=4)),
            ["t: 't' adds up 4 threads at a time, but has None"],
        ),
        (
            (
                BLOCK,
                replace(INSIDE, gpu="block.x", reduce="vector", width=4),
                replace(ROWS, case=0),
            ),
            ["t1: 't1' adds up with vectors, but its iterations have loops of their own"],
        ),
    ],
)
def test_each_broken_rule_of_a_nest_is_named(loops: tuple[Loop, ...], expected: list[str]) -> None:
    assert problems(*loops) == expected


def test_parallel_loops_beside_others_are_named() -> None:
    inner = replace(TREES, parallel=True)
    outer = replace(ROWS, parallel=True, children=(inner, replace(TREES, name="u")))
    found = [x.what for x in list_problems((outer, inner), KINDS)]
    assert found == ["'t' lies inside parallel 'b' beside others"]


def test_kinds_that_are_missing_are_named_in_order() -> None:
    (problem,) = list_problems((TREES,), {"tree", "class", "batch"})
    assert problem.advice == "keep loops over batch, class, tree"


# -- what a region covers -------------------------------------------------------------------------

OUTER = Loop("b0", "batch", 0, None, 8)
SMALL = Loop("b2", "batch", 0, 8, 2)
PAIR = Loop("b3", "batch", 0, 2, 1)


@pytest.mark.parametrize(
    ("loop", "guards", "cut"),
    [
        (INSIDE, [], False),
        (INSIDE, [Guard(("t0", "t1"), 10)], True),
        (INSIDE, [Guard(("t0", "t1"), None)], False),
        (make_chain([TILES, INSIDE]), [Guard(("t0", "t1"), 10)], False),
        (INSIDE, [Guard(("t0",), 10)], False),
        (INSIDE, [Guard(("b0", "b1"), 100)], False),
        (make_chain([BLOCK, INSIDE]), [Guard(("b0", "b1"), 100)], False),
    ],
)
def test_a_guard_with_loops_around_cuts_a_region(
    loop: Loop, guards: list[Guard], cut: bool
) -> None:
    assert is_cut(loop, guards, "tree") is cut


@pytest.mark.parametrize(
    ("loops", "guards", "whole"),
    [
        ((BLOCK, INSIDE), [], True),
        ((SMALL, INSIDE), [], False),
        ((SMALL, PAIR, INSIDE), [], True),
        ((replace(BLOCK, start=1), INSIDE), [], False),
        ((BLOCK, INSIDE), [Guard(("b0", "b1"), 100)], False),
        ((BLOCK, INSIDE), [Guard(("b0", "b1"), None)], True),
        # Tiles of a number of rows that is not known.
        ((OUTER, BLOCK, INSIDE), [], True),
        ((BLOCK, OUTER, INSIDE), [], True),
        ((OUTER, INSIDE), [], False),
        ((OUTER, replace(BLOCK, start=1), INSIDE), [], False),
        ((OUTER, replace(BLOCK, stop=7), INSIDE), [], False),
        ((OUTER, SMALL, PAIR, INSIDE), [], True),
        ((OUTER, SMALL, INSIDE), [], False),
        ((ROWS, INSIDE), [], True),
        ((INSIDE,), [], True),
    ],
)
def test_rows_without_gaps_follow_each_other(
    loops: tuple[Loop, ...], guards: list[Guard], whole: bool
) -> None:
    assert has_no_gaps(make_chain(loops), guards, "batch") is whole


def test_loops_beside_each_other_may_leave_gaps() -> None:
    inside = replace(INSIDE, children=(OUTER,)), replace(INSIDE, name="u", children=(ROWS,))
    assert not has_no_gaps(replace(CLASSES, children=inside), [], "batch")


@pytest.mark.parametrize(
    ("kind", "values"), [("tree", [0, 1, 2, 3]), ("class", [0]), ("batch", None)]
)
def test_values_inside_a_region_are_known_or_depend_on_the_rows(kind: Any, values: Any) -> None:
    found = list_values_inside(make_chain([ROWS, INSIDE]), [], kind)
    assert (None if found is None else found.tolist()) == values


def test_walks_that_find_vectors_may_go_together_above_loops_over_classes() -> None:
    nest = make_chain([ROWS, replace(TREES, interleave=2), CLASSES])
    path, wanted = find_path(nest, "c"), {"batch", "tree", "class"}
    (problem,) = list_problems(path, wanted)
    assert str(problem) == "'t' is interleaved but contains 'c'; leave it innermost"
    assert list(list_problems(path, wanted, vectors=True)) == []


def blocks(step: int, count: int) -> tuple[Loop, ...]:
    """Return blocks of rows, a step apart, of so many rows each."""
    return Loop("b0", "batch", 0, None, step), Loop("b1", "batch", 0, count, 1)


@pytest.mark.parametrize(
    ("loops", "whole"),
    [
        ((ROWS, TREES), True),
        ((*blocks(64, 64), TREES), True),
        ((*blocks(4096, 4096), TREES), True),
        ((*blocks(128, 192), TREES), False),
        ((*blocks(128, 100), TREES), False),
        ((*blocks(4096, 4095), TREES), False),
        ((*blocks(10**9, 10**9), TREES), False),
        ((ROWS, replace(TREES, stop=9)), False),
        ((ROWS, replace(TREES, stop=11)), False),
        ((ROWS, *(replace(TREES, name=f"t{k}") for k in range(12))), False),
    ],
    ids=str,
)
def test_a_nest_does_each_row_and_tree_once_for_any_number_of_rows(
    loops: tuple[Loop, ...], whole: bool
) -> None:
    around = make_chain([Loop("", "batch", 0, 1, 1), *loops])
    guards = (Guard(("b0", "b1"), None),) if len(loops) == 3 else ()
    assert does_each_once(Nest(10, nest=around, guards=guards)) == whole


def test_a_nest_without_trees_does_each_of_them() -> None:
    around = make_chain([Loop("", "batch", 0, 1, 1), ROWS, replace(TREES, stop=0)])
    assert does_each_once(Nest(0, nest=around))


@pytest.mark.parametrize(
    "guard",
    [Guard(("t",), None), Guard(("t",), Share(2)), Guard(("b", "t"), 10**6)],
    ids=["trees up to the number of rows", "trees up to half of it", "rows and trees"],
)
def test_a_condition_that_a_few_rows_break_is_no_end_of_trees(guard: Guard) -> None:
    around = make_chain([Loop("", "batch", 0, 1, 1), ROWS, TREES])
    assert not does_each_once(Nest(10, nest=around, guards=(guard,)))
