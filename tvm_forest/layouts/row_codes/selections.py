"""Converts trees of any shape to lists of selections between bit planes.

takes: Forest and the plane of each node's test; gives: Selections.

The leaves of a tree are numbered from right to left. Bit j of the number of the leaf that a row
reaches is computed bottom-up: at a node whose leaves have the numbers a to b - 1,

    bit j at the node = test ? bit j at its left child : bit j at its right child

which needs a selection only if a multiple of 2^j lies between a and b; otherwise bit j is the same
for all leaves there, a plane of zeros or of ones. Where it is 1 for all leaves on the left and 0
for all on the right (the reason for numbering from right to left), it equals the test itself. So a
tree needs one selection for every other such pair of a node and a bit, whatever its shape: 3 per
node for a tree of 255 leaves and 20 levels.

A selection is a word of four plane numbers, 16 bits each, from the lowest on: the test, the plane
taken where it is true, the plane taken where it is false, and the plane that is written. They are
ordered by bit, deep nodes first; the planes that hold intermediate results are reused for each bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.structure.edges import find_children, list_levels

MAX_PLANES = 1 << 16
"""Number of planes that 16 bits can number."""

MAX_DEPTH = 8
"""Largest depth of a complete tree; one more level would double the code."""

MAX_SLOTS_PER_LEAF = 8
"""Slots per leaf above which a complete tree becomes a list of selections: a listed selection
takes 3.5 times as long as one of a complete tree, and there are 2 to 3 for each node."""

MIN_SHARE = 64
"""A depth gets code of its own only if at least one in so many trees has it: the code of a depth
takes about a quarter of a second to compile."""


class Selections(NamedTuple):
    """The selections of some trees, and the planes that they need besides those of tests.

    Attributes:
        words: uint64 (I,), tree by tree.
        counts: int64 (T,), number of selections of each tree; 0 for other trees.
        number: int64 (N,), number of each leaf among those of its tree.
        spare: number of planes for zeros, ones, the result's bits, and intermediate results.
    """

    words: Array
    counts: Array
    number: Array
    spare: int


def has_levels(forest: Forest) -> Array:
    """Return bool (T,), whether a tree is stored as one test per level, see `bitsliced`.

    True for oblivious trees, if enough trees of the model are oblivious and deeper than one level.
    """
    oblivious = forest.is_oblivious
    worth = np.sum(oblivious & (forest.depths > 1)) * MIN_SHARE
    return oblivious & bool(worth >= forest.n_trees)


def is_listed(forest: Forest) -> Array:
    """Return bool (T,), whether a tree is a list of selections, since completing it does not pay.

    Such a tree is too deep, mostly empty when complete, or of a depth that few trees have.
    """
    by_levels = has_levels(forest)
    depth = np.minimum(forest.depths.astype(np.int64), 40)
    listed = (depth > MAX_DEPTH) | (1 << depth > MAX_SLOTS_PER_LEAF * forest.leaf_counts)
    alike = np.bincount(depth[~listed & ~by_levels], minlength=41)
    return (listed | (MIN_SHARE * alike[depth] < forest.n_trees)) & ~by_levels


def number_leaves(forest: Forest) -> tuple[Array, Array]:
    """Return (first, count): the leaves below each node, numbered from right to left.

    Returns:
        int64 (N,) each; the leaves of a node are the numbers first to first + count - 1.
    """
    count = forest.is_leaf.astype(np.int64)
    levels = list_levels(forest)
    for node, left, right in reversed(levels):
        count[node] = count[left] + count[right]
    first = np.zeros(forest.n_nodes, np.int64)
    for node, left, right in levels:
        first[right] = first[node]
        first[left] = first[node] + count[right]
    return first, count


def count_selections(forest: Forest, trees: Array) -> int:
    """Return the number of selections of some trees, bool (T,).

    Those that only set a bit to 0, because it is 0 in all leaves of a tree, are not counted.
    """
    if not trees.any():
        return 0
    first, count = number_leaves(forest)
    last = first + count - 1
    bits = range(int(last.max(initial=0)).bit_length())
    return sum(len(_find_selections(forest, first, last, trees, bit)[0]) for bit in bits)


def write_selections(
    forest: Forest, plane: Array, tests: int, trees: Array, bits: int
) -> Selections:
    """Write the selections of some trees.

    Args:
        forest: the model.
        plane: int64 (N,), plane of the test of each node.
        tests: number of planes for tests; those of the selections follow.
        trees: bool (T,), the trees to include.
        bits: number of bits in a leaf number.
    """
    if not trees.any():
        words, number = np.zeros(0, np.uint64), np.zeros(forest.n_nodes, np.int64)
        return Selections(words, np.zeros(forest.n_trees, np.int64), number, 2 + bits)
    first, count = number_leaves(forest)
    last, is_root = first + count - 1, forest.hop_depth == 0
    root, (left, right) = forest.tree_offset[:-1], find_children(forest)
    work, longest = tests + 2 + bits, 0  # first plane of intermediate results, and their number
    columns: list[Array] = []
    for bit in range(bits):
        value, result = first >> bit & 1, tests + 2 + bit
        target = tests + value  # plane of the bit at each node
        node, alike = _find_selections(forest, first, last, trees, bit)
        target[alike] = plane[alike]
        node = node[np.lexsort((-forest.hop_depth[node], forest.node_tree[node]))]
        tree = forest.node_tree[node]
        place = np.arange(len(node)) - np.searchsorted(tree, tree)
        longest = max(longest, int(place.max(initial=-1)) + 1)
        target[node] = np.where(is_root[node], result, work + place)
        planes = [plane[node], target[left[node]], target[right[node]], target[node]]
        columns.append(np.stack([tree, np.full(len(node), bit), *planes]))
        is_fixed = first[root] >> bit == last[root] >> bit
        zero = np.flatnonzero(trees & is_fixed)  # trees with this bit 0 in all leaves
        columns.append(np.repeat([[0], [bit], *3 * [[tests]], [result]], len(zero), axis=1))
        columns[-1][0] = zero
    table = np.concatenate(columns, axis=1)
    table = table[:, np.lexsort((np.arange(table.shape[1]), table[1], table[0]))]
    fields = table[2:].astype(np.uint64)
    words = fields[0] | fields[1] << 16 | fields[2] << 32 | fields[3] << 48
    counts = np.bincount(table[0], minlength=forest.n_trees)
    return Selections(words, counts, first, 2 + bits + longest)


def _find_selections(
    forest: Forest, first: Array, last: Array, trees: Array, bit: int
) -> tuple[Array, Array]:
    """Return the nodes where a bit needs a selection, and those where it equals the test.

    At a root it is always a selection, which writes the bit to the plane of the result.

    Args:
        forest, trees: see `write_selections`.
        bit: number of the bit in the numbers of leaves; 0 is the lowest.
        first, last: int64 (N,), numbers of the leaves below each node.
    """
    left, right = find_children(forest)
    is_fixed = first >> bit == last >> bit
    ones, zeros = is_fixed & (first >> bit & 1 == 1), is_fixed & (first >> bit & 1 == 0)
    is_inner = ~forest.is_leaf & trees[forest.node_tree]
    crossed = np.flatnonzero(is_inner & ~is_fixed)
    is_test = ones[left[crossed]] & zeros[right[crossed]] & (forest.hop_depth[crossed] > 0)
    return crossed[~is_test], crossed[is_test]
