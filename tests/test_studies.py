"""The studies of the papers run in a tiny form, and the page is what their results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
DOCS = BENCHMARKS.parent / "docs"
LARGEST = 100_000
"""Bytes of a plot."""


def run(*words: str) -> str:
    """Run a program of the benchmarks in a process, whose modules have names of tests."""
    paths = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(BENCHMARKS / "study.py"), *words]
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tiny(folder: Path, name: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Run a study in its tiny form; return what it prints, and its results."""
    said = run(name, "--tiny", "--out", str(folder), *words)
    assert (folder / f"{name}.cpu.svg").read_text(encoding="utf-8").startswith("<?xml")
    return said, json.loads((folder / f"{name}.cpu.json").read_text(encoding="utf-8"))


def test_the_page_of_studies_is_what_their_results_say(tmp_path: Path) -> None:
    """After a change of a study or its results: `python benchmarks/study.py --page`."""
    run("--page", str(tmp_path / "page.md"))
    made = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert made == (DOCS / "studies.md").read_text(encoding="utf-8")


def test_plots_of_studies_are_small_and_on_the_page() -> None:
    plots = sorted((DOCS / "studies").glob("*.svg"))
    text = (DOCS / "studies.md").read_text(encoding="utf-8")
    assert [plot.name for plot in plots if f"(studies/{plot.name})" not in text] == []
    assert [plot.name for plot in plots if plot.stat().st_size > LARGEST] == []
