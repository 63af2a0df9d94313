"""Memberships in sets of categories in compiled code: numbers, unions, and all rules to the bit."""

from __future__ import annotations

import functools
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

import tvm_forest
from asking_forests import asking
from category_models import RULES, SETS, TOP, asks
from forests import Split, drawn_forest
from schedules import check_results
from test_bitsliced import in_larger_blocks, sliced
from tvm_forest.errors import BuildError
from tvm_forest.forest import Forest
from tvm_forest.forest import memberships as prepare
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import protocol
from tvm_forest.layouts.row_codes import categories, unions
from tvm_forest.predictor import saving
from tvm_forest.predictor.few_rows.small_batches import MARGIN
from tvm_forest.search.heuristic import default_schedules
from tvm_forest.target import parse_target

WHOLE = [*range(-2, 10), 39, 40, 41, TOP - 2, TOP - 1, TOP, TOP + 1, TOP + 2, 1 << 31, 1e30]


def values(dtype: str) -> Any:
    """Whole numbers, what is beside them and between them, and special numbers."""
    whole = np.array(WHOLE, dtype)
    near = [np.nextafter(whole, whole.dtype.type(side)) for side in (np.inf, -np.inf)]
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, -1e-45], dtype)
    return np.concatenate([whole, *near, whole + 0.5, whole - 0.5, odd])


def rows_of(forest: Forest) -> Any:
    column = values(forest.row_dtype)
    return np.stack([column, column[::-1]], axis=1)


def number(forest: Forest) -> categories.CategoricalFeature:
    sets = [members for _, members in forest.derived]
    codes = categories.SideCodes(*np.tile(np.arange(3, dtype=np.uint8)[:, None], len(sets)))
    return categories.number_categories(forest, 0, sets, codes)


# -- numbers and unions ---------------------------------------------------------------------------


@pytest.mark.parametrize("known", [{}, {0: (0, 2, 5, 40)}], ids=["all", "known"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_a_search_finds_the_category_that_the_rule_says(
    rule: str, dtype: str, known: dict[int, tuple[int, ...]]
) -> None:
    forest = canonicalize(asks(rule, dtype, known_categories=known))
    found, x = number(forest), values(dtype)
    reached = np.sum(found.cuts <= x[:, None], axis=1)
    label = found.labels[found.number[reached]]
    expected = prepare.code_categories(forest, 0, x)
    in_sets = np.isin(expected, [prepare.MISSING, *(c for codes in SETS for c in codes)])
    assert np.array_equal(label, np.where(in_sets, expected, categories.NO_CATEGORY))


def test_neighbouring_categories_share_a_cut() -> None:
    forest = canonicalize(asks("xgboost", "float32", ((0, 1, 2), (3,), (7,))))
    found = number(forest)
    assert found.cuts.tolist() == [-np.inf, 0, 1, 2, 3, 4, 7, 8]
    assert found.labels[found.number].tolist() == [-2, -1, 0, 1, 2, 3, -1, 7, -1]


def test_a_union_names_the_fewer_numbers() -> None:
    """Codes 0 and 1 are the left and the right; one test a column asks for the left."""
    codes = np.array([[0, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]], np.uint8)
    fields = (np.zeros(5), np.zeros(6, np.uint16), np.arange(6), codes)
    found = categories.CategoricalFeature(0, *fields)
    sizes, arrays = unions.write_unions((found,), np.ones(3, np.int64))
    assert sizes == unions.UnionSizes(3, 6)
    assert arrays["union_at"].tolist() == [1, 2, 4, 4]
    assert [hex(x) for x in arrays["unions"]] == ["0x3000300030003", "0x2000200020002", "0x0"]


def test_questions_count_the_categories_that_name_the_sets() -> None:
    """Four categories are named by the two other numbers: of no category, and missing."""
    forest = canonicalize(asks("xgboost", "float32", ((0, 1), (0, 1, 2, 3), (2,))))
    assert forest.set_counts == [prepare.SetCounts(0, 3, 4, 2 + 2 + 1)]
    assert (forest.searches, len(forest.cuts_per_column)) == (1, 6)


def test_more_categories_than_16_bits_number_are_refused() -> None:
    forest = asks("xgboost", "float32", (tuple(range(0, 80_000, 2)),))
    with pytest.raises(BuildError, match="feature 0 is asked for 40000 categories, a number of 16"):
        protocol.find("ranked").pack(canonicalize(forest))
    names = [x.layout for x in default_schedules(forest, parse_target("llvm")).values()]
    assert not {"ranked", "bitsliced"} & set(names)


def test_a_word_of_8_bytes_holds_what_4_do_not() -> None:
    """Ranks of 16 bits and 2,001 columns leave 4 bits for a child and a flag."""
    chain: Any = 0.0
    for count in range(18):
        chain = Split(1, float(count), 1.0, chain)
    tests = [Split(1, float(i), 0.0, 1.0) for i in range(256)]
    forest = asks("xgboost", "float32", tuple((i, i + 1) for i in range(1000)), [*tests, chain])
    rep, arrays = protocol.find("ranked").pack(canonicalize(forest))
    assert (rep.word, arrays["nodes"].dtype, rep.code.columns) == (64, np.uint64, 2001)
    rows = rows_of(forest)
    compiled = tvm_forest.build(forest, schedule=ranked(forest))
    assert np.array_equal(compiled.predict_margin(rows), margin(forest, rows))


# -- compiled results -----------------------------------------------------------------------------

COMPARED = [Split(0, 1.5, 100.0, 200.0), Split(1, 0.0, 300.0, 400.0, True)]


def ranked(forest: Forest) -> Any:
    return tvm_forest.new_schedule(forest).represent_as("ranked")


def blocks(forest: Forest) -> Any:
    sch = ranked(forest).tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
    return sch.interleave("b1", 4).parallel("b0")


SCHEDULES = {
    "ranked": ranked,
    "blocks": blocks,
    "64 bits": sliced,
    "512 bits": lambda forest: sliced(forest, 512).parallel("b0"),
    "3 times 64 bits": lambda forest: in_larger_blocks(forest, 3),
    "columns": lambda forest: tvm_forest.new_schedule(forest).represent_as("sparse"),
}


@functools.cache
def compiled(rule: str, comparison: Any, dtype: str, name: str) -> tuple[Forest, Any]:
    known = {0: (0, 2, 5, 40)} if rule == "scikit-learn" else {}
    forest = asks(rule, dtype, SETS, COMPARED, known_categories=known, comparison=comparison)
    return forest, tvm_forest.build(forest, schedule=SCHEDULES[name](forest))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("rule", "comparison", "dtype"),
    [
        ("lightgbm", "<=", "float64"),
        pytest.param("xgboost", "<", "float32", marks=pytest.mark.slow),
        pytest.param("onnx", "<", "float64", marks=pytest.mark.slow),
        pytest.param("onnx", "<=", "float32", marks=pytest.mark.slow),
        pytest.param("scikit-learn", "<=", "float64", marks=pytest.mark.slow),
    ],
)
@pytest.mark.cases(6)
def test_every_corner_of_a_rule_is_compiled(
    rule: str, comparison: Any, dtype: str, name: str
) -> None:
    forest, predictor = compiled(rule, comparison, dtype, name)
    rows = rows_of(forest)
    for count in (1, 7, len(rows)):
        some = rows[:count]
        assert np.array_equal(predictor.predict_margin(some), margin(forest, some))
    assert np.array_equal(predictor.predict_margin(rows, n_jobs=2), margin(forest, rows))


def margin(forest: Forest, rows: Any) -> Any:
    return forest.predict_reference(rows)[:, 0]


@pytest.mark.parametrize("how", [ranked, sliced])
def test_a_model_may_ask_for_categories_only(how: Any) -> None:
    forest = asks("lightgbm", "float64")
    check_results(forest, how(forest), (1, 65), (1,), outputs=("margin",))


@pytest.mark.slow
@pytest.mark.parametrize("how", [ranked, sliced])
@pytest.mark.parametrize("count", [14, 15, 254, 255, 256, 4096])
@pytest.mark.cases(2)
def test_every_number_of_categories_is_searched(how: Any, count: int) -> None:
    rng = np.random.default_rng(count)
    sets = [tuple(np.flatnonzero(rng.random(count) < share).tolist()) for share in (0.1, 0.5, 0.9)]
    forest = asks("xgboost", "float32", (*sets, (count - 1,)), COMPARED)
    predictor = tvm_forest.build(forest, schedule=how(forest))
    rows = np.stack([np.arange(-2, count + 2)] * 2, axis=1).astype(np.float32)
    assert np.array_equal(predictor.predict_margin(rows), margin(forest, rows))


@pytest.mark.slow
@pytest.mark.parametrize("how", [ranked, blocks, sliced])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.cases(2)
def test_trees_that_mix_questions_are_exact(how: Any, rule: str) -> None:
    forest = asking(drawn_forest(12, 6, dtype="float64"), RULES[rule])
    check_results(forest, how(forest), (0, 1, 33, 130), outputs=("margin",))


def test_rows_go_to_compiled_code_as_they_are() -> None:
    """Layouts that code rows take no columns of memberships, and few rows no way round."""
    forest = asks("lightgbm", "float64", SETS, COMPARED)
    chosen = default_schedules(forest, parse_target("llvm")).values()
    assert {x.layout for x in chosen} <= {"ranked", "bitsliced"}
    for layout, takes in (("ranked", False), ("bitsliced", False), ("sparse", True)):
        assert protocol.takes_memberships(layout, canonicalize(forest)) == takes
    made, predictor = compiled("lightgbm", "<=", "float64", "ranked")
    rows = rows_of(made)[:3]
    assert np.array_equal(predictor._small_batches.predict(rows, MARGIN), margin(made, rows))


def test_a_thread_of_a_gpu_codes_categories_too() -> None:
    forest = asks("xgboost", "float32", SETS, COMPARED)
    sch = ranked(forest).tile("batch", "b0", "b1", 32).reorder("b0", "b1", "tree")
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    rows = rows_of(forest)
    predictor = tvm_forest.build(forest, "simt", sch)
    assert np.array_equal(predictor.predict_margin(rows), margin(forest, rows))


def test_a_saved_predictor_knows_the_sets() -> None:
    forest, predictor = compiled("lightgbm", "<=", "float64", "64 bits")
    loaded, rows = saving.from_bytes(saving.to_bytes(predictor)), rows_of(forest)
    for few in (rows, rows[:2]):
        assert np.array_equal(loaded.predict_margin(few), margin(forest, few))


# -- training libraries ---------------------------------------------------------------------------


def drawn(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(count)
    codes = rng.integers(0, (12, 300), (count, 2))
    rows = np.column_stack([codes, rng.normal(size=(count, 2))])
    effect = np.random.default_rng(0).normal(size=300)
    return rows, effect[codes].sum(axis=1) + rows[:, 2]


def odd_rows(dtype: str) -> Any:
    rows = drawn(800)[0].astype(dtype)
    rng = np.random.default_rng(1)
    wild = rng.random((800, 2)) < 0.3
    rows[:, :2][wild] = rng.choice(values(dtype), int(wild.sum()))
    return rows


def test_lightgbm_and_compiled_code_agree_on_odd_rows() -> None:
    options = {"verbose": -1, "min_data_per_group": 5, "cat_smooth": 1, "max_cat_threshold": 99}
    data = lightgbm.Dataset(*drawn(1500), categorical_feature=[0, 1])
    model = lightgbm.train(options | {"num_threads": 1}, data, 12)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    rows = odd_rows("float64")
    for count in (1, 9, 70, 800):
        raw = model.predict(rows[:count], raw_score=True)
        assert np.array_equal(predictor.predict_margin(rows[:count]), raw)


def test_xgboost_and_compiled_code_agree_on_odd_rows() -> None:
    options = {"max_cat_to_onehot": 5, "max_depth": 6, "nthread": 1}
    kinds = ["c", "c", "q", "q"]
    data = xgboost.DMatrix(*drawn(1500), feature_types=kinds, enable_categorical=True)
    model = xgboost.train(options, data, 12)
    predictor = tvm_forest.build(model, schedule=lambda start: start.represent_as("ranked"))
    rows = odd_rows("float32")
    rows[np.isinf(rows)] = 7  # which XGBoost refuses
    for count in (1, 9, 70, 800):
        taken = xgboost.DMatrix(rows[:count], feature_types=kinds, enable_categorical=True)
        raw = model.predict(taken, output_margin=True)
        assert np.array_equal(predictor.predict_margin(rows[:count]), raw)
