"""SHAP values of exported libraries: the bits of the predictor, or a refusal with a remedy."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import tvm_ffi
from sklearn.ensemble import HistGradientBoostingRegressor

import shapley
from exported import Library
from forests import Split, drawn_forest, forest_of
from quick_builds import build
from tvm_forest.cli import main
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows

SIZES = (0, 1, 2, 3, 33, 600)


def export(predictor: Any, folder: Path, **wishes: Any) -> Library:
    predictor.export_library(folder / "model.so", contributions=True, **wishes)
    return Library(folder / "model.so", predictor.forest)


def check(predictor: Any, library: Library, rows: Any, background: Any = None) -> None:
    """Compare contributions with those of a predictor, by one thread and by several."""
    expected = predictor.predict_contributions(rows, background=background)
    for n_jobs in (1, 3):
        found = library.predict_contributions(rows, n_jobs)
        assert library.code == 0, library.text("error")
        assert found.tobytes() == expected.tobytes(), (len(rows), n_jobs)


def table(categories: int = 6) -> tuple[Any, Any]:
    """Return rows with missing values and zeros, a column of categories, and three classes."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 4)).round(1)
    rows[:, 3] = rng.integers(0, categories, 400)
    target = (rows[:, 0] + rows[:, 1] * rows[:, 2] > 0) + np.isin(rows[:, 3], [1, 4])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    return rows, target


def odd_rows(predictor: Any, n: int) -> Any:
    """Return hard rows whose category is anything that a number may be."""
    rows = hard_rows(predictor.forest, n, seed=n)
    rng = np.random.default_rng(n)
    rows[:, 3] = rng.choice([-2, -1, -0.5, -0.0, 0, 1, 2, 2.5, 3, 4, 9e9, np.nan], n)
    return rows


def a_model(trees: int = 4, depth: int = 3, **fields: Any) -> Any:
    return shapley.with_cover(drawn_forest(trees, depth, seed=4, n_features=5, **fields))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [4, 12], ids=["looked up", "walked"])
def test_drawn_models(depth: int, tmp_path: Path) -> None:
    predictor = build(a_model(6, depth, base=(0.1, 0.2, 0.3), link="softmax"))
    assert predictor.request.tables.subtrees.fits == (depth == 4)
    library = export(predictor, tmp_path)
    for n in SIZES:
        check(predictor, library, hard_rows(predictor.forest, n, seed=n))
    rows = hard_rows(predictor.forest, 33)
    margin, _ = library.predict(rows)  # as without contributions
    assert margin.tobytes() == predictor.predict_margin(rows).tobytes()
    assert np.allclose(library.predict_contributions(rows).sum(axis=2), margin, atol=1e-5)


@pytest.mark.slow
def test_categories_of_lightgbm_with_several_outputs(tmp_path: Path) -> None:
    rows, target = table()
    params = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
    params |= {"num_leaves": 8, "min_data_in_leaf": 3, "min_data_per_group": 2}
    data = lightgbm.Dataset(rows, target, categorical_feature=[3])
    predictor = build(lightgbm.train(params, data, 4))
    assert predictor.forest.derived
    library = export(predictor, tmp_path)
    for n in SIZES:
        check(predictor, library, odd_rows(predictor, n))


@pytest.mark.long
def test_categories_that_scikit_learn_does_not_know_are_missing(tmp_path: Path) -> None:
    rows, target = table()
    known = rows[:, 3] != 2
    model = HistGradientBoostingRegressor(max_iter=5, categorical_features=[3])
    predictor = build(model.fit(rows[known], target[known]))
    assert predictor.forest.known_categories
    library = export(predictor, tmp_path)
    for n in SIZES:
        check(predictor, library, odd_rows(predictor, n))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return a predictor with two outputs, and the folder of its library."""
    folder = tmp_path_factory.mktemp("exported")
    predictor = build(replace(a_model(base=(0.1, 0.2)), missing=0.0, refuses=("inf",)))
    export(predictor, folder)
    return predictor, folder


@pytest.mark.slow
def test_numbers_that_are_missing_and_values_that_are_refused(exported: Any) -> None:
    predictor, folder = exported
    library = Library(folder / "model.so", predictor.forest)
    rows = hard_rows(predictor.forest, 130)
    rows[np.isinf(rows)] = 0
    rows[::3, 1] = 0
    check(predictor, library, rows)
    rows[5, 2] = np.inf
    library.predict_contributions(rows)
    assert library.code == -1
    assert library.text("error") == "rows hold a value that the model refuses: inf"


@pytest.mark.slow
def test_a_background_serves_models_without_covers(tmp_path: Path) -> None:
    predictor = build(drawn_forest(5, 3, seed=4, n_features=5))
    background = hard_rows(predictor.forest, 30, seed=9)
    with pytest.raises(
        UnsupportedModel, match="'contributions': .* field 'cover': .* backgr"
    ) as no:
        predictor.export_library(tmp_path / "model.so", contributions=True)
    assert str(no.value).endswith("or give a background; or leave 'contributions' out")
    library = export(predictor, tmp_path, background=background)
    check(predictor, library, hard_rows(predictor.forest, 33), background)
    with pytest.raises(
        InputError, match="export_library: argument 'background': there are no rows"
    ):
        export(predictor, tmp_path, background=background[:0])
    with pytest.raises(InputError, match="argument 'background': rows, but contributions are not"):
        predictor.export_library(tmp_path / "model.so", background=background)


MAIN = """
#include <stdio.h>
#include "libmodel.h"
int main(void) {
  float rows[33 * 5];
  double values[33 * 6];
  if (fread(rows, sizeof rows, 1, stdin) != 1) return 2;
  if (airline_predict_contributions(rows, 33, values, 1)) return 3;
  fwrite(values, sizeof values, 1, stdout);
  if (!airline_predict_contributions(rows, -1, values, 1)) return 4;
  if (!airline_predict_contributions(rows, 33, values, 0)) return 5;
  if (airline_predict_contributions(NULL, 0, NULL, 1)) return 6;
  return !airline_predict_contributions(rows, 33, NULL, 1);
}
"""


@pytest.mark.slow
def test_a_c_program_of_a_loaded_predictor(tmp_path: Path) -> None:
    model = tmp_path / "model.tvmf"
    predictor = build(a_model())
    predictor.save(model)
    wishes = ["--prefix", "airline_", "--contributions"]
    assert main(["export", str(model), str(tmp_path / "libmodel.a"), *wishes]) == 0
    (tmp_path / "main.c").write_text(MAIN)
    flags = ["-Wall", "-Werror", "-lm", "-ldl", "-pthread", "-o", "main"]
    subprocess.run(["gcc", "main.c", "libmodel.a", *flags], cwd=tmp_path, check=True)
    rows = hard_rows(predictor.forest, 33)
    done = subprocess.run(
        [tmp_path / "main"], input=rows.tobytes(), capture_output=True, check=True
    )
    assert done.stdout == predictor.predict_contributions(rows).tobytes()


@pytest.mark.slow
def test_apache_tvm_ffi_calls_them(exported: Any) -> None:
    predictor, folder = exported
    function = tvm_ffi.load_module(str(folder / "model.so"))["contributions"]
    rows = hard_rows(predictor.forest, 33)
    rows[np.isinf(rows)] = 0
    found = np.zeros((33, 2 * 6))
    function(tvm_ffi.from_dlpack(rows), tvm_ffi.from_dlpack(found))
    assert found.tobytes() == predictor.predict_contributions(rows).tobytes()
    with pytest.raises(ValueError, match=r"values: expected float64 \(n, 12\)"):
        function(tvm_ffi.from_dlpack(rows), tvm_ffi.from_dlpack(found[:, :6].copy()))
    with pytest.raises(TypeError, match=r"expected contributions\(rows, values\)"):
        function(tvm_ffi.from_dlpack(rows))


def test_libraries_without_them_are_as_they_were(tmp_path: Path) -> None:
    predictor = build(a_model(2, 2))
    predictor.export_library(tmp_path / "model.so")
    assert "contributions" not in (tmp_path / "model.h").read_text()
    assert b"contributions" not in (tmp_path / "model.so").read_bytes()


def test_what_cannot_be_explained_is_refused_before_files_are_written(tmp_path: Path) -> None:
    predictor = build(a_model(2, 2))
    with pytest.raises(UnsupportedModel, match="'contributions': a package for 'go' .* leave out"):
        predictor.export_library(tmp_path / "go", to="go", contributions=True)
    assert main(["export", "no model", str(tmp_path / "go"), "--to", "c", "--contributions"]) == 2
    with pytest.raises(UnsupportedModel, match="target 'simt': libraries for CPUs alone compute"):
        build(a_model(2, 2), "simt").export_library(tmp_path / "model.so", contributions=True)
    least = forest_of([Split(0, 0.5, 1.0, 2.0)])
    least = build(shapley.with_cover(replace(least, aggregate="min")))
    with pytest.raises(UnsupportedModel, match="'contributions': .*'min' is no sum; or leave 'con"):
        least.export_library(tmp_path / "model.so", contributions=True)
    assert not list(tmp_path.iterdir())
