"""Float comparisons that fast-math compilers cannot break, because they compare bits.

takes: expressions of float32 or float64; gives: integer expressions.

TVM compiles code for NVIDIA GPUs with fast math, whose comparisons treat subnormal numbers as zero.
The bits of floats, read as integers, have the order of the floats, reversed for negative ones;
comparing these integers is right under any compiler options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

INFINITY = {"int32": 0x7F800000, "int64": 0x7FF0000000000000}
"""The bits of infinity as an integer, by the dtype of the integer."""


def order_of(x: Any) -> Any:
    """Return an integer expression that is ordered as the floats are; both zeros give 0."""
    bits, magnitude, _ = _take_apart(x)
    return tirx.Select(bits < 0, 0 - magnitude, bits)


def order_of_number(value: float, dtype: Any) -> Any:
    """Return `order_of` a constant, computed here, as CUDA text cannot cast bits of constants."""
    number = np.array(value, str(dtype))
    bits = int(number.view(f"i{number.itemsize}"))
    magnitude = int(abs(number).view(f"i{number.itemsize}"))
    return tirx.const(bits if bits >= 0 else -magnitude, f"int{8 * number.itemsize}")


def is_nan(x: Any) -> Any:
    """Return an expression for whether a float is NaN."""
    _, magnitude, dtype = _take_apart(x)
    return magnitude > tirx.const(INFINITY[dtype], dtype)


def order_with_nan_last(x: Any) -> Any:
    """Return `order_of` a float, or the largest integer for NaN."""
    dtype = _take_apart(x)[2]
    return tirx.Select(is_nan(x), tirx.max_value(dtype), order_of(x))


def _take_apart(x: Any) -> tuple[Any, Any, str]:
    """Return a float's bits as an integer, these without the sign bit, and the integer's dtype."""
    kind = x.dtype if hasattr(x, "dtype") else x.ty.dtype
    dtype = str(kind).replace("float", "int")
    bits = tirx.reinterpret(dtype, x)
    return bits, tirx.bitwise_and(bits, tirx.max_value(dtype)), dtype
