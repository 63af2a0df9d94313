"""The layout of ranks: what its codes and words are, and that every nest codes its rows once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

import tvm_forest
from forests import Split, drawn_forest, forest_of
from schedules import check_results
from tvm_forest.errors import BuildError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import protocol
from tvm_forest.layouts.row_codes import ranks
from tvm_forest.passes import pipeline
from tvm_forest.passes.reading.read_nest import read_nest
from tvm_forest.runtime.results import sizes_array
from tvm_forest.schedule_prims import Schedule, replay
from tvm_forest.targets import cpu
from tvm_forest.tir_gen.canonical import emit_canonical

SIZES = (0, 1, 7, 33, 65)


def schedule(forest: Forest) -> Schedule:
    return tvm_forest.new_schedule(forest).represent_as("ranked")


def stumps(thresholds: Any, default_left: bool = False, **fields: Any) -> Forest:
    """One test of feature 1 a tree; the leaves say which tree they are of."""
    trees = [Split(1, t, float(i), -float(i), default_left) for i, t in enumerate(thresholds)]
    return forest_of(trees, **fields)


def pack(forest: Forest) -> tuple[Any, Any]:
    return protocol.find("ranked").pack(forest)


# -- codes and words ------------------------------------------------------------------------------


def test_a_node_is_one_word() -> None:
    forest = forest_of([Split(2, 0.5, -1.0, Split(1, 2.0, 3.0, Split(2, -3.0, 5.0, 6.0)))])
    rep, arrays = pack(forest)
    words = arrays["nodes"].astype(np.int64)
    assert (rep.rank_bits, rep.column_bits) == (8, 8)
    assert arrays["column_feature"].tolist() == [1, 2]
    assert (words & 255).tolist() == [2, 0, 1, 0, 1, 0, 0]
    assert (words >> 8 & 255).tolist() == [1, 0, 0, 0, 1, 0, 0]
    assert (words >> 16 & 1).tolist() == [1, 0, 1, 0, 1, 0, 0]
    assert (words >> 17).tolist() == [1, 1, 3, 3, 5, 5, 6]


def test_signed_zeros_are_one_threshold_and_untested_features_none() -> None:
    code = ranks.rank_tests(stumps([0.0, -0.0, 1.0], n_features=9))
    assert code.code.columns == 1
    assert code.rank[code.rank > 0].tolist() == [1, 1, 2]


def test_a_feature_tested_with_both_sides_has_two_columns() -> None:
    trees = [Split(0, 0.5, 1.0, 2.0, True), Split(0, 0.5, 1.0, 2.0), Split(1, 0.5, 1.0, 2.0)]
    code = ranks.rank_tests(forest_of(trees))
    assert code.arrays["column_feature"].tolist() == [0, 1, 0]
    groups = [(x.stop, x.steps, x.missing_left) for x in code.code.groups]
    assert groups == [(2, 1, False), (3, 1, True), (3, 2, False), (3, 2, True)]
    assert code.arrays["group_stops"].tolist() == [2, 3, 3, 3]


@pytest.mark.parametrize(
    ("count", "dtype", "steps", "cuts"),
    [
        (15, "uint8", 1, 16),
        (16, "uint8", 2, 16 + 32),
        (255, "uint8", 2, 16 + 256),
        (256, "uint16", 3, 16 + 256 + 272),
        (4096, "uint16", 4, 16 + 256 + 4096 + 4112),
    ],
)
def test_codes_and_tables_are_as_long_as_the_thresholds_ask(
    count: int, dtype: str, steps: int, cuts: int
) -> None:
    rep, arrays = pack(stumps(range(count)))
    groups = [ranks.SearchGroup(int(n >= steps), n, False) for n in range(1, max(2, steps) + 1)]
    assert rep.code == ranks.RankCode(dtype, tuple(groups))
    assert (arrays["cuts"].dtype, arrays["cuts"].shape) == (np.float32, (cuts,))


def test_more_thresholds_than_16_bits_count_are_refused() -> None:
    forest = stumps(range(65536))
    message = (
        "represent_as: layout 'ranked': feature 1 has 65536 thresholds, a code of 16 bits tells "
        r"65535 apart; use represent_as\('packed'\)"
    )
    with pytest.raises(BuildError, match=message):
        pack(forest)
    same = np.where(forest.threshold == 7, np.float32(8), forest.threshold)
    assert pack(replace(forest, threshold=same))[0].code.dtype == "uint16"


def test_a_child_that_does_not_fit_is_refused_with_its_node() -> None:
    """Ranks of 16 bits and 1,024 columns leave 5 bits for a child."""
    tree: Any = 0.0
    for count in range(18):
        tree = Split(0, float(count), 1.0, tree)
    others = [Split(f, 0.5, 0.0, 1.0) for f in range(1, 1024)]
    forest = forest_of([*others, *stumps_of_0(256), tree], n_features=1024)
    message = "tree 1279, node 32: child 33 does not fit the 5 bits that ranks and columns leave"
    with pytest.raises(BuildError, match=message):
        pack(forest)


def stumps_of_0(count: int) -> list[Any]:
    return [Split(0, float(i), 0.0, 1.0) for i in range(count)]


# -- compiled results -----------------------------------------------------------------------------

COMPARISONS: tuple[Literal["<", "<="], ...] = ("<", "<=")
TINY = float(np.finfo(np.float32).tiny)
ODD = (np.inf, -np.inf, 0.0, -0.0, TINY, TINY / 4, -TINY / 4, 1.0, 3.4028235e38)


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_hard_rows_meet_odd_thresholds(comparison: Literal["<", "<="]) -> None:
    """`hard_rows` are the thresholds, their neighbours, NaN, infinities, zeros and denormals."""
    trees = [Split(i % 2, t, i, -i, i % 3 == 0) for i, t in enumerate(2 * ODD, 1)]
    forest = replace(forest_of(trees), comparison=comparison)
    check_results(forest, schedule(forest), (0, 1, 200), jobs=(1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("count", [15, 16, 255, 256, 4095, 4096])
@pytest.mark.parametrize("default_left", [False, True])
@pytest.mark.cases(2)
def test_every_number_of_thresholds_is_searched(
    count: int, comparison: Literal["<", "<="], default_left: bool
) -> None:
    drawn = np.sort(np.random.default_rng(count).normal(size=count))
    forest = replace(stumps(drawn, default_left), comparison=comparison)
    check_results(forest, schedule(forest), (1, 65), jobs=(1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_thresholds_of_64_bits_are_ranked(comparison: Literal["<", "<="]) -> None:
    forest = replace(drawn_forest(9, 5, dtype="float64"), comparison=comparison)
    check_results(forest, schedule(forest), SIZES, jobs=(1,), outputs=("margin",))


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_codes_are_found_without_vectors(comparison: Literal["<", "<="]) -> None:
    forest = replace(stumps(np.arange(20) / 4), comparison=comparison)
    rep, arrays = pack(forest)
    sch = schedule(forest)
    tir = s_tir.Schedule(emit_canonical(forest, rep, "predict"))
    replay(tir, sch)
    machine = cpu.tvm_target(tvm_forest.Target())
    mod = tirx.transform.BindTarget(machine)(tir.mod)
    mod = pipeline(read_nest(mod["main"]), None)(mod)
    library = cpu.compile_module(mod, machine)
    rows = hard_rows(forest, 65)
    margin = np.empty((65, 1), np.float32)
    model = [arrays[spec.name] for spec in rep.value_buffers()]
    model += [forest.base_score, sizes_array(forest)]
    library["main"](*map(tvm.runtime.tensor, (rows, *model)), margin)
    assert np.array_equal(margin, forest.predict_reference(rows))


@pytest.mark.slow
def test_a_forest_of_single_leaves_has_nothing_to_rank() -> None:
    forest = forest_of([0.5, 0.25])
    check_results(forest, schedule(forest), SIZES, jobs=(1,))


# -- where rows are coded -------------------------------------------------------------------------


def blocks(sch: Schedule) -> Schedule:
    return sch.tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").interleave("b1", 3)


NESTS: dict[str, tuple[Callable[[Schedule], Schedule], str]] = {
    "row by row": (lambda s: s, "T.int64(1)"),
    "blocks": (blocks, "T.int64(8)"),
    "blocks, cached": (lambda s: blocks(s).cache("b0", "pack"), "T.int64(8)"),
    "an inner block, cached": (
        lambda s: (
            s.tile("batch", "b0", "b1", 8).tile("b1", "b2", "b3", 2).cache("b2", "pack")
        ).reorder("tree", "b3"),
        "T.int64(2)",
    ),
    "trees first": (lambda s: s.reorder("tree", "batch"), "n"),
    "trees first, cached": (
        lambda s: s.tile("batch", "b0", "b1", 8).reorder("tree", "b0", "b1").cache("b0", "pack"),
        "n",
    ),
    "blocks on threads": (lambda s: blocks(s).parallel("b0"), "T.int64(8)"),
    "blocks and trees on threads": (
        lambda s: blocks(s).tile("tree", "t0", "t1", 3).parallel("b0").parallel("t0"),
        "n",
    ),
    "prefetched": (
        lambda s: blocks(s).cache("b0", "prefetch").cache("tree", "prefetch"),
        "T.int64(8)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NESTS)
@pytest.mark.cases(2)
def test_rows_are_coded_once_and_near(name: str) -> None:
    arrange, rows = NESTS[name]
    trees: list[Any] = [Split(0, 0.5, Split(2, -1.0, i, 2.0), 3.0) for i in range(7)]
    forest = forest_of(trees, n_features=5)
    sch = arrange(schedule(forest))
    after = tvm_forest.lower(forest, sch).after
    which = "predict_parallel" if any(loop.parallel for loop in sch.loops()) else "predict"
    made = [line.strip() for line in after[which].script().splitlines() if "codes = " in line]
    assert made == [f'codes = T.alloc_buffer(({rows}, T.int64(6)), "uint8")']
    check_results(forest, sch, SIZES, outputs=("margin",))
