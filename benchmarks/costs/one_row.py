"""Time single rows: from C through the exported library, from Python, and a few lines of C.

    python -m benchmarks costs.one_row [--models M ...] [--cache FOLDER]

Distinct rows come in rotation, on one core. The table has the percentiles 50, 99 and 99.9 of calls
by the clock, from C less what reading the clock takes, and the least mean of 16 calls. The
yardstick for models of shallow trees is scalar C, 8 complete trees together, compiled by the
machine's C compiler without its vectoriser.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models

HEADS = ("model", "nodes", "from", "p50", "p99", "p99.9", "least mean")
CALLS = 20_000
PERCENTILES = (50, 99, 99.9)
TOGETHER = 8
"""Trees that go together in the C."""

SHALLOW = 8
"""Depth up to which there is a yardstick."""


def main() -> None:
    """Print a table, nanoseconds a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["xgb_500", "xgb_1000"])
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    args = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |\n|---|---:|---|---:|---:|---:|---:|")
    for name in args.models:
        model = models.get(name, args.cache)
        predictor = tvm_forest.build(model.load())
        for kind, times in measure(predictor, model.rows()).items():
            figures = " | ".join(f"{x:,.0f}" for x in times)
            print(f"| {name} | {predictor.forest.n_nodes:,} | {kind} | {figures} |", flush=True)


def measure(predictor: Any, rows: Any) -> dict[str, list[float]]:
    """Return percentiles and least mean of each way to predict, in nanoseconds."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    with tempfile.TemporaryDirectory() as folder:
        times = _time_in_c(predictor, np.ascontiguousarray(rows), Path(folder))
    for function in (predictor.predict, predictor.predict_margin):
        times[function.__name__] = _time_in_python(function, rows)
    return times


def _time_in_python(function: Any, rows: Any) -> list[float]:
    each, singles = [], [rows[k : k + 1] for k in range(4096)]
    for k in range(CALLS):
        row = singles[k % len(singles)]
        begin = time.perf_counter_ns()
        function(row)
        each.append(time.perf_counter_ns() - begin)
    means = np.array(each).reshape(-1, 16).mean(axis=1)
    return [*np.percentile(each, PERCENTILES).tolist(), float(means.min())]


def _time_in_c(predictor: Any, rows: Any, folder: Path) -> dict[str, list[float]]:
    forest = predictor.forest
    predictor.export_library(folder / "model.so")
    depth = int(forest.depths.max())
    depth = depth if depth <= SHALLOW and forest.n_outputs == 1 else 0
    (folder / "nodes").write_bytes(_write_complete_trees(forest, depth) if depth else b"\0" * 64)
    rows.tofile(folder / "rows")
    source = Path(__file__).with_name("one_row.c")
    flags = ["-O3", "-march=native", "-fno-tree-vectorize", f"-DDEPTH={depth}"]
    flags += [str(source), "-o", str(folder / "one_row"), "-ldl"]
    subprocess.run(["cc", *flags], check=True)
    trees = forest.n_trees + -forest.n_trees % TOGETHER
    sizes = map(str, (len(rows), rows.shape[1], trees))
    files = map(str, (folder / "one_row", folder / "model.so", folder / "nodes", folder / "rows"))
    said = subprocess.run([*files, *sizes], check=True, capture_output=True, text=True).stdout
    turns: dict[str, list[list[float]]] = {}
    for line in said.splitlines():
        kind, *numbers = line.split()
        turns.setdefault(kind, []).append([float(x) for x in numbers[:4]])
    clock = turns.pop("clock")[0][0]
    least = {kind: np.min(times, axis=0) for kind, times in turns.items()}
    return {kind: [*(x - clock for x in times[:3]), times[3]] for kind, times in least.items()}


def _write_complete_trees(forest: Any, depth: int) -> bytes:
    """Return thresholds and features of complete trees, level by level, then leaves."""
    node, levels = forest.tree_offset[:-1, None].astype(np.int64), []
    for _ in range(depth):
        levels.append(node)
        base, leaf = forest.tree_offset[forest.node_tree[node]], forest.is_leaf[node]
        both = [np.where(leaf, node, base + side[node]) for side in (forest.left, forest.right)]
        node = np.stack(both, axis=2).reshape(forest.n_trees, -1)
    inner, more = np.concatenate(levels, axis=1), ((0, -forest.n_trees % TOGETHER), (0, 0))
    nodes = np.zeros(inner.shape, [("threshold", "f4"), ("feature", "i4")])
    nodes["threshold"] = forest.threshold[inner]
    nodes["feature"] = np.where(forest.is_leaf[inner], 0, forest.feature[inner])
    leaves = np.pad(forest.leaf_value[node, 0].astype(np.float32), more)
    padding = np.zeros((-forest.n_trees % TOGETHER, inner.shape[1]), nodes.dtype)
    return nodes.tobytes() + padding.tobytes() + leaves.tobytes()
