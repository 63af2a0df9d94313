"""Forests as modules of PyTorch, and the import of programs that contain them into Relax.

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.trees = tvm_forest.relax.torch.TorchForest("model.json")
            self.dense = torch.nn.Linear(1, 3)

        def forward(self, rows):
            return self.dense(self.trees(rows))

    program = torch.export.export(Net(), (rows,), dynamic_shapes=...)
    mod = tvm_forest.relax.torch.from_exported_program(program)

takes: models, exported programs; gives: modules of PyTorch, Relax modules.

In PyTorch a forest is one operator, `tvm_forest::predict_forest`, which a Predictor computes on the
CPU. The model is a buffer of bytes, so `state_dict` and `torch.export.save` include it. The
importer turns it into the constant of `relax.tvm_forest.predict`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program as import_program

from .. import frontends
from ..errors import InputError, ModelFormatError
from ..forest import Array, Forest
from ..forest.reference import name_classes
from ..layouts.laying_out.request import BuildRequest
from ..predictor.building import build
from ..predictor.predictor import Predictor
from ..search.heuristic import default_schedules
from ..target import Target
from .model import from_bytes, from_constant, to_bytes, to_tensor_constant
from .operator import predict
from .outputs import check_outputs, label_table, type_of

NAME = "predict_forest"
WHERE = f"tvm_forest::{NAME}"


class TorchForest(torch.nn.Module):
    """A forest as a module, which has no gradient.

    `forward` takes rows (n, F) of the model's `row_dtype`, in which NaN is a missing value, and
    returns a tensor, or a tuple of them if there are several outputs.

    Args:
        model: a model that `tvm_forest.load` accepts.
        outputs: a name, or several, see `tvm_forest.relax.outputs`; by default values (n, C).

    Raises:
        ModelFormatError: see `tvm_forest.load`.
        UnsupportedModel: see `tvm_forest.load`; or the model has no such output.
        InputError: an output is unknown; in `forward`, the rows have another shape or dtype.
    """

    def __init__(self, model: Any, outputs: str | Sequence[str] = "value") -> None:
        super().__init__()
        forest = frontends.load(model)
        self.outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        check_outputs(forest, self.outputs)
        self.types = _name_types(forest, self.outputs)
        self.row_width, self.row_dtype = forest.row_width, getattr(torch, forest.row_dtype)
        self.register_buffer("model", torch.from_numpy(to_bytes(forest).copy()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the outputs for rows (n, F), see the class.

        Raises:
            InputError: the rows have another shape or dtype.
        """
        if rows.ndim != 2 or rows.shape[1] != self.row_width or rows.dtype != self.row_dtype:
            raise InputError(
                f"TorchForest: argument 'rows': expected (n, {self.row_width}) {self.row_dtype}, "
                f"got {tuple(rows.shape)} {rows.dtype}"
            )
        results = predict_forest(rows, self.model, self.outputs, self.types)
        return results[0] if len(results) == 1 else tuple(results)


# -- the operator of PyTorch ----------------------------------------------------------------------


@torch.library.custom_op(  # exported programs name it only by the part after "::"
    WHERE,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor rows, Tensor model, str[] outputs, str[] types) -> Tensor[]",
)
def predict_forest(rows: Any, model: Any, outputs: Any, types: Any) -> Any:
    """Return the predictions of a forest, one tensor for each output.

    Args:
        rows: see `TorchForest`.
        model: uint8 (bytes,), an archive of a forest.
        outputs: names, see `tvm_forest.relax.outputs`.
        types: types of the outputs, each a dtype and the sizes after the number of rows, such as
            "float32 3".

    Raises:
        ModelFormatError: the bytes are not an archive, or the model's outputs have other types.
    """
    forest, predictor = _look_up(model.numpy())
    results = [_compute(forest, predictor, rows.numpy(), name) for name in outputs]
    _check_types([_name_type(x.dtype, x.shape) for x in results], types)
    return [torch.from_numpy(x) for x in results]


@predict_forest.register_fake
def _give_types(rows: Any, model: Any, outputs: Any, types: Any) -> Any:
    """Return empty tensors of the right types, since the model has no data during an export."""
    named = [text.split() for text in types]
    return [
        rows.new_empty((rows.shape[0], *map(int, sizes)), dtype=getattr(torch, dtype))
        for dtype, *sizes in named
    ]


def _look_up(model: Array) -> tuple[Forest, Predictor]:
    """Return the forest and the Predictor for the bytes of a model; compile it if they are new.

    The bytes are compared at each call, since the buffer may change.
    """
    slot = _slot_of(model.ctypes.data, len(model))
    known = slot[0] if slot else None
    if known is None or not np.array_equal(known[0], model):
        known = model.copy(), _compile(model.tobytes())
        slot[:] = [known]
    return known[1]


@functools.lru_cache(maxsize=16)
def _slot_of(address: int, size: int) -> list[tuple[Array, tuple[Forest, Predictor]]]:
    """Return the cache entry for bytes at an address, a list: empty when new, filled by callers.

    It holds the last bytes seen there, with the Forest and the Predictor made of them.
    """
    return []


@functools.lru_cache(maxsize=16)
def _compile(data: bytes) -> tuple[Forest, Predictor]:
    forest, machine = from_bytes(data), Target()
    return forest, build(BuildRequest.of(forest, default_schedules(forest, machine), machine))


def _compute(forest: Forest, predictor: Predictor, rows: Array, output: str) -> Array:
    """Return an output as in `relax.tvm_forest.predict`, as a new array."""
    if output == "leaf":
        return predictor.apply(rows)
    if output == "per_tree":
        return predictor.predict_per_tree(rows)
    if output == "label":
        classes = predictor.predict_class(rows)
        return name_classes(replace(forest, labels=label_table(forest)), classes)
    is_margin = output == "margin"
    sums = predictor.predict_margin(rows) if is_margin else predictor.predict_value(rows)
    sums = sums.reshape(-1, forest.n_outputs)
    if output == "probability" and sums.shape[1] == 1:
        return np.concatenate([1 - sums, sums], axis=1)
    return np.array(sums)


def _name_types(forest: Forest, outputs: Sequence[str]) -> list[str]:
    """Return the types of outputs as texts, see `types` of `predict_forest`."""
    kinds = [type_of(forest, name, 1) for name in outputs]
    return [_name_type(kind.dtype.dtype, map(int, kind.shape.values)) for kind in kinds]


def _name_type(dtype: Any, shape: Iterable[int]) -> str:
    return " ".join(map(str, [dtype, *list(shape)[1:]]))


def _check_types(given: list[str], wanted: Sequence[str]) -> None:
    """Refuse a model whose outputs have other types than when the program was exported.

    Raises:
        ModelFormatError: its outputs have other types.
    """
    if given != list(wanted):
        raise ModelFormatError(
            f"{WHERE}: argument 'model': it gives {given}, and the program was made for "
            f"{list(wanted)}; make a TorchForest of this model, and export anew"
        )


# -- the importer ---------------------------------------------------------------------------------


def from_exported_program(program: torch.export.ExportedProgram, **options: Any) -> tvm.IRModule:
    """Import a program; each `TorchForest` in it becomes a call of `relax.tvm_forest.predict`.

    Args:
        program: an exported program, from `torch.export.export`.
        options: see `tvm.relax.frontend.torch.from_exported_program`.

    Raises:
        ModelFormatError: the model of a forest is not a buffer of the program, is damaged, or has
            outputs of other types than when the program was exported.
    """
    specs = program.graph_signature.input_specs
    tensors = {**program.constants, **program.state_dict}
    buffers = {spec.arg.name: tensors[spec.target] for spec in specs if spec.target in tensors}

    @functools.cache
    def read(name: str) -> relax.Expr:
        return to_tensor_constant(buffers[name].cpu().numpy())

    def convert(node: torch.fx.Node, importer: Any) -> list[relax.Expr]:
        rows, model, outputs, types = node.args
        if getattr(model, "name", None) not in buffers:
            raise ModelFormatError(
                f"{WHERE}: argument 'model' of the node '{node.name}': {model} is no buffer of the "
                "program; call a TorchForest outside of branches"
            )
        constant, builder = read(model.name), importer.block_builder
        _check_types(_name_types(from_constant(constant), outputs), types)
        result = builder.emit(predict(importer.env[rows], constant, outputs))
        if len(outputs) == 1:
            return [result]
        return [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(outputs))]

    known = {f"{NAME}.default": convert} | (options.pop("custom_convert_map", None) or {})
    return import_program(program, custom_convert_map=known, **options)
