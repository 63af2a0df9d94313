"""Leaf vectors: leaves with a value for each output, so that one walk serves all outputs.

takes: Trees; gives: a table of distinct leaves, and where each leaf finds its row.

Most leaves of a deep classifier are pure (one class has all the weight), so many leaves share a row
of the table. Rows stand in the order of the first leaf that has them, so the leaves of a tree have
theirs together.
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
"""Number of hash tables, and bits of a slot number: the caches hold one table
at a time."""


class LeafTable(NamedTuple):
    """The values of leaves, apart from the trees.

    Attributes:
        values: (L, W) in the dtype of `Forest.leaf_value`, distinct to the bit.
        number: int64 (N,), the row of each leaf, 0 at inner nodes.
    """

    values: Array
    number: Array


def collect_leaves(trees: Trees) -> LeafTable:
    """Collect the distinct leaves of a forest."""
    values = np.ascontiguousarray(trees.leaf_value[trees.is_leaf])
    first, kind = find_distinct(values)
    order = np.argsort(first)
    number = np.zeros(trees.n_nodes, np.int64)
    number[trees.is_leaf] = invert(order)[kind]
    return LeafTable(values[first[order]], number)


def find_distinct(values: Array) -> tuple[Array, Array]:
    """Find the rows (K, W) that differ to the bit: the first of each kind, and the kind of each.

    Rows are told apart by hash keys of 64 bits, which is faster than sorting them; they are sorted
    only if different rows have one key.
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
    """Find the keys that differ: the first of each kind, and the kind of each.

    In each table a slot takes the first key that hashes to it, and all keys equal to it are then
    known. The others go to the next table, by other bits; after the last table, the remaining ones
    are sorted.
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
    """Return odd numbers, uint64 (count,), the same in every call."""
    drawn = np.random.default_rng(count).integers(1 << 63, size=count, dtype=np.uint64)
    return 2 * drawn + np.uint64(1)
