"""Studies of schedules, threads, tiles and tensors in a tiny form, and of results of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from test_random_models import RandomModel
from test_studies import run, tiny


@pytest.mark.slow
@pytest.mark.long
def test_schedules_of_two_sizes_of_batch_change_places(tmp_path: Path) -> None:
    said, results = tiny(tmp_path, "transfer")
    cells = {cell["batch"]: cell for cell in results["cells"]}
    assert cells.keys() == {1, 64}
    for cell in cells.values():
        assert set(cell["seconds"]) == {"tiny 1", "tiny 64"} and min(cell["seconds"].values()) > 0
    priced = results["priced"]
    assert all(row[name] == 1.0 for name, row in priced.items())
    assert min(x for row in priced.values() for x in row.values() if x is not None) >= 1
    assert "| 64 |" in said


@pytest.mark.slow
@pytest.mark.long
def test_a_search_is_set_beside_a_part_of_all_points(tmp_path: Path) -> None:
    _, results = tiny(tmp_path, "search_quality")
    (cell,) = results["cells"]
    assert 0 < cell["measured"] < cell["points"] and cell["drawn"][0] >= cell["drawn"][-1] >= 1
    assert all(x >= y for x, y in zip(cell["guided"], cell["guided"][1:], strict=False))


@pytest.mark.slow
@pytest.mark.long
def test_rows_and_trees_are_shared_out_and_planned(tmp_path: Path) -> None:
    _, results = tiny(tmp_path, "tree_parallel")
    (cell,) = results["cells"]
    assert {"rows", "trees", "one thread", "trees, in order"} <= cell["us"].keys()
    priced = [plan for plan in results["plans"] if "priced" in plan["how"]]
    assert len(results["plans"]) == 3 and len(priced) == 2
    for plan in priced:
        assert plan["rows_us"]["1"] == plan["trees_us"]["1"] >= plan["trees_us"]["16"] > 0
        assert plan["lines"]["1"] == 0 < plan["lines"]["2"]


@pytest.mark.slow
@pytest.mark.long
def test_the_crossover_is_estimated(tmp_path: Path) -> None:
    said, results = tiny(tmp_path, "crossover")
    assert [cell["batch"] for cell in results["cells"]] == [1, 64]
    for cell in results["cells"]:
        assert 20 < cell["gpu_us"]["least"] < cell["gpu_us"]["likely"] < cell["gpu_us"]["most"] < 60
    assert "| tiny |" in said


@pytest.mark.slow
@pytest.mark.long
def test_rows_are_drawn_as_the_profile_has_them(tmp_path: Path) -> None:
    _, results = tiny(tmp_path, "leaf_coverage")
    (cell,) = results["cells"]
    assert cell["tiles"]["optimal"] <= cell["tiles"]["probability"] < cell["tiles"]["uniform"]
    assert cell["covered"][0] == 0 and cell["covered"][-1] == 1
    expected, seen = cell["hops"]
    assert abs(seen / expected - 1) < 0.02


@pytest.mark.slow
@pytest.mark.long
def test_tensors_are_compared_where_there_is_torch(tmp_path: Path) -> None:
    _, results = tiny(tmp_path, "hummingbird", "--cache", str(tmp_path / "models"))
    said = {answer["engine"]: answer["said"] for answer in results["answers"]}
    assert said["ours"] == said["xgboost"] == {"1": "equal"}
    assert {"torch-gemm", "torch-trees", "torch-perfect"} < said.keys()


@pytest.mark.parametrize("way", ["gemm", "trees", "perfect"])
def test_tensors_give_the_margins_of_the_forest(way: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from benchmarks.engines.tensor_forests import TensorForest

    model = RandomModel(100, 16, 6, 0)
    forest, rows = model.forest(), model.rows(64)
    margin = TensorForest(forest, way).margin(rows)
    np.testing.assert_allclose(margin, forest.predict_reference(rows), rtol=1e-5, atol=1e-4)
    assert tvm_forest.Forest is type(forest)


def results_of_a_gpu(path: Path, gpu: str, fastest: dict[int, str]) -> Path:
    """Write what `gpu.speed` would: two models, with the schedule that is fastest at a batch."""
    cells = [cell_of(name, batch, winner) for name in "ab" for batch, winner in fastest.items()]
    about = {"gpu": gpu, "date": "2026-01-01"}
    path.write_text(json.dumps({"about": about, "cells": cells}), encoding="utf-8")
    return path


def cell_of(name: str, batch: int, winner: str) -> dict[str, Any]:
    times = dict.fromkeys(("default", "fil packed", "ranks"), 12.0) | {winner: 10.0}
    engines = {f"ours: {x}": {"kernel_us": us, "host_us": 30.0} for x, us in times.items()}
    engines["ours on the CPU"] = {"host_us": 0.1 * batch}
    return {"model": name, "batch": batch, "engines": engines}


@pytest.mark.slow
@pytest.mark.long
def test_results_of_a_gpu_are_read(tmp_path: Path) -> None:
    here = results_of_a_gpu(tmp_path / "a.json", "GPU A", {1: "fil packed", 512: "ranks"})
    there = results_of_a_gpu(tmp_path / "b.json", "GPU B", {1: "default", 512: "ranks"})
    words = ("--device", "gpu", "--results", str(here), "--out", str(tmp_path))
    assert "| a | 1 | 1.20 |" in run("transfer", *words, "--other", str(there))
    assert "| b | 512 | 3 | 1.20 | ranks |" in run("search_quality", *words)
    assert "| a | 512 |" in run("crossover", *words)
    results = json.loads((tmp_path / "crossover.gpu.json").read_text(encoding="utf-8"))
    assert results["from_rows"] == {"a": 512, "b": 512}
    assert results["about"]["machine"] == "GPU A"
