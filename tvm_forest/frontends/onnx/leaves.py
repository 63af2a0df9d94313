"""Makes the leaf values of a forest from the weights that an ONNX tree operator lists.

takes: LeafWeights, fields of the Forest; gives: leaf values and the output of each tree.

Refused are weights of leaves that do not exist, leaves without weights where that matters, and
tables of vectors that would be too large.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array
from ..refusals import damaged, refuse_damaged, refuse_unsupported, unsupported
from .nodes import LeafWeights
from .operator import TreeOp
from .unfold import UnfoldedNodes

_MAX_LEAF_VALUES = 1 << 28


def check_weights(op: TreeOp, weights: LeafWeights, count: int) -> None:
    """Refuse NaN weights, outputs not within 0 to `count` - 1, and weights of the same pair.

    A pair is a leaf and an output; two weights of one would have to be added up.
    """
    field = "target_ids or class_ids" if op.is_listed else "leaf_targetids"
    target = weights.target
    wrong = (target < 0) | (target >= count)
    refuse_damaged(wrong, field, lambda at: f"{target[at]} is not within 0 to {count - 1}")
    refuse_damaged(np.isnan(weights.weight), "weights", lambda at: "a weight is not a number")
    if len(np.unique(weights.leaf * count + target)) != len(target):
        raise unsupported(field, "a leaf has two weights for one output", "add them up")


def read_leaves(
    op: TreeOp, rules: dict[str, Any], weights: LeafWeights, nodes: UnfoldedNodes
) -> tuple[Array, Array]:
    """Return leaf values (N, W) and the output of each tree, -1 if its leaves hold vectors.

    Args:
        op: the operator.
        rules: fields of the Forest that say how leaf values become outputs.
        weights: the weights of leaves.
        nodes: the nodes of the Forest.
    """
    position, is_leaf = nodes.position, nodes.arrays["left"] == LEAF
    count, size = len(rules["base_score"]), int(position.max()) + 1
    begins = np.cumsum(nodes.sizes) - nodes.sizes
    if op.is_listed and not np.isin(weights.leaf, position).all():
        # onnxruntime adds such a weight to the first root, if that is a leaf
        raise damaged("weights", "a weight of a leaf that no path reaches")
    here = weights.leaf < size  # the others are leaves that no path reaches
    leaf, target, weight = weights.leaf[here], weights.target[here], weights.weight[here]
    n_weights = np.bincount(leaf, minlength=size)[position[is_leaf]]
    if count == 1 and np.any(n_weights == 0):
        raise damaged("weights", "a leaf has no weight")
    targets = np.zeros(size, np.int64)
    targets[leaf] = target
    low = np.minimum.reduceat(np.where(is_leaf, targets[position], count), begins)
    high = np.maximum.reduceat(np.where(is_leaf, targets[position], -1), begins)
    alone = bool(np.all(n_weights == 1)) and np.array_equal(low, high)
    if count == 1 or (alone and rules["aggregate"] != "average"):
        values = np.zeros((size, 1), op.dtype)
        values[leaf, 0] = weight
        reached, tree_class = np.isin(np.arange(count), low), low
    else:
        if len(position) * count > _MAX_LEAF_VALUES:
            what = f"{len(position)} nodes with {count} values each"
            raise unsupported("weights", what, "export one forest for each output")
        # Where a leaf has no weight, it gets a value that changes nothing.
        nothing = {"min": np.inf, "max": -np.inf}.get(rules["aggregate"], 0)
        values, given = np.full((size, count), nothing, op.dtype), np.zeros((size, count), bool)
        values[leaf, target], given[leaf, target] = weight, True
        everywhere = np.logical_and.reduceat(given[position] | ~is_leaf[:, None], begins, axis=0)
        reached, tree_class = np.logical_or.reduce(everywhere), np.full(len(begins), LEAF)
    _check_reached(op, rules, weight, reached)
    return values[position], tree_class


def _check_reached(op: TreeOp, rules: dict[str, Any], weight: Array, reached: Array) -> None:
    """Refuse outputs that may get no weight for a row, if that makes a difference.

    For such a row onnxruntime forgets the base value, and a classifier ignores the class.

    Args:
        op: the operator.
        rules: see `read_leaves`.
        weight: (V,), all weights.
        reached: bool (C,), whether some tree has a weight of the output in every leaf.
    """
    base = rules["base_score"]
    if op.kind == "TreeEnsembleClassifier":
        matters = not base.any() and bool(np.any(weight <= 0)) and len(reached) > 1
    else:
        matters = (base != 0) | (rules["aggregate"] in ("min", "max"))
    describe = lambda at: f"a row may get no weight for output {at}"  # noqa: E731
    remedy = "give every leaf of one tree a weight for it"
    refuse_unsupported(np.logical_and(matters, ~reached), "weights", describe, remedy)
