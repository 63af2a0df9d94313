"""What layouts of single nodes share: fields of a node, and trees of linked nodes.

takes: Forest; gives: codes of features, links to children, and what decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import tirx

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest.rewrites.ordering import level_order
from .representation import Buffers, BufferSpec, Columns, Expr, Hold, NodeTest, TreeAccess

DEFAULT_LEFT = 1 << 30
"""Flag in a feature field: a missing value goes to the left."""

INTEGER_OF = {"float32": "int32", "float64": "int64"}


def any_default_left(forest: Forest) -> bool:
    """Return whether some node sends a missing value to the left."""
    return bool(np.any(forest.default_left & ~forest.is_leaf))


def links_in_level_order(forest: Forest) -> tuple[Array, Array]:
    """Number the nodes of each tree level by level, and link them.

    Returns:
        (order, link), int64 (N,) each: order[i] is the node that comes i-th; link[node].
    """
    order, place = level_order(forest)
    return order, link_nodes(forest, place)


def link_nodes(forest: Forest, place: Array) -> Array:
    """Link nodes whose right child comes next to the left one.

    The link of a node is 2 * child + is inner, where child is the number within the tree of the
    left child; a leaf is its own child.

    Args:
        place: number of each node, int64 (N,); that of its tree's root is `tree_offset`.
    """
    base = forest.tree_offset[forest.node_tree]
    left = np.where(forest.is_leaf, np.arange(forest.n_nodes), base + forest.left)
    return 2 * (place[left] - base) + ~forest.is_leaf


def check_children(layout: str, forest: Forest, child: Array, bits: int, rest: str) -> None:
    """Refuse a child number that does not fit its field; `rest` ends the message.

    Raises:
        BuildError: names the first such node.
    """
    wrong = child >> max(0, bits) > 0
    if wrong.any():
        node = int(np.argmax(wrong))
        tree = int(forest.node_tree[node])
        raise BuildError(
            f"represent_as: layout '{layout}': tree {tree}, node {node - forest.tree_offset[tree]}:"
            f" child {child[node]} does not fit the {max(0, bits)} bits that {rest}"
        )


def follow(link: Expr, goes_left: Expr) -> Expr:
    """Return the next node, int64. The sum carries at an inner node and is lost in a leaf."""
    goes_right = tirx.Not(goes_left).astype("int64")
    return tirx.shift_right(link + goes_right, tirx.IntImm("int64", 1))


def place_columns(offset: Array, elements: int) -> Columns:
    """Show where each element stands, given the first one of each tree."""
    tree = np.repeat(np.arange(len(offset)), np.diff(offset, append=elements))
    return {"tree": tree, "slot": np.arange(elements) - offset[tree]}


def node_columns(number: Array, code: Array, inner: Array, leaf: Array) -> Columns:
    """Show nodes: numbers, feature fields, and which slots are inner nodes or leaves, (E,) each."""
    left = np.where(code & DEFAULT_LEFT, "left", "right")
    return {
        "threshold": np.ma.array(number, mask=~inner),
        "value": np.ma.array(number, mask=~leaf),
        "feature": np.ma.array(code & (DEFAULT_LEFT - 1), mask=~inner),
        "missing": np.ma.array(left, mask=~inner),
    }


def decode_test(threshold: Expr, code: Expr, any_left: bool, hold: Hold) -> NodeTest:
    """Take a feature field apart that holds the feature and DEFAULT_LEFT."""
    if not any_left:
        return NodeTest(threshold, code.astype("int64"), None)
    code = hold("code", code)
    flag = tirx.const(DEFAULT_LEFT, code.ty.dtype)
    return NodeTest(threshold, (code & (flag - 1)).astype("int64"), code >= flag)


def linked_buffers(trees: int, dtype: str, *shape: int) -> tuple[BufferSpec, ...]:
    """Return what all layouts of linked nodes have: offsets, depths and nodes of a shape."""
    return (
        BufferSpec("offset", "int64", (trees,)),
        BufferSpec("depth", "int32", (trees,)),
        BufferSpec("nodes", dtype, shape),
    )


@dataclass(frozen=True)
class LinkedTree(TreeAccess):
    """A tree of linked nodes; a walk counts slots from its first one.

    Attributes:
        rep: the layout.
        buffers: those of `linked_buffers`, and what the layout adds.
        first: slot of the root among all trees.
        hops: depth of the tree.
        tree: its number.
    """

    rep: Any
    buffers: Buffers
    first: Expr
    hops: Expr
    tree: Expr
    root: Expr = tirx.IntImm("int64", 0)
    stays: ClassVar[bool] = True

    @classmethod
    def opened(cls, rep: Any, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Load where the tree begins and how deep it is."""
        first = hold("first", tirx.BufferLoad(buffers["offset"], [tree]))
        hops = hold("hops", tirx.BufferLoad(buffers["depth"], [tree]))
        return cls(rep, buffers, first, hops, tree)

    def load(self, name: str, node: Expr, *field: int) -> Expr:
        """Load an element of a buffer that is numbered by nodes."""
        return tirx.BufferLoad(self.buffers[name], [self.first + node, *field])

    def leaf_id(self, node: Expr) -> Expr:
        """Numbers of the source."""
        return self.load("leaf_id", node)
