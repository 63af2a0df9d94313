"""`verify` finds every difference, says where it is, and the exit status says so too."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightgbm_models
import models
import onnx_models
import sklearn_models
import tvm_forest
import xgboost_models
from tvm_forest.cli import main
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load
from tvm_forest.frontends.library_predictions import predict_by_library
from tvm_forest.verification import ulps, verify


@lru_cache
def model() -> Any:
    return models.MODELS["logistic"]()


def with_leaf(tree: int) -> Any:
    """The forest of the model, one leaf of a tree being one float larger."""
    forest = load(model())
    leaves = np.flatnonzero(forest.is_leaf & (forest.node_tree == tree))
    values = forest.leaf_value.copy()
    values[leaves] = np.nextafter(values[leaves], np.float32(np.inf))
    return replace(forest, leaf_value=values)


def with_threshold(tree: int) -> Any:
    """The forest of the model, the root of a tree sending all rows but NaN to the left."""
    forest = load(model())
    threshold = forest.threshold.copy()
    threshold[forest.tree_offset[tree]] = np.inf
    return replace(forest, threshold=threshold)


def compared(forest: Any, rows: Any = None, of: Any = None) -> tvm_forest.Report:
    """Compare code compiled from one forest with a model."""
    of = model() if of is None else of
    return verify(of, load(of), tvm_forest.build(forest, schedule=lambda start: start), rows, 200)


def test_neighbours_are_one_ulp_apart() -> None:
    for dtype in (np.float32, np.float64):
        some = np.array([0.0, 1.0, -1.0, 1e30, -np.finfo(dtype).tiny], dtype)
        assert ulps(some, some).tolist() == [0] * 5
        assert ulps(some, np.nextafter(some, dtype(np.inf))).tolist() == [1] * 5
        assert ulps(np.array([-0.0], dtype), np.array([0.0], dtype)).tolist() == [1]
        assert ulps(np.array([np.nan], dtype), np.array([-np.nan], dtype)).tolist() == [0]
        assert ulps(np.array([np.nan], dtype), np.array([0], dtype))[0] > 1 << 20


@pytest.mark.slow
def test_an_equal_model_is_told_in_four_lines() -> None:
    rows = models.data()[0][:50]
    report = tvm_forest.verify(model(), rows, n_rows=100, schedule=lambda start: start)
    assert report.ok
    assert report.rows == {"given": 50, "typical": 25, "hard": 50, "hard, finite": 25}
    for found in (report.reference, report.library):
        assert (found.n_rows, found.rows_equal, found.margin_ulp) == (150, 150, 0)
        assert found.value_ulp <= found.value_bound
    assert (report.reference.value_bound, report.library.value_bound) == (8, 4)
    lines = str(report).splitlines()
    assert lines[0] == "xgboost binary:logistic: equal" and len(lines) == 4
    assert lines[3].startswith(f"xgboost {sys.modules['xgboost'].__version__}: margins equal on")


@pytest.mark.slow
def test_a_leaf_of_another_value_is_found_by_row_and_tree() -> None:
    report = compared(with_leaf(5))
    assert not report.ok
    for found in (report.reference, report.library):
        assert found.rows_equal < found.n_rows and found.margin_ulp >= 1
        assert found.first_tree == 5
    assert "DIFFERENT" in str(report) and "first in tree 5" in str(report)


@pytest.mark.slow
def test_another_leaf_is_found_by_row_and_tree() -> None:
    forest, rows = with_threshold(3), models.data()[0][:100]
    report = compared(forest, rows)
    wrong = forest.predict_reference(rows) != load(model()).predict_reference(rows)
    assert report.library.first_row == report.reference.first_row == np.argmax(wrong[:, 0])
    assert report.library.first_tree == report.reference.first_tree == 3


@pytest.mark.slow
def test_other_labels_are_found() -> None:
    trained = lightgbm_models.MODELS["estimator_classifier_words"]()
    forest = load(trained)
    report = compared(replace(forest, labels=forest.labels[::-1]), of=trained)
    assert not report.ok and not report.library.ok
    assert report.library.labels_equal == 0
    assert report.library.rows_equal == report.library.n_rows


@pytest.mark.slow
def test_another_link_is_found() -> None:
    trained = lightgbm_models.MODELS["binary"]()
    report = compared(replace(load(trained), link_scale=1.001), of=trained)
    assert not report.ok
    assert report.library.value_ulp > report.library.value_bound
    assert report.library.rows_equal == report.library.n_rows


@pytest.mark.slow
def test_rows_that_the_model_refuses_are_left_out_and_counted() -> None:
    trained = sklearn_models.MODELS["gb"]()
    rows = sklearn_models.data()[0][:9].copy()
    rows[2, 1], rows[4, 3] = np.nan, np.inf
    report = tvm_forest.verify(trained, rows, n_rows=0, schedule=lambda start: start)
    assert report.ok and report.refused == 2 and report.library.n_rows == 7
    assert "2 left out, for the model refuses them" in str(report)


@pytest.mark.skipif(not models.DART_BY_KIND, reason="XGBoost 3.3 and newer refuses no infinities")
def test_rows_that_only_the_library_refuses_are_left_out_of_its_part() -> None:
    trained = models.MODELS["dart"]()
    forest = load(trained)
    rows = hard_rows(forest, 200)
    answers = predict_by_library(trained, forest, rows)
    assert np.array_equal(answers.row_mask, ~np.isinf(rows).any(axis=1))
    assert 0 < len(answers.margin) == answers.row_mask.sum() < 200
    assert "infinities" in answers.note


@pytest.mark.parametrize("of", [lightgbm_models, sklearn_models], ids=["lightgbm", "sklearn"])
def test_every_library_says_what_the_reference_walk_says(of: Any) -> None:
    trained = next(iter(of.MODELS.values()))()
    forest = load(trained)
    rows = np.nan_to_num(hard_rows(forest, 100), posinf=9, neginf=-9)
    answers = predict_by_library(trained, forest, rows)
    assert np.array_equal(answers.margin, forest.predict_reference(rows))
    assert np.array_equal(answers.leaves(rows[7]), forest.predict_reference(rows, "apply")[7])


def test_onnxruntime_is_not_asked_where_it_is_wrong() -> None:
    trees = onnx_models.drawn_trees(3, 9, ["LEQ", "NEQ"])
    trained = onnx_models.regressor(trees)
    forest = load(trained)
    rows = hard_rows(forest, 100)
    answers = predict_by_library(trained, forest, rows)
    assert np.array_equal(answers.row_mask, ~np.isnan(rows).any(axis=1))
    assert np.array_equal(answers.margin, forest.predict_reference(rows[answers.row_mask]))


def test_a_library_that_is_missing_or_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, rows = load(model()), models.data()[0]
    assert (
        predict_by_library([forest], forest, rows)
        == "a list of models is no library's; verify each of them"
    )
    assert (
        predict_by_library(forest, forest, rows) == "the model is a Forest, which no library knows"
    )
    assert predict_by_library("no/such/file", forest, rows).startswith("xgboost fails: ")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert predict_by_library(model(), forest, rows) == "the package 'xgboost' is not installed"


@pytest.mark.parametrize("n_rows", [-1, 1.5, True])
def test_a_wrong_number_of_rows_is_refused(n_rows: Any) -> None:
    with pytest.raises(InputError, match="verify: argument 'n_rows': expected 0 or more"):
        tvm_forest.verify(model(), n_rows=n_rows)


@pytest.mark.slow
def test_the_exit_status_says_whether_all_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = str(tmp_path / "model.json"), str(tmp_path / "rows.npy")
    small = models.train("binary:logistic", models.labels(2), rounds=1, max_depth=1)
    small.save_model(path)
    np.save(rows, models.data()[0][:20])
    assert main(["verify", path, rows, "--n-rows", "40"]) == 0
    assert "rows: 20 given, 10 typical, 20 hard, 10 hard, finite" in capsys.readouterr().out
    assert main(["verify", path, "rows.txt"]) == 2
    assert "verify: rows file 'rows.txt'" in capsys.readouterr().err
    model().save_model(path)
    other = tvm_forest.build(with_leaf(0), schedule=lambda start: start)
    monkeypatch.setattr("tvm_forest.api.build", lambda *_: other)
    assert main(["verify", path, "--n-rows", "40"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


FEW = {
    "lightgbm": (lightgbm_models.MODELS, ("categories", "random_forest_classes", "ova")),
    "scikit-learn": (sklearn_models.MODELS, ("rf classes", "hist categories", "isolation")),
    "xgboost": (xgboost_models.KINDS, ("vectors", "estimator_dart_classifier", "categories_dart")),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", FEW)
@pytest.mark.long
def test_models_of_every_library_are_equal(library: str) -> None:
    table, names = FEW[library]
    for name in names:
        report = tvm_forest.verify(table[name](), n_rows=100, schedule=lambda start: start)
        assert report.ok, f"{name}: {report}"
        assert not isinstance(report.library, str) and report.library.n_rows >= 50, name


@pytest.mark.slow
def test_an_onnx_classifier_is_equal() -> None:
    trees = onnx_models.drawn_trees(3, 9, ["LEQ"])
    trained = onnx_models.classifier(trees, [5, 7], post_transform="LOGISTIC")
    report = tvm_forest.verify(trained, n_rows=100, schedule=lambda start: start)
    assert report.ok and report.library.labels_equal == 100, str(report)
