"""The studies of the papers run in a tiny form, and the page is what their results say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

import tvm_forest
from benchmark_runs import said_by
from benchmarks import ROOT, timing
from benchmarks.models.drawn import RandomModel
from benchmarks.models.xgboost_files import to_xgboost
from tvm_forest.forest.probe_rows import hard_rows

DOCS = ROOT / "docs"
LARGEST = 100_000
"""Bytes of a plot."""


def run(*words: str) -> str:
    """Run studies; return what they print."""
    return said_by("study", *words)


def tiny(folder: Path, name: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Run a study in its tiny form; return what it prints, and its results."""
    said = run(name, "--tiny", "--out", str(folder), *words)
    assert (folder / f"{name}.cpu.svg").read_text(encoding="utf-8").startswith("<?xml")
    return said, json.loads((folder / f"{name}.cpu.json").read_text(encoding="utf-8"))


def gpu_results(folder: Path) -> Path:
    """Write what `gpu.speed` would, for one model and two sizes of batch."""
    us = {"ours: default": 4.0, "ours: template packed 32 1 10 4": 2.0, "nvforest": 8.0}
    us |= {"ours: direct sparse": 6.0, "ours: fil reorg": 5.0, "xgboost": 40.0, "torch": 20.0}
    cells = [
        {
            "model": "airline",
            "batch": batch,
            "engines": {name: {"kernel_us": x, "host_us": x} for name, x in us.items()},
        }
        for batch in (512, 4096)
    ]
    path = folder / "results.json"
    path.write_text(json.dumps({"about": {"gpu": "A GPU", "date": "2026-01-01"}, "cells": cells}))
    return path


def test_the_page_of_studies_is_what_their_results_say(tmp_path: Path) -> None:
    """After a change of a study or its results: `python -m benchmarks study --page`."""
    run("--page", str(tmp_path / "page.md"))
    made = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert made == (DOCS / "studies.md").read_text(encoding="utf-8")


def test_stored_results_have_a_line_for_each_entry() -> None:
    for path in sorted((DOCS / "studies").iterdir()):
        text = path.read_text(encoding="utf-8")
        lists = [x for x in json.loads(text).values() if isinstance(x, list)]
        assert len(text.splitlines()) <= 20 + sum(len(x) + 2 for x in lists), path.name


@pytest.mark.slow
@pytest.mark.long
def test_plots_of_stored_results_are_small_and_on_the_page(tmp_path: Path) -> None:
    run("--plots", str(tmp_path))
    plots = sorted(tmp_path.iterdir())
    assert [x.stem for x in plots] == [x.stem for x in sorted((DOCS / "studies").iterdir())]
    page = (DOCS / "studies.md").read_text(encoding="utf-8")
    assert [plot.name for plot in plots if f"(studies/{plot.name})" not in page] == []
    texts = [plot.read_text(encoding="utf-8") for plot in plots]
    assert all(text.startswith("<?xml") and len(text) <= LARGEST for text in texts)


@pytest.mark.slow
@pytest.mark.long
def test_engines_are_compared_and_speed_ups_of_a_gpu_are_read(tmp_path: Path) -> None:
    words = ("--cache", str(tmp_path / "models"), "--engines", "xgboost", "lightgbm")
    _, results = tiny(tmp_path, "speedups", *words, "--batches", "1", "32")
    assert [cell["batch"] for cell in results["cells"]] == [1, 32]
    assert all(cell["ratios"].keys() == {"xgboost"} for cell in results["cells"])
    assert [x["engine"] for x in results["missing"]] == ["lightgbm"]
    given = ("--device", "gpu", "--results", str(gpu_results(tmp_path)), "--out", str(tmp_path))
    said = run("speedups", *given)
    assert "| nvforest (1) | 2 (2 to 2) | 2 (2 to 2) |" in said
    assert "| airline | 512 | 0.00781 | 2 | 10 | 5 |" in said


@pytest.mark.slow
@pytest.mark.long
def test_choices_are_counted_on_a_cpu_and_on_a_gpu(tmp_path: Path) -> None:
    _, results = tiny(tmp_path, "choices", "--cache", str(tmp_path / "models"))
    (cell,) = results["cells"]
    assert cell["ratios"][0] == min(cell["layouts"].values()) == 1 < cell["tried"] < cell["points"]
    given = ("--device", "gpu", "--results", str(gpu_results(tmp_path)), "--out", str(tmp_path))
    assert "| layout | packed: 2 |" in run("choices", *given)
    known = json.loads((tmp_path / "choices.gpu.json").read_text(encoding="utf-8"))
    best = {"schedule": "template", "layout": "packed", "rows of a block": "32"}
    best |= {"rows of a thread": "1", "tree threads": "10", "interleave": "4"}
    assert known["cells"][0]["best"] == best and known["about"]["machine"] == "A GPU"


@pytest.mark.slow
@pytest.mark.long
def test_constructs_are_taken_away(tmp_path: Path) -> None:
    said, results = tiny(tmp_path, "utility", "--cache", str(tmp_path / "models"))
    first, scalar = results["cells"]
    assert (first["space"], scalar["space"]) == ("all", "papers")
    assert f"layout {first['best']['layout']}" in first["losses"]
    assert scalar["best"]["layout"] != "bitsliced" and min(scalar["losses"].values()) > 0
    assert len(results["reductions"][0]["ratios"]) == 4 and "| atomic additions |" in said


@pytest.mark.slow
@pytest.mark.long
def test_random_models_are_timed_and_kept_beside_others(tmp_path: Path) -> None:
    old = {"trees": 200, "features": 8, "depth": 6, "seed": 0, "batch": 32, "layout": "array"}
    cells = [{"model": f"random-{n}-8-6-0", **old, "us": {}, "ratio": 2.0} for n in (100, 200)]
    about = {"machine": f"{timing.cpu_name()}, {timing.cores()} cores"}
    (tmp_path / "surfaces.cpu.json").write_text(json.dumps({"about": about, "cells": cells}))
    said, results = tiny(tmp_path, "surfaces", "--batches", "32", "--more")
    assert [x["model"] for x in results["cells"]] == ["random-200-8-6-0", "random-100-8-6-0"]
    assert results["cells"][0]["ratio"] == 2 and "| 6 | 200 | 2 |" in said


PUBLISHED, TRAINED = ("abalone", "airline", "higgs", "year"), ("bosch", "covtype")
LONG_TO_TRAIN = ("airline_ohe", "letters")


@pytest.mark.slow
@pytest.mark.long
def test_the_published_models_have_the_shapes_of_the_paper(tmp_path: Path, models: Path) -> None:
    compare_shapes(tmp_path, PUBLISHED, 0.01)


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("name", [*TRAINED, *LONG_TO_TRAIN])
def test_a_trained_model_has_about_the_shape_of_the_paper(
    tmp_path: Path, models: Path, name: str
) -> None:
    compare_shapes(tmp_path, (name,), 0.15)


def compare_shapes(folder: Path, names: tuple[str, ...], apart: float) -> None:
    """Compare models with the table of the specification: leaves may differ by a share."""
    _, results = tiny(folder, "shapes", "--cache", str(folder / "models"), "--models", *names)
    assert [x["model"] for x in results["models"]] == list(names)
    for x in results["models"]:
        trees, features, depth, leaves = SHAPES[x["model"]]
        assert (x["trees"], x["features"], x["depth"]) == (trees, features, depth)
        assert abs(x["leaves"] / leaves - 1) < apart
        if x["model"] == "bosch":
            assert abs(x["missing"] - 0.8) < 0.03 and abs(x["default_left"] - 0.19) < 0.05
        if x["model"] == "covtype":
            assert x["single"] == 100 and x["outputs"] == 8


SHAPES = {
    "abalone": (1000, 8, 6, 44.2),
    "airline": (100, 13, 8, 255.2),
    "airline_ohe": (1000, 692, 8, 128),
    "bosch": (100, 968, 8, 70),
    "covtype": (800, 54, 8, 87),
    "higgs": (100, 28, 8, 252.4),
    "letters": (26_000, 16, 6, 20),
    "year": (100, 90, 8, 163.3),
}
"""Trees, features, hops to the deepest leaf, mean leaves of a tree."""


def test_abalone_as_a_file_of_xgboost_predicts_what_was_published(models: Path) -> None:
    booster = xgboost.Booster(
        model_file=bytearray(to_xgboost(tvm_forest.load(models / "abalone.onnx")))
    )
    table = np.loadtxt(models / "abalone.csv", delimiter=",", dtype=np.float32)
    assert np.array_equal(booster.inplace_predict(table[:, :-1]), table[:, -1])


def test_a_random_model_as_a_file_of_xgboost_is_the_same_forest() -> None:
    forest = RandomModel(100, 8, 6, 0).forest()
    booster = xgboost.Booster(model_file=bytearray(to_xgboost(forest)))
    rows = hard_rows(forest, 200)
    rows[np.isinf(rows)] = 0
    expected = booster.inplace_predict(rows, predict_type="margin")
    assert np.array_equal(forest.predict_reference(rows)[:, 0], expected)
    with pytest.raises(ValueError, match="not a plain regression"):
        to_xgboost(replace(forest, comparison="<="))
