"""Time compiled models on a GPU of NVIDIA beside other engines.

    python -m benchmarks gpu.speed --out results.json    # in a folder that `gpu.folder` has made

Needs a driver for CUDA, Python and numpy; installs nothing, and compiles kernels only if the driver
refuses those in the folder and NVRTC (which torch brings) or nvcc is there. Every model comes with
kernels of several schedules: "before tuning" is the default one, "after tuning" the fastest of all
at a batch size. XGBoost, nvForest and a loop of gathers in torch are timed where they are.

First all answers are laid beside those of the training library, also on rows made of thresholds:
our margins must be equal to the bit, or within the bound of reordered sums if the schedule says
that it reorders; otherwise the status is 1 and the schedule is not timed.

Three figures, each a median over rounds in which engines take turns in an order drawn anew, with
another slice of distinct rows for each call, the first round not counted:

kernel  microseconds of a call with rows and results on the GPU, by events on the default stream
        around several calls. A long copy ahead of them lets the host hand in all calls before the
        first one starts; where it could not (engines that wait), the figure is marked with "*" and
        holds gaps of the host.
device  microseconds of a call with rows and results on the GPU, by the clock of the host, which
        waits until the results are there.
host    microseconds of a call with numpy rows in and numpy results out, by the clock of the host.

The bound beside them is the time to move the rows once: through the GPU's memory at the speed of a
copy on the GPU, or to the GPU at the speed of a copy of ordinary host memory, both measured here.

"ours on the CPU" is our code for the host, on one thread. Behind the table it is said which goals
hold and from which batch on the GPU is faster (`goals.py`), and what NVIDIA's compute-sanitizer
finds (`sanitize.py`). With `--check` answers are compared, and that is all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.checks import compare, verdict
from benchmarks.gpu import files, goals, report, sanitize
from benchmarks.gpu.engines import PEERS, Engine, Ours, OursOnCpu, Refused, RowsThere
from benchmarks.gpu.files import PackedModel
from tvm_forest.errors import ForestError
from tvm_forest.runtime.gpu.cuda import CudaDriver

BATCHES = (1, 32, 512, 4096, 65_536, 1_000_000)
SIZES = (1, 33)
"""Batches that are checked besides the whole."""
MAX_BYTES = 1 << 30
"""Of all rows of a model: batches that are more than half of it are left out."""
ENGINES = ("ours", report.ON_CPU, *PEERS)
MAX_CALLS, MAX_COPIES = 200, 500
"""That wait in the stream at once, which holds about a thousand."""


class Clock:
    """Times the default stream.

    Attributes:
        copied: bytes a second that a copy on the GPU moves, reads and writes together.
        uploaded: bytes a second of a copy from ordinary memory of the host.
    """

    def __init__(self, driver: CudaDriver, size: int) -> None:
        """Measure copies of so many bytes."""
        self.driver, self.size = driver, size
        self.places = driver.allocate(size), driver.allocate(size)
        rows = np.zeros(size, np.uint8)
        driver.upload(self.places[0], rows, 0)
        self._copy_s = min(self._events(self._copy, 4) for _ in range(5))
        self.copied = 2 * size / self._copy_s
        self.uploaded = size / min(self._wall(lambda: self._upload(rows)) for _ in range(3))

    def _copy(self) -> None:
        self.driver.copy(self.places[1], self.places[0], self.size, 0)

    def _upload(self, rows: Any) -> None:
        self.driver.upload(self.places[0], rows, 0)
        self.driver.synchronize(0)

    def _events(self, call: Callable[[], Any], count: int) -> float:
        first = self.driver.mark(0)
        for _ in range(count):
            call()
        return self.driver.seconds(first, self.driver.mark(0)) / count

    def _wall(self, call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def kernel(self, call: Callable[[], Any], seconds: float) -> tuple[float, bool]:
        """Return seconds of a call on the GPU, and whether the host kept ahead of it."""

        def one() -> None:
            call()
            self.driver.synchronize(0)

        alone, handing_in = self._wall(one), self._wall(call)
        count = max(1, min(MAX_CALLS, int(seconds / max(alone, 1e-9))))
        copies = min(MAX_COPIES, 2 + int(2 * count * handing_in / self._copy_s))
        for _ in range(copies):
            self._copy()
        first = self.driver.mark(0)
        for _ in range(count):
            call()
        is_ahead = not self.driver.is_done(first)
        return self.driver.seconds(first, self.driver.mark(0)) / count, is_ahead

    def waiting(self, call: Callable[[], Any], seconds: float) -> list[float]:
        """Return seconds of each of several calls that wait for their results."""
        found: list[float] = []
        while len(found) < 2 or sum(found) < seconds:
            found.append(self._wall(call))
        return found


class Batches:
    """Distinct rows on the host and on the GPU; each call gets the next slice."""

    def __init__(self, driver: CudaDriver, rows: Any, most: int) -> None:
        """Draw twice as many rows as the largest batch has, as far as they fit."""
        self.driver, width = driver, rows.shape[1]
        count = min(2 * most, MAX_BYTES // (width * rows.itemsize))
        self.rows = rows[np.random.default_rng(0).integers(0, len(rows), count)]
        self.pointer = driver.allocate(self.rows.nbytes)
        driver.upload(self.pointer, self.rows, 0)
        driver.synchronize(0)
        self.there = RowsThere(self.pointer, self.rows.shape, rows.dtype)
        self._turn = 0

    def holds(self, batch: int) -> bool:
        return 2 * batch <= len(self.rows)

    def _at(self, batch: int) -> int:
        self._turn += 1
        return self._turn % (len(self.rows) // batch) * batch

    def next_here(self, batch: int) -> Any:
        at = self._at(batch)
        return self.rows[at : at + batch]

    def next_there(self, batch: int) -> RowsThere:
        return self.there.part(self._at(batch), batch)

    def close(self) -> None:
        self.driver.free(self.pointer)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--folder", type=Path, default=ROOT / "models", help="of the models")
    add("--models", nargs="+", help="names; all that the folder holds")
    add("--batches", nargs="+", type=int, default=list(BATCHES))
    add("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    add("--check", action="store_true", help="compare answers only")
    add("--no-sanitize", action="store_true", help="leave out NVIDIA's compute-sanitizer")
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=0.02, help="of a turn")
    add("--copy", type=int, default=1 << 28, help="bytes of a copy on the GPU")
    add("--device", type=int, default=0)
    add("--driver", help="path of libcuda; the installed one")
    add("--out", type=Path, help="JSON file for the results")
    return parser.parse_args()


def made(model: PackedModel, file: Path, names: list[str], records: list[Any]) -> dict[str, Engine]:
    """Make all engines; append a record of each, with the reason if there is none."""
    engines: dict[str, Engine] = {}
    for name in names:
        for label in model.candidates if name == "ours" else [name]:
            full = f"{report.OURS}{label}" if name == "ours" else name
            records.append(record := {"model": model.about["name"], "engine": full})
            try:
                if name == "ours":
                    engines[full] = Ours(model, label)
                    record["schedule"] = model.candidates[label].schedule
                elif name == report.ON_CPU:
                    engines[full] = OursOnCpu(model, file)
                else:
                    engines[full] = PEERS[name](model, file)
                    record["version"] = getattr(
                        sys.modules.get(name.split()[0]), "__version__", None
                    )
            except Exception as error:  # whatever another library raises
                record["why"] = said_of(error)
    return engines


def said_of(error: BaseException) -> str:
    """Return a line about an error."""
    text = str(error).strip().splitlines() or [""]
    return (
        text[0]
        if isinstance(error, (Refused, ForestError))
        else f"{type(error).__name__}: {text[0]}"
    )


def check(model: PackedModel, engine: Engine, record: dict[str, Any]) -> bool:
    """Write verdicts into a record; return whether the engine may be timed."""
    for kind, rows in model.checks.items():
        if kind == "wild" and not isinstance(engine, Ours):
            continue
        try:
            answers = [engine.here(rows["rows"][:n]) for n in (*SIZES, len(rows["rows"]))]
        except Exception as error:  # whatever another library raises
            record[kind] = said_of(error)
            continue
        if isinstance(engine, Ours):
            record[kind] = own_verdict(engine, answers, rows)
        else:
            right = rows[engine.gives]
            record[kind] = verdict({"value": [compare(a, right[: len(a)]) for a in answers]})
    if isinstance(engine, Ours):
        record["failed"] = any(record[kind] not in ("equal", "bound") for kind in model.checks)
        return not record["failed"]
    return "typical" in record and "WRONG" not in record["typical"]


def own_verdict(engine: Ours, answers: list[Any], rows: dict[str, Any]) -> str:
    """Say "equal", "bound" if a schedule that reorders keeps to the bound, or "WRONG"."""
    pairs = [(answer, rows["margin"][: len(answer)]) for answer in answers]
    if all(answer.tobytes() == right.tobytes() for answer, right in pairs):
        return "equal"
    bounds = [rows["bound"][: len(answer)] for answer in answers]
    inside = all(
        np.all(np.abs(answer - right.astype(np.float64)) <= bound)
        for (answer, right), bound in zip(pairs, bounds, strict=True)
    )
    return "bound" if inside and not engine.keeps_order else "WRONG"


def time_batch(
    clock: Clock, rows: Batches, engines: dict[str, Engine], batch: int, chosen: Any
) -> dict[str, dict[str, Any]]:
    """Let engines take turns at one batch size; return figures, or why there are none."""
    cells: dict[str, dict[str, Any]] = {name: {} for name in engines}
    turns: dict[str, Any] = {name: {x: [] for x in report.FIGURES} for name in engines}
    for number in range(chosen.rounds + 1):
        for name in random.Random(number).sample(list(engines), len(engines)):
            for figure in report.FIGURES:
                if f"{figure}_why" in cells[name]:
                    continue
                try:
                    found = turn(clock, rows, engines[name], figure, batch, chosen.seconds)
                except Exception as error:  # whatever another library raises
                    cells[name][f"{figure}_why"] = said_of(error)
                    continue
                turns[name][figure] += found if number else []
    for name, cell in cells.items():
        cell |= figures(turns[name], cell)
    return cells


def turn(
    clock: Clock, rows: Batches, engine: Engine, figure: str, batch: int, seconds: float
) -> list[Any]:
    """Return what one turn of an engine finds for one figure."""
    if figure == "kernel":
        return [clock.kernel(lambda: engine.there(rows.next_there(batch)), seconds)]
    if figure == "host":
        return clock.waiting(lambda: engine.here(rows.next_here(batch)), seconds)

    def there() -> None:
        engine.there(rows.next_there(batch))
        clock.driver.synchronize(0)

    return clock.waiting(there, seconds)


def figures(turns: dict[str, list[Any]], failed: dict[str, Any]) -> dict[str, Any]:
    """Return medians and spreads in microseconds, of the figures that have not failed."""
    found: dict[str, Any] = {}
    if "kernel_why" not in failed:
        found["host_waits"] = not all(is_ahead for _, is_ahead in turns["kernel"])
        found |= spread("kernel", [seconds for seconds, _ in turns["kernel"]])
    for figure in ("device", "host"):
        if f"{figure}_why" not in failed:
            found |= spread(figure, turns[figure]) | {f"{figure}_calls": len(turns[figure])}
    return found


def spread(figure: str, seconds: list[float]) -> dict[str, float]:
    """Return median, smallest and largest in microseconds."""
    us = 1e6 * np.array(seconds)
    middle, least, most = np.median(us), us.min(), us.max()
    named = {"": middle, "_least": least, "_most": most}
    return {f"{figure}{name}_us": float(value) for name, value in named.items()}


def measure(path: Path, clock: Clock, chosen: argparse.Namespace, results: dict[str, Any]) -> None:
    """Check and time one model; append to the results."""
    model = files.read(path, clock.driver)
    records: list[dict[str, Any]] = []
    engines = made(model, path.with_name(f"{model.about['name']}.ubj"), chosen.engines, records)
    for record in (record for record in records if record["engine"] in engines):
        if not check(model, engines[record["engine"]], record):
            engines.pop(record["engine"])
        print(f"  {report.line_of(record)}", flush=True)
    results["models"].append(model.about)
    results["engines"] += records
    if chosen.check:
        return
    rows = Batches(clock.driver, model.rows, max(chosen.batches))
    width, outputs = model.rows.shape[1] * model.rows.itemsize, model.forest.n_outputs
    for batch in sorted(chosen.batches):
        cell: dict[str, Any] = {"model": model.about["name"], "batch": batch}
        cell["kernel_bound_us"] = 1e6 * batch * (width + 4 * outputs) / clock.copied
        cell["device_bound_us"] = cell["kernel_bound_us"]
        cell["host_bound_us"] = 1e6 * batch * width / clock.uploaded
        if rows.holds(batch):
            cell["engines"] = time_batch(clock, rows, engines, batch, chosen)
            cell |= {figure: report.best_of(cell, figure) for figure in report.FIGURES}
        else:
            cell["why"] = f"two batches take more than {MAX_BYTES >> 20} MiB"
        results["cells"].append(cell)
        print(report.row_of(cell), flush=True)
    rows.close()


def about(driver: CudaDriver, clock: Clock, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of the machine and of this run."""
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": driver.title,
        "architecture": driver.architecture,
        "system": platform.platform(),
        "python": platform.python_version(),
        "copy_gb_s": clock.copied / 1e9,
        "upload_gb_s": clock.uploaded / 1e9,
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
    }


def store(results: dict[str, Any], path: Path | None) -> None:
    """Write the results, if a file is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


def main() -> int:
    """Check, measure, print, write; 1 if a model fails or is wrong, 2 without a GPU or models."""
    chosen = options()
    warnings.simplefilter("ignore")  # XGBoost warns of rows on the host
    paths = sorted(chosen.folder.glob(f"*{files.SUFFIX}"))
    known = {files.name_of(path): path for path in paths}
    missing = [name for name in chosen.models or known if name not in known]
    if missing or not known:
        print(f"gpu: no model {' '.join(missing)} in {chosen.folder} (have: {', '.join(known)})")
        return 2
    try:
        driver = CudaDriver(chosen.device, chosen.driver)
        clock = Clock(driver, chosen.copy)
    except ForestError as error:
        print(f"gpu: {error}")
        return 2
    results = {"about": about(driver, clock, chosen), "models": [], "engines": [], "cells": []}
    print(report.head(results["about"]), flush=True)
    is_broken = False
    for name in chosen.models or known:
        try:
            measure(known[name], clock, chosen, results)
        except (ForestError, OSError) as error:
            is_broken = True
            print(f"{name}: {error}", flush=True)
        store(results, chosen.out)
    if not chosen.check:
        print(report.whole(results))
        found = {} if chosen.no_sanitize else sanitize.sanitize_all(chosen.models or [])
        results["sanitizer"] = found
        is_broken |= any(x not in sanitize.HARMLESS for x in found.values())
        print("\n".join(goals.lines_of(results)))
        store(results, chosen.out)
    for record in results["engines"]:
        is_default = record["engine"] == report.DEFAULT
        is_broken |= bool(record.get("failed") or (is_default and "why" in record))
    return int(is_broken)
