"""Calls of few rows by builtin functions give what all other calls give, or leave rows to them."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import types
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from tvm_forest.errors import InputError
from tvm_forest.predictor import few_rows
from tvm_forest.probe_rows import hard_rows

MAPS = Path("/proc/self/maps")
FOREST = drawn_forest(12, 4, base=[0.1, 0.2], link="softmax", seed=3)
ROWS = hard_rows(FOREST, 70, seed=5)
FORESTS = {
    "one output": drawn_forest(9, 4),
    "float64": drawn_forest(9, 4, dtype="float64", link="sigmoid"),
    "classes": FOREST,
    "averages": drawn_forest(9, 4, aggregate="average"),
    "averages with a link": drawn_forest(9, 4, aggregate="average", link="sigmoid", seed=2),
    "base score last": drawn_forest(9, 4, base=[0.7], base_first=False, link="sigmoid", seed=8),
    "values of float64": drawn_forest(9, 4, link="sigmoid", value_dtype="float64", seed=4),
    "many columns": drawn_forest(9, 4, n_features=200, seed=6),
    "many classes": drawn_forest(40, 2, base=[0.1] * 40, link="softmax", seed=7),
    "one leaf": forest_of([1.5]),
    "infinities refused": drawn_forest(9, 4, refuses=("inf",)),
}


def build(forest: Any) -> tvm_forest.Predictor:
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


def builtins(predictor: tvm_forest.Predictor) -> tuple[Any, Any]:
    """Return the functions of margins and values."""
    rows = np.zeros((1, predictor.forest.row_width))
    predictor.predict_margin(rows)
    found = predictor._small_batches.margins, predictor._small_batches.values
    assert all(isinstance(x, types.BuiltinFunctionType) for x in found)
    return found


def describe(array: Any) -> tuple[Any, ...]:
    flags = array.flags
    return array.dtype, array.shape, flags.owndata, flags.writeable, array.tobytes()


# -- what they give -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORESTS)
def test_few_rows_give_the_bits_shapes_and_dtypes_of_other_calls(name: str) -> None:
    forest = FORESTS[name]
    predictor = build(forest)
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 5e-324, 1e39, 1e308])
    special = special[np.isfinite(special) | np.isnan(special) | (forest.refuses == ())]
    drawn = np.random.default_rng(0).choice(special, (40, forest.n_features))
    drawn = drawn[~np.isinf(drawn.astype(forest.row_dtype)).any(1)] if forest.refuses else drawn
    rows = np.concatenate([hard_rows(forest, 40), drawn])
    rows = rows[~np.isinf(rows).any(axis=1)] if forest.refuses else rows
    functions, served = builtins(predictor), 0
    for dtype in (np.float32, np.float64):
        for count in (1, 2, 3, 7, 8, 31, 64, 65):
            some = rows[-count:].astype(dtype)
            wanted = predictor._functions.compute_sums(some, 1)
            for call, array in zip(functions, wanted, strict=True):
                few = call(some)
                expected = array.squeeze(1).copy() if array.shape[1] == 1 else array.copy()
                assert few is None or describe(few) == describe(expected)
                served += few is not None
            assert describe(predictor.predict_margin(some))[-1] == wanted[0].tobytes()
    assert served >= 12


def test_conversions_and_dropped_results_have_room_on_the_stack() -> None:
    """Or rows go another way: a thread may have a small stack."""
    wide = builtins(build(FORESTS["many columns"]))[0]
    given, converted = np.zeros((40, 200), np.float32), np.zeros((40, 200))
    assert wide(given) is not None and wide(converted) is None
    assert wide(converted[:10]) is not None
    many = build(drawn_forest(200, 1, base=[0.1] * 200, link="softmax"))
    assert builtins(many)[0](ROWS[:10]) is not None and builtins(many)[0](ROWS[:20]) is None
    assert len(many.predict_margin(ROWS[:20])) == 20


class Subclass(np.ndarray):
    """An array of another class."""


PLAIN = np.ones((3, 4), np.float32)
ODD = {
    **{"None": None, "number": 1, "list": [[1.0] * 4], "text": "x", "object": object()},
    **{"turned": PLAIN[:, ::-1], "of Fortran": np.asfortranarray(PLAIN), "a vector": PLAIN[0]},
    **{"integers": PLAIN.astype(int), "half": PLAIN.astype("f2"), "bools": PLAIN.astype(bool)},
    **{"swapped": PLAIN.astype(">f4"), "swapped, long": PLAIN.astype(">f8"), "g": PLAIN.astype("g")},
    **{"subclass": PLAIN.view(Subclass), "matrix": np.matrix(PLAIN), "masked": np.ma.ones((3, 4))},
    **{"no rows": PLAIN[:0], "no dimension": np.array(1.0), "three": PLAIN[None]},
    **{"narrow": np.ones((3, 3)), "wide": np.ones((3, 5)), "many": np.ones((65, 4))},
    "unaligned": np.frombuffer(b"\0" * 17, np.uint8)[1:].view(np.float32).reshape(1, 4),
    **{"texts": np.array([["a"] * 4]), "objects": np.array([[None] * 4]), "times": PLAIN.astype("M8[s]")},
    "complex": PLAIN.astype(complex),
    "records": np.zeros((3, 4), [("x", "f4")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_rows_of_other_kinds_go_the_other_way(name: str) -> None:
    predictor = build(drawn_forest(9, 4))
    for call in builtins(predictor):
        assert call(ODD[name]) is None
    taken = ("turned", "of Fortran", "integers", "half", "bools", "swapped", "g", "unaligned")
    if name in taken:
        wanted = predictor.predict(np.ascontiguousarray(ODD[name], np.float64))
        assert np.array_equal(predictor.predict(ODD[name]), wanted)


def test_rows_that_are_only_read_or_transposed_twice_are_taken() -> None:
    call, _ = builtins(build(drawn_forest(9, 4)))
    fixed = PLAIN.copy()
    fixed.flags.writeable = False
    for rows in (fixed, PLAIN.T.T, PLAIN[1:], pickle.loads(pickle.dumps(PLAIN))):
        assert np.array_equal(call(rows), call(PLAIN)[: len(rows)])


@pytest.mark.parametrize("refuses", [("nan",), ("inf",), ("nan", "inf"), ()])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_a_model_refuses_are_left_to_who_names_them(
    refuses: tuple[str, ...], dtype: str
) -> None:
    predictor = build(drawn_forest(9, 4, refuses=refuses, dtype=dtype))
    call, _ = builtins(predictor)
    cases = {"nan": [np.nan], "inf": [np.inf, -np.inf], "": [1e30, -0.0]}
    cases["inf" if dtype == "float32" else ""] += [1e39]
    for kind, numbers in cases.items():
        for number in numbers:
            rows = np.zeros((2, 4))
            rows[1, 3] = number
            assert (call(rows) is None) == (kind in refuses)
            if kind in refuses:
                with pytest.raises(InputError, match="row 1, column 3"):
                    predictor.predict_margin(rows)


@pytest.mark.parametrize("n_jobs", [True, 1.0, 0, "1"])
def test_numbers_of_threads_are_looked_at(n_jobs: Any) -> None:
    predictor = build(FOREST)
    builtins(predictor)
    with pytest.raises(InputError, match="n_jobs"):
        predictor.predict_margin(ROWS[:1], n_jobs=n_jobs)


def test_a_function_that_fails_says_so_as_in_other_calls() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("the walk fails")

    predictor = build(FOREST)
    functions = predictor._functions
    failing = few_rows.tvm_ffi.convert(fail)
    functions.for_batches = [x._replace(serial=failing) for x in functions.for_batches]
    call, _ = builtins(predictor) if False else few_rows.bind(functions, 64)
    for _ in range(20):
        assert call(ROWS[:1]) is None
    with pytest.raises(ValueError, match="the walk fails"):
        predictor.predict(ROWS[:1])
