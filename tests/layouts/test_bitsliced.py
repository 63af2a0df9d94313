"""The bit-sliced layout: planes, selections and tables, on rows that lie on thresholds."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import tvm_forest
from forests import Split, chain, drawn_forest, forest_of, full_forest
from schedules import check_results, in_blocks
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import protocol
from tvm_forest.layouts.bitsliced import list_depths
from tvm_forest.layouts.row_codes import planes, selections
from tvm_forest.layouts.row_codes.selections import is_listed
from tvm_forest.schedule_prims import Schedule

BLOCKS = (64, 128, 256, 512)
COMPARISONS: tuple[Literal["<", "<="], ...] = ("<", "<=")


def sliced(forest: Forest, rows: int = 64) -> Schedule:
    return in_blocks(forest, "bitsliced", rows)


def in_larger_blocks(forest: Forest, words: int) -> Schedule:
    """Rows are coded in blocks of 64 times so many, and walk 64 by 64."""
    sch = tvm_forest.new_schedule(forest).represent_as("bitsliced")
    sch = sch.tile("batch", "b0", "b1", 64 * words).tile("b1", "b2", "b3", 64)
    return sch.reorder("b0", "b2", "tree", "b3").simdize("b3", "bits")


def pack(forest: Forest) -> tuple[Any, Any]:
    return protocol.find("bitsliced").pack(canonicalize(forest))


# -- planes, selections and tables ----------------------------------------------------------------


def test_nodes_that_ask_the_same_share_a_plane() -> None:
    trees = [Split(0, 0.5, 1.0, Split(1, 2.0, 1.0, 2.0)), Split(0, 0.5, 3.0, 4.0)]
    trees += [Split(0, 0.5, 3.0, 4.0, True), Split(0, 0.25, 3.0, 4.0)]
    tests = planes.number_tests(forest_of(trees))
    inner = forest_of(trees).is_leaf == 0
    assert tests.code.tests == planes.MIN_PLANES
    assert tests.arrays["column_planes"].tolist() == [0, 2, 3, 4]
    assert tests.plane[inner].tolist() == [1, 2, 1, 3, 0]


@pytest.mark.parametrize("words", [1, 4, 8])
def test_eight_planes_are_the_bits_of_numbers_in_order(words: int) -> None:
    """Word k of row i of the exchanged planes belongs to the rows from 64 k + 8 i on."""
    bits = [planes.bit_of_row(row) for row in range(64 * words)]
    assert sorted(bits) == list(range(64 * words))
    for row, bit in enumerate(bits):
        byte, place = divmod(bit, 8)
        assert row == byte // 8 * 64 + 8 * place + byte % 8
        assert planes.byte_of_row(row, words) == place * 8 * words + byte


def test_a_complete_tree_is_a_table_of_tests_and_one_of_leaves() -> None:
    forest = forest_of([Split(2, 0.5, -1.0, Split(1, 2.0, 3.0, 5.0))])
    rep, arrays = pack(forest)
    assert (rep.depths, rep.bits, rep.table) == ((6, 5, 4, 3, 2, 1), 6, 64)
    assert arrays["tests"].tolist() == [1, 0, 0, 0]
    assert arrays["leaf_value"][:4].tolist() == [5.0, 3.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("deepest", "depths"),
    [(-1, ()), (0, (6, 5, 4, 3, 2, 1)), (6, (6, 5, 4, 3, 2, 1)), (8, (8, 7, 6, 5, 4, 3))],
)
def test_code_for_complete_trees_is_for_the_same_depths_in_many_models(
    deepest: int, depths: tuple[int, ...]
) -> None:
    assert list_depths(deepest) == depths


@pytest.mark.long
def test_a_tree_that_no_code_is_as_shallow_as_is_completed() -> None:
    def complete(depth: int, number: int = 1) -> Any:
        sides = (complete(depth - 1, 2 * number + k) for k in (0, 1)) if depth else ()
        return Split(depth % 3, number / 64, *sides) if depth else float(number)

    forest = forest_of([complete(7), Split(2, 0.5, 3.0, 4.0), 5.0])
    rep, arrays = pack(forest)
    assert rep.depths == (7, 6, 5, 4, 3, 2)
    assert arrays["depth"].tolist() == [7, 2, 2]
    check_results(forest, sliced(forest), (65,), jobs=(1,))


def test_selections_lead_to_the_leaf_of_the_reference_walk() -> None:
    """Interpreted here, one row at a time, on a tree that no complete form would hold."""
    forest = forest_of([chain(23), chain(9, -0.5), 0.5])
    rep, arrays = pack(forest)
    assert rep.depths == (6, 5, 4, 3, 2, 1)
    rows = hard_rows(forest, 200)
    tests = planes.number_tests(forest)
    for row, leaves in zip(rows, forest.predict_reference(rows, "apply"), strict=True):
        passed = truth(forest, tests.plane, rep.code, row)
        for tree in (0, 1):
            assert leaf_of(arrays, rep, tree, passed) == leaves[tree]


def test_selections_are_counted_without_being_written() -> None:
    forest = forest_of([chain(23), chain(9, -0.5), 0.5])
    rep, arrays = pack(forest)
    zeros = sum(rep.code.tests << 16 * k for k in range(3))  # of a bit that is 0 in all leaves
    written = [word for word in map(int, arrays["selections"]) if word & 2**48 - 1 != zeros]
    count = selections.count_selections(forest, is_listed(forest))
    assert count == len([word for word in written if word]) > 50


def truth(forest: Forest, plane: Any, code: Any, row: Any) -> Any:
    passed = np.zeros(code.tests + code.spare, bool)
    passed[code.tests + 1] = True
    for node in np.flatnonzero(~forest.is_leaf):
        x = row[forest.feature[node]]
        left = forest.default_left[node] if np.isnan(x) else x < forest.threshold[node]
        passed[plane[node]] = left
    return passed


def leaf_of(arrays: Any, rep: Any, tree: int, passed: Any) -> int:
    first, count = int(arrays["first"][tree]), int(arrays["count"][tree])
    for word in map(int, arrays["selections"][first : first + count]):
        test, true, false, into = (word >> 16 * k & 0xFFFF for k in range(4))
        passed[into] = passed[true] if passed[test] else passed[false]
    bits = passed[rep.code.tests + 2 :][: rep.bits]
    number = sum(int(bit) << k for k, bit in enumerate(bits))
    return int(arrays["leaf_id"][arrays["leaf_at"][tree] + number])


def test_a_depth_that_hardly_any_tree_has_gets_no_code_of_its_own() -> None:
    stump, deeper = Split(0, 0.5, 1.0, 2.0), Split(0, 0.5, Split(1, 0.5, 1.0, 2.0), 3.0)
    assert not is_listed(forest_of([deeper, *[stump] * 63])).any()
    assert np.flatnonzero(is_listed(forest_of([deeper, *[stump] * 64]))).tolist() == [0]


def test_leaves_are_numbered_from_right_to_left() -> None:
    forest = forest_of([Split(0, 0.0, Split(1, 0.0, 1.0, 2.0), Split(1, 1.0, 3.0, 4.0))])
    first, count = selections.number_leaves(forest)
    assert count.tolist() == [4, 2, 2, 1, 1, 1, 1]
    assert first.tolist() == [0, 2, 0, 3, 2, 1, 0]


# -- compiled results -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("count", [1, 15, 4096, 16, 17, 240, 256, 255])
@pytest.mark.cases(1)
def test_every_number_of_thresholds_is_sliced(count: int, comparison: Literal["<", "<="]) -> None:
    """Of one feature, with missing values to the left and to the right, zeros and infinities."""
    drawn = np.sort(np.random.default_rng(count).normal(size=count))
    drawn[:: max(1, count // 3)] = (np.inf, -np.inf, 0.0, -0.0)[: len(drawn[:: max(1, count // 3)])]
    trees = [Split(1, float(t), i, -i, left) for left in (False, True) for i, t in enumerate(drawn)]
    forest = replace(forest_of(trees), comparison=comparison)
    check_results(forest, sliced(forest), (200,), jobs=(1,), outputs=("margin",))


@pytest.mark.long
def test_deep_trees_and_wide_tables_are_exact() -> None:
    """Lists of selections beside complete trees, then more leaves than a byte can number."""
    forest = forest_of([chain(40), *[Split(0, 0.5, 1.0, 2.0)] * 3, chain(300, 0.01), 7.0])
    check_results(forest, sliced(forest, 128), (1, 130), jobs=(1,))
    forest = full_forest(2, 9)
    assert pack(forest)[0].bits == 12
    check_results(forest, sliced(forest, 256), (1, 300), jobs=(1,))


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["average", "min", "max"])
@pytest.mark.cases(1)
def test_averages_and_extremes_are_exact(aggregate: Any) -> None:
    forest = replace(drawn_forest(7, 4), aggregate=aggregate)
    check_results(forest, sliced(forest), (1, 70), jobs=(1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", ["x86-64", "haswell", "skylake-avx512"])
def test_older_cpus_get_code_of_their_own(mcpu: str) -> None:
    forest = forest_of([*[chain(5)] * 2, chain(20), Split(1, 0.5, 1.0, 2.0)])
    target = {"kind": "llvm", "mcpu": mcpu}
    try:
        predictor = tvm_forest.build(forest, target=target, schedule=sliced(forest, 128))
    except BuildError as error:
        assert "lacks" in str(error)  # this machine is older
        return
    rows = hard_rows(forest, 150)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "mcpu"), [(3, None), (3, "haswell"), (6, None), (20, None), (32, None)]
)
@pytest.mark.cases(2)
def test_blocks_of_any_number_of_words_are_exact(words: int, mcpu: str | None) -> None:
    """With columns of few, some and many thresholds, and a list of selections."""
    stumps = [
        Split(feature, float(k), k, -k, k % 2 == 0)
        for feature, count in enumerate((5, 40, 300))
        for k in range(count)
    ]
    forest = forest_of([*stumps, chain(20)])
    target = {"kind": "llvm"} | ({"mcpu": mcpu} if mcpu else {})
    try:
        predictor = tvm_forest.build(forest, target, in_larger_blocks(forest, words))
    except BuildError as error:
        assert "lacks" in str(error)  # this machine is older
        return
    rows = hard_rows(forest, 64 * words + 70)
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


@pytest.mark.long
def test_trees_in_parallel_are_close() -> None:
    forest = drawn_forest(40, 5)
    sch = tvm_forest.new_schedule(forest).represent_as("bitsliced").tile("batch", "b0", "b1", 64)
    sch = sch.tile("tree", "t0", "t1", 10).reorder("b0", "t0", "t1", "b1").simdize("b1", "bits")
    check_results(forest, sch.parallel("t0"), (1, 100))


# -- refusals -------------------------------------------------------------------------------------


def refused(forest: Forest, sch: Schedule, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        tvm_forest.build(forest, schedule=sch)


def test_another_walk_than_by_bits_is_refused() -> None:
    forest = drawn_forest(3, 3)
    sch = tvm_forest.new_schedule(forest).represent_as("bitsliced")
    refused(forest, sch, ScheduleError, "'bitsliced' is walked by bits only, not as 'tree' is")


def test_bits_of_another_layout_are_refused() -> None:
    forest = drawn_forest(3, 3)
    sch = sliced(forest).represent_as("array")
    refused(forest, sch, ScheduleError, "'bits' is for layout 'bitsliced', not for 'array'")


def test_blocks_without_bound_are_refused() -> None:
    forest = drawn_forest(3, 3)
    sch = tvm_forest.new_schedule(forest).represent_as("bitsliced").tile("batch", "b0", "b1", 64)
    sch = sch.reorder("tree", "b0", "b1").simdize("b1", "bits")
    refused(forest, sch, ScheduleError, "codes rows in blocks of a known size")


def test_blocks_whose_words_begin_elsewhere_are_refused() -> None:
    sch = tvm_forest.new_schedule(drawn_forest(3, 3)).represent_as("bitsliced")
    sch = sch.tile("batch", "b0", "b1", 200).tile("b1", "b2", "b3", 96).tile("b3", "b4", "b5", 64)
    sch = sch.reorder("b0", "b2", "b4", "tree", "b5").simdize("b5", "bits")
    message = "'bits' takes groups of 64 rows, but 'b2' begins at multiples of 96 in a block"
    refused(drawn_forest(3, 3), sch, ScheduleError, message)


def test_other_numbers_of_rows_are_refused() -> None:
    sch = tvm_forest.new_schedule(drawn_forest(3, 3)).tile("batch", "b0", "b1", 32)
    sch = sch.reorder("b0", "tree", "b1")
    with pytest.raises(ScheduleError, match=re.escape("extent 32 is not a lane count (64, 128")):
        sch.simdize("b1", "bits")


def test_tiles_are_refused() -> None:
    forest = drawn_forest(3, 3)
    message = "'bitsliced' cannot hold tiles of 4 nodes"
    refused(forest, sliced(forest).tile_nodes(4), ScheduleError, message)
