"""NumPy's arithmetic in Relax, with the same roundings for each element.

takes: expressions, arrays; gives: expressions.

Products are functions that TVM does not fuse with others: a fused product and sum may be contracted
to one operation with one rounding, which would change bits. Divisors are tensors, not numbers,
since TVM turns a division by a number into a product with its reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, topi

from ...forest import Array
from ...tir_gen.internals.names import OP_PATTERN
from ..functions import OPAQUE
from ..model import to_tensor_constant

PAIRWISE = 128
"""Largest number of elements that `numpy.sum` adds without splitting them into halves."""


def dtype_of(x: Any) -> np.dtype[Any]:
    """Return the dtype of an expression."""
    return np.dtype(str(x.ty.dtype.dtype))


def width_of(x: Any) -> int:
    """Return the number of columns of an expression (n, F)."""
    return int(x.ty.shape.values[1])


class Arithmetic:
    """Emits expressions over matrices (n, F) into a function.

    Args:
        bb: builder of the function.
    """

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def emit(self, x: Any) -> Any:
        """Bind an expression to a variable, and return the variable."""
        return x if isinstance(x, relax.Var) else self._bb.emit(x)

    def cast(self, x: Any, dtype: Any) -> Any:
        """Return an expression, cast to a dtype if it has another one."""
        name = str(np.dtype(dtype))
        return x if str(dtype_of(x)) == name else self.emit(relax.op.astype(x, name))

    def as_floats(self, x: Any) -> Any:
        """Convert numbers as scikit-learn's checks do: integers become float64."""
        return x if dtype_of(x).kind == "f" else self.cast(x, "float64")

    def change(self, x: Any, operation: Callable[[Any, Any], Any], values: Any) -> Any:
        """Return the value of x after `x op= values`, for x (n, F) and values (F,) or (n, 1).

        NumPy computes in the wider dtype of both, and rounds to that of x.
        """
        own = dtype_of(x)
        if isinstance(values, np.ndarray):
            wide = np.result_type(own, values)
            values = to_row(values, wide)
        else:
            wide = np.result_type(own, dtype_of(values))
            values = self.cast(values, wide)
        return self.cast(self.emit(operation(self.cast(x, wide), values)), own)

    def multiply(self, x: Any, y: Any) -> Any:
        """Return a product that is rounded by itself, never fused with a sum."""
        return self.emit(self._bb.call_te(topi.multiply, x, y, primfunc_attrs={OP_PATTERN: OPAQUE}))

    def clip(self, x: Any, low: float, high: float) -> Any:
        """Limit numbers to low and high as `numpy.clip`; NaN stays NaN."""
        own = dtype_of(x)
        least, most = (to_row(np.array([bound]), own) for bound in (low, high))
        up = self.emit(relax.op.where(relax.op.greater(x, least), x, least))
        down = self.emit(relax.op.where(relax.op.less(up, most), up, most))
        return self.emit(relax.op.where(relax.op.isnan(x), x, down))

    def select(self, x: Any, columns: Sequence[int]) -> Any:
        """Return the columns of a matrix with these indices, in the order of the indices."""
        if list(columns) == list(range(width_of(x))):
            return x
        return self.emit(relax.op.take(x, to_tensor_constant(np.array(columns, "i8")), 1, "clip"))

    def join(self, parts: list[Any]) -> Any:
        """Concatenate columns, in the dtype of `numpy.hstack`."""
        dtype = np.result_type(*map(dtype_of, parts))
        parts = [self.cast(part, dtype) for part in parts]
        return parts[0] if len(parts) == 1 else self.emit(relax.op.concat(parts, axis=1))

    def add_up(self, parts: list[Any]) -> Any:
        """Add expressions in order, from the first to the last."""
        total = parts[0]
        for part in parts[1:]:
            total = self.emit(relax.op.add(total, part))
        return total

    def slice(self, x: Any, begin: int, end: int) -> Any:
        """Return the columns `begin` to `end - 1`."""
        return self.emit(relax.op.strided_slice(x, axes=[1], begin=[begin], end=[end]))

    def sum_pairwise(self, x: Any) -> Any:
        """Sum columns in the order of `numpy.sum(x, axis=1, keepdims=True)`."""
        width = width_of(x)
        if width > PAIRWISE:
            half = width // 2 - width // 2 % 8
            halves = self.slice(x, 0, half), self.slice(x, half, width)
            return self.add_up([self.sum_pairwise(part) for part in halves])
        whole = width - width % 8
        total = [self.slice(x, i, i + 1) for i in range(whole, width)]
        if whole:
            total = [self._fold(self._add_blocks(self.slice(x, 0, whole), 8)), *total]
        return self.add_up(total)

    def sum_of_squares(self, x: Any) -> Any:
        """Sum squares in the order of `numpy.einsum("ij,ij->i", x, x)` on x86-64, (n, 1).

        NumPy keeps one sum for each lane of a 16-byte vector, and adds vectors in groups of four,
        each group from its last vector to its first.
        """
        width, lanes = width_of(x), 16 // dtype_of(x).itemsize
        square = self.emit(relax.op.nn.pad(self.multiply(x, x), [0, 0, 0, -width % lanes]))
        blocks = np.arange(width_of(square)).reshape(-1, lanes)
        in_fours = width // (4 * lanes) * 4
        blocks[:in_fours] = blocks[:in_fours].reshape(-1, 4, lanes)[:, ::-1].reshape(-1, lanes)
        return self._fold(self._add_blocks(self.select(square, list(blocks.ravel())), lanes))

    def _add_blocks(self, x: Any, width: int) -> Any:
        """Add blocks of `width` columns, from the first to the last, (n, width)."""
        shape = (x.ty.shape.values[0], width_of(x) // width, width)
        return self.emit(relax.op.sum(relax.op.reshape(x, shape), axis=1))

    def _fold(self, lanes: Any) -> Any:
        """Return the pairwise sum of the columns, (n, 1)."""
        parts = [self.slice(lanes, i, i + 1) for i in range(width_of(lanes))]
        while len(parts) > 1:
            parts = [self.add_up(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]


def to_row(values: Array, dtype: Any) -> Any:
    """Return numbers (F,) as a constant (1, F)."""
    return to_tensor_constant(np.asarray(values).astype(dtype)[np.newaxis])
