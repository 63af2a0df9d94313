"""What the passes for GPUs have to know of the numbers in a model's arrays.

takes: a function, a layout and its arrays; gives: the function with attributes.

How much shared memory a copy of some trees takes, and which indices need 32 bits only, depends on
numbers that are no part of the code.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from ...forest import Array
from ...layouts.protocol import Layout

RANGES = "tvm_forest.ranges"
"""Attribute of a function: the least and the greatest number of each of its int64 arrays, or 0."""

STARTS = "tvm_forest.starts"
"""Attribute of a function: the arrays that have the first element of every tree, as lists."""


def with_array_facts(
    func: tirx.PrimFunc, layout: Layout, arrays: Mapping[str, Array]
) -> tirx.PrimFunc:
    """Return a function that has these attributes."""
    ranges = {
        name: [int(array.min(initial=0)), int(array.max(initial=0))]
        for name, array in arrays.items()
        if array.dtype == "int64"
    }
    starts = {name: arrays[name].tolist() for name in layout.copied.values() if name in arrays}
    return func.with_attr(RANGES, ranges).with_attr(STARTS, starts)
