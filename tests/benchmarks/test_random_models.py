"""The random models of the study: how many, and what they are drawn from."""

from __future__ import annotations

import numpy as np

import tvm_forest
from benchmarks.models.drawn import LARGEST, RandomModel, list_models


def test_there_are_720_models() -> None:
    models = list(list_models())
    assert len(models) == len({model.name for model in models}) == 720
    assert models[0] == (100, 8, 6, 0) and models[-1] == (1000, 1024, 8, 2)


def test_a_random_model_is_drawn_as_the_study_says() -> None:
    model = RandomModel(100, 16, 8, 1)
    forest = model.forest()
    assert (
        forest.signature
        == model.forest().signature
        != RandomModel(100, 16, 8, 2).forest().signature
    )
    assert (forest.n_trees, forest.n_features) == (100, 16)
    assert set(forest.depths.tolist()) == {8} and forest.shallowest.min() == 2
    inner, leaf = forest.node_depth[~forest.is_leaf], forest.node_depth[forest.is_leaf]
    for depth in range(8):
        here, ends = np.sum(inner == depth), np.sum(leaf == depth)
        expected = 0.1 * depth / 8 if depth > 1 else 0
        assert abs(ends / (here + ends) - expected) < 0.02
    assert set(forest.feature[~forest.is_leaf].tolist()) == set(range(16))
    thresholds, leaves = forest.threshold[~forest.is_leaf], forest.leaf_value[forest.is_leaf]
    for values in (thresholds, leaves, model.rows(99)):
        assert -LARGEST <= values.min() < -9 and 9 < values.max() <= LARGEST


def test_a_random_model_is_computed_exactly() -> None:
    model = RandomModel(100, 8, 6, 0)
    forest, rows = model.forest(), model.rows(65)
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])
