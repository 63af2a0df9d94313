"""Layouts that are walked by blocks of rows: every block, its tails, and forests of all kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from forests import drawn_forest
from schedules import check_results, in_blocks, odd_forest

BLOCKS = [
    *(("bitsliced", rows) for rows in (512, 256, 128, 64)),
    *(("levels", rows) for rows in (16, 64)),
]
DRAWN = {"levels": (16, 32, 64), "bitsliced": (64, 128, 256, 512)}


@pytest.mark.parametrize(("layout", "rows"), BLOCKS)
@pytest.mark.cases(1)
def test_every_block_and_tail_is_exact(layout: str, rows: int) -> None:
    sizes = (0, 1, 15, 16, 17, 33, 63, 64, 65, rows + 1)
    forest = odd_forest(rows)
    sch = in_blocks(forest, layout, rows)
    check_results(forest, sch, sizes, jobs=(1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("layout", DRAWN)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.cases(1)
def test_drawn_forests_are_exact(seed: int, layout: str) -> None:
    forest, rows = odd_forest(seed), DRAWN[layout][seed % len(DRAWN[layout])]
    sch = in_blocks(forest, layout, rows).parallel("b0")
    check_results(forest, sch, (1, 130, 3 * rows - 1))


@pytest.mark.slow
@pytest.mark.parametrize("layout", DRAWN)
@pytest.mark.parametrize("comparison", ["<", "<="])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(1)
def test_both_comparisons_and_dtypes_are_exact(
    comparison: Literal["<", "<="], dtype: str, layout: str
) -> None:
    forest = replace(drawn_forest(9, 6, dtype=dtype), comparison=comparison)
    check_results(
        forest,
        in_blocks(forest, layout, DRAWN[layout][0]),
        (1, 200),
        jobs=(1,),
        outputs=("margin",),
    )
