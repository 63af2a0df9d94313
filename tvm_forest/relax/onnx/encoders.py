"""Converts `OneHotEncoder` and `LabelEncoder`.

takes: Node, an ONNX node with its inputs; gives: a Value for each of its outputs.

Strings occur only inside a model: as its labels, and as outputs of encoders. They are represented
by indices into a table of strings, so an encoder of strings becomes an encoder of indices.

A node that breaks the rules of ONNX raises ModelFormatError, one that TVM cannot compute
UnsupportedModel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from ...forest import Array
from ...frontends.refusals import damaged, unsupported
from .features import truncate
from .node import NUMBERS, Node, Value

_KINDS = ("int64s", "floats", "strings", "tensor")
_TEXT_INPUT = "TVM has no tensors of texts", "encode texts before the model, and give numbers"


def convert_one_hot_encoder(node: Node) -> list[Value]:
    """Convert `OneHotEncoder`: floats are truncated; of equal categories the last is used.

    If `zeros` is 0, the module raises an error at an unknown category.
    """
    if "cats_strings" in node.attributes:
        raise unsupported("cats_strings", *_TEXT_INPUT)
    x = node.tensor(dtypes=NUMBERS, rank=8)
    known = np.array(node.get("cats_int64s", []), np.int64)
    if not known.size:
        raise damaged("cats_int64s", "no categories")
    lasts = len(known) - 1 - np.unique(known[::-1], return_index=True)[1]
    hot = np.isin(np.arange(len(known)), lasts).astype(np.float32)
    numbers = truncate(node, x, "int64")

    def encode(x: te.Tensor, known: te.Tensor, hot: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, "float32")
        return te.compute(
            (*x.shape, *hot.shape),
            lambda *at: tirx.Select(x[at[:-1]] == known[at[-1]], hot[at[-1]], zero),
        )

    def find_unknown(result: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, len(known)))
        count = te.compute(
            result.shape[:-1], lambda *at: te.sum(result(*at, k).astype("int32"), axis=k)
        )
        return te.compute(count.shape, lambda *at: (count[at] < 1).astype("int32"))

    result = node.compute(encode, numbers, known, hot)
    if not node.get("zeros", 1):
        unknown = node.compute(find_unknown, result)
        result = node.emit_check(unknown, result, "a category is unknown, and zeros is 0")
    return [Value(result)]


def convert_label_encoder(node: Node) -> list[Value]:
    """Convert `LabelEncoder`: of equal keys the first is used; NaN is a key since version 4."""
    keys, values = _read_keys(node), _read_values(node)
    if len(keys) != len(values) - 1 or not len(keys):
        raise damaged("keys", f"{len(keys)} keys for {len(values) - 1} values")
    texts = node.inputs[0].labels
    if keys.dtype.kind == "U":
        if texts is None:
            raise unsupported("keys", *_TEXT_INPUT)
        x = node.inputs[0].expr
        places = np.full(len(texts), len(keys))
        for at in range(len(keys) - 1, -1, -1):
            places[texts == keys[at]] = at
        keys, values = np.arange(len(texts)), np.append(values[places], values[-1:])
    else:
        x = node.tensor(dtypes=(str(keys.dtype),), rank=8)
    is_text = values.dtype.kind == "U"
    table = np.arange(len(values)) if is_text else values
    nan = np.isnan(keys) & (node.version >= 4) if keys.dtype.kind == "f" else np.zeros(1, bool)
    of_nan = tirx.const(int(np.argmax(nan)), "int64")

    count = tirx.const(len(keys), "int64")

    def encode(x: te.Tensor, keys: te.Tensor, table: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, keys.shape[0]))
        place = k.var.astype("int64")
        found = te.compute(
            x.shape, lambda *at: te.min(tirx.Select(x[at] == keys[k], place, count), axis=k)
        )
        if not nan.any():
            return te.compute(x.shape, lambda *at: table[found[at]])
        return te.compute(
            x.shape,
            lambda *at: table[tirx.Select(tirx.isnan(x[at]), of_nan, found[at])],
        )

    return [Value(node.compute(encode, x, keys, table), values if is_text else None)]


def _read_keys(node: Node) -> Array:
    if "classes_strings" not in node.attributes:
        return _read_list(node, "keys")
    classes = np.array(node.texts("classes_strings"))
    return classes if node.inputs[0].labels is not None else np.arange(len(classes))


def _read_values(node: Node) -> Array:
    """Return a `LabelEncoder`'s value for each key, followed by the default for unknown keys."""
    if "classes_strings" in node.attributes:
        texts = node.inputs[0].labels is None
        classes = node.texts("classes_strings")
        values = np.array(classes) if texts else np.arange(len(classes))
    else:
        values = _read_list(node, "values")
    kind = values.dtype.kind
    name, other = {"i": ("int64", -1), "f": ("float", -0.0), "U": ("string", "_Unused")}[kind]
    default = node.get(f"default_{name}", other)
    if "default_tensor" in node.attributes:
        (default,) = _read_tensor("default_tensor", node.get("default_tensor", None)).ravel()
    return np.append(values, np.array([default], None if kind == "U" else values.dtype))


def _read_list(node: Node, what: str) -> Array:
    """Return the list of `what`, "keys" or "values", from the one attribute that holds it.

    Raises:
        ModelFormatError: no attribute or several hold it.
    """
    given = [kind for kind in _KINDS if f"{what}_{kind}" in node.attributes]
    if len(given) != 1:
        raise damaged(what, f"given as {given or 'nothing'}, expected one list")
    (kind,), name = given, f"{what}_{given[0]}"
    if kind == "strings":
        return np.array(node.texts(name))
    if kind == "tensor":
        return _read_tensor(name, node.get(name, None)).ravel()
    return np.array(node.get(name, []), np.int64 if kind == "int64s" else np.float32)


def _read_tensor(name: str, tensor: Any) -> Array:
    from ...frontends.onnx.messages import read_array

    array = read_array(tensor)
    if array.dtype.kind not in "ifU":
        raise unsupported(name, f"it holds {array.dtype}", "give integers, floats or texts")
    return array


CONVERTERS = {
    "LabelEncoder": convert_label_encoder,
    "OneHotEncoder": convert_one_hot_encoder,
}
