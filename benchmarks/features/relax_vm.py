"""A forest in TVM's virtual machine beside a Predictor, microseconds a row on one thread.

    python -m benchmarks features.relax_vm [--models airline year letters]

The module holds nothing but the forest. It is run as bytecode, its forest linked (`LinkForests`)
and legalised (plain `tvm.compile`). Margins are compared first; then all take turns on batches in
rotation. Times are the least of the turns. Ratios are the median over the turns, for what another
program does to the machine meets engines alike that take their turns beside each other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["TVM_NUM_THREADS"] = "1"  # read by TVM's runtime when it starts its threads

import numpy as np
import tvm
from tvm import relax, tirx

import tvm_forest
import tvm_forest.relax
from benchmarks import models
from tvm_forest.target import cpu_name

BATCHES, TURNS, ROWS = (1, 64, 4096), 25, 16_384
MOST_BATCHES = 256


def make_module(
    forest: tvm_forest.Forest, compute: Callable[[relax.BlockBuilder, Any], Any]
) -> tvm.IRModule:
    """Return a module whose `main` gives what `compute` makes of its rows."""
    bb = relax.BlockBuilder()
    shape = (tirx.Var("n", "int64"), forest.row_width)
    rows = relax.Var("rows", relax.TensorType(shape, forest.row_dtype))
    with bb.function("main", [rows]):
        with bb.dataflow():
            result = bb.emit_output(bb.emit(compute(bb, rows)))
        bb.emit_func_output(result)
    return bb.get()


def make_engines(model: models.Model) -> dict[str, Callable[[Any], Any]]:
    """Return what predicts margins, by name; those of modules take tensors of TVM."""
    forest = tvm_forest.load(model.load() if model.library == "scikit-learn" else model.path)
    mod = make_module(forest, lambda _, rows: tvm_forest.relax.predict(rows, forest, "margin"))
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    linked, legalised = (
        relax.VirtualMachine(tvm.compile(x, target), tvm.cpu())["main"]
        for x in (tvm_forest.relax.LinkForests()(mod), mod)
    )
    predict = partial(tvm_forest.build(forest).predict_margin, n_jobs=1)
    return {"predictor": predict, "linked": linked, "legalised": legalised}


def check(engines: dict[str, Callable[[Any], Any]], rows: Any) -> None:
    """Stop if the margins of two engines differ in a bit."""
    expected = engines["predictor"](rows)
    for name in ("linked", "legalised"):
        margin = engines[name](tvm.runtime.tensor(rows)).numpy().reshape(expected.shape)
        if not np.array_equal(margin, expected, equal_nan=True):
            raise SystemExit(f"{name}: other margins")


def time_engines(
    engines: dict[str, Callable[[Any], Any]], parts: list[Any]
) -> dict[str, list[float]]:
    """Return the seconds of a call on average, in each turn of each engine."""
    tensors = [tvm.runtime.tensor(part) for part in parts]
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(TURNS):
        for name, predict in engines.items():
            inputs = parts if name == "predictor" else tensors
            begin = time.perf_counter()
            for part in inputs:
                predict(part)
            times[name].append((time.perf_counter() - begin) / len(inputs))
    return times


def median_ratio(times: dict[str, list[float]], name: str) -> float:
    """Return how many times as long as the predictor an engine takes in the same turn."""
    pairs = zip(times[name], times["predictor"], strict=True)
    return statistics.median(x / y for x, y in pairs)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "year", "letters"])
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    chosen = parser.parse_args()
    print(f"{cpu_name()}, TVM {tvm.__version__}\n")
    print("| model | rows | predictor | linked | legalised | linked / | legalised / predictor |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in chosen.models:
        model = models.get(name, chosen.cache)
        engines, rows = make_engines(model), np.array(model.rows()[:ROWS])
        check(engines, rows[:4999])
        for batch in BATCHES:
            begins = itertools.islice(range(0, len(rows) - batch + 1, batch), MOST_BATCHES)
            times = time_engines(engines, [rows[b : b + batch].copy() for b in begins])
            figures = [f"{1e6 * min(x) / batch:.3f}" for x in times.values()]
            figures += [f"{median_ratio(times, x):.2f}" for x in ("linked", "legalised")]
            print(f"| {name} | {batch} | {' | '.join(figures)} |", flush=True)
