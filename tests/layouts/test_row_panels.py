"""Panels: columns of few cuts and of many, read four features at a time, on hard rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from schedules import check_results, in_blocks
from tvm_forest.errors import BuildError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts.row_codes import panels, planes

SIZES = (0, 1, 63, 65, 700)


def mixed_forest(
    n_features: int, counts: dict[int, int], dtype: str = "float32", sides: int = 2
) -> Forest:
    """Stumps: so many cuts of some features, among them infinities and zeros, with both sides."""
    trees = []
    for feature, count in counts.items():
        cuts = np.sort(np.random.default_rng(count).normal(size=count))
        special = cuts[:: max(1, count // 3)]
        special[:] = (np.inf, -np.inf, 0.0, 1e-40)[: len(special)]
        for k, cut in enumerate(cuts):
            left = bool((k + feature) % 2) if sides == 2 else False
            trees.append(Split(feature, float(np.float32(cut)), float(k), -float(feature), left))
    return forest_of(trees, n_features=n_features, dtype=dtype)


def compared_cuts(forest: Forest) -> tuple[planes.PlaneCode, Any]:
    numbered = planes.number_tests(canonicalize(forest))
    return numbered.code, numbered.arrays


# -- arrays ---------------------------------------------------------------------------------------


def test_units_leave_features_out_and_end_with_the_row() -> None:
    code, arrays = compared_cuts(mixed_forest(11, {0: 2, 5: 1, 10: 3}, sides=1))
    assert arrays["unit_feature"].tolist() == [0, 4, 7, 0]
    assert (code.panels.width, code.panels.panels, arrays["panel_units"][0]) == (4, 1, 3)
    assert arrays["column_place"].tolist() == [0, 5, 11, 0]
    assert arrays["test_place"].tolist() == [0, 0, 5, 11, 11, 11, 0]
    narrow, arrays = compared_cuts(mixed_forest(3, {2: 1}, sides=1))
    assert (narrow.panels.width, arrays["panel_units"][0]) == (3, 1)


def test_columns_are_grouped_by_the_levels_of_their_search() -> None:
    forest = mixed_forest(9, {0: 15, 1: 16, 2: 31, 3: 32, 5: 255, 7: 100}, sides=1)
    code, arrays = compared_cuts(forest)
    groups, columns = code.panels.groups, np.diff(arrays["panel_stops"]).sum(axis=1)
    assert [(x.steps, x.levels) for x in groups] == [(1, 0), (2, 5), (2, 6), (2, 7), (2, 8)]
    assert columns.tolist() == [15, 2, 1, 1, 1]


@pytest.mark.parametrize("count", [16, 31, 40, 100, 255])
def test_tables_lead_to_the_rank(count: int) -> None:
    """Searched here as code does: the outcomes are the bits of numbers, the first the lowest."""
    _, arrays = compared_cuts(mixed_forest(1, {0: count}, sides=1))
    cuts = np.unique(_cuts_of(count))
    levels = int(np.ceil(np.log2(len(cuts) + 1)))
    at = int(arrays["column_table"][0])
    for x in np.append(np.repeat(cuts, 2) + np.tile([0, 1e-3], len(cuts)), [-1e30, 1e30]):
        number = rank = 0
        for level in range(levels):
            reached = x >= arrays["tables"][at + panels.table_begin(level) + number]
            number |= int(reached) << level
            rank |= int(reached) << levels - 1 - level
        assert min(rank, len(cuts)) == np.count_nonzero(cuts <= x)


def _cuts_of(count: int) -> Any:
    forest = mixed_forest(1, {0: count}, sides=1)
    return forest.threshold[~forest.is_leaf].tolist()


# -- compiled results -----------------------------------------------------------------------------

COUNTS = {0: 1, 1: 15, 3: 16, 6: 31, 7: 33, 40: 64, 41: 127, 66: 200, 69: 300}
"""Cuts of features of two panels: compared, searched on each number of levels, and with codes of 16
bits."""


@pytest.mark.parametrize("block", [64, 256, 512])
@pytest.mark.cases(1)
def test_every_way_of_coding_is_exact(block: int) -> None:
    forest = mixed_forest(70, COUNTS)
    check_results(
        forest, in_blocks(forest, "bitsliced", block), SIZES, jobs=(1,), outputs=("margin",)
    )


@pytest.mark.slow
@pytest.mark.parametrize("comparison", ["<", "<="])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float32 rows"])
@pytest.mark.parametrize("width", [1, 2, 3, 6, 70])
@pytest.mark.cases(1)
def test_narrow_rows_and_wide_values_are_exact(width: int, dtype: str, comparison: Any) -> None:
    counts = {feature: count for feature, count in COUNTS.items() if feature < width}
    forest = mixed_forest(width, counts, "float64" if "rows" in dtype else dtype)
    forest = replace(forest, comparison=comparison, row_dtype=dtype.split()[0])
    check_results(
        forest, in_blocks(forest, "bitsliced", 128), SIZES, jobs=(1,), outputs=("margin",)
    )


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "cascadelake"])
@pytest.mark.cases(1)
def test_cpus_without_permutes_code_alike(mcpu: str) -> None:
    forest = mixed_forest(70, COUNTS)
    sch = in_blocks(forest, "bitsliced", 256)
    try:
        predictor = tvm_forest.build(forest, target={"kind": "llvm", "mcpu": mcpu}, schedule=sch)
    except BuildError as error:
        assert "lacks" in str(error)  # this machine is older
        return
    rows = hard_rows(forest, 700)
    for size in SIZES:
        found = predictor.predict_margin(rows[:size])
        assert np.array_equal(found, forest.predict_reference(rows[:size])[:, 0])
