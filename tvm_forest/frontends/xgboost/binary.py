"""The binary format of XGBoost 0.90 to 2.0.

takes: bytes; gives: the document that a JSON model of the same content would be.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from ..refusals import damaged, unsupported

_MAGIC = b"binf"
_LEARNER = struct.Struct(
    "<fIiiiIII104x"
)  # base score, features, classes, 2 flags, version, targets
_MODEL = struct.Struct("<iiii8xii128x")  # trees, parallel trees since 1.6, ...
_TREE = struct.Struct("<iiiiii124x")  # roots, nodes, deleted, depth, features, leaf vector
_LENGTH = struct.Struct("<Q")
_NODE = np.dtype("<i4, <i4, <i4, <u4, <f4")  # parent, left, right, feature, threshold or value
_STAT_BYTES = 16
_DEFAULT_LEFT = 31  # bit of the feature


def is_binary(data: bytes) -> bool:
    """Tell whether data begins like a model in XGBoost's old binary format."""
    at = _LEARNER.size + 4 * data.startswith(_MAGIC)
    if len(data) < at + 8:
        return False
    (length,) = _LENGTH.unpack_from(data, at)
    name = data[at + 8 : at + 8 + min(length, 64)]
    return 0 < length < 64 and re.fullmatch(rb"[\w:]+", name) is not None


def document(data: bytes, where: str) -> dict[str, Any]:
    """Read a model.

    Raises:
        ModelFormatError: the file is cut off or damaged.
        UnsupportedModel: it is of several targets.
    """
    cursor = _Cursor(data, where)
    base_score, n_features, n_classes, _, _, *version, n_targets = cursor.unpack(_LEARNER)
    objective, booster = cursor.text(), cursor.text()
    if n_targets > 1:
        what = f"{n_targets} targets in the binary format"
        raise unsupported(where, "num_target", what, "save the model as JSON or UBJSON")
    n_trees, parallel, *_ = cursor.unpack(_MODEL)
    if n_trees < 0 or not 0 <= n_features < 2**31 or n_classes < 0:
        what = f"{n_trees} trees, {n_features} features, {n_classes} classes"
        raise damaged(where, "header", what)
    trees = [_tree(cursor, tree, version[0]) for tree in range(n_trees)]
    cursor.part = "tree_info"
    model = {
        "gbtree_model_param": {"num_parallel_tree": parallel if version >= [1, 6] else 0},
        "tree_info": cursor.array("<i4", n_trees),
        "trees": trees,
    }
    found = {"name": booster, "gbtree": {"name": "gbtree", "model": model}, "model": model}
    if booster == "dart":
        cursor.part = "weight_drop"
        found["weight_drop"] = cursor.array("<f4", cursor.unpack(_LENGTH)[0])
    param = {"num_feature": n_features, "num_class": n_classes, "base_score": base_score}
    return {
        "version": version,
        "learner": {
            "learner_model_param": param | {"boost_from_average": 0},
            "objective": {"name": objective},
            "gradient_booster": found,
        },
    }


class _Cursor:
    """A position in the bytes of a model."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 4 * data.startswith(_MAGIC)
        self.part = "header"

    def take(self, n_bytes: int) -> int:
        """Step over some bytes and return where they begin."""
        if n_bytes > len(self.data) - self.at:
            what = f"needs {n_bytes} bytes at byte {self.at}, the file ends at {len(self.data)}"
            remedy = "the file is truncated or damaged: save the model again"
            raise damaged(self.where, self.part, what, remedy)
        self.at += n_bytes
        return self.at - n_bytes

    def unpack(self, record: struct.Struct) -> tuple[Any, ...]:
        return record.unpack_from(self.data, self.take(record.size))

    def array(self, dtype: Any, count: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(dtype)
        return np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize))

    def text(self) -> str:
        return bytes(self.array("u1", self.unpack(_LENGTH)[0])).decode("latin-1")


def _tree(cursor: _Cursor, tree: int, major: int) -> dict[str, Any]:
    """Read one tree, with the nodes that were deleted."""
    cursor.part = f"tree {tree}"
    n_roots, n_nodes, _, _, _, leaf_vector = cursor.unpack(_TREE)
    if n_nodes < 1 or n_roots != 1:
        raise damaged(cursor.where, cursor.part, f"{n_nodes} nodes and {n_roots} roots")
    nodes = cursor.array(_NODE, n_nodes)
    cursor.take(n_nodes * _STAT_BYTES)
    if leaf_vector and major < 2:
        cursor.take(4 * cursor.unpack(_LENGTH)[0])
    return {
        "tree_param": {"num_nodes": n_nodes, "size_leaf_vector": leaf_vector},
        "left_children": nodes["f1"],
        "right_children": nodes["f2"],
        "split_indices": nodes["f3"] & ((1 << _DEFAULT_LEFT) - 1),
        "default_left": nodes["f3"] >> _DEFAULT_LEFT,
        "split_conditions": nodes["f4"],
    }
