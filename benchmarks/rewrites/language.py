"""Build a schedule for every directive and model, and compare the margins with the reference.

    python -m benchmarks rewrites.language          # or: make language

A cell says `equal` if the schedule keeps the order of additions and every bit is that of the
reference. A schedule that regroups them gets the largest difference in units of the bound
2 (T + 1) u (|base| + sum of |leaf|), u = 2^-24, T trees of a class, which must be at most 1; that
of `atomic_reduce` depends on timing.
Directives for GPUs are not here. Ends with status 1 if a cell fails.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

import tvm_forest
from benchmarks.models.published import CLASSES, published, trained
from tvm_forest import Forest, Schedule
from tvm_forest.forest import Array
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.schedule_prims.recipes import row_and_tree_parallel

BATCHES = (1, 65, 160)


def inner(sch: Schedule) -> tuple[str, ...]:
    """Name the loops between rows and walks."""
    return ("class", "tree") if sch.classes > 1 else ("tree",)


def blocked(sch: Schedule) -> Schedule:
    """Let blocks of 16 rows go through one tree after the other."""
    return sch.tile("batch", "b0", "b1", 16).reorder("b0", *inner(sch), "b1")


def halved(sch: Schedule) -> Schedule:
    """Give each of two threads half of the trees."""
    sch = sch.tile("tree", "t0", "t1", parts=2)
    return sch.reorder("t0", *inner(sch)[:-1], "t1", "batch").parallel("t0")


def specialized(sch: Schedule) -> Schedule:
    """Treat the two halves of the trees differently."""
    sch = sch.tile("tree", "t0", "t1", parts=2).specialize("t0")
    return sch.unroll_walk("t1@t0=0").interleave("t1@t0=1", 2)


SCHEDULES: dict[str, Callable[[Schedule], Schedule]] = {
    "tile": lambda s: s.tile("batch", "b0", "b1", 24).tile("tree", "t0", "t1", 3),
    "tile into parts": lambda s: s.tile("batch", "b0", "b1", parts=3).parallel("b0"),
    "split": lambda s: s.split("tree", "d1", "d2", 2),
    "split_by_depth": lambda s: s.split_by_depth("tree"),
    "reorder": lambda s: s.reorder(*inner(s), "batch"),
    "specialize": specialized,
    "unroll": lambda s: s.tile("tree", "t0", "t1", 3).unroll("t1"),
    "parallel, rows": lambda s: blocked(s).parallel("b0"),
    "parallel, trees": halved,
    "parallel, both": row_and_tree_parallel,
    "atomic_reduce": lambda s: halved(s).atomic_reduce("t0"),
    "vector_reduce": lambda s: halved(s).vector_reduce("t0", 8),
    "interleave, rows": lambda s: blocked(s).interleave("b1", 8),
    "interleave, trees": lambda s: s.interleave("tree", 3),
    "unroll_walk": lambda s: s.unroll_walk("tree"),
    "peel_walk": lambda s: s.peel_walk("tree", 2),
    "simdize": lambda s: blocked(s).simdize("b1"),
    "cache, rows": lambda s: blocked(s).cache("b0", "pack"),
    "cache, rows ahead": lambda s: blocked(s).cache("b0", "prefetch"),
    "cache, trees ahead": lambda s: blocked(s).cache("tree", "prefetch"),
    "represent_as": lambda s: s.represent_as("sparse"),
}


MODELS: dict[str, Callable[[], Forest]] = {
    "airline, 1": lambda: published("airline"),
    "year, 1": lambda: published("year"),
    "letters, 1": lambda: trained("letters", 1, 100),
    "airline, 26": lambda: trained("airline", CLASSES, 4),
    "year, 26": lambda: trained("year", CLASSES, 4),
    "letters, 26": lambda: trained("letters", CLASSES, 4),
}
"""Data set and number of classes."""


def rounding_bound(forest: Forest, rows: Array) -> Array:
    """Return how far apart two orders of one sum may be."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    of_class = [leaves[:, forest.tree_class == c] for c in range(forest.n_outputs)]
    trees = max(part.shape[1] for part in of_class)
    sums = np.stack([part.sum(axis=1) for part in of_class], axis=1)
    return 2 * (trees + 1) * 2.0**-24 * (np.abs(forest.base_score) + sums)


def verdict(sch: Schedule, forest: Forest, rows: Array, expected: Array, bound: Array) -> str:
    """Build a schedule and say how its margins compare."""
    predictor = tvm_forest.build(forest, schedule=sch, exact=False)
    worst, equal = 0.0, True
    for n_rows, n_jobs in ((size, jobs) for size in BATCHES for jobs in (1, 2)):
        margin = predictor.predict_margin(rows[:n_rows], n_jobs=n_jobs).reshape(n_rows, -1)
        equal &= margin.tobytes() == expected[:n_rows].tobytes()
        apart = np.abs(margin.astype(np.float64) - expected[:n_rows])
        units = np.divide(
            apart, bound[:n_rows], out=np.where(apart > 0, np.inf, 0.0), where=bound[:n_rows] > 0
        )
        worst = max(worst, float(units.max()))
    if worst > 1 or np.isnan(worst) or (sch.keeps_order and not equal):
        return "WRONG"
    return "equal" if sch.keeps_order else f"{worst:.4f}"


def column(title: str) -> list[str]:
    """Return the cells of one model, in the order of `SCHEDULES`."""
    forest = MODELS[title]()
    rows = np.concatenate([hard_rows(forest, 100), typical_rows(forest, 60, missing=0.1)])
    expected, bound = forest.predict_reference(rows), rounding_bound(forest, rows)
    start = tvm_forest.new_schedule(forest)
    return [verdict(make(start), forest, rows, expected, bound) for make in SCHEDULES.values()]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    titles = parser.parse_args().models
    begin, cores = time.perf_counter(), os.cpu_count() or 1
    with ProcessPoolExecutor(min(cores, len(titles)), get_context("spawn")) as pool:
        columns = list(pool.map(column, titles))
    print(f"{'directive':20}" + "".join(f"{title:>13}" for title in titles))
    for name, *cells in zip(SCHEDULES, *columns, strict=True):
        print(f"{name:20}" + "".join(f"{cell:>13}" for cell in cells))
    wrong = sum(cells.count("WRONG") for cells in columns)
    count = len(SCHEDULES) * len(titles)
    print(f"{count} builds, {wrong} wrong, {time.perf_counter() - begin:.0f} s")
    return int(wrong > 0)
