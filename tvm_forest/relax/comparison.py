"""Float comparisons that fast-math compilers cannot break, because they compare bits.

takes: expressions of float32 or float64; gives: expressions of whole numbers.

TVM has code for GPUs of NVIDIA compiled with fast math, whose comparisons take subnormal numbers
for zero. The bits of floats, read as whole numbers, are in the order of the floats, negative ones
backwards; comparing those is right under any options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

INFINITY = {"int32": 0x7F800000, "int64": 0x7FF0000000000000}
"""The bits of infinity."""


def order_of(x: Any) -> Any:
    """Return an integer that orders floats of one dtype; both zeros give 0."""
    bits, magnitude, _ = _take_apart(x)
    return tirx.Select(bits < 0, 0 - magnitude, bits)


def order_of_number(value: float, dtype: Any) -> Any:
    """Return the order of a constant; CUDA text cannot cast the bits of constants."""
    number = np.array(value, str(dtype))
    bits = int(number.view(f"i{number.itemsize}"))
    magnitude = int(abs(number).view(f"i{number.itemsize}"))
    return tirx.const(bits if bits >= 0 else -magnitude, f"int{8 * number.itemsize}")


def is_nan(x: Any) -> Any:
    """Return whether a number is NaN."""
    _, magnitude, dtype = _take_apart(x)
    return magnitude > tirx.const(INFINITY[dtype], dtype)


def order_with_nan_last(x: Any) -> Any:
    """Return the order of a number; NaN comes last."""
    dtype = _take_apart(x)[2]
    return tirx.Select(is_nan(x), tirx.max_value(dtype), order_of(x))


def _take_apart(x: Any) -> tuple[Any, Any, str]:
    """Return the bits of a number, the bits without the sign, and their dtype."""
    kind = x.dtype if hasattr(x, "dtype") else x.ty.dtype
    dtype = str(kind).replace("float", "int")
    bits = tirx.reinterpret(dtype, x)
    return bits, tirx.bitwise_and(bits, tirx.max_value(dtype)), dtype
