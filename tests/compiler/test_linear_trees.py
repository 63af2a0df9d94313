"""Linear leaves: the bits of LightGBM, whatever the layout, the walk and the order of trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from lightgbm_models import MODELS, data, margins, probe_rows
from linear_models import by_hand
from schedules import rows_inside
from tvm_forest import viz
from tvm_forest.errors import BuildError, ModelFormatError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import typical_rows
from tvm_forest.schedule_prims import Schedule
from tvm_forest.verification import verify

NAMES = [name for name in MODELS if "linear" in name]

CASES: dict[str, Callable[[Schedule], Schedule]] = {
    "array, alone": lambda sch: sch.represent_as("array"),
    "array, tiles, 3 rows": lambda sch: rows_inside(
        sch.tile_nodes(4).represent_as("array"), 16
    ).interleave("b1", 3),
    "sparse, 4 lanes": lambda sch: rows_inside(sch.represent_as("sparse"), 4).simdize("b1"),
    "sparse, tiles, straight": lambda sch: (
        sch.tile_nodes(2).represent_as("sparse").unroll_walk("tree", "depth")
    ),
    "sparse_peeled, peeled": lambda sch: (
        sch.tile_nodes(4).represent_as("sparse_peeled").peel_walk("tree", 1)
    ),
    "reorg, 3 trees, padded": lambda sch: (
        sch.pad_trees("tree").represent_as("reorg").interleave("tree", 3)
    ),
    "ranked, 16 lanes": lambda sch: rows_inside(sch.represent_as("ranked"), 16).simdize("b1"),
    "levels, permuted": lambda sch: rows_inside(sch.represent_as("levels"), 16).simdize(
        "b1", "permute"
    ),
    "ranked, near rows": lambda sch: rows_inside(sch.represent_as("ranked"), 16).cache(
        "b0", "pack"
    ),
}


@cache
def forest_named(name: str) -> Forest:
    return tvm_forest.load(MODELS[name]())


@cache
def predictor(forest: Forest) -> tvm_forest.Predictor:
    """Compiled with the schedule that is compiled fastest."""
    return tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))


def rows_of(forest: Forest) -> Any:
    """Hard rows, of which many have infinite or missing terms, and typical ones."""
    typical = typical_rows(forest, 100, missing=0.02)
    return np.concatenate([probe_rows(forest, 100), typical, data()[0][:57]])


def assert_same(found: Any, expected: Any) -> None:
    """Equal to the bit, but for the bits of NaN."""
    assert found.dtype == expected.dtype == np.float64
    nan = np.isnan(found) & np.isnan(expected)
    same = found.view(np.int64) == expected.reshape(found.shape).view(np.int64)
    assert np.all(nan | same), f"{np.count_nonzero(~(nan | same))} of {found.size} differ"


def check(compiled: tvm_forest.Predictor, forest: Forest) -> None:
    rows = rows_of(forest)
    assert_same(compiled.predict_margin(rows), forest.predict_reference(rows))
    assert_same(compiled.predict_per_tree(rows), forest.predict_reference(rows, "per_tree"))
    assert np.array_equal(compiled.apply(rows), forest.predict_reference(rows, "apply"))


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_walk_has_the_bits_of_lightgbm(name: str) -> None:
    forest = forest_named(name)
    rows = rows_of(forest)
    found = forest.predict_reference(rows)
    assert_same(found, margins(MODELS[name](), rows))
    assert forest.is_linear and np.isfinite(found).mean() > 0.4


@pytest.mark.parametrize("case", CASES)
@pytest.mark.cases(3)
def test_compiled_code_has_the_bits_of_the_reference_walk(case: str) -> None:
    plain = next(name for name in NAMES if "categories" not in name)
    forest = forest_named(plain if "levels" in case else "linear_categories")
    hits = np.bincount(forest.reference_nodes(rows_of(forest)).ravel(), minlength=forest.n_nodes)
    forest = replace(forest, hits=hits)
    schedule = CASES[case](tvm_forest.new_schedule(forest))
    check(tvm_forest.build(forest, schedule=schedule), forest)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::3])
def test_every_model_has_the_bits_of_the_reference_walk(name: str) -> None:
    check(predictor(forest_named(name)), forest_named(name))


@pytest.mark.long
def test_labels_of_several_classes_are_those_of_lightgbm() -> None:
    name = "estimator_linear_classifier"
    forest = forest_named(name)
    rows, compiled = rows_of(forest), tvm_forest.build(forest)
    check(compiled, forest)
    assert np.array_equal(compiled.predict(rows), MODELS[name]().predict(rows))


def test_a_product_is_rounded_before_it_is_added() -> None:
    x = 1 + 2.0**-30
    forest = by_hand(-x * x, [x])  # a fused operation would give the error of the product
    rows = np.full((3, 3), x)
    assert forest.predict_reference(rows).tolist() == [[0.0]] * 3
    assert predictor(forest).predict_margin(rows).tolist() == [0.0] * 3


def test_terms_are_added_in_order_and_a_missing_one_gives_the_plain_value() -> None:
    forest = by_hand(1.0, [1e16, -1e16, 4.0])
    rows = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, np.nan], [np.inf, 1.0, 1.0], [np.nan] * 3])
    expected = [4.0, 7.0, np.inf, 7.0]  # 1 is lost in 1e16
    for found in (forest.predict_reference(rows)[:, 0], predictor(forest).predict_margin(rows)):
        assert found.tolist() == expected


def test_values_near_zero_are_zero_to_a_term() -> None:
    zero = float(np.float32(1e-35))
    forest = by_hand(0.0, [1e300])
    rows = np.zeros((4, 3))
    rows[:, 0] = [zero, -zero, np.nextafter(zero, 1), np.nextafter(-zero, -1)]
    found = predictor(forest).predict_margin(rows)
    assert found.tolist() == forest.predict_reference(rows)[:, 0].tolist()
    assert (found != 0).tolist() == [False, False, True, True]


def test_plain_trees_beside_linear_ones_keep_their_values() -> None:
    stump = Split(0, 0.5, -1.0, 2.0)
    terms = {"leaf_terms": np.zeros((3, 2), np.int64), "leaf_const": np.array([0, -1.0, 2.0])}
    terms |= {"term_feature": np.zeros(0, np.int32), "term_coefficient": np.zeros(0)}
    forest = forest_of([stump], dtype="float64", comparison="<=", **terms)
    assert predictor(forest).predict(np.array([[0.5, 0, 0], [1, 0, 0]])).tolist() == [-1, 2]


def test_a_layout_of_float32_refuses_linear_leaves() -> None:
    forest = forest_named("linear")
    schedule = tvm_forest.new_schedule(forest).represent_as("packed")
    with pytest.raises(BuildError, match="holds float32 only"):
        tvm_forest.build(forest, schedule=schedule)


@pytest.mark.slow
def test_trees_in_parallel_and_sorted_stay_within_the_bound() -> None:
    forest = forest_named("linear_dart")
    rows = data()[0][:100]
    schedule = tvm_forest.new_schedule(forest).sort_trees().tile("tree", "t0", "t1", 3)
    for sch in (schedule.parallel("t0"), schedule.parallel("t0").atomic_reduce("t0")):
        compiled = tvm_forest.build(forest, schedule=sch, exact=False)
        distance = compiled.predict_margin(rows, n_jobs=2) - forest.predict_reference(rows)[:, 0]
        assert np.all(np.abs(distance) <= compiled.tolerance(rows)[:, 0])


def test_a_saved_predictor_keeps_its_terms(tmp_path: Path) -> None:
    forest = forest_named("linear_random_forest")
    predictor(forest).save(tmp_path / "a.tvmf")
    again = tvm_forest.load_predictor(tmp_path / "a.tvmf", MODELS["linear_random_forest"]())
    assert again.forest.signature == again.signature == forest.signature
    check(again, forest)


@pytest.mark.slow
def test_some_rounds_have_the_bits_of_lightgbm() -> None:
    booster, forest = MODELS["linear_after_plain"](), forest_named("linear_after_plain")
    rows = rows_of(forest)
    for begin, end in ((0, 3), (8, 14)):  # plain trees only, and both kinds
        wanted = booster.predict(rows, begin, end - begin, raw_score=True)
        found = predictor(forest).predict_margin(rows, iteration_range=(begin, end))
        assert_same(found, wanted)


@pytest.mark.slow
def test_verify_finds_equal_terms_and_others() -> None:
    booster, forest = MODELS["linear_holes"](), forest_named("linear_holes")
    report = tvm_forest.verify(booster, n_rows=200, schedule=lambda start: start)
    assert report.ok and report.library.rows_equal == 200  # type: ignore[union-attr]
    assert forest.leaf_const is not None
    moved = np.where(forest.node_tree == 4, forest.leaf_const + 1, forest.leaf_const)
    other = predictor(replace(forest, leaf_const=moved))
    report = verify(booster, forest, other, data()[0], 0)
    assert not report.ok and report.reference.first_tree == 4


def test_a_picture_shows_the_terms_of_a_leaf() -> None:
    text = str(viz.tree(by_hand(1.0, [0.5, -2.0])))
    assert "leaf 0: 1 + 0.5 f0 + -2 f1" in text


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "no constants": ({"leaf_const": None}, "field 'leaf_const' is missing"),
    "a term too few": ({"term_feature": np.zeros(1, np.int32)}, "expected (1,)"),
    "coefficients too many": ({"term_coefficient": np.zeros(3)}, "expected (2,)"),
    "terms that end first": ({"leaf_terms": np.array([[2, 1]])}, "leads beyond the 2 terms"),
    "a feature too high": ({"term_feature": np.array([0, 3])}, "a feature beyond the 3"),
    "an aggregate without NaN": ({"aggregate": "min"}, "field 'aggregate' is 'min'"),
    "one end of terms": ({"leaf_terms": np.zeros((1, 1), int)}, "expected (1, 2)"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_terms_are_refused(damage: str) -> None:
    fields, message = DAMAGES[damage]
    with pytest.raises(ModelFormatError) as error:
        by_hand(1.0, [0.5, -2.0], **fields)
    assert message in str(error.value)


def test_float32_leaves_are_not_linear() -> None:
    forest = by_hand(1.0, [0.5])
    with pytest.raises(ModelFormatError, match="needs leaves of one float64 each"):
        replace(forest, leaf_value=np.zeros((1, 1), np.float32))
