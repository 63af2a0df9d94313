"""Stands in for `tvm.tirx`, for code that emits expressions: `tir.BufferLoad` is TVM's.

takes: the name of a TIR construct; gives: the construct.

Importing tvm takes a second, and packing a model into arrays does not need it. So this module
imports `tvm.tirx` only when a layout creates its first expression.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from tvm import tirx

    return getattr(tirx, name)


def i64(value: int) -> Any:
    """Return an int64 constant."""
    return __getattr__("IntImm")("int64", value)
