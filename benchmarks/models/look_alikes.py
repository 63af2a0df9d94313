"""Look-alikes: models of CatBoost of the shape of others, so that its applier is a peer of theirs.

takes: Model; gives: Model of CatBoost, trained on rows of the other and on what that says of them.

A look-alike has as many trees, classes and features. Its trees are symmetric, of the least depth at
which they have as many leaves as the largest tree: that is the depth of trees that grow by levels.
It predicts something else, so it is compared with itself alone, and all features are numbers to it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.models import Model, Trained

MAX_DEPTH = 16
"""Of CatBoost's trees."""
N_ROWS, N_VALUES = 4096, 1 << 21
"""Most rows, and numbers, that a look-alike is trained on; more tell no more of its applier."""


class Shape(NamedTuple):
    """How large a forest is.

    Attributes:
        rounds: trees of each output.
        outputs: margins of a row.
    """

    rounds: int
    depth: int
    outputs: int

    def __str__(self) -> str:
        of_each = f"{self.outputs} x " if self.outputs > 1 else ""
        return f"{of_each}{self.rounds} of depth {self.depth}"


def find_shape(model: Model) -> Shape:
    """Return the shape of a model's look-alike."""
    forest = tvm_forest.load(model.load() if model.library == "scikit-learn" else model.path)
    leaves = int(np.bincount(forest.node_tree[forest.is_leaf]).max())
    depth = max(1, min(MAX_DEPTH, math.ceil(math.log2(leaves))))
    rounds = forest.n_trees * forest.leaf_value.shape[1] // forest.n_outputs
    return Shape(rounds, depth, forest.n_outputs)


def look_alike_of(model: Model) -> Model:
    """Return the look-alike of a model, trained if that has not been done."""
    name = f"{model.name}_alike"

    def train(name: str, folder: Path) -> Model:
        return models.write(name, _train(model), folder)

    return models.keep(name, model.folder, train)


def _train(model: Model) -> Trained:
    import catboost

    shape, rows = find_shape(model), model.rows()
    count = min(N_ROWS, N_VALUES // rows.shape[1])
    answer: Any = model.reference(rows[:count])[0]
    params: dict[str, Any] = {"loss_function": "RMSE"}
    if shape.outputs > 1:
        answer = answer.argmax(axis=1)
        params = {"loss_function": "MultiClass"}  # without classes that no row has
    params |= {"iterations": shape.rounds, "depth": shape.depth, "random_seed": 7}
    params |= {"leaf_estimation_iterations": 1, "thread_count": 2, "boosting_type": "Plain"}
    params |= {"verbose": 0, "allow_writing_files": False}
    rows = np.asarray(rows, np.float32)
    return Trained(
        catboost.CatBoost(params).fit(rows[:count], answer), "catboost", rows, model.rows_from
    )
