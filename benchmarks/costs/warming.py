"""Which of 100 drawn models need no compiler once `warm` has seen one model of their library.

    python -m benchmarks costs.warming

Of XGBoost, LightGBM, CatBoost and scikit-learn each, `warm` is given one model; then 25 models are
drawn, with hyperparameters as a search would try them, on the same columns. Prints what `warm` took
and left, and for how many of the models the cache has all code.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor.compiling import find_known
from tvm_forest.predictor.live.warming import warm
from tvm_forest.system import code_cache
from tvm_forest.target import describe_cpu, parse_target

COLUMNS, ROWS = 30, 4000
ROUNDS = (50, 100, 150, 200, 300, 400, 500)


def rows_and_labels() -> tuple[Any, Any]:
    """Draw rows, some columns of few values, and labels 0 and 1."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    rows[:, 5], rows[:, 6], rows[:, 7] = (
        rows[:, 5].round(),
        rows[:, 6] > 0,
        (10 * rows[:, 7]).round(),
    )
    noise = rng.normal(size=ROWS)
    return rows, (2 * rows[:, 0] + np.sin(rows[:, 1]) + rows[:, 2] * rows[:, 3] + noise > 0) * 1


def xgboost(draw: random.Random) -> Any:
    """Draw the hyperparameters of a model of XGBoost, and train it."""
    from xgboost import XGBClassifier

    return XGBClassifier(
        n_estimators=draw.choice(ROUNDS),
        max_depth=draw.randint(3, 8),
        learning_rate=draw.choice((0.03, 0.1, 0.3)),
        subsample=draw.choice((0.7, 1)),
        colsample_bytree=draw.choice((0.6, 1)),
        min_child_weight=draw.choice((1, 5, 20)),
        n_jobs=1,
    )


def lightgbm(draw: random.Random) -> Any:
    """Draw the hyperparameters of a model of LightGBM."""
    from lightgbm import LGBMClassifier

    return LGBMClassifier(
        n_estimators=draw.choice(ROUNDS),
        num_leaves=draw.choice((7, 15, 31, 63, 127)),
        learning_rate=draw.choice((0.03, 0.1)),
        min_child_samples=draw.choice((5, 20, 50)),
        feature_fraction=draw.choice((0.6, 1)),
        n_jobs=1,
        verbose=-1,
    )


def catboost(draw: random.Random) -> Any:
    """Draw the hyperparameters of a model of CatBoost."""
    from catboost import CatBoostClassifier

    return CatBoostClassifier(
        iterations=draw.choice(ROUNDS),
        depth=draw.randint(4, 8),
        learning_rate=draw.choice((0.03, 0.1)),
        thread_count=1,
        verbose=False,
        allow_writing_files=False,
    )


def scikit_learn(draw: random.Random) -> Any:
    """Draw the hyperparameters of a model of scikit-learn."""
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(
        n_estimators=draw.choice(ROUNDS) // 2,
        max_depth=draw.randint(3, 6),
        learning_rate=draw.choice((0.03, 0.1)),
        subsample=draw.choice((0.7, 1.0)),
        random_state=draw.randrange(100),
    )


LIBRARIES: dict[str, Callable[[random.Random], Any]] = {
    "XGBoost": xgboost,
    "LightGBM": lightgbm,
    "CatBoost": catboost,
    "scikit-learn": scikit_learn,
}


def main() -> None:
    """Warm and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=25, help="of each library")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    chosen = parser.parse_args()
    target, (rows, labels) = parse_target("llvm"), rows_and_labels()
    print(describe_cpu().partition("\n")[0], f"{os.cpu_count()} cores")
    for library in chosen.libraries:
        draw, train = random.Random(library), LIBRARIES[library]
        with tempfile.TemporaryDirectory() as folder:
            os.environ[code_cache.VARIABLE] = folder
            first = tvm_forest.load(train(draw).fit(rows, labels))
            begin, busy = time.perf_counter(), sum(os.times()[:4])
            warmed = warm(first, target)
            seconds, busy = time.perf_counter() - begin, sum(os.times()[:4]) - busy
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            known = 0
            for _ in range(chosen.models):
                forest = tvm_forest.load(train(draw).fit(rows, labels))
                known += find_known(BuildRequest.of(forest, None, target)) is not None
        print(
            f"{library}: warm compiled for {warmed.compiled} of {warmed.models} drawn models in "
            f"{seconds:.0f} s ({busy:.0f} CPU seconds), {size / 2**20:.0f} MB; {known} of "
            f"{chosen.models} models known",
            flush=True,
        )
