"""Finds the tree operator in an ONNX graph, and checks the nodes around it.

takes: bytes or onnx.ModelProto; gives: TreeOp.

The graph must hold exactly one tree operator. Other nodes may not change anything: accepted are
`Identity`, a `Cast` of the labels to their own type, and the `ZipMap` of a classifier. Protobuf
returns a text that is not UTF-8 as bytes, so messages format the names of nodes.
"""

from __future__ import annotations

from typing import Any

from ..refusals import damaged, unsupported
from .messages import DOMAIN, TEXT, parse_model
from .operator import OPERATORS, TreeOp

_INT64 = 7  # a type of elements
_ALONE = "export the forest alone"


def read_tree_op(model: Any) -> TreeOp:
    """Find and check the tree operator of an ONNX model.

    Args:
        model: bytes or onnx.ModelProto.

    Raises:
        ModelFormatError: the bytes are not an ONNX model, or an attribute has the wrong type.
        UnsupportedModel: the graph does more than evaluate one tree operator, or its version or
            input is not supported, or the package onnx is not installed.
    """
    model = parse_model(model)
    node = _find_tree_node(model.graph)
    versions = [entry.version for entry in model.opset_import if entry.domain == DOMAIN]
    check_opset(versions, node.op_type)
    constants = {entry.name for entry in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in constants]
    op = read_node(node, *_read_input(inputs))
    _check_surroundings(model.graph, node, op, inputs[0].name)
    return op


def read_node(node: Any, dtype: str, n_features: int | None) -> TreeOp:
    """Read the attributes of a tree operator; see `TreeOp` for the arguments."""
    from onnx import defs

    known = defs.get_schema(node.op_type, OPERATORS[node.op_type], DOMAIN).attributes
    return TreeOp.read(node, known, dtype, n_features)


def _find_tree_node(graph: Any) -> Any:
    trees = [node for node in graph.node if node.domain == DOMAIN and node.op_type in OPERATORS]
    if len(trees) == 1:
        return trees[0]
    if not graph.node:
        raise damaged("graph", "no nodes")
    names = ", ".join(f"{node.op_type}" for node in graph.node[:8])
    raise unsupported("graph", f"{len(trees)} tree operators among {names}; expected one", _ALONE)


def check_opset(versions: list[int], kind: str) -> None:
    """Refuse versions of `ai.onnx.ml` that do not define the operator `kind` as this reader does.

    Also refused is a model that states no version.
    """
    first = 5 if kind == "TreeEnsemble" else 1
    if not versions or not all(first <= version <= 5 for version in versions):
        what = f"{DOMAIN} {versions or 'missing'} for {kind}, expected {first} to 5"
        raise unsupported("opset_import", what, "convert the model to such a version")


def _read_input(inputs: list[Any]) -> tuple[str, int | None]:
    """Return the dtype of the only input, and its number of columns, None if it is not fixed."""
    if len(inputs) != 1:
        raise unsupported("input", f"{len(inputs)} inputs", "give one matrix of features")
    tensor = inputs[0].type.tensor_type
    dtype = {1: "float32", 11: "float64"}.get(tensor.elem_type)
    if dtype is None:
        what = f"'{inputs[0].name}' has data type {tensor.elem_type}"
        raise unsupported("input", what, "export with float or double features")
    if not tensor.HasField("shape"):
        return dtype, None
    shape = tensor.shape.dim
    if len(shape) != 2:
        what = f"'{inputs[0].name}' has {len(shape)} dimensions"
        raise unsupported("input", what, "export with rows of features")
    return dtype, int(shape[1].dim_value) if shape[1].dim_value > 0 else None


def _check_surroundings(graph: Any, tree: Any, op: TreeOp, rows: str) -> None:
    """Refuse graphs in which other nodes than the tree operator compute something.

    Every value in the graph must be the rows, or the labels or scores of the tree operator.

    Args:
        graph: the graph.
        tree: the node of the tree operator.
        op: the same node, read.
        rows: name of the graph's input.
    """
    meaning = {rows: "rows"}
    results = ("labels", "scores") if op.kind == "TreeEnsembleClassifier" else ("scores",)
    for node in graph.node:
        given = [meaning.get(name, "") for name in node.input]
        if node is tree or (node.domain == DOMAIN and node.op_type == op.kind):
            if given != ["rows"]:
                raise damaged(op.kind, "its input is not the input of the graph")
            meaning.update(zip(node.output, results, strict=False))
        elif len(given) == 1 and given[0] and _changes_nothing(node, given[0], op):
            meaning.update((name, given[0]) for name in node.output)
        else:
            what = f"the graph computes '{node.op_type}', which is no tree operator"
            raise unsupported(f"{node.op_type}", what, _ALONE)
    for output in graph.output:
        if meaning.get(output.name) not in results:
            raise unsupported("output", f"'{output.name}' is no result of {op.kind}", _ALONE)


def _changes_nothing(node: Any, given: str, op: TreeOp) -> bool:
    if node.op_type == "Identity":
        return node.domain in ("", "ai.onnx")
    settings = {attribute.name: attribute for attribute in node.attribute}
    texts, numbers = op.texts("classlabels_strings"), op.integers("classlabels_int64s").tolist()
    if node.op_type == "Cast" and given == "labels":
        return "to" in settings and settings["to"].i == (TEXT if texts else _INT64)
    if node.op_type == "ZipMap" and given == "scores" and node.domain == DOMAIN:
        return all(
            (not name.endswith("strings") or list(setting.strings) == texts)
            and (not name.endswith("int64s") or list(setting.ints) == numbers)
            for name, setting in settings.items()
        )
    return False
