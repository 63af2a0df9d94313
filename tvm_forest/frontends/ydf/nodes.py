"""Reads the nodes of YDF's trees, and where YDF's engines send missing values.

takes: model, data specification; gives: arrays over nodes, sets of categories, leaves.

The children of a condition are the negative one, left, and the positive one, right. A condition
stores its result for missing values. If all conditions of a model have the same result for the mean
of their column, an engine replaces missing numbers by the mean; otherwise it uses the stored
results. It replaces a missing boolean or category by the most frequent value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array
from ..assemble import Nodes, Sets
from ..refusals import unsupported

CATEGORICAL, BOOLEAN = 4, 7
"""Types of columns by their numbers in a data specification."""
_FIELDS = {"left": int, "right": int, "feature": int, "threshold": np.float32, "default_left": bool}


def read_trees(model: Any, spec: Any, columns: list[int]) -> tuple[Array, Nodes, Sets, list[Any]]:
    """Read all trees of a model.

    Args:
        model: a model of ydf.
        spec: its data specification.
        columns: for each column of rows, its index in the specification.

    Returns:
        Sizes of the trees; arrays over the nodes of all trees; the set of each node that tests for
        one; the leaves of all trees, in the order of the nodes.

    Raises:
        UnsupportedModel: a condition that cannot be reproduced exactly.
    """
    trees = [model._model.GetTree(tree) for tree in range(model.num_trees())]
    means = _answers_for_means(trees, spec)
    if not means and any(_is_of_bins(node) for tree in trees for node in tree):
        what = "of missing values, bins are told another side than the mean, and engines differ"
        raise unsupported("na_value", what, "train without discretize_numerical_columns")
    reader = _TreeReader(spec, columns, means)
    for tree in trees:
        reader.read(tree)
    nodes: Nodes = {name: np.array(reader.found[name], dtype) for name, dtype in _FIELDS.items()}
    nodes["node_id"] = np.array(reader.node_id, np.int32)
    if all(node.condition.num_training_examples_with_weight > 0 for node in _list_inner(trees)):
        nodes["cover"] = np.array(reader.cover)
    return np.array([len(tree) for tree in trees]), nodes, reader.sets, reader.leaves


class _TreeReader:
    """Reads trees one by one, and collects the arrays over nodes, sets and leaves."""

    def __init__(self, spec: Any, columns: list[int], means: bool) -> None:
        self.spec, self.means = spec, means
        self.place = {column: at for at, column in enumerate(columns)}
        self.found: dict[str, list[Any]] = {name: [] for name in _FIELDS}
        self.node_id: list[int] = []
        self.cover: list[float] = []
        self.sets: Sets = {}
        self.leaves: list[Any] = []

    def read(self, tree: list[Any]) -> None:
        """Read the nodes of one tree, given depth first, the negative child first.

        The `node_id` of a leaf is its index among the leaves, as in YDF's `predict_leaves`.
        """
        first, parents, n_leaves = len(self.node_id), list[int](), 0
        for at, node in enumerate(tree):
            if node.HasField("condition"):
                self.node_id.append(at)
                self._add(at + 1, 0, *self._read_condition(node.condition, first + at))
                parents.append(first + at)
                continue
            self.node_id.append(n_leaves)
            n_leaves += 1
            self._add(LEAF, LEAF, LEAF, 0.0, False)
            self.leaves.append(node)
            if parents and at + 1 < len(tree):  # the next node is the positive child of a parent
                self.found["right"][parents.pop()] = at + 1
        self._share_cover(tree, first)
        self._exchange(first)

    def _add(self, *values: Any) -> None:
        for name, value in zip(_FIELDS, values, strict=True):
            self.found[name].append(value)

    def _share_cover(self, tree: list[Any], first: int) -> None:
        """Add the cover of a tree's nodes, the weight of training rows that reached each."""
        right = self.found["right"]
        self.cover += [float(tree[0].condition.num_training_examples_with_weight)] * len(tree)
        for at, node in enumerate(tree):
            if node.HasField("condition"):
                positive = node.condition.num_pos_training_examples_with_weight
                self.cover[first + right[first + at]] = positive
                total = node.condition.num_training_examples_with_weight
                self.cover[first + at + 1] = total - positive

    def _exchange(self, first: int) -> None:
        """Exchange the children of nodes that test whether a value is missing.

        Their threshold is -inf, so only missing values go left, where the positive child must be.
        """
        left, right, threshold = (self.found[name] for name in ("left", "right", "threshold"))
        for at in range(first, len(left)):
            if threshold[at] == -np.inf:
                left[at], right[at] = right[at], left[at]

    def _read_condition(self, node: Any, at: int) -> tuple[int, float, bool]:
        """Return feature, threshold and default side of a node; store its set, if it has one."""
        column, condition = self.spec.columns[node.attribute], node.condition
        kind, feature = condition.WhichOneof("type"), self.place.get(node.attribute, LEAF)
        if kind == "na_condition":
            return feature, -np.inf, True
        if kind == "true_value_condition":
            counts = column.boolean
            return feature, 0.5, counts.count_true < counts.count_false
        if kind in ("higher_condition", "discretized_higher_condition"):
            threshold = _threshold(column, condition)
            is_higher = np.float32(column.numerical.mean) >= _bound(column, condition)
            return feature, float(threshold), not (is_higher if self.means else node.na_value)
        members = _list_members(column, condition, kind)
        if members is None:
            what = f"{kind} on column '{column.name}' is not among those known"
            raise unsupported("condition", what, "train without such conditions")
        self.sets[at] = members
        return feature, 0.0, column.categorical.most_frequent_value not in members


def _list_members(column: Any, condition: Any, kind: str) -> tuple[int, ...] | None:
    """Return the codes for which a condition on a category holds; None for other conditions."""
    if column.type != CATEGORICAL:
        return None
    if kind == "contains_condition":
        return tuple(sorted(condition.contains_condition.elements))
    if kind == "contains_bitmap_condition":
        bitmap = condition.contains_bitmap_condition.elements_bitmap
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        known = bits[: column.categorical.number_of_unique_values]
        return tuple(np.flatnonzero(known).tolist())
    return None


def _bound(column: Any, condition: Any) -> np.float32:
    """Return the number with which YDF's engines compare a value in this condition."""
    if condition.WhichOneof("type") == "higher_condition":
        return np.float32(condition.higher_condition.threshold)
    place = condition.discretized_higher_condition.threshold - 1
    return np.float32(column.discretized_numerical.boundaries[place])


def _threshold(column: Any, condition: Any) -> np.float32:
    """Return the smallest number for which a condition on a number holds."""
    bound = _bound(column, condition)
    if condition.WhichOneof("type") == "higher_condition":
        return bound
    bounds = np.array(column.discretized_numerical.boundaries, np.float32)
    # YDF compares the middle of the bin that a number lies in.
    with np.errstate(over="ignore"):
        middle = np.concatenate([bounds[:1] - 1, (bounds[:-1] + bounds[1:]) / 2, bounds[-1:] + 1])
    above = np.flatnonzero(middle >= bound)
    is_told = 0 < len(above) < len(middle) and np.all(middle[above[0] :] >= bound)
    if not is_told or np.any(np.diff(bounds) <= 0):
        what = f"a bin of column '{column.name}' is so narrow that its middle is its end"
        raise unsupported("boundaries", what, "train on numbers of another scale")
    return np.float32(bounds[above[0] - 1])


def _list_inner(trees: list[Any]) -> list[Any]:
    return [node for tree in trees for node in tree if node.HasField("condition")]


def _is_of_bins(node: Any) -> bool:
    return node.condition.condition.WhichOneof("type") == "discretized_higher_condition"


def _answers_for_means(trees: list[Any], spec: Any) -> bool:
    """Return whether all conditions on numbers treat missing values like the column's mean."""
    for node in _list_inner(trees):
        condition, column = node.condition.condition, spec.columns[node.condition.attribute]
        kind, mean = condition.WhichOneof("type"), column.numerical.mean
        if kind == "higher_condition":
            is_higher = np.float32(mean) >= np.float32(condition.higher_condition.threshold)
        elif kind == "discretized_higher_condition":
            place = condition.discretized_higher_condition.threshold - 1
            is_higher = mean >= column.discretized_numerical.boundaries[place]
        else:
            continue
        if bool(is_higher) != node.condition.na_value:
            return False
    return True
