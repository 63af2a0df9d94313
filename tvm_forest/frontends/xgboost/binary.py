"""Reads the binary format of XGBoost 0.90 to 2.0.

takes: bytes; gives: a document like that of a JSON model with the same content.

Refused are truncated files, impossible counts, and models with several targets.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..cursor import Cursor
from ..refusals import damaged, unsupported
from .trees import BOOSTERS

_MAGIC = b"binf"  # some files begin with it
_HEADER_BYTES = 136
_LEARNER = "<fIiiiIII104x"  # base score, features, classes, 2 flags, version, targets
_MODEL = "<iiii8xii128x"  # trees, parallel trees since 1.6, ...
_TREE = "<iiiiii124x"  # roots, nodes, deleted, depth, features, leaf vector
_NODE = np.dtype("<i4, <i4, <i4, <u4, <f4")  # parent, left, right, feature, threshold or value
_STATISTIC = np.dtype("<f4, <f4, <f4, <i4")  # gain, sum of hessians, weight, leaf children
_DEFAULT_LEFT = 31  # bit of the feature


def is_binary(data: bytes) -> bool:
    """Return whether data begins like a model in XGBoost's old binary format."""
    at = _HEADER_BYTES + 4 * data.startswith(_MAGIC)
    length = int.from_bytes(data[at : at + 8], "little")
    name = data[at + 8 : at + 8 + min(length, 64)]
    return 0 < length < 64 and re.fullmatch(rb"[\w:]+", name) is not None


def read_binary(data: bytes) -> dict[str, Any]:
    """Return the document of a model file, in the form of a JSON model's.

    Raises:
        ModelFormatError: the file is truncated or damaged.
        UnsupportedModel: the model has several targets.
    """
    cursor = Cursor(data, 4 * data.startswith(_MAGIC), "header")
    base_score, n_features, n_classes, _, _, *version, n_targets = cursor.read_numbers(_LEARNER)
    objective, booster = (cursor.read_text().decode("latin-1") for _ in range(2))
    if booster not in BOOSTERS:  # the rest is in another format; `header` refuses the name
        return {"learner": {"gradient_booster": {"name": booster}}}
    if n_targets > 1:
        what = f"{n_targets} targets in the binary format"
        raise unsupported("num_target", what, "save the model as JSON or UBJSON")
    n_trees, parallel, *_ = cursor.read_numbers(_MODEL)
    if n_trees < 0 or not 0 <= n_features < 2**31 or n_classes < 0:
        raise damaged("header", f"{n_trees} trees, {n_features} features, {n_classes} classes")
    trees = [_read_tree(cursor, tree, version[0]) for tree in range(n_trees)]
    cursor.part = "tree_info"
    model = {
        "gbtree_model_param": {"num_parallel_tree": parallel if version >= [1, 6] else 0},
        "tree_info": cursor.read_array("<i4", n_trees),
        "trees": trees,
    }
    holder = {"name": booster, "gbtree": {"name": "gbtree", "model": model}, "model": model}
    if booster == "dart":
        cursor.part = "weight_drop"
        holder["weight_drop"] = cursor.read_array("<f4", cursor.read_number("<Q"))
    param = {"num_feature": n_features, "num_class": n_classes, "base_score": base_score}
    return {
        "version": version,
        "learner": {
            "learner_model_param": param | {"boost_from_average": 0},
            "objective": {"name": objective},
            "gradient_booster": holder,
        },
    }


def _read_tree(cursor: Cursor, tree: int, major: int) -> dict[str, Any]:
    """Return one tree as a JSON model holds it, with the nodes that training has deleted.

    Args:
        cursor: where the tree begins.
        tree: its number, for messages.
        major: the major version of XGBoost that wrote the model.
    """
    cursor.part = f"tree {tree}"
    n_roots, n_nodes, _, _, _, leaf_vector = cursor.read_numbers(_TREE)
    if n_nodes < 1 or n_roots != 1:
        raise damaged(cursor.part, f"{n_nodes} nodes and {n_roots} roots")
    nodes = cursor.read_array(_NODE, n_nodes)
    statistics = cursor.read_array(_STATISTIC, n_nodes)
    if leaf_vector and major < 2:
        cursor.read_array("<f4", cursor.read_number("<Q"))
    return {
        "tree_param": {"num_nodes": n_nodes, "size_leaf_vector": leaf_vector},
        "left_children": nodes["f1"],
        "right_children": nodes["f2"],
        "split_indices": nodes["f3"] & ((1 << _DEFAULT_LEFT) - 1),
        "default_left": nodes["f3"] >> _DEFAULT_LEFT,
        "split_conditions": nodes["f4"],
        "sum_hessian": statistics["f1"],
    }
