"""The command `demo`: compares a compiled model with XGBoost, in results and time."""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import api
from ..errors import ForestError, InputError
from ..forest import Array
from ..forest.probe_rows import hard_rows, typical_rows

if TYPE_CHECKING:  # the import of TVM is timed with the compilation
    from ..predictor.predictor import Predictor


def run(options: argparse.Namespace) -> None:
    """Train on a data set of scikit-learn, compile, compare bit for bit, and print times.

    Raises:
        InputError: XGBoost or scikit-learn is not installed.
        ForestError: a margin differs from XGBoost's.
    """
    try:
        import xgboost
        from sklearn.datasets import load_breast_cancer
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError(
            f"demo: {error.name} is missing; install it with: pip install xgboost scikit-learn"
        ) from None
    data = load_breast_cancer()
    train, test, target, _ = train_test_split(
        data.data.astype(np.float32), data.target, random_state=0
    )
    model = xgboost.XGBClassifier(n_estimators=500, max_depth=6, learning_rate=0.05, random_state=0)
    print("training an XGBClassifier of 500 trees on the Wisconsin breast cancer data ...")
    model.fit(train, target)
    begin = time.perf_counter()
    predictor = api.build(model)
    print(f"compiled in {time.perf_counter() - begin:.1f} s, the import of TVM included\n")
    for smallest, schedule in predictor.schedules.items():
        print(f"batches of {smallest} and more:\n{schedule}\n")
    rows = np.concatenate([test, hard_rows(predictor.forest, 4000)])
    _prove_equal(predictor, model, rows)
    print("\ntime per call on one thread, distinct batches in rotation:")
    model.set_params(n_jobs=1)
    for size in (1, 64, 4096):
        batches = [typical_rows(predictor.forest, size, seed) for seed in range(8)]
        ours = _best_time(lambda rows: predictor.predict_margin(rows, n_jobs=1), batches)
        theirs = _best_time(lambda rows: model.predict(rows, output_margin=True), batches)
        print(
            f"  batch {size:5}: tvm_forest {ours * 1e6:9.1f} us,  XGBoost {theirs * 1e6:9.1f} us,"
            f"  ratio {theirs / ours:5.1f}"
        )


def _prove_equal(predictor: Predictor, model: Any, rows: Array) -> None:
    """Print how many rows have the margins and the labels of XGBoost.

    Raises:
        ForestError: a margin differs.
    """
    ours, theirs = predictor.predict_margin(rows), model.predict(rows, output_margin=True)
    equal = int(np.count_nonzero(ours.view(np.uint32) == theirs.view(np.uint32)))
    print(f"margins equal to XGBoost's bit for bit: {equal} of {len(rows)} rows")
    print("(test rows, then rows on thresholds, beside them, NaN, infinities, denormals)")
    if equal != len(rows):
        row = int(np.argmax(ours != theirs))
        raise ForestError(
            f"demo: row {row}: margin {ours[row]!r} differs from XGBoost's {theirs[row]!r}; "
            "please report this"
        )
    labels = int(np.count_nonzero(predictor.predict(rows) == model.predict(rows)))
    print(f"labels equal: {labels} of {len(rows)}")


def _best_time(function: Callable[[Any], Any], batches: Sequence[Any]) -> float:
    """Return seconds of one call, the best of five rounds over all batches."""
    rounds = timeit.repeat(lambda: list(map(function, batches)), number=1, repeat=5)
    return min(rounds) / len(batches)
