"""What an XGBoost model says about itself, apart from its trees.

takes: bytes of a JSON or UBJSON model, or of the old binary format; gives: Header.

treelite loses some of this and gets some of it wrong, so it is read here, and checked before
treelite sees the bytes.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..forest import Array
from . import ubjson
from .refusals import damaged, unsupported

Format = Literal["json", "ubjson", "binary"]
_NODE_ARRAYS = (
    "base_weights default_left leaf_child_counts left_children loss_changes parents right_children "
    "split_conditions split_indices split_type sum_hessian"
).split()
# A quote inside of a JSON string has a backslash before it, so this matches keys only.
_JSON_NODE_ARRAY = re.compile(
    rb'(?<!\\)"(%s)"\s*:\s*\[[^][{}"]*\]' % "|".join(_NODE_ARRAYS).encode()
)
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
        base_score: float32, one number or one per class, as written.
        n_features: number of features.
        n_outputs: number of classes, 1 for anything but a multi-class model.
        tree_class: int32 (T,), the class of each tree.
        round_ends: number of trees after each boosting round; None where the model does not tell.
        feature_names: names of the columns, or None.
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
    node_ids: list[Array] | None = None

    def __post_init__(self) -> None:
        classes = self.tree_class
        if classes.size and (classes.min() < 0 or classes.max() >= self.n_outputs):
            wrong = int(np.argmax((classes < 0) | (classes >= self.n_outputs)))
            what = f"tree {wrong} is of class {classes[wrong]} of {self.n_outputs}"
            raise damaged(self.where, "tree_info", what)
        if self.n_outputs > (self.n_trees or _MOST_CLASSES):
            what = f"{self.n_outputs} classes for {self.n_trees} trees"
            raise damaged(self.where, "num_class", what)
        if self.base_score.size not in (1, self.n_outputs):
            what = f"{self.base_score.size} values for {self.n_outputs} outputs"
            raise damaged(self.where, "base_score", what)

    @property
    def n_trees(self) -> int:
        """T."""
        return len(self.tree_class)


def read_header(data: bytes, kind: Format, where: str) -> Header:
    """Read the header of a model and refuse what cannot be compiled."""
    if kind == "binary":
        return _from_binary(data, where)
    try:
        if kind == "json":
            document = json.loads(_JSON_NODE_ARRAY.sub(rb'"\1":null', data))
        else:
            document = ubjson.loads(data, frozenset(_NODE_ARRAYS))
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # positions do not hold in a shortened document
        raise damaged(
            where, "document", f"not valid {kind.upper()}: {reason}", _TRUNCATED
        ) from None
    return _from_document(_Node(document, where, "document"))


@dataclass(frozen=True)
class _Node:
    """A value of the document together with its name, for messages."""

    value: Any
    where: str
    name: str

    def wrong(self, expected: str) -> Exception:
        return damaged(self.where, self.name, f"expected {expected}, got {self.value!r:.80}")

    def child(self, name: str) -> _Node:
        """Return a member of an object, which must be there."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        if name not in self.value:
            raise damaged(
                self.where, name, f"missing in '{self.name}'", "this is no complete XGBoost model"
            )
        return _Node(self.value[name], self.where, name)

    def get(self, name: str, default: Any) -> _Node:
        """Return a member of an object, or a default."""
        if isinstance(self.value, dict) and name not in self.value:
            return _Node(default, self.where, name)
        return self.child(name)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("text")
        return self.value

    def integer(self, least: int = 0) -> int:
        try:
            number = int(self.value)
        except (TypeError, ValueError):
            raise self.wrong("an integer") from None
        if not least <= number < 2**31 or isinstance(self.value, float):
            raise self.wrong(f"an integer of at least {least}")
        return number

    def integers(self) -> list[int]:
        if not isinstance(self.value, list) or not all(type(v) is int for v in self.value):
            raise self.wrong("a list of integers")
        return self.value

    def texts(self) -> list[str]:
        if not isinstance(self.value, list) or not all(isinstance(v, str) for v in self.value):
            raise self.wrong("a list of texts")
        return self.value

    def numbers(self) -> Array:
        """Float32 of a number, or of text with one number or with a vector in brackets."""
        try:
            if isinstance(self.value, str):
                value = np.array(self.value.strip().strip("[]").split(","), np.float32)
            else:
                value = np.array(self.value, np.float32).reshape(-1)
        except (TypeError, ValueError):
            raise self.wrong("numbers") from None
        return value


# -- JSON and UBJSON ------------------------------------------------------------------------------


def _from_document(root: _Node) -> Header:
    learner = root.child("learner")
    booster = learner.child("gradient_booster")
    name = booster.child("name").text()
    _check_booster(root.where, name)
    model = (booster.child("gbtree") if name == "dart" else booster).child("model")
    param = learner.child("learner_model_param")
    n_features = param.child("num_feature").integer()
    n_outputs = max(param.get("num_class", 0).integer(), 1)
    _check_scalar(root.where, param.get("num_target", 1).integer())
    _check_no_categories(learner, model)
    tree_class = np.array(model.child("tree_info").integers(), np.int64)
    _check_trees(model.child("trees"), len(tree_class))
    return Header(
        where=root.where,
        version=tuple(root.get("version", []).integers()) or (1, 0),
        booster=name,
        objective=learner.child("objective").child("name").text(),
        base_score=param.child("base_score").numbers(),
        n_features=n_features,
        n_outputs=n_outputs,
        tree_class=tree_class,
        round_ends=_round_ends(model, len(tree_class), n_outputs),
        feature_names=_feature_names(learner, n_features),
    )


def _check_booster(where: str, name: str) -> None:
    if name not in ("gbtree", "dart"):
        what = f"expected 'gbtree' or 'dart', got '{name:.40}'"
        raise unsupported(where, "booster", what, "only trees can be compiled")


def _check_scalar(where: str, n_targets: int) -> None:
    if n_targets > 1:
        what = f"{n_targets} targets"
        raise unsupported(where, "num_target", what, "train one model per target")


def _check_no_categories(learner: _Node, model: _Node) -> None:
    remedy = "encode categories as numbers before training"
    types = learner.get("feature_types", []).texts()
    if "c" in types:
        what = f"feature {types.index('c')} is categorical"
        raise unsupported(learner.where, "feature_types", what, remedy)
    if model.get("cats", {}).get("enc", []).value:
        raise unsupported(learner.where, "cats", "the model encodes categories itself", remedy)


def _check_trees(trees: _Node, n_trees: int) -> None:
    """Refuse trees that treelite would read wrongly or crash upon."""
    if not isinstance(trees.value, list) or len(trees.value) != n_trees:
        raise trees.wrong(f"a list of {n_trees} trees, as in 'tree_info'")
    for number, tree in enumerate(trees.value):
        if not isinstance(tree, dict) or not isinstance(tree.get("tree_param"), dict):
            raise damaged(trees.where, "trees", f"tree {number} has no 'tree_param'")
        if tree.get("categories_nodes"):
            what = f"tree {number} has a categorical split"
            remedy = "encode categories as numbers before training"
            raise unsupported(trees.where, "categories_nodes", what, remedy)
        if tree["tree_param"].get("size_leaf_vector", "0") not in ("0", "1"):
            what = f"the leaves of tree {number} are vectors"
            remedy = "train with multi_strategy='one_output_per_tree'"
            raise unsupported(trees.where, "size_leaf_vector", what, remedy)


def _round_ends(model: _Node, n_trees: int, n_outputs: int) -> tuple[int, ...] | None:
    bounds = model.get("iteration_indptr", []).integers()
    if bounds:
        if bounds[0] != 0 or bounds[-1] != n_trees or np.any(np.diff(bounds) < 0):
            raise model.child("iteration_indptr").wrong(f"bounds of {n_trees} trees")
        return tuple(bounds[1:])
    parallel = model.get("gbtree_model_param", {}).get("num_parallel_tree", 0).integer()
    return even_rounds(n_trees, parallel * n_outputs) if parallel else None


def even_rounds(n_trees: int, size: int) -> tuple[int, ...]:
    """Return the number of trees after each boosting round of `size` trees."""
    return tuple(range(size, n_trees + 1, size))


def _feature_names(learner: _Node, n_features: int) -> tuple[str, ...] | None:
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
    _check_scalar(where, n_targets)
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
