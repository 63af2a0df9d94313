"""Say what new leaf values of a known model take until it predicts by them, in microseconds.

    python -m benchmarks costs.refreshing [--rounds N]

A model of XGBoost is refreshed with other rows, by "process_type": "update". The predictor of the
one gets the leaves of the other, and back, each in turns and the least of all rounds:

    update, Forest                  by `update`, which takes any trees
    update_leaves, Forest           by `update_leaves`
    update_leaves, array            from leaf values alone
    update_leaves, Booster          from the library's object, which is read first
    the first time                  `update_leaves` of a predictor that was never refreshed

After each way, rows are predicted and compared with XGBoost, or nothing is told.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xgboost

import tvm_forest
from benchmarks import timing

SIZES = {"100 trees of depth 6": 100, "1,000 trees of depth 6": 1000}


def train(trees: int) -> tuple[Any, list[Any]]:
    """Return rows, a Booster, and the same one refreshed."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 30)).astype(np.float32)
    answer = rows[:, 0] * rows[:, 1] + rng.normal(size=3000) / 2
    options = {"max_depth": 6, "eta": 0.1, "nthread": 1, "verbosity": 0}
    first = xgboost.train(options, xgboost.DMatrix(rows, answer), trees)
    options |= {"process_type": "update", "updater": "refresh", "refresh_leaf": True}
    newer = xgboost.DMatrix(rows, -answer)
    return rows[:700], [first, xgboost.train(options, newer, trees, xgb_model=first.copy())]


def time_way(predictor: Any, call: Callable[[Any], None], given: list[Any], check: Any) -> float:
    """Return the least seconds of both turns."""
    spent = []
    for number, each in enumerate(given):
        begin = time.perf_counter()
        call(each)
        spent.append(time.perf_counter() - begin)
        check(predictor, number)
    return min(spent)


def measure(trees: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each way."""
    rows, models = train(trees)
    wanted = [model.predict(xgboost.DMatrix(rows)) for model in models]

    def check(predictor: Any, number: int) -> None:
        for part in (1, len(rows)):
            if not np.array_equal(predictor.predict(rows[:part]), wanted[number][:part]):
                raise SystemExit("the refreshed model is wrong")

    predictor = tvm_forest.build(models[0])
    least: dict[str, float] = {}

    def note(name: str, seconds: float) -> None:
        least[name] = min(seconds, least.get(name, seconds))

    for _ in range(rounds):
        forests = [tvm_forest.load(model) for model in models]
        leaves = [forest.leaf_value[forest.is_leaf, 0] for forest in forests]
        predictor.update(forests[0])
        begin = time.perf_counter()
        predictor.update_leaves(forests[1])
        note("the first time", time.perf_counter() - begin)
        check(predictor, 1)
        ways = (
            ("update_leaves, Forest", predictor.update_leaves, forests),
            ("update_leaves, array", predictor.update_leaves, leaves),
            ("update_leaves, Booster", predictor.update_leaves, models),
            ("update, Forest", predictor.update, forests),
        )
        for name, call, given in ways:
            note(name, time_way(predictor, call, given, check))
    return least


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    found = {name: measure(trees, rounds) for name, trees in SIZES.items()}
    print(timing.cpu_name())
    print("| us | " + " | ".join(found) + " |\n|---|" + "---:|" * len(found))
    for way in sorted(set(itertools.chain(*found.values()))):
        print(f"| {way} | " + " | ".join(f"{x[way] * 1e6:,.0f}" for x in found.values()) + " |")
