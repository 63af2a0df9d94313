"""Quantile forests: the bits of quantile-forest, and of plain programs where it has none."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

import tvm_forest
from tvm_forest import cli, clusters, streams
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.quantiles import estimates
from tvm_forest.quantiles.predictor import QuantilePredictor
from tvm_forest.schedule_prims import Schedule
from tvm_forest.system import archive

quantile_forest = pytest.importorskip("quantile_forest")
from quantile_models import ARGUMENTS, MANY, MODELS, data, hard, one  # noqa: E402

pytestmark = pytest.mark.usefixtures("kept_code")


def sparse(start: Schedule) -> Schedule:
    """The plainest schedule of deep trees."""
    return start.represent_as("sparse")


def build(model: Any, **options: Any) -> QuantilePredictor:
    predictor = tvm_forest.build(model, schedule=sparse, **options)
    assert isinstance(predictor, QuantilePredictor)
    return predictor


def grow(rows: int = 200, targets: int = 1, **options: Any) -> tuple[Any, Any, Any]:
    """Return a random forest, its rows and their targets."""
    x, y = data(rows, targets)
    given = {"n_estimators": 9, "max_depth": 5, "random_state": 0, **options}
    return RandomForestRegressor(**given).fit(x, y), x, y


def of_forest(**options: Any) -> tuple[QuantilePredictor, Any, Any]:
    model, x, y = grow(**options)
    return tvm_forest.build_quantiles(model, x, y, schedule=sparse), x, y


def list_samples(predictor: QuantilePredictor, row: Any, output: int = 0) -> Any:
    """Return the targets of all samples of a row, by the plainest program."""
    samples, found = predictor.samples, []
    leaves = predictor.apply(row[None])[0].astype(np.int64)
    for offset, leaf in zip(samples.offsets, leaves, strict=True):
        begin, end = samples.starts[offset + leaf : offset + leaf + 2]
        found.extend(samples.values[output][samples.ranks[output][begin:end]])
    return np.sort(found)


ALIKE = {"whole_leaves", "shallow", "stumps", "few_per_leaf", "no_bootstrap", "one_tree"}
ALIKE |= {"two_trees", "ties_single", "weighed_single", "monotonic", "extra_whole"}
ALIKE |= {"many_rows_single"}
"""Models of each of whose options another one is a case."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.long] * (x in ALIKE)) for x in MODELS]
)
def test_predictions_are_those_of_the_library(name: str) -> None:
    model = MODELS[name]()
    predictor, rows = build(model), hard(model)
    for arguments in ARGUMENTS:
        found, theirs = predictor.predict(rows, **arguments), model.predict(rows, **arguments)
        assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype), arguments
        assert np.array_equal(found, theirs), arguments
    assert np.array_equal(predictor.apply(rows), model.apply(rows))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_drawn_models_are_equal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = {
        "n_estimators": int(rng.integers(1, 60)),
        "max_samples_leaf": [None, None, 1, 3, 0.05][rng.integers(5)],
        "max_depth": [None, 2, 6, 12][rng.integers(4)],
        "min_samples_leaf": int(rng.integers(1, 12)),
        "max_features": [1.0, "sqrt", 1][rng.integers(3)],
        "bootstrap": bool(rng.integers(2)),
    }
    shape = {"rows": int(rng.integers(2, 900)), "targets": int(rng.integers(1, 4))}
    model = one(["forest", "extra"][seed % 2], ties=bool(rng.integers(2)), **shape, **options)()
    predictor, rows = build(model), data(300)[0]
    quantiles = [*rng.random(5), *MANY]
    for arguments in (*ARGUMENTS, {"quantiles": quantiles}):
        assert np.array_equal(
            predictor.predict(rows, **arguments), model.predict(rows, **arguments)
        )


def test_a_forest_with_the_rows_that_trees_drew_is_that_of_the_library() -> None:
    options = {"n_estimators": 8, "min_samples_leaf": 4, "random_state": 3}
    x, y = data(300, 2)
    theirs = quantile_forest.RandomForestQuantileRegressor(**options, max_samples_leaf=None)
    theirs.fit(x, y)
    forest = RandomForestRegressor(**options).fit(x, y)
    found = tvm_forest.build_quantiles(forest, x, y, in_bag=True, schedule=sparse)
    for quantiles in ([0.1, 0.5, 0.9], "mean"):
        assert np.array_equal(found.predict(x, quantiles=quantiles), theirs.predict(x, quantiles))
    extra = ExtraTreesRegressor(**options).fit(x, y)  # which draws nothing
    both = [tvm_forest.build_quantiles(extra, x, y, in_bag=z, schedule=sparse) for z in (0, 1)]
    assert np.array_equal(both[0].predict(x), both[1].predict(x))


def test_all_rows_of_the_training_count_once() -> None:
    predictor, x, _ = of_forest()
    found = predictor.predict_quantiles(x[:40], [0.0, 0.3, 1.0], weighted_quantile=False)
    theirs = [np.quantile(list_samples(predictor, row), [0.0, 0.3, 1.0]) for row in x[:40]]
    np.testing.assert_allclose(found, theirs, rtol=1e-14)
    assert predictor.samples.sizes.sum() == 9 * len(x)


def test_other_rows_than_those_of_the_training_may_leave_leaves_empty() -> None:
    model, x, y = grow()
    predictor = tvm_forest.build_quantiles(model, x[:1], y[:1], schedule=sparse)
    found = predictor.predict_quantiles(x, [0.1, 0.9])
    reached = (model.apply(x) == model.apply(x[:1])).any(axis=1)
    assert 1 < reached.sum() < len(x)
    theirs = np.where(reached, y[0], np.nan)
    assert np.array_equal(found, np.c_[theirs, theirs], equal_nan=True)
    for name in ("aggregate_leaves_first", "weighted_quantile", "weighted_leaves"):
        options = {name: name == "weighted_leaves"}
        for quantiles in ("mean", 0.3):
            found = predictor.predict_quantiles(x, quantiles, **options)
            np.testing.assert_allclose(found, theirs, rtol=1e-15)
    assert np.array_equal(predictor.crps(x, y), np.abs(theirs - y), equal_nan=True)


def test_leaves_of_any_model_have_samples() -> None:
    x, y = data(200)
    booster = xgb.XGBRFRegressor(n_estimators=5, max_depth=4).fit(x, y)
    predictor = tvm_forest.build_quantiles(booster, x, y, schedule=lambda start: start)
    found = predictor.predict_quantiles(x[:30], 0.25, weighted_quantile=False)
    theirs = [np.quantile(list_samples(predictor, row), 0.25) for row in x[:30]]
    np.testing.assert_allclose(found, theirs, rtol=1e-14)


def test_more_training_rows_than_two_bytes_count() -> None:
    x, y = data(70_000)
    forest = RandomForestRegressor(2, max_depth=2, random_state=0).fit(x, y)
    predictor = tvm_forest.build_quantiles(forest, x, y, schedule=sparse)
    assert predictor.samples.ranks.dtype == np.int32
    found = predictor.predict_quantiles(x[:3], [0.2, 0.999], weighted_quantile=False)
    theirs = [np.quantile(list_samples(predictor, row), [0.2, 0.999]) for row in x[:3]]
    np.testing.assert_allclose(found, theirs, rtol=1e-14)


@pytest.mark.parametrize("n_jobs", [1, 3, -1])
def test_threads_and_parts_of_a_batch_change_no_bit(
    n_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, x, y = of_forest(targets=2)
    whole = predictor.predict_quantiles(x, [0.1, 0.5], n_jobs=1)
    scores, near = predictor.crps(x, y, n_jobs=1), predictor.proximity(x, n_jobs=1)
    for module in ("estimates", "predictor"):
        monkeypatch.setattr(sys.modules[f"tvm_forest.quantiles.{module}"], "MAX_NUMBERS", 700)
    assert np.array_equal(whole, predictor.predict_quantiles(x, [0.1, 0.5], n_jobs=n_jobs))
    assert np.array_equal(scores, predictor.crps(x, y, n_jobs=n_jobs))
    assert np.array_equal(near, predictor.proximity(x, n_jobs=n_jobs))
    predictor.n_jobs = n_jobs
    means = predictor.predict_quantiles(x, "mean", aggregate_leaves_first=False)
    monkeypatch.undo()
    assert np.array_equal(
        means, predictor.predict_quantiles(x, "mean", aggregate_leaves_first=False)
    )


def test_intervals_are_quantiles_on_either_side() -> None:
    predictor, x, _ = of_forest(targets=2)
    found = predictor.predict_interval(x, level=0.8)
    assert found.shape == (len(x), 2, 2)
    np.testing.assert_allclose(found, predictor.predict_quantiles(x, [0.1, 0.9]), rtol=1e-12)


def test_scores_are_those_of_pairs_of_samples() -> None:
    """The score is E|X - y| - E|X - X'| / 2 for two samples X and X' (Gneiting and Raftery)."""
    predictor, x, y = of_forest()
    observed = np.concatenate([y[:20], y[20:25] + 100, y[25:30] - 100])
    found = predictor.crps(x[:30], observed)
    for row, seen, score in zip(x, observed, found, strict=False):
        samples = list_samples(predictor, row)
        apart = np.abs(samples[:, None] - samples).mean() / 2
        assert abs(np.abs(samples - seen).mean() - apart - score) <= 1e-12 * 100


def test_proximities_are_those_of_the_library() -> None:
    for name in ("whole_leaves", "default", "two_targets", "few_per_leaf"):
        model = MODELS[name]()
        predictor, rows = build(model), hard(model)[:20]
        near, theirs = predictor.proximity(rows), model.proximity_counts(rows)
        assert [
            dict(zip(*(x.tolist() for x in (at, row[at])), strict=True))
            for row in near
            for at in [np.flatnonzero(row)]
        ] == [dict(pairs) for pairs in theirs]
        found = predictor.nearest_rows(rows, k=7)
        order = np.argsort(-near, axis=1, kind="stable")[:, :7]
        counts = np.take_along_axis(near, order, axis=1)
        assert np.array_equal(found.counts, counts)
        assert np.array_equal(found.rows, np.where(counts > 0, order, -1))


def test_files_pickles_and_copies_keep_samples(tmp_path: Path) -> None:
    model, x, y = grow()
    predictor = tvm_forest.build_quantiles(
        model, x, y, schedule=sparse, default_quantiles=(0.2, 0.7), n_jobs=1
    )
    wanted = predictor.predict(x)
    assert wanted.shape == (len(x), 2)
    predictor.save(tmp_path / "model.tvmf")
    copies = [
        tvm_forest.load_predictor(tmp_path / "model.tvmf"),
        tvm_forest.load_predictor((tmp_path / "model.tvmf").read_bytes(), model),
        tvm_forest.load_predictor(tmp_path / "model.tvmf", recompile=True),
        pickle.loads(pickle.dumps(predictor)),
        copy.deepcopy(predictor),
    ]
    for each in copies:
        assert isinstance(each, QuantilePredictor)
        assert np.array_equal(each.predict(x), wanted)
        assert each.n_jobs == 1
    with pytest.raises(ModelFormatError, match="'signature'"):
        tvm_forest.load_predictor(tmp_path / "model.tvmf", grow(n_estimators=2)[0])


def test_workers_of_clusters_predict_quantiles() -> None:
    predictor, x, _ = of_forest()
    parcel, batch = clusters.ship(predictor), {f"c{i}": column for i, column in enumerate(x.T)}
    for kind, name in (("predict", "prediction"), ("predict_quantiles", "quantile")):
        found = clusters.Score(parcel, columns=[*batch], kind=kind)(batch)
        assert np.array_equal(found[name], predictor.predict(x))


@pytest.mark.parametrize("name", ["starts", "offsets", "ranks", "order", "values"])
def test_samples_that_lead_out_of_arrays_are_refused(name: str, tmp_path: Path) -> None:
    predictor, _, _ = of_forest()
    predictor.save(tmp_path / "model.tvmf")
    manifest, parts = archive.unpack((tmp_path / "model.tvmf").read_bytes(), "test")
    wrong = np.array(parts[f"{name}.npy"])
    changed = wrong.astype(np.float32) if name == "values" else wrong
    changed.flat[-1] = 30_000
    parts[f"{name}.npy"] = changed
    data = archive.pack(archive.Archive(manifest, parts))
    with pytest.raises(ModelFormatError, match="samples are not those of the forest"):
        tvm_forest.load_predictor(data, recompile=True)


def test_a_saved_one_needs_neither_library_nor_compiler(tmp_path: Path) -> None:
    model = MODELS["whole_leaves"]()
    predictor = build(model)
    predictor.predict(data()[0][:5])
    predictor.save(tmp_path / "model.tvmf")
    np.save(tmp_path / "rows.npy", data()[0][:5])
    code = (
        "import sys, numpy, tvm_forest\n"
        f"predictor = tvm_forest.load_predictor({str(tmp_path / 'model.tvmf')!r})\n"
        f"found = predictor.predict(numpy.load({str(tmp_path / 'rows.npy')!r}))\n"
        f"numpy.save({str(tmp_path / 'found.npy')!r}, found)\n"
        "print(sorted({'quantile_forest', 'sklearn', 'tvm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert np.array_equal(np.load(tmp_path / "found.npy"), model.predict(data()[0][:5]))
    assert done.stdout == "[]\n"


def write_rows(file: Path, rows: Any) -> None:
    file.write_text("\n".join(["a,b,c,d,e", *(",".join(map(repr, x)) for x in rows.tolist())]))


def test_the_command_writes_a_column_for_each_quantile(tmp_path: Path) -> None:
    predictor, x, _ = of_forest()
    model, rows, out = (str(tmp_path / name) for name in ("model.tvmf", "rows.csv", "out.csv"))
    predictor.save(model)
    write_rows(Path(rows), x)
    command = ["predict", model, rows, "-o", out, "--kind", "predict_quantiles"]
    assert cli.main([*command, "--quantiles", "0.1,0.9"]) == 0
    header, *lines = Path(out).read_text().splitlines()
    assert header == "quantile_0.1,quantile_0.9"
    found = np.array([line.split(",") for line in lines], np.float64)
    assert np.array_equal(found, predictor.predict_quantiles(x, [0.1, 0.9]))
    assert cli.main(command) == 0
    assert Path(out).read_text().startswith("quantile\n")


def test_files_name_targets_and_quantiles(tmp_path: Path) -> None:
    predictor, x, _ = of_forest(targets=2)
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    write_rows(rows, x)
    asked: dict[str, Any] = {"kind": "predict_quantiles"}
    streams.predict_file(predictor, rows, out, quantiles=[0.25, 0.5], **asked)
    assert out.read_text().startswith("quantile_0_0.25,quantile_0_0.5,quantile_1_0.25,")
    streams.predict_file(predictor, rows, out, quantiles=[0.5], **asked)
    assert out.read_text().startswith("quantile_0,quantile_1\n")
    for wrong in ({"kind": "predict", "quantiles": [0.5]}, {**asked, "quantiles": [0.5, 0.5]}):
        with pytest.raises(InputError, match="give each once"):
            streams.predict_file(predictor, rows, out, **wrong)
    plain = tvm_forest.build(grow()[0], schedule=sparse)
    with pytest.raises(UnsupportedModel, match=r"give them to tvm_forest\.build_quantiles"):
        streams.predict_file(plain, rows, out, **asked)


def test_averages_of_leaves_are_still_there() -> None:
    model, x, y = grow()
    predictor = tvm_forest.build_quantiles(model, x, y, schedule=sparse)
    assert np.array_equal(predictor.predict_margin(x), model.predict(x))
    parts = predictor.predict_contributions(x[:5]).sum(axis=1)
    np.testing.assert_allclose(parts, model.predict(x[:5]), rtol=1e-12)
    assert repr(predictor).startswith("<Predictor of scikit-learn RandomForestRegressor: 9 trees")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantiles": 1.5}, "expected numbers from 0 to 1"),
        ({"quantiles": []}, "expected numbers from 0 to 1"),
        ({"quantiles": "median"}, "expected numbers from 0 to 1"),
        ({"quantiles": [[0.5]]}, "expected numbers from 0 to 1"),
        ({"quantiles": [float("nan")]}, "expected numbers from 0 to 1"),
        ({"interpolation": "hazen"}, "linear, lower, higher, midpoint, nearest"),
        ({"quantile": 0.5}, "there is no such argument"),
        ({"n_jobs": 0}, "no number of threads"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, Any], message: str) -> None:
    predictor, x, _ = of_forest()
    with pytest.raises(InputError, match=message):
        predictor.predict(x, **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, x: p.predict(x, oob_score=True), "'oob_score'"),
        (lambda p, x: p.predict(x, indices=[1]), "'indices'"),
        (lambda p, x: p.predict(x, iteration_range=(0, 1)), "'iteration_range'"),
        (lambda p, x: p.predict(x, which=[0]), "'which'"),
        (
            lambda p, x: p.predict(x, weighted_leaves=True, aggregate_leaves_first=False),
            "'weighted_leaves'",
        ),
        (lambda p, x: p.predict_value(x), "use predict"),
        (lambda p, x: p.update(grow()[0]), "update"),
        (lambda p, x: p.update_leaves(np.zeros(3)), "update_leaves"),
        (lambda p, x: p.rounds(0, 1), "rounds"),
        (lambda p, x: p.export_library("model.so"), "export_library"),
    ],
)
def test_what_quantile_forests_lack_is_refused_by_name(call: Any, message: str) -> None:
    predictor, x, _ = of_forest()
    with pytest.raises(UnsupportedModel, match=message):
        call(predictor, x)
    assert predictor.predict(x, oob_score=False, indices=None, duplicates=None).shape == (len(x),)


def test_other_numbers_are_told() -> None:
    predictor, x, y = of_forest()
    for call, message in (
        (lambda: predictor.predict_interval(x, level=1), "between 0 and 1"),
        (lambda: predictor.nearest_rows(x, k=0), "whole number from 1 on"),
        (lambda: predictor.crps(x, y[1:]), "expected finite numbers of shape"),
        (lambda: predictor.crps(x, [None] * len(x)), "expected finite numbers of shape"),
        (lambda: predictor.crps(x, np.c_[y, y]), "2 for each row, and the model has 1"),
        (lambda: tvm_forest.build_quantiles(grow()[0], x[:0], y[:0]), "there are none"),
        (lambda: tvm_forest.build_quantiles(grow()[0], x, y, default_quantiles=2), "from 0 to 1"),
        (lambda: tvm_forest.build_quantiles(grow()[0], x[1:], y[1:], in_bag=True), "199 rows"),
        (
            lambda: tvm_forest.build_quantiles(xgb.XGBRegressor().fit(x, y), x, y, in_bag=True),
            "does not tell which rows",
        ),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_no_rows_give_no_predictions() -> None:
    predictor, x, _ = of_forest()
    assert predictor.predict(x[:0]).shape == (0,)
    assert predictor.predict_quantiles(x[:0], [0.1, 0.9]).shape == (0, 2)
    assert predictor.proximity(x[:0]).shape == (0, len(x))
    assert predictor.nearest_rows(x[:0], k=3).rows.shape == (0, 3)
    assert predictor.crps(x[:0], []).shape == (0,)


class Derived(quantile_forest.RandomForestQuantileRegressor):  # type: ignore[misc]
    """May predict otherwise."""


def test_models_that_cannot_be_built_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = MODELS["default"](), data()
    regressor = quantile_forest.RandomForestQuantileRegressor
    with pytest.raises(UnsupportedModel, match="give it to tvm_forest.build"):
        tvm_forest.load(model)
    with pytest.raises(ModelFormatError, match="the estimator is not fitted"):
        tvm_forest.build(regressor())
    with monkeypatch.context() as patch, pytest.raises(UnsupportedModel, match="1.3.12 predicts"):
        patch.setattr(quantile_forest, "__version__", "1.3.12")
        tvm_forest.build(model)
    with pytest.raises(UnsupportedModel, match="may predict otherwise"):
        tvm_forest.build(Derived(2).fit(x, y))
    with pytest.raises(UnsupportedModel, match="'max_samples_leaf': 1.0"):
        tvm_forest.build(regressor(2, max_samples_leaf=1.0).fit(x, y))
    with pytest.raises(UnsupportedModel, match="argument 'wait'"):
        tvm_forest.build(model, wait=False)
    with pytest.raises(UnsupportedModel, match="argument 'target'"):
        tvm_forest.build(model, "simt")
    with pytest.raises(UnsupportedModel, match="monotonic constraints"):
        build(MODELS["monotonic"]()).proximity(x)
    with pytest.raises(UnsupportedModel, match="give it to tvm_forest.build"):
        tvm_forest.accelerate(model, strict=True)


def test_asked_is_read_as_the_library_reads_it() -> None:
    flags = ("linear", True, False, True)
    for mean in (None, "mean", ["mean"]):
        assert estimates.read_asked("predict", mean, *flags).quantiles is None
    for one_of_them in (0.5, [0.5], (0.5,), np.array([0.5])):
        (found,) = estimates.read_asked("predict", one_of_them, *flags).quantiles or ()
        assert found == 0.5
