"""Refreshed leaves: all bits are those of a model that was built of them; nothing is compiled."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

import lightgbm_models
import tvm_forest
from forests import drawn_forest
from scheduled_models import forest_named
from schedules import in_blocks, odd_forest, with_vectors
from tvm_forest import InputError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import SIMDIZED, SIMDIZED_TREES
from tvm_forest.layouts.protocol import OWN
from tvm_forest.schedule_prims import Schedule

pytestmark = pytest.mark.usefixtures("kept_code")  # most tests build one model

FOREST = drawn_forest(9, 5, seed=3, base=[0.5, -0.25, 1.0])


def refreshed(forest: Forest, seed: int = 1) -> Forest:
    """Draw other leaf values, some of them alike, zeros and far ones."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=forest.leaf_value.shape)
    values[rng.random(len(values)) < 0.3] = 0.5
    values[rng.random(len(values)) < 0.1] = -0.0
    values[rng.random(len(values)) < 0.1] = 1e-40
    values = np.where(forest.is_leaf[:, None], values, 0)
    return replace(forest, leaf_value=values.astype(forest.sum_dtype))


def schedule_of(forest: Forest, layout: str) -> Schedule:
    if layout in SIMDIZED:
        return in_blocks(forest, layout, 16 if layout == "levels" else 64)
    start = tvm_forest.new_schedule(forest)
    start = start.tile_nodes(4) if layout == "sparse_peeled" else start
    sch = start.represent_as(layout)
    return sch.simdize("tree", SIMDIZED_TREES[layout]) if layout in SIMDIZED_TREES else sch


def check(predictor: Any, forest: Forest, n: int = 70, has_leaves: bool = False) -> None:
    """Compare all that leaves decide with the reference walk of a model."""
    rows = hard_rows(forest, n, seed=n)
    for part in (rows[:1], rows[:7], rows):
        wanted = forest.predict_reference(part)
        found = predictor.predict_margin(part)
        assert np.array_equal(found.reshape(wanted.shape), wanted, equal_nan=True)
    if not has_leaves:
        return
    assert np.array_equal(
        predictor.predict_per_tree(rows), forest.predict_reference(rows, "per_tree")
    )
    assert np.array_equal(predictor.apply(rows), forest.predict_reference(rows, "apply"))


def in_dump_order(forest: Forest) -> Any:
    """The leaf values as a user reads them: tree by tree, by the numbers of leaves."""
    parts = []
    for tree in np.argsort(forest.tree_id):
        nodes = np.arange(*forest.tree_offset[tree : tree + 2])
        leaves = nodes[forest.is_leaf[nodes]]
        parts.append(forest.leaf_value[leaves[np.argsort(forest.node_id[leaves])]])
    values = np.concatenate(parts)
    return values[:, 0] if values.shape[1] == 1 else values


# -- every layout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", OWN)
@pytest.mark.cases(4)
def test_leaves_in_every_layout_are_those_of_a_fresh_build(layout: str) -> None:
    forest = drawn_forest(9, 5, seed=3)
    forest = replace(forest, hits=forest.is_leaf.astype(np.int64))  # for "sparse_peeled"
    predictor = tvm_forest.build(forest, schedule=schedule_of(forest, layout))
    library = predictor.library
    for seed in (1, 2):
        newer = refreshed(forest, seed)
        predictor.update_leaves(newer if seed == 1 else in_dump_order(newer))
        check(predictor, newer)
        assert predictor.signature == newer.signature
    assert predictor.library is library or layout == "pieces"  # which holds equal leaves once
    assert predictor._present._leaf_places is not None or layout == "pieces"


@pytest.mark.parametrize("kind", ["float64", "vectors", "some alike", "averages", "dart", "least"])
@pytest.mark.cases(3)
def test_leaves_of_every_kind_of_model_are_those_of_a_fresh_build(kind: str) -> None:
    forests: dict[str, Callable[[], Forest]] = {
        "float64": lambda: drawn_forest(6, 4, dtype="float64", comparison="<="),
        "vectors": lambda: with_vectors(drawn_forest(4, 4), 3),
        "some alike": lambda: odd_forest(3),
        "averages": lambda: replace(FOREST, aggregate="average"),
        "dart": lambda: forest_named("xgboost dart"),
        "least": lambda: forest_named("drawn least"),
    }
    forest = forests[kind]()
    predictor = tvm_forest.build(forest, schedule=lambda start: start.parallel("batch"))
    predictor.update_leaves(in_dump_order(refreshed(forest, 4)))
    predictor.update_leaves(newer := refreshed(forest))
    check(predictor, newer, has_leaves=kind == "float64")
    rows = hard_rows(forest, 300, seed=2)
    wanted = newer.predict_reference(rows)
    assert np.array_equal(np.squeeze(predictor.predict_margin(rows, n_jobs=2)), np.squeeze(wanted))


@pytest.mark.parametrize("target", ["llvm", "simt"])
@pytest.mark.long
def test_leaves_behind_default_schedules_are_refreshed(target: str) -> None:
    predictor, newer = tvm_forest.build(FOREST, target), refreshed(FOREST)
    library = predictor.library
    predictor.update_leaves(newer)
    check(predictor, newer, 600)
    assert target == "simt" or predictor.library is library


def test_answers_before_the_last_tree_follow_the_refreshed_leaves() -> None:
    forest, rows = drawn_forest(40, 4, seed=2), hard_rows(FOREST, 80)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    newer = refreshed(forest)
    before = predictor.predict_above(rows, 1.0)
    predictor.update_leaves(newer)
    wanted = newer.predict_reference(rows)[:, 0] > 1.0
    assert np.array_equal(predictor.predict_above(rows, 1.0), wanted)
    assert not np.array_equal(before, wanted)


def test_a_model_of_categories_in_another_order_of_trees_is_refreshed() -> None:
    """Its canonical form is not the model, which alone has a signature to be told."""
    forest = tvm_forest.load(lightgbm_models.MODELS["categories_and_holes"]())
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    newer = refreshed(forest)
    predictor.update_leaves(newer)
    check(predictor, newer)
    assert predictor.signature == newer.signature
    others = refreshed(forest, 2)
    predictor.update_leaves(in_dump_order(others))
    check(predictor, others)
    assert predictor.signature not in (newer.signature, forest.signature)


# -- libraries ------------------------------------------------------------------------------------


def train(seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(300, 3)).astype(np.float32)
    options = {"max_depth": 4, "nthread": 1, "verbosity": 0}
    first = xgboost.train(options, xgboost.DMatrix(rows, rows[:, 0]), 8)
    options |= {"process_type": "update", "updater": "refresh", "refresh_leaf": True}
    second = xgboost.train(options, xgboost.DMatrix(rows, rows[:, 1]), 8, xgb_model=first.copy())
    return rows, first, second


def test_refresh_of_xgboost_is_followed_to_the_bit() -> None:
    rows, first, second = train()
    predictor = tvm_forest.build(first, schedule=lambda start: start)
    assert predictor.update_leaves(second) is None
    wanted = second.predict(xgboost.DMatrix(rows))
    assert np.array_equal(predictor.predict(rows), wanted)
    assert not np.array_equal(first.predict(xgboost.DMatrix(rows)), wanted)
    fresh = tvm_forest.build(second, schedule=lambda start: start)
    assert np.array_equal(
        predictor.predict_contributions(rows[:9]), fresh.predict_contributions(rows[:9])
    )
    few = second.predict(xgboost.DMatrix(rows), iteration_range=(2, 5))
    assert np.array_equal(predictor.predict(rows, iteration_range=(2, 5)), few)


def test_leaves_that_lightgbm_fits_again_are_taken_as_its_model_and_as_its_values() -> None:
    rows, _, _ = train()
    options = {"num_leaves": 9, "num_threads": 1, "verbose": -1}
    first = lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0]), 6)
    second = first.refit(rows, rows[:, 1])
    counts = [x["num_leaves"] for x in second.dump_model()["tree_info"]]
    values = [second.get_leaf_output(t, x) for t, count in enumerate(counts) for x in range(count)]
    predictor = tvm_forest.build(first, schedule=lambda start: start)
    wanted = second.predict(rows)
    for model in (second, first, np.array(values), first, second.model_to_string()):
        predictor.update_leaves(model)
        is_first = model is first
        assert np.array_equal(predictor.predict(rows), first.predict(rows) if is_first else wanted)


def test_a_predictor_that_was_saved_or_pickled_is_refreshed_and_saved_again() -> None:
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    again = pickle.loads(pickle.dumps(predictor))
    again.update_leaves(refreshed(FOREST))
    again.n_jobs = 1
    last = pickle.loads(pickle.dumps(again))
    check(last, refreshed(FOREST))
    last.update_leaves(in_dump_order(FOREST))
    check(last, FOREST)
    assert last.signature == FOREST.signature


def test_every_call_beside_a_refresh_is_of_one_of_both_models() -> None:
    newer, rows = refreshed(FOREST), hard_rows(FOREST, 200, seed=8)
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    wanted = [x.predict_reference(rows) for x in (FOREST, newer)]
    told, found = threading.Event(), list[Any]()

    def ask() -> None:
        while not told.is_set() or not found:
            found.append(predictor.predict_margin(rows))

    thread = threading.Thread(target=ask)
    thread.start()
    for k in range(20):
        predictor.update_leaves((newer, FOREST)[k % 2])
    told.set()
    thread.join()
    assert all(any(np.array_equal(x, y) for y in wanted) for x in found)


# -- what is refused ------------------------------------------------------------------------------


def with_other(name: str, tree: int) -> Forest:
    """Change a field of the first node of a tree."""
    array = getattr(FOREST, name).copy()
    at = FOREST.tree_offset[tree] if len(array) == FOREST.n_nodes else tree
    array[at] = 1 - array[at]
    return replace(FOREST, **{name: array})


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "trees": (lambda: drawn_forest(12, 5, base=[0.5, -0.25, 1.0]), "it has 12 trees"),
    "nodes": (lambda: drawn_forest(9, 5, seed=4, base=[0.5, -0.25, 1.0]), "tree 0 has .* nodes"),
    "threshold": (lambda: with_other("threshold", 4), "tree 4 .* field 'threshold'"),
    "side": (lambda: with_other("default_left", 7), "tree 7 .* field 'default_left'"),
    "base": (lambda: with_other("base_score", 1), "field 'base_score'"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_trees_are_refused_with_the_first_difference_and_the_way(what: str) -> None:
    make, message = OTHERS[what]
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    with pytest.raises(InputError, match=f"^update_leaves: .*{message}.*use `update`"):
        predictor.update_leaves(make())
    check(predictor, FOREST)
    predictor.update(make())
    check(predictor, make())


def test_the_first_differing_tree_is_named_not_the_first_field() -> None:
    both = replace(
        with_other("threshold", 6), default_left=with_other("default_left", 2).default_left
    )
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    with pytest.raises(InputError, match="tree 2 .* 'default_left'"):
        predictor.update_leaves(both)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3), r"shape \(\d+,\), .* got float64 of shape \(3,\)"),
        (np.array(["a"] * 9), "expected numbers"),
        (np.ma.masked_less(in_dump_order(FOREST), 0), "with a mask"),
        (in_dump_order(FOREST) * np.inf, "infinite or not a number"),
        (in_dump_order(FOREST).astype(np.float64) * 1e300, "infinite or not a number in float32"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_leaf_values_are_refused(values: Any, message: str) -> None:
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    with np.errstate(all="ignore"), pytest.raises(InputError, match=message):
        predictor.update_leaves(values)
    check(predictor, FOREST)


def test_linear_leaves_are_taken_from_a_model_only() -> None:
    forest = tvm_forest.load(lightgbm_models.MODELS["linear_holes"]())
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    with pytest.raises(InputError, match="which are linear; give the model"):
        predictor.update_leaves(in_dump_order(forest))
    predictor.update_leaves(newer := refreshed(forest))
    check(predictor, newer)


def test_signed_zeros_of_thresholds_differ_in_their_own_tree() -> None:
    at = int(np.flatnonzero((FOREST.node_tree == 3) & ~FOREST.is_leaf)[0])
    zeros = [FOREST.threshold.copy() for _ in range(2)]
    zeros[0][at], zeros[1][at] = 0.0, -0.0
    known, other = (replace(FOREST, threshold=x) for x in zeros)
    predictor = tvm_forest.build(known, schedule=lambda start: start)
    with pytest.raises(InputError, match="tree 3 .* field 'threshold'"):
        predictor.update_leaves(other)


def test_an_array_is_refused_where_rounds_after_the_best_one_have_leaves_too() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    held = [(rows[:50], np.sin(9 * rows[:50, 1]))]
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=3, early_stopping_rounds=2)
    model.fit(rows, rows[:, 0], eval_set=held, verbose=False)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    assert predictor.forest.with_all_rounds is not None
    with pytest.raises(InputError, match="rounds after the best one, too; give the model"):
        predictor.update_leaves(in_dump_order(predictor.forest))
    predictor.update_leaves(model)
    wanted = model.predict(rows, iteration_range=(0, 1))
    assert np.array_equal(predictor.predict(rows, iteration_range=(0, 1)), wanted)


@pytest.mark.parametrize("method", ["update", "update_leaves"])
def test_a_predictor_of_some_rounds_is_not_updated_alone(method: str) -> None:
    predictor = tvm_forest.build(FOREST, schedule=lambda start: start)
    rows = hard_rows(FOREST, 20, seed=1)
    before = predictor.predict_margin(rows, iteration_range=(1, 2))
    with pytest.raises(InputError, match=f"{method}: .* some rounds .* update that one"):
        getattr(predictor.rounds(1, 2), method)(refreshed(FOREST))
    assert np.array_equal(predictor.predict_margin(rows, iteration_range=(1, 2)), before)
    getattr(predictor.rounds(), method)(refreshed(FOREST))
    check(predictor, refreshed(FOREST))


def test_a_leaf_profile_stays_with_its_trees() -> None:
    rows = hard_rows(FOREST, 50, seed=2)
    counted = tvm_forest.profile(FOREST, rows)
    predictor = tvm_forest.build(
        FOREST,
        schedule=lambda start: start.tile_nodes(4).represent_as("sparse_peeled"),
        profile=counted,
    )
    predictor.update_leaves(newer := refreshed(FOREST))
    check(predictor, newer, has_leaves=True)
    again = pickle.loads(pickle.dumps(predictor))
    again.update_leaves(refreshed(FOREST, 2))
    check(again, refreshed(FOREST, 2))
    assert tvm_forest.Monitor(again).profile.hits.tolist() == counted.hits.tolist()
