"""Say what a process takes to start: until it predicts a row, from the cache or from a file.

    python -m benchmarks costs.starting [--models M ...] [--cache FOLDER] [--times N]

Each model is built once in a process with an empty cache of compiled code, which also saves the
predictor. Then processes are started by turns, and the medians of their seconds are told, by the
clock, and those of the CPU, which other work beside it does not lengthen as much:

    first         from the start of `build` to the first prediction, where nothing is in the cache
    build, CPU    the same in a later process, the import of the package and of all else included
    TVM           whether that process has imported TVM
    load, CPU     from the start of `load_predictor` to the first prediction, imports included
    process       the same from the start of the process: Python and numpy as well

A process has numpy, a row, and the training library if the model is an object of one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import models

HEADS = ("model", "first", "build", "CPU", "TVM", "load", "CPU", "process")

CHILD = """
import sys, time
begun, way, model, rows, saved = sys.argv[1:]
import numpy as np
row = np.load(rows, mmap_mode="r")[:1].copy()
if way == "build" and model.endswith(".pickle"):
    import pickle
    model = pickle.load(open(model, "rb"))
begin, before = time.time(), time.process_time()
import tvm_forest
predictor = tvm_forest.build(model) if way == "build" else tvm_forest.load_predictor(saved)
predictor.predict(row)
end, after = time.time(), time.process_time()
print(end - begin, after - before, end - float(begun), int("tvm" in sys.modules))
if way == "build":
    predictor.save(saved)
"""


class Start(NamedTuple):
    """What a process took.

    Attributes:
        own: seconds by the clock that our part took.
        cpu: seconds of the CPU of these.
        whole: seconds by the clock since the process was started.
        has_tvm: whether it has imported TVM.
    """

    own: float
    cpu: float
    whole: float
    has_tvm: float


def start(way: str, model: Path, rows: Path, saved: Path) -> Start:
    """Start a process that predicts a row.

    Args:
        way: "build" or "load".
        model: its file.
        rows: file of rows.
        saved: file of the predictor.
    """
    command = [sys.executable, "-c", CHILD, str(time.time()), way, *map(str, (model, rows, saved))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Start(*map(float, done.stdout.split()))


def measure(name: str, folder: Path, times: int) -> str:
    """Return a line of the table."""
    model = models.get(name, folder)
    built, loaded = list[Start](), list[Start]()
    with tempfile.TemporaryDirectory() as place:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # packages that are installed have it
        os.environ["TVM_FOREST_CACHE"] = str(Path(place, "cache"))
        files = model.path, model.rows_path, Path(place, "model.tvmf")
        first = start("build", *files)
        for _ in range(times):
            built.append(start("build", *files))
            loaded.append(start("load", *files))
    build, load = (Start(*map(statistics.median, zip(*x, strict=True))) for x in (built, loaded))
    has_tvm = "yes" if build.has_tvm or load.has_tvm else "no"
    cells = (first.own, build.own, build.cpu, has_tvm, load.own, load.cpu, load.whole)
    shown = (x if isinstance(x, str) else f"{x:.2f}" for x in cells)
    return f"| {name} | " + " | ".join(shown) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=models.NAMES)
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder of the models")
    parser.add_argument("--times", type=int, default=5, help="processes of each kind (default: 5)")
    chosen = parser.parse_args()
    print("| " + " | ".join(HEADS) + " |\n|---|" + "---:|" * (len(HEADS) - 1), flush=True)
    for name in chosen.models:
        print(measure(name, chosen.cache, chosen.times), flush=True)
