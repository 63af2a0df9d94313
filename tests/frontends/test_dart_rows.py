"""Rows for DART estimators of XGBoost, which round by the kind of rows: its bits.

An estimator predicts some kinds of rows in place, and copies others into a DMatrix.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xgboost

import tvm_forest
from bad_inputs import Tensor
from models import DART_BY_KIND
from tvm_forest.errors import InputError
from tvm_forest.frontends import load
from tvm_forest.predictor.inputs import to_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:Unknown data type"),
    pytest.mark.usefixtures("kept_code"),  # of models that differ in what is missing
]


@lru_cache
def rows() -> Any:
    """Rows with zeros of both signs and gaps."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(300, 4)).round(1).astype(np.float32)
    for value, share in ((0.0, 0.3), (-0.0, 0.2), (np.nan, 0.1)):
        values[rng.random(values.shape) < share] = value
    return values


def entries() -> Any:
    """Four of five values; zeros are entries too."""
    line, column = np.nonzero(np.random.default_rng(1).random(rows().shape) < 0.8)
    return sp.coo_matrix((rows()[line, column], (line, column)), rows().shape)


def columns() -> dict[str, Any]:
    return {f"f{i}": column for i, column in enumerate(rows().T)}


class Derived(sp.csr_matrix):
    """What derives from csr_matrix goes with it."""


IN_PLACE: dict[str, Callable[[], Any]] = {
    "float32": rows,
    "float64": lambda: rows().astype(np.float64),
    "Fortran order": lambda: np.asfortranarray(rows()),
    "a list": lambda: rows().tolist(),
    "a tuple": lambda: tuple(map(tuple, rows().tolist())),
    "pandas": lambda: pd.DataFrame(columns()),
    "polars": lambda: pl.DataFrame(columns()),
    "pyarrow": lambda: pa.table(columns()),
    "csr_matrix": lambda: sp.csr_matrix(entries()),
    "a class of csr_matrix": lambda: Derived(entries()),
}
COPIED: dict[str, Callable[[], Any]] = {
    **{f"{form} matrix": lambda form=form: entries().asformat(form) for form in
       ("csc", "coo", "lil", "dok", "bsr")},
    **{f"{form} array": lambda form=form: sp.csr_array(entries()).asformat(form) for form in
       ("csr", "csc", "coo")},
    "a record batch": lambda: pa.record_batch(columns()),
}  # fmt: skip


@lru_cache
def model(booster: str, missing: float = np.nan) -> Any:
    options = {"n_estimators": 8, "max_depth": 3, "n_jobs": 1, "booster": booster}
    options |= {"rate_drop": 0.4} if booster == "dart" else {}
    target = np.nan_to_num(rows()) @ np.arange(1, 5) + (rows()[:, 0] == 0)
    return xgboost.XGBRegressor(missing=missing, **options).fit(rows(), target)


def answer(trained: Any, given: Any) -> Any:
    forest = load(trained)
    return forest.predict_reference(to_rows(given, forest))[:, 0]


@pytest.mark.parametrize("missing", [np.nan, 0.0, -0.0, 0.1])
@pytest.mark.parametrize("kind", IN_PLACE)
def test_rows_that_are_read_in_place_have_the_bits_of_the_estimator(
    kind: str, missing: float
) -> None:
    trained, given = model("dart", missing), IN_PLACE[kind]()
    assert answer(trained, given).tobytes() == trained.predict(given).tobytes()


@lru_cache
def predictor(missing: float) -> Any:
    return tvm_forest.build(tvm_forest.load(model("dart", missing)), schedule=lambda start: start)


@pytest.mark.parametrize("missing", [np.nan, 0.0])
@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.cases(4)
def test_rows_that_are_copied_have_the_bits_of_the_estimator(kind: str, missing: float) -> None:
    trained, given, ours = model("dart", missing), COPIED[kind](), predictor(missing)
    expected = trained.predict(given)
    assert ours.predict(given).tobytes() == expected.tobytes()
    assert ours.predict_margin(given).tobytes() == expected.tobytes()
    some = trained.predict(given, iteration_range=(2, 6))
    assert ours.predict(given, iteration_range=(2, 6)).tobytes() == some.tobytes()
    assert ours.rounds(2, 6).predict(given).tobytes() == some.tobytes()
    dense = to_rows(given, ours.forest.for_copied_rows)
    by_tree = ours.predict_per_tree(given), ours.predict_per_tree(dense)
    assert (ours.predict(dense).tobytes() != expected.tobytes()) == DART_BY_KIND
    assert (by_tree[0].tobytes() != by_tree[1].tobytes()) == DART_BY_KIND
    assert np.array_equal(ours.apply(given), ours.apply(dense))


@pytest.mark.parametrize("kind", ["float32", "pandas", "csr_matrix", "csr array", "a record batch"])
@pytest.mark.parametrize("span", [(0, 0), (2, 6)])
def test_a_start_is_weighed_where_rows_are_read_in_place(kind: str, span: tuple[int, int]) -> None:
    trained, given, ours = model("dart"), (IN_PLACE | COPIED)[kind](), predictor(np.nan)
    start = np.linspace(-9, 9, len(rows()), dtype=np.float32)
    found = ours.predict(given, base_margin=start, iteration_range=span)
    expected = trained.predict(given, base_margin=start, iteration_range=span)
    assert found.tobytes() == expected.tobytes()


def test_rows_that_are_copied_keep_their_bits_in_a_file(tmp_path: Path) -> None:
    given, ours = COPIED["csr array"](), predictor(np.nan)
    ours.save(tmp_path / "dart.tvmf")
    again = tvm_forest.load_predictor(tmp_path / "dart.tvmf")
    assert again.predict(given).tobytes() == model("dart").predict(given).tobytes()
    assert again._for_rows(given).schedules == again.schedules  # not the default ones


def test_a_tensor_that_is_no_array_is_copied() -> None:
    forest = load(model("dart")).for_copied_rows
    found = predictor(np.nan).predict(Tensor(rows()))
    assert found.tobytes() == forest.predict_reference(rows())[:, 0].tobytes()


@pytest.mark.skipif(not DART_BY_KIND, reason="XGBoost 3.3 and newer has one value for all rows")
def test_copied_rows_are_refused_where_their_values_are_not_known() -> None:
    forest = replace(load(model("dart")), copied_value=None)
    with pytest.raises(InputError, match=r"copies into a DMatrix.*give a numpy array, scipy"):
        plain = tvm_forest.build(forest, schedule=lambda start: start)
        plain.predict(COPIED["csr array"]())


@pytest.mark.parametrize("kind", IN_PLACE | COPIED)
def test_other_boosters_take_all_kinds_of_rows(kind: str) -> None:
    trained, given = model("gbtree"), (IN_PLACE | COPIED)[kind]()
    assert answer(trained, given).tobytes() == trained.predict(given).tobytes()
