"""Calls of few rows by builtin functions give what all other calls give, or leave rows to them."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import itertools
import pickle
import sys
import threading
import tracemalloc
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import length_hint
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tvm_ffi

import tvm_forest
from forests import drawn_forest, forest_of
from tvm_forest.errors import InputError
from tvm_forest.forest import choose_classes, choose_labels
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import LabelRule
from tvm_forest.predictor.class_numbers import to_probabilities
from tvm_forest.predictor.few_rows import builtin
from tvm_forest.predictor.few_rows.small_batches import MOST_CELLS, squeeze
from tvm_forest.runtime.threads import FEW_ROWS

pytestmark = pytest.mark.optimised

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
    return tvm_forest.build(forest, schedule=lambda start: start)


@functools.cache
def plain() -> tvm_forest.Predictor:
    """A model that many tests ask, and none changes."""
    return build(drawn_forest(9, 4))


def builtins(predictor: tvm_forest.Predictor) -> tuple[Any, Any]:
    """Return the functions of margins and values."""
    rows = np.zeros((1, predictor.forest.row_width))
    predictor.predict_margin(rows)
    found = predictor._small_batches.few[:2]
    assert all(isinstance(x, types.BuiltinFunctionType) for x in found)
    return found


def describe(array: Any) -> tuple[Any, ...]:
    flags = array.flags
    return array.dtype, array.shape, flags.owndata, flags.writeable, array.tobytes()


# -- what they give -------------------------------------------------------------------------------


SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 5e-324, 1e39, 1e308])


@np.errstate(over="ignore")
def draw_rows(forest: Any, dtype: Any) -> Any:
    """Draw rows with all kinds of numbers, but for those that a model refuses."""
    special = np.random.default_rng(0).choice(SPECIAL, (40, forest.n_features))
    rows = np.concatenate([hard_rows(forest, 40), special]).astype(dtype)
    return rows[np.isfinite(rows.astype(forest.row_dtype)).all(1)] if forest.refuses else rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.cases(11, others="long")
def test_few_rows_give_the_bits_shapes_and_dtypes_of_other_calls(name: str, dtype: Any) -> None:
    predictor = build(FORESTS[name])
    functions, rows = builtins(predictor), np.tile(draw_rows(predictor.forest, dtype), (8, 1))
    for count in (1, 2, 3, 7, 8, 31, 64, 65, FEW_ROWS, FEW_ROWS + 1):
        some = rows[-count:]
        wanted = [squeeze(x).copy() for x in predictor._functions.compute_sums(some, 1)]
        for call, array in zip(functions, wanted, strict=True):
            few = call(some)
            assert few is not None or count > 7
            assert few is None or describe(few) == describe(array)
        assert predictor.predict_margin(some).tobytes() == wanted[0].tobytes()
        assert predictor.predict(some).tobytes() == wanted[1].tobytes()


LINKS = {1: ("identity", "sigmoid", "unbounded_sigmoid"), 3: ("identity", "softmax", "sigmoid")}
LABELS = (np.arange(3), np.arange(3, dtype=np.int32), np.array(["no", "yes", "?"]), np.eye(3)[0])


def draw_classifier(rng: Any, rule: Any, outputs: int, dtype: str) -> Any:
    """Draw a classifier with ties, and with infinite leaves, whose sums may be NaN."""
    labels = LABELS[rng.integers(len(LABELS))][: max(2, outputs)]
    forest = drawn_forest(
        *(8 * outputs, 3),
        **{"dtype": dtype, "seed": int(rng.integers(99)), "base": [0.0] * outputs},
        **{"label_rule": rule, "labels": labels, "label_cut": 0.1 * rng.integers(-3, 3)},
        link=LINKS[outputs][rng.integers(3)],
    )
    few = np.array([-0.3, -0.1, 0.0, 0.1, 0.3, np.inf, -np.inf], forest.leaf_value.dtype)
    return replace(forest, leaf_value=rng.choice(few, forest.leaf_value.shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", LINKS)
@pytest.mark.parametrize("rule", get_args(LabelRule))
@pytest.mark.cases(12, others="long")
def test_classes_and_probabilities_of_few_rows_are_those_of_other_calls(
    rule: Any, outputs: int, dtype: str
) -> None:
    rng, nan = np.random.default_rng([len(rule), outputs]), 0
    for _ in range(3):
        forest = draw_classifier(rng, rule, outputs, dtype)
        predictor, rows = build(forest), draw_rows(forest, np.float32)
        few, (margin, value) = (
            predictor._small_batches.few,
            predictor._functions.compute_sums(rows, 1),
        )
        nan += np.isnan(margin).sum()
        if forest.gives_labels and not (outputs > 1 and rule in ("half", "cut")):
            classes = choose_classes(forest, margin, value)
            assert describe(few.classes(rows)) == describe(classes)
            assert np.array_equal(predictor.predict_class(rows), classes)
        if forest.gives_labels:
            labels = choose_labels(forest, margin, value)
            assert predictor.predict(rows).dtype == labels.dtype
            assert np.array_equal(predictor.predict(rows), labels)
        if forest.gives_probabilities:
            probabilities = to_probabilities(forest, value)
            if probabilities.shape[1] > 1:
                assert describe(few.probabilities(rows)) == describe(probabilities.copy())
            assert describe(predictor.predict_proba(rows)) == describe(probabilities.copy())
    assert nan


def test_conversions_and_dropped_results_need_no_large_stack() -> None:
    wide = build(FORESTS["many columns"])
    many = build(drawn_forest(200, 1, base=[0.1] * 200, link="softmax"))
    most = MOST_CELLS // 200  # more would be checked and converted with Python's lock held for long
    assert wide._small_batches.find_calls(1).margins(np.zeros((most, 200), np.float32)) is not None
    assert wide._small_batches.find_calls(1).margins(np.zeros((most + 1, 200), np.float32)) is None
    before = threading.stack_size(1 << 18)
    try:
        with ThreadPoolExecutor(1) as threads:
            for predictor in (wide, many):
                width = predictor.forest.n_features
                rows = np.random.default_rng(0).normal(size=(2048, width)).astype(np.float32)
                wanted = [squeeze(x) for x in predictor._functions.compute_sums(rows, 1)]
                calls = predictor._small_batches.find_calls(1)[:2]
                for call, right in zip(calls, wanted, strict=True):
                    for given in (rows, rows.astype(np.float64)):
                        assert threads.submit(call, given).result().tobytes() == right.tobytes()
    finally:
        threading.stack_size(before)


@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_many_rows_of_one_thread_go_the_same_way_but_for_the_rest_of_a_block(link: str) -> None:
    forest = drawn_forest(20, 4, link=link)
    two = replace(tvm_forest.target.parse_target("llvm"), cores=2)
    predictor = tvm_forest.build(forest, two, schedule=in_blocks)
    rows = np.tile(hard_rows(forest, 100, seed=1), (60, 1))[:5120]
    short, wanted = predictor._small_batches, forest.predict_reference(rows)[:, 0]
    alone = short.find_calls(1)
    for count, is_taken in ((256, True), (257, False), (320, True), (512, True), (2048, True)):
        found = alone.margins(rows[:count])
        assert (found is not None) == is_taken
        assert found is None or found.tobytes() == wanted[:count].tobytes()
        assert (
            predictor.predict_margin(rows[:count], n_jobs=1).tobytes() == wanted[:count].tobytes()
        )
    most = builtin.count_serial(predictor._functions, 1 << 16)
    assert 256 < most < 5120 and most == builtin.count_serial(predictor._functions, most)
    for whole in (most // 64 * 64, most // 64 * 64 + 64):  # on one thread, on two
        assert short.usual.margins(rows[:whole]).tobytes() == wanted[:whole].tobytes()
    assert short.usual.margins(rows[: most + 1]) is None
    assert alone.margins(rows.astype(np.float64)).tobytes() == wanted.tobytes()


def in_blocks(start: Any) -> Any:
    """Return a schedule with blocks of bit planes that threads share."""
    sch = start.represent_as("bitsliced").tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    return sch.simdize("b1", "bits").parallel("b0")


class Subclass(np.ndarray):
    """An array of another class."""


PLAIN = np.ones((3, 4), np.float32)
ODD = {
    **{"None": None, "a number": 1, "a list": [[1.0] * 4], "a text": "x", "an object": object()},
    **{"turned": PLAIN[:, ::-1], "in Fortran's order": np.asfortranarray(PLAIN)},
    **{kind: PLAIN.astype(kind) for kind in ("i8", "f2", "?", ">f4", ">f8", "g", "c16", "M8[s]")},
    **{kind: np.empty((3, 4), kind) for kind in ("O", "U1", "f4,f4", "V4")},
    **{"a subclass": PLAIN.view(Subclass), "masked": np.ma.ones((3, 4))},
    **{"no rows": PLAIN[:0], "a vector": PLAIN[0], "no dimension": np.array(1.0), "3": PLAIN[None]},
    **{"narrow": np.ones((3, 3)), "wide": np.ones((3, 5)), "many": np.ones((FEW_ROWS + 1, 4))},
    "unaligned": np.frombuffer(b"\0" * 17, np.uint8)[1:].view(np.float32).reshape(1, 4),
}
TAKEN = {*("turned", "in Fortran's order", "i8", "f2", "?", ">f4", ">f8", "g", "unaligned", "many")}
"""Those that are rows to the long way."""


@pytest.mark.parametrize("name", ODD)
def test_rows_of_other_kinds_go_the_other_way(name: str) -> None:
    predictor = plain()
    for call in builtins(predictor):
        assert call(ODD[name]) is None
    if name in TAKEN:
        wanted = predictor.forest.predict_reference(np.asarray(ODD[name], np.float32))[:, 0]
        assert np.array_equal(predictor.predict_margin(ODD[name]), wanted)


def test_rows_that_are_only_read_or_transposed_twice_are_taken() -> None:
    call, _ = builtins(plain())
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
    functions, failing = predictor._functions, tvm_ffi.convert(fail)
    functions.for_batches = [x._replace(serial=failing) for x in functions.for_batches]
    call = builtin.bind(functions, 64).margins
    assert all(call(ROWS[:1]) is None for _ in range(20))
    with pytest.raises(ValueError, match="the walk fails"):
        predictor.predict(ROWS[:1])


# -- what they leave behind -----------------------------------------------------------------------


def test_calls_keep_no_object_and_no_memory() -> None:
    call, _ = builtins(build(FORESTS["infinities refused"]))
    row, refused = np.zeros((1, 4)), np.full((1, 4), np.inf)
    made = call(row)
    assert sys.getrefcount(made) == sys.getrefcount(row) == 2
    tracemalloc.start()
    try:
        before = [sys.getrefcount(x) for x in (None, row, refused, row.dtype)]
        for _ in range(2000):
            for rows in (row, refused, None):
                call(rows)
        after = [sys.getrefcount(x) for x in (None, row, refused, row.dtype)]
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()
    assert all(abs(x - y) < 20 for x, y in zip(before, after, strict=True))


def test_a_function_goes_with_its_predictor_and_out_of_circles() -> None:
    predictor = build(FOREST)
    call, _ = builtins(predictor)
    sheet, functions = weakref.ref(call.__self__), weakref.ref(predictor._functions)
    gc.disable()
    try:
        del predictor
        assert len(call(ROWS[:1])) == 1 and functions() is not None
        del call, _
        assert sheet() is None and functions() is None
    finally:
        gc.enable()
    call, _ = builtins(build(FOREST))
    sheet = weakref.ref(call.__self__)
    call.__self__.circle = [call, _]
    del call, _
    gc.collect()
    assert sheet() is None


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list mappings")
def test_code_stays_as_long_as_a_function_leads_to_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TVM_FOREST_CACHE", str(tmp_path))
    predictor = build(FOREST)
    predictor.update(drawn_forest(7, 2, base=[0.1, 0.2], link="softmax"))
    gc.collect()
    call, _ = builtins(predictor)
    wanted, before = call(ROWS[:9]), MAPS.read_text().count("code.so")
    predictor.update(FOREST)
    predictor.predict_margin(ROWS[:1])
    assert call(ROWS[:9]).tobytes() == wanted.tobytes()
    assert MAPS.read_text().count("code.so") > before
    del call, _
    assert MAPS.read_text().count("code.so") == before


# -- where they are made --------------------------------------------------------------------------


def test_predictors_that_are_updated_copied_or_loaded_have_functions_of_their_own() -> None:
    predictor = build(FOREST)
    first, _ = builtins(predictor)
    newer = drawn_forest(20, 3, base=[0.1, 0.2], link="softmax", seed=9)
    predictor.update(newer)
    for one in (predictor, copy.copy(predictor), pickle.loads(pickle.dumps(predictor))):
        call, _ = builtins(one)
        assert call is not first
        assert np.array_equal(call(ROWS[:5]), newer.predict_reference(ROWS[:5]))
    assert np.array_equal(first(ROWS[:5]), FOREST.predict_reference(ROWS[:5]))
    part = predictor.rounds(0, 3)
    assert np.array_equal(builtins(part)[0](ROWS[:9]), part._functions.compute_sums(ROWS[:9], 1)[0])


def test_other_ways_serve_where_functions_are_off_or_cannot_be_made(monkeypatch: Any) -> None:
    monkeypatch.setenv(builtin.VARIABLE, "off")
    builtin._find_python.cache_clear()
    try:
        predictor = build(FOREST)
        assert np.array_equal(
            predictor.predict_margin(ROWS[:5]), FOREST.predict_reference(ROWS[:5])
        )
        assert predictor._small_batches.find_calls(1).margins is builtin.take_none
    finally:
        builtin._find_python.cache_clear()


# -- threads --------------------------------------------------------------------------------------


def test_a_thread_that_waits_gets_the_lock() -> None:
    """In a loop of C code, in which Python itself lets nobody else run."""
    call, _ = builtins(build(FOREST))
    begun, left = threading.Lock(), list[int]()
    batches = itertools.repeat(ROWS[:1], 3_000_000)
    thread = threading.Thread(target=lambda: begun.acquire() and left.append(length_hint(batches)))
    begun.acquire()
    thread.start()
    begun.release()  # from here on the thread needs nothing but the lock of the interpreter
    collections.deque(map(call, batches), maxlen=0)
    thread.join()
    assert left[0] > 0


def test_threads_predict_while_a_predictor_is_updated() -> None:
    newer = drawn_forest(20, 3, base=[0.1, 0.2], link="softmax", seed=9)
    predictor, known = (
        build(FOREST),
        [FOREST.predict_reference(ROWS), newer.predict_reference(ROWS)],
    )
    told, wrong, calls = threading.Event(), list[int](), [0] * 2

    def ask(number: int) -> None:
        rng = np.random.default_rng(number)
        while not told.is_set() or not calls[number]:
            count = int(rng.integers(1, 60))
            rows = ROWS[:count].astype((np.float32, np.float64)[count % 2])
            found = predictor.predict_margin(rows).tobytes()
            wrong.extend([count] * all(found != x[:count].tobytes() for x in known))
            calls[number] += 1

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    try:
        for k in range(3):
            predictor.update((newer, FOREST)[k % 2])
    finally:
        told.set()
        for thread in threads:
            thread.join()
    assert not wrong and all(calls)
