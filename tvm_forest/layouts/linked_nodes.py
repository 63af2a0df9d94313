"""Code that layouts without tiles share: fields of a node, and trees of linked nodes.

takes: Forest; gives: feature codes, links to children, and expressions that decode them.

A link is 2 * child + 1 for an inner node, where `child` is the left child, and the right child
follows it; it is 2 * node for a leaf, which is its own child. So the next node is
(link + goes right) >> 1 for both: node 5 with the children 8 and 9 has the link 17, and 17 >> 1 =
8, 18 >> 1 = 9; leaf 6 has the link 12, and 12 >> 1 = 13 >> 1 = 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from ..forest.rewrites.ordering import order_by_level
from ..system.values import dataclass, field
from . import tir
from .protocol import Buffers, Columns, Expr, Hold, Layout, NodeTest, TreeAccess

DEFAULT_LEFT = 1 << 30
"""Flag in a feature field: a missing value goes to the left."""

INTEGER_OF = {"float32": "int32", "float64": "int64"}


def any_default_left(forest: Forest) -> bool:
    """Return whether some node sends a missing value to the left."""
    return bool(np.any(forest.default_left & ~forest.is_leaf))


def link_nodes(forest: Forest, place: Array) -> Array:
    """Return the link of every node, int64 (N,), in which a child has its number within the tree.

    Args:
        place: number of each node, int64 (N,), with the right child after the left one; the root of
            a tree has number `tree_offset`.
    """
    base = forest.tree_offset[forest.node_tree]
    left = np.where(forest.is_leaf, np.arange(forest.n_nodes), base + forest.left)
    return 2 * (place[left] - base) + ~forest.is_leaf


def count_link_bits(forest: Forest) -> int:
    """Return the bits of the largest link: that of the largest tree's last node, a leaf."""
    return (2 * int(np.diff(forest.tree_offset).max()) - 2).bit_length()


def find_link_excess(
    forest: Forest, number_nodes: Callable[[Forest], tuple[Array, Array]], bits: int, rest: str
) -> str | None:
    """Return a text about the first node whose link does not fit; None if all fit.

    Args:
        forest: the model.
        number_nodes: function that returns the order and the places of nodes, see `link_nodes`.
        bits: bits available for a link; none if negative.
        rest: the fields that use the other bits, for the message.
    """
    bits = max(0, bits)
    if count_link_bits(forest) <= bits:
        return None
    bits = max(0, bits - 1)  # one is the flag of inner nodes
    child = link_nodes(forest, number_nodes(forest)[1]) >> 1
    too_large = child >> bits > 0
    return (
        f"{forest.name_first(too_large)}: child {child[too_large][0]} does not fit the {bits} bits "
        f"that {rest} leave"
    )


def follow(link: Expr, goes_left: Expr) -> Expr:
    """Return the node to which a link leads after a test, int64."""
    return tir.shift_right(link + tir.Not(goes_left).astype("int64"), tir.i64(1))


def show_places(offset: Array, elements: int) -> Columns:
    """Return tree and slot of each element, given the first element of each tree."""
    tree = np.repeat(np.arange(len(offset)), np.diff(offset, append=elements))
    return {"tree": tree, "slot": np.arange(elements) - offset[tree]}


def show_bits(words: Array, fields: dict[str, tuple[int, int]]) -> Columns:
    """Return bit fields of words, named with their last and first bit, for pictures."""
    columns = Columns()
    for name, (last, first) in fields.items():
        bits = f"{last}-{first}" if last > first else f"{first}"
        columns[f"{name} {bits}"] = words >> first & ((1 << last - first + 1) - 1)
    return columns


def show_nodes(number: Array, code: Array, inner: Array, leaf: Array) -> Columns:
    """Return columns for pictures of nodes: threshold, value, feature, side of missing values.

    Args:
        number: threshold or leaf value of each element.
        code: feature and DEFAULT_LEFT of each element.
        inner, leaf: bool, whether an element is an inner node, or a leaf.
    """
    left = np.where(code & DEFAULT_LEFT, "left", "right")
    return {
        "threshold": np.ma.array(number, mask=~inner),
        "value": np.ma.array(number, mask=~leaf),
        "feature": np.ma.array(code & (DEFAULT_LEFT - 1), mask=~inner),
        "missing": np.ma.array(left, mask=~inner),
    }


def decode_test(threshold: Expr, code: Expr, any_left: bool, hold: Hold) -> NodeTest:
    """Return a node's test.

    Args:
        threshold: the node's threshold.
        code: the node's feature field: the feature, and the flag DEFAULT_LEFT.
        any_left: whether some node of the model has the flag.
        hold: see `Hold`.
    """
    if not any_left:
        return NodeTest(threshold, code.astype("int64"), None)
    code = hold("code", code)
    flag = tir.const(DEFAULT_LEFT, code.ty.dtype)
    return NodeTest(threshold, (code & (flag - 1)).astype("int64"), code >= flag)


@dataclass(frozen=True)
class LinkedTree(TreeAccess):
    """Access to a tree of linked nodes; nodes are slots from the tree's first.

    Attributes:
        layout: the layout.
        buffers: `offset`, `depth` and `nodes`, and further ones of the layout.
        first: slot of the root among all trees.
        hops: depth of the tree.
        tree: number of the tree.
    """

    layout: Any
    buffers: Buffers
    first: Expr
    hops: Expr
    tree: Expr
    root: Expr = field(default_factory=lambda: tir.i64(0))
    stays: ClassVar[bool] = True

    def load(self, name: str, node: Expr, *field: int) -> Expr:
        """Load a node's element, or a field of it, from a buffer with one element per slot."""
        return tir.BufferLoad(self.buffers[name], [self.first + node, *field])

    def leaf_id(self, node: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return self.load("leaf_id", node)


@dataclass(frozen=True)
class LinkedLayout(Layout):
    """Base class of layouts with all nodes of all trees, one tree after the other, linked."""

    copied: ClassVar[Mapping[str, str]] = {"nodes": "offset"}
    access: ClassVar[type[LinkedTree]]

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> LinkedTree:
        """Return access to a tree: loads its first slot and its depth."""
        first = hold("first", tir.BufferLoad(buffers["offset"], [tree]))
        hops = hold("hops", tir.BufferLoad(buffers["depth"], [tree]))
        return self.access(self, buffers, first, hops, tree)


def make_linked_arrays(forest: Forest, nodes: Array) -> dict[str, Array]:
    """Return the arrays that all layouts of linked nodes have: offsets, depths and nodes."""
    offset = forest.tree_offset[:-1].astype(np.int64)
    return {"offset": offset, "depth": forest.depths.astype(np.int32), "nodes": nodes}


def link_in_level_order(forest: Forest) -> tuple[Array, Array]:
    """Number the nodes of each tree level by level, and link them.

    Returns:
        (order, link), int64 (N,) each: order[i] is the node that comes i-th, link[node] its link.
    """
    order, place = order_by_level(forest)
    return order, link_nodes(forest, place)
