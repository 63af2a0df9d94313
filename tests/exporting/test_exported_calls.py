"""What the C functions of an exported library mean: rows, threads, labels, names and suffixes."""

from __future__ import annotations

import functools
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingClassifier

import tvm_forest
from exported import Library
from forests import Split, drawn_forest, forest_of
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

SIZES = (0, 1, 7, 130, 1001)
pytestmark = pytest.mark.slow


def built(model: Any) -> Any:
    """Return a predictor that is compiled fast."""
    return tvm_forest.build(model, "llvm", tvm_forest.new_schedule(model))


def export(predictor: Any, folder: Path) -> Library:
    predictor.export_library(folder / "model.so")
    return Library(folder / "model.so", predictor.forest)


def check(predictor: Any, library: Library, rows: Any, n_jobs: int = 1) -> None:
    """Compare margins, values and labels with those of a predictor."""
    forest = predictor.forest
    margin, value = library.predict(rows, n_jobs)
    assert library.code == 0, library.text("error")
    assert margin.tobytes() == predictor.predict_margin(rows).tobytes()
    expected = predictor.predict_proba(rows) if forest.gives_labels else predictor.predict(rows)
    if expected.size == value.size:
        assert value.tobytes() == expected.tobytes()
    else:  # of two classes the library gives the second's
        assert value.ravel().tobytes() == np.ascontiguousarray(expected[:, 1]).tobytes()
    if forest.gives_labels:
        found = library.predict_labels(rows, n_jobs)
        assert library.code == 0, library.text("error")
        assert np.array_equal(found.ravel(), predictor.predict_class(rows).ravel())


@functools.cache
def table() -> tuple[pd.DataFrame, Any]:
    """Return rows with categories, missing values and zeros, and three classes."""
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=(400, 3)).round(1)
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    frame = pd.DataFrame(numbers, columns=["age", "debt", 'a "b"\\?\nü'])
    frame["city"] = pd.Categorical(rng.choice(["Bonn", "Essen", "Ulm", "Jena"], 400))
    return frame, rng.integers(3, size=400)


def odd_codes(forest: Forest, n: int) -> Any:
    """Return hard rows whose category is anything that a number may be."""
    rows = hard_rows(forest, n, seed=n)
    rng = np.random.default_rng(n)
    rows[:, 3] = rng.choice([-2, -1, -0.5, -0.0, 0, 1, 2, 2.5, 3, 4, 9e9, np.nan], n)
    return rows


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_and_categories_of_lightgbm(classes: int, tmp_path: Path) -> None:
    frame, labels = table()
    names = np.array(["no", "yes", "maybe?"])[labels % classes]
    frame = frame.rename(columns={frame.columns[2]: "other"})
    model = lightgbm.LGBMClassifier(n_estimators=8, num_leaves=8, n_jobs=1, verbose=-1)
    predictor = built(model.fit(frame, names))
    library = export(predictor, tmp_path)
    for n in SIZES:
        check(predictor, library, odd_codes(predictor.forest, n))
    assert library.classes() == classes and library.labels() == 1
    known = [library.text("class_name", k) for k in range(classes)]
    assert known == sorted(set(names)) and library.text("class_name", classes) is None
    assert [library.text("feature_name", k) for k in (0, 3, 4, -1)] == ["age", "city", None, None]
    assert library.categories(3) == 0  # the model does not say whose names it holds


def test_categories_of_xgboost(tmp_path: Path) -> None:
    frame, labels = table()
    model = xgboost.XGBClassifier(n_estimators=6, max_depth=4, n_jobs=1, enable_categorical=True)
    predictor = built(model.fit(frame, labels))
    library = export(predictor, tmp_path)
    rows = frame.to_numpy(object)
    rows[:, 3] = frame["city"].cat.codes
    check(predictor, library, rows.astype("f4"))
    margin, _ = library.predict(rows)
    assert margin.tobytes() == model.predict(frame, output_margin=True).tobytes()
    assert library.categories(3) == 4 and library.categories(0) == library.categories(-1) == 0
    cities = [library.text("category_name", 3, code) for code in (0, 1, 2, 3, 4, -1)]
    assert cities == ["Bonn", "Essen", "Jena", "Ulm", None, None]
    assert library.text("category_name", 0, 0) is None
    assert [library.text("feature_name", k) for k in range(4)] == list(frame.columns)


@pytest.mark.parametrize("schedules", ["plain", pytest.param("default", marks=pytest.mark.long)])
def test_categories_that_scikit_learn_does_not_know_are_missing(
    schedules: str, tmp_path: Path
) -> None:
    frame, labels = table()
    given = np.column_stack([frame.iloc[:, :3], frame["city"].cat.codes])
    model = HistGradientBoostingClassifier(max_iter=6, categorical_features=[3])
    model.fit(given[given[:, 3] != 2], labels[given[:, 3] != 2])
    predictor = built(model) if schedules == "plain" else tvm_forest.build(model)
    library = export(predictor, tmp_path)
    assert predictor.forest.known_categories
    for n in SIZES:
        check(predictor, library, odd_codes(predictor.forest, n), n_jobs=2)
    margin, _ = library.predict(given)
    assert margin.tobytes() == model.decision_function(given).tobytes()


@pytest.mark.parametrize("missing", [0.0, -999.0])
def test_missing_of_xgboost(missing: float, tmp_path: Path) -> None:
    frame, labels = table()
    rows = frame.iloc[:, :3].fillna(missing).to_numpy("f4")
    model = xgboost.XGBClassifier(n_estimators=6, max_depth=3, n_jobs=1, missing=missing)
    predictor = built(model.fit(rows, labels))
    library = export(predictor, tmp_path)
    for given in (rows, np.where(rows == missing, np.nan, rows), rows[:7]):
        check(predictor, library, given, n_jobs=2)
    assert np.array_equal(library.predict_labels(rows).ravel(), model.predict(rows))


def test_zeros_that_are_missing_of_lightgbm(tmp_path: Path) -> None:
    frame, labels = table()
    rows = frame.iloc[:, :3].fillna(0).to_numpy()
    data = lightgbm.Dataset(rows, labels)
    fixed = {"zero_as_missing": True, "num_leaves": 8, "verbose": -1, "num_threads": 1}
    model = lightgbm.train(fixed, data, 8)
    predictor = built(model)
    library = export(predictor, tmp_path)
    margin, _ = library.predict(rows)
    assert margin.ravel().tobytes() == model.predict(rows, raw_score=True).tobytes()
    check(predictor, library, hard_rows(predictor.forest, 130))


def test_threads_share_out_rows(tmp_path: Path) -> None:
    forest = drawn_forest(30, 5, seed=4, n_features=5, base=(0.1, 0.2, 0.3), link="softmax")
    schedule = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 16).parallel("b0")
    predictor = tvm_forest.build(forest, schedule=schedule)
    library = export(predictor, tmp_path)
    for n in SIZES:
        rows = hard_rows(forest, n, seed=n)
        alone = library.predict(rows)
        for n_jobs in (2, 3, 64, -1):
            shared = library.predict(rows, n_jobs)
            for a, b in zip(alone, shared, strict=True):
                assert a.tobytes() == b.tobytes(), (n, n_jobs)
    assert alone[0].tobytes() == predictor.predict_margin(rows).tobytes()
    for n_jobs in (0, -2):
        library.predict(rows, n_jobs)
        assert library.code == -1
        assert library.text("error") == "n_jobs is neither positive nor -1"


@pytest.mark.parametrize("rule", ["argmax_margin", "top_margin"])
def test_labels_of_margins_that_are_no_numbers_are_those_of_the_predictor(
    tmp_path: Path, rule: Any
) -> None:
    nan, far = float("nan"), float("inf")
    trees = [Split(0, 0.5, 0.0, nan), Split(1, 0.5, -far, nan), Split(2, 0.5, 1.0, nan)]
    forest = forest_of(trees, base=[0.0] * 3, n_features=3)
    forest = replace(forest, labels=np.arange(3), label_rule=rule, link="softmax")
    predictor = built(forest)
    rows = np.array([[k & 1, k & 2, k & 4] for k in range(8)], np.float32)
    check(predictor, export(predictor, tmp_path), rows)


def test_a_model_without_classes_has_no_labels(tmp_path: Path) -> None:
    library = export(built(drawn_forest(3, 2)), tmp_path)
    assert library.labels() == library.classes() == 0
    library.predict_labels(np.zeros((2, 4), "f4"))
    assert (library.code, library.text("error")) == (-1, "the model has no classes")


MAIN = """
#include <stdio.h>
#include "model.h"
int main(void) {
  float rows[7 * 4], margin[7];
  if (fread(rows, sizeof rows, 1, stdin) != 1) return 2;
  if (airline_predict(rows, 7, margin, NULL, 1)) return 3;
  fwrite(margin, sizeof margin, 1, stdout);
}
"""
PROGRAM = """
cmake_minimum_required(VERSION 3.16)
project(program C)
add_subdirectory(model)
add_executable(main main.c)
target_link_libraries(main PRIVATE airline)
"""


@pytest.mark.parametrize("suffix", [".so", ".a", ".o", ".zip"])
def test_a_program_is_linked_with_each_kind_of_library(suffix: str, tmp_path: Path) -> None:
    if suffix == ".zip" and shutil.which("cmake") is None:
        pytest.skip("no cmake")
    predictor = built(drawn_forest(9, 3, seed=1))
    predictor.export_library(tmp_path / f"model{suffix}", prefix="airline_")
    (tmp_path / "main.c").write_text(MAIN)
    if suffix == ".zip":
        zipfile.ZipFile(tmp_path / "model.zip").extractall(tmp_path / "model")
        (tmp_path / "CMakeLists.txt").write_text(PROGRAM)
        for words in ("-S . -B build", "--build build"):
            subprocess.run(["cmake", *words.split()], cwd=tmp_path, check=True, capture_output=True)
        program = tmp_path / "build" / "main"
    else:
        program = tmp_path / "main"
        flags = ["-pthread", "-ldl", "-lm", f"-Wl,-rpath,{tmp_path}", "-o", "main"]
        command = ["cc", "main.c", f"model{suffix}", *flags]
        subprocess.run(command, cwd=tmp_path, check=True)
    rows = hard_rows(predictor.forest, 7)
    done = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True)
    assert done.stdout == predictor.predict_margin(rows).tobytes()
