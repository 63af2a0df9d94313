"""SHAP values of many rows on one core: by rows of training, and with a background of 100 rows.

takes: numbers of rows, features, trees and their depth; gives: lines of Markdown tables.

    python -m benchmarks features.contributions_many --rows 3000000
    PYTHONPATH=... python -m benchmarks features.contributions_many --peers woodelf shap

The model is XGBoost's, of drawn numbers. Engines take turns. XGBoost and `shap` take milliseconds a
row whatever the batch, so they get fewer rows. Nothing is timed before values agree.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xgboost

import tvm_forest
from benchmarks.timing import cpu_name

Call = Callable[[Any], Any]

PEER_ROWS = {"xgboost": 2_000, "shap": 100, "woodelf": 400_000}
"""Rows of a call."""


def train(features: int, trees: int, depth: int) -> tuple[Any, Any]:
    """Return a model, and the rows that it was trained on."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, features)).astype(np.float32)
    target = rows[:, 0] + rows[:, 1] * rows[:, 2] + (rows[:, 5] > 0) * rows[:, 7]
    target += rng.normal(size=len(rows))
    params = {"max_depth": depth, "nthread": 1, "seed": 0}
    return xgboost.train(params, xgboost.DMatrix(rows, target), trees), rows


def find_peers(names: list[str], model: Any, background: Any) -> dict[str, Call]:
    """Return what explains rows, by name and by what stands in for what is not known."""
    peers: dict[str, Call] = {}
    if "xgboost" in names:
        peers["xgboost, training"] = lambda rows: model.predict(
            xgboost.DMatrix(rows, nthread=1), pred_contribs=True
        )[:, :-1]
    if "shap" in names:
        import shap

        explainer = shap.TreeExplainer(model, background, feature_perturbation="interventional")
        peers["shap, background"] = partial(explainer.shap_values, check_additivity=False)
    if "woodelf" in names:
        import pandas as pd
        from woodelf import WoodelfExplainer

        for kind, data in (("training", None), ("background", pd.DataFrame(background))):
            own = WoodelfExplainer(model, data)
            peers[f"woodelf, {kind}"] = lambda rows, own=own: own.shap_values(
                pd.DataFrame(rows), verbose=False
            )
    return peers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--features", type=int, default=127)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=[])
    options = parser.parse_args()
    model, known = train(options.features, options.trees, options.depth)
    background = known[:100]
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(options.rows, options.features)).astype(np.float32)
    sch = tvm_forest.new_schedule(model).represent_as("sparse")
    predictor = tvm_forest.build(model, schedule=sch)
    explain = partial(predictor.predict_contributions, n_jobs=1)
    calls: dict[str, Call] = {
        "ours, training": explain,
        "ours, background": partial(explain, background=background),
    }
    wanted = {}
    for name, call in calls.items():
        begin = time.process_time()
        wanted[name.partition(", ")[2]] = call(rows[:50])[:, :-1]
        print(f"{name}: the first call {time.process_time() - begin:.2f} s", flush=True)
    calls |= find_peers(options.peers, model, background)
    for name, call in calls.items():
        found = np.asarray(call(rows[:50]))[:, : options.features]
        print(f"{name}: {np.abs(found - wanted[name.partition(', ')[2]]).max():.1e} from ours")
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.turns):
        for name, call in calls.items():
            count = min(len(rows), PEER_ROWS.get(name.partition(",")[0], len(rows)))
            begin = time.process_time()
            call(rows[:count])
            spent[name].append((time.process_time() - begin) / count * 1e6)
    print(f"{cpu_name()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, CPU time")
    for name, times in spent.items():
        low, median = min(times), sorted(times)[len(times) // 2]
        print(f"| {name} | {low:,.2f} | {median:,.2f} | {3 * median:,.1f} |")
