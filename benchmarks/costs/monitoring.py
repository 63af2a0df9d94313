"""Say what a monitor costs a call, in percent and in nanoseconds.

    python -m benchmarks costs.monitoring [--rounds N]

A model of XGBoost, 100 trees of depth 6 and 30 columns, on one thread. The predictor and a monitor
of it take short turns, and the least time of a call is told of each, which leaves out the looks at
rows that have a share of the time of their own, and how many rows the monitor has observed.
"""

from __future__ import annotations

import argparse

import numpy as np
import xgboost

import tvm_forest
from benchmarks import timing

SECONDS_A_TURN = 0.003
"""Short enough that other work on the machine leaves some turns alone."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 30)).astype(np.float32)
    data = xgboost.DMatrix(rows, rows[:, 0] * rows[:, 1] + rng.normal(size=len(rows)) / 2)
    model = xgboost.train({"max_depth": 6, "eta": 0.1, "nthread": 1}, data, 100)
    predictor = tvm_forest.build(model, n_jobs=1)
    print(timing.cpu_name())
    print("| rows of a call | predictor, us | monitor, us | percent | rows observed a second |")
    print("|---:|---:|---:|---:|---:|")
    for size in (1, 8, 64, 4096):
        monitor = tvm_forest.Monitor(predictor, rows, window=10**9)
        batches = [
            rng.normal(size=(size, 30)).astype(np.float32) for _ in range(max(4, 8192 // size))
        ]
        calls = {"predictor": predictor.predict, "monitor": monitor.predict}
        spent = timing.time_in_turns(calls, batches, rounds, SECONDS_A_TURN)
        plain, watched = (min(spent[name]) * 1e6 for name in calls)
        asked = (rounds + 1) * SECONDS_A_TURN
        observed = monitor.report().rows / asked
        print(
            f"| {size:,} | {plain:.2f} | {watched:.2f} | {100 * (watched / plain - 1):.1f} | "
            f"{observed:,.0f} |"
        )
