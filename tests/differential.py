"""Every model of the test suite, compiled and compared with the library that made it; a table.

    PYTHONPATH=. python tests/differential.py [--rows 4000] [--only WORD] > table.md

Rows are made of each model's own thresholds, their neighbours, categories and special numbers. A
cell tells on how many rows the margins are equal to the bit: compiled code against the reference
walk, and against the library; then the largest difference of values, which come through a link, in
units of the last place, and on how many rows the labels are equal. Ends with status 1 if a model is
not equal.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import lightgbm_models
import models
import sklearn_models
import test_frontend_onnx as onnx_models
import tvm_forest
import xgboost_models
from tvm_forest.verify import Comparison, Report

LIBRARIES: dict[str, dict[str, Callable[[], Any]]] = {
    "xgboost": models.MODELS | xgboost_models.KINDS,
    "lightgbm": lightgbm_models.MODELS,
    "scikit-learn": sklearn_models.MODELS,
    "onnx": onnx_models.MODELS,
}
HEAD = ("model", "reference", "library", "ulp", "labels", "left out")


def row(name: str, report: Report) -> list[str]:
    """Return the cells of a model."""
    library = report.library
    if not isinstance(library, Comparison):
        return [name, equal(report.reference), f"not compared: {library}", "", "", ""]
    ulp = "" if library.value_ulp is None else str(library.value_ulp)
    labels = "" if library.labels_equal is None else f"{library.labels_equal} of {library.n_rows}"
    left_out = f"{library.left_out[0]}: {library.left_out[1]}" if library.left_out[0] else ""
    return [name, equal(report.reference), equal(library), ulp, labels, left_out]


def equal(found: Comparison) -> str:
    """Return how many margins are equal."""
    return "values only" if found.rows_equal is None else f"{found.rows_equal} of {found.n_rows}"


def main() -> int:
    """Print the table; return 1 if a model differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--only", default="", help="models whose library or name has this word")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    count, differing = 0, []
    for library, made in LIBRARIES.items():
        for short, make in made.items():
            name = f"{library}: {short}"
            if options.only in name:
                report = tvm_forest.verify(make(), n_rows=options.rows)
                print(f"| {' | '.join(row(name, report))} |", flush=True)
                count += 1
                differing += [] if report.ok else [name]
    print(f"\n{count} models, {len(differing)} differ{': ' if differing else ''}{differing or ''}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
