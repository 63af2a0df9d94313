"""What an XGBoost model says about itself, apart from its trees.

takes: bytes of a JSON or UBJSON model, or of the old binary format; gives: Header.

treelite loses some of this and gets some of it wrong, so it is read here, and checked before
treelite sees the bytes.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..forest import Array
from . import ubjson
from .document import Node
from .refusals import damaged, unsupported
from .xgboost_trees import LEAF_ARRAYS, category_names, check_trees, check_vectors

Format = Literal["json", "ubjson", "binary"]
BOOSTERS = ("gbtree", "dart")
_NODE_ARRAYS = (
    "base_weights leaf_child_counts leaf_weights left_children loss_changes parents "
    "right_children split_conditions split_indices split_type sum_hessian"
).split()
_MOST_CLASSES = 2**16  # of a model without trees
_TRUNCATED = "the file is truncated or damaged: save the model again"


@dataclass(frozen=True)
class Header:
    """The checked header of a model.

    Attributes:
        where: place that error messages name.
        version: of the XGBoost that wrote the model; (0, 0) for one before 1.0.
        booster: "gbtree" or "dart".
        objective: name of the objective.
        base_score: float32, one number or one per output, as written.
        n_features: number of features.
        n_outputs: number of classes or targets, 1 for a model without them.
        tree_class: int32 (T,), the output of each tree; -1 if its leaves hold vectors.
        round_ends: number of trees after each boosting round; None where the model does not tell.
        feature_names: names of the columns, or None.
        category_names: per feature, what a frame calls category 0, 1, 2, ...
        tree_weights: float32 (T,), what DART multiplies the leaves of each tree with, else None.
        node_ids: numbers of the nodes of each tree where treelite counts anew, else None.
    """

    where: str
    version: tuple[int, ...]
    booster: str
    objective: str
    base_score: Array
    n_features: int
    n_outputs: int
    tree_class: Array
    round_ends: tuple[int, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    category_names: dict[int, tuple[str | int, ...]] = field(default_factory=dict)
    tree_weights: Array | None = None
    node_ids: list[Array] | None = None

    def __post_init__(self) -> None:
        classes = self.tree_class
        if classes.size and (classes.min() < -1 or classes.max() >= self.n_outputs):
            wrong = int(np.argmax((classes < -1) | (classes >= self.n_outputs)))
            what = f"tree {wrong} is of class {classes[wrong]} of {self.n_outputs}"
            raise damaged(self.where, "tree_info", what)
        if self.n_outputs > (_MOST_CLASSES if self.has_vectors else self.n_trees or _MOST_CLASSES):
            what = f"{self.n_outputs} classes for {self.n_trees} trees"
            raise damaged(self.where, "num_class", what)
        if self.base_score.size not in (1, self.n_outputs):
            what = f"{self.base_score.size} values for {self.n_outputs} outputs"
            raise damaged(self.where, "base_score", what)

    @property
    def n_trees(self) -> int:
        """T."""
        return len(self.tree_class)

    @property
    def has_vectors(self) -> bool:
        """Whether leaves hold vectors."""
        return bool(np.any(self.tree_class < 0))


def read_header(data: bytes, kind: Format, where: str) -> Header:
    """Read the header of a model and refuse what cannot be compiled."""
    if kind == "binary":
        return _from_binary(data, where)
    header = _from_document(_document(data, kind, where, _NODE_ARRAYS))
    if header.has_vectors:
        arrays = [name for name in _NODE_ARRAYS if name not in LEAF_ARRAYS]
        _, model = _booster(_document(data, kind, where, arrays).child("learner"))
        check_vectors(model.child("trees"), header.n_outputs)
    return header


def _document(data: bytes, kind: Format, where: str, skip: list[str]) -> Node:
    """Read a document, but for the arrays over nodes that are to be skipped."""
    try:
        if kind == "json":
            # A quote inside of a string has a backslash before it, so this matches keys only.
            names = "|".join(skip).encode()
            arrays = rb'(?<!\\)"(%s)"\s*:\s*\[[^][{}"]*\]' % names
            document = json.loads(re.sub(arrays, rb'"\1":null', data))
        else:
            document = ubjson.loads(data, frozenset(skip))
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # positions do not hold in a shortened document
        raise damaged(
            where, "document", f"not valid {kind.upper()}: {reason}", _TRUNCATED
        ) from None
    return Node(document, where, "document")


# -- JSON and UBJSON ------------------------------------------------------------------------------


def _from_document(root: Node) -> Header:
    learner = root.child("learner")
    name, model = _booster(learner)
    version = tuple(root.get("version", []).integers()) or (1, 0)
    if version < (1, 0) or min(version) < 0:
        raise root.child("version").wrong("a version of 1.0 or newer")
    param = learner.child("learner_model_param")
    n_features = param.child("num_feature").integer()
    n_outputs = _n_outputs(root.where, *(param.get("num_" + n, 0) for n in ("class", "target")))
    tree_class = np.array(model.child("tree_info").integers(), np.int64)
    if np.any(tree_class < 0):
        raise model.child("tree_info").wrong("no negative numbers")
    has_vectors, has_categories = check_trees(model.child("trees"), len(tree_class), n_outputs)
    if has_categories and version < (1, 7):
        what = f"unknown categories mean another thing since 1.7, got XGBoost {dotted(version)}"
        raise unsupported(root.where, "version", what, "train again with XGBoost 1.7 or newer")
    return Header(
        where=root.where,
        version=version,
        booster=name,
        objective=learner.child("objective").child("name").text(),
        base_score=param.child("base_score").numbers(),
        n_features=n_features,
        n_outputs=n_outputs,
        tree_class=np.full_like(tree_class, -1) if has_vectors else tree_class,
        round_ends=_round_ends(model, len(tree_class), 1 if has_vectors else n_outputs),
        feature_names=_feature_names(learner, n_features),
        category_names=category_names(model.get("cats", {}), n_features),
        tree_weights=_tree_weights(learner, name, len(tree_class)),
    )


def _booster(learner: Node) -> tuple[str, Node]:
    """Return the name of the booster and its trees with what belongs to them."""
    booster = learner.child("gradient_booster")
    name = booster.child("name").text()
    _check_booster(booster.where, name)
    return name, (booster.child("gbtree") if name == "dart" else booster).child("model")


def _check_booster(where: str, name: str) -> None:
    if name not in BOOSTERS:
        what = f"expected 'gbtree' or 'dart', got '{name:.40}'"
        raise unsupported(where, "booster", what, "only trees can be compiled")


def _n_outputs(where: str, n_classes: Node, n_targets: Node) -> int:
    classes, targets = max(n_classes.integer(), 1), max(n_targets.integer(), 1)
    if classes > 1 and targets > 1:
        what = f"{targets} targets of {classes} classes"
        raise unsupported(where, "num_target", what, "train one model per target")
    return max(classes, targets)


def _tree_weights(learner: Node, name: str, n_trees: int) -> Array | None:
    booster = learner.child("gradient_booster")
    if name == "dart":
        weights = booster.child("weight_drop").numbers()
        if len(weights) != n_trees:
            raise booster.child("weight_drop").wrong(f"{n_trees} numbers")
        return weights
    for place in (booster, booster.child("model")):
        if place.get("weight_drop", []).value:
            what = "trees with weights in 'gbtree' are of a later XGBoost"
            raise unsupported(learner.where, "weight_drop", what, "train with XGBoost 3.2 or older")
    return None


def _round_ends(model: Node, n_trees: int, n_outputs: int) -> tuple[int, ...] | None:
    bounds = model.get("iteration_indptr", []).integers()
    if bounds:
        if bounds[0] != 0 or bounds[-1] != n_trees or np.any(np.diff(bounds) < 0):
            raise model.child("iteration_indptr").wrong(f"bounds of {n_trees} trees")
        return tuple(bounds[1:])
    parallel = model.get("gbtree_model_param", {}).get("num_parallel_tree", 0).integer()
    return even_rounds(n_trees, parallel * n_outputs) if parallel else None


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(str(part) for part in version)


def even_rounds(n_trees: int, size: int) -> tuple[int, ...]:
    """Return the number of trees after each boosting round of `size` trees."""
    return tuple(range(size, n_trees + 1, size))


def _feature_names(learner: Node, n_features: int) -> tuple[str, ...] | None:
    names = learner.get("feature_names", []).texts()
    if len(names) not in (0, n_features):
        raise damaged(
            learner.where, "feature_names", f"{len(names)} names for {n_features} features"
        )
    return tuple(names) or None


# -- the old binary format ------------------------------------------------------------------------

_MAGIC = b"binf"
_LEARNER = struct.Struct(
    "<fIiiiIII104x"
)  # base score, features, classes, 2 flags, version, targets
_MODEL = struct.Struct("<iiii8xii128x")  # trees, parallel trees since 1.6, ...
_TREE = struct.Struct("<iiiiii124x")  # roots, nodes, deleted, depth, features, leaf vector
_NODE_BYTES, _STAT_BYTES = 20, 16
_DELETED = 0xFFFFFFFF


def is_binary(data: bytes) -> bool:
    """Tell whether data begins like a model in XGBoost's old binary format."""
    at = _LEARNER.size + 4 * data.startswith(_MAGIC)
    if len(data) < at + 8:
        return False
    (length,) = struct.unpack_from("<Q", data, at)
    name = data[at + 8 : at + 8 + min(length, 64)]
    return 0 < length < 64 and re.fullmatch(rb"[\w:]+", name) is not None


class _Cursor:
    """A position in the bytes of a binary model."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 4 * data.startswith(_MAGIC)
        self.part = "header"

    def take(self, n_bytes: int) -> int:
        """Step over some bytes and return where they begin."""
        if n_bytes > len(self.data) - self.at:
            raise damaged(
                self.where,
                self.part,
                f"needs {n_bytes} bytes at byte {self.at}, the file ends at {len(self.data)}",
                _TRUNCATED,
            )
        self.at += n_bytes
        return self.at - n_bytes

    def unpack(self, record: struct.Struct) -> tuple[Any, ...]:
        return record.unpack_from(self.data, self.take(record.size))

    def text(self) -> str:
        (length,) = self.unpack(struct.Struct("<Q"))
        begin = self.take(length)
        return self.data[begin : self.at].decode("latin-1")


def _from_binary(data: bytes, where: str) -> Header:
    cursor = _Cursor(data, where)
    base_score, n_features, n_classes, _, _, *version, n_targets = cursor.unpack(_LEARNER)
    objective, booster = cursor.text(), cursor.text()
    _check_booster(where, booster)
    if n_targets > 1:
        what = f"{n_targets} targets in the binary format"
        raise unsupported(where, "num_target", what, "save the model as JSON or UBJSON")
    n_trees, parallel, *_ = cursor.unpack(_MODEL)
    if n_trees < 0 or not 0 <= n_features < 2**31 or n_classes < 0:
        what = f"{n_trees} trees, {n_features} features, {n_classes} classes"
        raise damaged(where, "header", what)
    node_ids = [_node_ids(cursor, tree, version[0]) for tree in range(n_trees)]
    cursor.part = "tree_info"
    begin = cursor.take(4 * n_trees)
    tree_class = np.frombuffer(data, "<i4", n_trees, begin)
    n_outputs = max(n_classes, 1)
    since_1_6 = tuple(version) >= (1, 6) and parallel > 0
    return Header(
        where=where,
        version=tuple(version),
        booster=booster,
        objective=objective,
        base_score=np.array([base_score], np.float32),
        n_features=n_features,
        n_outputs=n_outputs,
        tree_class=tree_class,
        round_ends=even_rounds(n_trees, parallel * n_outputs) if since_1_6 else None,
        node_ids=node_ids,
    )


def _node_ids(cursor: _Cursor, tree: int, major: int) -> Array:
    """Step over one tree; treelite leaves its deleted nodes out and numbers the others anew."""
    cursor.part = f"tree {tree}"
    _, n_nodes, _, _, _, leaf_vector = cursor.unpack(_TREE)
    if n_nodes < 1:
        raise damaged(cursor.where, cursor.part, f"{n_nodes} nodes")
    begin = cursor.take(n_nodes * _NODE_BYTES)
    nodes = np.frombuffer(cursor.data, "<u4", n_nodes * 5, begin).reshape(n_nodes, 5)
    cursor.take(n_nodes * _STAT_BYTES)
    if leaf_vector and major < 2:
        (length,) = cursor.unpack(struct.Struct("<Q"))
        cursor.take(4 * length)
    return np.flatnonzero(nodes[:, 3] != _DELETED)
