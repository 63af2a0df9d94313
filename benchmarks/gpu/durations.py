"""Durations of kernels by NVIDIA's profiler, ours beside nvForest's, without launches and host.

    python -m benchmarks gpu.durations --models airline year --batches 1 512 65536

Runs in the folder that `gpu.folder` has made, where the GPU is, and starts itself under `ncu`.
Prints a table: microseconds of all kernels of a call of the default schedule, and of nvForest with
the chunk size that is the fastest for the batch; the least of `CALLS` calls each, on other rows
each time. Answers are compared by `gpu.speed`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from benchmarks import ROOT, command, environment
from benchmarks.gpu import files
from benchmarks.gpu.engines import CHUNKS, Engine, NvForest, Ours
from benchmarks.gpu.speed import Batches
from tvm_forest.runtime.gpu.cuda import CudaDriver

BATCHES = (1, 32, 512, 4096, 65_536, 262_144, 1_000_000)
CALLS = 3
UNITS = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
DURATION = re.compile(r"gpu__time_duration\.sum +(\w+) +([\d.,]+)")
MARK = re.compile(r"^CALLS (\d+) (\S+) (\d+)$", re.M)
KERNELS = {"ours": "regex:predict", "nvforest": "regex:infer_kernel"}
"""The names of each engine's kernels."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--folder", type=Path, default=ROOT / "models", help="of the models")
    add("--models", nargs="+", default=["airline"])
    add("--batches", nargs="+", type=int, default=list(BATCHES))
    add("--engines", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    add("--call", help=argparse.SUPPRESS)
    return parser.parse_args()


def call(chosen: argparse.Namespace) -> None:
    """Call an engine for each batch, and say ahead of each how many kernels follow."""
    driver, name = CudaDriver(), chosen.models[0]
    model = files.read(chosen.folder / f"{name}{files.SUFFIX}", driver)
    rows = Batches(driver, model.rows, max(chosen.batches))
    for batch in filter(rows.holds, chosen.batches):
        for label, engine, kernels in engines(model, chosen, batch):
            print("CALLS", batch, label, kernels, flush=True)
            for _ in range(CALLS):
                engine.there(rows.next_there(batch))
            driver.synchronize(0)


def engines(
    model: files.PackedModel, chosen: argparse.Namespace, batch: int
) -> Iterator[tuple[str, Engine, int]]:
    """Yield the engines of a batch with their names and the kernels of a call."""
    if chosen.call == "ours":
        ours = Ours(model, "default")
        yield "default", ours, len(ours.bound[ours.one.smallest_for(batch)][0].plan.launches)
        return
    file = chosen.folder / f"{model.about['name']}.ubj"
    for chunk in CHUNKS:
        yield f"chunk-{chunk}", NvForest(model, file, chunk), 1


def profile(chosen: argparse.Namespace, engine: str, model: str) -> dict[int, tuple[float, str]]:
    """Return the least microseconds of a call by batch, and the label of what took them."""
    again = command("gpu.durations", "--call", engine, "--models", model)
    again += ["--folder", str(chosen.folder), "--batches", *map(str, chosen.batches)]
    ncu = ["ncu", "--clock-control", "none", "-k", KERNELS[engine]]
    ncu += ["--metrics", "gpu__time_duration.sum"]
    text = subprocess.run(
        [*ncu, *again], capture_output=True, text=True, check=True, env=environment()
    ).stdout
    durations = (UNITS[unit] * float(x.replace(",", "")) for unit, x in DURATION.findall(text))
    found = dict[int, tuple[float, str]]()
    for batch, label, kernels in MARK.findall(text):
        calls = [sum(islice(durations, int(kernels))) for _ in range(CALLS)]
        known = found.get(int(batch), (float("inf"), ""))
        found[int(batch)] = min(known, (min(calls), label))
    return found


def main() -> int:
    """Print the table."""
    chosen = options()
    if chosen.call:
        call(chosen)
        return 0
    print(
        "| model | rows | ours, us | nvForest, us | chunk | ratio |\n|---|---:|---:|---:|---:|---:|"
    )
    for model in chosen.models:
        found = {engine: profile(chosen, engine, model) for engine in chosen.engines}
        for batch, (ours, _) in found["ours"].items():
            peer, label = found.get("nvforest", {}).get(batch, (float("nan"), "-"))
            chunk = label.rpartition("-")[2]
            print(
                f"| {model} | {batch:,} | {ours:.1f} | {peer:.1f} | {chunk} | {peer / ours:.1f} |"
            )
        sys.stdout.flush()
    return 0
