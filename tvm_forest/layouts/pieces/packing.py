"""Packs a forest into lines.

takes: Forest; gives: lines, and the places of trees and leaves in them, by numpy alone.

Nothing is done node by node: pieces that begin on one level of several trees are cut together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.rewrites.narrowing import round_thresholds
from ...forest.structure.leaf_table import find_distinct
from ...system.values import dataclass, fields
from . import shapes
from .lines import EXITS, LEAF_BIT, LINE, MAX_REACH, PLACE_BITS, UNIT, UNIT_BITS, split_bytes


class Nodes(NamedTuple):
    """The fields of some trees' nodes that packing reads; (N,) each.

    A single-leaf tree gets one more node, a root with this leaf as both children.

    Attributes:
        left, right: int32, children; a leaf has itself for both.
        is_leaf: bool.
        weight: int32, number of inner nodes in the subtree.
        threshold: float32.
        feature: uint8.
        side: bool, whether a missing value goes to the left.
        id: int32, number in the source model.
        pointer: uint32, exit that leads to a leaf, or to the piece that begins with the node.
        roots: int64 (T,), root of each tree.
    """

    left: Array
    right: Array
    is_leaf: Array
    weight: Array
    threshold: Array
    feature: Array
    side: Array
    id: Array
    pointer: Array
    roots: Array

    @classmethod
    def of(cls, forest: Forest, begin: int, end: int, exits: Array) -> Nodes:
        """Return the fields of the nodes of the trees from `begin` to before `end`.

        A large forest is packed some trees at a time, since these fields take half of its memory.

        Args:
            forest: the model.
            begin, end: a range of trees.
            exits: see `number_values`.
        """
        offset = forest.tree_offset[begin : end + 1]
        part, roots = slice(offset[0], offset[-1]), offset[:-1] - offset[0]
        is_leaf = forest.is_leaf[part]
        base = np.repeat(roots.astype(np.int32), np.diff(offset))
        alone, stay = np.flatnonzero(is_leaf[roots]), np.arange(len(is_leaf), dtype=np.int32)
        left, right = (
            np.append(np.where(is_leaf, stay, base + child[part]), stay[roots[alone]])
            for child in (forest.left, forest.right)
        )

        def append(values: Array, dtype: type, more: int = 0) -> Array:
            return np.append(values.astype(dtype), np.full(len(alone), more, dtype))

        weight = append(_weigh(left, right, is_leaf, roots), np.int32, 1)
        roots[alone] = len(is_leaf) + np.arange(len(alone))
        return cls(
            left,
            right,
            append(is_leaf, np.bool_),
            weight,
            append(np.where(is_leaf, 0, round_thresholds(forest, part)), np.float32),
            append(np.where(is_leaf, 0, forest.feature[part]), np.uint8),
            append(forest.default_left[part] & ~is_leaf, np.bool_),
            append(forest.node_id[part], np.int32),
            append(exits[part], np.uint32),
            roots,
        )


def _weigh(left: Array, right: Array, is_leaf: Array, roots: Array) -> Array:
    """Return the number of inner nodes in the subtree of each node, int32 (N,)."""
    levels, node = list[Array](), roots
    while (node := node[~is_leaf[node]]).size:
        levels.append(node)
        node = np.concatenate([left[node], right[node]])
    weight = np.zeros(len(is_leaf), np.int32)
    for node in reversed(levels):
        weight[node] = 1 + weight[left[node]] + weight[right[node]]
    return weight


def count_values(forest: Forest) -> int:
    """Count the distinct leaf values."""
    return len(find_distinct(np.ascontiguousarray(forest.leaf_value[forest.is_leaf]))[0])


def number_values(forest: Forest) -> tuple[Array, Array]:
    """Return the distinct leaf values, and the exit for the value of each leaf, uint32 (N,)."""
    values = np.ascontiguousarray(forest.leaf_value[forest.is_leaf])
    first, kind = find_distinct(values)
    exits = np.zeros(forest.n_nodes, np.uint32)
    exits[forest.is_leaf] = kind.astype(np.uint32) | 1 << LEAF_BIT
    return values[first, 0], exits


@dataclass(frozen=True)
class _Pieces:
    """Pieces into which trees were cut.

    Attributes:
        tests: int32 (P, 7), the nodes of a piece in the order in which they were added.
        exits: int32 (P, 8), the children outside of the piece, by exit number.
        order: int32 (P,), see `shapes`.
        count: int8 (P,), number of tests.
    """

    tests: Array
    exits: Array
    order: Array
    count: Array


def _cut_pieces(nodes: Nodes, roots: Array) -> _Pieces:
    """Cut trees into pieces, level by level."""
    levels = list[_Pieces]()
    while roots.size:
        levels.append(_cut_level(nodes, roots))
        pieces = levels[-1]
        is_exit = np.arange(EXITS) <= pieces.count[:, None]
        roots = pieces.exits[is_exit]
        roots = roots[~nodes.is_leaf[roots]]
    joined = (np.concatenate([getattr(x, field.name) for x in levels]) for field in fields(_Pieces))
    return _Pieces(*joined)


def _cut_level(nodes: Nodes, roots: Array) -> _Pieces:
    """Return the pieces that begin with the given nodes.

    All pieces take in 7 nodes, one after the other. A leaf has weight 0 and is its own child: where
    only leaves are left, the first exit is replaced by itself, and the exits that this adds are
    ignored.
    """
    size, column = len(roots), np.arange(len(roots), dtype=np.int32)
    exits, weight = np.zeros((2, EXITS, size), np.int32)
    tests = np.empty((shapes.TESTS, size), np.int32)
    order, count = np.zeros(size, np.int32), np.zeros(size, np.int8)
    exits[0], weight[0] = roots, nodes.weight[roots]
    for n in range(shapes.TESTS):
        number = weight[: n + 1].argmax(axis=0).astype(np.int32)
        at = number * size + column
        taken = exits.ravel()[at]
        left, right = nodes.left[taken], nodes.right[taken]
        tests[n], exits.ravel()[at], exits[n + 1] = taken, left, right
        weight.ravel()[at], weight[n + 1] = nodes.weight[left], nodes.weight[right]
        order += number * shapes.ORDERS[n]
        count += ~nodes.is_leaf[taken]
    return _Pieces(tests.T, exits.T, order, count)


def lay_out_group(nodes: Nodes, roots: Array, at: int) -> tuple[Array, Array]:
    """Pack the pieces of some trees into lines, from line `at` on.

    `nodes.pointer` of each piece's root is set to the line and place of the piece. Lines count from
    the `base` of this group, but for pieces that begin with the root of a tree, from line 0.

    Returns:
        lines, dtype LINE (L,), and for each exit to a leaf the number of that leaf in the source
        model, int32 (8 L,).
    """
    pieces = _cut_pieces(nodes, roots)
    members = _fill_lines(pieces.count)
    count = 1 + max(int(x.line[-1]) for x in members)
    base = at >> UNIT_BITS if at + count > MAX_REACH else 0
    lines, exits = np.zeros(count, LINE), np.zeros((count, EXITS), np.uint32)
    leaf_ids = np.zeros((count, EXITS), np.int32)
    lines["base"] = base
    for each in members:
        where = (at - base * UNIT + each.line).astype(np.uint32) << PLACE_BITS | each.place
        nodes.pointer[pieces.tests[each.piece, 0]] = where
    first_code = shapes.tabulate().first_code
    for each in members:
        kind, line = shapes.grow(each.size - 1), slice(each.line[0], each.line[-1] + 1)
        order = pieces.order[each.piece] % len(kind.shape)
        tests = np.take_along_axis(pieces.tests[each.piece], kind.tests[order], axis=1)
        leads = np.take_along_axis(pieces.exits[each.piece], kind.exits[order], axis=1)
        first, end = each.begin, each.begin + each.size
        lines["threshold"][line, first : end - 1] = nodes.threshold[tests]
        lines["feature"][line, first : end - 1] = nodes.feature[tests]
        sides = np.packbits(nodes.side[tests], axis=1, bitorder="little")[:, 0]
        lines["sides"][line] |= sides << first
        code = each.radix * kind.shape[order] + (0 if each.place else first_code[each.filling])
        lines["code"][line] += code.astype(np.uint16)
        exits[line, first:end] = nodes.pointer[leads]
        leaf_ids[line, first:end] = nodes.id[leads]
    lines["exits"] = split_bytes(exits)
    nodes.pointer[roots] += base << UNIT_BITS + PLACE_BITS
    return lines, leaf_ids.ravel()


class _Members(NamedTuple):
    """Pieces that have the same place in lines of one filling.

    Attributes:
        filling: how many exits each piece of such a line has, one of `shapes.FILLINGS`.
        place: place among the pieces of a line, from 0.
        size: number of exits of each piece.
        begin: index in a line of the first exit, and of the first test, of each piece.
        radix: weight of a shape in the code of a line.
        piece: int64 (K,), the pieces.
        line: int64 (K,), their lines, which are consecutive.
    """

    filling: tuple[int, ...]
    place: int
    size: int
    begin: int
    radix: int
    piece: Array
    line: Array


def _fill_lines(count: Array) -> list[_Members]:
    """Return which pieces share lines, given the number of tests of each piece."""
    left = {size: np.flatnonzero(count == size - 1) for size in range(2, EXITS + 1)}
    members, at = list[_Members](), 0
    for filling in shapes.FILLINGS:
        lines, begin, radix = -(-len(left[filling[0]]) // filling.count(filling[0])), 0, 1
        for place, size in enumerate(filling):
            some, left[size] = left[size][:lines], left[size][lines:]
            if some.size:
                line = at + np.arange(len(some))
                members.append(_Members(filling, place, size, begin, radix, some, line))
            begin, radix = begin + size, radix * len(shapes.grow(size - 1).ends)
        at += lines
    return members
