"""The studies of the papers, each in a file, as `python -m benchmarks study` runs them.

takes: models, engines, records of searches; gives: Study.

A file has a constant STUDY; `NAMES` has the files, in the order of the page docs/studies.md.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import ROOT

NAMES = (
    *("shapes", "speedups", "surfaces", "choices", "utility"),
    *("transfer", "search_quality", "metaschedule", "tree_parallel", "crossover"),
    *("leaf_coverage", "hummingbird"),
)

FOLDER = ROOT / "docs" / "studies"
"""Where results and plots are kept, `NAME.DEVICE.json` and `NAME.DEVICE.svg`."""

DEVICES = {"cpu": "On a CPU", "gpu": "On a GPU"}
"""And how the page calls them."""

Results = dict[str, Any]
"""What JSON can hold. The runner adds "about": date, machine, versions, and the command."""


def nothing(parser: ArgumentParser) -> None:
    """Add no options."""


@dataclass(frozen=True)
class Study:
    """An experiment of the papers.

    Attributes:
        name: of its file.
        title: of its section.
        shows: what the papers show, with the numbers of their figures, and what is done here;
            Markdown, a paragraph or two.
        measure: makes results from the options; `tiny`, `device` and `results` are there always,
            see `study.py`.
        tables: Markdown of results.
        draw: draws results onto an empty figure of matplotlib.
        says: by device, one paragraph on what agrees with the papers, what does not, and why. It
            may be a function of the results, so that its figures are theirs.
        options: adds options of its own.
        size: of the plot, in inches.
    """

    name: str
    title: str
    shows: str
    measure: Callable[[Namespace], Results]
    tables: Callable[[Results], str]
    draw: Callable[[Results, Any], None]
    says: dict[str, str | Callable[[Results], str]]
    options: Callable[[ArgumentParser], None] = nothing
    size: tuple[float, float] = (9, 4)


def find(name: str) -> Study:
    """Return a study by its name."""
    return importlib.import_module(f"benchmarks.studies.{name}").STUDY
