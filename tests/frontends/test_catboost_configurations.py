"""A short run of `tools/catboost_configurations.py`, and what it tells of unequal margins."""

from __future__ import annotations

import numpy as np
import pytest

import catboost_configurations as configurations


@pytest.mark.long
@pytest.mark.parametrize("name", ["one tree", "depth 1", "nan Max", "one-hot"])
def test_cheap_configurations_have_the_margins_of_catboost(name: str) -> None:
    found = configurations.count_differences(configurations.CONFIGURATIONS[name](), 300)
    assert found == dict.fromkeys((*configurations.BATCHES, 300), 0)


def test_rows_that_differ_in_a_bit_are_counted() -> None:
    rows = np.zeros((5, 2))
    other = rows.copy()
    other[1] = -0.0
    assert configurations.count_unequal(rows, other) == 1
    assert configurations.count_unequal(rows, rows.astype(np.float32)) == 5
    assert configurations.count_unequal(rows, rows.copy()) == 0
