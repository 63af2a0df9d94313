"""Whether a schedule with parallel loops is as fast on one thread as the same without them.

    python benchmarks/twins.py [--models airline higgs] [--cpus cascadelake] [--rows 512 4096]

The default schedules of each model are built as they are and without `parallel`, and called with
`n_jobs=1` in turns. Prints the median of the ratios of the times, with and over without, and its
quartiles; the last line has the smallest and the largest median.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import models
import tvm_forest
from timing import time_round

TRAINED = ("abalone", "covtype", "letters", "airline_ohe", "xgb_nan", "lgb_reg", "lgb_cat")
TRAINED += ("skl_rf_reg", "skl_rf_clf")
CPUS = ("native", "cascadelake", "x86-64-v3")
PAIRS, SECONDS = 30, 0.01


def build_both(forest: Any, mcpu: str) -> list[Any]:
    """Build the defaults with and without parallel loops."""
    target = "llvm" if mcpu == "native" else {"kind": "llvm", "mcpu": mcpu}
    default = tvm_forest.default_schedules(forest, target)
    alone = {least: sch.without("parallel") for least, sch in default.items()}
    return [tvm_forest.build(forest, target, sch) for sch in (default, alone)]


def ratios(both: list[Any], rows: Any, count: int) -> list[float]:
    """Time both in turns, each pair in the other order than the one before."""
    starts = range(0, len(rows) - count + 1, count)
    batches = itertools.cycle([rows[start : start + count] for start in starts])
    found = []
    for pair in range(PAIRS + 1):
        took = [0.0, 0.0]
        for which in (pair % 2, 1 - pair % 2):
            predict = both[which].predict_margin
            call = time_round(lambda x, f=predict: f(x, n_jobs=1), batches, SECONDS).call
            took[which] = call
        found.append(took[0] / took[1])
    return found[1:]


def main() -> None:
    """Print a line for each model, CPU and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*models.PUBLISHED, *TRAINED])
    parser.add_argument("--cpus", nargs="+", default=CPUS)
    parser.add_argument("--rows", nargs="+", type=int, default=[512, 4096])
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder of models")
    options = parser.parse_args()
    medians = []
    for name in options.models:
        model = models.get(name, options.cache)
        forest, rows = tvm_forest.load(model.load()), np.load(model.rows_path)
        for mcpu in options.cpus:
            both = build_both(forest, mcpu)
            for count in options.rows:
                low, median, high = statistics.quantiles(ratios(both, rows, count), n=4)
                medians.append(median)
                print(f"{name} {mcpu} {count}: {median:.3f} ({low:.3f} to {high:.3f})", flush=True)
    print(f"{min(medians):.3f} to {max(medians):.3f}")


if __name__ == "__main__":
    main()
