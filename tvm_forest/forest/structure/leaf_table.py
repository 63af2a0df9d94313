"""Collects the distinct values or vectors of leaves in a table.

takes: Trees; gives: the table, and the row of each leaf in it.

A leaf vector has a value for each output, so that one walk serves all outputs. Most leaves of a
deep classifier are pure (one class has all the weight), so many leaves share a row of the table.
Rows are ordered by the first leaf that uses them, so the rows of one tree are close together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..rules import Array
from .edges import invert

if TYPE_CHECKING:
    from .trees import Trees


SHIFT = np.uint64(29)

TABLES, TABLE_BITS = 3, 20
"""Number of hash tables, and bits of a slot index: one table at a time fits in the caches."""


class LeafTable(NamedTuple):
    """The distinct values or vectors of leaves.

    Attributes:
        values: (L, W) in the dtype of `Forest.leaf_value`; any two rows differ in some bit.
        number: int64 (N,), the row of each leaf, 0 at inner nodes.
    """

    values: Array
    number: Array


def collect_leaves(trees: Trees) -> LeafTable:
    """Return the table of a forest's distinct leaf values or vectors."""
    values = np.ascontiguousarray(trees.leaf_value[trees.is_leaf])
    first, kind = find_distinct(values)
    order = np.argsort(first)
    number = np.zeros(trees.n_nodes, np.int64)
    number[trees.is_leaf] = invert(order)[kind]
    return LeafTable(values[first[order]], number)


def find_distinct(values: Array) -> tuple[Array, Array]:
    """Group rows (K, W) with equal bits.

    Rows are compared by 64-bit hash keys, which is faster than sorting them. They are sorted only
    if different rows have the same key.

    Returns:
        the index of the first row of each group, and the group of each row.
    """
    bits = values.view(f"u{values.itemsize}")
    words = bits.astype(np.uint64)
    keys = ((words ^ (words >> SHIFT)) * make_multipliers(bits.shape[1])).sum(
        axis=1, dtype=np.uint64
    )
    first, kind = _find_distinct_keys(keys)
    if not np.array_equal(bits[first][kind], bits):
        _, first, kind = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    return first, kind.ravel()


def _find_distinct_keys(keys: Array) -> tuple[Array, Array]:
    """Group equal keys, and return the same as `find_distinct`.

    In each hash table a slot takes the first key that hashes to it, which settles all equal keys.
    The other keys go to the next table, which uses other bits of them; keys that remain after the
    last table are sorted.
    """
    kind, unknown, firsts, count = np.empty(len(keys), np.int64), np.arange(len(keys)), [], 0
    bits = min(TABLE_BITS, len(keys).bit_length())
    for table in range(TABLES):
        slot = keys[unknown] << np.uint64(bits * table) >> np.uint64(64 - bits)
        owner = np.full(1 << bits, -1)
        owner[slot[::-1]] = unknown[::-1]
        is_known, has_owner = keys[owner[slot]] == keys[unknown], owner >= 0
        number = count + np.cumsum(has_owner) - 1
        kind[unknown[is_known]] = number[slot[is_known]]
        firsts.append(owner[has_owner])
        count, unknown = count + len(firsts[-1]), unknown[~is_known]
    _, first, rest = np.unique(keys[unknown], return_index=True, return_inverse=True)
    kind[unknown] = count + rest
    return np.concatenate([*firsts, unknown[first]]), kind


def make_multipliers(count: int) -> Array:
    """Return odd random numbers for hashing, uint64 (count,), the same in every call."""
    drawn = np.random.default_rng(count).integers(1 << 63, size=count, dtype=np.uint64)
    return 2 * drawn + np.uint64(1)
