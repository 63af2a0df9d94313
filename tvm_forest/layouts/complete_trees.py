"""Completes trees: every slot above the last level of its tree has two children.

takes: Forest; gives: the node in each slot, and what layouts of complete trees share.

A leaf above the last level is padded: the slots below it test feature 0 and lead to copies of the
leaf, so a walk takes as many steps as its tree is deep, without asking whether it is done. Slots
count level by level: the children of slot i are 2i + 1 and 2i + 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from ..forest.structure.edges import find_steps
from ..system.values import dataclass, field
from . import ANY_FOREST, tir
from .linked_nodes import DEFAULT_LEFT, any_default_left, decode_test, show_nodes
from .protocol import Buffers, Columns, Expr, Hold, Layout, NodeTest, TreeAccess, read_specs

MAX_SLOTS = 1 << 25
"""Largest number of slots of all trees of a model together."""


def count_slots(depth: Array) -> Array:
    """Return how many slots each complete tree has, int64; a depth above 40 counts as 40."""
    return np.left_shift(2, np.minimum(depth, 40).astype(np.int64)) - 1


def find_slot_excess(forest: Forest, slots: int) -> str | None:
    """Return why so many slots are refused, naming the deepest tree; None if they are not."""
    if slots <= MAX_SLOTS:
        return None
    worst = int(np.argmax(forest.depths))
    return (
        f"tree {worst} of depth {forest.depths[worst]} and {forest.n_trees - 1} others need "
        f"{slots} slots, the limit is {MAX_SLOTS}"
    )


def show_slots(number: Array, code: Array, place: Columns, depth: Array) -> Columns:
    """Return columns for pictures of slots: place, level, fields of the node, and children.

    Args:
        number: threshold or leaf value of each slot.
        code: feature and DEFAULT_LEFT of each slot.
        place: columns "tree" and "slot", the slot counted from 0 in its tree.
        depth: depth of each tree.
    """
    slot = place["slot"]
    level = np.frexp(slot + 1)[1] - 1
    inner, leaf = level < depth[place["tree"]], level == depth[place["tree"]]
    children = np.ma.array(np.stack([2 * slot + 1, 2 * slot + 2], axis=1))
    children[~inner] = np.ma.masked
    columns = show_nodes(number, code, inner, leaf)
    return {**place, "level": level, **columns, "children": children}


def find_occupants(
    forest: Forest,
    size: int,
    place: Callable[[Array, Array], Array],
    trees: Array | None = None,
    depths: Array | None = None,
) -> tuple[Array, Array]:
    """Place trees into slots, level by level, with copies of shallow leaves below them.

    Args:
        forest: the model.
        size: E, number of elements of the layout.
        place: function of tree (T, 1) and slot (S,), int64 each, that returns elements (T, S).
        trees: int64, the trees to place; None for all.
        depths: (T,), last level of each tree, at least its depth; None for its depth.

    Returns:
        for each element, (E,): int64, the node in this slot, which is a leaf also where it pads the
        slots below it, and -1 where no tree has a slot; bool, whether the slot is in the last level
        of its tree.
    """
    node_at, ends = np.full(size, -1, np.int64), np.zeros(size, bool)
    steps, depths = find_steps(forest), forest.depths if depths is None else depths
    tree = (np.arange(forest.n_trees) if trees is None else trees)[:, None]
    node, level = forest.tree_offset[tree], 0
    while node.size:
        width = 1 << level
        put, last = place(tree, np.arange(width - 1, 2 * width - 1)), depths[tree[:, 0]] == level
        node_at[put] = node
        if last.any():
            ends[put[last]] = True
            node, tree = node[~last], tree[~last]
        node = np.stack([step[node] for step in steps], axis=2).reshape(len(tree), 2 * width)
        level += 1
    return node_at, ends


def fill_slots(forest: Forest, first: Array, stride: int, size: int) -> tuple[Array, Array, Array]:
    """Write the fields of all slots.

    Args:
        forest: the model.
        first: int64, (T,), element of each tree's first slot.
        stride: elements from a slot of a tree to the next one.
        size: E, number of elements of the layout.

    Returns:
        for each element, (E,): threshold or, in the last level, leaf value, in the threshold's
        dtype; int32, feature and DEFAULT_LEFT; int32, number of the leaf in the source model, -1
        above the last level.
    """
    node_at, ends = find_occupants(forest, size, lambda tree, slot: first[tree] + stride * slot)
    number = np.zeros(size, forest.threshold.dtype)
    code, leaf_id = np.zeros(size, np.int32), np.full(size, -1, np.int32)
    inner = np.flatnonzero((node_at >= 0) & ~ends)
    inner = inner[~forest.is_leaf[node_at[inner]]]
    node = node_at[inner]
    number[inner] = forest.threshold[node]
    code[inner] = forest.feature[node] + DEFAULT_LEFT * forest.default_left[node]
    number[ends] = forest.leaf_value[node_at[ends], 0]
    leaf_id[ends] = forest.node_id[node_at[ends]]
    return number, code, leaf_id


def find_uniform_depth(forest: Forest) -> int | None:
    """Return the depth that all trees have; None if they differ."""
    depth = forest.depths
    return int(depth[0]) if np.all(depth == depth[0]) else None


def load_hops(depth: int | None, buffers: Buffers, tree: Expr, hold: Hold) -> Expr:
    """Return the depth of a tree, int32: the common depth, or a load from buffer `depth`."""
    if depth is not None:
        return tir.IntImm("int32", depth)
    return hold("hops", tir.BufferLoad(buffers["depth"], [tree]))


@dataclass(frozen=True)
class CompleteTree(TreeAccess):
    """Access to a complete tree; nodes are slots from 1, so the children of i are 2i and 2i + 1.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        first: index in the buffers of slot 0, which would be just before the root, slot 1.
        hops: depth of the tree.
        stride: elements from a slot to the next one.
    """

    layout: Any
    buffers: Buffers
    first: Expr
    hops: Expr
    stride: int = 1
    root: Expr = field(default_factory=lambda: tir.i64(1))
    padded: ClassVar[bool] = True

    def element(self, node: Expr) -> Expr:
        """Return the index in the buffers of a slot, which is counted from 1 in its tree."""
        return self.first + node * self.stride

    def number(self, node: Expr) -> Expr:
        """Load the threshold of an inner node, or the value of a leaf."""
        raise NotImplementedError

    def code(self, node: Expr) -> Expr:
        """Load the feature of a node, with the flag DEFAULT_LEFT."""
        raise NotImplementedError

    def test(self, node: Expr, hold: Hold) -> NodeTest:
        """Load the fields of a node, and return its test."""
        any_left = self.layout.any_default_left
        return decode_test(self.number(node), self.code(node), any_left, hold)

    def child(self, node: Expr, goes_left: Expr) -> Expr:
        """Return the child: 2i on the left, 2i + 1 on the right."""
        return node * 2 + tir.Not(goes_left).astype("int64")

    def is_leaf(self, node: Expr) -> Expr:
        """Return whether a node is a leaf, that is, in the last level."""
        return node >= tir.shift_left(tir.i64(1), self.hops.astype("int64"))

    def leaf_value(self, node: Expr) -> Expr:
        """Load the leaf value, from the threshold field."""
        return self.number(node)

    def leaf_id(self, node: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.element(node)])


@dataclass(frozen=True)
class CompleteLayout(Layout):
    """Base class of layouts whose trees are complete down to their own depth.

    Attributes:
        side_by_side: whether the first slots of all trees are followed by all second ones, and so
            on, where each tree has the slots of the deepest; else tree follows tree.
        trees: T.
        dtype: dtype of thresholds and leaf values.
        depth: common depth of all trees, None if they differ.
        any_default_left: whether some node sends a missing value to the left.
    """

    instead: ClassVar[str] = ANY_FOREST
    side_by_side: ClassVar[bool] = False
    trees: int
    dtype: str
    depth: int | None
    any_default_left: bool

    @classmethod
    def place(cls, forest: Forest) -> tuple[Array, int, int]:
        """Return where slots lie: first, stride and number of elements, see `fill_slots`."""
        sizes, trees = count_slots(forest.depths), forest.n_trees
        if cls.side_by_side:
            return np.arange(trees), trees, trees * int(sizes.max())
        return np.cumsum(sizes) - sizes, 1, int(sizes.sum())

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why the layout cannot hold a forest: it would have too many slots."""
        return find_slot_excess(forest, cls.place(forest)[2])

    @classmethod
    def of(cls, forest: Forest, arrays: dict[str, Array]) -> tuple[Any, dict[str, Array]]:
        """Return the layout that describes a forest's packed arrays, and the same arrays."""
        depth, any_left = find_uniform_depth(forest), any_default_left(forest)
        dtype = str(forest.threshold.dtype)
        return cls(read_specs(arrays), forest.n_trees, dtype, depth, any_left), arrays
