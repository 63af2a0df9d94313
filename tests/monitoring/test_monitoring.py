"""Monitors: the predictor's bits, and the counts of a plain loop over the observed rows."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scipy import sparse
from scipy.spatial.distance import jensenshannon
from sklearn.ensemble import RandomForestClassifier

import catboost_models
import lightgbm_models
import tvm_forest
from forests import drawn_forest
from served import get, infer, serve, to_json, train
from tvm_forest import InputError, Monitor
from tvm_forest.cli import main
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.profile import Profile
from tvm_forest.serving.models import Model

FOREST = drawn_forest(6, 4, seed=2, base=[0.5, 0.25])
TRAINING, LATER = hard_rows(FOREST, 300, seed=1), hard_rows(FOREST, 200, seed=2) + np.float32(0.5)
ALL: dict[str, Any] = {"every": 1, "share": 1}


def build(model: Any, **options: Any) -> Any:
    return tvm_forest.build(model, schedule=lambda start: start, **options)


def hits_of(forest: Forest, rows: Any) -> list[Any]:
    """Count leaf by leaf, by the reference walk: for each tree, rows by the number of a leaf."""
    ids = forest.predict_reference(rows, "apply")
    return [
        [int(np.sum(ids[:, t] == x)) for x in forest.node_id[nodes][forest.is_leaf[nodes]]]
        for t, nodes in enumerate(map(np.arange, forest.tree_offset[:-1], forest.tree_offset[1:]))
    ]


def index_of(observed: list[int], known: list[int]) -> float:
    """The population stability index of the page, term by term."""
    counts = [np.array(x) + 0.5 for x in (observed, known)]
    p, q = (x / x.sum() for x in counts)
    return float(np.sum((p - q) * np.log(p / q)))


def profile_of(forest: Forest) -> Profile:
    """What `tvm_forest.profile` returns, which compiles the default schedules."""
    return Profile.of_leaves(forest, forest.predict_reference(TRAINING, "apply"))


@cache
def shared() -> Any:
    """A predictor that no test changes."""
    return build(FOREST)


# -- what is counted ------------------------------------------------------------------------------


def test_drift_is_that_of_a_plain_loop() -> None:
    monitor = Monitor(shared(), TRAINING, **ALL)
    for part in (LATER[:1], LATER[1:40], LATER[40:]):
        assert np.array_equal(monitor.predict(part), monitor.predictor.predict(part))
    report, pairs = (
        monitor.report(),
        list(zip(hits_of(FOREST, LATER), hits_of(FOREST, TRAINING), strict=True)),
    )
    assert (report.rows, report.reference_rows) == (200, 300)
    assert np.allclose(report.psi, [index_of(*pair) for pair in pairs])
    assert np.allclose(report.distance, [jensenshannon(*pair, base=2) for pair in pairs])
    depths = FOREST.node_depth[FOREST.reference_nodes(LATER)]
    assert report.hops == pytest.approx(depths.mean())
    assert np.allclose(report.missing, np.isnan(LATER).mean(axis=0))
    assert np.allclose(report.reference_missing, np.isnan(TRAINING).mean(axis=0))
    assert report.columns == ("0", "1", "2", "3") and not report.unseen.any()


def test_equal_rows_do_not_drift_and_no_rows_are_no_answer() -> None:
    monitor = Monitor(shared(), TRAINING, **ALL)
    assert np.isnan(monitor.report().psi).all() and np.isnan(monitor.report().hops)
    monitor.predict(TRAINING)
    report = monitor.report()
    assert report.mean_psi == report.mean_distance == 0
    assert report.hops == report.reference_hops
    assert 0 < report.expected_psi.max() < 1


@pytest.mark.parametrize("method", ["predict_proba", "predict_margin", "predict_class", "observe"])
@pytest.mark.cases(2)
def test_rows_of_other_methods_are_observed_with_their_bits(method: str) -> None:
    forest = replace(FOREST, link="softmax")
    monitor = Monitor(build(forest), TRAINING, **ALL)
    found = getattr(monitor, method)(LATER)
    if method != "observe":
        assert np.array_equal(found, getattr(monitor.predictor, method)(LATER))
    assert monitor.report().rows == 200
    assert monitor.apply(LATER).shape == (200, 6) and monitor.report().rows == 200


def test_a_profile_stands_for_its_rows_whether_given_or_built_with() -> None:
    counted = profile_of(FOREST)
    unnamed = replace(counted, signature=None)
    monitors = [
        Monitor(shared(), TRAINING, **ALL),
        Monitor(shared(), counted, **ALL),
        Monitor(shared(), unnamed, **ALL),
        Monitor(build(FOREST, profile=counted), **ALL),
    ]
    for monitor in monitors:
        assert np.array_equal(monitor.profile.hits, counted.hits)
        monitor.observe(LATER)
        assert np.array_equal(monitor.report().psi, monitors[0].report().psi)
    assert monitors[1].report().reference_missing is None


def test_trees_in_another_order_than_the_source_are_compared_tree_by_tree() -> None:
    forest = tvm_forest.load(lightgbm_models.MODELS["categories_and_holes"]())
    rows = hard_rows(forest, 200, seed=3)
    forest = replace(forest, tree_id=forest.tree_id[::-1].copy())
    monitor = Monitor(build(forest), rows, **ALL)
    monitor.predict(rows[:50])
    source = np.argsort(forest.tree_id)
    pairs = list(zip(hits_of(forest, rows[:50]), hits_of(forest, rows), strict=True))
    assert np.allclose(monitor.report().psi, [index_of(*pairs[t]) for t in source])


def test_unseen_categories_are_counted_by_column() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "color": rng.choice(["red", "blue"], 300)})
    frame["color"] = frame["color"].astype("category")
    data = lightgbm.Dataset(frame, (frame["color"] == "red") + frame["x"])
    model = lightgbm.train({"num_threads": 1, "verbose": -1, "num_leaves": 5}, data, 4)
    monitor = Monitor(build(model), frame, **ALL)
    odd = pd.DataFrame(
        {"x": [0.5] * 5, "color": pd.Categorical(["red", "green", "blue", "?", None])}
    )
    assert np.array_equal(monitor.predict(odd), model.predict(odd))
    report = monitor.report()
    assert report.unseen.tolist() == [0, 2] and report.rows == 5
    assert 'tvm_forest_unseen_categories{column="color"} 2.0' in report.to_prometheus()


def test_texts_of_catboost_are_observed() -> None:
    model, rows = catboost_models.MODELS["regressor"](), catboost_models.data()[0]
    monitor = Monitor(build(model), rows, **ALL)
    monitor.predict(rows[:20])
    assert monitor.report().rows == 20


KINDS: dict[str, Any] = {
    "frame": lambda rows: pd.DataFrame(rows),
    "lists": lambda rows: rows.tolist(),
    "sparse": lambda rows: sparse.csr_matrix(rows),
    "float64": lambda rows: rows.astype(np.float64),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cases(2)
def test_rows_of_every_kind_are_observed(kind: str) -> None:
    monitor = Monitor(shared(), TRAINING, **ALL)
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    monitor.predict(KINDS[kind](rows))
    other = Monitor(shared(), TRAINING, **ALL)
    other.predict(rows)
    assert np.array_equal(monitor.report().psi, other.report().psi)
    assert monitor.report().rows == 40


# -- which rows -----------------------------------------------------------------------------------


def test_one_row_of_so_many_is_observed_whatever_the_batches() -> None:
    for size in (1, 7, 500):
        monitor = Monitor(shared(), TRAINING, every=10, share=1)
        for _ in range(2000 // size):
            monitor.observe(np.resize(LATER, (size, 4)))
        assert 140 < monitor.report().rows < 260, size


@pytest.mark.parametrize("method", ["predict", "predict_margin"])
def test_of_calls_of_few_rows_one_of_so_many_is_observed_whole(method: str) -> None:
    for size in (1, 7, 40):
        monitor = Monitor(shared(), TRAINING, every=10, share=1)
        rows = np.resize(LATER, (size, 4))
        for _ in range(4000 // size):
            getattr(monitor, method)(rows)
        observed = monitor.report().rows
        assert 160 < observed < 700, size
        if shared()._small_batches.few.margins(rows) is not None:  # as on CPython
            assert observed % size == 0


def test_time_that_is_over_is_asked_for_after_as_many_calls_again() -> None:
    monitor = Monitor(shared(), TRAINING, every=1, share=1e-6)
    for _ in range(100):
        monitor.predict(LATER[:2])
    assert monitor.report().rows == 2  # of the first call; the next is hours away


def test_observing_waits_until_its_share_of_the_time_is_due() -> None:
    monitor = Monitor(shared(), TRAINING, every=1, share=1e-6)
    for _ in range(50):
        monitor.predict(LATER)
    assert monitor.report().rows <= 64  # a call's at most, and the next is hours away


def test_rows_that_had_to_wait_are_observed_together() -> None:
    monitor = Monitor(shared(), TRAINING, every=100, share=0.5)
    deadline = time.perf_counter() + 60
    while monitor.report().rows < 60 and time.perf_counter() < deadline:
        monitor.observe(LATER)
    assert monitor.report().rows >= 60


def test_a_report_is_of_the_latest_rows() -> None:
    monitor = Monitor(shared(), TRAINING, window=100, **ALL)
    for _ in range(9):
        monitor.observe(LATER[:60])
    assert 100 <= monitor.report().rows <= 240
    for _ in range(4):
        monitor.observe(TRAINING[:300])
    assert monitor.report().mean_psi < 1e-3  # the rows before are forgotten


def test_threads_lose_no_rows_that_are_all_observed() -> None:
    monitor = Monitor(shared(), TRAINING, every=1, share=1)
    wanted = monitor.predictor.predict(LATER)
    found = list[bool]()

    def ask() -> None:
        for _ in range(20):
            found.append(np.array_equal(monitor.predict(LATER), wanted))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(between)
    report = monitor.report()
    assert all(found) and report.rows == 60 * 200
    hits, _, _ = monitor._split(monitor._before + monitor._now)[1:]
    assert hits.sum() == report.rows * FOREST.n_trees


def test_few_rows_have_the_bits_of_the_predictor_whatever_it_is_set_to() -> None:
    predictor, few = build(FOREST), LATER[:3]
    monitor = Monitor(predictor, TRAINING, **ALL)
    for jobs in (None, 1, 2, np.int64(1)):
        predictor.n_jobs = jobs
        for method in ("predict", "predict_margin"):
            for arguments in ((), (1,), (None, (1, 3))):
                found = getattr(monitor, method)(few, *arguments)
                assert found.tobytes() == getattr(predictor, method)(few, *arguments).tobytes()
    predictor.n_jobs = 0
    for method in ("predict", "predict_margin"):
        with pytest.raises(InputError, match="argument 'n_jobs'"):
            getattr(monitor, method)(few)
    assert monitor.report().rows == 4 * 2 * 3 * len(few)


def test_few_rows_have_labels_where_the_model_gives_them() -> None:
    forest = replace(FOREST, labels=np.array(["no", "yes"]), label_rule="argmax_margin")
    monitor = Monitor(build(forest), TRAINING, **ALL)
    found = monitor.predict(LATER[:3])
    assert found.tolist() == monitor.predictor.predict(LATER[:3]).tolist()
    assert set(found.tolist()) <= {"no", "yes"} and monitor.report().rows == 3


def test_probabilities_of_several_targets_are_of_as_many_rows_as_were_given() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    targets = np.stack([rows[:, 0] > 0, np.digitize(rows[:, 1], [0, 1])], axis=1)
    forest = RandomForestClassifier(2, max_depth=2, random_state=0).fit(rows, targets)
    monitor = Monitor(build(forest), rows, **ALL)
    found = monitor.predict_proba(rows)
    assert [x.shape for x in found] == [(60, 2), (60, 3)] and monitor.report().rows == 60


def test_a_monitor_has_what_its_predictor_has() -> None:
    monitor = Monitor(shared(), TRAINING)
    public = [name for name in dir(shared()) if not name.startswith("_")]
    assert not set(public) - set(dir(monitor))
    assert monitor.forest is shared().forest and monitor.n_jobs is None
    assert monitor.rounds(0, 2).forest.n_trees == shared().rounds(0, 2).forest.n_trees


def test_a_monitor_goes_on_with_its_trees_after_an_update() -> None:
    predictor = build(FOREST)
    monitor = Monitor(predictor, TRAINING, **ALL)
    other = drawn_forest(8, 3, seed=9, base=[0.5, 0.25])
    predictor.update(other)
    for rows in (LATER, LATER[:1]):
        assert np.array_equal(monitor.predict(rows), build(other).predict(rows))
    assert len(monitor.report().psi) == FOREST.n_trees


# -- what is refused ------------------------------------------------------------------------------


def test_what_cannot_be_monitored_is_refused() -> None:
    predictor, other = shared(), profile_of(drawn_forest(6, 4, seed=3))
    for arguments, options, message in (
        (("no predictor", TRAINING), {}, "argument 'predictor': expected a Predictor, got str"),
        ((predictor,), {}, "argument 'reference': none"),
        ((predictor, other), {}, "argument 'reference': the profile is of another model"),
        ((predictor, replace(other, signature=None)), {}, "onto: argument 'profile'"),
        ((predictor, TRAINING), {"every": 0}, "argument 'every': expected a whole number"),
        ((predictor, TRAINING), {"window": 2.5}, "argument 'window': expected a whole number"),
        ((predictor, TRAINING), {"share": 1.5}, "argument 'share': expected a number over 0"),
    ):
        with pytest.raises(InputError, match=message):
            Monitor(*arguments, **options)
    with pytest.raises(AttributeError):
        getattr(Monitor(predictor, TRAINING), "nothing_like_it")  # noqa: B009


# -- Prometheus, server, command line -------------------------------------------------------------


def test_the_text_is_read_by_prometheus_whatever_columns_are_called() -> None:
    names = ("a", 'b "quoted" \\ and\nlong', "c", "d")
    monitor = Monitor(build(replace(FOREST, feature_names=names)), TRAINING, **ALL)
    monitor.predict(np.full((8, 4), np.nan, np.float32))
    families = {x.name: x for x in text_string_to_metric_families(monitor.report().to_prometheus())}
    assert families["tvm_forest_observed_rows"].samples[0].value == 8
    missing = families["tvm_forest_missing_share"].samples
    assert {x.labels["column"]: x.value for x in missing} == dict.fromkeys(names, 1.0)


def test_a_server_shows_the_drift_of_a_model_that_was_built_with_a_profile() -> None:
    predictor = build(FOREST, profile=profile_of(FOREST))
    application = serve(predictor, build(FOREST))
    body = to_json(np.zeros((200, 4), np.float32))
    for name in ("m", "m1"):
        assert infer(application, body, path=f"/v2/models/{name}/infer")[0].status_code == 200
    text = get(application, "/metrics").text
    families = {x.name: x for x in text_string_to_metric_families(text)}
    rows = families["tvm_forest_observed_rows"].samples
    assert [(x.labels["model"], x.value) for x in rows] == [("m", 2.0)]  # one in a hundred
    assert families["tvm_forest_drift_psi"].samples[0].value > 0


def test_a_model_of_a_server_observes_clients_alone() -> None:
    model = Model("m", "1", build(FOREST, profile=profile_of(FOREST)))
    assert model.monitor is not None and model.monitor.report().rows == 0
    model.predict("predict", LATER)
    assert model.monitor.report().rows > 0


@pytest.mark.long
def test_compile_keeps_a_profile_for_the_server(tmp_path: Path, capsys: Any) -> None:
    model, rows, profile = tmp_path / "model.json", tmp_path / "rows.npy", tmp_path / "hits.json"
    train().save_model(model)
    np.save(rows, TRAINING[:, :3])
    out = tmp_path / "model.tvmf"
    assert main(["profile", str(model), str(rows), "-o", str(profile)]) == 0
    assert main(["compile", str(model), "--profile", str(profile), "-o", str(out)]) == 0
    assert Monitor(tvm_forest.load_predictor(out)).profile.rows == 300
    assert (
        main(["compile", str(out), "--profile", str(profile), "-o", str(tmp_path / "b.tvmf")]) == 2
    )
    assert "argument '--profile'" in capsys.readouterr().err


class Bare:
    """Rows that only numpy reads, without a length; `fails` to be taken apart."""

    def __init__(self, rows: Any, fails: bool = False) -> None:
        self.rows, self.fails = rows, fails

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.rows, dtype)

    def __getitem__(self, at: Any) -> Any:
        if self.fails:
            raise RuntimeError("not now")
        return self.rows[at]


@pytest.mark.parametrize("fails", [False, True])
def test_rows_that_only_the_predictor_reads_do_no_harm(fails: bool) -> None:
    monitor = Monitor(shared(), TRAINING, **ALL)
    odd = Bare(LATER[:9], fails)
    for method in ("predict", "predict_margin"):
        assert np.array_equal(getattr(monitor, method)(odd), getattr(shared(), method)(odd))
    monitor.predict(LATER[:7])
    assert monitor.report().rows == (7 if fails else 25)
    with pytest.raises(InputError, match="observe: argument 'rows': a Bare has no length"):
        monitor.observe(odd)


def test_one_row_by_name_is_one_row() -> None:
    forest = replace(FOREST, feature_names=tuple("abcd"))
    monitor = Monitor(build(forest), TRAINING, every=4, share=1)
    row = pd.Series(LATER[0], index=list("abcd"))
    for _ in range(400):
        monitor.predict_margin(row)
        monitor.observe(row)
    assert 140 < monitor.report().rows < 260


def test_a_copy_watches_anew() -> None:
    monitor = Monitor(shared(), TRAINING, window=500, **ALL)
    monitor.predict(LATER)
    other = pickle.loads(pickle.dumps(monitor))
    assert other.report().rows == 0
    other.predict(LATER)
    assert other.report().mean_psi == monitor.report().mean_psi


class Named(Monitor):
    """A monitor of another class, which pickle finds by its name."""


def test_a_copy_is_of_the_same_class() -> None:
    assert type(pickle.loads(pickle.dumps(Named(shared(), TRAINING)))) is Named


def test_no_rows_are_no_reference() -> None:
    with pytest.raises(InputError, match="'reference': no rows"):
        Monitor(shared(), TRAINING[:0])
