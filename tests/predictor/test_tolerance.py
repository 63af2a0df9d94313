"""`Predictor.tolerance` bounds what a regrouped sum may differ by."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from tvm_forest.forest.probe_rows import hard_rows

pytestmark = pytest.mark.slow

TREES = [Split(0, 0.5, -1.5, 2.25), 0.125, Split(1, 0.0, 3.0, -4.0), Split(2, 1.0, 0.5, 0.25)]


def test_the_tolerance_is_that_of_the_formula() -> None:
    forest = forest_of(TREES, base=[-2.0])
    sch = tvm_forest.new_schedule(forest).parallel("tree")
    predictor = tvm_forest.build(forest, schedule=sch, exact=False)
    rows = hard_rows(forest, 33)
    leaves = np.abs(forest.predict_reference(rows, "per_tree")).sum(axis=1)
    expected = 2 * 5 * 2.0**-24 * (2.0 + leaves)
    np.testing.assert_allclose(predictor.tolerance(rows)[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("classes", [1, 2])
def test_an_exact_schedule_has_no_tolerance(classes: int) -> None:
    forest = forest_of(TREES, base=[0.5] * classes)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    tolerance = predictor.tolerance(hard_rows(forest, 7))
    assert tolerance.shape == (7, classes)
    assert not tolerance.any()


@pytest.mark.parametrize("classes", [1, 2])
def test_no_rows_have_a_tolerance_of_their_shape(classes: int) -> None:
    forest = forest_of(TREES, base=[0.5] * classes)
    sch = tvm_forest.new_schedule(forest)
    for schedule in (sch, sch.parallel("tree")):
        predictor = tvm_forest.build(forest, schedule=schedule, exact=False)
        assert predictor.tolerance(np.zeros((0, 3), np.float32)).shape == (0, classes)
