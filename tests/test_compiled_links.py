"""The links that compiled code computes, beside those of the reference walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.probe_rows import hard_rows

LINKS = [
    *(("softmax", (1, 2)), ("sorted", ()), ("softmax", ())),
    *((link, ()) for link in ("sigmoid", "plain_softmax", "coarse_softmax", "rounded_softmax")),
    *((link, ()) for link in ("exp", "clamp", "step", "signed_square", "logistic", "coarse_exp")),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("link", "targets"), LINKS)
@pytest.mark.cases(5)
def test_a_compiled_link_is_that_of_the_reference(
    link: str, targets: tuple[int, ...], dtype: str
) -> None:
    forest = drawn_forest(12, 3, seed=3, base=[0.3, -0.2, 0.1], dtype=dtype)
    forest = replace(forest, link=link, targets=targets)
    rows = hard_rows(forest, 40)
    expected = forest.predict_reference(rows, "value")
    found = tvm_forest.build(forest).predict(rows)
    unit = np.finfo(np.float32 if link == "rounded_softmax" else dtype).eps
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert np.allclose(found, expected, rtol=(1 + LINK_ULPS[link]) * unit, atol=unit / 2)
