"""Iterations that run at the same time write to memory of their own, whatever walks keep there."""

from __future__ import annotations

from itertools import product

import pytest
from tvm import tirx
from tvm.script import tirx as T

import tvm_forest
from forests import Split, chain, drawn_forest, forest_of, full_forest
from quick_builds import lower_sums
from races import find_kernel_races, find_races
from schedules import check_results
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

FORESTS = {
    "lists": forest_of([chain(12), chain(20), *[chain(9, -0.5)] * 14]),
    "complete": full_forest(16, 4),
    "oblivious": forest_of([Split(0, 0.5, *[Split(1, k / 16, 1.0, k)] * 2) for k in range(16)]),
    "classes": drawn_forest(32, 4, base=[0.5, 1.0]),
}
BLOCKS = {"bitsliced": ("bits", 64), "levels": ("permute", 16), "ranked": ("gather", 16)}
TREES = ("octets", "pieces")
SUMS = ("", "ordered_reduce", "atomic_reduce", "vector_reduce")
PARALLEL = (("t0",), ("b0", "t0"), ("class",))


def schedule(forest: Forest, layout: str, parallel: tuple[str, ...], sums: str) -> Schedule:
    """Blocks of rows in tiles of trees, or one row in many, of which some loops are parallel."""
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("tree", "t0", "t1", 8)
    classes = ["class"] if sch.classes > 1 else []
    how, rows = BLOCKS.get(layout, (layout, 8))
    sch = sch.tile("batch", "b0", "b1", rows)
    last = ["b1", "t1"] if layout in TREES else ["t1", "b1"]
    order = ["b0", *classes, "t0", *last] if "class" in parallel else ["b0", "t0", *classes, *last]
    sch = sch.reorder(*order).simdize(last[-1], how)
    for loop in parallel:
        sch = sch.parallel(loop)
    if sums:
        sch = getattr(sch, sums)("t0", *([8] if sums == "vector_reduce" else []))
    return sch


CASES = [
    (name, layout, parallel, sums)
    for name, layout, parallel, sums in product(FORESTS, (*BLOCKS, *TREES), PARALLEL, SUMS)
    if ("class" in parallel) <= (name == "classes" and not sums)
    if not (name == "lists" and layout == "octets")  # too deep
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "parallel", "sums"), CASES)
@pytest.mark.cases(4)
def test_nothing_is_written_to_one_place_by_iterations_that_run_at_the_same_time(
    name: str, layout: str, parallel: tuple[str, ...], sums: str
) -> None:
    forest = FORESTS[name]
    lowered = tvm_forest.lower(forest, schedule(forest, layout, parallel, sums))
    races = {var.name_hint: find_races(func) for var, func in lowered.after.functions.items()}
    assert not any(races.values()), races


def test_walks_by_lists_of_selections_share_the_planes_of_tests_alone() -> None:
    forest = FORESTS["lists"]
    sch = schedule(forest, "bitsliced", ("t0",), "ordered_reduce")
    function = lower_sums(forest, sch).after["predict_parallel"]
    assert find_races(function) == set()
    assert "spare" in function.script()


@pytest.mark.parametrize("layout", ["bitsliced", "levels", "octets"])
def test_sums_that_are_kept_for_a_while_are_added_atomically(layout: str) -> None:
    forest = FORESTS["complete"]
    sch = schedule(forest, layout, ("t0",), "atomic_reduce")
    assert find_races(lower_sums(forest, sch).after["predict_parallel"]) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "sums"),
    [
        ("lists", "bitsliced", "ordered_reduce"),
        ("lists", "bitsliced", "atomic_reduce"),
        ("classes", "bitsliced", ""),
        ("classes", "levels", "ordered_reduce"),
    ],
)
@pytest.mark.cases(2, others="long")
def test_rows_and_trees_may_both_be_parallel(name: str, layout: str, sums: str) -> None:
    forest = FORESTS[name]
    sch = schedule(forest, layout, ("b0", "t0"), sums)
    check_results(forest, sch, (200,), outputs=("margin",))


def test_a_race_is_found() -> None:
    """The loop over trees adds to one element, which it may do if it is not parallel."""
    cell = tirx.decl_buffer((1,), "float32", "cell")
    held = tirx.decl_buffer((1,), "int64", "held")
    var = tirx.Var("i", "int64")
    zero = tirx.IntImm("int64", 0)

    def loop(at: object, kind: int) -> tirx.PrimFunc:
        store = tirx.BufferStore(cell, tirx.const(1.0, "float32"), [at])
        keep = tirx.BufferStore(held, var, [zero])
        body = tirx.SeqStmt([tirx.AllocBuffer(held), keep, store])
        return tirx.PrimFunc([], tirx.For(var, zero, tirx.IntImm("int64", 4), kind, body))

    parallel, serial = tirx.ForKind.PARALLEL, tirx.ForKind.SERIAL
    assert find_races(loop(zero, parallel)) == {"cell"}
    assert not find_races(loop(zero, serial))
    assert not find_races(loop(held[zero], parallel))


@T.prim_func
def stores_of_threads(
    a: T.Buffer((8, 4), "float32", align=4),
    last: T.Buffer((2, 8), "float32", align=4),
    both: T.Buffer((2, 8), "float32", align=4),
):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for ty in T.thread_binding(2, thread="threadIdx.y"):
            for tx in T.thread_binding(4, thread="threadIdx.x"):
                near = T.alloc_buffer((4,), "float32", scope="shared")
                far = T.alloc_buffer((4,), "float32", scope="shared")
                if ty == 0:
                    near[tx] = T.float32(1)
                far[ty] = T.float32(1)
                a[bx, tx] = near[tx]
                if 2 < tx:
                    last[ty, bx] = near[tx]
                if 1 < tx:
                    both[ty, bx] = near[tx]


def test_a_race_of_threads_is_found() -> None:
    """Threads share `far` along x and `a` along y; of `near`, each block has its own.

    The last thread along x is alone where it stores to `last`; the last two store to `both`.
    """
    assert find_kernel_races(stores_of_threads) == {"far", "a", "both"}
