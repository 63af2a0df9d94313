"""The published models and rows beside the checkout, and models trained on those rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import ROOT

if TYPE_CHECKING:
    import tvm_forest

MODELS = ROOT.parent / "shared" / "models"
CLASSES = 26


def published(name: str) -> tvm_forest.Forest:
    """Read the published model of a data set."""
    import tvm_forest  # engines of other environments read this file, and lack it

    return tvm_forest.load(MODELS / f"{name}.json")


def trained(name: str, classes: int, rounds: int, depth: int = 6) -> tvm_forest.Forest:
    """Train on the rows of a data set, always in the same way.

    Args:
        name: a data set with rows, such as "airline", "covtype" or "letters".
        classes: 1 for a regression on the last column; more to tell its classes apart, which are
            letters (26), kinds of forest (8), or of another data set its quantiles.
        rounds: number of trees of each class.
        depth: of the deepest tree, at most.
    """
    import xgboost

    import tvm_forest

    rows, answer = rows_of(name)
    params: dict[str, Any] = {"objective": "reg:squarederror"}
    if classes > 1:
        params = {"objective": "multi:softprob", "num_class": classes}
        answer = answer if name in ("covtype", "letters") else _quantiles(answer, classes)
    params |= {"max_depth": depth, "seed": 7, "nthread": 2, "verbosity": 0}
    return tvm_forest.load(xgboost.train(params, xgboost.DMatrix(rows, answer), rounds))


def rows_of(name: str) -> tuple[Any, Any]:
    """Read the rows of a data set, float32 (R, F), and the last column, (R,)."""
    table = np.loadtxt(MODELS / f"{name}.csv", delimiter=",", dtype=np.float32)
    return table[:, :-1], table[:, -1]


def _quantiles(answer: Any, count: int) -> Any:
    """Number the answers from 0 to count - 1 by their rank."""
    return np.argsort(np.argsort(answer, kind="stable")) * count // len(answer)
