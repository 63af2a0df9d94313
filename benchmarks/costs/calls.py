"""Time calls of one row in every form in which rows may be given.

    python -m benchmarks costs.calls [--rows 1 100] [--out calls.md]

The model is of XGBoost, 100 trees of depth 6 for 30 columns. Predictions are compared before
anything is timed. Forms take turns, in an order that is drawn for each round; a time is the median
over rounds of the mean of a turn. Packages that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks.pages.report import table
from benchmarks.timing import cpu_name

COLUMNS, ROUNDS, CALLS = 30, 31, 40


def train() -> Any:
    """Return a model that knows the names of its columns."""
    import pandas as pd
    import xgboost

    rows = np.random.default_rng(0).normal(size=(5000, COLUMNS)).astype(np.float32)
    frame = pd.DataFrame(rows, columns=[f"f{k}" for k in range(COLUMNS)])
    answers = rows[:, 0] * rows[:, 1] + rows[:, 2]
    return xgboost.XGBRegressor(n_estimators=100, max_depth=6, n_jobs=1).fit(frame, answers)


def forms_of(rows: np.ndarray) -> dict[str, Any]:
    """Return the same rows in every form."""
    import pandas as pd

    names = [f"f{k}" for k in range(COLUMNS)]
    frame = pd.DataFrame(rows, columns=names)
    forms = {
        "array of float32": rows,
        "array of float64": rows.astype(np.float64),
        "every second column of an array": np.repeat(rows, 2, axis=1)[:, ::2],
        "list of lists": rows.tolist(),
        "list of dicts": frame.to_dict("records"),
        "pandas, one dtype": frame,
        "pandas, to_numpy in the call": lambda: frame.to_numpy(np.float32),
        "pandas, a column of float64": (mixed := frame.astype({"f0": np.float64})),
        "the same, to_numpy in the call": lambda: mixed.to_numpy(np.float32),
    }
    makers: dict[str, Callable[[Any], Any]] = {
        "polars": lambda package: package.DataFrame({x: frame[x].to_numpy() for x in names}),
        "pyarrow": lambda package: package.table({x: frame[x].to_numpy() for x in names}),
        "scipy.sparse": lambda package: package.csr_matrix(rows),
    }
    for name, make in makers.items():
        try:
            forms[name] = make(importlib.import_module(name))
        except ImportError:
            continue
    return forms


def time_forms(predict: Callable[[Any], Any], forms: dict[str, Any]) -> dict[str, float]:
    """Return microseconds of a call by form."""
    expected = predict(forms["array of float32"])
    for name, rows in forms.items():
        assert np.array_equal(predict(rows), expected), f"{name}: predictions differ"
    times: dict[str, list[float]] = {name: [] for name in forms}
    for seed in range(ROUNDS):
        for name in random.Random(seed).sample(list(forms), len(forms)):
            begin = time.perf_counter()
            for _ in range(CALLS):
                predict(forms[name])
            times[name].append((time.perf_counter() - begin) / CALLS)
    return {name: 1e6 * float(np.median(found)) for name, found in times.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--out", type=Path, help="file for the table")
    chosen = parser.parse_args()
    model = train()
    predictor = tvm_forest.build(model, n_jobs=1)

    def predict(rows: Any) -> Any:
        return predictor.predict(rows() if callable(rows) else rows)

    found = {}
    for count in chosen.rows:
        rows = np.random.default_rng(1).normal(size=(count, COLUMNS)).astype(np.float32)
        found[count] = time_forms(predict, forms_of(rows))
    plain = {count: times["array of float32"] for count, times in found.items()}
    lines = [
        [name, *(f"{t[name]:.3g} ({t[name] / plain[n]:.2g})" for n, t in found.items())]
        for name in found[chosen.rows[0]]
    ]
    text = table(["form", *(f"{count} rows" for count in found)], lines)
    print(f"{cpu_name()}\n\n{text}")
    if chosen.out is not None:
        chosen.out.write_text(text + "\n", encoding="utf-8")
