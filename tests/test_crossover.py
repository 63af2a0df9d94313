"""One model on a CPU and a GPU, which the threads of the CPU stand in for."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import InputError
from tvm_forest.predictor.crossover import METHODS
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims.recipes import RECIPES

FOREST = drawn_forest(6, 3, base=(0.1, 0.2), link="softmax")


@pytest.fixture(scope="module")
def pair() -> list[Any]:
    gpu = tvm_forest.build(FOREST, "simt", lambda sch: RECIPES["tahoe_direct"](sch, rows=8))
    return [tvm_forest.build(FOREST, schedule=tvm_forest.new_schedule(FOREST)), gpu]


def test_the_number_of_rows_decides_where_they_go(pair: list[Any]) -> None:
    both = tvm_forest.Crossover(*pair, rows=10)
    assert tvm_forest.Crossover(*pair).rows == 100
    for n in (0, 1, 9, 10, 33):
        rows = hard_rows(FOREST, n, seed=n)
        assert both.choose(rows) is pair[n >= 10]
        assert both.choose(rows.tolist()) is pair[n >= 10]
        assert np.array_equal(both.predict_margin(rows), FOREST.predict_reference(rows))
        for name in METHODS:
            expected = getattr(pair[n >= 10], name)(rows)
            assert np.array_equal(getattr(both, name)(rows), expected), name
    part = both.predict_margin(rows, iteration_range=(0, 1))
    assert np.array_equal(part, pair[1].predict_margin(rows, iteration_range=(0, 1)))


def test_both_are_copied_together(pair: list[Any]) -> None:
    rows = hard_rows(FOREST, 12)
    again = copy.copy(tvm_forest.Crossover(*pair, rows=3))
    assert again.rows == 3 and "Crossover at 3 rows" in repr(again)
    assert np.array_equal(again.predict_margin(rows), FOREST.predict_reference(rows))
    assert not hasattr(again, "save") and "predict" in dir(again)


def test_what_is_no_pair_is_refused(pair: list[Any]) -> None:
    cpu, gpu = pair
    other = drawn_forest(2, 2)
    stranger = tvm_forest.build(other, schedule=tvm_forest.new_schedule(other))
    for arguments, message in (
        ((gpu, gpu), "argument 'cpu': expected a Predictor for a CPU, got simt"),
        ((cpu, cpu), "argument 'gpu': expected a Predictor for a GPU, got llvm"),
        ((cpu, FOREST), "argument 'gpu': expected a Predictor for a GPU, got Forest"),
        ((stranger, gpu), "argument 'gpu': .* is of another model than"),
        ((cpu, gpu, -1), "argument 'rows': expected 0 or more, got -1"),
        ((cpu, gpu, True), "argument 'rows': expected 0 or more, got True"),
    ):
        with pytest.raises(InputError, match=message):
            tvm_forest.Crossover(*arguments)
