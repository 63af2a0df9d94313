"""Time a compiled model beside XGBoost's `inplace_predict`, one thread, called from Python.

    python benchmarks/first_figure.py [MODEL.json ...] [--json OUT.json]

Margins are compared bit for bit before anything is timed. Batches are distinct and rotate, because
re-timing one batch teaches the branch predictor its paths. Both engines run in turns. Without
arguments a model is trained: 100 trees of depth 8 on 28 features.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

import tvm_forest
from tvm_forest.probe_rows import hard_rows, typical_rows

BATCHES = (1, 64, 4096)
ROUNDS = 7
SECONDS_A_ROUND = 0.3


def trained_model() -> xgboost.Booster:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 28)).astype(np.float32)
    score = rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2]) + rng.normal(size=20_000)
    data = xgboost.DMatrix(rows, score > 0)
    return xgboost.train({"max_depth": 8, "objective": "binary:logistic", "seed": 0}, data, 100)


def seconds_a_call(function: Callable[[Any], Any], batches: list[Any]) -> float:
    """One round: whole rotations until the time is used up."""
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < SECONDS_A_ROUND or not calls:
        for batch in batches:
            function(batch)
        calls += len(batches)
    return spent / calls


def measure(name: str, booster: xgboost.Booster) -> list[dict[str, Any]]:
    booster.set_param({"nthread": 1})
    begin = time.perf_counter()
    predictor = tvm_forest.build(booster, n_jobs=1)
    build_seconds = time.perf_counter() - begin
    results = []
    for size in BATCHES:
        batches = [typical_rows(predictor.forest, size, seed) for seed in range(16)]
        for rows in (*batches, hard_rows(predictor.forest, size)):
            ours = predictor.predict_margin(rows)
            theirs = booster.inplace_predict(rows, predict_type="margin")
            assert np.array_equal(ours, theirs), f"{name}: margins differ at batch {size}"
        times: dict[str, list[float]] = {"tvm_forest": [], "xgboost": []}
        for _ in range(ROUNDS):
            times["tvm_forest"].append(seconds_a_call(predictor.predict, batches))
            times["xgboost"].append(seconds_a_call(booster.inplace_predict, batches))
        microseconds = {
            f"{engine}_us_{what}": 1e6 * float(pick(values))
            for engine, values in times.items()
            for what, pick in (("min", np.min), ("median", np.median))
        }
        ratio = float(np.median(np.divide(times["xgboost"], times["tvm_forest"])))
        results.append(
            {"model": name, "batch": size, "ratio": ratio, **microseconds, "build_s": build_seconds}
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    models = {path.stem: xgboost.Booster(model_file=path) for path in options.models}
    results = []
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one thread")
    print(
        f"XGBoost {xgboost.__version__}, microseconds a call: minimum (median) of {ROUNDS} rounds"
    )
    for name, booster in (models or {"trained": trained_model()}).items():
        for row in measure(name, booster):
            results.append(row)
            ours = f"{row['tvm_forest_us_min']:.1f} ({row['tvm_forest_us_median']:.1f})"
            theirs = f"{row['xgboost_us_min']:.1f} ({row['xgboost_us_median']:.1f})"
            head = f"{name:12} batch {row['batch']:5}"
            print(
                f"{head}  ours {ours:22} XGBoost {theirs:22} ratio {row['ratio']:.2f}", flush=True
            )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
