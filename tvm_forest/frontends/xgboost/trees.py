"""Reads the trees in the document of an XGBoost model.

takes: the list of trees; gives: arrays over the nodes of all trees, and sets of categories.

A tree is an object of arrays over its nodes. There may be 26,000 trees, so the arrays of all trees
are joined by name, and checked together. Refused are arrays of wrong lengths, numbers of a wrong
type, and children, vectors and sets that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal

import numpy as np

from ...forest import LEAF, Array
from ...system.process.locks import cached_property
from ...system.values import dataclass, replace
from ..assemble import Nodes
from ..refusals import damaged, unsupported
from .document import Field

BOOSTERS = ("gbtree", "dart")
"""The boosters that consist of trees."""

NumberKind = Literal["integers", "booleans", "floats"]
KINDS: dict[str, NumberKind] = {
    **dict.fromkeys(("categories", "categories_nodes", "categories_segments"), "integers"),
    **dict.fromkeys(("categories_sizes", "left_children", "right_children"), "integers"),
    "split_indices": "integers",
    **dict.fromkeys(("default_left", "split_type"), "booleans"),
    **dict.fromkeys(("leaf_weights", "split_conditions", "sum_hessian"), "floats"),
}
"""The arrays of a tree that are read, by name, with the type of their numbers."""
UNUSED = frozenset({"base_weights", "leaf_child_counts", "loss_changes", "parents"})
_KNOWN = UNUSED | KINDS.keys() | {"id", "tree_param"}
_MAX_CATEGORIES = 1 << 24

_TYPES: dict[str, set[type]] = {"integers": {int}, "booleans": {int, bool}, "floats": {float}}


class JoinedTrees(list[dict[str, Any]]):
    """The trees of a document whose reader has joined the arrays of all trees.

    Attributes:
        joined: by name, the numbers of all trees, and how many each tree has, int64 (T,). The trees
            themselves do not have these arrays.
    """

    def __init__(self, trees: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(trees)
        self.joined: dict[str, tuple[Array, Array]] = {}


def put_trees(document: Any, trees: JoinedTrees) -> None:
    """Put trees into a document that was read without them.

    Raises:
        LookupError, TypeError, ValueError: the document has no place for them.
    """
    booster = document["learner"]["gradient_booster"]
    model = (booster["gbtree"] if booster["name"] == "dart" else booster)["model"]
    if model["trees"] != []:
        raise ValueError("trees")
    model["trees"] = trees


@dataclass(frozen=True)
class DocumentTrees:
    """The trees of a document.

    Attributes:
        trees: for each tree, its arrays by name.
        joined: arrays that are not in `trees`, see `JoinedTrees`; after `take_first` they are still
            those of all trees.
        sizes: int64 (T,), number of nodes of each tree.
        width: number of values in a leaf.
    """

    trees: list[dict[str, Any]]
    joined: dict[str, tuple[Array, Array]]
    sizes: Array
    width: int

    @classmethod
    def read(cls, trees: Field, n_trees: int, n_outputs: int) -> DocumentTrees:
        """Return the document's list of trees as DocumentTrees, after a check of their counts.

        Raises:
            ModelFormatError: there are not `n_trees` trees, or leaves have neither one value nor
                `n_outputs` values.
        """
        if not isinstance(trees.value, list) or len(trees.value) != n_trees:
            raise trees.error(f"a list of {n_trees} trees, as in 'tree_info'")
        sizes, widths = _read_plain_params(trees.value) or _read_params(trees.value)
        if not widths <= {1} and widths != {n_outputs}:
            what = f"leaves of {sorted(widths)} values for {n_outputs} outputs"
            raise damaged("size_leaf_vector", what)
        joined = getattr(trees.value, "joined", {})
        return cls(trees.value, joined, np.array(sizes, np.int64), max(widths, default=1))

    def take_first(self, n_trees: int) -> DocumentTrees:
        """Return DocumentTrees of the first `n_trees` trees."""
        return replace(self, trees=self.trees[:n_trees], sizes=self.sizes[:n_trees])

    @cached_property
    def _tree(self) -> Array:
        """Int64 (N,), the tree of each node."""
        return np.repeat(np.arange(len(self.trees)), self.sizes)

    @cached_property
    def _start(self) -> Array:
        """Int64 (T,), where the nodes of each tree begin."""
        return np.cumsum(self.sizes) - self.sizes

    def read_nodes(self) -> tuple[Nodes, Array]:
        """Return arrays over all nodes for `assemble`, and the categories of all sets."""
        names = ("left_children", "right_children", "split_indices")
        left, right, feature = map(self._join_nodes, names)
        default = self._join_nodes("default_left", "booleans")
        split = self._join_nodes("split_conditions", "floats")
        is_leaf = left == LEAF
        # XGBoost's walks take the node after the left child for the right child.
        apart = ~is_leaf & (right != left + 1)
        self._refuse("right_children", apart, "a right child that does not follow the left one")
        begin, end, codes = self._read_sets()
        nodes = {
            "feature": feature,
            "threshold": split,
            "left": left,
            "right": right,
            "default_left": default,
            "leaf_value": self._read_vectors(is_leaf, right) if self.width > 1 else split[:, None],
            "begin": np.where(is_leaf, -1, begin),
            "end": end,
        }
        if all(self._have("sum_hessian")):
            nodes["cover"] = self._join_nodes("sum_hessian", "floats").astype(np.float64)
        return nodes, codes

    def _join_nodes(self, name: str, kind: NumberKind = "integers") -> Array:
        """Return the array `name` over the nodes of all trees, (N,): int32, bool or float32."""
        values, sizes = self._join(name, kind)
        self._compare_sizes(name, sizes, self.sizes, "nodes")
        if kind == "floats":
            return values
        whole = values == 1 if kind == "booleans" else values.astype(np.int32)
        self._refuse(name, values != whole, f"a number that is none of its {kind}")
        return whole

    def _read_vectors(self, is_leaf: Array, place: Array) -> Array:
        """Return leaf values (N, W); `place` is the index of a leaf's vector in the tree's list."""
        old = next((n for n, has in enumerate(self._have("leaf_weights")) if not has), None)
        if old is not None:
            what = f"tree {old} keeps its vectors as XGBoost before 3.2 did"
            raise unsupported("leaf_weights", what, "train again with XGBoost 3.2")
        values, sizes = self._join("leaf_weights", "floats")
        leaves = np.bincount(self._tree[is_leaf], minlength=len(self.trees))
        parts = f"leaves of {self.width} values"
        self._compare_sizes("leaf_weights", sizes, leaves * self.width, parts)
        wrong = is_leaf & ((place < 0) | (place >= leaves[self._tree]))
        self._refuse("right_children", wrong, "no vector")
        vectors = np.zeros((len(is_leaf), self.width), np.float32)
        first = (np.cumsum(leaves) - leaves)[self._tree]
        vectors[is_leaf] = values.reshape(-1, self.width)[(first + place)[is_leaf]]
        return vectors

    def _read_sets(self) -> tuple[Array, Array, Array]:
        """Return each node's range in the list of all categories, (-1, -1) for none, and the list.

        Returns:
            begins, int64 (N,); ends, int64 (N,); the categories of all nodes.
        """
        begin, end = np.full((2, len(self._tree)), -1, np.int64)
        if not any(self._have("split_type")):  # before XGBoost 1.3
            return begin, end, begin
        is_set = self._join_nodes("split_type", "booleans")
        node, sizes = self._join("categories_nodes")
        (first, firsts), (count, counts) = (
            self._join(name) for name in ("categories_segments", "categories_sizes")
        )
        self._compare_sizes("categories_segments", firsts, sizes, "categorical nodes")
        self._compare_sizes("categories_sizes", counts, sizes, "categorical nodes")
        codes, room = self._join("categories")
        tree, owner = (np.repeat(np.arange(len(self.trees)), n) for n in (sizes, room))
        wrong = (codes < 0) | (codes >= _MAX_CATEGORIES)
        what = f"a category that is not within 0 and {_MAX_CATEGORIES - 1}"
        self._refuse("categories", wrong, what, owner)
        wrong = (first < 0) | (count < 1) | (first > room[tree] - count)
        self._refuse("categories_segments", wrong, "a segment beyond its categories", tree)
        wrong = (node < 0) | (node >= self.sizes[tree])
        node = np.where(wrong, 0, node + self._start[tree])
        wrong |= np.diff(node, prepend=-1) <= 0
        self._refuse("categories_nodes", wrong, "categorical nodes that are not in order", tree)
        begin[node] = (np.cumsum(room) - room)[tree] + first
        end[node] = begin[node] + count
        self._refuse("split_type", is_set != (begin >= 0), "a set of categories that it cannot use")
        return begin, end, codes

    def _have(self, name: str) -> list[bool]:
        """Return for each tree whether it has the array `name`."""
        return [name in self.joined or name in tree for tree in self.trees]

    def _join(self, name: str, kind: NumberKind = "integers") -> tuple[Array, Array]:
        """Return the array `name` of all trees, joined, int64 or float32; and its lengths, (T,)."""
        if name in self.joined:
            numbers, sizes = self.joined[name]
            sizes = sizes[: len(self.trees)]
            return _to_wide(numbers[: sizes.sum()], kind), sizes
        parts: list[Any] = [tree.get(name) for tree in self.trees]
        values = _join_lists(parts, kind)
        if values is None:
            wrong = next(at for at, part in enumerate(parts) if _join_lists([part], kind) is None)
            raise Field(parts[wrong], name).error(f"a list of {kind} in tree {wrong}")
        return values, np.array([len(part) for part in parts], np.int64)

    def _compare_sizes(self, name: str, sizes: Array, expected: Array, parts: str) -> None:
        """Refuse the first tree whose array is too long or too short.

        Args:
            name: the array's name, for the message.
            sizes, expected: (T,), the length that each tree's array has, and that it must have.
            parts: what an entry stands for, in the plural, for the message.

        Raises:
            ModelFormatError: a length differs.
        """
        if np.any(sizes != expected):
            tree = int(np.argmax(sizes != expected))
            what = f"tree {tree} has {sizes[tree]} entries for {expected[tree]} {parts}"
            raise damaged(name, what)

    def _refuse(self, name: str, wrong: Array, what: str, tree: Array | None = None) -> None:
        """Refuse an array if an entry is wrong.

        Args:
            name: of the array.
            wrong: bool, which entries are wrong.
            what: the fault of an entry, for the message.
            tree: the tree of each entry; None for an array over nodes.
        """
        if wrong.any():
            at = int(np.argmax(wrong))
            place = f"tree {(self._tree if tree is None else tree)[at]}"
            if tree is None:
                place += f", node {at - self._start[self._tree[at]]}"
            raise damaged(name, f"{place} has {what}")


def _read_params(trees: list[Any]) -> tuple[list[int], set[int]]:
    """Return the number of nodes of each tree, and the set of all sizes of leaf vectors."""
    params = [_read_param(number, tree) for number, tree in enumerate(trees)]
    sizes = [param.member("num_nodes").as_integer(1) for param in params]
    return sizes, {max(param.member("size_leaf_vector", 1).as_integer(), 1) for param in params}


def _read_plain_params(trees: list[Any]) -> tuple[list[int], set[int]] | None:
    """Like `_read_params`, but ten times as fast; return None if anything is unusual."""
    try:
        ids = [tree.get("id", number) for number, tree in enumerate(trees)]
        params = [tree["tree_param"] for tree in trees]
        words = [param["num_nodes"] for param in params]
        width_words = [param.get("size_leaf_vector", 1) for param in params]
        sizes, widths = list(map(int, words)), set(map(int, width_words))
        known = set(map(type, ids)) == {int} and ids == list(range(len(trees)))
        known = known and set[str]().union(*trees) <= _KNOWN
        known = known and set(map(type, words + width_words)) <= {int, str}
        in_range = min(sizes) >= 1 and min(widths) >= 0 and max(sizes + [*widths]) < 2**31
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return (sizes, {max(width, 1) for width in widths}) if known and in_range else None


def _read_param(number: int, tree: Any) -> Field:
    """Return the parameters of a tree, after a check of its number and of its members' names."""
    if not isinstance(tree, dict) or not isinstance(tree.get("tree_param"), dict):
        raise damaged("trees", f"tree {number} has no 'tree_param'")
    if repr(tree.get("id", number)) != str(number):  # XGBoost checks it, too
        raise damaged("id", f"tree {number} has the number {tree['id']!r:.40}")
    if not tree.keys() <= _KNOWN:
        Field(tree, f"tree {number}").refuse_others(*_KNOWN)
    return Field(tree["tree_param"], f"tree_param of tree {number}")


def _join_lists(parts: list[Any], kind: NumberKind) -> Array | None:
    """Join lists or arrays of numbers; return None if an element has another type."""
    dtype = np.float64 if kind == "floats" else np.int64
    held = set(map(type, parts))
    if held <= {np.ndarray}:
        if not {part.dtype.kind for part in parts} <= set("f" if kind == "floats" else "iu"):
            return None
        values = np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
    else:
        if not held <= {np.ndarray, list}:
            return None
        lists = parts if held == {list} else [np.asarray(part).tolist() for part in parts]
        elements = list(chain.from_iterable(lists))
        if not set(map(type, elements)) <= _TYPES[kind]:
            return None
        try:
            values = np.array(elements, dtype)
        except OverflowError:
            return None
    return _to_wide(values, kind)


def _to_wide(values: Array, kind: NumberKind) -> Array:
    """Return numbers as float32 if `kind` is "floats", else as int64."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32 if kind == "floats" else np.int64, copy=False)
