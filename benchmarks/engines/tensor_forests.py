"""Hummingbird's three ways to predict with a forest by tensors, in PyTorch.

takes: Forest, without categories; gives: a function from rows to margins.

Nakandala and others, OSDI 2020: "gemm" asks all tests of all trees and finds the leaf whose path
they agree with by matrix products; "trees" gathers feature, threshold and child of every walk, hop
by hop; "perfect" completes the trees, so that a child's place follows from its parent's. The
package itself (0.4.12) leaves out the base score of XGBoost's classifiers, and cannot read that of
regressors of XGBoost 3.2, so the formulations are written here. Like it, they know of no
default direction: a missing value goes right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tvm_forest.forest import Array, Forest
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.structure.edges import find_children, find_parents

Predict = Callable[[Any], Any]
"""Takes a tensor (R, F); returns (R, T) values of leaves."""


def _compared(forest: Forest) -> Callable[[Any, Any], Any]:
    return torch.lt if forest.comparison == "<" else torch.le


def _places(forest: Forest, chosen: Array) -> tuple[Array, int]:
    """Number the chosen nodes of each tree; return the numbers, (N,), and the most of a tree."""
    before = np.cumsum(chosen) - chosen
    counts = np.add.reduceat(chosen.astype(int), forest.tree_offset[:-1])
    return before - before[forest.tree_offset[:-1]][forest.node_tree], int(counts.max(initial=1))


def make_gemm(forest: Forest) -> Predict:
    """Ask all tests, and compare the answers with the path of each leaf."""
    inner, leaf = ~forest.is_leaf, forest.is_leaf
    test, n_tests = _places(forest, inner)
    place, n_leaves = _places(forest, leaf)
    trees, tree = forest.n_trees, forest.node_tree
    columns = np.zeros((trees, n_tests, forest.n_features), np.float32)
    columns[tree[inner], test[inner], forest.feature[inner]] = 1
    threshold = np.zeros((trees, n_tests, 1), forest.threshold.dtype)
    threshold[tree[inner], test[inner], 0] = forest.threshold[inner]
    paths, lefts = (
        np.zeros((trees, n_leaves, n_tests), np.float32),
        np.full((trees, n_leaves), -1.0),
    )
    value = np.zeros((trees, 1, n_leaves), forest.leaf_value.dtype)
    value[tree[leaf], 0, place[leaf]] = forest.leaf_value[leaf, 0]
    lefts[tree[leaf], place[leaf]] = 0
    parent, (left, _) = find_parents(forest), find_children(forest)
    end, node = np.flatnonzero(leaf), np.flatnonzero(leaf)
    while (above := parent[node] >= 0).any():
        end, node = end[above], node[above]
        up = parent[node]
        went_left = left[up] == node
        paths[tree[end], place[end], test[up]] = np.where(went_left, 1, -1)
        lefts[tree[end], place[end]] += went_left
        node = up
    selects = torch.tensor(columns.reshape(trees * n_tests, -1))
    cuts, signs, values = (torch.tensor(x) for x in (threshold, paths, value))
    expected, compare = torch.tensor(lefts.astype(np.float32))[:, :, None], _compared(forest)

    def predict(rows: Any) -> Any:
        seen = (selects @ rows.T).view(trees, n_tests, len(rows))
        answers = compare(seen, cuts).to(signs.dtype)
        reached = torch.bmm(signs, answers) == expected
        return torch.bmm(values, reached.to(values.dtype))[:, 0].T

    return predict


def make_traversal(forest: Forest) -> Predict:
    """Let all walks take a hop at a time; leaves lead to themselves."""
    own = np.arange(forest.n_nodes)
    left, right = (np.where(forest.is_leaf, own, x) for x in find_children(forest))
    feature = np.where(forest.is_leaf, 0, forest.feature)
    arrays = (left, right, feature.astype(np.int64), forest.threshold, forest.leaf_value[:, 0])
    lefts, rights, features, cuts, values = (torch.tensor(np.ascontiguousarray(x)) for x in arrays)
    roots, hops = torch.tensor(forest.tree_offset[:-1].copy()), int(forest.depths.max(initial=0))
    compare = _compared(forest)

    def predict(rows: Any) -> Any:
        node = roots.expand(len(rows), -1)
        for _ in range(hops):
            seen = rows.gather(1, features[node])
            node = torch.where(compare(seen, cuts[node]), lefts[node], rights[node])
        return values[node]

    return predict


def make_perfect(forest: Forest) -> Predict:
    """Let all walks take a hop at a time through complete trees, level by level."""
    left, right = find_children(forest)
    node = forest.tree_offset[:-1][:, None]
    levels = []
    for _ in range(int(forest.depths.max(initial=0))):
        ends = forest.is_leaf[node]
        feature = np.where(ends, 0, forest.feature[node]).astype(np.int64)
        levels.append([torch.tensor(x.ravel()) for x in (feature, forest.threshold[node])])
        below = (np.where(ends, node, x[node]) for x in (left, right))
        node = np.stack([*below], axis=2).reshape(forest.n_trees, -1)
    values = torch.tensor(forest.leaf_value[node, 0].ravel())
    trees, compare = torch.arange(forest.n_trees), _compared(forest)

    def predict(rows: Any) -> Any:
        place = trees.expand(len(rows), -1)
        for feature, cuts in levels:
            seen = rows.gather(1, feature[place])
            place = 2 * place + ~compare(seen, cuts[place])
        return values[place]

    return predict


WAYS: dict[str, Callable[[Forest], Predict]] = {
    "gemm": make_gemm,
    "trees": make_traversal,
    "perfect": make_perfect,
}


class TensorForest:
    """A forest of XGBoost as tensors."""

    def __init__(self, forest: Forest, way: str) -> None:
        """Make the tensors.

        Args:
            way: of `WAYS`.
        """
        forest = canonicalize(forest)  # trees round by round
        self._leaves, self._forest = WAYS[way](forest), forest
        self._base = torch.tensor(forest.base_score.copy())

    def margin(self, rows: Array) -> Array:
        """Return (R, C) margins; trees are added in any order."""
        with torch.inference_mode():
            return np.asarray(self._sums(rows))

    def predict(self, rows: Array) -> Array:
        """Return what XGBoost's `predict` does, of sigmoids, softmax or neither."""
        with torch.inference_mode():
            sums = self._sums(rows)
            link = {"sigmoid": torch.sigmoid, "softmax": lambda x: torch.softmax(x, 1)}
            return np.asarray(link.get(self._forest.link, lambda x: x)(sums))

    def _sums(self, rows: Array) -> Any:
        leaves = self._leaves(torch.as_tensor(rows))
        rounds = leaves.reshape(len(rows), -1, self._forest.n_outputs)
        return rounds.sum(dim=1) + self._base
