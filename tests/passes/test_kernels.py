"""What kernels look like: registers, shared memory, shuffles, launches, small integers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

import tvm_forest
from forests import Split, drawn_forest, forest_of
from gpu_schedules import BACKWARDS, ORDERS, check_sums
from quick_builds import lower_sums
from recipe_cases import CASES
from test_simt import forest
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import Schedule, recipes
from tvm_forest.tir_gen.row_coding.searches import row_pitch


def kernels(model: Forest, sch: Schedule) -> str:
    """Return the text of the sums, with plain numbers."""
    text = lower_sums(model, sch, "simt").after["predict"].script()
    return re.sub(r"T\.int(?:64|32)\((-?\d+)\)", r"\1", text)


def recipe(name: str, model: Forest, layout: str = "array") -> Schedule:
    return CASES[name].schedule(tvm_forest.new_schedule(model)).represent_as(layout)


def with_shuffles(model: Forest, threads: int, width: int) -> Schedule:
    """Four rows of a block on block.y, trees on block.x."""
    output = ("class",) if model.n_outputs > 1 else ()
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4)
    sch = sch.tile("tree", "t0", "t1", threads).reorder("b0", "b1", "t1", *output, "t0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.y")
    return sch.gpu_dimension("t1", "block.x").vector_reduce("t1", width)


# -- registers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["E4", "E6", "E7", "E8", "E13"])
@pytest.mark.cases(3, others="long")
def test_a_thread_adds_up_in_registers(name: str) -> None:
    text = kernels(forest(1), recipe(name, forest(1)))
    added = [line for line in text.splitlines() if "= sums[" in line and "reinterpret" in line]
    assert added and all(line.strip().startswith("sums[") for line in added)
    assert not re.search(r"(margin|part)\[[^=]*= .*reinterpret", text)


def test_registers_are_named_by_constants_once_loops_are_written_out() -> None:
    text = kernels(forest(1), recipe("E8", forest(1)))
    loops = re.findall(r"for (\w+) in range\((\w+)\):\n(?:.*\n)*?.*sums\[(\w+)", text)
    assert "T.unroll(4)" in text
    assert not any(index == var for var, _, index in loops)


def test_cells_of_a_thread_are_local() -> None:
    func = lower_sums(forest(3), recipe("E13", forest(3)), "simt").after["predict"]
    scopes = set[str]()
    look = (tirx.AllocBuffer, lambda x: scopes.add(x.buffer.scope()))
    tvm_ffi.structural_walk(func.body, look)
    assert scopes == {"local", "shared"}


def test_an_atomic_addition_is_done_once_for_all_trees_of_a_thread() -> None:
    text = kernels(forest(1), recipe("E7", forest(1)))
    assert re.search(r"atomic_add_float32.*sums\[0\]\)", text)


# -- shared memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "dtype", "pitch"),
    [(4, "float32", 5), (5, "float32", 5), (4, "float64", 5), (8, "uint8", 12), (5, "uint16", 6)],
)
def test_rows_in_shared_memory_are_an_odd_number_of_words_apart(
    columns: int, dtype: str, pitch: int
) -> None:
    word = max(4, np.dtype(dtype).itemsize)
    assert row_pitch(columns, dtype) == pitch
    assert pitch * np.dtype(dtype).itemsize % word == 0
    assert pitch * np.dtype(dtype).itemsize // word % 2 == 1


def test_threads_next_to_each_other_copy_values_next_to_each_other() -> None:
    text = kernels(forest(1), recipe("E13", forest(1)))
    assert "near = T.alloc_shared((32, 5))" in text
    assert "near[0, thready * 40 + threadx // 4 * 5 + threadx % 4] = rows[" in text


def test_wide_rows_are_copied_one_by_one_without_a_division() -> None:
    model = drawn_forest(12, 3, n_features=50)
    sch = in_order(model)
    assert "ahead // 4 * 51 + ahead % 4 * 16 + thready * 4 + threadx] = rows[" in kernels(
        model, sch
    )
    check_sums(model, sch, BACKWARDS)


def test_a_thread_copies_eight_values_at_a_time_and_asks_for_none_whether_it_is_there() -> None:
    model = drawn_forest(12, 3, n_features=20)
    sch = in_order(model, rows=32, trees=2)
    text = kernels(model, sch)
    copies = [line for line in text.splitlines() if " = rows[" in line]
    assert len(copies) == 2  # eight, and two more
    assert all("T.min(" in line and ", n * 20 - 1)]" in line for line in copies)
    assert "T.unroll(8)" in text and "T.unroll(2)" in text
    for order in ORDERS:
        check_sums(model, sch, order, (1, 31, 33, 64))


def test_the_threads_of_a_block_share_the_coding_of_rows() -> None:
    text = kernels(forest(3), recipe("E4", forest(3), "ranked"))
    assert 'codes = T.alloc_shared((256, 12), "uint8")' in text
    assert re.search(r"codes\[turn \* 64 \+ threadx // 4, threadx % 4", text)


def test_codes_that_do_not_fit_lie_in_memory_of_the_device() -> None:
    model = drawn_forest(40, 4, n_features=200)
    sch = recipe("E4", model, "ranked")
    assert "codes = T.alloc_buffer(((n + 255) // 256, 256, " in kernels(model, sch)
    check_sums(model, sch, BACKWARDS, (7, 300))


def test_rows_too_wide_for_shared_memory_are_refused_with_the_number_that_fits() -> None:
    model = forest_of([Split(1999, 0.5, 1.0, 2.0)], n_features=2000)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 64).gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x").cache("b0")
    with pytest.raises(ScheduleError, match=r"512256 \(near 64 x 2001\).*use at most 29 rows"):
        tvm_forest.build(model, "simt", sch)


def test_a_part_of_the_forest_is_near_every_block_that_walks_it() -> None:
    text = kernels(forest(1), recipe("E7", forest(1)))
    kernel = text[text.index("blockIdx.y") :]
    assert kernel.index("blockIdx.x") < kernel.index("near_nodes = T.alloc_shared")


# -- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize(("threads", "width"), [(8, 8), (8, 4), (12, 2)])
@pytest.mark.cases(2, others="long")
def test_lanes_of_a_warp_add_up_their_sums(threads: int, width: int, classes: int) -> None:
    model = forest(classes)
    check_sums(model, with_shuffles(model, threads, width), ORDERS[classes % 2], (1, 7, 33))


@pytest.mark.parametrize(
    "how", ["vector_reduce", "atomic_reduce", "shared_reduce", "ordered_reduce"]
)
def test_threads_inside_a_loop_over_trees_keep_their_sums(how: str) -> None:
    model = forest(3)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 4)
    sch = sch.reorder("b0", "t0", "b1", "t1", "class").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.y").gpu_dimension("t1", "block.x")
    sch = getattr(sch, how)("t1", *[4] * (how == "vector_reduce"))
    check_sums(model, sch, BACKWARDS, (1, 7))


def test_one_group_of_lanes_needs_no_shared_memory() -> None:
    one, two = (kernels(forest(1), with_shuffles(forest(1), 8, width)) for width in (8, 4))
    assert one.count("tvm_warp_shuffle_down") == 3 and "alloc_shared" not in one
    assert two.count("tvm_warp_shuffle_down") == 2 and "part = T.alloc_shared((2, 1, 4))" in two


@pytest.mark.parametrize(
    ("classes", "threads", "barriers"),
    [
        (1, 2, 2),  # 4 sums of 8 threads: a thread finishes whole ones
        (1, 8, 5),  # of 32: 8 become 4, 2 and 1
        (3, 4, 2),  # 12 of 16
        (3, 8, 5),  # 12 of 32
    ],
)
def test_threads_share_a_sum_where_there_are_few(classes: int, threads: int, barriers: int) -> None:
    model = forest(classes)
    sch = recipes.tahoe_shared_data_rows(tvm_forest.new_schedule(model), 4, threads)
    sch = sch.shared_reduce("t1")
    assert kernels(model, sch).count("T.tvm_storage_sync") == barriers
    check_sums(model, sch, BACKWARDS, (1, 7))


def in_order(model: Forest, rows: int = 4, trees: int = 4, chunk: int = 0) -> Schedule:
    """Rows on block.x, trees on block.y, added in order."""
    how = {"rows_tb": rows, "tree_threads": trees, "tree_chunk": chunk, "shared": "ordered"}
    return recipes.gpu_template(tvm_forest.new_schedule(model), unroll=False, factor=1, **how)


def test_leaves_of_threads_meet_in_shared_memory_and_one_thread_adds_them() -> None:
    text = kernels(forest(1), in_order(forest(1)))
    assert "terms = T.alloc_shared((13, 1, 4))" in text
    assert text.count("T.tvm_storage_sync") == 2  # rows, leaves
    assert not re.search(r"sums|-0.0", text)
    assert re.search(r"total\[0\] = total\[0\] \+ terms\[", text)


@pytest.mark.parametrize("chunk", [4, 8])
def test_places_of_trees_that_a_guard_cuts_off_hold_what_changes_no_sum(chunk: int) -> None:
    model = forest(1)
    text = kernels(model, in_order(model, chunk=chunk))
    assert f"terms = T.alloc_shared(({chunk}, 1, 4))" in text
    assert re.search(r"terms\[.* = T.float32\(-0.0\)", text)
    leaves = [-0.0] * 13  # the sum of these is -0.0 as well
    zeros = forest_of(leaves, base=(-0.0,))
    rows = np.zeros((9, zeros.n_features), np.float32)
    margin = tvm_forest.build(zeros, "simt", in_order(zeros, chunk=chunk)).predict_margin(rows)
    assert np.signbit(margin).all()


def test_trees_on_the_grid_are_added_in_order_by_another_kernel() -> None:
    model = forest(1)
    given = {"rows_tb": 4, "tree_threads": 2, "tree_blocks": 3, "shared": "ordered"}
    sch = recipes.gpu_template(tvm_forest.new_schedule(model), unroll=False, **given)
    text = kernels(model, sch)
    assert sch.keeps_order and launches(text) == 3  # base scores, walks, additions
    assert "terms = T.alloc_buffer((13, 1, n))" in text
    check_sums(model, sch, BACKWARDS, (0, 1, 7, 33))


def test_the_smallest_and_the_largest_leaf_may_be_looked_for_by_several_threads() -> None:
    model = replace(forest(1), aggregate="min", base_score=np.zeros(1, np.float32))
    rows = hard_rows(model, 33)
    made = tvm_forest.build(model, "simt", in_order(model, chunk=8))
    assert np.array_equal(made.predict_margin(rows), model.predict_reference(rows)[:, 0])


@pytest.mark.parametrize("trees", [16, 37])
def test_terms_are_loaded_sixteen_at_a_time_and_added_in_order(trees: int) -> None:
    model = drawn_forest(trees, 2)
    text = kernels(model, in_order(model))
    assert f"for group in range({trees // 16}):" in text
    assert "for each in T.unroll(16):" in text
    check_sums(model, in_order(model), BACKWARDS, (7,))


@pytest.mark.parametrize("how", ["ordered_reduce", "shared_reduce"])
def test_trees_that_lie_apart_have_places_side_by_side(how: str) -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 2)
    sch = sch.reorder("b0", "t1", "b1", "t0").gpu_dimension("b0", "grid.x")
    sch = getattr(sch.gpu_dimension("b1", "block.y").gpu_dimension("t0", "block.x"), how)("t0")
    text = kernels(model, sch)
    assert re.search(r"(terms|part) = T.alloc_shared\(\(7, 1, 4\)\)", text)
    assert " < n:" in text and "<= n" not in text  # no sum lies behind the last row
    check_sums(model, sch, BACKWARDS, (1, 7))


def test_terms_that_do_not_fit_are_refused_with_the_trees_and_rows_that_would() -> None:
    model = drawn_forest(1000, 1)
    said = r"256000 \(terms 1000 x 1 x 64\).* at most 908 trees at a time, .* or at most 58 rows"
    sch = in_order(model, rows=64).without("cache")
    with pytest.raises(ScheduleError, match=said):
        tvm_forest.build(model, "simt", sch)


def test_rows_of_a_block_with_gaps_are_refused() -> None:
    start = tvm_forest.new_schedule(forest(1)).tile("batch", "b0", "b1", 10)
    start = (
        start.tile("b1", "b2", "b3", 4).gpu_dimension("b0", "grid.x").reorder("b2", "tree", "b3")
    )
    start = start.gpu_dimension("b3", "block.x").gpu_dimension("tree", "block.y")
    check_sums(forest(1), start.atomic_reduce("tree"), BACKWARDS, (1, 33))
    for sch in (
        start,
        start.shared_reduce("tree"),
        start.reorder("b3", "tree").ordered_reduce("tree"),
    ):
        with pytest.raises(ScheduleError, match="the rows of .* have gaps"):
            tvm_forest.build(forest(1), "simt", sch, exact=False)


REFUSED = {
    "another dimension": (lambda s: s.gpu_dimension("t1", "block.y"), 4, "mapped to block.y"),
    "a remainder": (lambda s: s.gpu_dimension("t1", "block.x"), 8, "8 does not divide the 12"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lanes_that_are_not_next_to_each_other_are_refused(name: str) -> None:
    change, width, message = REFUSED[name]
    start = tvm_forest.new_schedule(forest(1)).tile("tree", "t0", "t1", 12).reorder("t1", "t0")
    with pytest.raises(ScheduleError, match=message):
        change(start.reorder("batch", "t1", "t0")).vector_reduce("t1", width)


def test_lanes_that_do_different_things_are_refused() -> None:
    sch = with_shuffles(forest(1), 8, 8)
    with pytest.raises(ScheduleError, match="'t1' adds up with vectors, but its iterations have"):
        sch.specialize("t1")
    with pytest.raises(ScheduleError, match="'d1' adds up 8 threads at a time, but has 2"):
        sch.split("t1", "d1", "d2", 2)


def test_trees_that_guards_leave_out_are_not_copied() -> None:
    sch = tvm_forest.new_schedule(forest(1)).tile("tree", "t0", "t1", 5).reorder("t1", "t0")
    sch = sch.tile("batch", "b0", "b1", 4).reorder("b0", "b1", "t1", "t0")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x").cache("t0", "shared")
    text = kernels(forest(1), sch.gpu_dimension("t1", "block.y"))
    assert len(re.findall(r"T.if_then_else\(\w+ \* 5 \+ thready < 13, offset\[", text)) >= 1


def test_groups_of_lanes_must_fill_the_block() -> None:
    sch = tvm_forest.new_schedule(forest(1)).tile("batch", "b0", "b1", 6)
    sch = sch.reorder("b0", "tree", "b1").split("tree", "d1", "d2", 4).gpu_dimension("b0", "grid.x")
    sch = (
        sch.gpu_dimension("d1", "block.x").vector_reduce("d1", 4).gpu_dimension("b1@d2", "block.x")
    )
    with pytest.raises(ScheduleError, match="6 threads of block.x .* in groups of 4"):
        tvm_forest.build(forest(1), "simt", sch, exact=False)


@pytest.mark.parametrize("name", ["E3", "E5b", "E8", "E13"])
@pytest.mark.cases(2, others="long")
def test_sums_without_atomic_additions_are_the_same_in_every_run(name: str) -> None:
    model = forest(3)
    sch, rows = recipe(name, model), hard_rows(model, 33)
    first, second = (tvm_forest.build(model, x, sch, exact=False) for x in ORDERS)
    assert sch.reproducible and not recipe("E7", model).reproducible
    assert first.predict_margin(rows).tobytes() == second.predict_margin(rows).tobytes()


def test_loops_beside_each_other_share_the_sums_of_a_dimension() -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 4)
    sch = sch.reorder("b0", "b1", "t0", "t1").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x").gpu_dimension("t0", "block.y").specialize("t0")
    sch = sch.gpu_dimension("t1@t0=0", "block.z").gpu_dimension("t1@t0=2", "block.z")
    check_sums(model, sch, BACKWARDS, (1, 7))


def test_trees_beside_those_of_threads_are_added_to_the_sum_of_the_first_thread() -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("batch", "b0", "b1", 4).split("tree", "d1", "d2", 1)
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.y")
    sch = sch.gpu_dimension("d1", "block.x")
    assert set(re.findall(r"part\[blockx, (\w+)", kernels(model, sch))) == {"0"}
    check_sums(model, sch, BACKWARDS, (1, 7))


# -- what is launched -----------------------------------------------------------------------------


def launches(text: str) -> int:
    """Count the kernels of a function; every statement must be in one."""
    lines = text[text.index("def ") :].splitlines()
    outer = [x for x in lines if re.match(r"    (    )?for ", x)]
    starts = [x for x in outer if re.match(r"    for ", x)]
    assert all("thread_binding" in x for x in starts), starts
    return len(starts)


@pytest.mark.parametrize(("name", "count"), [("E4", 1), ("E8", 1), ("E13", 1), ("E7", 3)])
def test_values_are_made_in_the_kernel_that_made_the_sums(name: str, count: int) -> None:
    model = drawn_forest(39, 3, seed=3, base=(0.5, -1.0, 2.0), link="softmax")
    sch, rows = recipe(name, model), hard_rows(model, 33)
    assert launches(kernels(model, sch)) == count
    predictor = tvm_forest.build(model, BACKWARDS, sch, exact=False)
    assert np.abs(predictor.predict(rows) - model.predict_reference(rows, "value")).max() < 1e-5


def test_rows_are_coded_ahead_by_a_kernel_where_trees_come_first() -> None:
    text = kernels(forest(1), recipe("E7", forest(1), "ranked"))
    assert launches(text) == 4  # base scores, two kinds of columns, walks


def test_partial_sums_of_blocks_are_added_by_a_kernel() -> None:
    model = forest(1)
    sch = tvm_forest.new_schedule(model).tile("tree", "g", "t", 3).tile("batch", "b0", "b1", 4)
    sch = sch.reorder("g", "b0", "b1", "t").gpu_dimension("g", "grid.y")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    assert launches(kernels(model, sch)) == 4  # base scores, zeros, walks, additions
    check_sums(model, sch, BACKWARDS, (1, 7, 33))


# -- small integers -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["array", "packed", "ranked", "reorg", "sparse"])
@pytest.mark.cases(2, others="long")
def test_walks_count_in_32_bits(layout: str) -> None:
    func = lower_sums(forest(1), recipe("E13", forest(1), layout), "simt").after["predict"]
    wide = set[str]()

    def look(x: Any) -> None:
        if x.buffer.dtype == "int64":
            wide.add(x.buffer.name.split("_")[0])

    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, look))
    assert wide == ({"word"} if layout == "packed" else set())


@pytest.mark.slow
def test_a_batch_of_more_than_two_billion_values_is_walked_to_its_end() -> None:
    features, n = 2**20, 2**11 + 5
    model = forest_of([Split(features - 1, 0.5, 1.0, 2.0)], n_features=features)
    predictor = tvm_forest.build(model, "simt")
    rows = np.zeros((n, features), np.float32)  # pages that nobody writes take no memory
    rows[-1, -1] = rows[2**10, -1] = 1.0
    values = predictor.predict_margin(rows)
    assert np.flatnonzero(values == 2).tolist() == [2**10, n - 1]
