"""Time schedules of one model beside each other, on one thread, called from Python.

    python -m benchmarks rewrites.schedules [--out FOLDER]        # or: make bench-schedules

Margins are compared with the reference before anything is timed. Batches are distinct and rotate,
because re-timing one batch teaches the branch predictor its paths. Schedules run in turns, in an
order that is drawn for each round, and medians are shown. The row "no trees" is what a call costs
in Python, with the same rows; "default" is what `build` chooses for each size of batch, and "best
hop by hop" is `hop_schedule`. All other rows have the layout `array`. `airline` is the published
model of 100 trees of depth 8; `letters` is trained here, 26 classes of 50 trees of depth up to 6.
Writes schedules.json and schedules.png.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks.models.published import published, trained
from benchmarks.timing import cpu_name, seconds_a_call
from tvm_forest import Forest, Schedule
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.rewrites.ordering import take_trees

BATCHES = (1, 64, 4096)
DEFAULT, HOPS = "default", "best hop by hop"
NO_TREES = "no trees"
ROUNDS = 21


def inner(sch: Schedule) -> tuple[str, ...]:
    """Name the loops between rows and walks."""
    return ("class", "tree") if sch.classes > 1 else ("tree",)


def blocked(sch: Schedule, rows: int = 64) -> Schedule:
    """Let blocks of rows go through one tree after the other."""
    return sch.tile("batch", "b0", "b1", rows).reorder("b0", *inner(sch), "b1")


SCHEDULES: dict[str, Callable[[Schedule], Schedule]] = {
    "one row at a time": lambda s: s,
    "one row, 4 trees together": lambda s: s.interleave("tree", 4),
    "one row, 8 trees together": lambda s: s.interleave("tree", 8),
    "one tree at a time": lambda s: s.reorder(*inner(s), "batch"),
    "blocks of 64": blocked,
    "blocks, unrolled": lambda s: blocked(s).unroll_walk("tree"),
    "blocks, 2 rows together": lambda s: blocked(s).interleave("b1", 2),
    "blocks, 4 rows together": lambda s: blocked(s).interleave("b1", 4),
    "blocks, 8 rows together": lambda s: blocked(s).interleave("b1", 8),
    "blocks, 8 rows, unrolled": lambda s: blocked(s).interleave("b1", 8).unroll_walk("tree"),
    "blocks, 8 rows, packed": lambda s: blocked(s).interleave("b1", 8).cache("b0", "pack"),
    "simdized by 16": lambda s: blocked(s, 16).simdize("b1"),
    "simdized by 16, unrolled": lambda s: blocked(s, 16).simdize("b1").unroll_walk("tree"),
}


def predictors(forest: Forest) -> dict[str, Any]:
    """Build every schedule and compare it with the reference."""
    start = tvm_forest.new_schedule(forest)
    named: dict[str, Any] = {DEFAULT: None, HOPS: tvm_forest.hop_schedule(forest)}
    named |= {name: make(start) for name, make in SCHEDULES.items()}
    built = {name: tvm_forest.build(forest, schedule=sch, n_jobs=1) for name, sch in named.items()}
    rows = np.concatenate([hard_rows(forest, 70), typical_rows(forest, 75)])
    expected = forest.predict_reference(rows)
    for name, predictor in built.items():
        for size in (1, 64, len(rows)):
            margin = predictor.predict_margin(rows[:size]).reshape(size, -1)
            assert np.array_equal(margin, expected[:size]), f"{name}: margins differ"
    empty = take_trees(forest, np.zeros(0, np.int64))
    return {NO_TREES: tvm_forest.build(empty, n_jobs=1), **built}


def measure(model: str, forest: Forest) -> list[dict[str, Any]]:
    """Return a record for every batch size and schedule."""
    built, records = predictors(forest), []
    for size in BATCHES:
        count = 4 if size > 1000 else 64
        batches = [typical_rows(forest, size, seed) for seed in range(count)]
        times: dict[str, list[float]] = {name: [] for name in built}
        turns = {name: itertools.cycle(batches) for name in built}
        for seed in range(ROUNDS):
            for name in random.Random(seed).sample(list(built), len(built)):
                times[name].append(seconds_a_call(built[name].predict_margin, turns[name]))
        default = np.median(times[DEFAULT])
        for name, values in times.items():
            record: dict[str, Any] = {"model": model, "batch": size, "schedule": name}
            record["us_per_row"] = 1e6 * float(np.median(values)) / size
            record["us_per_row_min"] = 1e6 * min(values) / size
            record["ratio_to_default"] = float(np.median(values) / default)
            records.append(record)
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Return microseconds per row, and in brackets the ratio to the default schedule."""
    heads = list(dict.fromkeys((r["model"], r["batch"]) for r in records))
    lines = [f"{'us a row (of default)':27}" + "".join(f"{m + ' ' + str(b):>17}" for m, b in heads)]
    for name in dict.fromkeys(r["schedule"] for r in records):
        own = [r for r in records if r["schedule"] == name]
        cells = [f"{r['us_per_row']:.2f} ({r['ratio_to_default']:.2f})" for r in own]
        lines.append(f"{name:27}" + "".join(f"{cell:>17}" for cell in cells))
    return "\n".join(lines)


def plot(records: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw a panel of bars for every model and batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads = list(dict.fromkeys((r["model"], r["batch"]) for r in records))
    columns = len(BATCHES)
    figure, panels = pyplot.subplots(
        len(heads) // columns, columns, figsize=(14, 8), sharey=True, layout="constrained"
    )
    for panel, (model, batch) in zip(panels.flat, heads, strict=True):
        own = [r for r in records if (r["model"], r["batch"]) == (model, batch)]
        colors = ["tab:orange" if r["schedule"] == DEFAULT else "tab:blue" for r in own]
        panel.barh([r["schedule"] for r in own], [r["us_per_row"] for r in own], color=colors)
        panel.set_title(f"{model}, batch {batch}")
        panel.set_xlabel("microseconds a row")
    panels.flat[0].invert_yaxis()
    figure.suptitle(title)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for schedules.json and schedules.png")
    parser.add_argument("--letters-rounds", type=int, default=50)
    options = parser.parse_args()
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, one thread",
        "letters_rounds": options.letters_rounds,
    }
    print(f"{about['date']}, {about['machine']}, median of {ROUNDS} rounds", flush=True)
    records = measure("airline", published("airline"))
    records += measure("letters", trained("letters", 26, options.letters_rounds))
    print(table(records))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**about, "results": records}, indent=1)
        (options.out / "schedules.json").write_text(text, encoding="utf-8")
        plot(records, options.out / "schedules.png", f"{about['machine']}, {about['date']}")
