"""Answers before the last tree are those of the whole model: above a threshold, classes, ranks."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

import lightgbm_models
import models
import sklearn_models
import tvm_forest
from forests import Split, drawn_forest, forest_of
from tvm_forest import InputError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.reference import finish_sums
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor.compiling import compile_or_load
from tvm_forest.predictor.early import two_ways
from tvm_forest.predictor.early.bounds import Bounds, find_step
from tvm_forest.predictor.early.deciding import Above, Best, Leader, can_lead, rises
from tvm_forest.predictor.early.stretches import Stretches
from tvm_forest.predictor.functions import Functions
from tvm_forest.runtime.results import RESUMED
from tvm_forest.target import parse_target

answering = importlib.import_module("tvm_forest.predictor.early.answering")
stretches_module = importlib.import_module("tvm_forest.predictor.early.stretches")

pytestmark = pytest.mark.usefixtures("kept_code")


def simple(start: Any) -> Any:
    """Build by a schedule that fits any tree and compiles fast."""
    return start.represent_as("sparse")


@pytest.fixture(autouse=True)
def _small_models_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(answering, "LEAST_STEPS", 1)
    monkeypatch.setattr(answering, "LEAST_ROWS", 1)
    monkeypatch.setattr(answering, "PROBED_ROWS", 100)  # so that both ways have their turn
    monkeypatch.setattr(answering, "MANY_ROWS", 150)
    monkeypatch.setattr(stretches_module, "STRETCHES", 3)
    return iter([None])


def values_of(predictor: Any, rows: Any) -> Any:
    return np.asarray(predictor.predict_value(rows)).reshape(len(rows), -1)


def telling_thresholds(values: Any) -> list[Any]:
    """Values that rows have, their neighbours, and what is beyond all of them."""
    own = np.quantile(values, [0.1, 0.9, 1.0], method="nearest")
    beside = [np.nextafter(own[1], own.dtype.type(s * np.inf)) for s in (-1, 1)]
    return [*own, *beside, float(own[0]), 0, np.inf, float("nan")]


def check_all(model: Any, rows: Any, schedule: Any = simple) -> int:
    """Compare all early answers with those of the whole; return how many thresholds stop rows."""
    predictor = tvm_forest.build(model, schedule=schedule)
    values, stopped = values_of(predictor, rows), 0
    for threshold in telling_thresholds(values):
        with np.errstate(over="ignore"):
            right = values > threshold
        found = predictor.predict_above(rows, threshold).reshape(right.shape)
        assert np.array_equal(found, right), threshold
        stopped += check_stretches(predictor, rows, threshold, right)
    last = values.shape[1] - 1
    for k in (0, 1, 5, len(rows) + 1):
        order = np.argsort(-values[:, last], kind="stable")[:k]
        for _ in range(2):  # both ways
            found, scores = predictor.top_k(rows, k, output=last)
            assert np.array_equal(found, order)
            assert scores.tobytes() == values[order, last].tobytes()
    if predictor.forest.last_class is not None:
        right = predictor.predict_class(rows)
        assert np.array_equal(predictor.predict_class(rows, early_exit=True), right)
    return stopped


def check_stretches(predictor: Any, rows: Any, threshold: Any, right: Any) -> bool:
    """Look at what stretches alone decide; return whether rows stop before the last tree."""
    stretches = predictor._present._early._stretches
    if stretches is None or not rises(predictor.forest) or not stretches.bounds.are_finite:
        return False
    decide = Above(stretches, threshold).decide(found := np.empty(right.shape, bool))
    counts = []

    def count(stretch: int, places: Any, sums: Any) -> Any:
        counts.append(len(places))
        return decide(stretch, places, sums)

    array = np.ascontiguousarray(rows, predictor.forest.row_dtype)
    left = stretches.run(array, 1, count)
    decided = np.setdiff1d(np.arange(len(rows)), left)
    assert np.array_equal(found[decided], right[decided]), threshold
    return counts[-1] < len(rows)


def in_blocks(start: Any, layout: str, how: str) -> Any:
    """Walk 64 rows together."""
    sch = start.represent_as(layout).tile("batch", "b0", "b1", 64)
    return sch.reorder(*(x for x in ("b0", "class", "tree", "b1") if has(sch, x))).simdize(
        "b1", how
    )


def has(sch: Any, name: str) -> bool:
    return any(loop.name == name for loop in sch.loops())


SCHEDULES = {
    "default": None,
    "sparse": simple,
    "bits": lambda start: in_blocks(start, "bitsliced", "bits"),
    "pieces": lambda start: start.represent_as("pieces").simdize("tree", "pieces"),
    "trees": lambda start: start.interleave("tree", 4),
}
KINDS = ("float32", "float64", "classes", "vectors")
LONG = pytest.mark.long
UNFIT = [("pieces", "float64"), ("trees", "vectors")]
OFTEN = [("bits", "classes"), ("pieces", "vectors"), ("trees", "float64")]
CASES = [
    pytest.param(*case, marks=(LONG,) * (case not in OFTEN))
    for case in itertools.product(SCHEDULES, KINDS)
    if case not in UNFIT
]


@pytest.mark.parametrize(("schedule", "kind"), CASES)
def test_sums_go_on_from_what_their_results_hold(schedule: str, kind: str) -> None:
    if kind == "vectors":
        forest = tvm_forest.load(sklearn_models.MODELS["rf classes"]())
    else:
        base = (0.5, -1.0, 0.25) if kind == "classes" else (0.3,)
        dtype = "float64" if kind == "float64" else "float32"
        forest = drawn_forest(24, 4, seed=3, base=base, dtype=dtype)
    predictor = tvm_forest.build(forest, schedule=SCHEDULES[schedule])
    rows = np.nan_to_num(hard_rows(predictor.forest, 130, seed=1), nan=0.5, posinf=9, neginf=-9)
    rows = rows.astype(predictor.forest.row_dtype)
    stretches, seen = Stretches(predictor), dict[int, Any]()
    for n_rows in (1, 7, 130):
        stretches.run(rows[:n_rows], 1, lambda stretch, _, sums: seen.update({stretch: sums}))
        margin = finish_sums(predictor.forest, seen[len(stretches.ends) - 1])
        right = predictor.predict_margin(rows[:n_rows]).reshape(margin.shape)
        assert margin.tobytes() == right.tobytes()


def test_functions_that_go_on_keep_what_rows_without_a_leaf_hold() -> None:
    forest = forest_of([-0.0, -0.0], base=[7.0])
    schedule = tvm_forest.new_schedule(forest)
    request = BuildRequest.of(forest, schedule, parse_target("llvm"), outputs=(RESUMED,))
    functions = Functions(*compile_or_load(request))
    sums = np.array([[-0.0], [3.5]], np.float32)
    functions.write_sums(np.zeros((2, 3), np.float32), [sums], 1)
    assert sums.tobytes() == np.array([[-0.0], [3.5]], np.float32).tobytes()


def fading(forest: Forest) -> Forest:
    """Let later trees say less, as those of boosted models do."""
    share = 0.8 ** (forest.node_tree // forest.n_outputs)
    return replace(forest, leaf_value=(forest.leaf_value * share[:, None]).astype(forest.sum_dtype))


DRAWN = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "sigmoid": {"link": "sigmoid"},
    "sigmoid of float64": {"link": "sigmoid", "dtype": "float64"},
    "base last": {"base_first": False, "sum_scale": 0.7, "dtype": "float64"},
    "average": {"aggregate": "average"},
    "average with a link": {"aggregate": "average", "link": "sigmoid"},
    "exp": {"link": "exp"},
    "clamp": {"link": "clamp"},
    "signed square": {"link": "signed_square"},
    "step": {"link": "step"},
    "classes": {"base": (0.5, 0.25, -1.0)},
    "rounded values": {"dtype": "float64", "value_dtype": "float32"},
    "softmax": {"link": "softmax", "base": (0.5, 0.25, -1.0)},
}
STOPPING = {"float32", "float64", "sigmoid", "average", "exp", "classes", "rounded values"}


RARER = {"exp", "clamp", "signed square", "average with a link", "sigmoid of float64", "step"}
RARER |= {"regression", "deep", "poisson", "missing_values", "dart", "single_leaves", "softprob"}
RARER |= {"l1", "ova", "multiclass", "random_forest_binary", "large_values", "gb binary", "et"}
RARER |= {"rf flags", "rf targets", "random_forest", "hist binary", "random_forest_classes"}


def often_or_long(names: Any) -> list[Any]:
    """Mark those that are as others, for the code of each is compiled."""
    return [pytest.param(x, marks=(LONG,) * (x in RARER)) for x in names]


@pytest.mark.parametrize("kind", often_or_long(DRAWN))
def test_answers_for_drawn_models_and_hard_rows(kind: str) -> None:
    forest = fading(drawn_forest(30, 4, seed=len(kind), **DRAWN[kind]))
    stopped = check_all(forest, hard_rows(forest, 300, seed=2))
    assert stopped > 1 or kind not in STOPPING  # at infinity all do


@pytest.mark.parametrize("seed", range(4))
def test_answers_where_rounding_decides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-30, 4, size=40)
    trees = [Split(k % 3, 0.0, s * rng.normal(), s * rng.normal()) for k, s in enumerate(sizes)]
    forest = forest_of(trees, base=[1.0 if seed % 2 else 0.0])
    rows = np.random.default_rng(9).normal(size=(200, 3)).astype(np.float32)
    check_all(forest, rows)


def test_additions_that_are_rounded_away_count_for_nothing() -> None:
    small = 2.0**-25  # a quarter of the distance from 1 to the next float32
    trees = [Split(0, 0.0, 1.0, 0.5)] + [Split(1, 0.0, small, small)] * 40
    forest = forest_of(trees)
    rows = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    predictor = tvm_forest.build(forest, schedule=simple)
    assert predictor.predict(rows).max() == 1  # and not 1 + 40 / 2 ** 25
    found = np.empty((200, 1), bool)
    left = Stretches(predictor).run(rows, 1, Above(Stretches(predictor), 1.0).decide(found))
    assert not np.delete(found, left).any()


def test_equal_rows_are_ranked_by_their_places() -> None:
    forest = drawn_forest(30, 3, seed=1, link="sigmoid")
    far = forest_of([Split(0, k / 7, -9.0, 9.0) for k in range(12)], link="sigmoid")
    rows = np.repeat(hard_rows(forest, 40, seed=2), 5, axis=0)
    for model in (forest, far):  # sigmoids of large margins are all 1
        predictor = tvm_forest.build(model, schedule=simple)
        values = predictor.predict_value(rows[:, :3] if model is far else rows)
        given = rows[:, : model.n_features]
        for k in (1, 3, 17, 60):
            found = predictor.top_k(given, k)[0]
            assert np.array_equal(found, np.argsort(-values, kind="stable")[:k])


OF_XGBOOST = ["regression", "deep", "logistic_with_base_score", "poisson", "random_forest"]
OF_XGBOOST += ["missing_values", "softprob", "dart", "estimator_classifier", "single_leaves"]
OF_LIGHTGBM = ["l1", "binary", "multiclass", "ova", "random_forest_binary", "random_forest_classes"]
OF_LIGHTGBM += ["categories_and_holes", "large_values", "infinite_leaves"]
OF_SKLEARN = ["rf classes", "rf flags", "rf ties", "et", "gb binary", "gb classes", "hist binary"]
OF_SKLEARN += ["rf targets"]


@pytest.mark.parametrize("name", often_or_long(OF_XGBOOST))
def test_answers_for_models_of_xgboost(name: str) -> None:
    trained = models.MODELS[name]()
    forest = tvm_forest.load(trained)
    rows = models.probe_rows(trained, forest, 200)
    check_all(trained, rows)
    if forest.link == "identity":  # what the library itself says
        own = models.margins(trained, rows)
        predictor = tvm_forest.build(trained, schedule=simple)
        threshold = np.quantile(own, 0.7, method="nearest")
        found = predictor.predict_above(rows, threshold)
        assert np.array_equal(found, (own > threshold)[:, 0])


@pytest.mark.parametrize("name", often_or_long(OF_LIGHTGBM))
def test_answers_for_models_of_lightgbm(name: str) -> None:
    trained = lightgbm_models.MODELS[name]()
    check_all(trained, lightgbm_models.probe_rows(tvm_forest.load(trained), 200))


@pytest.mark.parametrize("name", often_or_long(OF_SKLEARN))
def test_answers_for_models_of_scikit_learn(name: str) -> None:
    trained = sklearn_models.MODELS[name]()
    check_all(trained, sklearn_models.probe_rows(trained, tvm_forest.load(trained), 200))


@pytest.mark.parametrize(
    "kind", [RandomForestClassifier, pytest.param(ExtraTreesClassifier, marks=LONG)]
)
def test_forests_stop_once_their_vote_is_clear(kind: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4)).astype(np.float32)
    classes = (rows[:, 0] > 0.8).astype(int) + (rows[:, 0] > 1.5)
    trained = kind(40, random_state=1, max_depth=6).fit(rows, classes)
    predictor = tvm_forest.build(trained, schedule=simple)
    values = values_of(predictor, rows)
    above = predictor.predict_above(rows, 0.9, output=2)
    assert np.array_equal(above, values[:, 2] > 0.9)
    stretches = predictor._present._early._stretches
    counts = []
    decide = Above(stretches, 0.9, slice(2, 3)).decide(np.empty((400, 1), bool))

    def count(stretch: int, places: Any, sums: Any) -> Any:
        counts.append(len(places))
        return decide(stretch, places, sums)

    stretches.run(rows, None, count)
    assert counts[1] < 200  # most rows are not of the rare class, as a quarter of the trees tells
    assert np.array_equal(trained.predict(rows), predictor.predict_class(rows, early_exit=True))
    leader = Leader(stretches).decide(found := np.empty(400, np.int64))
    left = stretches.run(rows, None, leader)
    assert len(left) < 200
    decided = np.setdiff1d(np.arange(400), left)
    assert np.array_equal(found[decided], trained.predict(rows)[decided])


def test_bounds_hold_for_every_sum_and_stretch() -> None:
    forest = drawn_forest(24, 4, seed=5, base=(0.5, -0.5))
    bounds, ends = Bounds(forest, [0, 3, 6, 12]), [0, 3, 6, 12]
    leaves = forest.predict_reference(hard_rows(forest, 400, seed=6), "per_tree")
    leaves = leaves.reshape(400, 12, 2).astype(np.float64)
    for stretch, end in enumerate(ends):
        rest, before = leaves[:, end:].sum(axis=1), leaves[:, :end].sum(axis=1) + [0.5, -0.5]
        assert np.all(rest >= bounds.lower[stretch] - bounds.slack)
        assert np.all(rest <= bounds.upper[stretch] + bounds.slack)
        assert np.all(before >= bounds.first[stretch] - bounds.slack)
        assert np.all(before <= bounds.last[stretch] + bounds.slack)
        gains = rest[:, 0] - rest[:, 1]
        assert np.all(gains >= bounds.least_lead[stretch, 0, 1] - bounds.slack.sum())
    assert np.all(bounds.lower[-1] == 0) and np.all(bounds.upper[-1] == 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("at", [0.1, -3.0, 0.0, 1e-3, 1e9, -1e9])
def test_a_step_is_found_between_two_floats(dtype: str, at: float) -> None:
    at_float = np.dtype(dtype).type(at)
    below, above = find_step(lambda x: x >= at_float, np.array([100.0]), dtype)
    if abs(at) > 100:
        assert below[0] == above[0] == np.sign(at) * np.inf
    elif at == 0:
        assert above[0] <= 1e-30 and above[0] >= 0 > below[0]
    else:
        assert above[0] == at_float and below[0] == np.nextafter(at_float, -np.inf)


@pytest.mark.parametrize(
    "fields",
    [{"aggregate": "max"}, {"link": "softmax", "base": (0.0, 0.0)}, {"link": "halving"}],
)
def test_models_that_cannot_stop_answer_whole(fields: dict[str, Any]) -> None:
    forest = drawn_forest(12, 3, seed=4, **fields)
    rows = hard_rows(forest, 120, seed=1)
    predictor = tvm_forest.build(forest, schedule=simple)
    values = values_of(predictor, rows)
    found = predictor.predict_above(rows, values[3, 0]).reshape(values.shape)
    assert np.array_equal(found, values > values[3, 0])
    assert predictor._present._early._stretches is None


def test_leaves_beyond_all_floats_answer_whole() -> None:
    forest = forest_of([Split(0, 0.0, 3e38, -1.0), Split(1, 0.0, 3e38, -2.0)] * 4)
    rows = np.random.default_rng(0).normal(size=(150, 3)).astype(np.float32)
    predictor = tvm_forest.build(forest, schedule=simple)
    values = predictor.predict_value(rows)
    assert np.isinf(values).any()
    assert np.array_equal(predictor.predict_above(rows, 0.0), values > 0)


def test_schedules_that_add_in_another_order_answer_whole() -> None:
    forest = drawn_forest(24, 4, seed=2)
    predictor = tvm_forest.build(
        forest, schedule=lambda start: start.sort_trees("depth"), exact=False
    )
    rows = hard_rows(forest, 130, seed=1)
    values = predictor.predict_value(rows)
    assert np.array_equal(predictor.predict_above(rows, values[7]), values > values[7])
    assert predictor._present._early._stretches is None


def test_a_new_model_has_stretches_of_its_own() -> None:
    first, second = (drawn_forest(20, 4, seed=k) for k in (1, 2))
    predictor = tvm_forest.build(first, schedule=simple)
    rows = hard_rows(first, 130, seed=1)
    predictor.predict_above(rows, 0.1)
    predictor.update(second)
    values = predictor.predict_value(rows)
    for threshold in np.quantile(values, [0.2, 0.8]):
        assert np.array_equal(predictor.predict_above(rows, threshold), values > threshold)


@pytest.mark.parametrize("how", ["rounds", pytest.param("loaded", marks=LONG)])
def test_rounds_and_loaded_predictors_answer_too(how: str, tmp_path: Any) -> None:
    forest = drawn_forest(20, 4, seed=1)
    predictor = tvm_forest.build(forest, schedule=simple)
    rows = hard_rows(forest, 130, seed=1)
    predictor.predict_above(rows, 0.1)
    predictor.save(tmp_path / "model.tvmf")
    load = tvm_forest.load_predictor
    part = predictor.rounds(0, 9) if how == "rounds" else load(tmp_path / "model.tvmf")
    values = part.predict_value(rows)
    assert np.array_equal(part.predict_above(rows, values[5]), values > values[5])


def test_empty_batches_have_empty_answers() -> None:
    predictor = tvm_forest.build(drawn_forest(20, 3), schedule=simple)
    none = np.zeros((0, 4), np.float32)
    assert predictor.predict_above(none, 0.5).shape == (0,)
    assert predictor.top_k(none, 3)[0].shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, rows: p.predict_above(rows, "much"), "argument 'threshold'"),
        (lambda p, rows: p.predict_above(rows, [0.1, 0.2]), "argument 'threshold'"),
        (lambda p, rows: p.predict_above(rows, [[0.1], [0.2, 0.3]]), "argument 'threshold'"),
        (lambda p, rows: p.predict_above(rows, 0.5, output=3), "argument 'output'.*0 to 2, got 3"),
        (lambda p, rows: p.top_k(rows, -1, output=0), "argument 'k'.*from 0, got -1"),
        (lambda p, rows: p.top_k(rows, True, output=0), "argument 'k'"),
        (lambda p, rows: p.top_k(rows, 3), "argument 'output'"),
        (lambda p, rows: p.top_k(rows[:, :2], 3, output=0), "columns|shape|features"),
    ],
)
def test_wrong_questions_are_refused_by_name(call: Any, message: str) -> None:
    forest = drawn_forest(9, 2, base=(0.0, 0.0, 0.0))
    predictor = tvm_forest.build(forest, schedule=simple)
    with pytest.raises(InputError, match=message):
        call(predictor, hard_rows(forest, 10, seed=1))


def test_the_way_that_took_less_is_gone_and_the_other_one_tried_again() -> None:
    chosen = two_ways.TwoWays()
    assert chosen.choose() == two_ways.EARLY
    chosen.seconds = [2.0, None]
    assert chosen.choose() == two_ways.WHOLE
    chosen.seconds = [2.0, 1.0]
    ways = [chosen.choose() for _ in range(two_ways.PATIENCE)]
    assert ways == [two_ways.WHOLE] * (two_ways.PATIENCE - 1) + [two_ways.EARLY]
    chosen.seconds = [1.0, 2.0]
    assert chosen.choose() == two_ways.EARLY


def test_a_row_that_is_decided_has_no_say_in_rows_that_are_not() -> None:
    forest = drawn_forest(40, 4, seed=8)
    predictor = tvm_forest.build(forest, schedule=simple)
    rows = hard_rows(forest, 256, seed=3)
    values = predictor.predict_value(rows)
    stretches = Stretches(predictor)
    left = stretches.run(rows, 1, Best(stretches, 5, 0).decide)
    best = np.argsort(-values, kind="stable")[:5]
    assert np.isin(best, left).all()
    assert len(left) < 20


def test_which_models_stop() -> None:
    def with_(**fields: Any) -> Forest:
        return drawn_forest(6, 2, base=(0.0, 0.0), **fields)

    assert can_lead(with_(link="softmax"))
    assert not can_lead(with_(link="sigmoid"))
    assert rises(with_(link="sigmoid")) and not rises(with_(link="softmax"))


# -- where rows are asked -------------------------------------------------------------------------


def check_asked(predictor: Any, rows: Any, trees: Any) -> None:
    """Compare the answers of rows that are asked after some trees with those of the whole model."""
    values = values_of(predictor, rows)
    for threshold in np.quantile(values, [0.2, 0.9], method="nearest"):
        for _ in range(2):  # both ways
            found = predictor.predict_above(rows, threshold, ask_after=trees)
            assert np.array_equal(found.reshape(values.shape), values > threshold)
    order = np.argsort(-values[:, 0], kind="stable")[:7]
    for _ in range(2):
        found, scores = predictor.top_k(rows, 7, output=0, ask_after=trees)
        assert np.array_equal(found, order) and scores.tobytes() == values[order, 0].tobytes()
    if predictor.forest.last_class is not None:
        right = predictor.predict_class(rows)
        found = predictor.predict_class(rows, early_exit=True, ask_after=trees)
        assert np.array_equal(found, right)


@functools.cache
def asked(kind: str) -> tuple[Any, Any, int]:
    """A predictor, rows, and the number of trees of each output."""
    base = (0.5, 0.25, -1.0) if kind == "softmax" else (0.0,)
    forest = fading(drawn_forest(24, 3, seed=4, base=base, link=kind))
    rounds = forest.n_trees // forest.n_outputs
    return tvm_forest.build(forest, schedule=simple), hard_rows(forest, 300, seed=5), rounds


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize("seed", range(3))
def test_answers_do_not_depend_on_where_rows_are_asked(kind: str, seed: int) -> None:
    predictor, rows, rounds = asked(kind)
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    trees = np.sort(rng.choice(np.arange(1, rounds + 1), count, replace=False))
    check_asked(predictor, rows, trees if seed else trees.tolist())


def test_rows_are_asked_where_it_is_said() -> None:
    predictor, rows, rounds = asked("sigmoid")
    predictor.predict_above(rows, 0.5, ask_after=(3, 11))
    early = predictor._present._early
    stretches = early._others[0, 3, 11, rounds]._stretches
    assert stretches.ends == [0, 3, 11, rounds]
    seen, ends = [], np.cumsum([0, 3, 8, rounds - 11])
    leaves = predictor.predict_per_tree(rows)
    assert np.isfinite(leaves).all()
    stretches.run(rows, 1, lambda stretch, _, sums: seen.append(sums[:, 0].copy()))
    for sums, end in zip(seen, ends[1:], strict=True):
        added = np.zeros(len(rows), np.float32)
        for tree in range(end):
            added += leaves[:, tree]
        assert sums.tobytes() == added.tobytes()


def test_the_latest_choices_are_kept() -> None:
    predictor, rows, rounds = asked("sigmoid")
    early = predictor._present._early
    for trees in ([1], [2], [3], [4], [1], [5]):
        predictor.top_k(rows, 3, ask_after=trees)
    assert [x[1] for x in early._others] == [3, 4, 1, 5]
    kept = early._others[0, 1, rounds]
    predictor.top_k(rows, 3, ask_after=[1, rounds])  # as [1], for all are asked at the end
    assert early._others[0, 1, rounds] is kept


@pytest.mark.parametrize(
    "trees",
    [
        *([], [0], [3, 3], [5, 2], [25], [1.5], [True], 4, "12", [[1]], [[1], [2, 3]]),
        np.ma.masked_array([1, 2], [True, False]),
    ],
)
def test_places_to_ask_are_checked(trees: Any) -> None:
    predictor, rows, _ = asked("sigmoid")
    message = r"argument 'ask_after': expected ascending numbers of trees, from 1 to 24, such as"
    for method, arguments in (("predict_above", (0.5,)), ("top_k", (1,))):
        with pytest.raises(InputError, match=f"{method}: {message}"):
            getattr(predictor, method)(rows, *arguments, ask_after=trees)


def test_classes_are_asked_with_early_exit_only() -> None:
    predictor, rows, _ = asked("softmax")
    with pytest.raises(InputError, match="predict_class: argument 'ask_after': .*give both"):
        predictor.predict_class(rows, ask_after=[2])
    with pytest.raises(InputError, match="numbers of trees of each output, from 1 to 8"):
        predictor.predict_class(rows, early_exit=True, ask_after=[9])
