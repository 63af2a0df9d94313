"""Converts tree operators to calls of `relax.tvm_forest.predict`.

takes: Node, an ONNX node with its inputs; gives: a Value for each of its outputs.
"""

from __future__ import annotations

from tvm import relax, te, tirx

from ...forest import Forest
from ...frontends.onnx import from_node
from ..operator import predict
from .node import Node, Value, width_of


def convert_tree_ensemble(node: Node) -> list[Value]:
    """Convert `TreeEnsemble` or `TreeEnsembleRegressor`; integer rows are cast to float32."""
    rows, forest = _read(node)
    return [Value(node.emit(predict(rows, forest, "value")))]


def convert_tree_classifier(node: Node) -> list[Value]:
    """Convert `TreeEnsembleClassifier`, which outputs labels and the scores of all classes."""
    rows, forest = _read(node)
    named = node.emit(predict(rows, forest, ["label", "margin", "value"]))
    label, margin, value = (node.emit(relax.TupleGetItem(named, at)) for at in range(3))
    if forest.n_outputs == 1:
        # onnxruntime computes the first class's score from the unrounded score of the second
        exact = margin if forest.link == "identity" else value
        is_raw = forest.link == "identity" and 0 < forest.label_cut < 0.5
        value = node.compute(_oppose if is_raw else complement, exact, value)
    labels = forest.labels
    assert labels is not None  # of a classifier
    return [Value(label, labels if labels.dtype.kind not in "iu" else None), Value(value)]


def _read(node: Node) -> tuple[relax.Expr, Forest]:
    """Return the rows as float32 or float64, and the forest that compares in that dtype.

    Raises:
        ModelFormatError: the trees are damaged.
        UnsupportedModel: the rows or the trees are of a kind that is not supported.
    """
    rows = node.rows()
    dtype = str(rows.ty.dtype.dtype)
    if dtype not in ("float32", "float64"):
        dtype, rows = "float32", node.emit(relax.op.astype(rows, "float32"))
    return rows, from_node(node.proto, dtype, width_of(rows), node.version)


def complement(exact: te.Tensor, value: te.Tensor) -> te.Tensor:
    """Return the scores of two classes, (n, 2), given that of the second.

    The first is 1 - `exact`, rounded to the dtype of `value`; the second is `value`.

    Args:
        exact: (n, 1), the second class's score before it is rounded.
        value: (n, 1), the same score, rounded.
    """
    return _join(tirx.const(1, exact.dtype), exact, value)


def _oppose(exact: te.Tensor, value: te.Tensor) -> te.Tensor:
    """Return the same as `complement`, but -`exact` as the score of the first class."""
    return _join(tirx.const(-0.0, exact.dtype), exact, value)


def _join(start: tirx.Expr, exact: te.Tensor, value: te.Tensor) -> te.Tensor:
    def one(r: tirx.Var, c: tirx.Var) -> tirx.Expr:
        first = (start - exact[r, 0]).astype(value.dtype)
        return tirx.Select(c > 0, value[r, 0], first)

    return te.compute((value.shape[0], 2), one)


CONVERTERS = {
    "TreeEnsemble": convert_tree_ensemble,
    "TreeEnsembleClassifier": convert_tree_classifier,
    "TreeEnsembleRegressor": convert_tree_ensemble,
}
