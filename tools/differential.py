"""Every model of the test suite, compiled and compared with the library that made it; a table.

    PYTHONPATH=. python tools/differential.py [--rows 4000] [--only WORD] [--json FILE] > table.md

Rows are made of each model's own thresholds, their neighbours, categories and special numbers. A
cell tells on how many rows the margins are equal to the bit: compiled code against the reference
walk, and against the library; then the largest difference of values, which come through a link, in
units of the last place, and on how many rows the labels are equal. Then come sparse rows, and the
files of old versions beside what those predicted. Ends with status 1 if a model is not equal.

`exactness_page.py` makes the page of the docs from the JSON file; `CASES` are its rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import xgboost

import _path  # noqa: F401 (what tests share)
import lightgbm_models
import models
import onnx_cases
import shared_models
import sklearn_models
import treelite_models
import tvm_forest
import xgboost_models
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import ZERO
from tvm_forest.verification import Agreement, Report, ulps

FILES = {
    f"{name} of {made}": shared_models.MODELS / name
    for made, names in {
        "XGBoost 1.4": ("airline.json", "epsilon.json", "higgs.json", "year.json"),
        "onnxmltools 1.13": ("abalone.onnx", "airline.onnx"),
    }.items()
    for name in names
}
LIBRARIES: dict[str, dict[str, Callable[[], Any]]] = {
    "xgboost": models.MODELS | xgboost_models.KINDS,
    "lightgbm": lightgbm_models.MODELS,
    "scikit-learn": sklearn_models.MODELS,
    "onnx": onnx_cases.MODELS,
    "treelite": treelite_models.MODELS,
    "files": {name: partial(str, path) for name, path in FILES.items() if path.exists()},
}
SPARSE = {
    "xgboost": ("missing_values", "softprob", "dart", "estimator_missing_999"),
    "lightgbm": ("nothing_missing", "missing_nan", "missing_zero", "categories_and_zero"),
    "scikit-learn": ("rf", "et classes"),
    "treelite": ("drawn all operators", "drawn sets to the left", "lightgbm missing_zero"),
}
CASES: dict[str, tuple[str, ...]] = {
    "X1": ("xgboost: regression", "xgboost: regression_2*", "xgboost: deep", "xgboost: *_error"),
    "X2": ("xgboost: *logistic*", "xgboost: zero_rounds"),
    "X3": ("xgboost: missing_values*", "xgboost: pruned", "xgboost: some_single_leaves"),
    "X4": ("xgboost: estimator*missing*",),
    "X5": ("xgboost: softmax", "xgboost: *classifier_softmax", "xgboost: *softmax_classes"),
    "X6": ("xgboost: quantile*",),
    "X7": ("xgboost: rank_*", "xgboost: estimator_ranker"),
    "X8": ("xgboost: targets*", "xgboost: estimator_targets*", "xgboost: estimator_labels*"),
    "X9": ("xgboost: *vectors*",),
    "X10": ("xgboost: *dart*",),
    "X11": ("xgboost: *forest*",),
    "X12": ("xgboost: categories*", "xgboost: estimator_categories*"),
    "X13": ("xgboost: *poisson", "xgboost: *gamma", "xgboost: *tweedie", "xgboost: cox"),
    "X14": ("xgboost: *named_categories*",),
    "X15": ("xgboost: *stopped*",),
    "X16": ("xgboost: default_options", "xgboost: estimator_regressor"),
    "L1": ("lightgbm: nothing_missing", "lightgbm: missing_nan", "lightgbm: missing_ignored"),
    "L2": ("lightgbm: missing_zero*", "lightgbm: categories_and_zero"),
    "L3": ("lightgbm: tiny_thresholds*", "lightgbm: mixed_missing"),
    "L4": ("lightgbm: stumps", "lightgbm: large_values", "lightgbm: l1", "lightgbm: huber"),
    "L5": ("lightgbm: categories*", "lightgbm: pandas_categories"),
    "L6": ("lightgbm: *ova*",),
    "L7": ("lightgbm: random_forest*", "lightgbm: estimator_classifier_forest"),
    "L8": ("lightgbm: sqrt*",),
    "L9": ("lightgbm: *linear*",),
    "L10": (
        "lightgbm: cross_entropy*",
        "lightgbm: lambdarank",
        "lightgbm: dart*",
        "lightgbm: poisson",
    ),
    "S1": ("scikit-learn: rf*", "scikit-learn: et*", "scikit-learn: *tree*"),
    "S2": ("scikit-learn: tree holes", "scikit-learn: rf*holes", "scikit-learn: rf strings"),
    "S3": ("scikit-learn: *targets", "scikit-learn: *several*", "scikit-learn: rf flags"),
    "S4": ("scikit-learn: gb*", "scikit-learn: hist*"),
    "S5": ("scikit-learn: *strings", "scikit-learn: *classes*", "lightgbm: *words"),
    "O1": ("onnx: *",),
    "C1": ("sparse: *",),
    "C2": ("*: *single*lea*", "*: zero_rounds", "*: one_*", "*: stumps", "*: *constant"),
}
"""For each case of the sweep over other engines, the names of the models that are of that case."""
HEAD = ("model", "reference", "library", "ulp", "labels", "left out")
Entry = dict[str, Any]


def of_case(case: str, entries: list[Entry]) -> list[Entry]:
    """Return the models of a case."""
    return [e for e in entries if any(fnmatchcase(e["name"], p) for p in CASES[case])]


# -- models ---------------------------------------------------------------------------------------


def entry(name: str, report: Report, seconds: float) -> Entry:
    """Return what has been found out about a model, for JSON."""
    library, reference = report.library, report.reference
    found: Entry = {"name": name, "source": report.model, "ok": report.ok, "seconds": seconds}
    found["reference"] = [reference.rows_equal, reference.n_rows]
    if not isinstance(library, Agreement):
        return found | {"not compared": library}
    labels = None if library.labels_equal is None else [library.labels_equal, library.n_rows]
    return found | {
        "library": [library.rows_equal, library.n_rows],
        "against": library.against,
        "ulp": library.value_ulp,
        "bound": library.value_bound,
        "labels": labels,
        "left out": [*library.left_out],
    }


def compared(n_rows: int, only: str) -> Iterator[Entry]:
    """Compile and compare the models one by one."""
    for library, made in LIBRARIES.items():
        for short, make in made.items():
            name = f"{library}: {short}"
            if only in name:
                start = time.perf_counter()
                report = tvm_forest.verify(make(), n_rows=n_rows)
                yield entry(name, report, round(time.perf_counter() - start, 2))


def row(found: Entry) -> list[str]:
    """Return the cells of a model."""
    cells = [found["name"], of(found.get("reference"))]
    if "not compared" in found:
        return [*cells, f"not compared: {found['not compared']}", "", "", ""]
    left_out, why = found.get("left out", (0, ""))
    ulp, labels = found.get("ulp"), found.get("labels")
    cells += [of(found["library"]), "" if ulp is None else str(ulp), of(labels) if labels else ""]
    return [*cells, f"{left_out}: {why}" if left_out else ""]


def of(counts: list[int | None] | None) -> str:
    """Return how many rows of how many are equal."""
    if counts is None:
        return ""
    return "values only" if counts[0] is None else f"{counts[0]} of {counts[1]}"


# -- sparse rows and old files --------------------------------------------------------------------


def sparse(n_rows: int, only: str) -> Iterator[Entry]:
    """Compare predictions for sparse rows that lack two entries in five."""
    for library, names in SPARSE.items():
        for short in names:
            name = f"sparse: {library} {short}"
            if only in name:
                model = LIBRARIES[library][short]()
                forest = tvm_forest.load(model)
                rows = hard_rows(forest, n_rows)
                if library == "scikit-learn" or "dart" in short:  # they refuse these
                    rows = np.nan_to_num(rows, nan=0.5, posinf=9, neginf=-9)
                if library == "lightgbm":  # where it contradicts itself, as rows of arrays show
                    rows[np.abs(rows) <= ZERO] = 0
                held = np.random.default_rng(1).random(rows.shape) < 0.6
                indptr = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
                parts = (rows[held], np.nonzero(held)[1], indptr)
                matrix = scipy.sparse.csr_matrix(parts, rows.shape)
                found = tvm_forest.build(forest).predict_margin(matrix)
                yield beside(name, found, _of_sparse(library, model, matrix))


def _of_sparse(library: str, model: Any, matrix: Any) -> Any:
    """What a library says about sparse rows."""
    if models.is_dart(model):
        return model.predict(xgboost.DMatrix(matrix), output_margin=True)
    if isinstance(model, xgboost.Booster):
        return model.inplace_predict(matrix, predict_type="margin")
    if library == "xgboost":
        return model.predict(matrix, output_margin=True)
    if library == "lightgbm":
        return lightgbm_models.booster_of(model).predict(matrix, raw_score=True)
    if library == "treelite":
        return treelite_models.margins(model, matrix)
    return model.predict_proba(matrix) if hasattr(model, "classes_") else model.predict(matrix)


def old_files(only: str) -> Iterator[Entry]:
    """Compare the files of old versions of XGBoost with what those versions predicted.

    Before 1.3 XGBoost rounded otherwise than all later versions, so those files are compared with
    what 1.7.6 made of them. So did 1.3 with DART; today's XGBoost says what such a file means.
    """
    folder = Path(__file__).resolve().parents[1] / "tests" / "data"
    for path in sorted(folder.glob("xgboost-*-*.*")):
        made, kind = path.stem.split("-")[1:]
        name = f"old: XGBoost {made} {kind}{path.suffix}"
        if only in name:
            ancient = made in ("0.90", "1.0.2")
            then = np.load(folder / f"xgboost-{'1.7.6' if ancient else made}.npz")
            key = f"{made}-{kind}_margin" if ancient else f"{kind}_margin"
            try:
                margin = tvm_forest.build(path).predict_margin(then["rows"])
            except tvm_forest.UnsupportedModel as error:
                yield {"name": name, "ok": True, "not compared": str(error).split(": ", 1)[1]}
                continue
            expected = then[key]
            if (made, kind) == ("1.3.3", "dart"):
                booster = xgboost.Booster(model_file=path.with_suffix(".json"))
                matrix = xgboost.DMatrix(then["rows"])
                expected = booster.predict(matrix, output_margin=True)
            yield beside(name, margin, expected)


def beside(name: str, found: Any, expected: Any) -> Entry:
    """Return how many rows are equal to the bit."""
    found = found.reshape(len(found), -1)
    expected = np.asarray(expected).reshape(found.shape).astype(found.dtype)
    equal = int(np.count_nonzero(ulps(found, expected).max(axis=1) == 0))
    return {"name": name, "ok": equal == len(found), "library": [equal, len(found)]}


def main() -> int:
    """Print the table; return 1 if a model differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--only", default="", help="models whose library or name has this word")
    parser.add_argument("--json", type=Path, help="file for the same as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    entries = []
    runs = (
        compared(options.rows, options.only),
        sparse(options.rows, options.only),
        old_files(options.only),
    )
    for found in (found for run in runs for found in run):
        print(f"| {' | '.join(row(found))} |", flush=True)
        entries.append(found)
    if options.json:
        names = ("apache-tvm", "xgboost", "lightgbm", "scikit-learn", "onnx", "onnxruntime")
        versions = {name: version(name) for name in (*names, "treelite", "numpy")}
        versions["python"] = sys.version.split()[0]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"rows": options.rows, "versions": versions, "models": entries}, indent=1)
        options.json.write_text(text, encoding="utf-8")
    differing = [found["name"] for found in entries if not found["ok"]]
    print(
        f"\n{len(entries)} models, {len(differing)} differ{': ' if differing else ''}", *differing
    )
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
