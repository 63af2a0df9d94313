"""Forests as files of XGBoost, for engines that read nothing else.

takes: Forest; gives: bytes of XGBoost's JSON.

The published model `abalone` is an ONNX file, and the random models are drawn: so written, all
engines of the benchmark can have them. Only what those models need is there: one output, no link,
numbers tested by `<`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tvm_forest.forest import Forest

ROOT_PARENT = 2147483647


def to_xgboost(forest: Forest) -> bytes:
    """Return the JSON of a regression that XGBoost predicts as `forest` does.

    XGBoost adds the base score before the trees, whatever `forest.base_first` says.

    Raises:
        ValueError: the forest has a link, several outputs, sets of categories, or tests by `<=`.
    """
    plain = forest.comparison == "<" and forest.n_outputs == 1 and not forest.derived
    if not plain or forest.link != "identity" or forest.row_dtype != "float32":
        raise ValueError(f"to_xgboost: argument 'forest': not a plain regression: {forest.source}")
    offsets = forest.tree_offset
    trees = [_tree(forest, k, slice(offsets[k], offsets[k + 1])) for k in range(forest.n_trees)]
    model = {
        "gbtree_model_param": {"num_trees": str(len(trees)), "num_parallel_tree": "1"},
        "trees": trees,
        "tree_info": [0] * len(trees),
        "iteration_indptr": list(range(len(trees) + 1)),
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"name": "gbtree", "model": model},
        "learner_model_param": {
            "base_score": repr(float(forest.base_score[0])),
            "boost_from_average": "0",
            "num_class": "0",
            "num_feature": str(forest.row_width),
            "num_target": "1",
        },
        "objective": {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return json.dumps({"learner": learner, "version": [3, 0, 0]}).encode()


def _tree(forest: Forest, number: int, nodes: slice) -> dict[str, Any]:
    left, right = forest.left[nodes], forest.right[nodes]
    is_leaf = forest.is_leaf[nodes]
    count, inner = len(left), np.flatnonzero(~is_leaf)
    parents = np.full(count, ROOT_PARENT)
    parents[left[inner]] = parents[right[inner]] = inner
    numbers = np.where(is_leaf, forest.leaf_value[nodes, 0], forest.threshold[nodes])
    zeros = [0.0] * count
    return {
        "tree_param": {
            "num_nodes": str(count),
            "num_feature": str(forest.row_width),
            "num_deleted": "0",
            "size_leaf_vector": "1",
        },
        "id": number,
        "left_children": np.where(is_leaf, -1, left).tolist(),
        "right_children": np.where(is_leaf, -1, right).tolist(),
        "parents": parents.tolist(),
        "split_indices": np.where(is_leaf, 0, forest.feature[nodes]).tolist(),
        "split_conditions": numbers.astype(np.float64).tolist(),
        "split_type": [0] * count,
        "default_left": forest.default_left[nodes].astype(int).tolist(),
        "base_weights": zeros,
        "loss_changes": zeros,
        "sum_hessian": zeros,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
    }
