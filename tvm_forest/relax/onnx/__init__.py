"""Converts ONNX models to Relax modules, with the operators of `ai.onnx.ml`.

takes: ModelProto, bytes or path; gives: IRModule.

    mod = from_onnx(model)                  # called like tvm.relax.frontend.onnx.from_onnx
    labels_of(mod)                          # {"label": ["no", "yes"]}

Nodes of `ai.onnx.ml` that are converted: ArrayFeatureExtractor, Binarizer, FeatureVectorizer,
Imputer, LabelEncoder, LinearClassifier, LinearRegressor, Normalizer, OneHotEncoder, Scaler,
TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor, ZipMap. All others are refused by name.

TVM has no tensors of strings. Where an output of the model holds strings, the module's output holds
their indices, int64, in a table of strings; where it holds maps from classes to scores, the
module's output holds the scores, one column per class of a table. `labels_of` returns the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from ...errors import ForestError, ModelFormatError
from ...frontends.onnx.messages import read_model
from ...frontends.refusals import name_in_errors
from ...system.process.locks import make_lock

_LOCK = make_lock()  # TVM's block builders share one stack


def from_onnx(
    model: Any,
    shape_dict: Mapping[str, Sequence[Any]] | None = None,
    dtype_dict: str | Mapping[str, str] | None = "float32",
    opset: int | None = None,
    keep_params_in_input: bool = False,
    sanitize_input_names: bool = True,
) -> tvm.IRModule:
    """Convert an ONNX model, as `tvm.relax.frontend.onnx.from_onnx` does, with `ai.onnx.ml`.

    Nodes of `ai.onnx.ml` compute the same as onnxruntime. Sums of products, exponentials and values
    derived from them differ by units in the last place; all else is equal to the bit. Where
    onnxruntime refuses rows, such as an unknown category where `zeros` is 0, so does the module.

    Threads may call it at the same time; they run one after the other. TVM's own importer is not
    changed.

    Args:
        model: onnx.ModelProto, its bytes, or the path of a file.
        shape_dict, dtype_dict, opset, keep_params_in_input, sanitize_input_names: see TVM.

    Returns:
        IRModule: with the function `main`; `labels_of` gives its tables of labels.

    Raises:
        ModelFormatError: the model is damaged.
        UnsupportedModel: a node cannot be converted, which the message names, or the package onnx
            is not installed.
        OSError: the file cannot be read.
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
