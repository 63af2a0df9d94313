"""Loads ONNX models: the tree operators of `ai.onnx.ml`, opsets 1 to 5.

takes: bytes or onnx.ModelProto; gives: Forest.

The specification of ONNX and onnxruntime with one thread agree on nearly everything: leaves are
added in the order of the trees, in the dtype of the rows, base values last; opsets 1 to 3 then
round to float32. NaN at NEQ nodes and fractions in sets follow the specification, where onnxruntime
is wrong. Where the specification is silent, as for binary classifiers, models predict as in
onnxruntime. Models for which the two differ on plain rows are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Aggregate, Array, CategoryRule, Forest, Link
from ..assemble import build_forest
from ..objects import library_of
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .graph import check_opset, read_node, read_tree_op
from .leaves import check_weights, read_leaves
from .nodes import MODES, LeafWeights, read_listed_nodes, read_split_nodes
from .operator import OPERATORS, TreeOp
from .unfold import unfold_nodes

_AGGREGATES: dict[str, Aggregate] = {"AVERAGE": "average", "SUM": "sum", "MIN": "min", "MAX": "max"}
_LINKS: dict[str, Link] = {"NONE": "identity", "SOFTMAX": "softmax", "LOGISTIC": "logistic"}
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_RAW = "export raw scores, with post_transform NONE"

SUPPORT = [
    *list_accepted("onnx", "operator", OPERATORS, "floats or doubles"),
    *list_accepted("onnx", "mode", MODES),
    *list_accepted("onnx", "aggregate", _AGGREGATES),
    *list_linked("onnx", "post_transform", _LINKS),
    *list_refused(
        "onnx",
        post_transform="any other; of a single target, and of all in opset 5",
        graph="more or less than one tree operator",
        opset_import="ai.onnx.ml beyond 5",
        input="more than one, of another type, or no matrix",
        output="no result of the tree operator",
        format="the package onnx is not installed",
        classlabels="less than two classes",
        class_ids="two classes that both have a score",
        class_nodeids="a weight of an inner node in a classifier",
        nodes_treeids="nodes of a tree that lie apart",
        nodes_modes="any other, or EQ and NEQ in so many places that trees grow fourfold",
        membership_values="sets of other than whole numbers from 0 to 2^24 - 1",
        weights="a row may get no weight for an output, and it matters; over 2^28 leaf values",
    ),
]


def is_model(model: Any) -> bool:
    """Return whether an object is an `onnx.ModelProto`, judged by names, without importing onnx."""
    return type(model).__name__ == "ModelProto" and library_of(type(model)).startswith("onnx")


def from_object(model: Any) -> Forest | None:
    """Load an onnx.ModelProto; return None for any other object.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    if not is_model(model):
        return None
    with name_in_errors("onnx model"):
        return _build(read_tree_op(model))


def from_bytes(data: bytes, name: str) -> Forest | None:
    """Load a file whose name or content suggests ONNX; return None for other files.

    Raises:
        ModelFormatError: the model is damaged.
        UnsupportedModel: it has a part that cannot be reproduced exactly, or the package onnx,
            which reads it, is not installed.
    """
    # Models begin with a small version number, then a known field.
    begins = len(data) > 2 and data[0] == 0x08 and data[1] < 0x20 and data[2] in b'\x12\x1a"(2:B'
    if not begins and not name.lower().endswith(".onnx"):
        return None
    with name_in_errors(f"onnx {name}"):
        return _build(read_tree_op(data))


def from_node(node: Any, dtype: str, n_features: int, version: int) -> Forest:
    """Load a tree operator of a graph that has other nodes.

    Args:
        node: the protobuf message of the operator.
        dtype: "float32" or "float64", dtype of its input.
        n_features: number of columns of its input.
        version: version of the operators of `ai.onnx.ml`.

    Raises:
        ModelFormatError: the node is damaged.
        UnsupportedModel: it has a part that cannot be reproduced exactly.
    """
    check_opset([version], node.op_type)
    return _build(read_node(node, dtype, n_features))


def _build(op: TreeOp) -> Forest:
    table, weights = read_listed_nodes(op) if op.is_listed else read_split_nodes(op)
    if not table.roots.size:
        raise damaged("nodes", "the model has no trees")
    rules = (_read_classes if op.kind.endswith("Classifier") else _read_targets)(op, weights)
    check_weights(op, weights, len(rules["base_score"]))
    nodes = unfold_nodes(table, op.n_features)
    leaf_value, tree_class = read_leaves(op, rules, weights, nodes)
    shared = np.count_nonzero(tree_class < 0)
    return build_forest(
        nodes.sizes,
        nodes.arrays | {"leaf_value": leaf_value},
        tree_class,
        nodes.sets,
        CategoryRule("left", fractions_none=True),
        part="nodes",
        n_features=op.n_features or int(nodes.arrays["feature"].max(initial=0)) + 1,
        comparison=nodes.comparison,
        row_dtype=op.dtype,
        base_first=False,
        value_dtype="float32" if op.dtype == "float64" and op.is_listed else None,
        leaf_id_dtype="int64",
        n_rounds=int(shared + np.bincount(tree_class[tree_class >= 0], minlength=1).max()),
        source=f"onnx {op.kind}",
        **rules,
    )


# -- fields of a Forest that say how sums become outputs ------------------------------------------


def _read_targets(op: TreeOp, weights: LeafWeights) -> dict[str, Any]:
    count = op.integer("n_targets", 0 if op.is_listed else 1)
    if not 1 <= count <= max(1, len(weights.leaf)):
        raise damaged("n_targets", f"{count} targets for {len(weights.leaf)} weights")
    aggregate = op.option("aggregate_function", tuple(_AGGREGATES), 1)
    if aggregate not in _AGGREGATES:
        what = f"'{aggregate:.40}' is not among those known ({', '.join(_AGGREGATES)})"
        raise damaged("aggregate_function", what)
    link = _read_link(op)
    if link != "identity" and (count == 1 or not op.is_listed):
        # onnxruntime skips the transform of a single target, and numbers those of opset 5 wrongly.
        what = "onnxruntime computes something else here than the text of ONNX says"
        raise unsupported("post_transform", what, _RAW)
    base = op.numbers("base_values")
    return _fill_base(op, base, count) | {"aggregate": _AGGREGATES[aggregate], "link": link}


def _read_classes(op: TreeOp, weights: LeafWeights) -> dict[str, Any]:
    """Return fields for a classifier; one of two classes has one score, that of the second."""
    texts, numbers = op.texts("classlabels_strings"), op.integers("classlabels_int64s")
    if texts and numbers.size:
        raise damaged("classlabels_int64s", "given beside 'classlabels_strings'")
    labels = np.array([text.decode(errors="replace") for text in texts]) if texts else numbers
    base, link = op.numbers("base_values"), _read_link(op)
    rules = {"aggregate": "sum", "link": link, "labels": labels}
    if len(labels) > 2:
        rule = "argmax_probability" if link == "identity" else "top_margin"
        return rules | _fill_base(op, base, len(labels)) | {"label_rule": rule}
    if len(labels) < 2:
        raise unsupported("classlabels", f"{len(labels)} classes", "train with two classes or more")
    if np.any(weights.target) or len(base) > 1:
        what = "two classes that both have a score or a base value: onnxruntime picks the class "
        what += "by the second score alone"
        raise unsupported("class_ids", what, "list weights of class id 0 only")
    rules |= _fill_base(op, base, 1)
    above_half = not np.any(weights.weight < 0)
    if link != "logistic":  # onnxruntime ignores a softmax of one score
        rules["link"] = "identity"
        if above_half and op.dtype == "float32":
            return rules | {"label_rule": "half"}  # the score is a probability
    dtype = np.dtype(op.dtype).type
    cut = float(np.nextafter(dtype(0.5 if above_half else 0), dtype(1)))
    return rules | {"label_rule": "cut", "label_cut": cut}


def _read_link(op: TreeOp) -> Link:
    name = op.option("post_transform", _TRANSFORMS, 0)
    if name not in _LINKS:
        what = f"'{name:.40}' is not among those that can be compiled ({', '.join(_LINKS)})"
        raise unsupported("post_transform", what, _RAW)
    return _LINKS[name]


def _fill_base(op: TreeOp, base: Array, count: int) -> dict[str, Any]:
    if len(base) not in (0, count):
        raise damaged("base_values", f"{len(base)} values for {count} outputs")
    return {"base_score": base if base.size else np.zeros(count, op.dtype)}
