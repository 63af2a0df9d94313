"""Compiled code gives the bits of the training library, and of the reference walk."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xgboost

import tvm_forest
from forests import Split, drawn_forest, forest_of
from models import MODELS, leaves, margins, probe_rows, values
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

BATCHES = (0, 1, 7, 8, 9, 33, 65)
FEW = ("regression",)  # the others are left out by `make tiny`
OWN_CODE = (  # of its own kind: dtypes, links, labels, classes, empty and uneven trees
    *("regression", "stumps", "single_leaves", "zero_rounds", "dart", "aft", "missing_values"),
    *("one_feature", "softprob", "softprob_26_classes", "dart_classes", "estimator_ranker"),
    *("estimator_classifier", "estimator_classifier_classes"),
)
"""Models of which each asks for other code. That the reference walk has the bits of all models is
what `test_frontend_xgboost` holds."""
BY_DEFAULT = ("single_leaves", "softprob")
"""Models with their default schedules, which take ten times as long to compile."""
BY_DEFAULT_TOO = {*OWN_CODE, *[name for name in MODELS if name not in OWN_CODE][::3]}
"""Models that the long tests also build with these."""


class Subject:
    """A model, compiled, with rows for it."""

    def __init__(self, name: str, by_default: bool) -> None:
        self.name, self.model = name, MODELS[name]()
        schedule = None if by_default else lambda start: start
        self.predictor = tvm_forest.build(self.model, schedule=schedule)
        self.forest = tvm_forest.load(self.model)
        self.rows = probe_rows(self.model, self.forest, max(BATCHES), seed=1)
        self.finite = np.nan_to_num(self.rows, nan=np.nan)


@functools.lru_cache(maxsize=2)
def subject_of(name: str, by_default: bool) -> Subject:
    return Subject(name, by_default)


def marks_of(name: str) -> list[Any]:
    marks = [] if name in FEW else [pytest.mark.slow]
    return marks if name in OWN_CODE else [*marks, pytest.mark.long]


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((x, x in BY_DEFAULT), marks=marks_of(x), id=x) for x in MODELS),
        *(
            pytest.param(
                (x, True), marks=[pytest.mark.slow, pytest.mark.long], id=f"{x} by default"
            )
            for x in MODELS
            if x in BY_DEFAULT_TOO and x not in BY_DEFAULT
        ),
    ],
)
def subject(request: pytest.FixtureRequest) -> Subject:
    return subject_of(*request.param)


def squeezed(array: Any) -> Any:
    """Drop the axis of a single output."""
    return array[:, 0] if array.shape[1] == 1 else array


def equal_bits(one: Any, other: Any) -> bool:
    form = one.dtype == other.dtype and one.shape == other.shape
    return bool(form and np.ascontiguousarray(one).tobytes() == other.tobytes())


@pytest.mark.cases(3)
def test_margins_are_those_of_xgboost(subject: Subject) -> None:
    expected = squeezed(margins(subject.model, subject.rows))
    for n_rows in BATCHES:
        for n_jobs in (1, 2):
            margin = subject.predictor.predict_margin(subject.rows[:n_rows], n_jobs=n_jobs)
            assert equal_bits(margin, expected[:n_rows])


@pytest.mark.cases(7)
def test_margins_are_those_of_the_reference(subject: Subject) -> None:
    expected = squeezed(subject.forest.predict_reference(subject.rows))
    for n_rows in BATCHES:
        margin = subject.predictor.predict_margin(subject.rows[:n_rows])
        assert equal_bits(margin, expected[:n_rows])


@pytest.mark.cases(4)
def test_leaves_are_those_of_xgboost(subject: Subject) -> None:
    found = subject.predictor.apply(subject.finite)
    assert np.array_equal(found, leaves(subject.model, subject.finite))
    if not isinstance(subject.model, xgboost.Booster):
        assert found.dtype == subject.model.apply(subject.finite).dtype
    empty = subject.predictor.apply(subject.finite[:0])
    assert (empty.shape, empty.dtype) == ((0, found.shape[1]), found.dtype)


def test_leaves_on_hard_rows_are_those_of_the_reference(subject: Subject) -> None:
    expected = subject.forest.predict_reference(subject.rows, "apply")
    for n_rows in BATCHES:
        found = subject.predictor.apply(subject.rows[:n_rows], n_jobs=2)
        assert equal_bits(found, expected[:n_rows])


@pytest.mark.cases(4)
def test_the_tree_values_add_up_to_the_margin(subject: Subject) -> None:
    found = subject.predictor.predict_per_tree(subject.rows)
    forest = subject.forest
    total = np.tile(forest.base_score, (len(found), 1))
    for tree, output in enumerate(forest.tree_class):
        total[:, output] += found[:, tree]
    assert equal_bits(squeezed(total), subject.predictor.predict_margin(subject.rows))


def test_predictions_are_those_of_xgboost(subject: Subject) -> None:
    """Margins are equal to the bit; what `exp` makes of them may differ in the last places."""
    model, rows = subject.model, subject.rows
    found = subject.predictor.predict(rows)
    if isinstance(model, xgboost.XGBClassifier):
        assert equal_bits(found, model.predict(rows))
        return
    expected = squeezed(values(model, rows))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_max_ulp(found, expected, maxulp=2)


def check_probabilities_of_others(subject: Subject) -> None:
    """Other objects of XGBoost have no predict_proba: it comes from the link, or is refused."""
    forest, rows = subject.forest, subject.rows
    if forest.link not in ("sigmoid", "softmax"):
        with pytest.raises(tvm_forest.UnsupportedModel, match="gives no probabilities"):
            subject.predictor.predict_proba(rows)
        return
    expected = forest.predict_reference(rows, "value")
    if forest.link == "sigmoid":
        expected = np.concatenate([1 - expected, expected], axis=1)
    found = subject.predictor.predict_proba(rows)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_probabilities_are_those_of_xgboost(subject: Subject) -> None:
    if not isinstance(subject.model, xgboost.XGBClassifier):
        check_probabilities_of_others(subject)
        return
    expected = subject.model.predict_proba(subject.rows)
    found = subject.predictor.predict_proba(subject.rows)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    by_scipy = subject.model.objective == "multi:softmax"  # in other steps than XGBoost's own link
    np.testing.assert_array_max_ulp(found, expected, maxulp=8 if by_scipy else 2)


def test_an_empty_batch_has_the_form_of_a_full_one(subject: Subject) -> None:
    for method in ("predict", "predict_margin", "predict_per_tree", "apply"):
        full = getattr(subject.predictor, method)(subject.rows)
        empty = getattr(subject.predictor, method)(subject.rows[:0])
        assert (empty.shape, empty.dtype) == ((0, *full.shape[1:]), full.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"], [False, True]], ids=str)
def test_labels_of_any_kind_come_back(labels: list[Any]) -> None:
    rng = np.random.default_rng(3)
    rows, code = rng.normal(size=(200, 3)), rng.integers(0, len(labels), 200)
    model = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(rows, code)
    forest = tvm_forest.load(model)
    predictor = tvm_forest.build(forest, schedule=lambda start: start)
    assert equal_bits(predictor.predict(rows), model.predict(rows))


# -- forests that no library trains ---------------------------------------------------------------

TINY = float(np.finfo(np.float32).smallest_subnormal)
EDGE = Split(0, 1.0, Split(0, 0.0, -1.0, Split(0, TINY, 0.25, 0.5)), 2.0)
EDGES = [EDGE, Split(1, -TINY, 0.125, Split(0, np.inf, 0.75, 8.0, True)), 0.1, Split(0, 1, 3, 5)]


def every_default(default_left: bool) -> Forest:
    forest = drawn_forest(9, 5)
    fields = {"default_left": np.full(forest.n_nodes, default_left)}
    return tvm_forest.Forest(**(vars_of(forest) | fields))


def vars_of(forest: Forest) -> dict[str, Any]:
    return {name: getattr(forest, name) for name in Forest.__dataclass_fields__}


HAND_MADE: dict[str, Callable[[], Forest]] = {
    "unequal depths": lambda: drawn_forest(25, 7, base=[0.5]),
    "at most": lambda: drawn_forest(9, 5, comparison="<="),
    "thresholds at zero and beside": lambda: forest_of(EDGES),
    "at most zero and beside": lambda: forest_of(EDGES, comparison="<="),
    "missing goes left": lambda: every_default(True),
    "missing goes right": lambda: every_default(False),
    "infinite thresholds": lambda: forest_of(
        [Split(0, np.inf, 1.0, Split(1, -np.inf, 2.0, 3.0)), Split(2, -np.inf, 4.0, 5.0, True)]
    ),
    "at most infinite": lambda: forest_of(
        [Split(0, np.inf, 1.0, 2.0), Split(2, -np.inf, 4.0, 5.0)], comparison="<="
    ),
    "float64": lambda: drawn_forest(9, 5, dtype="float64", base=[0.1]),
    "float64, at most": lambda: drawn_forest(9, 5, dtype="float64", comparison="<="),
    "float64 and classes": lambda: drawn_forest(9, 4, dtype="float64", base=[0.1, 0.2, 0.3]),
    "float64 compared with float32 rows": lambda: drawn_forest(
        9, 5, dtype="float64", row_dtype="float32", comparison="<="
    ),
    "minus zero": lambda: forest_of([-0.0, Split(0, 0.0, -0.0, -0.0)], base=[-0.0]),
    "a sum of minus zero and zero": lambda: forest_of([-0.0, Split(0, 0, 0.0, -0.0)], base=[-0.0]),
    "leaves that cancel": lambda: forest_of([1e8, 1.0, -1e8, 1e-8, Split(0, 0, 3e7, 1.0)]),
    "denormal leaves": lambda: forest_of([TINY, Split(0, 0.0, TINY, -TINY), TINY]),
    "leaves beyond float32": lambda: forest_of([3e38, Split(0, 0.0, 3e38, -3e38), -3e38]),
    "infinite leaves": lambda: forest_of([Split(0, 0.0, np.inf, 1.0), 2.0]),
    "single leaves only": lambda: forest_of([0.1, 0.2, 0.3], base=[0.4]),
    "one tree": lambda: forest_of([EDGE]),
    "no tree": lambda: forest_of([], base=[0.25]),
    "no tree, classes": lambda: forest_of([], base=[0.25, -0.5]),
    "more classes than trees": lambda: drawn_forest(2, 3, base=[0.1, 0.2, 0.3]),
    "trees in another order": lambda: drawn_forest(
        7, 3, base=[0.1, 0.2], tree_class=np.array([1, 1, 0, 1, 0, 0, 1], np.int32)
    ),
    "a class without trees": lambda: drawn_forest(
        4, 3, base=[0.1, 0.2, 0.3], tree_class=np.array([2, 0, 0, 2], np.int32)
    ),
    "a deep chain": lambda: forest_of([functools.reduce(deeper, range(14), 0.5)]),
    "features far apart": lambda: drawn_forest(9, 5, n_features=3000),
    "a base score of float64": lambda: drawn_forest(5, 3, base_score=np.array([0.1])),
    "leaf numbers of 64 bits": lambda: drawn_forest(5, 3, leaf_id_dtype="int64"),
}


def deeper(tree: Any, level: int) -> Split:
    return Split(level % 3, level / 7, tree, float(level), level % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", HAND_MADE)
@pytest.mark.parametrize(
    "by_default", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "by default"]
)
@pytest.mark.cases(8)
def test_a_forest_made_by_hand_is_computed_as_the_reference_does(
    name: str, by_default: bool
) -> None:
    forest = HAND_MADE[name]()
    predictor = tvm_forest.build(forest, schedule=None if by_default else lambda start: start)
    rows = np.concatenate([hard_rows(forest, 60, seed=2), np.zeros((3, forest.n_features))])
    with np.errstate(over="ignore", invalid="ignore"):
        margin = squeezed(forest.predict_reference(rows))
    for n_rows in BATCHES:
        for n_jobs in (1, 2):
            found = predictor.predict_margin(rows[:n_rows], n_jobs=n_jobs)
            assert equal_bits(found, margin[:n_rows])
    assert equal_bits(predictor.apply(rows), forest.predict_reference(rows, "apply"))
    assert equal_bits(predictor.predict_per_tree(rows), forest.predict_reference(rows, "per_tree"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("link", ["sorted", "identity", "sigmoid", "exp", "softmax", "step"])
@pytest.mark.cases(4)
def test_a_link_is_computed_within_two_ulp(link: str, dtype: str) -> None:
    forest = drawn_forest(12, 4, dtype=dtype, base=[0.1, 0.2, 0.3], link=link)
    rows = hard_rows(forest, 200)
    expected = forest.predict_reference(rows, "value")
    found = tvm_forest.build(forest, schedule=lambda start: start).predict(rows)
    assert found.dtype == dtype
    np.testing.assert_array_max_ulp(found, expected, maxulp=2)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["sigmoid", "exp", "softmax"])
@pytest.mark.parametrize(
    "by_default", [False, pytest.param(True, marks=pytest.mark.long)], ids=["plain", "by default"]
)
def test_a_link_of_extreme_margins_is_that_of_the_reference(link: str, by_default: bool) -> None:
    extremes = [0.0, 88.0, -88.0, 89.0, -104.0, 1e4, -1e4, 3e38, -3e38, TINY]
    tree: Any = -0.0
    for place, value in enumerate(extremes):
        tree = Split(0, float(place), value, tree) if place else Split(0, 0.0, value, tree)
    forest = forest_of([tree, 0.0], n_features=1, base=[0.0, 1.0], link=link)
    rows = np.arange(-1, 12, dtype=np.float32).reshape(-1, 1)
    with np.errstate(over="ignore", under="ignore"):
        expected = forest.predict_reference(rows, "value")
    predictor = tvm_forest.build(forest, schedule=None if by_default else lambda start: start)
    np.testing.assert_array_max_ulp(predictor.predict(rows), expected, maxulp=2)
