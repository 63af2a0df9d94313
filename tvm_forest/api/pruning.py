"""Removes trees from a model within a stated loss of accuracy.

takes: a model, rows, perhaps labels; gives: Pruned, a Forest of fewer trees with what it loses.

Pruning is not exact on purpose: it makes another model, and measures on the rows how much accuracy
that model loses. From the idea of "accuracy levels" in the draft of Treebeard on tiling.

Trees are dropped in steps, a hundredth of the rest at a time, always those whose removal, after the
steps before, changes margins least. In a forest that averages, trees close to the average go first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import frontends
from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, choose_classes, choose_labels
from ..forest.rewrites.ordering import find_rounds, take_trees
from ..predictor.inputs import to_rows
from ..system.process.locks import cached_property
from ..system.values import dataclass, replace

STEPS = 100
"""Divisor: each step drops this fraction of the remaining trees, and at least one."""

SLACK = 1e-6
"""Additional loss allowed while trees are chosen, for sums that are rounded differently."""

MAX_LEAVES = 1 << 22
"""Number of leaf values that are looked up at a time."""

REFUSED = {"min": "takes the smallest leaf", "max": "takes the largest leaf"}


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`: a forest of fewer trees, and how accurate it is on the given rows.

    Attributes:
        forest: the forest, for `build` and other functions that take a model.
        trees: int64 (T',), the remaining trees by their numbers in the model, ascending.
        loss: the accuracy that the forest has lost on the rows; below 0 if it has improved.
        accuracy: the forest's accuracy on the rows: for a classifier, the share of rows with the
            right label; otherwise the coefficient of determination, 1 - squared error / variance.
    """

    forest: Forest
    trees: Array
    loss: float
    accuracy: float

    def __repr__(self) -> str:
        left = f"{len(self.trees)} trees, accuracy {self.accuracy:.6g}, loss {self.loss:.6g}"
        return f"<Pruned {self.forest.source}: {left}>"


def prune(model: Any, rows: Any, labels: Any = None, *, loss: float = 0.01) -> Pruned:
    """Drop trees of a model as long as it loses at most so much accuracy on some rows.

    Args:
        model: see `load`.
        rows: (R, F), some thousand rows like those that will be predicted; with labels, other rows
            than the training rows.
        labels: (R,), (R, targets) or (R, C): the true labels or values, in the form that `predict`
            returns; None for the predictions of the whole model, whose accuracy is then 1.
        loss: how much accuracy may be lost, from 0 on; see `Pruned.accuracy`.

    Returns:
        Pruned: its forest has at least one tree of each class.

    Raises:
        InputError: rows or labels of the wrong kind or number, or no such loss.
        UnsupportedModel: the model does not add up its trees.
        ModelFormatError: see `load`.

    Examples:
        >>> pruned = tvm_forest.prune(model, rows, labels, loss=0.05)
        >>> pruned.forest.n_trees <= 15
        True
    """
    forest = frontends.load(model)
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not loss >= 0:
        raise InputError(f"prune: argument 'loss': expected a number from 0 on, got {loss!r}")
    reason = REFUSED.get(forest.aggregate, "is of all its trees" * (forest.link == "isolation"))
    if reason:
        raise UnsupportedModel(f"prune: '{forest.source}' {reason}, so that none can be left out")
    trial = _Trial(forest, to_rows(rows, forest), labels)
    dropped = [np.zeros(0, np.int64), *trial.drop_trees(loss)]
    while True:
        left = np.setdiff1d(np.arange(forest.n_trees), np.concatenate(dropped))
        part = _keep(forest, left)
        accuracy = trial.measure(trial.margins_of(part)) if len(dropped) > 1 else trial.accuracy
        if trial.accuracy - accuracy <= loss or len(dropped) == 1:
            return Pruned(part, left, trial.accuracy - accuracy, accuracy)
        dropped.pop()  # the step was allowed by float64 margins, but not by the model's


def _keep(forest: Forest, trees: Array) -> Forest:
    """Return the forest of some trees, given by their numbers; trees and rounds are renumbered."""
    part = take_trees(forest, trees)
    rounds = np.unique(find_rounds(part), return_inverse=True)[1].astype(np.int32)
    return replace(
        part,
        tree_id=np.arange(len(trees), dtype=np.int32),
        tree_round=None if part.tree_round is None else rounds,
        n_rounds=int(rounds.max(initial=-1)) + 1,
    )


class _Trial:
    """Predictions of a forest for some rows, and their accuracy.

    Attributes:
        margins: (R, C), the margins of the whole forest.
        accuracy: the accuracy of the whole forest, see `Pruned`.
    """

    def __init__(self, forest: Forest, rows: Array, labels: Any) -> None:
        if not len(rows):
            raise InputError("prune: argument 'rows': there are none; give some thousands")
        self.forest, self.rows = forest, rows
        self.margins = self.margins_of(forest)
        own = self._answer(self.margins)
        self._right = own if labels is None else np.asarray(labels)
        if self._right.size == own.size:
            self._right = self._right.reshape(own.shape)
        if self._right.shape != own.shape:
            raise InputError(
                f"prune: argument 'labels': expected {own.shape}, got {self._right.shape}; give an "
                "answer for each row"
            )
        self.accuracy = self.measure(self.margins)

    def margins_of(self, forest: Forest) -> Array:
        """Return the margins (R, C) of a forest for the rows."""
        return np.concatenate([forest.predict_reference(part) for part in self._parts()])

    def measure(self, margins: Array) -> float:
        """Return the accuracy of margins, see `Pruned`."""
        answers = self._answer(margins)
        if self.forest.class_rule != "none":
            return float(np.mean(answers == self._right))
        right = self._right.astype(np.float64)
        error = float(np.sum((answers - right) ** 2))
        spread = float(np.sum((right - right.mean(axis=0)) ** 2))
        return 1 - error / spread if spread else 1.0 if error == 0 else -np.inf

    def _answer(self, margins: Array) -> Array:
        """Return the labels, classes or values that follow from margins."""
        forest = self.forest
        values = forest.values_of(margins.astype(forest.sum_dtype))
        if forest.class_rule == "none":
            return values
        choose = choose_labels if forest.gives_labels else choose_classes
        return choose(forest, margins.astype(forest.sum_dtype), values)

    def _parts(self) -> Iterator[Array]:
        """Yield the rows block by block."""
        forest = self.forest
        step = max(1, MAX_LEAVES // max(1, forest.n_trees * forest.leaf_value.shape[1]))
        for begin in range(0, len(self.rows), step):
            yield self.rows[begin : begin + step]

    @cached_property
    def _moves(self) -> Array:
        """What each tree adds to margins; for averages, what it adds beyond the mean tree.

        Float64 (R, T, W), where a leaf has W values.
        """
        forest = self.forest
        leaves = np.concatenate([forest.predict_reference(x, "per_tree") for x in self._parts()])
        shape = len(leaves), forest.n_trees, forest.leaf_value.shape[1]
        moves = leaves.reshape(shape).astype(np.float64)
        if forest.aggregate == "average":
            for trees in self._trees_of_class:
                moves[:, trees] -= moves[:, trees].mean(axis=1, keepdims=True)
        return np.nan_to_num(moves * forest.sum_scale)

    @cached_property
    def _trees_of_class(self) -> list[Array]:
        """The numbers of the trees of each class; of all trees if their leaves hold vectors."""
        place = self._class_of_tree
        return [np.flatnonzero(place == c) for c in range(self.forest.round_size)]

    @property
    def _class_of_tree(self) -> Array:
        return np.maximum(self.forest.tree_class, 0)

    def drop_trees(self, loss: float) -> Iterator[Array]:
        """Yield, step by step, the numbers of the trees to drop, until too much would be lost."""
        forest, moves, place = self.forest, self._moves, self._class_of_tree
        cost, alone = np.zeros(forest.n_trees), np.einsum("rtw,rtw->t", moves, moves)
        gone = np.zeros((len(moves), forest.round_size, moves.shape[2]))
        left = np.bincount(place, minlength=forest.round_size)
        alive = np.ones(forest.n_trees, bool)
        while np.any(left > 1):
            for c, trees in enumerate(self._trees_of_class):
                cost[trees] = np.einsum("rtw,rw->t", moves[:, trees], 2 * gone[:, c])
            usable = np.flatnonzero(alive & (left[place] > 1))
            order = usable[np.argsort((cost + alone)[usable], kind="stable")]
            chosen = order[: max(1, int(alive.sum()) // STEPS)]
            few = np.bincount(place[chosen], minlength=len(left)) >= left  # one tree must remain
            chosen = chosen[:1] if few.any() else chosen
            for tree in chosen:
                gone[:, place[tree]] += moves[:, tree]
            alive[chosen] = False
            left -= np.bincount(place[chosen], minlength=len(left))
            others = left[None, :, None] if forest.aggregate == "average" else 1
            margins = self.margins - (gone / others).reshape(self.margins.shape)
            if not self.accuracy - self.measure(margins) <= loss + SLACK:
                return
            yield chosen
