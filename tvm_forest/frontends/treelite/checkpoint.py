"""Checkpoints of treelite 4: the bytes that `treelite.Model.serialize` writes.

takes: bytes; gives: Checkpoint.

treelite believes every length that it reads, and damaged bytes make it crash, so they are read
here: each length is compared with what is left of the bytes before anything is made of that size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...forest import Array
from ..refusals import damaged, unsupported

MAJOR = 4
_TYPES = {2: ("float32", "<f4"), 3: ("float64", "<f8")}
_U64, _I32, _U8, _F32 = (struct.Struct(f"<{letter}") for letter in "QiBf")
_NODES = (
    ("node_type", "<i1"),
    ("cleft", "<i4"),
    ("cright", "<i4"),
    ("split_index", "<i4"),
    ("default_left", "<u1"),
    ("leaf_value", ""),  # in the type of the model
    ("threshold", ""),
    ("cmp", "<i1"),
    ("category_list_right_child", "<u1"),
)
_LISTS = (("leaf_vector", ""), ("category_list", "<u4"))
_STATISTICS = (("data_count", 8), ("sum_hess", 8), ("gain", 8))
_TRUNCATED = "the file is truncated or damaged: serialize the model again"


class Tree(dict[str, Array]):
    """The fields of one tree."""

    get_field = dict.__getitem__


@dataclass(frozen=True)
class Checkpoint:
    """What a model says, its fields named and shaped as treelite does.

    Attributes:
        where: place that error messages name.
        dtype: of rows, thresholds and leaves, "float32" or "float64".
        num_feature: number of features.
        average_tree_output: whether sums are divided by numbers of trees.
        num_class: int32 (targets,), classes of each target.
        leaf_vector_shape: targets and classes that a leaf has values for.
        target_id, class_id: int32 (T,), what a tree is for; -1 for all.
        postprocessor: name of what turns sums into predictions.
        sigmoid_alpha, ratio_c: constants of postprocessors.
        base_scores: float64 (targets * most classes,).
        trees: node arrays and lists by name.
    """

    where: str
    dtype: str
    num_feature: int
    average_tree_output: bool
    num_class: Array
    leaf_vector_shape: tuple[int, ...]
    target_id: Array
    class_id: Array
    postprocessor: str
    sigmoid_alpha: float
    ratio_c: float
    base_scores: Array
    trees: list[Tree]


def is_checkpoint(data: bytes) -> bool:
    """Tell whether data begins like a checkpoint of treelite 3.9 or newer, or of a later one."""
    if len(data) < 14:
        return False
    version = struct.unpack_from("<iii", data)
    return 3 <= version[0] < 16 and 0 <= min(version) <= max(version) < 256 and data[12] in _TYPES


def read_checkpoint(data: bytes, where: str) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        ModelFormatError: the bytes are truncated or damaged.
        UnsupportedModel: another version, or a field of a later one.
    """
    cursor = _Cursor(data, where)
    major, minor, patch = (cursor.number(_I32, "version") for _ in range(3))
    if major != MAJOR:
        what = f"expected a checkpoint of treelite 4, got {major}.{minor}.{patch}"
        raise unsupported(where, "version", what, "serialize the model with treelite 4")
    types = [cursor.number(_U8, "threshold_type") for _ in range(2)]
    if types[0] not in _TYPES or types[0] != types[1]:
        raise damaged(where, "threshold_type", f"unknown types {types}", _TRUNCATED)
    dtype, stored = _TYPES[types[0]]
    n_trees = cursor.number(_U64, "num_tree")
    header: dict[str, Any] = {"num_feature": cursor.number(_I32, "num_feature")}
    cursor.number(_U8, "task_type")  # decides nothing
    header["average_tree_output"] = cursor.number(_U8, "average_tree_output") != 0
    n_targets = cursor.number(_I32, "num_target")
    for name in ("num_class", "leaf_vector_shape", "target_id", "class_id"):
        header[name] = cursor.array(name, "<i4")
    header["postprocessor"] = cursor.text("postprocessor")
    for name in ("sigmoid_alpha", "ratio_c"):
        header[name] = cursor.number(_F32, name)
    header["base_scores"] = cursor.array("base_scores", "<f8")
    cursor.text("attributes")
    cursor.no_options("num_opt_field_per_model")
    _check_header(where, header, n_targets, n_trees)
    header["leaf_vector_shape"] = tuple(header["leaf_vector_shape"].tolist())
    trees = [_tree(cursor, tree, stored) for tree in range(n_trees)]
    if cursor.at != len(data):
        what = f"the model ends at byte {cursor.at} of {len(data)}"
        raise damaged(where, "trees", what, _TRUNCATED)
    return Checkpoint(where, dtype, **header, trees=trees)


def _check_header(where: str, header: dict[str, Any], n_targets: int, n_trees: int) -> None:
    classes, shape = header["num_class"], header["leaf_vector_shape"]
    wrong = {
        "num_feature": header["num_feature"] < 0,
        "num_class": len(classes) != n_targets or not n_targets or np.any(classes < 1),
        "leaf_vector_shape": len(shape) != 2 or np.any(shape < 1),
        "target_id": len(header["target_id"]) != n_trees,
        "class_id": len(header["class_id"]) != n_trees,
    }
    name = next((name for name, fires in wrong.items() if fires), None)
    if name is None:
        name = "base_scores"
        if len(header[name]) == n_targets * int(classes.max()):
            return
    found = np.asarray(header[name])
    what = f"{found.size} values do not fit {n_trees} trees and {n_targets} targets"
    raise damaged(where, name, what if found.ndim else f"{found} is negative", _TRUNCATED)


def _tree(cursor: _Cursor, number: int, dtype: str) -> Tree:
    cursor.part = f"tree {number}, "
    n_nodes = cursor.number(_I32, "num_nodes")
    cursor.number(_U8, "has_categorical_split")
    tree = Tree()
    for name, kind in _NODES:
        tree[name] = cursor.array(name, kind or dtype, n_nodes)
    for name, kind in _LISTS:
        values = cursor.array(name, kind or dtype)
        begin, end = (cursor.array(f"{name}_{side}", "<u8", n_nodes) for side in ("begin", "end"))
        shared = np.any(begin > end) or np.any(end > len(values))
        if shared or int((end - begin).sum(dtype=np.float64)) > len(values):
            what = f"lists of nodes do not lie in the {len(values)} values"
            raise damaged(cursor.where, cursor.part + name, what, _TRUNCATED)
        tree[name], tree[f"{name}_begin"], tree[f"{name}_end"] = values, begin, end
    for name, size in _STATISTICS:
        cursor.array(name, f"<u{size}")
        cursor.array(f"{name}_present", "<u1")
    cursor.no_options("num_opt_field_per_tree")
    cursor.no_options("num_opt_field_per_node")
    return tree


class _Cursor:
    """A position in the bytes of a checkpoint."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.part, self.at = data, where, "", 0

    def number(self, kind: struct.Struct, name: str) -> Any:
        self._step(name, kind.size)
        return kind.unpack_from(self.data, self.at - kind.size)[0]

    def array(self, name: str, dtype: str, expected: int | None = None) -> Array:
        """Read an array behind the number of its values."""
        count = self.number(_U64, name)
        if expected is not None and count != expected:
            what = f"{count} entries for {expected} nodes"
            raise damaged(self.where, self.part + name, what, _TRUNCATED)
        begin = self._step(name, count * np.dtype(dtype).itemsize)
        return np.frombuffer(self.data, dtype, count, begin)

    def text(self, name: str) -> str:
        return self.array(name, "<u1").tobytes().decode(errors="replace")

    def no_options(self, name: str) -> None:
        """Refuse fields that a later version has added."""
        count = self.number(_I32, name)
        if count:
            what = f"{self.part}{count} fields of a later version of treelite in {name}"
            remedy = "serialize the model with treelite 4.8"
            raise unsupported(self.where, "num_opt_field", what, remedy)

    def _step(self, name: str, n_bytes: int) -> int:
        begin = self.at
        if n_bytes > len(self.data) - begin:
            what = f"needs {n_bytes} bytes at byte {begin}, there are {len(self.data)}"
            raise damaged(self.where, self.part + name, what, _TRUNCATED)
        self.at += n_bytes
        return begin
