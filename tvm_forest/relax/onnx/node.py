"""A node of `ai.onnx.ml` during conversion, with its inputs and outputs.

takes: the protobuf message of a node, expressions; gives: expressions in a block builder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import StringImm
from tvm.s_tir import SBlock, SBlockRealize

from ...forest import Array
from ...frontends.refusals import damaged, unsupported
from ...system.values import dataclass
from ...tir_gen.internals.names import IS_SCHEDULED, OP_PATTERN
from ..functions import OPAQUE
from ..model import to_tensor_constant

NUMBERS = ("float32", "float64", "int32", "int64")
"""The dtypes that most operators accept."""


class Value(NamedTuple):
    """The tensor for which a name in the graph stands.

    Attributes:
        expr: a tensor.
        labels: the labels, if the elements of the tensor are indices into labels, or its columns
            are scores of classes; None for ordinary numbers.
    """

    expr: relax.Expr
    labels: Array | None = None


@dataclass(frozen=True)
class Node:
    """A node of `ai.onnx.ml`.

    Attributes:
        bb: the BlockBuilder to which the converted node is added.
        proto: the protobuf message.
        name: the name of the node in error messages.
        version: version of the operators of `ai.onnx.ml`.
        attributes: the attributes that the node has, by name, as the package onnx reads them.
        inputs: the values of its inputs.
        constants: for each input, its array if it is constant, else None.
    """

    bb: relax.BlockBuilder
    proto: Any
    name: str
    version: int
    attributes: dict[str, Any]
    inputs: list[Value]
    constants: list[Array | None]

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or a default; strings are decoded to `str`."""
        value = self.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def texts(self, name: str) -> list[str]:
        """Return a list-of-strings attribute; empty if absent."""
        return [text.decode(errors="replace") for text in self.attributes.get(name, [])]

    def tensor(
        self, at: int = 0, dtypes: tuple[str, ...] = NUMBERS, rank: int = 2, least: int = 1
    ) -> relax.Expr:
        """Return input number `at`, from 0, if it has one of `dtypes` and a valid rank.

        It must have `least` to `rank` dimensions.

        Raises:
            UnsupportedModel: the input is of another kind, or its shape is not known.
        """
        value, kind = self.inputs[at], self.inputs[at].expr.ty
        if value.labels is not None:
            raise unsupported(
                "input", "it holds texts, and TVM has no such tensors", "take the node off"
            )
        shape = getattr(kind, "shape", None)
        if not isinstance(kind, relax.TensorType) or shape is None:
            raise unsupported("input", f"{kind} has no known shape", "give it in 'shape_dict'")
        dtype = str(kind.dtype.dtype)
        if dtype not in dtypes:
            raise unsupported("input", f"{dtype} is none of {', '.join(dtypes)}", "cast it before")
        if not least <= kind.ndim <= rank:
            what = f"{kind.ndim} dimensions, expected {least} to {rank}"
            raise unsupported("input", what, "reshape it before")
        return value.expr

    def rows(self, at: int = 0, dtypes: tuple[str, ...] = NUMBERS) -> relax.Expr:
        """Return an input as a matrix with a known number of columns; a vector becomes one row.

        Raises:
            UnsupportedModel: see `tensor`; or the number of columns is not known.
        """
        x = self.tensor(at, dtypes)
        x = x if x.ty.ndim == 2 else self.emit(relax.op.expand_dims(x, 0))
        width_of(x)
        return x

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable, and return the variable."""
        return self.bb.emit(expr)

    def compute(self, function: Callable[..., te.Tensor], *arguments: Any) -> relax.Expr:
        """Return the result of a tensor expression as a Relax expression.

        It becomes a function that TVM does not fuse with others: fused, a product and a sum could
        be contracted, which rounds once where onnxruntime rounds twice.
        """
        given = [x if isinstance(x, relax.Expr) else to_tensor_constant(x) for x in arguments]
        return self.emit(self.bb.call_te(function, *given, primfunc_attrs={OP_PATTERN: OPAQUE}))

    def emit_check(self, bad: relax.Expr, result: relax.Expr, what: str) -> relax.Expr:
        """Return `result`; raise an error at run time if any number in `bad`, int32, is above 0."""
        message = f"onnx {self.name}: {what}"
        var = self.bb.add_func(_guard(message), "guard")
        kind = relax.TensorType((1,), "int32")
        zero = self.emit(relax.call_tir(var, [self.compute(_find_any, bad)], out_ty=kind))
        return self.emit(relax.op.add(result, relax.op.astype(zero, result.ty.dtype)))


def width_of(x: relax.Expr) -> int:
    """Return the size of the last dimension.

    Raises:
        UnsupportedModel: it is not known.
    """
    width = x.ty.shape.values[-1]
    if not isinstance(width, tirx.IntImm):
        raise unsupported("input", f"{width} columns", "give their number in 'shape_dict'")
    return int(width)


def spread(values: Any, width: int, field: str, dtype: str) -> Array:
    """Return one value per column, (width,), from a list of `width` values or a single one.

    Raises:
        ModelFormatError: the list, the attribute `field`, has another length.
    """
    if len(values) not in (1, width):
        raise damaged(field, f"{len(values)} values for {width} columns")
    return np.broadcast_to(np.array(values, dtype), (width,))


def _find_any(bad: te.Tensor) -> te.Tensor:
    """Return the maximum of 0 and all numbers of a tensor, int32 (1,)."""
    first, *others = bad.shape
    row, *axes = te.reduce_axis((0, first + 1)), *(te.reduce_axis((0, size)) for size in others)

    def one(_: Any) -> Any:
        number = tirx.if_then_else(row < first, bad(row, *axes), tirx.const(0, "int32"))
        return te.max(number, axis=[row, *axes])

    return te.compute((1,), one)


def _guard(message: str) -> tirx.PrimFunc:
    """Return a function that raises an error if its argument is above 0, else returns 0."""
    bad, zero = (tirx.decl_buffer((1,), "int32", name) for name in ("bad", "zero"))
    at = [tirx.const(0, "int64")]
    kind, text = StringImm("ValueError"), [StringImm(message)]
    body = tirx.SeqStmt(
        [
            tirx.AssertStmt(tirx.BufferLoad(bad, at) <= 0, kind, text),
            tirx.BufferStore(zero, tirx.const(0, "int32"), at),
        ]
    )
    func = tirx.PrimFunc([bad, zero], SBlockRealize([], True, SBlock([], [], [], "root", body)))
    return func.with_attr({OP_PATTERN: OPAQUE, IS_SCHEDULED: True})
