"""TVM's ONNX importer, extended by the nodes of `ai.onnx.ml` and by strings.

takes: ModelProto; gives: IRModule.

It is a subclass, so TVM's importer is not changed. TVM has no tensors of strings: a value of
strings becomes int64 indices into a table of these strings, which the importer keeps. Nodes of
other domains are converted by TVM, and those in `MOVES` move such indices as they would numbers.
Only `Cast` of floats to integers, and `Cast` and `Constant` of strings, are converted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ...errors import ForestError
from ...frontends.onnx.messages import DOMAIN, TEXT, check_node, read_array, read_attributes
from ...frontends.refusals import as_line, damaged, name_in_errors, unsupported
from ..labels import attach_labels
from . import encoders, features, linear, trees
from .node import Node, Value

CONVERTERS: dict[str, Callable[[Node], list[Value]]] = {
    **encoders.CONVERTERS,
    **features.CONVERTERS,
    **linear.CONVERTERS,
    **trees.CONVERTERS,
}
MOVES = ("Flatten", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Nodes that only move values, so that they can be given indices in place of strings."""
_NO_TEXTS = "TVM has no tensors of texts", "encode texts before the model, and give numbers"


class Importer(onnx_frontend.ONNXGraphImporter):
    """Converts one ONNX model to a Relax module.

    Attributes:
        model: the ModelProto.
        labels: for values that hold label indices, or scores of classes: the labels of the indices
            or columns, by the name of the value.
        version: version of the operators of `ai.onnx.ml`.
    """

    model: Any
    labels: dict[str, Any]
    version: int

    @classmethod
    def read(cls, model: Any, opset: int | None, *options: Any) -> tvm.IRModule:
        """Return a ModelProto as a module with its tables of labels, see `attach_labels`.

        Args:
            model: the ModelProto.
            opset: version of the operators without a domain; None for that in the model.
            options: those of TVM's importer.
        """
        importer = cls(*options)
        versions = {entry.domain: entry.version for entry in model.opset_import}
        importer.model, importer.labels = model, {}
        importer.version = versions.get(DOMAIN, 1)
        known = versions.get("", versions.get("ai.onnx", 1))
        mod = importer.from_onnx(model.graph, opset or known)
        tables = {
            output.name: importer.labels[output.name].tolist()
            for output in model.graph.output
            if output.name in importer.labels
        }
        return attach_labels(mod, tables)

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Refuse nodes that nothing converts, and nodes of `ai.onnx.ml` inside branches."""
        known = {*onnx_frontend._get_convert_map(), "If", "Constant"}
        for node, is_inner in _walk(graph):
            ours = node.domain == DOMAIN and node.op_type in CONVERTERS and not is_inner
            if not ours and not (node.domain in ("", "ai.onnx") and node.op_type in known):
                of = as_line(f"{node.domain or 'ai.onnx'} {node.op_type}", 80)
                where = " in a branch" if is_inner else ""
                with name_in_errors(_describe(node)):
                    raise unsupported("op_type", f"nothing converts {of}{where}", "take it off")

    def _parse_graph_initializers(self, graph: Any) -> None:
        """Read constants; those of strings become label indices."""
        texts = [entry for entry in graph.initializer if entry.data_type == TEXT]
        others = [entry for entry in graph.initializer if entry.data_type != TEXT]
        super()._parse_graph_initializers(SimpleNamespace(initializer=others))
        for entry in texts:
            self._keep_texts(entry.name, read_array(entry))

    def _parse_graph_input(self, graph: Any) -> None:
        """Read inputs; refuse those that are not tensors of numbers."""
        for entry in graph.input:
            kind = entry.type.tensor_type.elem_type
            if entry.name in self._nodes or kind not in (0, TEXT):
                continue
            users = [node for node, _ in _walk(graph) if entry.name in node.input]
            with name_in_errors(_describe(users[0]) if users else "graph"):
                what = f"'{as_line(entry.name, 60)}' is no tensor of numbers: {_NO_TEXTS[0]}"
                raise unsupported("input", what, _NO_TEXTS[1])
        super()._parse_graph_input(graph)

    def _construct_nodes(self, graph: Any) -> None:
        """Convert the nodes one by one, so that an error can name its node.

        Raises:
            UnsupportedModel: a node cannot be converted, whatever TVM raises for it.
            ModelFormatError: a node breaks the rules of ONNX.
        """
        for node in graph.node:
            with name_in_errors(_describe(node)):
                try:
                    self._construct(node)
                except ForestError:
                    raise
                except Exception as error:  # whatever TVM throws, users get one kind of error
                    what = f"TVM cannot convert it ({type(error).__name__}: {error})"
                    raise unsupported("op_type", what, "take it off, or change it") from error

    def _construct(self, node: Any) -> None:
        check_node(self.model, node)
        missing = [name for name in node.input if name and name not in self._nodes]
        if missing:
            raise damaged("input", f"nothing before it gives '{as_line(missing[0], 60)}'")
        if node.domain == DOMAIN or self._truncates(node):
            self._construct_ours(node)
            return
        texts = [name for name in node.input if name in self.labels]
        if not texts and not _makes_texts(node):
            super()._construct_nodes(SimpleNamespace(node=[node]))
        elif node.op_type in MOVES and texts == [node.input[0]]:
            super()._construct_nodes(SimpleNamespace(node=[node]))
            self.labels[node.output[0]] = self.labels[texts[0]]
        elif node.op_type == "Cast" and texts and _makes_texts(node):
            self._nodes[node.output[0]] = self._nodes[texts[0]]
            self.labels[node.output[0]] = self.labels[texts[0]]
        elif node.op_type == "Constant":
            self._keep_texts(node.output[0], _read_texts(node))
        else:
            raise unsupported("input", *_NO_TEXTS)

    def _construct_ours(self, node: Any) -> None:
        inputs = [Value(self._nodes[name], self.labels.get(name)) for name in node.input]
        found = [
            onnx_frontend.get_constant(value.expr, [self._nodes, self._params]) for value in inputs
        ]
        constants = [x.value.numpy() if isinstance(x, tvm.ir.GenericConst) else None for x in found]
        name = _describe(node)
        view = Node(self.bb, node, name, self.version, read_attributes(node), inputs, constants)
        values = (features.convert_cast if node.op_type == "Cast" else CONVERTERS[node.op_type])(
            view
        )
        if len(node.output) > len(values):
            raise damaged("output", f"{len(node.output)} outputs, expected {len(values)}")
        for output, value in zip(node.output, values, strict=False):
            self._nodes[output] = value.expr
            if value.labels is not None:
                self.labels[output] = value.labels

    def _truncates(self, node: Any) -> bool:
        """Return whether a node is a `Cast` of float32 or float64 to integers.

        False also for scalars and values of unknown shape, which are left to TVM.
        """
        if node.op_type != "Cast" or read_attributes(node).get("to") not in features.INTEGERS:
            return False
        kind = getattr(self._nodes[node.input[0]], "ty", None)
        if not isinstance(kind, relax.TensorType) or kind.shape is None or not kind.ndim:
            return False
        return str(kind.dtype.dtype) in ("float32", "float64")

    def _keep_texts(self, name: str, texts: Any) -> None:
        """Register a constant of strings: int64 indices, and the table of strings they index."""
        table, places = np.unique(np.asarray(texts).astype(str), return_inverse=True)
        places = places.reshape(np.shape(texts)).astype(np.int64)
        self._nodes[name] = relax.const(tvm.runtime.tensor(np.ascontiguousarray(places)))
        self.labels[name] = table


def _walk(graph: Any, is_inner: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of a graph and of its subgraphs, each with whether it is in a subgraph."""
    for node in graph.node:
        yield node, is_inner
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _walk(inner, True)


def _describe(node: Any) -> str:
    name = node.name or (node.output[0] if node.output else "")
    return f"node '{as_line(str(name), 100)}' ({as_line(str(node.op_type), 60)})"


def _read_texts(node: Any) -> Any:
    """Return the strings of a `Constant`."""
    (value,) = read_attributes(node).values()
    if isinstance(value, list):
        return np.array([text.decode(errors="replace") for text in value])
    return (
        np.array(value.decode(errors="replace")) if isinstance(value, bytes) else read_array(value)
    )


def _makes_texts(node: Any) -> bool:
    """Return whether a node outputs strings, whatever its inputs."""
    settings = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Constant":
        value = settings.get("value")
        return bool({"value_string", "value_strings"} & set(settings)) or (
            value is not None and value.t.data_type == TEXT
        )
    return node.op_type == "Cast" and "to" in settings and settings["to"].i == TEXT
