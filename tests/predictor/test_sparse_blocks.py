"""Sparse matrices of many rows become numbers block by block: same bits, little memory."""

from __future__ import annotations

import importlib
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import tvm_forest
from forests import Split, forest_of
from schedules import in_blocks
from tvm_forest.errors import InputError
from tvm_forest.predictor.inputs import split_blocks, to_blocks, to_rows

sparse: Any = importlib.import_module(
    "tvm_forest.predictor.inputs.sparse"
)  # the package has a late one
TREES = [Split(0, 0.5, -1.0, Split(2, 0.25, 0.5, 4.0)), Split(1, -0.25, 0.5, 2.0), 0.125]


def draw(n_rows: int, n_columns: int = 3, seed: int = 0) -> Any:
    found = scipy.sparse.random(n_rows, n_columns, 0.4, "csr", np.float64, random_state=seed)
    found.data[::7] = 0.0  # zeros that are said
    found.data[::11] = np.nan
    return found


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "BLOCK_BYTES", 300)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("blocked", [False, True])
def test_all_kinds_of_prediction_have_the_bits_of_dense_rows(blocked: bool) -> None:
    forest = forest_of(TREES)
    plain = tvm_forest.new_schedule(forest)
    schedule = in_blocks(forest, "bitsliced", 64) if blocked else plain
    predictor = tvm_forest.build(forest, schedule=schedule)
    for n_rows in (64, 201):
        matrix = draw(n_rows)
        dense = to_rows(matrix[:], forest)
        for form in ("csr", "csc", "coo"):
            rows = matrix.asformat(form)
            assert sparse.are_many(rows, forest)
            for kind in ("predict", "apply", "predict_per_tree"):
                found, expected = getattr(predictor, kind)(rows), getattr(predictor, kind)(dense)
                assert found.tobytes() == expected.tobytes() and found.shape == expected.shape


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("multiple", [1, 7, 64, 1000])
def test_blocks_begin_at_multiples_and_are_all_rows(multiple: int) -> None:
    forest, matrix = forest_of(TREES), draw(333)
    blocks = list(split_blocks(to_blocks(matrix, forest), forest, multiple))
    assert all(begin % multiple == 0 for begin, _ in blocks)
    assert len(blocks) > 1 or multiple == 1000
    whole = np.concatenate([rows for _, rows in blocks])
    expected = np.full((333, 3), forest.absent, np.float32)
    places = matrix.tocoo()
    expected[places.row, places.col] = places.data
    assert np.array_equal(whole, expected, equal_nan=True)


@pytest.mark.usefixtures("small_blocks")
def test_what_is_refused_is_refused_with_its_row() -> None:
    forest = forest_of(TREES, refuses=("inf",))
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    matrix = draw(200)
    matrix[150, 1] = np.inf
    with pytest.raises(InputError, match="row 150, column 1 is inf as float32, which the model"):
        predictor.predict(matrix)
    with pytest.raises(InputError, match=r"rows must have shape \(R, 3\), got \(200, 5\)"):
        predictor.predict(draw(200, 5))
    doubled = draw(200)
    doubled.indices[doubled.indptr[180] : doubled.indptr[181]] = 0
    doubled.indices[doubled.indptr[181] : doubled.indptr[190]] = 1
    with pytest.raises(InputError, match="two entries in one place"):
        predictor.predict(doubled)
    damaged = draw(200)
    damaged.indices[-1] = 9
    with pytest.raises(InputError, match="the sparse matrix is damaged"):
        predictor.predict(damaged)


def test_a_large_matrix_is_never_dense_as_a_whole() -> None:
    forest = forest_of([Split(4000, 0.5, -1.0, 2.0)], n_features=5000)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    rows = scipy.sparse.random(2000, 5000, 0.002, "csr", np.float32, random_state=0)
    expected = [predictor.predict(rows[at : at + 50]) for at in range(0, 2000, 50)]
    tracemalloc.start()
    found = predictor.predict(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, np.concatenate(expected))
    assert peak < 3 * sparse.BLOCK_BYTES < 2 * rows.shape[0] * rows.shape[1]
