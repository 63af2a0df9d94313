"""How much longer the default schedules take than the fastest ones that are found.

    python -m benchmarks tuning.defaults [--models airline higgs] [--batches 1 64] [--mcpu CPU]

On one thread. Defaults are those by the times of the machine that serves (the user's own, if there
is a file), and those that are chosen where no machine of the kind is known, by the times of the
nearest other one. Beside them, the cheapest point of each kind is timed: of each layout, size of
tiles and way of walking, as many as `--tried` says. What records in `--records` found to be the
fastest is timed, too. All take turns, in an order drawn for each round; ratios to the schedule of
the least median time are medians over rounds. Writes table.md and results.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks import BUILD, models
from benchmarks.models import Model
from benchmarks.pages import report
from benchmarks.timing import cpu_name, time_round
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.batches import select_schedule
from tvm_forest.search.heuristic import default_schedules_for, price_points
from tvm_forest.search.machines import nearest, shipped_machines
from tvm_forest.search.records import read_records
from tvm_forest.search.workload import Workload
from tvm_forest.target import parse_target

BATCHES = (1, 64, 512, 4096)
ROUNDS, SECONDS = 11, 0.02
MOST_ROWS = 16_384
KNOWN, UNKNOWN = "default", "default of an unknown machine"
OUT = BUILD / "defaults"


class Cell(NamedTuple):
    """A model at a size of batch: microseconds a row of each candidate, round by round."""

    model: str
    batch: int
    times: dict[str, list[float]]

    @property
    def best(self) -> str:
        """The candidate of the least median time."""
        return min(self.times, key=lambda name: float(np.median(self.times[name])))

    def ratio(self, name: str) -> float:
        """Return the median of the ratios of a candidate's times to those of the best."""
        return float(np.median(np.array(self.times[name]) / np.array(self.times[self.best])))


def candidates(
    works: dict[str, Workload], batch: int, tried: int, records: Path | None
) -> dict[str, Schedule]:
    """Return what is timed, by name; equal schedules once."""
    found = {
        name: select_schedule(default_schedules_for(work), batch) for name, work in works.items()
    }
    found = {name: sch.on_one_thread() for name, sch in found.items()}
    if records is not None and records.exists():
        known = [r for r in read_records(records) if r.batch == batch and r.seconds is not None]
        if known:
            found["tuned"] = min(known, key=lambda r: r.time).schedule
    kinds = dict[Any, tuple[str, Schedule]]()
    for _, point, sch in price_points(works[KNOWN], batch):
        block = point.block if isinstance(point.walks, str) else 0
        kind = (point.layout, point.tile, point.order, point.walks, block)
        kinds.setdefault(kind, (str(tuple(point)), sch))
    return found | dict(itertools.islice(kinds.values(), tried))


def time_cell(
    model: Model, forest: Any, batch: int, target: Any, tried: dict[str, Schedule]
) -> Cell:
    """Build all candidates, and let them take turns."""
    rows = model.rows()[:MOST_ROWS].astype(forest.row_dtype)
    batches = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)]
    built = {sch: tvm_forest.build(forest, target, sch) for sch in dict.fromkeys(tried.values())}
    turns = {sch: itertools.cycle(batches) for sch in built}
    spent: dict[Schedule, list[float]] = {sch: [] for sch in built}
    for seed in range(ROUNDS + 1):
        for sch in random.Random(seed).sample(list(built), len(built)):
            predict = built[sch].predict_margin
            call = time_round(lambda x, f=predict: f(x, n_jobs=1), turns[sch], SECONDS).call
            spent[sch].append(1e6 * call / batch)
    return Cell(model.name, batch, {name: spent[sch][1:] for name, sch in tried.items()})


def summary(cells: list[Cell]) -> str:
    """Say how many defaults are near the fastest."""
    lines = []
    for name in (KNOWN, UNKNOWN):
        ratios = sorted(cell.ratio(name) for cell in cells)
        shares = ", ".join(
            f"{sum(x <= most for x in ratios)} within {most}" for most in (1.1, 1.25, 1.5)
        )
        lines.append(
            f"{name}: of {len(ratios)}, {shares} times the fastest; at most {ratios[-1]:.2f}"
        )
    return "\n".join(lines)


def table(cells: list[Cell]) -> str:
    """Return a line for each cell."""
    heads = ["model", "rows", "default, us a row", "over the fastest", "unknown machine", "fastest"]
    rows = [
        [x.model, x.batch, f"{np.median(x.times[KNOWN]):.3g}", f"{x.ratio(KNOWN):.2f}"]
        + [f"{x.ratio(UNKNOWN):.2f}", x.best]
        for x in cells
    ]
    return report.table(heads, rows)


def main() -> None:
    """Time all cells, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=models.NAMES)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--mcpu", help="LLVM's name of the CPU that code is made for")
    parser.add_argument("--tried", type=int, default=8, help="points beside the defaults")
    parser.add_argument("--records", type=Path, help="folder of records of `tune`, MODEL.jsonl")
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder of models")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    target = parse_target({"kind": "llvm", "mcpu": chosen.mcpu} if chosen.mcpu else "llvm")
    chosen.out.mkdir(parents=True, exist_ok=True)
    cells = list[Cell]()
    for name in chosen.models:
        model = models.get(name, chosen.cache)
        forest = tvm_forest.load(model.load() if model.library == "scikit-learn" else model.path)
        work = Workload.of(forest, target)
        others = tuple(
            x for x in shipped_machines() if x.cpus != nearest(shipped_machines(), target).cpus
        )
        works = {KNOWN: work, UNKNOWN: replace(work, own_machine=nearest(others, target))}
        for batch in chosen.batches:
            records = chosen.records and chosen.records / f"{name}.jsonl"
            tried = candidates(works, batch, chosen.tried, records)
            cells.append(time_cell(model, forest, batch, target, tried))
            print(
                f"{name} {batch}: {cells[-1].ratio(KNOWN):.2f} {cells[-1].ratio(UNKNOWN):.2f}",
                flush=True,
            )
        said = {"machine": cpu_name(), "target": str(target), "cells": [x._asdict() for x in cells]}
        (chosen.out / "results.json").write_text(json.dumps(said, indent=1), encoding="utf-8")
        (chosen.out / "table.md").write_text(
            f"{table(cells)}\n\n{summary(cells)}\n", encoding="utf-8"
        )
    print(table(cells), summary(cells), sep="\n\n")
