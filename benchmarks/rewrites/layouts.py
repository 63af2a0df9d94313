"""Size and speed of every layout and tile size, one thread, called from Python.

    python -m benchmarks rewrites.layouts [--out FILE] [--models NAME ...]  # or: make bench-layouts

Prints Markdown tables: bytes of the model in memory beside the XGBoost JSON file, seconds to build,
and microseconds a row at batch 1, 64 and 4096. Batches of 64 and more go through the trees in
blocks of 64 rows of which 8 walk together; a single row walks through 8 trees together. Margins are
compared with the reference before anything is timed. Batches are distinct and rotate, because
re-timing one batch teaches the branch predictor its paths; layouts run in turns, and medians are
shown. `abalone`, `covtype` and `letters` are trained here on the published rows, the others are the
published models. Likely leaves, which the last three rows ask for, are counted on the published
profiles, for the trained models on their rows.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks.models.published import MODELS, published, rows_of, trained
from benchmarks.rewrites.schedules import blocked
from benchmarks.timing import cpu_name, seconds_a_call
from tvm_forest import Forest, Profile, Schedule
from tvm_forest.errors import BuildError
from tvm_forest.forest.probe_rows import hard_rows, typical_rows

BATCHES = (1, 64, 4096)
ROUNDS = 15
TOGETHER = 8
NO_GATE = [1.0, 0.0]

TRAINED: dict[str, Callable[[], Forest]] = {
    "abalone": lambda: trained("abalone", 1, 1000),
    "covtype": lambda: trained("covtype", 8, 100, depth=8),
    "letters": lambda: trained("letters", 26, 50),
}
PUBLISHED = ("airline", "epsilon", "higgs", "year")


def scalar(layout: str) -> Callable[[Schedule], Schedule]:
    return lambda sch: sch.represent_as(layout)


def tiled(layout: str, size: int) -> Callable[[Schedule], Schedule]:
    return lambda sch: sch.tile_nodes(size).represent_as(layout)


def optimal(layout: str) -> Callable[[Schedule], Schedule]:
    """Tile every tree so, however large the look-up table becomes."""
    return lambda sch: sch.tile_nodes(8, "optimal", NO_GATE).represent_as(layout)


LAYOUTS: dict[str, Callable[[Schedule], Schedule]] = {
    **{name: scalar(name) for name in ("array", "reorg", "packed", "ranked", "sparse")},
    **{f"array, tiles of {k}": tiled("array", k) for k in (2, 3, 4, 8)},
    **{f"sparse, tiles of {k}": tiled("sparse", k) for k in (2, 3, 4, 8)},
    "sparse, optimal tiles of 8": optimal("sparse"),
    "the same, walks peeled": lambda sch: optimal("sparse")(sch).peel_walk("tree", "likely"),
    "sparse_peeled, the same": lambda sch: optimal("sparse_peeled")(sch).peel_walk(
        "tree", "likely"
    ),
}


def with_hits(name: str) -> Forest:
    """Load or train a model, and give it a leaf profile."""
    if name in PUBLISHED:
        return Profile.load(MODELS / f"{name}.profile.csv").onto(published(name))
    forest = TRAINED[name]()
    return tvm_forest.profile(forest, rows_of(name)[0]).onto(forest)


def built(forest: Forest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build every layout that can hold the model, for blocks and for single rows."""
    records: dict[str, Any] = {}
    predictors: dict[str, Any] = {}
    for name, make in LAYOUTS.items():
        try:
            begin = time.perf_counter()
            start = make(tvm_forest.new_schedule(forest))
            blocks = tvm_forest.build(
                forest, schedule=blocked(start).interleave("b1", TOGETHER), n_jobs=1
            )
            seconds = time.perf_counter() - begin
            row = tvm_forest.build(forest, schedule=start.interleave("tree", TOGETHER), n_jobs=1)
        except BuildError as error:
            records[name] = {"refused": str(error).splitlines()[0]}
            continue
        predictors[name] = {1: row, 64: blocks, 4096: blocks}
        records[name] = {"bytes": blocks.model_bytes, "build_s": seconds}
    return predictors, records


def check(forest: Forest, predictors: dict[str, Any]) -> None:
    rows = np.concatenate([hard_rows(forest, 70), typical_rows(forest, 75)])
    expected = forest.predict_reference(rows)
    for name, by_batch in predictors.items():
        for predictor in {id(p): p for p in by_batch.values()}.values():
            for size in (1, 64, len(rows)):
                margin = predictor.predict_margin(rows[:size]).reshape(size, -1)
                assert np.array_equal(margin, expected[:size]), f"{name}: margins differ"


def measure(model: str) -> dict[str, Any]:
    """Return the record of every layout: bytes, seconds to build, microseconds a row by batch."""
    forest = with_hits(model)
    predictors, records = built(forest)
    check(forest, predictors)
    for size in BATCHES:
        batches = [typical_rows(forest, size, seed) for seed in range(4 if size > 1000 else 64)]
        turns = {name: itertools.cycle(batches) for name in predictors}
        times: dict[str, list[float]] = {name: [] for name in predictors}
        for seed in range(ROUNDS):
            for name in random.Random(seed).sample(list(predictors), len(predictors)):
                call = predictors[name][size].predict_margin
                times[name].append(seconds_a_call(call, turns[name]))
        for name, values in times.items():
            records[name][f"us_per_row_{size}"] = 1e6 * float(np.median(values)) / size
    return {"json_bytes": _json_bytes(model), "layouts": records}


def _json_bytes(model: str) -> int | None:
    path = MODELS / f"{model}.json"
    return path.stat().st_size if path.exists() else None


def table(results: dict[str, Any], title: str, show: Callable[[dict[str, Any]], str]) -> str:
    """Return a Markdown table with a row for each layout and a column for each model."""
    lines = [f"\n{title}\n", "| layout | " + " | ".join(results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for name in LAYOUTS:
        records = (result["layouts"][name] for result in results.values())
        cells = ("refused" if "refused" in record else show(record) for record in records)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """Return all tables."""
    files = (result["json_bytes"] for result in results.values())
    json_row = " | ".join("-" if size is None else f"{size / 1e6:.2f}" for size in files)
    parts = [
        table(results, "Megabytes in memory", lambda r: f"{r['bytes'] / 1e6:.2f}")
        + f"\n| XGBoost JSON file | {json_row} |",
        table(results, "Seconds to build", lambda r: f"{r['build_s']:.1f}"),
    ]
    for size in BATCHES:
        title = f"Microseconds a row, batch {size}"
        parts.append(table(results, title, lambda r, size=size: f"{r[f'us_per_row_{size}']:.2f}"))
    return "\n".join(parts)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--models", nargs="*", default=[*PUBLISHED, *TRAINED])
    options = parser.parse_args()
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_name()}, {os.cpu_count()} cores, one thread",
    }
    print(f"{about['date']}, {about['machine']}, median of {ROUNDS} rounds", flush=True)
    results = {model: measure(model) for model in options.models}
    print(tables(results))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**about, "results": results}, indent=1))
