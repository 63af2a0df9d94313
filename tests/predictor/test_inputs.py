"""Rows in every form, and every mistake with its message."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tvm

import tvm_forest
from bad_inputs import BAD_INPUTS, FOREST, NAMES, ON_X86, ROWS, BadInput, Tensor, predictor
from forests import Split, drawn_forest, forest_of
from tvm_forest.errors import BuildError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.inputs import to_rows

HARD = hard_rows(FOREST, 33)
WIDE = np.zeros((66, 9), np.float32)
WIDE[::2, 1:7:2] = HARD
LENT = np.array(HARD)
LENT.flags.writeable = False
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

SAME_ROWS: dict[str, Callable[[], Any]] = {
    "plain": lambda: HARD.copy(),
    "Fortran order": lambda: np.asfortranarray(HARD),
    "a slice with strides": lambda: WIDE[::2, 1:7:2],
    "negative strides": lambda: HARD[::-1, ::-1].copy()[::-1, ::-1],
    "the transpose of a transpose": lambda: np.ascontiguousarray(HARD.T).T,
    "read-only": lambda: LENT,
    "beside the alignment": lambda: _unaligned(HARD),
    "big-endian": lambda: HARD.astype(">f4"),
    "float64": lambda: HARD.astype(np.float64),
    "long double": lambda: HARD.astype(np.longdouble),
    "a list of lists": lambda: HARD.tolist(),
    "a list of arrays": lambda: list(HARD),
    "a TVM tensor": lambda: tvm.runtime.tensor(HARD),
    "a foreign tensor": lambda: Tensor(HARD),
    "a foreign tensor of float64": lambda: Tensor(HARD.astype(np.float64)),
    "a frame": lambda: pd.DataFrame(HARD, columns=NAMES),
    "a frame of float64": lambda: pd.DataFrame(HARD.astype(np.float64), columns=NAMES),
    "a nullable frame": lambda: pd.DataFrame(HARD, columns=NAMES).astype("Float32"),
    "a sparse frame": lambda: pd.DataFrame(HARD, columns=NAMES).astype(pd.SparseDtype("float32")),
    "a frame with an index": lambda: pd.DataFrame(HARD, index=range(40, 73), columns=NAMES),
}


def _unaligned(array: Any) -> Any:
    copy = np.frombuffer(bytearray(array.nbytes + 1), array.dtype, array.size, offset=1)
    copy = copy.reshape(array.shape)
    copy[:] = array
    return copy


def _values(rows: Any) -> Any:
    """Return a copy of what rows hold."""
    if hasattr(rows, "columns"):
        return rows.to_numpy(np.float32, na_value=np.nan).copy()
    return np.array(rows if isinstance(rows, np.ndarray | list) else np.from_dlpack(rows))


def expected(rows: Any) -> Any:
    return FOREST.predict_reference(rows)[:, 0]


def equal_bits(one: Any, other: Any) -> bool:
    """Tell whether arrays have the same dtype, shape and bits."""
    form = one.dtype == other.dtype and one.shape == other.shape
    return bool(form and np.ascontiguousarray(one).tobytes() == other.tobytes())


@pytest.mark.parametrize("form", SAME_ROWS)
def test_rows_in_any_form_give_the_same_bits(form: str) -> None:
    rows = SAME_ROWS[form]()
    assert equal_bits(predictor().predict(rows), expected(HARD))


@pytest.mark.parametrize("form", SAME_ROWS)
def test_rows_are_never_modified(form: str) -> None:
    rows = SAME_ROWS[form]()
    before = _values(rows)
    for method in ("predict", "predict_margin", "apply", "predict_per_tree"):
        getattr(predictor(), method)(rows)
    assert equal_bits(before, _values(rows))


@pytest.mark.parametrize("rows", [HARD, LENT, Tensor(HARD)], ids=["plain", "read-only", "tensor"])
def test_rows_of_the_right_form_are_not_copied(rows: Any) -> None:
    memory = rows.array if isinstance(rows, Tensor) else rows
    assert np.shares_memory(to_rows(rows, FOREST), memory)


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", "float16"])
def test_rows_of_any_number_type_are_converted(dtype: str) -> None:
    rows = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 1]]).astype(dtype)
    assert equal_bits(predictor().predict(rows), expected(rows.astype(np.float32)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_largest_integers_are_rounded_once(dtype: str) -> None:
    rows = np.array([[np.iinfo(dtype).max, np.iinfo(dtype).min, np.iinfo(dtype).max - 1]], dtype)
    assert equal_bits(to_rows(rows, FOREST), rows.astype(np.float32))


@pytest.mark.slow
def test_float64_rows_are_rounded_before_they_are_compared() -> None:
    threshold = np.float32(0.1)
    forest = forest_of([Split(0, float(threshold), -1.0, 1.0)], n_features=1)
    rows = np.array([[np.nextafter(np.float64(threshold), 0)], [float(threshold) - 1e-7]])
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    assert predictor.predict(rows).tolist() == [1.0, -1.0]


def test_float64_rows_beyond_float32_become_infinite_without_a_warning() -> None:
    rows = np.array([[1e300, -1e300, 1e39], [-1e39, 1e-320, -1e-300]])
    with np.errstate(all="raise"):
        predicted = predictor().predict(rows)
    with np.errstate(over="ignore"):
        assert equal_bits(predicted, expected(rows.astype(np.float32)))


@pytest.mark.slow
def test_a_forest_of_float64_takes_float64_rows_as_they_are() -> None:
    forest = drawn_forest(9, 5, dtype="float64", comparison="<=", base=[0.1])
    rows = hard_rows(forest, 65)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    assert equal_bits(predictor.predict(rows), forest.predict_reference(rows)[:, 0])
    assert np.shares_memory(to_rows(rows, forest), rows)


def test_nan_and_infinities_are_values() -> None:
    rows = np.array([[np.nan] * 3, [np.inf] * 3, [-np.inf] * 3], np.float32)
    assert equal_bits(predictor().predict(rows), expected(rows))


@pytest.mark.parametrize("method", ["predict", "predict_margin", "apply", "predict_per_tree"])
def test_an_empty_batch_is_a_valid_answer(method: str) -> None:
    shape = (0,) if method in ("predict", "predict_margin") else (0, FOREST.n_trees)
    for rows in (ROWS[:0], np.empty((0, 3)), pd.DataFrame(ROWS[:0], columns=NAMES)):
        assert getattr(predictor(), method)(rows).shape == shape


def test_nullable_integers_with_gaps_are_missing_values() -> None:
    column = pd.array([1, None], dtype="Int64")
    frame = pd.DataFrame(dict.fromkeys(NAMES, column))
    rows = np.array([[1, 1, 1], [np.nan] * 3], np.float32)
    assert equal_bits(predictor().predict(frame), expected(rows))


@pytest.mark.slow
def test_names_of_columns_do_not_matter_to_a_model_without_names() -> None:
    forest = forest_of([Split(2, 0.5, -1.0, 2.0)])
    frame = pd.DataFrame(HARD, columns=["x", "y", "z"])
    answer = tvm_forest.build(forest, schedule=lambda start: start).predict(frame)
    assert equal_bits(answer, forest.predict_reference(HARD)[:, 0])


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 64, 2**31, 2**40, np.int64(2), -1, None])
def test_any_number_of_threads_gives_the_same_bits(n_jobs: Any) -> None:
    rows = np.tile(HARD, (9, 1))
    assert equal_bits(predictor().predict(rows, n_jobs=n_jobs), expected(rows))


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm"},
        {"kind": "llvm", "mcpu": "x86-64"},
        {"kind": "llvm", "mcpu": "generic", "opt-level": 0},
        tvm_forest.Target(cores=1),
    ],
    ids=str,
)
@pytest.mark.slow
@pytest.mark.cases(2, others="long")
def test_every_cpu_gives_the_same_bits(target: Any) -> None:
    if "x86" in str(target) and not ON_X86:
        pytest.skip("needs an x86 machine")
    assert equal_bits(tvm_forest.build(FOREST, target).predict(HARD), expected(HARD))


@pytest.mark.parametrize("case", BAD_INPUTS, ids=lambda case: case.name.replace(" ", "-"))
def test_a_mistake_is_told_with_place_value_and_remedy(case: BadInput) -> None:
    with pytest.raises(case.error) as caught:
        case.call()
    assert type(caught.value) is case.error
    assert [part for part in case.parts if part not in str(caught.value)] == []


def test_the_names_of_mistakes_are_unique() -> None:
    names = [case.name for case in BAD_INPUTS]
    assert sorted(set(names)) == sorted(names)


def test_a_tvm_without_llvm_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm, "get_global_func", lambda name, allow_missing=False: None)
    with pytest.raises(BuildError, match=r"argument 'target': .*without LLVM.*apache-tvm"):
        tvm_forest.build(FOREST)


def test_a_failure_of_the_code_generator_comes_with_the_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ValueError("no registers left")

    monkeypatch.setattr(tvm, "compile", fail)
    with pytest.raises(BuildError, match=r"no registers left\n(?s:.*)for tree") as caught:
        tvm_forest.build(FOREST)
    assert isinstance(caught.value.__cause__, ValueError)
