"""The benchmark of CPUs runs, and knows wrong engines from right ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_runs import run
from benchmarks import checks
from benchmarks.pages import report

WRONG_ENGINE = """
from benchmarks.engines.peers import XGBoost

class OffByAThousandth(XGBoost):
    def __init__(self, model, argument):
        super().__init__(model, argument)
        self.margin = None
        self.predict = lambda rows: self.booster.inplace_predict(rows) + 0.001

class MustEqual(OffByAThousandth):
    must_equal = True
"""


def benchmark(folder: Path, *engines: str) -> tuple[int, dict[str, Any]]:
    """Run the benchmark of a tiny model; return its status and results."""
    (folder / "wrong_engine.py").write_text(WRONG_ENGINE, encoding="utf-8")
    words = ["--models", "tiny", "--batches", "1", "32", "--threads", "1", "--rounds", "1"]
    words += ["--seconds", "0.002", "--cache", str(folder / "models"), "--out", str(folder / "out")]
    done = run("cpu", *words, "--engines", *engines, paths=(folder,))
    return done.returncode, json.loads((folder / "out" / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.long
def test_engines_are_timed_and_laid_beside_the_library(tmp_path: Path) -> None:
    wrong = "wrong_engine:OffByAThousandth"
    status, results = benchmark(tmp_path, "ours", "xgboost", wrong, "lightgbm")
    found = {record["engine"]: record for record in results["engines"]}
    assert status == 0
    assert found["ours"]["verdicts"] == found["xgboost"]["verdicts"] == {"1": "equal"}
    assert found["ours"]["hard"] == "equal" and found["ours"]["peak_bytes"] > 10**7
    assert found[wrong]["verdicts"]["1"].startswith("WRONG")
    assert found["lightgbm"]["code"] == "other"
    timed = {(cell["engine"], cell["batch"]) for cell in results["cells"] if cell["us"] > 0}
    assert timed == {(engine, batch) for engine in ("ours", "xgboost", wrong) for batch in (1, 32)}
    assert "| tiny | 32 |" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.rare
def test_the_status_tells_that_our_own_predictions_differ(tmp_path: Path) -> None:
    status, results = benchmark(tmp_path, "wrong_engine:MustEqual", "lleaves")
    assert status == 1
    assert results["engines"][0]["failed"]


def results_of(*cells: tuple[str, int, str, float]) -> dict[str, Any]:
    names = ("model", "batch", "engine", "us")
    every = [dict(zip(names, cell, strict=True)) | {"threads": 1} for cell in cells]
    models = [{"name": cell[0], "library": "xgboost"} for cell in cells]
    return {"engines": [], "cells": every, "models": models, "about": {"threads": [1]}}


def test_the_geometric_mean_of_ratios_does_not_depend_on_which_is_above() -> None:
    mean = report.geometric_mean
    assert mean([1, 4]) == pytest.approx(2)
    assert mean([3, 1 / 3]) == pytest.approx(1)
    assert np.isnan(mean([]))


def test_means_are_taken_by_group_of_batches_over_the_best_peer() -> None:
    cells = [("a", 512, "ours", 1.0), ("a", 512, "xgboost", 8.0), ("a", 512, "other", 2.0)]
    cells += [("b", 4096, "ours", 1.0), ("b", 4096, "other", 8.0), ("b", 1, "ours", 5.0)]
    lines = report.means(results_of(*cells), 1).splitlines()
    assert lines[2] == "| best peer / ours | 4 | - | - | 2 |"
    assert lines[3] == "| XGBoost / ours | 8 | - | - | 8 |"


def test_a_busy_machine_is_told_from_a_quiet_one() -> None:
    results = results_of(("a", 1, "ours", 1.0))
    for cores, busy in ((0.99, False), (0.5, True)):
        results["cells"][0]["cores"] = cores
        assert ("too busy" in report.summary(results)) == busy


def test_a_wrong_engine_is_never_the_best_peer() -> None:
    results = results_of(("a", 1, "ours", 4.0), ("a", 1, "quick", 1.0), ("a", 1, "right", 2.0))
    assert report.ratios(results, 1, "ours", "best") == {("a", 1): 0.25}
    said = {"model": "a", "engine": "quick", "verdicts": {"1": "WRONG (1e-02, 3 of 9 rows)"}}
    results["engines"].append(said)
    assert report.ratios(results, 1, "ours", "best") == {("a", 1): 0.5}


@pytest.mark.parametrize(
    ("change", "said"),
    [(0.0, "equal"), (2e-6, "close (1e-06)"), (2e-3, "WRONG"), (np.nan, "WRONG")],
)
def test_a_verdict_is_about_the_worst_row(change: float, said: str) -> None:
    reference = np.full((9, 1), 1.5, np.float32)
    answer = reference.copy()
    answer[4] += np.float32(change)
    assert checks.verdict({"value": [checks.compare(answer[:, 0], reference)]}).startswith(said)


def test_answers_of_another_shape_or_type_are_not_equal() -> None:
    compare = checks.compare
    reference = np.full((4, 1), 0.5, np.float32)
    assert compare(np.full((4, 3), 0.5, np.float32), reference)["wrong"] == 4
    assert compare(np.full((4, 2), 0.5, np.float32), reference)["equal"] == 4
    assert compare(np.full(4, 0.5), reference)["equal"] == 0
