"""Quantile forests beside quantile-forest: the same numbers, and how many rows a second.

    python -m benchmarks features.quantiles --trees 2000 --training-rows 10000 --leaf 5 --rows 20000

The library's answers are compared first, then both are timed in turns on distinct rows; the best of
some rounds counts. The library looks for leaves on all cores, and for quantiles on one.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import quantile_forest

import tvm_forest

COLUMNS, ROUNDS = 10, 3
QUANTILES = [0.1, 0.5, 0.9]


def draw(rows: int, seed: int) -> tuple[Any, Any]:
    """Return rows, and targets whose spread depends on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
    return x, x[:, 0] * 2 + np.abs(x[:, 1]) * rng.normal(size=rows)


def time_call(call: Any, rows: Any) -> float:
    """Return rows a second of one call."""
    begin = time.perf_counter()
    call(rows)
    return float(len(rows) / (time.perf_counter() - begin))


def main() -> None:
    """Print a row of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("RandomForest", "ExtraTrees"), default="RandomForest")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--training-rows", type=int, default=10_000)
    parser.add_argument("--leaf", type=int, default=5, help="fewest samples of a leaf")
    parser.add_argument("--single", action="store_true", help="keep one sample of each leaf")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--library-rows", type=int, default=2000)
    parser.add_argument("--n-jobs", type=int, default=-1)
    args = parser.parse_args()
    options = {"n_estimators": args.trees, "min_samples_leaf": args.leaf, "random_state": 0}
    kept = {"max_samples_leaf": 1 if args.single else None, "n_jobs": args.n_jobs}
    kind = getattr(quantile_forest, f"{args.kind}QuantileRegressor")
    model = kind(**options, **kept).fit(*draw(args.training_rows, 0))
    predictor = tvm_forest.build(model, n_jobs=args.n_jobs)
    few = draw(min(500, args.library_rows), 1)[0]
    theirs = model.predict(few, QUANTILES)
    assert np.array_equal(predictor.predict(few, quantiles=QUANTILES), theirs), "other quantiles"
    ours, library = 0.0, 0.0
    for seed in range(ROUNDS):
        rows = draw(args.rows, seed + 2)[0]
        found = time_call(lambda x: predictor.predict(x, quantiles=QUANTILES), rows)
        ours = max(ours, found)
        library = max(
            library, time_call(lambda x: model.predict(x, QUANTILES), rows[: args.library_rows])
        )
    what = "one sample a leaf" if args.single else "all samples"
    print(f"{args.kind}, {args.trees} trees, {args.training_rows} training rows, {what}: ", end="")
    print(f"{ours:,.0f} rows/s, quantile-forest {library:,.0f} rows/s, {ours / library:.1f} times")
    print(f"200,000 rows: {200_000 / ours:.1f} s, quantile-forest {200_000 / library:.0f} s")
