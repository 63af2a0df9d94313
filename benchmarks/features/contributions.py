"""SHAP values: compared with the training library's, then timed beside them, in turns.

takes: names of models, the number of threads; gives: lines of Markdown tables.

    python -m benchmarks features.contributions airline higgs --threads 1
    python -m benchmarks features.contributions letters --rounds 50 --turns 0 --compared 100
    python -m benchmarks features.contributions airline higgs --approximate --most-rows 4096

XGBoost, LightGBM and `shap` compute the same path-dependent TreeSHAP. `shap` asks the other two for
theirs by default; here it takes part with its own code, on one thread, if it is installed. Rows are
numpy arrays, so each call of XGBoost makes a DMatrix. Nothing is timed before all values agree. A
library takes milliseconds a row, whatever the batch, so large batches of it are cut: what is
compared is the time of a row. With --approximate, XGBoost's `approx_contribs` is asked for, whose
bits are compared, and models have their default schedules.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import cpu_name
from tvm_forest.forest.probe_rows import hard_rows

Explain = Callable[[Any], Any]

BATCHES = (1, 64, 4096)
MOST_ROWS = 64
"""Rows of a call of a library."""

TURNS = 5
SECONDS_A_TURN = 0.02
"""How long an engine goes on calling, at least once."""

BOUND = 1e-5
"""How far values may be from XGBoost's float32, as a share of the largest."""


def find_peers(
    model: Any, trained: Any, threads: int, approximate: bool = False
) -> dict[str, Explain]:
    """Return what computes contributions (R, C, F + 1): the library, if it does, and `shap`."""
    peers: dict[str, Explain] = {}
    if model.library == "xgboost":
        import xgboost

        trained.feature_names = None  # which `shap` cannot give
        trained.set_param({"nthread": threads})

        def explain(rows: Any) -> Any:
            matrix = xgboost.DMatrix(rows, nthread=threads)
            return trained.predict(matrix, pred_contribs=True, approx_contribs=approximate)

        peers["xgboost"] = explain
        if approximate:
            return peers
    if model.library == "lightgbm":  # whose missing values and categories `shap` itself misreads
        peers["lightgbm"] = partial(trained.predict, pred_contrib=True, num_threads=threads)
    elif model.library == "scikit-learn" or importlib.util.find_spec("shap"):
        peers["shap"] = _explain_by_shap(trained)
    return peers


def _explain_by_shap(trained: Any) -> Explain:
    """Return the algorithm of `shap` itself: (R, C, F), without what is expected of all rows."""
    import shap

    explainer = shap.TreeExplainer(trained, feature_perturbation="tree_path_dependent")
    explainer.model.model_type = "internal"

    def explain(rows: Any) -> Any:
        values = np.asarray(explainer.shap_values(rows, check_additivity=False))
        return values[:, None] if values.ndim == 2 else np.moveaxis(values, 2, 1)

    return explain


def in_turns(calls: dict[str, tuple[Callable[[Any], Any], Any]], turns: int) -> dict[str, float]:
    """Return the median microseconds a row of calls on their rows, which are made in turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            call, rows = calls[name]
            begin, count = time.perf_counter(), 0
            while (taken := time.perf_counter() - begin) < SECONDS_A_TURN:
                call(rows)
                count += 1
            spent[name].append(taken / count / len(rows) * 1e6)
    return {name: statistics.median(times) for name, times in spent.items()}


def choose_rows(model: Any, predictor: Any, count: int) -> Any:
    """Return rows that are compared: of the model, and as many that are hard for its tests."""
    hard = hard_rows(predictor.forest, count).astype(model.rows().dtype)
    if model.library == "scikit-learn":
        hard[~np.isfinite(hard)] = 0
    hard[np.isinf(hard)] = np.nan  # XGBoost refuses them
    return np.concatenate([model.rows()[:count], hard])


def compare(name: str, predictor: Any, peers: dict[str, Explain], rows: Any) -> list[str]:
    """Check values; say how far they add up to the margin, ours and each peer's, and differ."""
    shape = (len(rows), predictor.forest.n_outputs, rows.shape[1] + 1)
    ours = predictor.predict_contributions(rows).reshape(shape)
    leaves = predictor.predict_per_tree(rows).astype(np.float64)
    forest = predictor.forest
    margin = np.zeros(shape[:2]) + forest.base_score.astype(np.float64)
    if leaves.ndim == 3:
        total = leaves.sum(axis=1)
    else:
        total = np.zeros(shape[:2])
        np.add.at(total.T, predictor.columns[:, 0] % forest.n_outputs, leaves.T)
    if forest.aggregate == "average":
        total /= forest.trees_of_class
    margin += total
    own, lines = np.abs(ours.sum(axis=2) - margin).max(), []
    for peer, explain in peers.items():
        theirs = np.asarray(explain(rows)).reshape(*shape[:2], -1)
        theirs = np.concatenate([theirs, ours[:, :, theirs.shape[2] :]], axis=2)
        difference = np.abs(ours - theirs).max()
        if difference > BOUND * max(1.0, np.abs(theirs).max()):
            raise SystemExit(f"{name}: values differ by {difference} from those of {peer}")
        error = np.abs(theirs.sum(axis=2, dtype=np.float64) - margin).max()
        found = f"{own:.1e} | {error:.1e} | {difference:.1e} | {difference / error:.2f}"
        lines.append(f"| {name} | {peer} | {len(rows)} | {found} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--rounds", type=int, help="of XGBoost's models, the first so many")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--compared", type=int, default=16, help="rows, and hard rows, compared")
    parser.add_argument("--most-rows", type=int, default=MOST_ROWS, help="of a library's call")
    parser.add_argument("--approximate", action="store_true", help="XGBoost's approx_contribs")
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    options = parser.parse_args()
    print(f"{cpu_name()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}")
    for name in options.names:
        model = models.get(name, options.cache)
        trained = model.load()
        if options.rounds and model.library == "xgboost":
            trained, name = trained[: options.rounds], f"{name}, {options.rounds} rounds"
        sch = tvm_forest.new_schedule(trained).represent_as("sparse")  # which takes any depth
        predictor = tvm_forest.build(trained, schedule=None if options.approximate else sch)
        peers = find_peers(model, trained, options.threads, options.approximate)
        if options.approximate:
            rows = choose_rows(model, predictor, 1000)
            found, theirs = (
                call(rows) for call in (peers["xgboost"], own_call(predictor, options))
            )
            if found.tobytes() != theirs.tobytes():
                raise SystemExit(f"{name}: bits differ from those of XGBoost")
        elif options.compared:
            rows = choose_rows(model, predictor, options.compared)
            print("\n".join(compare(name, predictor, peers, rows)), flush=True)
        time_turns(name, predictor, peers, np.ascontiguousarray(model.rows()), options)


def own_call(predictor: Any, options: Any) -> Explain:
    wanted = {"n_jobs": options.threads, "approximate": options.approximate}
    return lambda rows: predictor.predict_contributions(rows, **wanted)


def time_turns(
    name: str, predictor: Any, peers: dict[str, Explain], rows: Any, options: Any
) -> None:
    """Print a line for each batch: microseconds a row, ours and each peer's with its ratio."""
    own = own_call(predictor, options)
    for batch in options.batches if options.turns else ():
        own(rows[:batch])
        asked = min(batch, options.most_rows)
        calls = {peer: (explain, rows[:asked]) for peer, explain in peers.items()}
        found = in_turns({"ours": (own, rows[:batch]), **calls}, options.turns)
        ours = found.pop("ours")
        cells = [f"{peer} {us:,.0f} | {us / ours:,.1f}" for peer, us in found.items()]
        head = f"| {name} | {options.threads} | {batch:,} | {ours:,.1f} |"
        print(f"{head} {' | '.join(cells)} |", flush=True)
