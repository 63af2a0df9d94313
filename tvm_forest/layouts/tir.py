"""TVM's TIR, for the half of a layout that reads: `tir.BufferLoad(...)` is `tvm.tirx.BufferLoad`.

takes: the name of a TIR construct; gives: the construct.

Importing tvm takes a second, and packing does not need it. So this module stands in for `tvm.tirx`,
and imports it when a layout creates its first expression.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from tvm import tirx

    return getattr(tirx, name)


def i64(value: int) -> Any:
    """Return an int64 constant."""
    return __getattr__("IntImm")("int64", value)
