"""The benchmark of searches runs on a tiny model, goes on where it was, and feeds its readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark_runs import said_by


@pytest.mark.slow
@pytest.mark.long
def test_a_tiny_model_is_searched_and_searched_again_at_no_cost(tmp_path: Path) -> None:
    words = ("--models", "tiny", "--batches", "1", "64", "--budget", "6", "--out", str(tmp_path))
    said = said_by("tuning.search", *words)
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [r["batch"] for r in results] == [1, 64]
    for result in results:
        assert 0 < result["trials"] and 0 < result["measured"] < result["points"]
        assert min(result["found_over_best"] + result["default_over_tuned"]) > 0
    assert "of 2 schedules found are within 5 % of the best" in said
    assert (tmp_path / "table.md").read_text().count("| tiny |") == 2
    records = (tmp_path / "tiny.heuristic.jsonl").read_text()
    said_by("tuning.search", *words, "--strategies", "heuristic")
    assert (tmp_path / "tiny.heuristic.jsonl").read_text() == records
    said_by("tuning.sensitivity", "--records", str(tmp_path))
    matrix = json.loads((tmp_path / "sensitivity.json").read_text())["batches, all models"]
    assert matrix["64"]["64"] in (1.0, None) and matrix["4096"]["1"] is None
    assert (tmp_path / "sensitivity.png").stat().st_size > 1000
