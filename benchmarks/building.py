"""Say what a default build takes: CPU seconds, and memory at its peak; or a later process.

    python benchmarks/building.py [--models M ...] [--cache FOLDER] [--second]

A process for each model, which has built a small forest before: what imports and the first use of
TVM take is not counted, and nothing is taken from the cache of compiled code. Reading the file of
the model is counted. "small" is another small forest: what is needed for any model at all. Linux
only, for the peak of memory is read from /proc.

With `--second`, the seconds by the clock of a process that finds the code of the model in the
cache, part by part: until it has Python, numpy and the package, then TVM, the model, the predictor,
and the first prediction of a row.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import models
import tvm_forest
import tvm_forest.api
from tvm_forest.code_cache import OFF, VARIABLE

SMALL = "small"
PARTS = ("model", "imports", "TVM", "reading", "building", "a row", "the last three")
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


def timed(name: str, cache: Path, begin: float) -> str:
    """Return a line of the table of later processes; this one was started at `begin`."""
    at = [begin, time.time()]
    import_module("tvm_forest.predictor.building")
    model = models.get(name, cache)
    rows = np.load(model.rows_path)[:1]
    taken = model.load() if model.path.suffix == ".pickle" else model.path
    at.append(time.time())
    forest = tvm_forest.load(taken)
    at.append(time.time())
    predictor = tvm_forest.build(forest)
    at.append(time.time())
    predictor.predict(rows)
    at.append(time.time())
    parts = [*np.diff(at), at[-1] - at[2]]
    return f"| {name} | " + " | ".join(f"{part:.2f}" for part in parts) + " |"


def main() -> None:
    """Print a table, a line from a process of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[SMALL, *models.NAMES])
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    parser.add_argument("--second", action="store_true", help="time later processes")
    parser.add_argument("--one", help="measure this model, in this process")
    parser.add_argument("--begin", type=float, help="when it was started")
    chosen = parser.parse_args()
    if chosen.one:
        about = (chosen.one, chosen.cache)
        print(timed(*about, chosen.begin) if chosen.begin else measured(*about))
        return
    heads = PARTS if chosen.second else HEADS
    print("| " + " | ".join(heads) + " |\n|---|" + "---:|" * (len(heads) - 1), flush=True)
    for name in chosen.models:
        own = [sys.executable, __file__, "--cache", str(chosen.cache), "--one", name]
        if not chosen.second:
            subprocess.run(own, check=True, env={**os.environ, VARIABLE: OFF})
        elif name != SMALL:
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, VARIABLE: folder}
                for output in (subprocess.DEVNULL, None):
                    begun = [*own, "--begin", str(time.time())]
                    subprocess.run(begun, check=True, env=environment, stdout=output)


if __name__ == "__main__":
    main()
