"""The layout of pieces: parts of trees of up to 7 tests, each in one line of the cache.

takes: Forest; gives: PiecesLayout and its arrays.

A walk through a forest that no cache holds waits for one line of memory at each step. So a step
decides as much as a line of 64 bytes has room for:

    bytes 0 ... 27    28 ... 29    30       31      32 ... 38    39    40 ... 63
    thresholds        code         sides    base    features     0     exits

That is 7 thresholds of float32, 7 features of a byte, bit i of `sides` if a missing value goes to
the left at test i, and 8 exits of 3 bytes. An exit with bit 23 is a leaf, and the rest of it the
number of the leaf's value: of most models there are far fewer distinct values than leaves. Other
exits lead to a piece, 4 times its line and its place in this line, counted from `base`, in units
of `UNIT` lines.

A piece begins with its root and takes in the node with the largest subtree, again and again, so its
shape is any one. Small pieces share a line, see `piece_shapes`: its `code` says of which shapes the
pieces of a line are. All tests of a line are compared at once; `shapes` has a row for each piece of
a code, which leads from the outcome, a number below 128, to the exit in `ends`.

Trees lie in groups of 16, and those of a group level by level. Thresholds of float64 are
narrowed, which needs rows of float32. Walks are in `tir_gen/walks/pieces.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.narrowing import round_thresholds
from ..forest.structure.edges import find_steps, list_levels
from ..forest.structure.leaf_table import find_distinct
from . import piece_shapes as shapes
from . import tir
from .linked_nodes import any_default_left
from .protocol import Buffers, Columns, Expr, Hold, Layout, NearTree, read_specs, register
from .sparse import SparseLayout

LINE = np.dtype(
    [
        *(("threshold", "<f4", 7), ("code", "<u2"), ("sides", "u1"), ("base", "u1")),
        *(("feature", "u1", 7), ("zero", "u1"), ("exits", "u1", 24)),
    ]
)
"""The fields of a line."""

EXITS, EXIT_BYTES = shapes.TESTS + 1, 3
"""Exits of a line, and bytes of one."""

LEAF_BIT, PLACE_BITS = 23, 2
"""The bit of an exit that says that it is a leaf, and the lowest ones, the place in a line."""

UNIT_BITS = 18
UNIT = 1 << UNIT_BITS
"""Lines that `base` counts by: 16 MiB."""

MAX_REACH, MAX_UNITS = 1 << LEAF_BIT - PLACE_BITS, 1 << 8
"""Lines that an exit can reach from its base, and bases there are."""

GROUP = 16
"""Trees that lie together. As many are packed at once, for which the caches have room."""

MAX_GROUP_NODES = shapes.LEAST_EXITS * (MAX_REACH - UNIT) - 100
MAX_NODES = shapes.LEAST_EXITS * UNIT * MAX_UNITS
"""Nodes of a group, and of all trees, whose lines can be counted whatever the trees look like: each
node but the roots takes an exit, or two exits if it is a whole tree, or none."""

MAX_VALUES = 1 << LEAF_BIT
"""Distinct values of leaves."""

MAX_FEATURES = 256
"""Features that a byte can count."""


@dataclass(frozen=True)
class PieceTree(NearTree):
    """A tree: `tir_gen/walks/pieces.py` asks it for addresses and for leaves.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        tree: number of the tree.
    """

    layout: PiecesLayout
    buffers: Buffers
    tree: Expr

    @property
    def root(self) -> Expr:
        """The first piece, uint32: 4 times its line, and its place."""
        return self.load("roots", self.tree)

    def load(self, name: str, *place: Expr) -> Expr:
        """Load an element of a buffer."""
        return tir.BufferLoad(self.buffers[name], list(place))

    def first(self, name: str) -> Expr:
        """Load the first element of a buffer, whose address is asked for."""
        return self.load(name, *(tir.i64(0) for _ in self.buffers[name].shape))

    def leaf_value(self, number: Expr) -> Expr:
        """The value of a leaf, by its number, int64."""
        return self.load("leaf_value", number)

    def leaf_id(self, exit: Expr) -> Expr:
        """The number in the source model, by 8 times the line and the exit of it, int64."""
        return self.load("leaf_id", exit)


@register
@dataclass(frozen=True)
class PiecesLayout(Layout):
    """Lines of 7 tests and 8 exits, and distinct values of leaves.

    Attributes:
        dtype: of leaf values.
        any_default_left: whether some node sends a missing value to the left.
        has_bases: whether exits are not all counted from the first line.
    """

    name: ClassVar[str] = "pieces"
    instead: ClassVar[str] = SparseLayout.name
    walks: ClassVar[str] = "pieces"
    only_for_ids: ClassVar[tuple[str, ...]] = ("leaf_id",)
    dtype: str
    any_default_left: bool
    has_bases: bool

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why not: what a line cannot hold."""
        if forest.row_dtype != "float32":
            return f"rows are {forest.row_dtype}, but a line holds float32 only"
        trees, largest = forest.n_trees, int(np.diff(forest.tree_offset).max())
        leaves = int(forest.is_leaf.sum())
        counts = (
            (forest.n_features, "features", MAX_FEATURES),
            (largest, "nodes of the largest tree", MAX_GROUP_NODES),
            (forest.n_nodes + GROUP * trees, "nodes, and 16 for each tree,", MAX_NODES),
            (_count_values(forest) if leaves > MAX_VALUES else 0, "values of leaves", MAX_VALUES),
        )
        over = next((x for x in counts if x[0] > x[2]), None)
        return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        nodes = _Nodes.of(forest)
        values = _number_values(forest, nodes.pointer)
        lines, ids, at, bases = list[Array](), list[Array](), 0, 0
        size = min(GROUP, MAX_GROUP_NODES // int(np.diff(forest.tree_offset).max()))
        for begin in range(0, forest.n_trees, size):
            some, leaf_ids = _lay_out_group(nodes, nodes.roots[begin : begin + size], at)
            lines.append(some)
            ids.append(leaf_ids)
            at, bases = at + len(some), int(some["base"][0])
        tables = shapes.tabulate()
        arrays = {
            "lines": np.concatenate(lines).view(np.uint8).reshape(-1, LINE.itemsize),
            "roots": nodes.pointer[nodes.roots],
            "ends": tables.ends.ravel(),
            "shapes": tables.rows.ravel(),
            "leaf_value": values,
            "leaf_id": np.concatenate(ids),
        }
        facts = (str(values.dtype), any_default_left(forest), bases > 0)
        return cls(read_specs(arrays), *facts), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to a tree; a PieceTree."""
        return PieceTree(self, buffers, tree)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show the fields of lines."""
        lines = arrays["lines"].view(LINE)[:, 0]
        exits = _join_bytes(lines["exits"])
        leaf = exits >> LEAF_BIT > 0
        columns = {name: lines[name] for name in ("code", "base", "threshold", "feature")}
        columns["line"] = np.ma.array(exits >> PLACE_BITS, mask=leaf)
        columns["value"] = np.ma.array(exits & (1 << LEAF_BIT) - 1, mask=~leaf)
        return {"lines": columns}


# -- packing --------------------------------------------------------------------------------------


class _Nodes(NamedTuple):
    """What packing asks of nodes, those of all trees; (N,) each.

    A tree of one leaf has one node more, a root whose children are both this leaf.

    Attributes:
        left, right: int32, children; a leaf has itself for both.
        is_leaf: bool.
        weight: int32, inner nodes of the subtree.
        threshold: float32.
        feature: uint8.
        side: bool, whether a missing value goes to the left.
        id: int32, number in the source model.
        pointer: uint32, what leads to a leaf, or to the piece that begins with the node.
        roots: int64 (T,).
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
    def of(cls, forest: Forest) -> _Nodes:
        """Return those of a forest."""
        inner, roots = ~forest.is_leaf, forest.tree_offset[:-1].copy()
        alone = np.flatnonzero(forest.is_leaf[roots])
        leaves, places = roots[alone], forest.n_nodes + np.arange(len(alone))
        roots[alone] = places
        weight = np.zeros(forest.n_nodes, np.int32)
        for node, left, right in reversed(list_levels(forest)):
            weight[node] = 1 + weight[left] + weight[right]
        threshold = np.where(inner, round_thresholds(forest), 0)
        steps = (step[:-1].astype(np.int32) for step in find_steps(forest))
        zero, one = np.zeros(len(alone), np.int32), np.ones(len(alone), np.int32)
        fields = (
            *((step, leaves) for step in steps),
            (forest.is_leaf, zero),
            (weight, one),
            (threshold.astype(np.float32), zero),
            (np.where(inner, forest.feature, 0).astype(np.uint8), zero),
            (forest.default_left & inner, zero),
            (forest.node_id.astype(np.int32), zero),
            (np.zeros(forest.n_nodes, np.uint32), zero),
        )
        return cls(*(np.append(x, more.astype(x.dtype)) for x, more in fields), roots)


def _count_values(forest: Forest) -> int:
    return len(find_distinct(np.ascontiguousarray(forest.leaf_value[forest.is_leaf]))[0])


def _number_values(forest: Forest, pointer: Array) -> Array:
    """Return the distinct values of leaves, whose numbers become the pointers of the leaves."""
    values = np.ascontiguousarray(forest.leaf_value[forest.is_leaf])
    first, kind = find_distinct(values)
    pointer[: forest.n_nodes][forest.is_leaf] = kind.astype(np.uint32) | 1 << LEAF_BIT
    return values[first, 0]


class _Pieces(NamedTuple):
    """Pieces, cut off trees.

    Attributes:
        tests: int32 (P, 7), nodes in the order in which they were taken in.
        exits: int32 (P, 8), nodes that are left, by number.
        order: int32 (P,), see `piece_shapes`.
        count: int8 (P,), tests that there are.
    """

    tests: Array
    exits: Array
    order: Array
    count: Array


def _cut_pieces(nodes: _Nodes, roots: Array) -> _Pieces:
    """Cut trees into pieces, level by level."""
    levels = list[_Pieces]()
    while roots.size:
        levels.append(_cut_level(nodes, roots))
        pieces = levels[-1]
        is_exit = np.arange(EXITS) <= pieces.count[:, None]
        roots = pieces.exits[is_exit]
        roots = roots[~nodes.is_leaf[roots]]
    return _Pieces(*map(np.concatenate, zip(*levels, strict=True)))


def _cut_level(nodes: _Nodes, roots: Array) -> _Pieces:
    """Cut off the pieces that begin with some nodes.

    A leaf has no weight, and itself for children: where only leaves are left, the first exit takes
    itself in, and the exits that this adds do not count.
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


def _lay_out_group(nodes: _Nodes, roots: Array, at: int) -> tuple[Array, Array]:
    """Lay the pieces of some trees out, the first in line `at`, and note where they are.

    Returns:
        LINE (L,), and the number of the leaf at each exit, int32 (8 L,).
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
    lines["exits"] = _split_bytes(exits)
    nodes.pointer[roots] += base << UNIT_BITS + PLACE_BITS
    return lines, leaf_ids.ravel()


class _Members(NamedTuple):
    """Pieces that have one place in lines of one filling.

    Attributes:
        filling: of the lines.
        place: in a line.
        size: exits of each.
        begin: the first exit, and test, of theirs.
        radix: what a shape counts in the code of a line.
        piece: int64 (K,), the pieces.
        line: int64 (K,), their lines, which follow each other.
    """

    filling: tuple[int, ...]
    place: int
    size: int
    begin: int
    radix: int
    piece: Array
    line: Array


def _fill_lines(count: Array) -> list[_Members]:
    """Distribute pieces of so many tests among lines."""
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


def _split_bytes(exits: Array) -> Array:
    """Return exits uint32 (L, 8) as bytes, uint8 (L, 24)."""
    words = exits.astype("<u4").view(np.uint8).reshape(-1, EXITS, 4)
    return words[:, :, :EXIT_BYTES].reshape(len(exits), -1)


def _join_bytes(exits: Array) -> Array:
    """Return the exits that these bytes are."""
    words = np.zeros((len(exits), EXITS, 4), np.uint8)
    words[:, :, :EXIT_BYTES] = exits.reshape(-1, EXITS, EXIT_BYTES)
    return words.view("<u4")[:, :, 0]
