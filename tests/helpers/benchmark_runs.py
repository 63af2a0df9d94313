"""Benchmarks, each in a process of its own, as `python -m benchmarks` runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import command, environment


def run(name: str, *words: str, paths: tuple[Path, ...] = ()) -> Any:
    """Return the finished process; `paths` are for modules that it imports."""
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join([*map(str, paths), variables["PYTHONPATH"]])
    own = command(name, *words)
    return subprocess.run(own, env=variables, capture_output=True, text=True, timeout=1500)


def said_by(name: str, *words: str) -> str:
    """Return what a benchmark prints that ends well."""
    done = run(name, *words)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
