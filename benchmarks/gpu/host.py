"""Print what a call costs the host of a GPU, in microseconds: the work around the kernels.

    python -m benchmarks gpu.host [--models FOLDER] [--rounds 50] [--calls 100]

takes: the model airline of the benchmark; gives: lines of text. Needs a C compiler and no GPU: the
driver is a stub (`stub_cuda.c`) whose functions return at once, and whose copies move memory of
the host. So the figures are those of Python, ctypes and numpy alone. Each is the median over rounds
of the mean of the calls of a round, with quartiles; the cases take turns.

tensor   rows on the GPU that another library holds: a capsule of DLPack is taken
array    rows on the GPU that `DevicePredictor.put` has copied there
one row, 512 rows    numpy rows in and numpy results out

The context of the GPU is current on a thread that uses PyTorch or CuPy; elsewhere a call pushes it.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

import tvm_forest
from benchmarks.models import CACHE, get
from tvm_forest.forest.probe_rows import typical_rows
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.target import cpu_name

STUB = Path(__file__).with_name("stub_cuda.c")


def stub_driver(folder: Path) -> CudaDriver:
    """Compile the stub, and open it."""
    made = folder / "libcuda.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(STUB)]
    subprocess.run(command, check=True)
    return CudaDriver(library=str(made))


def cases_of(predictor: Any) -> dict[str, Callable[[], Any]]:
    """Return calls by what is timed."""
    rows = typical_rows(predictor.forest, 512, seed=0)
    there = predictor.put(rows)
    tensor = tvm_ffi.from_dlpack(predictor.put(rows))
    one = rows[:1].copy()
    return {
        "tensor, 512 rows": lambda: predictor.predict(tensor),
        "array, 512 rows": lambda: predictor.predict(there),
        "one row": lambda: predictor.predict(one),
        "512 rows": lambda: predictor.predict(rows),
    }


def time_in_turns(
    cases: dict[str, Callable[[], Any]], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Return microseconds of a call, of each round."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, call in cases.items():
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            spent = time.perf_counter() - begin
            if number:
                found[name].append(1e6 * spent / calls)
    return found


def main() -> int:
    """Build, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=CACHE, help="folder of the model airline")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=100)
    chosen = parser.parse_args()
    model = get("airline", chosen.models).path
    with tempfile.TemporaryDirectory() as folder:
        driver = stub_driver(Path(folder))
        predictor = tvm_forest.build(model, "cuda")
        predictor.library.backend = Backend(lambda: driver, lambda *_: b"stub")
        cases, found = cases_of(predictor), {}
        for about in ("context current", "context to be pushed"):
            before = driver.enter() if about == "context current" else None
            found |= {
                f"{name}, {about}": times
                for name, times in time_in_turns(cases, chosen.rounds, chosen.calls).items()
            }
            driver.leave(before)
    version = sys.version.split()[0]
    print(f"{datetime.date.today().isoformat()}, {cpu_name()}, Python {version}, stub driver")
    for name, times in found.items():
        low, middle, high = np.percentile(times, (25, 50, 75))
        print(f"{name:40} {middle:6.1f} us a call (quartiles {low:.1f} to {high:.1f})")
    return 0
