"""Time the compiled models beside other engines on a CPU, called from Python with numpy rows.

    python -m benchmarks cpu --out build/cpu            # or: make bench-full
    python -m benchmarks cpu --short --out build/cpu    # or: make bench

Every engine runs in a process of its own. First its answers are laid beside those of the training
library: "equal" to the bit (margins, where the engine tells them), "close", or "WRONG" (timed, and
never the best peer). Our own must be equal, also on rows made of thresholds, or the status is 1.
Then engines take turns, in an order that is drawn for each round; a turn calls `predict` with one
slice of 20,480 rows after the other, so that no branch predictor learns a batch. A figure is the
smallest mean of a turn; the JSON file has the median too. The first round does not count. An
engine that has used up its time for a batch size misses the other rounds; one whose call took
longer than `--longest` has no figure for larger batches.

Seconds to make an engine are those from the model's file to the first prediction. The peak of
memory is that of the engine's process until then, imports and the training library included where
the engine needs it, or of the largest compiler that it has started, if that is more. Threads are
set by each engine's own parameter and OMP_NUM_THREADS; the JSON file says how many cores were busy.
With as many threads as there are cores, our own engine decides by itself how many it uses.

`catboost~alike` is CatBoost's applier with a model of its own of the same shape (see
`models/look_alikes.py`), and `ours~alike` that model compiled: each is compared with CatBoost, and
neither is a best peer. An engine of another version, in an environment that has it and numpy, takes
part by

    python -m benchmarks cpu --other xgboost@3.4=PATH/bin/python

Writes results.json, report.md and a plot for each number of threads.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import engines, models
from benchmarks.checks import verdict
from benchmarks.engines.worker import Refused, Worker
from benchmarks.models import Model, look_alikes
from benchmarks.pages import report
from benchmarks.timing import cores, cpu_name
from tvm_forest.forest.probe_rows import hard_rows

BATCHES = (1, 8, 32, 128, 512, 4096, 16384)
SHORT_BATCHES = (1, 128, 4096)
PACKAGES = (
    "apache-tvm",
    "catboost",
    "daal",
    "lightgbm",
    "lleaves",
    "numpy",
    "nvforest-cu12",
    "onnxruntime",
)
PACKAGES += ("pylignum", "scikit-learn", "timber-compiler", "tl2cgen", "treelite", "xgboost", "ydf")
CHECKED, HARD = 500, 200
SMALL = (1, 33)
"""Batches that are checked besides the whole: engines have other code for few rows."""
BUSY = 1.3
"""Cores in use by an engine on one thread, above which a warning is printed."""


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--short", action="store_true", help="few models and batches, little time for each")
    add(
        "--models", nargs="+", help=f"of {', '.join(models.TRAINED)}, {', '.join(models.PUBLISHED)}"
    )
    add("--batches", nargs="+", type=int)
    add("--threads", nargs="+", type=int, default=[1, 2])
    every = [*engines.ENGINES, *report.LOOK_ALIKES]
    add("--engines", nargs="+", default=every, help="names, or module:Class")
    add(
        "--other",
        nargs="+",
        default=[],
        metavar="ENGINE@VERSION=PYTHON",
        help="engines of other environments",
    )
    add(
        "--schedule",
        nargs="+",
        default=[],
        help="JSON files, or names in rewrites/layouts.py, rewrites/schedules.py",
    )
    add("--rounds", type=int, help="turns of each engine")
    add("--seconds", type=float, help="of each engine and batch size")
    add("--longest", type=float, help="seconds of a call")
    add("--patience", type=float, help="seconds to make an engine")
    add("--cache", type=Path, default=models.CACHE, help="folder for trained models and rows")
    add("--out", type=Path, help="folder for the results")
    chosen = parser.parse_args()
    short = chosen.short
    names = chosen.models or (models.SHORT if short else models.NAMES)
    chosen.models = [name for name in names if models.at_hand(name)]
    chosen.batches = chosen.batches or (SHORT_BATCHES if short else BATCHES)
    chosen.rounds = chosen.rounds or (3 if short else 7)
    chosen.seconds = chosen.seconds or (0.06 if short else 0.2)
    chosen.longest = chosen.longest or (0.5 if short else 5.0)
    chosen.patience = chosen.patience or (20.0 if short else 300.0)
    chosen.engines += [f"{report.OURS}:{schedule}" for schedule in chosen.schedule]
    chosen.pythons = dict(other.split("=", 1) for other in chosen.other)
    chosen.engines += chosen.pythons
    return chosen


def about(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the facts of the machine and of this run."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_name()}, {cores()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": chosen.threads,
        "batches": list(chosen.batches),
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
    }


@contextmanager
def started(
    run_by: dict[str, Model], folder: Path, chosen: argparse.Namespace, out: list[Any]
) -> Iterator[Any]:
    """Make every engine that can be made, and end them all; append a record of each to `out`.

    Args:
        run_by: the model that each engine is to run.
    """
    workers: dict[str, Worker] = {}
    try:
        for name, model in run_by.items():
            record: dict[str, Any] = {"model": model.name, "engine": name}
            out.append(record)
            if model.library not in engines.find(name)[0].takes:
                record |= {"code": "other", "why": f"takes no models of {model.library}"}
                continue
            python = chosen.pythons.get(name, sys.executable)
            workers[name] = Worker(name, model, max(chosen.threads), folder, python)
            with refusal_noted(workers, record):
                record |= workers[name].ask({"do": "make"}, chosen.patience)
            note(f"{model.name}, {name}: {record.get('code') or round(record['make_s'], 1)}")
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


@contextmanager
def refusal_noted(workers: dict[str, Worker], record: dict[str, Any]) -> Iterator[None]:
    """Write into an engine's record why it stopped, and go on without it."""
    try:
        yield
    except Refused as refused:
        record |= {"code": refused.code, "why": refused.why}
        workers.pop(record["engine"]).close()


def write_answers(model: Model, path: Path) -> None:
    """Write rows, and what the training library says of them."""
    source = model.load() if model.library == "scikit-learn" else model.path
    hard = hard_rows(tvm_forest.load(source), HARD)
    hard[np.isinf(hard)] = 0  # which most libraries refuse
    arrays = {}
    for kind, rows in (("typical", model.rows()[:CHECKED]), ("hard", hard)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns of NaN
            margin, value = model.reference(rows)
        arrays |= {f"{kind}_rows": rows, f"{kind}_margin": margin, f"{kind}_value": value}
    np.savez(path, **arrays)


def check(worker: Worker, record: dict[str, Any], threads: int, path: Path) -> None:
    """Set the threads, compare the answers, and write the verdicts into the record."""
    worker.ask({"do": "use", "threads": threads}, 60)
    request = {"do": "check", "path": str(path), "sizes": SMALL}
    said = verdict(worker.ask(request | {"kind": "typical"}, 600))
    record.setdefault("verdicts", {})[str(threads)] = said
    try:
        record["hard"] = verdict(worker.ask(request | {"kind": "hard"}, 600))
    except Refused as refused:
        record["hard"] = f"{refused.code}: {refused.why}"
    if record["must_equal"] and {said, record["hard"]} != {"equal"}:
        record["failed"] = True
        print(f"{record['model']}, {record['engine']}: {said}, hard rows {record['hard']}")


def time_batch(
    workers: dict[str, Worker], batch: int, before: dict[str, float], chosen: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Let the engines take turns at one batch size; return a cell for each.

    Args:
        before: seconds of a call at the batch size before.
    """
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    spent = dict.fromkeys(workers, 0.0)
    cells: dict[str, dict[str, Any]] = {}
    for number in range(chosen.rounds + 1):
        for name in random.Random(number).sample(list(workers), len(workers)):
            if before.get(name, 0.0) > chosen.longest:
                cells[name] = {"code": "slow", "why": f"over {before[name]:.0f} s a call"}
            if name in cells or (rounds[name] and spent[name] > 2 * chosen.seconds):
                continue
            request = {"do": "run", "batch": batch, "seconds": chosen.seconds / chosen.rounds}
            try:
                answer = workers[name].ask(request, 60 + 10 * chosen.longest)
            except Refused as refused:
                cells[name] = {"code": refused.code, "why": refused.why}
                workers.pop(name).close()
                continue
            rounds[name].append(answer)
            spent[name] += answer["call"] * answer["calls"]
    return {name: cells.get(name) or figures(rounds[name], batch) for name in rounds}


def figures(turns: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    """Return microseconds a row, smallest and median, of all turns but the first if it can be."""
    turns = turns[1:] or turns
    calls = [1e6 * turn["call"] / batch for turn in turns]
    return {
        "us": min(calls),
        "us_median": float(np.median(calls)),
        "rounds": len(turns),
        "calls": sum(turn["calls"] for turn in turns),
        "cores": float(np.median([turn["cores"] for turn in turns])),
    }


def note(text: str) -> None:
    """Tell those who wait how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(name: str, chosen: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure one model, and append to the results."""
    model = models.get(name, chosen.cache)
    about = {"name": name, "library": model.library, "rows": model.rows_from}
    results["models"].append(about | {"features": model.rows().shape[1]})
    run_by = choose_models(model, chosen, results["models"][-1])
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        answers = {each.name: Path(folder) / f"{each.name}.npz" for each in run_by.values()}
        for each in dict.fromkeys(run_by.values()):
            write_answers(each, answers[each.name])
        with started(run_by, Path(folder), chosen, records) as workers:
            for threads in chosen.threads:
                for record in [r for r in records if r["engine"] in workers]:
                    path = answers[run_by[record["engine"]].name]
                    with refusal_noted(workers, record):
                        check(workers[record["engine"]], record, threads, path)
                time_threads(workers, threads, model, chosen, results["cells"])
    results["engines"] += [record | {"model": name} for record in records]


def choose_models(
    model: Model, chosen: argparse.Namespace, about: dict[str, Any]
) -> dict[str, Any]:
    """Return the model that each engine runs, or its look-alike, whose shape is written down."""
    run_by = dict.fromkeys(chosen.engines, model)
    alike = [name for name in chosen.engines if report.is_look_alike(name)]
    if model.library == "catboost":  # which is beside its own applier
        return {name: model for name in run_by if name not in alike}
    if alike:
        note(f"{model.name}, its look-alike")
        run_by |= dict.fromkeys(alike, look_alikes.look_alike_of(model))
        about["alike"] = str(look_alikes.find_shape(model))
    return run_by


def is_missing(record: dict[str, Any]) -> bool:
    """Whether our own engine, with its default schedule, has no figures for a model."""
    return record["engine"] == report.OURS and "code" in record


def time_threads(
    workers: dict[str, Worker], threads: int, model: Model, chosen: Any, out: list[Any]
) -> None:
    """Time all batch sizes, small ones first; append the cells to `out`."""
    before: dict[str, float] = {}
    for batch in sorted(chosen.batches):
        note(f"{model.name}, threads: {threads}, batch {batch}")
        for engine, cell in time_batch(workers, batch, before, chosen).items():
            if "us" in cell:
                before[engine] = 1e-6 * cell["us"] * batch
            head = {"model": model.name, "threads": threads, "batch": batch, "engine": engine}
            out.append(head | cell)
            if threads == 1 and cell.get("cores", 0) > BUSY:
                text = f"{cell['cores']:.1f} cores busy on one thread"
                print(f"{model.name}, batch {batch}, {engine}: {text}")


def main() -> None:
    """Measure, print, write; status 1 if our own predictions differ from the library's."""
    chosen = options()
    results: dict[str, Any] = {"about": about(chosen), "models": [], "engines": [], "cells": []}
    print(f"{results['about']['date']}, {results['about']['machine']}", flush=True)
    for name in chosen.models:
        measure(name, chosen, results)
        if chosen.out is not None:
            chosen.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(results, indent=1)
            (chosen.out / "results.json").write_text(text, encoding="utf-8")
            (chosen.out / "report.md").write_text(report.whole(results), encoding="utf-8")
    print(report.summary(results))
    print(report.reasons(results))
    if chosen.out is not None:
        report.plot(results, chosen.out)
    failed = [r for r in results["engines"] if r.get("failed") or is_missing(r)]
    sys.exit(1 if failed else 0)
