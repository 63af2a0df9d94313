"""Run every schedule for GPUs in every layout on real models, thread by thread on the CPU.

    python -m benchmarks gpu.recipes            # or: make gpu-recipes, half an hour
    python -m benchmarks gpu.recipes --models year --layouts packed --rows 70

The schedules: SilvanForge's template with each of its parameters varied, Tahoe's four strategies
and the two forms of "shared data", the Forest Inference Library of RAPIDS, straight lines, and sums
by shuffles. Margins must be equal to those of the reference to the bit if the schedule keeps the
order of additions, otherwise within 2 (T + 1) u (|base| + sum of |leaf|). Half of the runs start
with the last thread. A schedule that does not fit into shared memory must say so. Covtype and
letters are trained on the published rows, letters with fewer rounds than in the literature. Ends
with status 1 if a run fails.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

import tvm_forest
from benchmarks.models.published import CLASSES, published, trained
from tvm_forest import Forest, Schedule
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Array
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.layouts import COPIED
from tvm_forest.schedule_prims import recipes
from tvm_forest.search.silvanforge import TABLE_5

MODELS: dict[str, Callable[[], Forest]] = {
    "airline": lambda: published("airline"),
    "year": lambda: published("year"),
    "covtype": lambda: trained("covtype", 8, rounds=60, depth=8),
    "letters": lambda: trained("letters", CLASSES, rounds=60, depth=6),
}
LAYOUTS = ("array", "packed", "ranked", "reorg", "sparse", "array in tiles", "sparse in tiles")
TARGETS = ("simt", {"kind": "simt", "order": "backwards"})
BASE = {"rows_tb": 32, "rows_thread": 1, "tree_threads": 10, "cache_rows": True}
BASE |= {"cache_trees": False, "unroll": True, "factor": 2, "shared": True}

NEAR = {"factor": 1, "tree_threads": 2, "unroll": False}
"""With trees in shared memory: few, for each straight line has its own, and one after the other."""


def template(forest: Forest, layout: str) -> Iterator[tuple[str, Schedule]]:
    """Vary one parameter of the template after the other; straight lines want sorted trees."""
    start = laid_out(tvm_forest.new_schedule(forest), layout)
    known = tvm_forest.with_depths(start.sort_trees(), forest)
    for name, values in TABLE_5.items():
        for value in values if name != "layout" else ():
            if value != BASE[name] or name == "rows_tb":
                if name == "cache_trees" and layout not in COPIED:
                    continue
                point = {**BASE, name: value, **(NEAR if name == "cache_trees" else {})}
                point["rows_tb"] = 8 if point["tree_threads"] == 50 else point["rows_tb"]
                sch = recipes.gpu_template(known if point["unroll"] else start, **point)
                yield f"template {name}={value}", sch
    if layout in COPIED:
        yield (
            "template, cached trees, plain walks",
            recipes.gpu_template(start, 32, 2, 2, cache_trees=True, unroll=False, factor=1),
        )


def of_the_literature(forest: Forest, layout: str) -> Iterator[tuple[str, Schedule]]:
    """Yield the other recipes."""
    start = laid_out(tvm_forest.new_schedule(forest), layout)
    at = start.trees // start.classes // 3 // 2 * 2
    yield "straight lines", recipes.gpu_straight_lines(start, at)
    yield "Tahoe direct", recipes.tahoe_direct(start)
    yield "Tahoe shared data", recipes.tahoe_shared_data(start)
    yield "Tahoe shared data, rows", recipes.tahoe_shared_data_rows(start)
    if layout in COPIED:
        yield "Tahoe shared forest", recipes.tahoe_shared_forest(start, 1)
        yield "Tahoe shared partial forest", recipes.tahoe_shared_partial_forest(start, 1, 64)
    yield "RAPIDS FIL", recipes.rapids_fil(start)
    output = ("class",) if start.classes > 1 else ()
    sch = start.tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 32)
    sch = sch.reorder("b0", "b1", "t1", *output, "t0").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.y").gpu_dimension("t1", "block.x").cache("b0")
    yield "shuffles", sch.vector_reduce("t1", 32).interleave("t0", 2)
    yield "shuffles, then shared memory", sch.vector_reduce("t1", 8)


def laid_out(sch: Schedule, layout: str) -> Schedule:
    """Choose a layout, and tiles of 4 nodes if it says so."""
    name, _, tiles = layout.partition(" ")
    return (sch.tile_nodes(4) if tiles else sch).represent_as(name)


def bound(forest: Forest, rows: Array) -> Array:
    """How far two orders of one sum can be apart, (R, C)."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    outputs = range(forest.n_outputs)
    sums = np.stack([leaves[:, forest.tree_class == c].sum(axis=1) for c in outputs], axis=1)
    unit = np.finfo(forest.sum_dtype).eps / 2
    return 2 * (forest.n_trees + 1) * unit * (np.abs(forest.base_score) + sums)


def outcome(forest: Forest, sch: Schedule, number: int, rows: Array, expected: Array) -> str:
    """Say what came of a schedule: "equal", "within the bound", "refused", or what is wrong."""
    try:
        predictor = tvm_forest.build(forest, TARGETS[number % 2], sch, exact=sch.keeps_order)
    except ScheduleError as error:
        fits_not = "bytes of shared memory per block" in str(error)
        return "refused" if fits_not else f"FAILED: {error}"
    margin = predictor.predict_margin(rows).reshape(expected.shape)
    if np.array_equal(margin, expected):
        return "equal"
    if sch.keeps_order:
        return "FAILED: keeps the order, but is not equal"
    near = np.all(np.abs(margin - expected.astype(np.float64)) <= bound(forest, rows))
    return "within the bound" if near else "FAILED: beyond the bound"


def run(name: str, layouts: list[str], n: int) -> Counter[str]:
    """Run all schedules of a model, and print a line of counts for each layout."""
    forest, total = MODELS[name](), Counter[str]()
    rows = np.concatenate([hard_rows(forest, n // 2, seed=1), typical_rows(forest, n - n // 2)])
    expected = forest.predict_reference(rows)
    print(f"{name}: {forest.n_trees} trees, {forest.n_outputs} classes, {n} rows", flush=True)
    for layout in layouts:
        begin, found = time.perf_counter(), run_layout(forest, layout, rows, expected)
        print(f"  {layout}: {counts(found)}; {time.perf_counter() - begin:.0f} s", flush=True)
        total += found
    return total


def run_layout(forest: Forest, layout: str, rows: Array, expected: Array) -> Counter[str]:
    """Run all schedules in a layout, and print what is not as it should be."""
    found = Counter[str]()
    for make in (template, of_the_literature):
        for number, (label, sch) in enumerate(make(forest, layout)):
            what = outcome(forest, sch, number, rows, expected)
            found[what.split(":")[0]] += 1
            if what.startswith("FAILED"):
                print(f"{layout}, {label}: {what}\n{sch}", flush=True)
    return found


def counts(found: Counter[str]) -> str:
    """Say how often each outcome was met."""
    return f"{sum(found.values())} runs: " + ", ".join(f"{found[x]} {x}" for x in sorted(found))


def main() -> bool:
    """Run what the command line asks for; return whether some failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--rows", type=int, default=70)
    given = parser.parse_args()
    found = sum((run(name, given.layouts, given.rows) for name in given.models), Counter[str]())
    print("in all:", counts(found))
    return found["FAILED"] > 0
