"""Many models of the same columns as one predictor, beside a loop over predictors.

    python -m benchmarks features.many_models --models 100 --trees 50 --depth 6

Every answer is compared with that of the model's own predictor first. Both are timed in turns on
distinct batches, one thread; the least of some rounds counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost as xgb

import tvm_forest

COLUMNS, TRAINING_ROWS, ROUNDS = 20, 2000, 25
BATCHES = (1, 8, 64, 512, 4096)


def train(models: int, trees: int, depth: int) -> list[Any]:
    """Return models of different targets over the same rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(TRAINING_ROWS, COLUMNS)).astype(np.float32)
    trained = []
    for number in range(models):
        score = rows @ rng.normal(size=COLUMNS) + np.sin(3 * rows[:, number % COLUMNS])
        data = xgb.DMatrix(rows, score + rng.normal(size=TRAINING_ROWS) / 3 > 0)
        params = {"objective": "binary:logistic", "max_depth": depth, "nthread": 1, "seed": number}
        trained.append(xgb.train(params, data, trees))
    return trained


def time_in_turns(calls: dict[str, Callable[[int], Any]], batch: int) -> dict[str, float]:
    """Return microseconds of a call, by name."""
    best = dict.fromkeys(calls, float("inf"))
    repeats = max(1, 256 // batch)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for k in range(repeats):
                call(k)
            best[name] = min(best[name], (time.perf_counter() - begin) / repeats * 1e6)
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--depth", type=int, default=6)
    args = parser.parse_args()
    models = train(args.models, args.trees, args.depth)
    begin = time.perf_counter()
    each = [tvm_forest.build(model) for model in models]
    print(f"{args.models} predictors built one by one in {time.perf_counter() - begin:.1f} s")
    begin = time.perf_counter()
    several = tvm_forest.build(models)
    print(f"as one in {time.perf_counter() - begin:.1f} s")
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(max(BATCHES) + 256, COLUMNS)).astype(np.float32)
    which = rng.integers(0, args.models, len(rows))
    all_of_them = several.predict(rows)
    assert np.array_equal(all_of_them, np.stack([x.predict(rows) for x in each], 1))
    begin = time.perf_counter()
    chosen = several.predict(rows, which=which)
    print(f"first call that chooses a model for each row: {time.perf_counter() - begin:.1f} s")
    assert np.array_equal(chosen, all_of_them[np.arange(len(rows)), which])

    def loop_over_groups(part: Any, wanted: Any) -> Any:
        found = np.empty(len(part), np.float32)
        for number in np.unique(wanted):
            of_model = wanted == number
            found[of_model] = each[number].predict(part[of_model])
        return found

    print(
        "| rows | all models: a loop, us | as one, us | loop / one | one model a row: a loop, us "
        "| `which=`, us | loop / one |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for batch in BATCHES:
        calls: dict[str, Callable[[int], Any]] = {
            "loop": lambda k, n=batch: np.stack([x.predict(rows[k : k + n]) for x in each], 1),
            "one": lambda k, n=batch: several.predict(rows[k : k + n]),
            "groups": lambda k, n=batch: loop_over_groups(rows[k : k + n], which[k : k + n]),
            "which": lambda k, n=batch: several.predict(rows[k : k + n], which=which[k : k + n]),
        }
        t = time_in_turns(calls, batch)
        print(
            f"| {batch} | {t['loop']:.0f} | {t['one']:.0f} | {t['loop'] / t['one']:.1f} | "
            f"{t['groups']:.0f} | {t['which']:.0f} | {t['groups'] / t['which']:.1f} |"
        )
