"""Models of every library, compiled: the reference to the bit, and what their library predicts.

The frontends' own tests compare the reference with the libraries' margins and leaves; here compiled
code is compared with the reference, and its final answers with those of the library.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lightgbm_models
import onnx_cases
import sklearn_models
import tvm_forest
import xgboost_models
from tvm_forest.forest import Forest, choose_labels
from tvm_forest.forest.probe_rows import hard_rows

N = 200
LINK_ULPS = 4
"""Between our exponential function, the library's and numpy's."""

pytestmark = pytest.mark.slow

Case = tuple[Callable[[], Any], Callable[[Any, Forest], Any]]
CASES: dict[str, Case] = {
    **{
        f"xgboost {name}": (make, lambda model, forest: xgboost_models.odd_rows(model, forest, N))
        for name, make in xgboost_models.KINDS.items()
    },
    **{
        f"lightgbm {name}": (make, lambda _, forest: hard_rows(forest, N))
        for name, make in lightgbm_models.MODELS.items()
    },
    **{
        f"sklearn {name}": (make, lambda model, forest: sklearn_models.probe_rows(model, forest, N))
        for name, make in sklearn_models.MODELS.items()
    },
    **{
        f"onnx {name}": (make, lambda _, forest: hard_rows(forest, N))
        for name, make in onnx_cases.MODELS.items()
    },
}


def equal(found: Any, expected: Any, ulps: int) -> bool:
    """Whether two arrays have one shape and dtype, and floats that are so close."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if ulps == 0 or found.dtype.kind != "f":
        return np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - expected) / np.spacing(np.abs(expected))
    return bool(np.all((apart <= ulps) | (found == expected) | np.isnan(found)))


def answer(model: Any, rows: Any) -> Any:
    """What the library itself predicts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.predict(rows))


SOME = list(CASES)[::4]
MORE = [pytest.param(name, marks=pytest.mark.long) for name in list(CASES)[2::8]]


@pytest.mark.parametrize("name", SOME + MORE)  # differential.py takes all of them
@pytest.mark.cases(3)
def test_compiled_code_has_the_bits_of_the_reference(name: str) -> None:
    make, rows_for = CASES[name]
    model = make()
    forest = tvm_forest.load(model)
    rows = rows_for(model, forest)
    serial = tvm_forest.hop_schedule(forest).without("parallel")  # half the code
    predictor = tvm_forest.build(forest, schedule=serial)
    margin, value = forest.predict_reference(rows), forest.predict_reference(rows, "value")
    assert equal(predictor.predict_margin(rows).reshape(margin.shape), margin, 0)
    assert equal(predictor.apply(rows), forest.predict_reference(rows, "apply"), 0)
    assert equal(predictor.predict_per_tree(rows), forest.predict_reference(rows, "per_tree"), 0)
    found = predictor.predict(rows)
    if forest.labels is not None:
        assert equal(found, choose_labels(forest, margin, value), 0)
    else:
        ulps = 0 if forest.link == "identity" else LINK_ULPS
        assert equal(found.reshape(value.shape), value, ulps)
    if name.startswith(("lightgbm", "sklearn")):
        expected = answer(model, rows)
        assert equal(found, expected, LINK_ULPS if expected.dtype.kind == "f" else 0)
