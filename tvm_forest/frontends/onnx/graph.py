"""The tree operator of an ONNX graph and its attributes, read and checked.

takes: bytes or onnx.ModelProto; gives: TreeOp.

The graph must hold one tree operator; around it may stand what changes nothing: `Identity`, a
`Cast` of the labels to the type that they have, and the `ZipMap` of a classifier. Every attribute
is known by name and type, so nothing that decides a prediction passes unread. Protobuf gives a text
that is no UTF-8 as bytes, so names are formatted where a message shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...forest import Array
from ..refusals import damaged, unsupported

DOMAIN = "ai.onnx.ml"
_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 6, 7, 8
_NAMES = {
    _FLOAT: "a float",
    _INT: "an integer",
    _STRING: "a text",
    _TENSOR: "a tensor",
    _FLOATS: "floats",
    _INTS: "integers",
    _STRINGS: "texts",
}
_DTYPES = {1: "float32", 2: "uint8", 11: "float64"}
_INT64, _TEXT = 7, 8

_INT_LISTS = ("falsenodeids", "featureids", "missing_value_tracks_true", "truenodeids")
_NODES = {f"nodes_{name}": _INTS for name in _INT_LISTS}
_TABLE = _NODES | {
    "nodes_nodeids": _INTS,
    "nodes_treeids": _INTS,
    "nodes_modes": _STRINGS,
    "nodes_values": _FLOATS,
    "nodes_values_as_tensor": _TENSOR,
    "nodes_hitrates": _FLOATS,
    "nodes_hitrates_as_tensor": _TENSOR,
    "base_values": _FLOATS,
    "base_values_as_tensor": _TENSOR,
    "post_transform": _STRING,
}


def _votes(prefix: str) -> dict[str, int]:
    lists = dict.fromkeys((f"{prefix}_{name}" for name in ("ids", "nodeids", "treeids")), _INTS)
    return lists | {f"{prefix}_weights": _FLOATS, f"{prefix}_weights_as_tensor": _TENSOR}


_ATTRIBUTES = {
    "TreeEnsembleRegressor": _TABLE
    | _votes("target")
    | {"n_targets": _INT, "aggregate_function": _STRING},
    "TreeEnsembleClassifier": _TABLE
    | _votes("class")
    | {"classlabels_int64s": _INTS, "classlabels_strings": _STRINGS},
    "TreeEnsemble": _NODES
    | {
        "nodes_trueleafs": _INTS,
        "nodes_falseleafs": _INTS,
        "nodes_modes": _TENSOR,
        "nodes_splits": _TENSOR,
        "nodes_hitrates": _TENSOR,
        "membership_values": _TENSOR,
        "leaf_weights": _TENSOR,
        "leaf_targetids": _INTS,
        "tree_roots": _INTS,
        "n_targets": _INT,
        "aggregate_function": _INT,
        "post_transform": _INT,
    },
}

OPERATORS = tuple(_ATTRIBUTES)


@dataclass(frozen=True)
class TreeOp:
    """A tree operator.

    Attributes:
        where: place that error messages name.
        kind: "TreeEnsembleRegressor", "TreeEnsembleClassifier" or "TreeEnsemble".
        dtype: "float32" or "float64", dtype of rows, comparisons and sums.
        n_features: columns of the input, None if the graph leaves them open.
        attributes: protobuf messages by name.
    """

    where: str
    kind: str
    dtype: str
    n_features: int | None
    attributes: dict[str, Any]

    def integers(self, name: str) -> Array:
        """Return a list of integers, int64; empty if absent."""
        return np.array(self._list(name, "ints"), np.int64)

    def integer(self, name: str, default: int) -> int:
        """Return one integer."""
        return int(self.attributes[name].i) if name in self.attributes else default

    def text(self, name: str, default: str) -> str:
        """Return one text."""
        value = self.attributes[name].s if name in self.attributes else default.encode()
        return str(value.decode(errors="replace"))

    def texts(self, name: str) -> list[bytes]:
        """Return a list of texts; empty if absent."""
        return list(self._list(name, "strings"))

    def numbers(self, name: str) -> Array:
        """Return floats in `dtype`, from the list `name` or from the tensor `name`_as_tensor."""
        tensor = f"{name}_as_tensor"
        plain = np.array(self._list(name, "floats"), np.float32).astype(self.dtype)
        if tensor not in self.attributes:
            return plain
        if plain.size:
            raise damaged(self.where, tensor, f"given beside '{name}'")
        return self.tensor(tensor)

    def tensor(self, name: str, dtype: str | None = None) -> Array:
        """Return the elements of a tensor, which must be of `dtype`, by default that of rows."""
        if name not in self.attributes:
            return np.zeros(0, dtype or self.dtype)
        message = self.attributes[name].t
        values = _elements(self.where, name, message)
        if str(values.dtype) != (dtype or self.dtype):
            what = f"holds {values.dtype}, but rows are {self.dtype}"
            raise unsupported(self.where, name, what, "give both the same type")
        return values

    def _list(self, name: str, field: str) -> Any:
        return getattr(self.attributes[name], field) if name in self.attributes else []


def _elements(where: str, name: str, tensor: Any) -> Array:
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or tensor.data_location:
        what = f"data type {tensor.data_type}, data location {tensor.data_location}"
        raise unsupported(where, name, what, "give floats or doubles, inside the file")
    if tensor.HasField("raw_data"):
        stored = np.dtype(dtype).newbyteorder("<")
        if len(tensor.raw_data) % stored.itemsize:
            raise damaged(where, name, f"{len(tensor.raw_data)} bytes do not make {dtype} numbers")
        values = np.frombuffer(tensor.raw_data, stored).astype(dtype)
    else:
        lists = {"float32": "float_data", "uint8": "int32_data", "float64": "double_data"}
        wide = np.array(getattr(tensor, lists[dtype]))
        values = wide.astype(dtype)
        if dtype == "uint8" and np.any(values != wide):
            raise damaged(where, name, "holds numbers beyond 255")
    if list(tensor.dims) != [len(values)]:  # onnxruntime passes over one without dimensions
        raise damaged(where, name, f"{len(values)} numbers for the shape {list(tensor.dims)}")
    return values


def read_tree_op(model: Any, where: str) -> TreeOp:
    """Find and check the tree operator of an ONNX model.

    Args:
        model: bytes or onnx.ModelProto.
        where: place that error messages name.

    Raises:
        ModelFormatError: the bytes are no ONNX model, or an attribute is of the wrong type.
        UnsupportedModel: the graph does more than evaluate one tree operator.
    """
    if isinstance(model, bytes):
        model = _parsed(model, where)
    node = _tree_node(model.graph, where)
    _check_opset(model, node.op_type, where)
    dtype, n_features = _input(model.graph, where)
    op = TreeOp(where, node.op_type, dtype, n_features, _attributes(node, where))
    _check_surroundings(model.graph, node, op)
    return op


def _parsed(data: bytes, where: str) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError:
        remedy = "pip install 'tvm-forest[onnx]'"
        what = "the package 'onnx', which reads the file, is not installed"
        raise unsupported(where, "format", what, remedy) from None
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        raise damaged(where, "model", f"{len(data)} bytes that are no ONNX model") from None


def _tree_node(graph: Any, where: str) -> Any:
    trees = [node for node in graph.node if node.domain == DOMAIN and node.op_type in _ATTRIBUTES]
    if len(trees) == 1:
        return trees[0]
    if not graph.node:
        raise damaged(where, "graph", "no nodes")
    names = ", ".join(f"{node.op_type}" for node in graph.node[:8])
    what = f"{len(trees)} tree operators among {names}; expected one"
    raise unsupported(where, "graph", what, "export the forest alone")


def _check_opset(model: Any, kind: str, where: str) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain == DOMAIN]
    first = 5 if kind == "TreeEnsemble" else 1
    if not versions or not all(first <= version <= 5 for version in versions):
        what = f"{DOMAIN} {versions or 'missing'} for {kind}, expected {first} to 5"
        raise unsupported(where, "opset_import", what, "convert the model to such a version")


def _input(graph: Any, where: str) -> tuple[str, int | None]:
    """Dtype and number of columns of the only input."""
    constants = {entry.name for entry in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in constants]
    if len(inputs) != 1:
        raise unsupported(where, "input", f"{len(inputs)} inputs", "give one matrix of features")
    tensor = inputs[0].type.tensor_type
    dtype = {1: "float32", 11: "float64"}.get(tensor.elem_type)
    if dtype is None:
        what = f"'{inputs[0].name}' has data type {tensor.elem_type}"
        raise unsupported(where, "input", what, "export with float or double features")
    if not tensor.HasField("shape"):
        return dtype, None
    shape = tensor.shape.dim
    if len(shape) != 2:
        what = f"'{inputs[0].name}' has {len(shape)} dimensions"
        raise unsupported(where, "input", what, "export with rows of features")
    return dtype, int(shape[1].dim_value) if shape[1].dim_value > 0 else None


def _attributes(node: Any, where: str) -> dict[str, Any]:
    known, found = _ATTRIBUTES[node.op_type], {}
    for attribute in node.attribute:
        expected = known.get(attribute.name)
        if expected is None:
            what = f"unknown for {node.op_type}"
            raise unsupported(where, f"{attribute.name}", what, "leave it out")
        if attribute.type != expected:
            got = _NAMES.get(attribute.type, f"type {attribute.type}")
            raise damaged(where, attribute.name, f"expected {_NAMES[expected]}, got {got}")
        if attribute.name in found:
            raise damaged(where, attribute.name, "given twice")
        found[attribute.name] = attribute
    return found


# -- what stands around the operator --------------------------------------------------------------


def _check_surroundings(graph: Any, tree: Any, op: TreeOp) -> None:
    """Refuse nodes that compute something.

    `values` holds for every name what it stands for: the rows, the labels or the scores.
    """
    constants = {entry.name for entry in graph.initializer}
    values = {entry.name: "rows" for entry in graph.input if entry.name not in constants}
    results = ("labels", "scores") if op.kind == "TreeEnsembleClassifier" else ("scores",)
    for node in graph.node:
        given = [values.get(name, "") for name in node.input]
        if node is tree or (node.domain == DOMAIN and node.op_type == op.kind):
            if given != ["rows"]:
                raise damaged(op.where, op.kind, "its input is not the input of the graph")
            values.update(zip(node.output, results, strict=False))
        elif len(given) == 1 and given[0] and _changes_nothing(node, given[0], op):
            values.update((name, given[0]) for name in node.output)
        else:
            what = f"the graph computes '{node.op_type}', which is no tree operator"
            raise unsupported(op.where, f"{node.op_type}", what, "export the forest alone")
    for output in graph.output:
        if values.get(output.name) not in results:
            what = f"'{output.name}' is no result of {op.kind}"
            raise unsupported(op.where, "output", what, "export the forest alone")


def _changes_nothing(node: Any, given: str, op: TreeOp) -> bool:
    if node.op_type == "Identity":
        return node.domain in ("", "ai.onnx")
    settings = {attribute.name: attribute for attribute in node.attribute}
    texts, ints = op.texts("classlabels_strings"), op.integers("classlabels_int64s").tolist()
    if node.op_type == "Cast" and given == "labels":
        return "to" in settings and settings["to"].i == (_TEXT if texts else _INT64)
    if node.op_type == "ZipMap" and given == "scores" and node.domain == DOMAIN:
        named = [*(settings[name].strings for name in settings if name.endswith("strings"))]
        numbered = [*(settings[name].ints for name in settings if name.endswith("int64s"))]
        return all(list(names) == texts for names in named) and all(
            list(numbers) == ints for numbers in numbered
        )
    return False
