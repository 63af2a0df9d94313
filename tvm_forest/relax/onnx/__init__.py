"""ONNX models as Relax modules, with the operators of `ai.onnx.ml`.

takes: ModelProto, bytes or path; gives: IRModule.

    mod = from_onnx(model)                  # as tvm.relax.frontend.onnx.from_onnx
    labels_of(mod)                          # {"label": array(["no", "yes"])}

TVM has no tensors of texts. Where an output of the model holds texts, that of the module holds
their places, int64, in a table of texts; where it holds maps from classes to scores, that of the
module holds the scores, a column for each class of a table. `labels_of` gives these tables.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ...errors import ForestError, InputError, ModelFormatError
from ...forest import Array
from ...frontends.onnx import read_model
from ...frontends.refusals import name_in_errors

LABELS = "tvm_forest.labels"
"""Attribute of the function: the tables of labels, as JSON."""
_LOCK = threading.Lock()  # TVM's block builders share one stack


def from_onnx(
    model: Any,
    shape_dict: Mapping[str, Sequence[Any]] | None = None,
    dtype_dict: str | Mapping[str, str] | None = "float32",
    opset: int | None = None,
    keep_params_in_input: bool = False,
    sanitize_input_names: bool = True,
) -> tvm.IRModule:
    """Convert an ONNX model, as `tvm.relax.frontend.onnx.from_onnx` does, with `ai.onnx.ml`.

    Nodes of `ai.onnx.ml` compute what onnxruntime computes. Sums of products, exponentials and what
    follows from them differ by units in the last place; all else is equal to the bit. Where
    onnxruntime refuses rows, such as an unknown category where `zeros` is 0, so does the module.

    Threads may call it at the same time; one of them works, and nothing in TVM is changed.

    Args:
        model: onnx.ModelProto, its bytes, or the path of a file.
        shape_dict, dtype_dict, opset, keep_params_in_input, sanitize_input_names: see TVM.

    Returns:
        IRModule: with the function `main`; `labels_of` gives its tables of labels.

    Raises:
        ModelFormatError: the model is damaged.
        UnsupportedModel: a node is not converted; the message has its name and kind. Or the package
            onnx is not installed.
    """
    with name_in_errors("from_onnx"):
        proto = read_model(model)
    from .importer import Importer

    options = (dict(shape_dict or {}), dtype_dict, keep_params_in_input, sanitize_input_names)
    with _LOCK, name_in_errors("from_onnx"):
        try:
            return Importer.read(proto, opset, *options)
        except ForestError:
            raise
        except Exception as error:  # whatever TVM throws, users get one kind of error
            raise ModelFormatError(
                f"TVM cannot read the graph ({type(error).__name__}: {error}); check it with "
                "onnx.checker.check_model"
            ) from error


def labels_of(mod: tvm.IRModule) -> dict[str, Array]:
    """Return the labels that outputs of a module stand for, by the names of the model's outputs.

    Args:
        mod: what `from_onnx` gave, or what passes made of it.

    Returns:
        dict: for an output of places the labels (labels,), which are texts; for one with a column
        for each class the classes (C,), texts or int64. Other outputs are not listed.

    Raises:
        InputError: the module has no function `main`.
    """
    if not any(var.name_hint == "main" for var in mod.get_global_vars()):
        raise InputError("labels_of: argument 'mod': it has no function 'main'; use from_onnx")
    tables = json.loads((mod["main"].attrs or {}).get(LABELS, "{}"))
    return {name: np.array(table) for name, table in tables.items()}
