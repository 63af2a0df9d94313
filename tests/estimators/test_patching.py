"""Estimators whose methods were replaced give what they gave before, to the bit, or step aside."""

import copy
import gc
import logging
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import models
import tvm_forest
from tvm_forest.patching import imports, records
from tvm_forest.patching.families import FAMILIES
from tvm_forest.patching.pace import TRIES, Pace
from tvm_forest.patching.states import WeakTable, digest_arrays

ROWS, TARGET = models.data()
TWO, THREE = models.labels(2), models.labels(3)
WORDS = np.array(["no", "yes", "maybe"])[THREE]
LABELS = np.stack([THREE, TWO], axis=1)
METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples")
BOOSTED = {"n_jobs": 1, "n_estimators": 4}
CAT = {"verbose": 0, "thread_count": 1, "n_estimators": 4, "allow_writing_files": False}

forest = partial(RandomForestClassifier, 4, max_depth=4, random_state=0)
numbers = partial(RandomForestRegressor, 4, max_depth=4, random_state=0)
light = partial(lightgbm.LGBMRegressor, **BOOSTED, verbose=-1)
extreme = partial(xgboost.XGBRegressor, **BOOSTED)
cat = partial(catboost.CatBoostRegressor, **CAT)

FITTED: dict[str, Callable[[], Any]] = {
    "forest": lambda: forest().fit(ROWS, WORDS),
    "forest of several": lambda: forest().fit(ROWS, LABELS),
    "forest of numbers": lambda: numbers().fit(ROWS, TARGET),
    "forest of two numbers": lambda: numbers().fit(ROWS, np.stack([TARGET, TARGET], axis=1)),
    "extra trees": lambda: ExtraTreesClassifier(4, max_depth=4).fit(ROWS, THREE),
    "extra trees of numbers": lambda: ExtraTreesRegressor(4, max_depth=4).fit(ROWS, TARGET),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=3).fit(ROWS, WORDS),
    "boosting of two": lambda: GradientBoostingClassifier(n_estimators=3).fit(ROWS, TWO),
    "boosting of numbers": lambda: GradientBoostingRegressor(n_estimators=3).fit(ROWS, TARGET),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=3).fit(ROWS, WORDS),
    "histograms of two": lambda: HistGradientBoostingClassifier(max_iter=3).fit(ROWS, TWO),
    "histograms of numbers": lambda: HistGradientBoostingRegressor(max_iter=3, loss="poisson").fit(
        ROWS, np.abs(TARGET)
    ),
    "isolation": lambda: IsolationForest(n_estimators=4, max_features=0.5).fit(ROWS),
    "xgboost": lambda: xgboost.XGBClassifier(**BOOSTED).fit(ROWS, THREE),
    "xgboost of numbers": lambda: extreme().fit(ROWS, TARGET),
    "xgboost forest": lambda: xgboost.XGBRFRegressor(**BOOSTED).fit(ROWS, TARGET),
    "lightgbm": lambda: lightgbm.LGBMClassifier(**BOOSTED, verbose=-1).fit(ROWS, WORDS),
    "lightgbm of numbers": lambda: light().fit(ROWS, TARGET),
    "catboost": lambda: catboost.CatBoostClassifier(**CAT).fit(ROWS, WORDS),
    "catboost of numbers": lambda: cat().fit(ROWS, TARGET),
}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tvm_forest.patching.Patched]:
    """Replaced methods, of code that takes little time to compile."""
    plain = partial(tvm_forest.build, schedule=lambda start: start)
    monkeypatch.setattr(records.RULE, "build", plain)
    with tvm_forest.patch(after_s=0) as found:
        yield found


def hard_rows(model: Any) -> np.ndarray:
    """Rows on the thresholds of a model and beside them, with what its library takes."""
    rows = np.concatenate([ROWS[:60], np.nextafter(ROWS[:60], np.float32(9)), -ROWS[:20]])
    rows = np.concatenate([rows, np.full((1, ROWS.shape[1]), -0.0)]).astype(np.float64)
    if not isinstance(model, RandomForestClassifier | GradientBoostingClassifier):
        try:
            holes = np.where(np.arange(rows.size).reshape(rows.shape) % 7 == 0, np.nan, rows)
            model.predict(holes)
            return np.concatenate([rows, holes])
        except ValueError:
            pass
    return rows


def compiled(model: Any, rows: np.ndarray = ROWS) -> Any:
    """Let an estimator predict until it was compiled; returns its record."""
    model.predict(rows[:1])
    for thread in threading.enumerate():
        if thread.name.startswith("tvm_forest reads"):
            thread.join()
    return records.RECORDS.get(model)


def answers(model: Any, rows: Any) -> dict[str, list[Any]]:
    """All that an estimator says of rows, as texts of types and bytes."""
    found = {}
    for name in (*METHODS, "apply"):
        if hasattr(model, name) and not (name == "apply" and "boost" in type(model).__module__):
            answer = getattr(model, name)(rows)
            parts = answer if isinstance(answer, list) else [answer]
            found[name] = [
                (type(x), x.dtype, x.shape, x.tolist() if x.dtype == object else x.tobytes())
                for x in parts
            ]
    return found


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.cases(8, others="long")
def test_answers_are_those_of_the_library(name: str, patched: Any) -> None:
    model = FITTED[name]()
    rows = hard_rows(model)
    tvm_forest.unpatch()
    expected = answers(model, rows)
    tvm_forest.patch(after_s=0)
    record = compiled(model, rows)
    assert record.find() is not None, record.reason
    assert answers(model, rows) == expected
    text = str(tvm_forest.patch(after_s=0))
    assert any(
        "rows compiled" in line and type(model).__name__ in line for line in text.split("\n")
    )


def test_every_class_of_the_table_is_one_of_its_library(patched: Any) -> None:
    replaced = {(cls.__name__, name) for cls, name, *_ in imports._replaced}
    for families in FAMILIES.values():
        assert {(cls, name) for cls, family in families.items() for name in family.answers} - (
            replaced
        ) <= {(x, "predict_proba") for x in families if "Classifier" not in x}


def change_leaf(model: Any) -> None:
    model.estimators_[1].tree_.value[...] *= 0.5


def cut_a_tree(model: Any) -> None:
    tree = model.estimators_[0].tree_
    tree.children_left[0] = tree.children_right[0] = -1


def train_more(model: Any) -> None:
    model.set_params(n_estimators=6, warm_start=True).fit(ROWS, TARGET)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "fit": (numbers, lambda model: model.fit(ROWS, -TARGET)),
    "warm start": (numbers, train_more),
    "values of leaves": (numbers, change_leaf),
    "pruned": (numbers, cut_a_tree),
    "a tree less": (numbers, lambda model: model.estimators_.pop()),
    "other trees": (
        numbers,
        lambda model: setattr(model, "estimators_", numbers().fit(ROWS, -TARGET).estimators_),
    ),
    "learning rate": (
        partial(GradientBoostingRegressor, n_estimators=3),
        lambda model: model.set_params(learning_rate=7.0),
    ),
    "fit xgboost": (extreme, lambda model: model.fit(ROWS, -TARGET)),
    "update xgboost": (
        extreme,
        lambda model: model.get_booster().update(xgboost.DMatrix(ROWS, -TARGET), 9),
    ),
    "missing of xgboost": (extreme, lambda model: model.set_params(missing=float(ROWS[0, 0]))),
    "best of xgboost": (extreme, lambda model: setattr(model.get_booster(), "best_iteration", 1)),
    "fit lightgbm": (light, lambda model: model.fit(ROWS, -TARGET)),
    "leaf of lightgbm": (light, lambda model: model.booster_.set_leaf_output(0, 0, 99.0)),
    "best of lightgbm": (light, lambda model: setattr(model.booster_, "best_iteration", 1)),
    "fit catboost": (cat, lambda model: model.fit(ROWS, -TARGET)),
    "shrink catboost": (cat, lambda model: model.shrink(2)),
    "bias of catboost": (cat, lambda model: model.set_scale_and_bias(2.0, 3.0)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.cases(10, others="long")
def test_a_changed_estimator_gives_no_older_answer(name: str, patched: Any) -> None:
    make, change = CHANGES[name]
    model = make().fit(ROWS, TARGET)
    compiled(model)
    before = model.predict(ROWS)
    assert "rows compiled" in str(patched)
    change(model)
    after = model.predict(ROWS)
    assert not np.array_equal(before, after)
    compiled(model)
    again = model.predict(ROWS)
    tvm_forest.unpatch()
    expected = model.predict(ROWS)
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(again, expected)


def test_copies_have_nothing_of_the_compiled_code(patched: Any) -> None:
    model = numbers().fit(ROWS, TARGET)
    plain = pickle.dumps(model)
    compiled(model)
    assert pickle.dumps(model) == plain
    for other in (pickle.loads(plain), copy.deepcopy(model), copy.copy(model)):
        assert records.RECORDS.get(other) is None
        np.testing.assert_array_equal(other.predict(ROWS), model.predict(ROWS))
    with pytest.raises(NotFittedError):
        clone(model).predict(ROWS)


def test_what_was_compiled_goes_with_its_estimator(patched: Any) -> None:
    model = numbers().fit(ROWS, TARGET)
    predictor = weakref.ref(compiled(model).find().predictor)
    assert predictor() is not None
    del model
    gc.collect()
    assert predictor() is None


class Doubled(RandomForestClassifier):
    """Predicts otherwise than its base."""

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X)[:, ::-1]


def test_classes_that_derive_and_methods_of_one_object_are_theirs(patched: Any) -> None:
    model, base = Doubled(4, random_state=0).fit(ROWS, TWO), forest(max_depth=None).fit(ROWS, TWO)
    compiled(model), compiled(base)
    np.testing.assert_array_equal(model.predict_proba(ROWS), base.predict_proba(ROWS)[:, ::-1])
    assert "Doubled: 2 calls, 601 rows as they were: it derives from RandomForest" in str(patched)
    base.predict_proba = lambda rows: np.tile([0.0, 1.0], (len(rows), 1))
    assert set(base.predict(ROWS)) == {1}


def test_threads_may_predict_while_it_is_compiled(patched: Any) -> None:
    model, found = numbers().fit(ROWS, TARGET), []
    tvm_forest.unpatch()
    expected = model.predict(ROWS)
    tvm_forest.patch(after_s=0)

    def work() -> None:
        found.extend(np.array_equal(model.predict(ROWS), expected) for _ in range(30))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 90


REASONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "refused": (
        lambda: GradientBoostingRegressor(init=numbers(), n_estimators=2).fit(ROWS, TARGET),
        lambda model: model.predict(ROWS),
        "predicts another number for each row",
    ),
    "options": (
        lambda: extreme().fit(ROWS, TARGET),
        lambda model: model.predict(ROWS, iteration_range=(0, 2)),
        "is called with options",
    ),
    "powers": (
        lambda: xgboost.XGBClassifier(**BOOSTED).fit(ROWS, TWO),
        lambda model: model.predict_proba(ROWS),
        "may differ in the last places, by the link sigmoid",
    ),
    "infinities": (
        lambda: light().fit(ROWS, TARGET),
        lambda model: model.predict(np.full((1, ROWS.shape[1]), np.inf)),
        "rows hold infinities",
    ),
    "names": (
        lambda: extreme().fit(pd.DataFrame(ROWS).add_prefix("x"), TARGET),
        lambda model: model.predict(ROWS),
        "rows have no names of columns",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REASONS)
def test_what_falls_back_is_told_once(name: str, patched: Any, caplog: Any) -> None:
    make, predict, reason = REASONS[name]
    caplog.set_level(logging.INFO, logger="tvm_forest")
    model = make()
    compiled(model)
    for _ in range(3):
        predict(model)
    said = [x.message for x in caplog.records if x.name == "tvm_forest.patching"]
    assert len([line for line in said if reason in line]) == 1
    assert reason in str(patched)


def test_rows_that_the_library_refuses_are_refused_by_its_words(patched: Any) -> None:
    model = forest().fit(ROWS, THREE)
    compiled(model)
    with pytest.raises(ValueError, match="RandomForestClassifier is expecting"):
        model.predict(ROWS[:, :2])
    with pytest.raises(ValueError, match="infinity"):
        model.predict(np.full_like(ROWS, np.inf))


def test_forests_inside_of_others_are_compiled(patched: Any) -> None:
    model = make_pipeline(StandardScaler(), forest()).fit(ROWS, THREE)
    compiled(model[-1], StandardScaler().fit_transform(ROWS))
    expected = model.predict_proba(ROWS)
    assert "RandomForestClassifier: 1 calls, 600 rows compiled" in str(patched)
    tvm_forest.unpatch()
    np.testing.assert_array_equal(model.predict_proba(ROWS), expected)


def test_both_ways_of_patching_may_be_repeated() -> None:
    before = dict(vars(RandomForestClassifier)), dict(vars(xgboost.Booster))
    first = tvm_forest.patch(after_s=2)
    assert tvm_forest.patch(after_s=3) is first
    assert "predict_proba" in vars(RandomForestClassifier)
    tvm_forest.unpatch()
    tvm_forest.unpatch()
    assert (dict(vars(RandomForestClassifier)), dict(vars(xgboost.Booster))) == before
    for wrong in (-1, float("nan"), "1", True):
        with pytest.raises(tvm_forest.InputError, match="after_s"):
            tvm_forest.patch(after_s=wrong)  # type: ignore[arg-type]
    assert "predict_proba" not in vars(RandomForestClassifier)


def test_an_estimator_that_predicts_little_is_not_compiled(patched: Any) -> None:
    tvm_forest.patch(after_s=1e9)
    model = forest().fit(ROWS, THREE)
    assert compiled(model).find() is None
    assert "has not predicted for long enough" in str(patched)


def test_the_faster_way_is_taken_for_each_number_of_rows() -> None:
    pace = Pace()
    assert not pace.prefers_ours(100)
    pace.note_theirs(100, 1.0)
    assert pace.prefers_ours(100) and pace.prefers_ours(10_000)
    assert not pace.prefers_ours(1)
    pace.note_theirs(1, 0.001)
    for _ in range(TRIES):
        assert pace.prefers_ours(1)
        pace.note_ours(1, 0.002)
        pace.note_ours(100, 0.1)
    assert not pace.prefers_ours(1) and pace.prefers_ours(100)
    assert not pace.prefers_ours(4)  # as for one row, until the library was timed


def test_arrays_are_told_by_what_they_hold() -> None:
    values = np.arange(101, dtype=np.float64)
    known = digest_arrays([values])
    assert digest_arrays([values.copy()]) == known
    swapped = values.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    lowest = values.copy()
    lowest.view(np.uint64)[100] ^= 1
    others = [swapped, lowest, values[:-1], values.view(np.uint8)[:-3]]
    assert len({digest_arrays([x]) for x in others} | {known}) == 5


def test_a_table_forgets_what_is_gone_and_asks_for_no_hash() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

    table, one = WeakTable[int](), Odd()
    table.set(one, 1)
    assert table.get(one) == 1 and table.get(Odd()) is None
    del one
    gc.collect()
    assert table._entries == {}


def test_the_page_runs(capsys: Any) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "sklearn.md"
    _, block = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block, str(page), "exec", dont_inherit=True), {})
    reason = "it has not predicted for long enough to be compiled"
    assert f"1 calls, 569 rows as they were: {reason}" in capsys.readouterr().out
