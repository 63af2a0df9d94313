"""SHAP values with a background, and the tables of subtrees that they are looked up in."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import factorial
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier

import shapley
from forests import Split, drawn_forest, forest_of
from quick_builds import build
from scheduled_models import MODELS, forest_named
from test_contributions import data, train_lightgbm, train_xgboost
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest import CategoryRule, Forest
from tvm_forest.forest.contributions import ContributionTables
from tvm_forest.forest.contributions.subtrees import MOST_ANSWERS, explain_counts, explain_shares
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load


def explain_by_definition(forest: Forest, rows: Any, background: Any) -> Any:
    """Return contributions (R, C, F + 1): every set of features, every row of the background."""
    width = forest.row_width
    found = np.zeros((len(rows), forest.n_outputs, width + 1))
    game = []
    for known in range(1 << width):
        own = np.array([known >> i & 1 for i in range(width)], bool)
        mixed = np.where(own, rows[:, None], background[None]).reshape(-1, width)
        margin = forest.predict_reference(mixed.astype(forest.row_dtype), "per_tree")
        total = np.zeros((len(mixed), forest.n_outputs))
        for tree, target in enumerate(forest.tree_class):
            total[:, slice(None) if target < 0 else slice(target, target + 1)] += margin[:, [tree]]
        if forest.aggregate == "average":
            total /= forest.trees_of_class
        game.append(total.reshape(len(rows), len(background), -1).mean(axis=1))
    for known in range(1 << width):
        size = known.bit_count()
        for i in (i for i in range(width) if not known >> i & 1):
            share = factorial(size) * factorial(width - size - 1) / factorial(width)
            found[..., i] += share * (game[known | 1 << i] - game[known])
    found[..., width] = game[0] + forest.base_score
    return found


def assert_explained(forest: Forest, rows: Any, background: Any) -> None:
    predictor, wanted = build(forest), explain_by_definition(forest, rows, background)
    found = predictor.predict_contributions(rows, background=background)
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_trees_are_explained_by_definition(seed: int) -> None:
    forest = drawn_forest(3, 5, base=(0.5, -1), seed=seed)
    rows = hard_rows(forest, 60)
    assert_explained(forest, rows[:30], rows[30:])


def test_repeated_features_sets_and_leaves() -> None:
    inner = Split(0, 0.0, 1.0, Split(0, 0.0, 4.0, 8.0))
    forest = forest_of([Split(0, 0.5, inner, Split(1, 0.0, 2.0, inner)), 0.75])
    rows = np.array([[c, x, 0] for c in (-1, 0, 0.4, 1, 2, 3, 5, np.nan) for x in (-1, 1)])
    assert_explained(forest, rows, rows[::3])
    inside = [node for node in range(forest.n_nodes) if forest.feature[node] == 0][1:]
    chosen = dict(zip(inside, [(1, 2), (2, 5), (3,), (1, 2)], strict=False))
    assert_explained(
        replace(forest, categories=chosen, category_rule=CategoryRule("left")), rows, rows[::3]
    )


def test_models_of_libraries() -> None:
    rows = data()[0]
    for model in (
        train_xgboost(objective="multi:softprob", num_class=3, max_depth=3),
        train_lightgbm(num_leaves=8),
    ):
        assert_explained(load(model), rows[:20], rows[20:31])


@pytest.mark.parametrize("kind", ["boosting", "classes"])
def test_values_are_those_of_shap(kind: str) -> None:
    shap = pytest.importorskip("shap")
    rows, target = data(holes=0)
    trained = {
        "boosting": GradientBoostingRegressor(n_estimators=5, max_depth=4, random_state=0),
        "classes": RandomForestClassifier(4, max_depth=5, random_state=0),
    }[kind].fit(rows, target)
    background = rows[:50].astype(np.float32)
    explainer = shap.TreeExplainer(trained, background, feature_perturbation="interventional")
    theirs = explainer(rows[50:90].astype(np.float32), check_additivity=False)
    found = build(trained).explain(rows[50:90], background=background)
    np.testing.assert_allclose(found.values, theirs.values, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.base_values, theirs.base_values, rtol=0, atol=1e-6)


def test_models_without_covers_are_explained_and_batches_change_no_bit() -> None:
    forest = forest_of([Split(0, 0.0, 1.0, Split(1, 0.0, 2.0, 4.0))])
    predictor, rows = build(forest), np.random.default_rng(0).normal(size=(700, 3))
    background = rows[:9]
    whole = predictor.predict_contributions(rows, n_jobs=2, background=background)
    for count in (0, 1, 3, 513):
        found = predictor.predict_contributions(rows[:count], n_jobs=1, background=background)
        assert np.array_equal(found, whole[:count])
    again = pickle.loads(pickle.dumps(predictor))
    assert np.array_equal(again.predict_contributions(rows, background=background), whole)
    other = predictor.predict_contributions(rows, background=rows[9:12])
    assert not np.array_equal(other, whole)
    np.testing.assert_allclose(other.sum(axis=1), predictor.predict_margin(rows), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(4, others="long")
def test_contributions_of_every_kind_of_model_add_up_in_any_batch(name: str) -> None:
    forest = forest_named(name, seen=True)
    predictor, rows = build(forest), hard_rows(forest, 530, seed=3)
    margins = np.asarray(predictor.predict_margin(rows), np.float64).reshape(len(rows), -1)
    known = np.isfinite(margins)
    for background in (None, rows[:7]):
        try:
            whole = predictor.predict_contributions(rows, n_jobs=1, background=background)
        except UnsupportedModel:
            continue
        parts = [rows[:1], rows[1:4], rows[4:518], rows[518:]]
        found = [predictor.predict_contributions(x, n_jobs=2, background=background) for x in parts]
        assert np.array_equal(np.concatenate(found), whole, equal_nan=True)
        sums = whole.reshape(*margins.shape, -1).sum(axis=-1)
        np.testing.assert_allclose(sums[known], margins[known], rtol=1e-5, atol=1e-5)


def test_wrong_backgrounds_are_refused() -> None:
    chain: Any = 0.0
    for feature in range(MOST_ANSWERS + 3):
        chain = Split(feature, 0.0, 1.0, chain)
    deep = forest_of([chain], n_features=20)
    with pytest.raises(UnsupportedModel, match="argument 'background': .* paths of more than"):
        build(deep).predict_contributions(np.zeros((1, 20)), background=np.zeros((2, 20)))
    forest = forest_of([Split(0, 0.0, 1.0, 2.0)])
    for wrong in (np.zeros((0, 3)), np.zeros((2, 4))):
        with pytest.raises(InputError, match="argument 'background'"):
            build(forest).predict_contributions(np.zeros((1, 3)), background=wrong)
    with pytest.raises(UnsupportedModel, match="GPUs do without"):
        predictor = build(forest, "simt")
        predictor.predict_contributions(np.zeros((1, 3)), background=np.zeros((2, 3)))


# -- tables ---------------------------------------------------------------------------------------


def test_leaves_are_worth_what_the_definition_says() -> None:
    """One row of a background is the same as shares of 0 and 1."""
    for size in range(1, 5):
        for other in range(1 << size):
            shares = np.array([[other >> i & 1 for i in range(size)]], float)
            counts = np.eye(1 << size)[[other]]
            found = explain_counts(counts, size)
            np.testing.assert_allclose(found, explain_shares(shares), rtol=0, atol=1e-15)


def test_forests_of_long_paths_are_walked_and_others_looked_up() -> None:
    forest = shapley.with_cover(drawn_forest(4, 6, seed=1))
    assert ContributionTables(forest).subtrees.fits
    chain: Any = 0.25
    for step in range(MOST_ANSWERS + 3):
        chain = Split(step % 2, 0.5 - step / 8, chain, step)
    assert not ContributionTables(shapley.with_cover(forest_of([chain]))).subtrees.fits
