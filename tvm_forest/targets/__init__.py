"""IRModule + Target -> library: what differs from device to device."""

from typing import Any, TypeAlias

Library: TypeAlias = Any
"""A TVM executable or a KernelLibrary: gives functions by name, which take the rows, arrays of the
model, and arrays for results."""
