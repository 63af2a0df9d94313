"""Real models: every bit is XGBoost's, whatever the number of rows and threads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import xgboost

import tvm_forest
from shared_models import shared_model
from tvm_forest.forest.probe_rows import hard_rows, typical_rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*Found JSON model saved before XGBoost 1.6"),
]

BATCHES = (0, 1, 2, 3, 7, 63, 64, 65, 1000, 2000)
WITH_ROWS = ("airline", "higgs", "year")
MODELS = (*WITH_ROWS, "epsilon")
SHORT = ("airline", "epsilon")
"""Models whose default schedules take other layouts; those of the others are long."""


@functools.cache
def table(name: str) -> Any:
    """Rows of a shared file, the answer in the last column."""
    return np.loadtxt(shared_model(f"{name}.csv"), delimiter=",", dtype=np.float64)


@functools.cache
def booster(name: str) -> Any:
    return xgboost.Booster(model_file=shared_model(f"{name}.json"))


@functools.cache
def predictor(name: str) -> tvm_forest.Predictor:
    return tvm_forest.build(shared_model(f"{name}.json"))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in MODELS],
)
def model(request: pytest.FixtureRequest) -> str:
    shared_model(f"{request.param}.json")
    return str(request.param)


@functools.cache
def some_rows(name: str, kind: str) -> Any:
    """Return 2,000 rows: those of the file (some twice), typical ones, or hard ones."""
    forest = predictor(name).forest
    if kind == "hard":
        return hard_rows(forest, 2000, seed=5)
    if kind == "file" and name in WITH_ROWS:
        return np.resize(table(name)[:, :-1].astype(np.float32), (2000, forest.n_features))
    return typical_rows(forest, 2000, seed=6, missing=0.1)


@functools.cache
def margins(name: str, kind: str) -> Any:
    """Return XGBoost's own margins."""
    rows = some_rows(name, kind)
    answer = booster(name).inplace_predict(rows, predict_type="margin", validate_features=False)
    if kind != "hard":  # a DMatrix takes no infinities
        matrix = xgboost.DMatrix(rows)
        assert np.array_equal(
            booster(name).predict(matrix, output_margin=True, validate_features=False), answer
        )
    return answer


def equal_bits(one: Any, other: Any) -> bool:
    form = one.dtype == other.dtype and one.shape == other.shape
    return bool(form and one.tobytes() == other.tobytes())


@pytest.mark.parametrize("kind", ["file", "typical", "hard"])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("n_rows", BATCHES)
@pytest.mark.cases(4)
def test_margins_are_those_of_xgboost(model: str, n_rows: int, n_jobs: int, kind: str) -> None:
    rows, expected = some_rows(model, kind), margins(model, kind)
    for begin in {0, 2000 - n_rows}:
        part = slice(begin, begin + n_rows)
        margin = predictor(model).predict_margin(rows[part], n_jobs=n_jobs)
        assert equal_bits(margin, expected[part])


@pytest.mark.parametrize("name", WITH_ROWS)
@pytest.mark.long
def test_predictions_are_the_last_column_of_the_file(name: str) -> None:
    rows, answers = table(name)[:, :-1], table(name)[:, -1].astype(np.float32)
    assert equal_bits(predictor(name).predict(rows), answers)


def test_predictions_are_those_of_xgboost_within_two_ulp(model: str) -> None:
    for kind in ("file", "hard"):
        rows = some_rows(model, kind)
        expected = booster(model).inplace_predict(rows, validate_features=False)
        np.testing.assert_array_max_ulp(predictor(model).predict(rows), expected, maxulp=2)


@pytest.mark.cases(1)
def test_leaves_are_those_of_xgboost(model: str) -> None:
    rows = some_rows(model, "file")[:500]
    leaves = booster(model).predict(xgboost.DMatrix(rows), pred_leaf=True, validate_features=False)
    assert np.array_equal(predictor(model).apply(rows), leaves)


@pytest.mark.cases(1)
def test_the_tree_values_add_up_to_the_margin(model: str) -> None:
    rows = some_rows(model, "hard")[:500]
    values = predictor(model).predict_per_tree(rows)
    total = np.full(len(rows), predictor(model).forest.base_score[0])
    for tree in range(values.shape[1]):
        total += values[:, tree]
    assert equal_bits(total, margins(model, "hard")[:500])


@functools.cache
def train_letters(rounds: int, depth: int) -> Any:
    """Train on the letters, 26 classes."""
    data = table("letters").astype(np.float32)
    params = {"objective": "multi:softprob", "num_class": 26, "max_depth": depth, "seed": 7}
    matrix = xgboost.DMatrix(data[:, :-1], data[:, -1])
    return xgboost.train(params | {"nthread": 1, "verbosity": 0}, matrix, rounds)


@functools.cache
def letters(rounds: int, depth: int) -> tuple[Any, tvm_forest.Predictor]:
    """Return the model of the letters, and what is compiled of it."""
    trained = train_letters(rounds, depth)
    return trained, tvm_forest.build(trained)


@pytest.mark.parametrize(("rounds", "depth"), [(12, 4), (40, 8)])
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.long
def test_letters_are_told_apart_as_xgboost_does(rounds: int, depth: int, n_jobs: int) -> None:
    trained, compiled = letters(rounds, depth)
    for rows in (table("letters")[:, :-1].astype(np.float32), hard_rows(compiled.forest, 1000)):
        expected = trained.inplace_predict(rows, predict_type="margin")
        for n_rows in (0, 1, 7, 64, 65, len(rows)):
            margin = compiled.predict_margin(rows[:n_rows], n_jobs=n_jobs)
            assert equal_bits(margin, expected[:n_rows])
        probability = compiled.predict(rows, n_jobs=n_jobs)
        np.testing.assert_array_max_ulp(probability, trained.inplace_predict(rows), maxulp=2)


def test_the_leaves_of_letters_are_those_of_xgboost() -> None:
    trained = train_letters(12, 4)
    compiled = tvm_forest.build(trained, schedule=lambda start: start)
    rows = table("letters")[:300, :-1].astype(np.float32)
    leaves = trained.predict(xgboost.DMatrix(rows), pred_leaf=True, validate_features=False)
    assert np.array_equal(compiled.apply(rows), leaves)
