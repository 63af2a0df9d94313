"""Leaves that hold vectors: a value for each output, so that one walk serves all outputs.

takes: Forest; gives: a table of distinct leaves, and where each leaf finds its row.

The leaves of a deep classifier are mostly pure, and most rows of the table are shared. Rows stand
in the order of the first leaf that holds them, so the leaves of a tree have theirs together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .rules import Array

if TYPE_CHECKING:
    from .model import Forest


SHIFT = np.uint64(29)


class LeafTable(NamedTuple):
    """The values of leaves, apart from the trees.

    Attributes:
        values: (L, W) in the dtype of `Forest.leaf_value`, distinct to the bit.
        number: int64 (N,), the row of each leaf, 0 at inner nodes.
    """

    values: Array
    number: Array


def leaf_table(forest: Forest) -> LeafTable:
    """Collect the distinct leaves of a forest."""
    values = np.ascontiguousarray(forest.leaf_value[forest.is_leaf])
    first, which = distinct(values)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    number = np.zeros(forest.n_nodes, np.int64)
    number[forest.is_leaf] = rank[which]
    return LeafTable(values[first[order]], number)


def distinct(values: Array) -> tuple[Array, Array]:
    """Find the rows (K, W) that differ to the bit: the first of each kind, and the kind of each.

    Rows are told apart by keys of 64 bits, which takes a tenth of the time that sorting them does;
    they are sorted if keys of different rows meet.
    """
    bits = values.view(f"u{values.itemsize}")
    words = bits.astype(np.uint64)
    keys = ((words ^ (words >> SHIFT)) * multipliers(bits.shape[1])).sum(axis=1, dtype=np.uint64)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if not np.array_equal(bits[first][which], bits):
        _, first, which = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    return first, which.ravel()


def multipliers(count: int) -> Array:
    """Return odd numbers, uint64 (count,), the same in every call."""
    drawn = np.random.default_rng(count).integers(1 << 63, size=count, dtype=np.uint64)
    return 2 * drawn + np.uint64(1)
