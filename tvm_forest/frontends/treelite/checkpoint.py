"""Reads checkpoints of treelite 4: the bytes that `treelite.Model.serialize` writes.

takes: bytes; gives: Checkpoint.

treelite trusts every length that it reads, and damaged bytes make it crash. Here each length is
compared with the number of remaining bytes before memory is allocated. Refused are other versions,
and fields of later ones.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from ..cursor import Cursor
from ..refusals import TRUNCATED, damaged, unsupported

_DTYPES = {2: "float32", 3: "float64"}
_OF_NODES = {
    "node_type": "<i1",
    "cleft": "<i4",
    "cright": "<i4",
    "split_index": "<i4",
    "default_left": "<u1",
    "leaf_value": "",  # in the type of the model
    "threshold": "",
    "cmp": "<i1",
    "category_list_right_child": "<u1",
}
_LISTS = {"leaf_vector": "", "category_list": "<u4"}
_STATISTICS = {"data_count": "<u8", "sum_hess": "<f8", "gain": "<f8"}


@dataclass(frozen=True)
class Checkpoint:
    """The fields of a model, named and shaped as treelite does.

    Attributes:
        dtype: dtype of rows, thresholds and leaves, "float32" or "float64".
        num_feature: number of features.
        average_tree_output: whether the sum of an output is divided by the number of its trees.
        num_class: int32 (targets,), classes of each target.
        leaf_vector_shape: for how many targets and classes a leaf has values.
        target_id, class_id: int32 (T,), the target and class that a tree adds to; -1 for all.
        postprocessor: name of the function that turns sums into predictions.
        sigmoid_alpha, ratio_c: constants of postprocessors.
        base_scores: float64 (targets * largest number of classes,).
        sizes: int64 (T,), number of nodes of each tree.
        columns: fields of the trees by name, one tree after the other; `_begin` and `_end` are the
            range of a node's list in the lists of all trees.
    """

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
    sizes: Array
    columns: dict[str, Array]


def is_checkpoint(data: bytes) -> bool:
    """Return whether data begins like a checkpoint of treelite 3.9 or any newer version."""
    if len(data) < 14:
        return False
    version = struct.unpack_from("<iii", data)
    return 3 <= version[0] < 16 and 0 <= min(version) <= max(version) < 256 and data[12] in _DTYPES


def read_checkpoint(data: bytes) -> Checkpoint:
    """Return the fields of a checkpoint, given its bytes.

    Raises:
        ModelFormatError: the bytes are truncated or damaged.
        UnsupportedModel: the checkpoint is of another version, or has a field of a later one.
    """
    cursor = Cursor(data)
    version = cursor.read_numbers("<iii", "version")
    if version[0] != 4:
        what = f"expected a checkpoint of treelite 4, got {'.'.join(map(str, version))}"
        raise unsupported("version", what, "serialize the model with treelite 4")
    types = list(cursor.read_numbers("<BB", "threshold_type"))
    if types[0] not in _DTYPES or types[0] != types[1]:
        raise damaged("threshold_type", f"unknown types {types}", TRUNCATED)
    dtype = _DTYPES[types[0]]
    n_trees = cursor.read_number("<Q", "num_tree")
    header: dict[str, Any] = {"num_feature": cursor.read_number("<i", "num_feature")}
    cursor.read_number("<B", "task_type")  # decides nothing
    header["average_tree_output"] = cursor.read_number("<B", "average_tree_output") != 0
    n_targets = cursor.read_number("<i", "num_target")
    for name in ("num_class", "leaf_vector_shape", "target_id", "class_id"):
        header[name] = _read_list(cursor, name, "<i4")
    header["postprocessor"] = cursor.read_text("postprocessor").decode(errors="replace")
    for name in ("sigmoid_alpha", "ratio_c"):
        header[name] = cursor.read_number("<f", name)
    header["base_scores"] = _read_list(cursor, "base_scores", "<f8")
    cursor.read_text("attributes")
    _refuse_options(cursor, "num_opt_field_per_model")
    _check_header(header, n_targets, n_trees)
    header["leaf_vector_shape"] = tuple(header["leaf_vector_shape"].tolist())
    trees = [_read_tree(cursor, tree, dtype) for tree in range(n_trees)]
    if cursor.at != len(data):
        raise damaged("trees", f"the model ends at byte {cursor.at} of {len(data)}", TRUNCATED)
    sizes = np.array([len(tree["cleft"]) for tree in trees], np.int64)
    return Checkpoint(dtype, **header, sizes=sizes, columns=_join_trees(trees, dtype))


def _check_header(header: dict[str, Any], n_targets: int, n_trees: int) -> None:
    classes, shape = header["num_class"], header["leaf_vector_shape"]
    wrong = {
        "num_feature": header["num_feature"] < 0,
        "num_class": len(classes) != n_targets or not n_targets or np.any(classes < 1),
        "leaf_vector_shape": len(shape) != 2 or np.any(shape < 1),
        "target_id": len(header["target_id"]) != n_trees,
        "class_id": len(header["class_id"]) != n_trees,
        "base_scores": len(header["base_scores"]) != n_targets * int(classes.max(initial=0)),
    }
    name = next((name for name, is_wrong in wrong.items() if is_wrong), None)
    if name is not None:
        value = np.asarray(header[name])
        what = f"{value.size} values do not fit {n_trees} trees and {n_targets} targets"
        raise damaged(name, what if value.ndim else f"{value} is negative", TRUNCATED)


def _read_tree(cursor: Cursor, number: int, dtype: str) -> dict[str, Array]:
    cursor.part = f"tree {number}, "
    n_nodes = cursor.read_number("<i", "num_nodes")
    cursor.read_number("<B", "has_categorical_split")
    tree = {
        name: _read_list(cursor, name, kind or dtype, n_nodes) for name, kind in _OF_NODES.items()
    }
    for name, kind in _LISTS.items():
        values = tree[name] = _read_list(cursor, name, kind or dtype)
        begin, end = (
            _read_list(cursor, f"{name}_{side}", "<u8", n_nodes) for side in ("begin", "end")
        )
        shared = np.any(begin > end) or np.any(end > len(values))
        if shared or int((end - begin).sum(dtype=np.float64)) > len(values):
            what = f"lists of nodes do not lie in the {len(values)} values"
            raise damaged(cursor.part + name, what, TRUNCATED)
        tree[f"{name}_begin"], tree[f"{name}_end"] = begin, end
    for name, kind in _STATISTICS.items():
        values = _read_list(cursor, name, kind)
        present = _read_list(cursor, f"{name}_present", "<u1")
        whole = len(values) == len(present) == n_nodes
        tree[name] = np.where(present != 0, values, np.nan) if whole else np.full(n_nodes, np.nan)
    _refuse_options(cursor, "num_opt_field_per_tree")
    _refuse_options(cursor, "num_opt_field_per_node")
    return tree


def _read_list(cursor: Cursor, name: str, dtype: str, expected: int | None = None) -> Array:
    """Return the next array, preceded by its length, which must be `expected` if that is given."""
    count = cursor.read_number("<Q", name)
    if expected is not None and count != expected:
        raise damaged(cursor.part + name, f"{count} entries for {expected} nodes", TRUNCATED)
    return cursor.read_array(dtype, count, name)


def _refuse_options(cursor: Cursor, name: str) -> None:
    """Refuse a checkpoint with fields of a later version, whose number is read here."""
    count = cursor.read_number("<i", name)
    if count:
        what = f"{cursor.part}{count} fields of a later version of treelite in {name}"
        raise unsupported("num_opt_field", what, "serialize the model with treelite 4.8")


def _join_trees(trees: list[dict[str, Array]], dtype: str) -> dict[str, Array]:
    """Return the fields of all trees, joined, by name; ranges count in the joined lists."""
    for name in _LISTS:
        first = 0
        for tree in trees:
            for side in ("begin", "end"):
                tree[f"{name}_{side}"] = tree[f"{name}_{side}"].astype(np.int64) + first
            first += len(tree[name])
    bounds = {f"{name}_{side}": "i8" for name in _LISTS for side in ("begin", "end")}
    return {
        name: np.concatenate([np.zeros(0, kind or dtype), *(tree[name] for tree in trees)])
        for name, kind in (_OF_NODES | _LISTS | bounds | _STATISTICS).items()
    }
