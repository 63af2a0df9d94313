"""Converts `LinearClassifier` and `LinearRegressor`.

takes: Node, an ONNX node with its inputs; gives: a Value for each of its outputs.

A node that breaks the rules of ONNX raises ModelFormatError, one that TVM cannot compute
UnsupportedModel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...frontends.refusals import damaged, unsupported
from ..model import to_tensor_constant
from .node import Node, Value, width_of
from .trees import complement

_RAW = "export raw scores, with post_transform NONE"


def convert_linear_regressor(node: Node) -> list[Value]:
    """Convert `LinearRegressor`; intercepts are optional."""
    count, intercepts = int(node.get("targets", 1)), node.get("intercepts", [])
    scores = _score(node, count, intercepts or [0.0] * count, ("float32",))
    return [Value(_transform(node, scores, count))]


def convert_linear_classifier(node: Node) -> list[Value]:
    """Convert `LinearClassifier`; a single score is that of the second of two classes."""
    intercepts = node.get("intercepts", [])
    texts, numbers = node.texts("classlabels_strings"), node.get("classlabels_ints", [])
    classes = np.array(texts) if texts else np.array(numbers, np.int64)
    count = len(intercepts)
    if len(classes) != max(2, count) or (texts and numbers):
        raise damaged("classlabels", f"{len(classes)} classes for {count} scores")
    scores = _score(node, count, intercepts, ("float32", "float64", "int32", "int64"))
    table = np.arange(len(classes)) if texts else classes
    label = node.compute(_pick_above_zero if count == 1 else _pick_largest, scores, table)
    if count == 1:
        link = node.get("post_transform", "NONE")
        if link not in ("NONE", "LOGISTIC"):
            what = f"'{link:.40}' of one score"
            raise unsupported("post_transform", what, _RAW)
        second = _transform(node, scores, 2)
        values = node.compute(complement, second, second)
    else:
        values = _transform(node, scores, count)
    return [Value(label, classes if texts else None), Value(values)]


def _score(node: Node, count: int, intercepts: Any, dtypes: tuple[str, ...]) -> relax.Expr:
    """Return `rows @ coefficients.T + intercepts`, float32 (n, count)."""
    x = node.emit(relax.op.astype(node.rows(dtypes=dtypes), "float32"))
    weights = np.array(node.get("coefficients", []), np.float32)
    if count < 1 or weights.size != count * width_of(x):
        what = f"{weights.size} values for {count} outputs of {width_of(x)} columns"
        raise damaged("coefficients", what)
    if len(intercepts) != count:
        raise damaged("intercepts", f"{len(intercepts)} values for {count} outputs")
    product = relax.op.matmul(x, to_tensor_constant(weights.reshape(count, -1).T))
    return node.emit(
        relax.op.add(node.emit(product), to_tensor_constant(np.array(intercepts, np.float32)))
    )


def _transform(node: Node, scores: relax.Expr, count: int) -> relax.Expr:
    """Apply `post_transform` to scores (n, count).

    Raises:
        UnsupportedModel: the transform is unknown, or is of a single score.
    """
    name = node.get("post_transform", "NONE")
    if name == "NONE":
        return scores
    if name not in _TRANSFORMS:
        known = ", ".join(("NONE", *_TRANSFORMS))
        what = f"'{name:.40}' is not among those that can be compiled ({known})"
        raise unsupported("post_transform", what, _RAW)
    if count == 1:
        what = "onnxruntime computes something else here than the text of ONNX says"
        raise unsupported("post_transform", what, _RAW)
    return node.compute(_TRANSFORMS[name], scores)


def _apply_logistic(scores: te.Tensor) -> te.Tensor:
    """Return `1 / (1 + exp(-x))`, computed from exp(-|x|)."""
    one = tirx.const(1, "float32")

    def link(*at: Any) -> Any:
        positive = one / (one + tirx.exp(-tirx.abs(scores[at])))
        return tirx.Select(scores[at] < 0, one - positive, positive)

    return te.compute(scores.shape, link)


def _apply_softmax(scores: te.Tensor) -> te.Tensor:
    """Return the softmax: exponentials divided by their sum."""
    shape, (first, second) = scores.shape, (te.reduce_axis((0, scores.shape[1])) for _ in range(2))
    high = te.compute((shape[0],), lambda r: te.max(scores[r, first], axis=first))
    power = te.compute(shape, lambda r, c: tirx.exp(scores[r, c] - high[r]))
    total = te.compute((shape[0],), lambda r: te.sum(power[r, second], axis=second))
    return te.compute(shape, lambda r, c: power[r, c] / total[r])


_TRANSFORMS = {"LOGISTIC": _apply_logistic, "SOFTMAX": _apply_softmax}


def _pick_above_zero(scores: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """Return the second of two labels where a row's score is above zero, else the first."""
    return te.compute((scores.shape[0],), lambda r: labels[tirx.Cast("int64", scores[r, 0] > 0)])


def _pick_largest(scores: te.Tensor, labels: te.Tensor) -> te.Tensor:
    """Return the label of the largest score; NaN is ignored, but wins as the first score."""
    column = te.reduce_axis((0, scores.shape[1]))
    pick = te.comm_reducer(
        lambda a, b: (tirx.Select(b[1] > a[1], b[0], a[0]), tirx.Select(b[1] > a[1], b[1], a[1])),
        lambda i, x: (tirx.const(0, i), tirx.const(-np.inf, x)),
    )
    place = column.var.astype("int64")
    largest = te.compute(
        (scores.shape[0],), lambda r: pick((place, scores[r, column]), axis=column)
    )[0]
    zero = tirx.const(0, "int64")
    return te.compute(
        (scores.shape[0],),
        lambda r: labels[tirx.Select(tirx.isnan(scores[r, 0]), zero, largest[r])],
    )


CONVERTERS = {
    "LinearClassifier": convert_linear_classifier,
    "LinearRegressor": convert_linear_regressor,
}
