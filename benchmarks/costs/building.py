"""Say what a default build takes: CPU seconds, and memory at its peak.

    python -m benchmarks costs.building [--models M ...] [--cache FOLDER]

A process for each model, which has built a small forest before: what imports and the first use of
TVM take is not counted, and nothing is taken from the cache of compiled code. Reading the file of
the model is counted. "small" is another small forest: what is needed for any model at all. Linux
only, for the peak of memory is read from /proc.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
import tvm_forest.api
from benchmarks import command, environment, models
from tvm_forest.system.code_cache import OFF, VARIABLE

SMALL = "small"
HEADS = ("model", "MB of its file", "CPU seconds", "MB at the peak", "MB of the arrays")


def small(seed: int) -> Any:
    """Train a forest of 20 trees."""
    import xgboost

    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(500, 5)).astype(np.float32)
    return xgboost.train({"max_depth": 4, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0]), 20)


def memory(field: str) -> float:
    """Return MB of this process: "VmRSS", or "VmHWM" for the most since it was reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1000


def measured(name: str, cache: Path) -> str:
    """Return a line of the table."""
    tvm_forest.build(small(0))
    if name == SMALL:
        taken, size = small(1), 0.0
    else:
        model = models.get(name, cache)
        taken = model.load() if model.path.suffix == ".pickle" else model.path
        size = model.path.stat().st_size / 1e6
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before, begin = memory("VmRSS"), time.process_time()
    predictor = tvm_forest.build(taken)
    seconds, peak = time.process_time() - begin, memory("VmHWM") - before
    arrays = predictor.model_bytes / 1e6
    return f"| {name} | {size:.1f} | {seconds:.2f} | {peak:.0f} | {arrays:.1f} |"


def main() -> None:
    """Print a table, a line from a process of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[SMALL, *models.NAMES])
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    parser.add_argument("--one", help="measure this model, in this process")
    chosen = parser.parse_args()
    if chosen.one:
        print(measured(chosen.one, chosen.cache))
        return
    print("| " + " | ".join(HEADS) + " |\n|---|" + "---:|" * (len(HEADS) - 1), flush=True)
    for name in chosen.models:
        own = command("costs.building", "--cache", str(chosen.cache), "--one", name)
        subprocess.run(own, check=True, env=environment() | {VARIABLE: OFF})
