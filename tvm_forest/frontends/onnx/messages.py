"""Parses ONNX's protobuf messages to Python values.

takes: bytes, path or onnx.ModelProto, messages of nodes and tensors; gives: ModelProto, arrays.

The package onnx is imported when a model is read, since predicting does not need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...forest import Array
from ..refusals import damaged, unsupported

DOMAIN = "ai.onnx.ml"
TEXT = 8
"""ONNX's type number of strings."""


def parse_model(model: Any) -> Any:
    """Return an onnx.ModelProto, parsed if `model` is bytes.

    Raises:
        ModelFormatError: the bytes are not an ONNX model.
        UnsupportedModel: the package onnx is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError:
        what = "the package 'onnx', which reads the file, is not installed"
        raise unsupported("format", what, "pip install 'tvm-forest[onnx]'") from None
    if not isinstance(model, bytes):
        return model
    try:
        return ModelProto.FromString(model)
    except DecodeError:
        raise damaged("model", f"{len(model)} bytes that are no ONNX model") from None


def read_model(model: Any) -> Any:
    """Return an onnx.ModelProto that has nodes.

    Args:
        model: onnx.ModelProto, its bytes, or the path of a file.

    Raises:
        ModelFormatError: `model` is not an ONNX model, is damaged, or has no nodes.
        UnsupportedModel: the package onnx is not installed.
        OSError: the file cannot be read.
    """
    if isinstance(model, (str, Path)):
        model = Path(model).read_bytes()
    model = parse_model(model)
    if type(model).__name__ != "ModelProto":
        raise damaged("model", f"{type(model).__name__} is no onnx.ModelProto", "give one")
    if not model.graph.node:
        raise damaged("graph", "no nodes")
    return model


def check_node(model: Any, node: Any) -> None:
    """Refuse a node that does not conform to its operator's definition.

    Raises:
        ModelFormatError: the node is damaged.
    """
    from onnx import checker

    context = checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in model.opset_import}
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        raise damaged("node", str(error)) from None


def read_attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name: numbers, bytes, lists, or messages."""
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def read_array(tensor: Any) -> Array:
    """Return the elements of a tensor; texts as `str`.

    Raises:
        ModelFormatError: the tensor is damaged, or stored outside of the file.
    """
    from onnx.numpy_helper import to_array

    try:
        array = to_array(tensor)
    except (TypeError, ValueError, AttributeError) as error:
        raise damaged(tensor.name, str(error)) from None
    if tensor.data_type != TEXT:
        return array
    texts = [
        text.decode(errors="replace") if isinstance(text, bytes) else text for text in array.ravel()
    ]
    return np.array(texts, str).reshape(array.shape)
