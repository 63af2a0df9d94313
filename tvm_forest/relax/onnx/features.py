"""Converts operators on columns of numbers, with onnxruntime's arithmetic.

They are those of `ai.onnx.ml`, and `Cast` to integers.

takes: Node, an ONNX node with its inputs; gives: a Value for each of its outputs.

A node that breaks the rules of ONNX raises ModelFormatError, one that TVM cannot compute
UnsupportedModel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ...frontends.refusals import damaged
from .node import NUMBERS, Node, Value, spread, width_of

INTEGERS = {6: "int32", 7: "int64"}
"""Integer dtypes to which floats are cast here instead of by TVM, by ONNX's number of the dtype."""
LOWEST = float(np.finfo(np.float32).min)


def convert_scaler(node: Node) -> list[Value]:
    """Convert `Scaler`, which gives float32; it scales float64 rows in float64, others in float32.

    The result is `(x - offset) * scale`, with an offset and a scale for each column.
    """
    x = node.tensor()
    scale, offset = node.get("scale", []), node.get("offset", [])
    if len(scale) != len(offset) or not scale:
        raise damaged("scale", f"{len(scale)} values for {len(offset)} of 'offset'")
    wide = "float64" if str(x.ty.dtype.dtype) == "float64" else "float32"
    parts = [
        spread(np.float32(part), width_of(x), name, wide)
        for name, part in (("scale", scale), ("offset", offset))
    ]

    def scale_columns(x: te.Tensor, scale: te.Tensor, offset: te.Tensor) -> te.Tensor:
        def one(*at: Any) -> Any:
            return ((x[at].astype(wide) - offset[at[-1]]) * scale[at[-1]]).astype("float32")

        return te.compute(x.shape, one)

    return [Value(node.compute(scale_columns, x, *parts))]


def convert_normalizer(node: Node) -> list[Value]:
    """Convert `Normalizer`, which leaves rows of norm 0 unchanged."""
    norm = node.get("norm", "MAX")
    if norm not in _NORMS:
        raise damaged("norm", f"'{norm:.40}' is none of {', '.join(_NORMS)}")
    x = node.tensor()
    vector = x.ty.ndim == 1
    result = node.compute(_NORMS[norm], node.rows())
    return [Value(node.emit(relax.op.squeeze(result, 0)) if vector else result)]


def _divide_by_max(x: te.Tensor) -> te.Tensor:
    """Divide rows by their maximum, ignoring NaN."""
    column = te.reduce_axis((0, x.shape[1]))
    pick = te.comm_reducer(
        lambda a, b: tirx.Select(a < b, b, a), lambda dtype: tirx.const(LOWEST, dtype)
    )
    high = te.compute((x.shape[0],), lambda r: pick(x[r, column].astype("float32"), axis=column))
    return te.compute(x.shape, lambda r, c: _divide(x[r, c].astype("float32"), high[r]))


def _divide_by_l1(x: te.Tensor) -> te.Tensor:
    """Divide rows by the sum of their absolute values."""
    column = te.reduce_axis((0, x.shape[1]))
    size = te.compute(x.shape, lambda r, c: tirx.abs(x[r, c]).astype("float32"))
    total = te.compute((x.shape[0],), lambda r: te.sum(size[r, column], axis=column))
    return te.compute(x.shape, lambda r, c: _divide(x[r, c].astype("float32"), total[r]))


def _divide_by_l2(x: te.Tensor) -> te.Tensor:
    """Divide rows by their Euclidean norm.

    As in onnxruntime, each result is the root of a square divided by the sum of squares, with the
    sign of the value; -0 becomes 0.
    """
    column = te.reduce_axis((0, x.shape[1]))
    square = te.compute(x.shape, lambda r, c: (x[r, c] * x[r, c]).astype("float32"))
    total = te.compute((x.shape[0],), lambda r: te.sum(square[r, column], axis=column))

    def one(r: Any, c: Any) -> Any:
        root = tirx.sqrt(square[r, c] / total[r])
        signed = tirx.Select(x[r, c] < tirx.const(0, x.dtype), -root, root)
        return tirx.Select(total[r] == 0, x[r, c].astype("float32"), signed)

    return te.compute(x.shape, one)


def _divide(x: Any, norm: Any) -> Any:
    return tirx.Select(norm == 0, x, x / norm)


_NORMS = {"MAX": _divide_by_max, "L1": _divide_by_l1, "L2": _divide_by_l2}


def convert_imputer(node: Node) -> list[Value]:
    """Convert `Imputer`, for float32 and int64 inputs with replacements of the same dtype."""
    x = node.tensor(dtypes=("float32", "int64"))
    dtype = str(x.ty.dtype.dtype)
    field, one = {
        "float32": ("imputed_value_floats", "replaced_value_float"),
        "int64": ("imputed_value_int64s", "replaced_value_int64"),
    }[dtype]
    given = [name for name in node.attributes if name.startswith("imputed_value_")]
    if given != [field]:
        raise damaged(field, f"{given} is given for values of {dtype}")
    values = spread(node.get(field, []), width_of(x), field, dtype)
    replaced = tirx.const(node.get(one, 0), dtype)
    replaces_nan = dtype == "float32" and np.isnan(node.get(one, 0.0))

    def impute(x: te.Tensor, values: te.Tensor) -> te.Tensor:
        def pick(*at: Any) -> Any:
            hit = tirx.isnan(x[at]) if replaces_nan else x[at] == replaced
            return tirx.Select(hit, values[at[-1]], x[at])

        return te.compute(x.shape, pick)

    return [Value(node.compute(impute, x, values))]


def convert_binarizer(node: Node) -> list[Value]:
    """Convert `Binarizer`; the module raises an error for NaN, as onnxruntime does."""
    x = node.tensor(dtypes=("float32",), rank=8)
    threshold = tirx.const(node.get("threshold", 0.0), "float32")

    def binarize(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: (x[at] > threshold).astype("float32"))

    def find_nan(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.isnan(x[at]).astype("int32"))

    result = node.compute(binarize, x)
    return [Value(node.emit_check(node.compute(find_nan, x), result, "a value is NaN"))]


def convert_feature_vectorizer(node: Node) -> list[Value]:
    """Convert `FeatureVectorizer`: each input is cut, or padded with 0, to its given width."""
    sizes = node.get("inputdimensions", [])
    if len(sizes) != len(node.inputs) or min(sizes, default=0) < 0:
        raise damaged("inputdimensions", f"{list(sizes)} for {len(node.inputs)} inputs")
    parts = []
    for at, size in enumerate(sizes):
        x = node.emit(relax.op.astype(node.rows(at), "float32"))
        width = width_of(x)
        if width > size:
            x = node.emit(relax.op.strided_slice(x, axes=[1], begin=[0], end=[size]))
        parts.append(x)
        if width < size:
            shape = relax.ShapeExpr([x.ty.shape.values[0], size - width])
            parts.append(node.emit(relax.op.zeros(shape, "float32")))
    return [Value(node.emit(relax.op.concat(parts, axis=1)))]


def convert_array_feature_extractor(node: Node) -> list[Value]:
    """Convert `ArrayFeatureExtractor`, which selects along the last axis; a vector is one row."""
    x, labels = node.inputs[0]
    if labels is None:
        x = node.tensor(dtypes=NUMBERS, rank=8)
    places, known = node.tensor(1, ("int64",), 8, least=0), node.constants[1]
    width = width_of(x)
    if known is not None:
        wrong = [int(place) for place in known.ravel() if not 0 <= place < width]
        if wrong or not known.size:
            raise damaged("input", f"places {wrong[:4]} of {width} columns")
    places = node.emit(relax.op.reshape(places, (-1,)))
    if known is None:
        wrong = node.compute(_find_beyond, places, np.array([width], np.int64))
        places = node.emit_check(wrong, places, f"a place is not within 0 to {width - 1}")
    result = node.emit(relax.op.take(x, places, axis=x.ty.ndim - 1, mode="clip"))
    return [Value(node.emit(relax.op.expand_dims(result, 0)) if x.ty.ndim == 1 else result, labels)]


def _find_beyond(places: te.Tensor, width: te.Tensor) -> te.Tensor:
    """Return 1 for indices below 0 or not below `width[0]`, and 0 for others, int32."""

    def one(at: Any) -> Any:
        return tirx.any(places[at] < 0, places[at] >= width[0]).astype("int32")

    return te.compute(places.shape, one)


def convert_zip_map(node: Node) -> list[Value]:
    """Convert `ZipMap`: return the scores, with the classes as labels of their columns."""
    x = node.rows(dtypes=("float32",))
    texts, numbers = node.texts("classlabels_strings"), node.get("classlabels_int64s", [])
    classes = np.array(texts) if texts else np.array(numbers, np.int64)
    if len(classes) != width_of(x):
        raise damaged("classlabels", f"{len(classes)} classes for {width_of(x)} columns")
    return [Value(x, classes)]


def convert_cast(node: Node) -> list[Value]:
    """Convert a `Cast` of floats by `truncate`; TVM's own makes 0 of non-finite numbers."""
    x = node.tensor(dtypes=("float32", "float64"), rank=8)
    return [Value(truncate(node, x, INTEGERS[node.get("to", 0)]))]


def truncate(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """Truncate numbers to integers; NaN and those out of range become the smallest, as on x86."""
    if not str(x.ty.dtype.dtype).startswith("float"):
        return node.emit(relax.op.astype(x, dtype))
    info = np.iinfo(dtype)
    high, least = -float(info.min), tirx.const(int(info.min), dtype)

    def cut(x: te.Tensor) -> te.Tensor:
        low = tirx.const(-high - 1 if dtype == "int32" else -high, x.dtype)

        def one(*at: Any) -> Any:
            fits = tirx.all(x(*at) > low, x(*at) < tirx.const(high, x.dtype))
            return tirx.Select(fits, x(*at).astype(dtype), least)

        return te.compute(x.shape, one)

    return node.compute(cut, x)


CONVERTERS = {
    "ArrayFeatureExtractor": convert_array_feature_extractor,
    "Binarizer": convert_binarizer,
    "FeatureVectorizer": convert_feature_vectorizer,
    "Imputer": convert_imputer,
    "Normalizer": convert_normalizer,
    "Scaler": convert_scaler,
    "ZipMap": convert_zip_map,
}
