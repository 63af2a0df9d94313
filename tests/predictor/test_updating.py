"""A retrained model takes the place of one that predicts, and nobody notices but by the numbers."""

from __future__ import annotations

import gc
import pickle
import threading
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

import tvm_forest
from forests import drawn_forest
from tvm_forest import InputError, ScheduleError
from tvm_forest.forest.probe_rows import hard_rows

OLD, NEW = (drawn_forest(n, 4, base=[0.1, 0.2], link="softmax", seed=n) for n in (4, 6))
ROWS = hard_rows(OLD, 70, seed=5)
METHODS = (
    *("predict", "predict_proba", "predict_margin", "predict_class", "apply"),
    *("predict_per_tree", "tolerance"),
)
MAPS = Path("/proc/self/maps")

pytestmark = pytest.mark.usefixtures("kept_code")  # most tests build one of two models


def build(forest: Any, **options: Any) -> Any:
    return tvm_forest.build(forest, schedule=lambda sch: sch, **options)


def results_of(predictor: Any, rows: Any = ROWS) -> list[Any]:
    few = rows[:3]
    whole = [getattr(predictor, name)(part) for name in METHODS for part in (few, rows)]
    ranges = [predictor.predict_margin(part, iteration_range=(0, 2)) for part in (few, rows)]
    return [*whole, *ranges]


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


# -- calls meanwhile ------------------------------------------------------------------------------


def test_an_updated_predictor_is_one_that_was_built_of_the_new_model() -> None:
    predictor, wanted = build(OLD, n_jobs=1), build(NEW)
    assert not equal(predictor.predict(ROWS), wanted.predict(ROWS))
    assert predictor.update(NEW) is None
    for found, expected in zip(results_of(predictor), results_of(wanted), strict=True):
        assert equal(found, expected)
    assert predictor.signature == wanted.signature == NEW.signature
    assert (predictor.n_jobs, len(predictor.columns)) == (1, 6)
    assert repr(predictor) == repr(wanted)


def ask_until(told: threading.Event, predictor: Any, names: Any, found: list[Any]) -> None:
    while not told.is_set():
        for name, rows in product(names, (ROWS[:1], ROWS)):
            found.append((name, len(rows), getattr(predictor, name)(rows)))


@pytest.mark.slow
def test_every_call_beside_updates_is_of_one_of_both_models() -> None:
    both, predictor = [build(forest) for forest in (OLD, NEW)], build(OLD)
    names = ("predict", "predict_proba", "predict_class", "apply")
    wanted = {
        (name, len(rows)): [getattr(each, name)(rows) for each in both]
        for name in names
        for rows in (ROWS[:1], ROWS)
    }
    told, found = threading.Event(), list[Any]()
    threads = [
        threading.Thread(target=ask_until, args=(told, predictor, some, found))
        for some in (names[:2], names[2:])
    ]
    for thread in threads:
        thread.start()
    for k in range(4):
        predictor.update((NEW, OLD)[k % 2])
        now = both[(k + 1) % 2]
        assert equal(predictor.predict_margin(ROWS), now.predict_margin(ROWS))
    told.set()
    for thread in threads:
        thread.join()
    assert len(found) >= 2 * len(names)
    assert all(any(equal(x, y) for y in wanted[name, count]) for name, count, x in found)


@pytest.mark.slow
def test_kernels_on_the_cpu_are_updated_as_well() -> None:
    predictor = tvm_forest.build(OLD, target="simt")
    predictor.update(NEW)
    assert equal(predictor.predict_margin(ROWS), NEW.predict_reference(ROWS))


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list mappings")
def test_the_old_code_is_unmapped_unless_a_part_of_it_is_in_use(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TVM_FOREST_CACHE", str(tmp_path))
    predictor = build(OLD)
    predictor.predict_margin(ROWS)
    gc.collect()
    before = MAPS.read_text().count("code.so")
    part, wanted = predictor.rounds(0, 1), predictor.predict_margin(ROWS, iteration_range=(0, 1))
    predictor.update(NEW)
    assert MAPS.read_text().count("code.so") > before  # the part is of the old model
    assert equal(part.predict_margin(ROWS), wanted)
    del part
    assert MAPS.read_text().count("code.so") == before


# -- what stays as it was asked for ---------------------------------------------------------------


def test_functions_make_schedules_of_the_new_model() -> None:
    predictor = build(OLD)
    predictor.update(NEW)
    assert predictor.schedules == build(NEW).schedules
    predictor.update(OLD)
    assert predictor.schedules == build(OLD).schedules


def test_a_schedule_that_does_not_fit_the_new_model_leaves_the_old_one() -> None:
    predictor = tvm_forest.build(OLD, schedule=tvm_forest.new_schedule(OLD))
    wanted = predictor.predict(ROWS)
    with pytest.raises(ScheduleError, match="made for 4 trees"):
        predictor.update(NEW)
    assert equal(predictor.predict(ROWS), wanted)
    other = drawn_forest(4, 3, base=[0.3, 0.2], link="softmax", seed=9)
    predictor.update(other)
    assert equal(predictor.predict_margin(ROWS), other.predict_reference(ROWS))


@pytest.mark.slow
def test_a_predictor_from_a_file_or_pickle_chooses_default_schedules_anew() -> None:
    # In float64, where default schedules compile four times as fast.
    old, new = (drawn_forest(n, 4, base=[0.1, 0.2], seed=n, dtype="float64") for n in (4, 6))
    predictor = pickle.loads(pickle.dumps(tvm_forest.build(old, n_jobs=1)))
    predictor.update(new)
    assert predictor.schedules == tvm_forest.default_schedules(new)
    assert equal(predictor.predict_margin(ROWS), new.predict_reference(ROWS))
    again = pickle.loads(pickle.dumps(predictor))
    assert (again.signature, again.n_jobs) == (new.signature, 1)
    own = pickle.loads(pickle.dumps(tvm_forest.build(OLD, schedule=tvm_forest.new_schedule(OLD))))
    with pytest.raises(ScheduleError, match="made for 4 trees"):
        own.update(NEW)


def train_on_colors(names: list[str], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"color": pd.Categorical(rng.choice(names, 300)), "x": rng.normal(size=300)}
    )
    labels = (frame["color"] == names[-1]) ^ (frame["x"] > 0)
    return xgboost.XGBClassifier(
        n_estimators=4, max_depth=3, enable_categorical=True, n_jobs=1
    ).fit(frame, labels)


def test_unseen_categories_stay_refused_and_new_ones_may_follow() -> None:
    predictor = build(train_on_colors(["blue", "green"]), refuse_unseen=True)
    rows = pd.DataFrame({"color": pd.Categorical(["red"]), "x": [0.5]})
    with pytest.raises(InputError, match="red"):
        predictor.predict(rows)
    predictor.update(train_on_colors(["blue", "green"], seed=1))
    with pytest.raises(InputError, match="red"):
        predictor.predict(rows)
    model = train_on_colors(["blue", "green", "red"], seed=2)
    predictor.update(model)
    assert np.array_equal(predictor.predict_proba(rows), build(model).predict_proba(rows))


# -- leaves alone ---------------------------------------------------------------------------------


def test_leaves_that_are_refreshed_keep_the_code() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3)).astype(np.float32)
    data = [xgboost.DMatrix(rows, rows[:, k] > 0) for k in (0, 1)]
    options = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "verbosity": 0}
    first = xgboost.train(options, data[0], 4)
    predictor = build(first)
    library = predictor.library
    refresh = {**options, "process_type": "update", "updater": "refresh", "refresh_leaf": True}
    second = xgboost.train(refresh, data[1], 4, xgb_model=first.copy())
    predictor.update(second)
    wanted = second.predict(xgboost.DMatrix(rows), output_margin=True)
    assert predictor.library is library
    assert equal(predictor.predict_margin(rows), wanted)
    assert equal(predictor.predict_contributions(rows), build(second).predict_contributions(rows))


def test_leaves_that_are_fitted_again_keep_the_code() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3))
    options = {"max_depth": 3, "num_threads": 1, "verbose": -1, "min_data_in_leaf": 2}
    first = lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0]), 4)
    predictor = build(first)
    library = predictor.library
    second = first.refit(rows, rows[:, 1])
    predictor.update(second)
    assert predictor.library is library
    assert equal(predictor.predict_margin(rows), second.predict(rows, raw_score=True))


# -- another interface ----------------------------------------------------------------------------

NAMED = replace(OLD, feature_names=("a", "b", "c", "d"))
OTHERS: dict[str, Any] = {
    "number of columns": drawn_forest(4, 4, n_features=5, base=[0.1, 0.2], link="softmax"),
    "names of columns": replace(OLD, feature_names=("a", "b", "d", "c")),
    "number of outputs": drawn_forest(6, 4, base=[0.1, 0.2, 0.3], link="softmax"),
    "link from margins to values": replace(OLD, link="plain_softmax"),
    "dtype of rows": drawn_forest(4, 4, base=[0.1, 0.2], link="softmax", dtype="float64"),
    "labels": replace(OLD, labels=np.array(["no", "yes"]), label_rule="argmax_margin"),
    "number that means missing": replace(OLD, missing=-999.0),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_model_with_another_interface_is_refused_by_name(what: str) -> None:
    other = OTHERS[what]
    known = NAMED if what == "names of columns" else OLD
    predictor = build(known)
    with pytest.raises(InputError, match=f"update: argument 'model': its {what}"):
        predictor.update(other)
    assert predictor.signature == known.signature


@pytest.mark.parametrize("names", [["green", "blue"], ["blue"], ["azure", "blue", "green"]])
def test_categories_that_are_numbered_otherwise_are_refused(names: list[str]) -> None:
    predictor = build(train_on_colors(["blue", "green"]))
    with pytest.raises(InputError, match="the categories of column 0"):
        predictor.update(train_on_colors(names) if names[0] != "green" else reversed_colors())


def reversed_colors() -> Any:
    rng = np.random.default_rng(3)
    colors = pd.Categorical(rng.choice(["blue", "green"], 300), categories=["green", "blue"])
    frame = pd.DataFrame({"color": colors, "x": rng.normal(size=300)})
    model = xgboost.XGBClassifier(n_estimators=4, enable_categorical=True, n_jobs=1)
    return model.fit(frame, frame["x"] > 0)


def test_what_is_no_model_leaves_the_old_one() -> None:
    predictor = build(OLD)
    with pytest.raises(tvm_forest.ModelFormatError):
        predictor.update(b"no model")
    assert predictor.signature == OLD.signature
