"""Modules of benchmarks/, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def module(name: str) -> Any:
    """Import a file that is no part of a package, and whose neighbours have names of tests."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@contextmanager
def neighbours() -> Iterator[None]:
    """Let imports find the files of benchmarks/, also those that are called as files of tests."""
    names = {path.stem for path in BENCHMARKS.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names & {*sys.modules}}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in names & {*sys.modules}:
            del sys.modules[name]
        sys.modules.update(before)
