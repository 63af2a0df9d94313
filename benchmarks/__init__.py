"""What is measured of the package; `python -m benchmarks` lists all that can be run, by rooms.

A command is a file with a function `main`, which reads the command line and may return a status.
Its name is its place: `python -m benchmarks costs.building` runs `costs/building.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the folder that a machine with a GPU gets."""
BUILD, RESULTS = ROOT / "build", ROOT / "benchmarks" / "results"
"""What programs leave behind, and pages of figures that are kept."""
HELPERS = [str(ROOT / x) for x in ("tests/helpers", "tools")]
"""Folders of the checkout whose modules are imported by their bare names; some benchmarks add them
to `sys.path`."""


def command(name: str, *words: str, python: str = sys.executable) -> list[str]:
    """Return what starts a benchmark in a process of its own."""
    return [python, "-m", "benchmarks", name, *words]


def environment() -> dict[str, str]:
    """Return variables by which such a process finds the benchmarks, wherever it is started."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
