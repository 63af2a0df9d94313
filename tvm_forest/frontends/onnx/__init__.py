"""ONNX models: the tree operators of `ai.onnx.ml`, opsets 1 to 5.

takes: bytes or onnx.ModelProto; gives: Forest.

The text of ONNX and onnxruntime with one thread agree on nearly everything: leaves are added in the
order of the trees, in the dtype of the rows, base values last; opsets 1 to 3 then round to float32.
NaN at NEQ nodes and fractions in sets follow the text, where onnxruntime is wrong. Where the text
is silent, as for binary classifiers, onnxruntime decides. The rest, where both differ on plain
rows, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelFormatError
from ...forest import LEAF, Aggregate, Array, CategoryRule, Forest, LabelRule, Link
from ..refusals import damaged, unsupported
from ..support import Support, accepted, linked, refused
from .graph import OPERATORS, TreeOp, read_tree_op
from .trees import MODES, Votes, listed_nodes, node_arrays, split_nodes

_AGGREGATES: dict[str, Aggregate] = {
    "AVERAGE": "average",
    "SUM": "sum",
    "MIN": "min",
    "MAX": "max",
}
_LINKS: dict[str, Link] = {"NONE": "identity", "SOFTMAX": "softmax", "LOGISTIC": "logistic"}
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_RAW = "export raw scores, with post_transform NONE"
_MOST_LEAF_VALUES = 1 << 28
_REFUSED = {
    "post_transform": "any other; of a single target, and of all in opset 5",
    "graph": "more or less than one tree operator",
    "opset_import": "ai.onnx.ml beyond 5",
    "input": "more than one, of another type, or no matrix",
    "output": "no result of the tree operator",
    "format": "the package onnx is not installed",
    "classlabels": "less than two classes",
    "class_ids": "two classes that both have a score",
    "class_nodeids": "a weight of an inner node in a classifier",
    "nodes_treeids": "nodes of a tree that lie apart",
    "nodes_modes": "any other, or EQ and NEQ in so many places that trees grow fourfold",
    "membership_values": "sets of other than whole numbers from 0 to 2^24 - 1",
    "weights": "a row may get no weight for an output, and it matters; over 2^28 leaf values",
}


def support() -> list[Support]:
    """Return what is accepted and refused."""
    return [
        *accepted("onnx", "operator", OPERATORS, "floats or doubles"),
        *accepted("onnx", "mode", MODES),
        *accepted("onnx", "aggregate", _AGGREGATES),
        *linked("onnx", "post_transform", _LINKS),
        *refused("onnx", _REFUSED),
    ]


@dataclass(frozen=True)
class _Result:
    """What an operator makes of the leaves; the fields of a Forest."""

    base_score: Array
    aggregate: Aggregate = "sum"
    link: Link = "identity"
    label_rule: LabelRule = "none"
    labels: Array | None = None
    label_cut: float = 0.0


def looks_like(data: bytes) -> bool:
    """Whether a file begins as ONNX models do: a small version number, then a known field."""
    return len(data) > 2 and data[0] == 0x08 and data[1] < 0x20 and data[2] in b'\x12\x1a"(2:B'


def is_model(model: Any) -> bool:
    """Whether an object is an `onnx.ModelProto`, by names, without importing onnx."""
    cls = type(model)
    return cls.__name__ == "ModelProto" and cls.__module__.split(".")[0].startswith("onnx")


def from_model(model: Any, where: str) -> Forest:
    """Load an ONNX model.

    Args:
        model: bytes of a file, or onnx.ModelProto.
        where: place that error messages name.

    Raises:
        ModelFormatError: the model is damaged.
        UnsupportedModel: it has a part that cannot be reproduced exactly, or the package onnx,
            which reads it, is not installed.
    """
    op = read_tree_op(model, where)
    if op.kind == "TreeEnsemble":
        nodes, votes = split_nodes(op)
    else:
        nodes, votes = listed_nodes(op, "target" if op.kind.endswith("Regressor") else "class")
    if not nodes.roots.size:
        raise damaged(where, "nodes", "the model has no trees")
    result = _classes(op, votes) if op.kind.endswith("Classifier") else _targets(op, votes)
    _check_votes(op, votes, len(result.base_score))
    arrays, categories, comparison, position = node_arrays(op, nodes)
    leaf_value, tree_class = _leaves(op, result, votes, arrays, position)
    n_features = op.n_features or int(arrays["feature"].max(initial=0)) + 1
    shared = np.count_nonzero(tree_class < 0)
    rounds = op.dtype == "float64" and op.kind != "TreeEnsemble"
    try:
        return Forest(
            **arrays,  # type: ignore[arg-type]
            leaf_value=leaf_value,
            tree_class=tree_class,
            tree_id=np.arange(len(tree_class), dtype=np.int32),
            base_score=result.base_score,
            n_features=n_features,
            categories=categories,
            category_rule=CategoryRule("left", fractions_none=True) if categories else None,
            comparison=comparison,
            row_dtype=op.dtype,
            base_first=False,
            aggregate=result.aggregate,
            link=result.link,
            value_dtype="float32" if rounds else None,
            label_rule=result.label_rule,
            label_cut=result.label_cut,
            labels=result.labels,
            leaf_id_dtype="int64",
            n_rounds=int(shared + np.bincount(tree_class[tree_class >= 0], minlength=1).max()),
            source=f"onnx {op.kind}",
        )
    except ModelFormatError as error:
        raise ModelFormatError(f"{where}: field 'nodes': {error}") from None


# -- what becomes of the sums ---------------------------------------------------------------------


def _targets(op: TreeOp, votes: Votes) -> _Result:
    count = op.integer("n_targets", 1 if op.kind == "TreeEnsemble" else 0)
    if not 1 <= count <= max(1, len(votes.leaf)):
        raise damaged(op.where, "n_targets", f"{count} targets for {len(votes.leaf)} weights")
    if op.kind == "TreeEnsemble":
        number = op.integer("aggregate_function", 1)
        aggregate = dict(enumerate(_AGGREGATES)).get(number, str(number))
    else:
        aggregate = op.text("aggregate_function", "SUM")
    if aggregate not in _AGGREGATES:
        what = f"'{aggregate:.40}' is not among those known ({', '.join(_AGGREGATES)})"
        raise damaged(op.where, "aggregate_function", what)
    link = _link(op)
    if link != "identity" and (count == 1 or op.kind == "TreeEnsemble"):
        # It leaves the transform of a single target out, and numbers those of opset 5 otherwise.
        what = "onnxruntime computes something else here than the text of ONNX says"
        raise unsupported(op.where, "post_transform", what, _RAW)
    base = op.numbers("base_values") if op.kind != "TreeEnsemble" else np.zeros(0, op.dtype)
    return _Result(_base(op, base, count), _AGGREGATES[aggregate], link)


def _classes(op: TreeOp, votes: Votes) -> _Result:
    """Result of a classifier; one of two classes has one score, which speaks for the second."""
    texts, numbers = op.texts("classlabels_strings"), op.integers("classlabels_int64s")
    if texts and numbers.size:
        raise damaged(op.where, "classlabels_int64s", "given beside 'classlabels_strings'")
    labels = np.array([text.decode(errors="replace") for text in texts]) if texts else numbers
    base, link = op.numbers("base_values"), _link(op)
    if len(labels) > 2:
        rule: LabelRule = "argmax_probability" if link == "identity" else "argmax_margin"
        return _Result(_base(op, base, len(labels)), "sum", link, rule, labels)
    if len(labels) < 2:
        what = f"{len(labels)} classes"
        raise unsupported(op.where, "classlabels", what, "train with two classes or more")
    if np.any(votes.target) or len(base) > 1:
        what = "two classes that both have a score or a base value: onnxruntime picks the class "
        what += "by the second score alone"
        raise unsupported(op.where, "class_ids", what, "list weights of class id 0 only")
    above_half = not np.any(votes.weight < 0)
    if link != "logistic":  # onnxruntime takes a softmax of one score for none at all
        link = "identity"
    if above_half and link == "identity" and op.dtype == "float32":
        return _Result(_base(op, base, 1), "sum", link, "half", labels)  # it is a probability
    dtype = np.dtype(op.dtype).type
    cut = float(np.nextafter(dtype(0.5 if above_half else 0), dtype(1)))
    return _Result(_base(op, base, 1), "sum", link, "cut", labels, cut)


def _link(op: TreeOp) -> Link:
    if op.kind == "TreeEnsemble":
        number = op.integer("post_transform", 0)
        name = dict(enumerate(_TRANSFORMS)).get(number, str(number))
    else:
        name = op.text("post_transform", "NONE")
    if name not in _LINKS:
        what = f"'{name:.40}' is not among those that can be compiled ({', '.join(_LINKS)})"
        raise unsupported(op.where, "post_transform", what, _RAW)
    return _LINKS[name]


def _base(op: TreeOp, base: Array, count: int) -> Array:
    if len(base) not in (0, count):
        raise damaged(op.where, "base_values", f"{len(base)} values for {count} outputs")
    return base if base.size else np.zeros(count, op.dtype)


# -- leaves ---------------------------------------------------------------------------------------


def _check_votes(op: TreeOp, votes: Votes, count: int) -> None:
    field = "leaf_targetids" if op.kind == "TreeEnsemble" else "target_ids or class_ids"
    wrong = (votes.target < 0) | (votes.target >= count)
    if wrong.any():
        what = f"{votes.target[np.argmax(wrong)]} is not within 0 to {count - 1}"
        raise damaged(op.where, field, what)
    if np.isnan(votes.weight).any():
        raise damaged(op.where, "weights", "a weight is not a number")
    if len(np.unique(votes.leaf * count + votes.target)) != len(votes.leaf):
        what = "a leaf has two weights for one output"
        raise unsupported(op.where, field, what, "add them up")


def _leaves(
    op: TreeOp, result: _Result, votes: Votes, arrays: dict[str, Array], position: Array
) -> tuple[Array, Array]:
    """Return leaf values (N, W) and the class of each tree.

    Args:
        op: the operator.
        result: what becomes of the leaves.
        votes: weights of leaves.
        arrays: arrays of a Forest.
        position: int64 (N,), where the votes find the nodes of these arrays.
    """
    count, size = len(result.base_score), int(position.max()) + 1
    is_leaf, begins = arrays["left"] == LEAF, arrays["tree_offset"][:-1]
    if op.kind != "TreeEnsemble" and not np.isin(votes.leaf, position).all():
        # onnxruntime adds such a weight to the first root, if that is a leaf
        what = "a weight of a leaf that no path reaches"
        raise damaged(op.where, "weights", what)
    here = votes.leaf < size  # the others are leaves that no path reaches
    votes = Votes(votes.leaf[here], votes.target[here], votes.weight[here])
    n_votes = np.bincount(votes.leaf, minlength=size)[position[is_leaf]]
    if count == 1 and np.any(n_votes == 0):
        raise damaged(op.where, "weights", "a leaf has no weight")
    target = np.zeros(size, np.int64)
    target[votes.leaf] = votes.target
    low = np.minimum.reduceat(np.where(is_leaf, target[position], count), begins)
    high = np.maximum.reduceat(np.where(is_leaf, target[position], -1), begins)
    alone = bool(np.all(n_votes == 1)) and np.array_equal(low, high)
    if count == 1 or (alone and result.aggregate != "average"):
        leaf_value = np.zeros((size, 1), op.dtype)
        leaf_value[votes.leaf, 0] = votes.weight
        reached, tree_class = np.isin(np.arange(count), low), low
    else:
        leaf_value, given = _vectors(op, result, votes, size, len(position))
        everywhere = np.logical_and.reduceat(given[position] | ~is_leaf[:, None], begins, axis=0)
        reached, tree_class = np.logical_or.reduce(everywhere), np.full(len(begins), -1)
    _check_reached(op, result, votes, reached)
    leaf_value = leaf_value[position]
    leaf_value[~is_leaf] = 0
    return leaf_value, tree_class.astype(np.int32)


def _vectors(
    op: TreeOp, result: _Result, votes: Votes, size: int, n_nodes: int
) -> tuple[Array, Array]:
    """Weights of all outputs by leaf, what changes nothing where none is given; and which are."""
    count = len(result.base_score)
    if n_nodes * count > _MOST_LEAF_VALUES:
        what = f"{n_nodes} nodes with {count} values each"
        raise unsupported(op.where, "weights", what, "export one forest for each output")
    nothing = {"min": np.inf, "max": -np.inf}.get(result.aggregate, 0)
    table, given = np.full((size, count), nothing, op.dtype), np.zeros((size, count), bool)
    table[votes.leaf, votes.target], given[votes.leaf, votes.target] = votes.weight, True
    return table, given


def _check_reached(op: TreeOp, result: _Result, votes: Votes, reached: Array) -> None:
    """Refuse outputs that a row may leave without any weight, where that makes a difference.

    For such a row onnxruntime forgets the base value, and a classifier passes the class over.

    Args:
        reached: bool (C,), whether some tree has a weight of the output in every leaf.
    """
    if op.kind == "TreeEnsembleClassifier":
        passes_over = not result.base_score.any() and bool(np.any(votes.weight <= 0))
        matters = np.full(len(reached), passes_over and len(reached) > 1)
    else:
        matters = (result.base_score != 0) | (result.aggregate in ("min", "max"))
    wrong = np.logical_and(matters, ~reached)
    if wrong.any():
        what = f"a row may get no weight for output {np.argmax(wrong)}"
        raise unsupported(op.where, "weights", what, "give every leaf of one tree a weight for it")
