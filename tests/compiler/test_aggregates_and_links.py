"""What a library may do beside comparing and adding is compiled as the reference does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from asking_forests import SETS, asking
from forests import drawn_forest
from schedules import check_results
from tvm_forest.errors import ModelFormatError, ScheduleError
from tvm_forest.forest import CategoryRule, Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize


def vectors(forest: Forest, width: int) -> Forest:
    """Give the leaves vectors of leaf values."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(forest.n_nodes, width)).astype(forest.leaf_value.dtype)
    return replace(
        forest,
        leaf_value=np.where(forest.is_leaf[:, None], values, 0),
        tree_class=np.full(forest.n_trees, -1, np.int32),
        base_score=rng.normal(size=width).astype(forest.leaf_value.dtype),
    )


SMALL = drawn_forest(9, 5, seed=4)
THREE = drawn_forest(10, 4, seed=5, base=(0.5, -1.0, 0.25))
WIDE = drawn_forest(7, 4, seed=6, dtype="float64")
XGBOOST, LIGHTGBM = CategoryRule("right"), CategoryRule("left", negative_fractions=True)
MODELS = {
    "an average": replace(SMALL, aggregate="average"),
    "an average of classes": replace(THREE, aggregate="average"),
    "base score last": replace(SMALL, base_first=False, base_score=np.float32([0.3])),
    "an average with base score last": replace(THREE, aggregate="average", base_first=False),
    "the least leaf": replace(SMALL, aggregate="min", base_first=False),
    "the largest leaf": replace(THREE, aggregate="max", base_first=False),
    "float64 thresholds and float32 rows": replace(WIDE, row_dtype="float32", comparison="<="),
    "vector leaves": vectors(SMALL, 3),
    "averaged vector leaves": replace(vectors(WIDE, 2), aggregate="average"),
    "categories that go right": asking(SMALL, XGBOOST),
    "categories that go left": replace(asking(WIDE, LIGHTGBM), comparison="<="),
    "nothing but categories": asking(THREE, XGBOOST, 1.0),
    "categories and vector leaves": vectors(asking(SMALL, LIGHTGBM), 2),
    "known categories": replace(
        asking(WIDE, CategoryRule("left")), known_categories={0: (0, 1, 3), 1: (2, 40)}
    ),
    "a number for missing": replace(SMALL, missing=-1.0),
    "zero for missing": replace(WIDE, zero_missing=(0, 2), comparison="<="),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(2)
def test_results_are_those_of_the_reference(name: str) -> None:
    forest = MODELS[name]
    check_results(forest, tvm_forest.hop_schedule(forest), (0, 1, 7, 65, 130))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "ranked", "reorg", "sparse", "tiles"])
@pytest.mark.parametrize("name", ["categories and vector leaves", "known categories"])
@pytest.mark.cases(4)
def test_any_layout_holds_derived_columns(name: str, layout: str) -> None:
    forest = MODELS[name]
    sch = tvm_forest.new_schedule(forest)
    if layout == "packed" and forest.row_dtype == "float64":
        pytest.skip("the layout packed compares rows of float32 only")
    sch = sch.tile_nodes(4) if layout == "tiles" else sch.represent_as(layout)
    check_results(forest, sch, (1, 33), (1,))


def test_a_plain_forest_is_left_alone() -> None:
    once = canonicalize(MODELS["categories and vector leaves"])
    assert canonicalize(once) is once
    assert canonicalize(SMALL) is SMALL


def test_equal_questions_share_a_column() -> None:
    forest = canonicalize(asking(SMALL, XGBOOST))
    assert forest.row_width == SMALL.n_features
    assert len(set(forest.derived)) == len(forest.derived) <= 2 * len(SETS)


@pytest.mark.parametrize("link", ["sigmoid", "exp", "log1p_exp", "signed_square", "softmax"])
@pytest.mark.parametrize("forest", [SMALL, WIDE, THREE], ids=["float32", "float64", "classes"])
@pytest.mark.cases(2)
def test_links_are_those_of_the_reference(forest: Forest, link: Any) -> None:
    scale = 2.5 if link == "sigmoid" else 1.0
    linked = replace(forest, link=link, link_scale=scale, aggregate="average")
    rows = hard_rows(linked, 200)
    predictor = tvm_forest.build(linked, schedule=lambda start: start)
    value = predictor.predict(rows).reshape(200, -1)
    expected = linked.predict_reference(rows, "value")
    assert np.max(np.abs(value - expected) / np.spacing(np.abs(expected))) <= 4


def test_a_forest_that_asks_for_categories_needs_a_rule() -> None:
    with pytest.raises(ModelFormatError, match="'category_rule' is missing"):
        replace(SMALL, categories={0: (1,)})


def test_rows_are_left_as_they_are() -> None:
    forest = MODELS["zero for missing"]
    rows = hard_rows(forest, 50)
    before = rows.copy()
    tvm_forest.build(forest, schedule=lambda start: start).predict(rows)
    assert np.array_equal(rows, before, equal_nan=True)


def test_parts_of_a_forest_are_not_added_where_the_least_leaf_counts() -> None:
    forest = MODELS["the least leaf"]
    sch = tvm_forest.new_schedule(forest).parallel("tree")
    with pytest.raises(ScheduleError, match="takes the min of its leaves"):
        tvm_forest.build(forest, schedule=sch, exact=False)
