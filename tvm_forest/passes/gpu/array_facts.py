"""Attributes with facts about the numbers in a model's arrays, for the GPU passes.

takes: a function, a layout and its arrays; gives: the function with attributes.

The shared memory that a copy of some trees takes, and the indices that fit 32 bits, depend on
numbers that are not part of the code.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from ...forest import Array
from ...layouts.protocol import Layout

RANGES = "tvm_forest.ranges"
"""Function attribute: the least and greatest number (or 0) of each int64 array."""

STARTS = "tvm_forest.starts"
"""Function attribute: the arrays with the first element of every tree, as lists."""


def with_array_facts(
    func: tirx.PrimFunc, layout: Layout, arrays: Mapping[str, Array]
) -> tirx.PrimFunc:
    """Return the function with these attributes."""
    ranges = {
        name: [int(array.min(initial=0)), int(array.max(initial=0))]
        for name, array in arrays.items()
        if array.dtype == "int64"
    }
    starts = {name: arrays[name].tolist() for name in layout.copied.values() if name in arrays}
    return func.with_attr(RANGES, ranges).with_attr(STARTS, starts)
