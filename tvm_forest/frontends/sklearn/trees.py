"""Loads trees of `sklearn.tree`, and forests that consist of them.

takes: fitted estimator; gives: Forest.

A classifier with a single class always predicts it. If the trees of an isolation forest were
trained on one row each, paths have no length, and scikit-learn uses 1 for the quotient of lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array, Forest, apply_link
from ..assemble import Nodes, build_forest


def load_trees(model: Any) -> Forest:
    """Return the Forest of a fitted tree, random forest or forest of extra trees."""
    single = hasattr(model, "tree_")
    estimators = [model] if single else model.estimators_
    trees = [estimator.tree_ for estimator in estimators]
    values = np.concatenate([tree.value for tree in trees])
    rules: dict[str, Any] = {}
    if not hasattr(model, "classes_"):
        values = values[:, :, 0]
    elif model.n_outputs_ > 1:
        targets = tuple(int(count) for count in model.n_classes_)
        parts = [values[:, target, :count] for target, count in enumerate(targets)]
        values = np.concatenate(parts, axis=1)
        labels = np.concatenate(model.classes_).astype(model.classes_[0].dtype)
        rules = {"label_rule": "argmax_probability", "labels": labels, "targets": targets}
    else:
        rules = {"label_rule": "argmax_probability", "labels": read_classes(model)}
        values = values[:, 0, : model.n_classes_]
    outputs = values.shape[1]
    accepts_nan = estimators[0]._support_missing_values(np.zeros((0, 0)))
    return build_estimator(
        model,
        *read_nodes(trees),
        values,
        np.full(len(trees), LEAF if outputs > 1 else 0),
        # -0.0 + x is x for all x: the prediction of a single tree is its leaf, even -0.0
        base_score=np.full(outputs, -0.0 if single else 0.0),
        aggregate="sum" if single else "average",
        refuses=("inf",) if accepts_nan else ("nan", "inf"),
        n_rounds=1,
        **rules,
    )


def read_nodes(trees: list[Any]) -> tuple[Array, Nodes]:
    """Return the number of nodes of each `sklearn.tree._tree.Tree`, and arrays over all nodes."""
    theirs = {
        **{"left": "children_left", "right": "children_right", "feature": "feature"},
        **{"threshold": "threshold", "default_left": "missing_go_to_left"},
        "cover": "weighted_n_node_samples",
    }
    small = {"int64": "int32"}  # of large forests, half the memory
    nodes = Nodes()
    for name, their in theirs.items():
        parts = [getattr(tree, their) for tree in trees]
        dtype = small.get(str(parts[0].dtype), parts[0].dtype)
        nodes[name] = np.concatenate(parts, dtype=dtype, casting="same_kind")
    return np.array([tree.node_count for tree in trees]), nodes


def load_isolation_forest(model: Any) -> Forest:
    """Return the Forest of a fitted isolation forest; leaves hold the lengths of their paths."""
    sizes, nodes = read_nodes([estimator.tree_ for estimator in model.estimators_])
    if model._max_features != model.n_features_in_:  # else trees see the columns as they are
        tree, place = np.repeat(np.arange(len(sizes)), sizes), nodes["feature"]
        columns = np.stack(model.estimators_features_)[tree, np.maximum(place, 0)]
        nodes["feature"] = np.where(place < 0, place, columns)
    paths = np.concatenate(model._decision_path_lengths)
    lengths = paths + np.concatenate(model._average_path_length_per_tree) - 1.0
    scale, offset = len(sizes) * _average_path(int(model._max_samples)), float(model.offset_)
    start = np.zeros(1)
    if scale == 0:
        start, lengths, scale = np.ones(1), np.zeros(len(lengths)), 1.0
    return build_estimator(
        model,
        sizes,
        nodes,
        lengths[:, None],
        np.zeros(len(sizes)),
        base_score=start,
        link="isolation",
        link_scale=scale,
        score_offset=offset,
        label_rule="cut",
        label_cut=_find_inlier(scale, offset),
        labels=np.array([-1, 1]),
        refuses=() if hasattr(model, "__sklearn_tags__") else ("nan", "inf"),  # before 1.6
        n_rounds=1,
    )


def _average_path(samples: int) -> float:
    """Return the mean path length of an unsuccessful search in a binary tree of `samples` rows."""
    if samples <= 2:
        return float(max(samples - 1, 0))
    return float(2.0 * (np.log(samples - 1.0) + np.euler_gamma) - 2.0 * (samples - 1.0) / samples)


def _find_inlier(scale: float, offset: float) -> float:
    """Return the smallest sum of path lengths whose score is not below the offset.

    Found by bisection over the bits of positive floats: floats grow with their bits, and scores
    grow with the sum.
    """
    low, high = 0, int(np.float64(np.inf).view(np.int64))
    while low < high:
        middle = (low + high) // 2
        score = apply_link("isolation", np.array([middle]).view(np.float64), scale)[0]
        low, high = (middle + 1, high) if score - offset < 0 else (low, middle)
    return float(np.int64(low).view(np.float64))


def build_estimator(
    model: Any, sizes: Array, nodes: Nodes, values: Array, tree_class: Array, **rules: Any
) -> Forest:
    """Return the Forest of an estimator: the given fields, and those that all estimators share.

    Args:
        model: the estimator.
        sizes, nodes, tree_class: see `assemble.build_forest`; `nodes` are without leaf values.
        values: (N, W), the leaf values.
        **rules: other fields of the Forest.
    """
    names = getattr(model, "feature_names_in_", None)
    nodes["leaf_value"] = values
    return build_forest(
        sizes,
        nodes,
        tree_class,
        n_features=int(model.n_features_in_),
        comparison="<=",
        feature_names=None if names is None else tuple(str(name) for name in names),
        labels_are_numbers=True,
        source=f"scikit-learn {type(model).__name__}",
        **{"leaf_id_dtype": "int64", "object_dtype": "float32", **rules},
    )


def read_classes(model: Any) -> Array:
    """Return the labels, in the order of the outputs."""
    return np.asarray(model.classes_)
