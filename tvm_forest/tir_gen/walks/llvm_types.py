"""LLVM's names of types.

takes: a dtype of TIR; gives: text.
"""

from __future__ import annotations

import tvm

ELEMENTS = {"float32": "float", "float64": "double"}
"""LLVM's names of floating-point types."""
SHORT = {"float32": "f32", "float64": "f64"}
"""LLVM's type suffixes in the names of intrinsics."""


def llvm_type(dtype: str) -> str:
    """Return LLVM's name of a type: "float", "i8", "<64 x i8>"."""
    base, _, lanes = dtype.partition("x")
    element = ELEMENTS.get(base) or f"i{tvm.DataType(base).bits}"
    return f"<{lanes} x {element}>" if lanes else element
