"""Frames, sparse matrices, refused values: the bits of plain rows, or a message."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xgboost
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

import lightgbm_models
import tvm_forest
from bad_inputs import FOREST, NAMES, ROWS, Tensor, predictor
from bad_rows import BAD_ROWS, FINITE, BadRows, columns, csr, held
from forests import forest_of
from test_inputs import HARD, equal_bits, expected
from tvm_forest.errors import InputError, ModelFormatError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.inputs import to_rows

WITH_GAPS = [[None if np.isnan(x) else float(x) for x in column] for column in HARD.T]
BY_NAME = dict(zip(NAMES, WITH_GAPS, strict=True))
LIBRARIES = ["pandas", "polars", "pyarrow"]
TABLE = pa.table(BY_NAME, schema=pa.schema([(name, pa.float32()) for name in NAMES]))


def _shuffled() -> Any:
    """CSR whose entries are in another order within their rows."""
    matrix = sp.csr_matrix(HARD)
    for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        for array in (matrix.indices, matrix.data):
            array[begin:end] = array[begin:end][::-1].copy()
    matrix.has_sorted_indices = False
    return matrix


def _locked() -> Any:
    matrix = sp.csr_array(HARD)
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    return matrix


KINDS: dict[str, Callable[[], Any]] = {
    **{f"{form} matrix": lambda form=form: sp.csr_matrix(HARD).asformat(form) for form in
       ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")},
    **{f"{form} array": lambda form=form: sp.csr_array(HARD).asformat(form) for form in
       ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")},
    "csr of float64": lambda: sp.csr_matrix(HARD.astype(np.float64)),
    "unsorted csr": _shuffled,
    "read-only csr": _locked,
    "polars": lambda: pl.DataFrame(HARD, schema=list(NAMES)),
    "polars of float64": lambda: pl.DataFrame(HARD.astype(np.float64), schema=list(NAMES)),
    "polars with nulls": lambda: pl.DataFrame(BY_NAME),
    "polars of float32 with nulls": lambda: pl.DataFrame(BY_NAME).cast(pl.Float32),
    "polars in two chunks": lambda: pl.concat(
        [pl.DataFrame(BY_NAME)[:9], pl.DataFrame(BY_NAME)[9:]], rechunk=False
    ),
    "a table": lambda: pa.table(dict(zip(NAMES, HARD.T.copy(), strict=True))),
    "a table with nulls": lambda: TABLE,
    "a table in chunks": lambda: pa.concat_tables([TABLE[:7], TABLE[7:7], TABLE[7:]]),
    "a slice of a table": lambda: pa.concat_tables([TABLE, TABLE])[33:],
    "a record batch": lambda: TABLE.to_batches()[0],
    "pandas of pyarrow": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas of mixed dtypes": lambda: pd.DataFrame(HARD, columns=NAMES).astype({"age": "float64"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_gives_the_same_bits(kind: str) -> None:
    assert equal_bits(predictor().predict(KINDS[kind]()), expected(HARD))


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_rows_is_modified(kind: str) -> None:
    rows = KINDS[kind]()
    before = held(rows)
    array = to_rows(rows, FOREST)
    assert array.flags.c_contiguous and held(rows) == before


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_of_any_kind_give_no_predictions(kind: str) -> None:
    rows = KINDS[kind]()
    if sp.issparse(rows):
        none = type(rows)((0, 3), dtype=rows.dtype)
    else:
        none = rows[:0] if hasattr(rows, "iloc") else rows.slice(0, 0)
    assert predictor().predict(none).shape == (0,)


@pytest.mark.parametrize("method", ["predict_margin", "apply", "predict_per_tree", "tolerance"])
def test_every_method_takes_frames_and_sparse_rows(method: str) -> None:
    call = getattr(predictor(), method)
    for rows in (KINDS["csc array"](), KINDS["polars"](), KINDS["a table"]()):
        assert equal_bits(call(rows), call(HARD))


@pytest.mark.parametrize("case", BAD_ROWS, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_rows_are_refused_with_place_and_remedy(case: BadRows) -> None:
    with pytest.raises(InputError) as caught:
        to_rows(case.rows(), case.forest)
    parts = ("predict: argument 'rows': ", *case.parts)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_the_names_of_bad_rows_are_unique() -> None:
    names = [case.name for case in BAD_ROWS]
    assert sorted(set(names)) == sorted(names)


def test_no_library_of_frames_is_imported_for_plain_rows() -> None:
    code = "import sys, tvm_forest.predictor.inputs"
    code += "; print({'pandas', 'polars', 'scipy'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


# -- values that a model refuses ------------------------------------------------------------------


def test_finite_rows_pass_a_model_that_refuses_others() -> None:
    assert np.shares_memory(to_rows(ROWS[:2], FINITE), ROWS)


@pytest.mark.parametrize(("word", "value"), [("nan", np.inf), ("inf", np.nan)])
def test_only_what_is_named_is_refused(word: str, value: float) -> None:
    forest = replace(FOREST, refuses=(word,))
    assert equal_bits(to_rows([[value, 0, 1]], forest), np.array([[value, 0, 1]], np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e39, 3.5e38])
def test_scikit_learn_refuses_the_same_values(value: float) -> None:
    rows = np.array([[0.0, 1.0, 2.0], [value, 0.0, 0.0]])
    model = GradientBoostingRegressor(n_estimators=1).fit(np.eye(3), [0, 1, 2])
    for call in (model.predict, lambda rows: to_rows(rows, FINITE)):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"NaN|infinity|refuses"):
            call(rows)


def test_a_refusal_without_meaning_is_a_damaged_model() -> None:
    with pytest.raises(ModelFormatError, match=r"field 'refuses' is \('zero',\), expected 'nan'"):
        replace(FOREST, refuses=("zero",))


# -- absent entries -------------------------------------------------------------------------------


def _drawn(dtype: str = "float64") -> Any:
    """Sparse rows with explicit zeros, and NaN among their entries."""
    rng = np.random.default_rng(3)
    matrix = sp.random(
        500, 3, 0.5, "csr", dtype=dtype, random_state=rng, data_rvs=rng.standard_normal
    )
    matrix.data[::5], matrix.data[1::7] = 0, np.nan
    return matrix


@pytest.mark.parametrize("absent", [0.0, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_absent_entries_are_what_the_model_says(absent: float, dtype: str) -> None:
    forest = forest_of([1.0], dtype=dtype, absent=absent)
    matrix = csr([0.0, 5.0, np.nan], [1, 0, 2], [0, 1, 3])
    rows = np.array([[absent, 0, absent], [5, absent, np.nan]], dtype)
    assert equal_bits(to_rows(matrix, forest), rows)


@pytest.mark.long
def test_xgboost_takes_absent_entries_for_missing_and_so_do_we() -> None:
    matrix = _drawn()
    target = np.nan_to_num(matrix.toarray()) @ [1, -2, 3] + (np.diff(matrix.indptr) == 3)
    booster = xgboost.train({"max_depth": 4}, xgboost.DMatrix(matrix, target), 10)
    built = tvm_forest.build(booster, schedule=lambda start: start)
    ours = built.predict(matrix)
    assert equal_bits(ours, booster.predict(xgboost.DMatrix(matrix)))
    assert equal_bits(ours, booster.inplace_predict(matrix))
    assert not np.array_equal(ours, built.predict(matrix.toarray()))


def test_lightgbm_takes_absent_entries_for_zero() -> None:
    matrix = _drawn()
    target = np.nan_to_num(matrix.toarray()) @ [1, -2, 3] + (np.diff(matrix.indptr) == 3)
    model = lightgbm.train({"verbose": -1}, lightgbm.Dataset(matrix, target), 10)
    rows = to_rows(matrix, forest_of([1.0], dtype="float64"))
    assert equal_bits(model.predict(matrix), model.predict(rows))
    assert not np.array_equal(
        model.predict(matrix), model.predict(np.where(rows == 0, np.nan, rows))
    )


def test_entries_that_lightgbm_takes_in_two_ways_are_refused() -> None:
    model = lightgbm_models.MODELS["mixed_missing"]()
    rows = np.full((1, 6), 1e-36)
    matrix = sp.csr_matrix(rows)
    built = tvm_forest.build(model, schedule=lambda start: start)
    assert equal_bits(built.predict(rows), model.predict(rows))
    assert not equal_bits(model.predict(matrix), model.predict(rows))
    with pytest.raises(InputError, match="the entry 1e-36, which LightGBM does not take for zero"):
        built.predict(matrix)
    matrix.data[:] = [1e-34, 0, -0.0, np.nan, np.inf, -1]
    assert equal_bits(built.predict(matrix), model.predict(matrix))


def test_scikit_learn_takes_absent_entries_for_zero() -> None:
    matrix = _drawn()
    matrix.data[:] = np.nan_to_num(matrix.data)
    target = matrix.toarray() @ [1, -2, 3]
    model = RandomForestRegressor(5, n_jobs=1, random_state=0).fit(matrix, target)
    assert equal_bits(model.predict(matrix), model.predict(to_rows(matrix, FOREST)))


def test_coordinates_that_occur_twice_are_added_as_xgboost_adds_them() -> None:
    matrix = sp.coo_matrix(([1.0, -2.0, 4.0], ([0, 0, 1], [1, 1, 2])), shape=(2, 3))
    rows = np.array([[0, -1, 0], [0, 0, 4]], np.float32)
    assert equal_bits(to_rows(matrix, FOREST), rows)
    model = xgboost.train({}, xgboost.DMatrix(np.eye(3), [0, 1, 0]), 1)
    dense = np.where(rows == 0, np.nan, rows)
    assert equal_bits(model.predict(xgboost.DMatrix(matrix)), model.inplace_predict(dense))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "int64", "longdouble"])
def test_sparse_entries_of_any_number_type_are_converted(dtype: str) -> None:
    rows = np.array([[0, 1, 0], [1, 0, 1]]).astype(dtype)
    assert equal_bits(to_rows(sp.csr_array(rows), FOREST), rows.astype(np.float32))


# -- numbers --------------------------------------------------------------------------------------

LARGE = 2**62 + 2**38 + 1
"""float32 rounds it up, but down if it is rounded to float64 first."""


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"age": [LARGE], "height": [0.5], "weight": [True]}),
        pd.DataFrame({"age": pd.array([LARGE], "Int64"), "height": [0.5], "weight": [True]}),
        pl.DataFrame({"age": [LARGE], "height": [0.5], "weight": [True]}),
        pa.table({"age": [LARGE], "height": [0.5], "weight": [True]}),
    ],
    ids=["pandas", "nullable", "polars", "pyarrow"],
)
def test_large_integers_beside_fractions_are_rounded_once(frame: Any) -> None:
    rows = np.array([[np.int64(LARGE).astype(np.float32), 0.5, 1]], np.float32)
    assert np.float32(float(LARGE)) < rows[0, 0] and equal_bits(to_rows(frame, FOREST), rows)


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table], ids=LIBRARIES[1:])
def test_integers_and_bools_with_gaps_are_missing_values(make: Any) -> None:
    frame = make({"age": [LARGE, None], "height": [True, None], "weight": [None, 0.5]})
    rows = np.array([[np.float32(np.int64(LARGE)), 1, np.nan], [np.nan, np.nan, 0.5]], np.float32)
    assert equal_bits(to_rows(frame, FOREST), rows)


@pytest.mark.parametrize("form", ["int8", "int16", "int32", "int64", "float16", "bool_"])
def test_arrow_and_polars_columns_of_any_number_type_are_converted(form: str) -> None:
    table = pa.table({name: pa.array([1, 0, None]).cast(getattr(pa, form)()) for name in NAMES})
    rows = np.tile(np.array([[1], [0], [np.nan]], np.float32), 3)
    assert equal_bits(to_rows(table, FOREST), rows)
    assert equal_bits(to_rows(pl.from_arrow(table), FOREST), rows)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=LIBRARIES)
def test_frames_beyond_float32_become_infinite_without_a_warning(make: Any) -> None:
    with np.errstate(all="raise"):
        rows = to_rows(make(columns(age=[1e300, -1e39])), FOREST)
    assert rows[:, 0].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "longdouble", ">f8"])
def test_lightgbm_takes_other_dtypes_for_float32(dtype: str) -> None:
    values = np.repeat([[2.0**24], [2.0**24 + 1], [2.0**24 + 2]], 50, axis=0)
    options = {"verbose": -1, "min_data_in_leaf": 1, "min_data_in_bin": 1}
    model = lightgbm.train(options, lightgbm.Dataset(values, values[:, 0]), 50)
    forest = forest_of([1.0], n_features=1, dtype="float64", other_dtype="float32")
    rows = values[::50].astype(dtype)
    assert equal_bits(model.predict(to_rows(rows, forest)), model.predict(rows))
    assert to_rows(rows, forest)[1, 0] == 2**24
    assert to_rows(pd.DataFrame(values[::50].astype(np.int64)), forest)[1, 0] == 2**24 + 1


@pytest.mark.parametrize("lock", [False, True], ids=["writable", "read-only"])
def test_foreign_tensors_of_any_layout_are_read(lock: bool) -> None:
    for array in (
        HARD.copy(),
        np.asfortranarray(HARD),
        HARD[::2],
        HARD[:, ::-1],
        ROWS.astype("f2"),
    ):
        array.flags.writeable = not lock
        rows = to_rows(Tensor(array), FOREST)
        assert equal_bits(rows, np.ascontiguousarray(array, np.float32))


def test_hard_rows_of_float64_survive_every_frame() -> None:
    forest = forest_of([1.0], dtype="float64")
    rows = hard_rows(forest, 40)
    for frame in (
        pd.DataFrame(rows),
        pl.DataFrame(rows),
        pa.table(dict(zip("abc", rows.T, strict=True))),
    ):
        assert equal_bits(to_rows(frame, forest), rows)
