"""Attributes with facts about the numbers in a model's arrays, for the GPU passes.

takes: a function, a layout and its arrays; gives: the function with attributes.

The size of copies of trees in shared memory, and whether indices fit 32 bits, depend on the numbers
in the model's arrays, which are not part of a function.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from ...forest import Array
from ...layouts.protocol import Layout

RANGES = "tvm_forest.ranges"
"""Function attribute: the smallest and the largest number in each int64 array, by its name, where 0
counts as an element of every array."""

STARTS = "tvm_forest.starts"
"""Function attribute: the arrays with the index of each tree's first node, as lists, by name."""


def with_array_facts(
    func: tirx.PrimFunc, layout: Layout, arrays: Mapping[str, Array]
) -> tirx.PrimFunc:
    """Return a function with attributes about the numbers in a model's arrays.

    `RANGES` has the least and the greatest of 0 and the numbers of each int64 array, `STARTS` the
    index of each tree's first node, for layouts whose trees can be copied.
    """
    ranges = {
        name: [int(array.min(initial=0)), int(array.max(initial=0))]
        for name, array in arrays.items()
        if array.dtype == "int64"
    }
    starts = {name: arrays[name].tolist() for name in layout.copied.values() if name in arrays}
    return func.with_attr(RANGES, ranges).with_attr(STARTS, starts)
