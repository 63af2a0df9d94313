"""Comparisons of floats that no compiler may make faster than right.

takes: expressions of float32 or float64; gives: expressions of whole numbers.

TVM has code for GPUs of NVIDIA compiled with fast math, whose comparisons take subnormal numbers
for zero. The bits of floats, read as whole numbers, are in the order of the floats, negative ones
backwards; comparing those is right under any options.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

INFINITY = {"float32": 0x7F800000, "float64": 0x7FF0000000000000}
MOST = {"float32": 2**31 - 1, "float64": 2**63 - 1}


def order_of(x: Any) -> Any:
    """Return the place of a number among all of its dtype; both zeros have the place 0."""
    bits = _bits_of(x)
    return tirx.Select(bits < 0, 0 - _magnitude(x), bits)


def is_nan(x: Any) -> Any:
    """Return whether a number is NaN."""
    return _magnitude(x) > tirx.const(INFINITY[x.dtype], _bits_of(x).dtype)


def order_with_nan_last(x: Any) -> Any:
    """Return the place of a number; that of NaN is the largest."""
    return tirx.Select(is_nan(x), tirx.const(MOST[x.dtype], _bits_of(x).dtype), order_of(x))


def _bits_of(x: Any) -> Any:
    return tirx.reinterpret({"float32": "int32", "float64": "int64"}[str(x.dtype)], x)


def _magnitude(x: Any) -> Any:
    return tirx.bitwise_and(_bits_of(x), tirx.const(MOST[x.dtype], _bits_of(x).dtype))
