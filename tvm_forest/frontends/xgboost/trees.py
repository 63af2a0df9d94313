"""The trees in the document of an XGBoost model.

takes: the list of trees; gives: node arrays of a Forest.

A tree is an object of arrays over its nodes. There may be 26,000 trees, so the arrays of all trees
are joined by their names, and checked together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np

from ...forest import LEAF, Array
from ..document import Node
from ..refusals import damaged, unsupported
from ..treelite.nodes import forest_nodes

UNUSED = frozenset({"base_weights", "leaf_child_counts", "loss_changes", "parents", "sum_hessian"})
_KNOWN = UNUSED | set(
    "categories categories_nodes categories_segments categories_sizes default_left id leaf_weights "
    "left_children right_children split_conditions split_indices split_type tree_param".split()
)
_MOST_CATEGORIES = 1 << 24

Kind = Literal["integers", "booleans", "floats"]
_TYPES: dict[Kind, set[type]] = {"integers": {int}, "booleans": {int, bool}, "floats": {float}}


@dataclass(frozen=True)
class Trees:
    """Trees of a document.

    Attributes:
        where: place that error messages name.
        trees: (T,), arrays by name.
        sizes: int64 (T,), number of nodes of each tree.
        width: how many values a leaf holds.
    """

    where: str
    trees: list[dict[str, Any]]
    sizes: Array
    width: int

    @classmethod
    def read(cls, trees: Node, n_trees: int, n_outputs: int) -> Trees:
        """Check what trees say of themselves."""
        if not isinstance(trees.value, list) or len(trees.value) != n_trees:
            raise trees.wrong(f"a list of {n_trees} trees, as in 'tree_info'")
        params = [_param(trees.where, number, tree) for number, tree in enumerate(trees.value)]
        sizes = [param.child("num_nodes").integer(1) for param in params]
        widths = {max(param.get("size_leaf_vector", 1).integer(), 1) for param in params}
        if not widths <= {1} and widths != {n_outputs}:
            what = f"leaves of {sorted(widths)} values for {n_outputs} outputs"
            raise damaged(trees.where, "size_leaf_vector", what)
        return cls(trees.where, trees.value, np.array(sizes, np.int64), max(widths, default=1))

    def first(self, n_trees: int) -> Trees:
        """Return the first trees."""
        return replace(self, trees=self.trees[:n_trees], sizes=self.sizes[:n_trees])

    @cached_property
    def _tree(self) -> Array:
        """Int64 (N,), the tree of each node."""
        return np.repeat(np.arange(len(self.trees)), self.sizes)

    @cached_property
    def _start(self) -> Array:
        """Int64 (T,), where the nodes of each tree begin."""
        return np.cumsum(self.sizes) - self.sizes

    def node_arrays(self) -> dict[str, Any]:
        """Return what `Forest` takes."""
        left, right, feature, default, split = (
            self._of_nodes("left_children"),
            self._of_nodes("right_children"),
            self._of_nodes("split_indices"),
            self._of_nodes("default_left", "booleans"),
            self._of_nodes("split_conditions", "floats"),
        )
        is_leaf = left == LEAF
        # A walk of XGBoost takes the node behind the left child for the right one.
        apart = ~is_leaf & (right != left + 1)
        self._refuse("right_children", apart, "a right child that does not follow the left one")
        begin, end, codes = self._sets()
        nodes = {
            "feature": feature,
            "threshold": np.where(is_leaf | (begin >= 0), np.float32(0), split),
            "left": left,
            "right": right,
            "default_left": default.astype(bool),
            "leaf_value": self._vectors(is_leaf, right) if self.width > 1 else split[:, None],
        }
        return forest_nodes(self.sizes, nodes, (np.where(is_leaf, -1, begin), end, codes))

    def _of_nodes(self, name: str, kind: Kind = "integers") -> Array:
        """Join arrays over nodes as int32 or float32."""
        values, sizes = self._joined(name, kind)
        self._same(name, sizes, self.sizes, "nodes")
        if kind == "floats":
            return values
        whole = {"integers": values.astype(np.int32), "booleans": values == 1}[kind]
        self._refuse(name, values != whole, f"a number that is none of its {kind}")
        return whole

    def _vectors(self, is_leaf: Array, place: Array) -> Array:
        """Leaf values (N, W); a leaf has its place among the vectors for a right child."""
        old = next((n for n, tree in enumerate(self.trees) if "leaf_weights" not in tree), None)
        if old is not None:
            what = f"tree {old} keeps its vectors as XGBoost before 3.2 did"
            raise unsupported(self.where, "leaf_weights", what, "train again with XGBoost 3.2")
        values, sizes = self._joined("leaf_weights", "floats")
        leaves = np.bincount(self._tree[is_leaf], minlength=len(self.trees))
        self._same("leaf_weights", sizes, leaves * self.width, f"leaves of {self.width} values")
        wrong = is_leaf & ((place < 0) | (place >= leaves[self._tree]))
        self._refuse("right_children", wrong, "no vector")
        found = np.zeros((len(is_leaf), self.width), np.float32)
        first = (np.cumsum(leaves) - leaves)[self._tree]
        found[is_leaf] = values.reshape(-1, self.width)[(first + place)[is_leaf]]
        return found

    def _sets(self) -> tuple[Array, Array, Array]:
        """Return where the categories of a node begin, -1 for none, and end, and all of them."""
        begin, end = np.full((2, len(self._tree)), -1, np.int64)
        if not any("split_type" in tree for tree in self.trees):  # before XGBoost 1.3
            return begin, end, begin
        is_set = self._of_nodes("split_type", "booleans")
        node, sizes = self._joined("categories_nodes")
        first, count = self._joined("categories_segments"), self._joined("categories_sizes")
        self._same("categories_segments", first[1], sizes, "categorical nodes")
        self._same("categories_sizes", count[1], sizes, "categorical nodes")
        codes, room = self._joined("categories")
        tree, owner = (np.repeat(np.arange(len(self.trees)), n) for n in (sizes, room))
        wrong = (codes < 0) | (codes >= _MOST_CATEGORIES)
        what = f"a category that is not within 0 and {_MOST_CATEGORIES - 1}"
        self._refuse("categories", wrong, what, owner)
        wrong = (first[0] < 0) | (count[0] < 1) | (first[0] > room[tree] - count[0])
        self._refuse("categories_segments", wrong, "a segment beyond its categories", tree)
        wrong = (node < 0) | (node >= self.sizes[tree])
        node = np.where(wrong, 0, node + self._start[tree])
        wrong |= np.diff(node, prepend=-1) <= 0
        self._refuse("categories_nodes", wrong, "categorical nodes that are not in order", tree)
        begin[node] = (np.cumsum(room) - room)[tree] + first[0]
        end[node] = begin[node] + count[0]
        self._refuse("split_type", is_set != (begin >= 0), "a set of categories that it cannot use")
        return begin, end, codes

    def _joined(self, name: str, kind: Kind = "integers") -> tuple[Array, Array]:
        """Join arrays of a name as int64 or float32, and return their sizes, too."""
        parts: list[Any] = [tree.get(name) for tree in self.trees]
        values = _join(parts, kind)
        if values is None:
            wrong = next(tree for tree, part in enumerate(parts) if _join([part], kind) is None)
            raise Node(parts[wrong], self.where, name).wrong(f"a list of {kind} in tree {wrong}")
        return values, np.array([len(part) for part in parts], np.int64)

    def _same(self, name: str, found: Array, expected: Array, of: str) -> None:
        """Name the first tree whose array is too long or too short."""
        if np.any(found != expected):
            tree = int(np.argmax(found != expected))
            what = f"tree {tree} has {found[tree]} entries for {expected[tree]} {of}"
            raise damaged(self.where, name, what)

    def _refuse(self, name: str, wrong: Array, what: str, tree: Array | None = None) -> None:
        """Name the tree of the first entry that is wrong, and the node if it is one of nodes."""
        if wrong.any():
            at = int(np.argmax(wrong))
            place = f"tree {(self._tree if tree is None else tree)[at]}"
            if tree is None:
                place += f", node {at - self._start[self._tree[at]]}"
            raise damaged(self.where, name, f"{place} has {what}")


def _param(where: str, number: int, tree: Any) -> Node:
    """Check what belongs to no node, and return the parameters of a tree."""
    if not isinstance(tree, dict) or not isinstance(tree.get("tree_param"), dict):
        raise damaged(where, "trees", f"tree {number} has no 'tree_param'")
    if repr(tree.get("id", number)) != str(number):  # XGBoost checks it, too
        raise damaged(where, "id", f"tree {number} has the number {tree['id']!r:.40}")
    if not tree.keys() <= _KNOWN:
        Node(tree, where, f"tree {number}").knows(*_KNOWN)
    return Node(tree["tree_param"], where, f"tree_param of tree {number}")


def _join(parts: list[Any], kind: Kind) -> Array | None:
    """Join lists of numbers, or arrays; None if one has other elements."""
    dtype = np.float64 if kind == "floats" else np.int64
    if all(isinstance(part, np.ndarray) for part in parts):
        if not {part.dtype.kind for part in parts} <= set("f" if kind == "floats" else "iu"):
            return None
        values = np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
    else:
        lists = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
        if not all(isinstance(part, list) for part in lists):
            return None
        elements = list(chain.from_iterable(lists))
        if not set(map(type, elements)) <= _TYPES[kind]:
            return None
        try:
            values = np.array(elements, dtype)
        except OverflowError:
            return None
    with np.errstate(over="ignore"):
        return values.astype(np.float32) if kind == "floats" else values
