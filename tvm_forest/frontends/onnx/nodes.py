"""Reads the nodes and leaf weights that an ONNX tree operator lists.

takes: TreeOp; gives: NodeTable and LeafWeights.

Refused are lists of unequal lengths, children and leaves that do not exist, unknown modes, and sets
of other numbers than categories.
"""

from __future__ import annotations

import numpy as np

from ...forest import LEAF, Array
from ...system.values import dataclass
from ..assemble import Sets
from ..refusals import damaged, refuse_damaged, refuse_unsupported, unsupported
from .operator import TreeOp

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, IS_LEAF = range(8)
_MAX_CATEGORIES = 1 << 24
_MAX_NUMBER = 1 << 31
_EXPORT = "export the model again"


@dataclass(frozen=True)
class NodeTable:
    """The nodes of all trees, leaves included, at positions 0 to M - 1.

    Attributes:
        mode: int8 (M,), index into `MODES`; 7 at leaves.
        feature: int64 (M,), the feature that a node tests.
        threshold: (M,), in the dtype of rows.
        true, false: int64 (M,), positions of the children; LEAF at leaves.
        nan_true: bool (M,), whether NaN takes the true branch.
        number: int64 (M,), number of the node in the model.
        roots: int64 (T,), positions of the roots.
        members: the set of each node of mode MEMBER, by position.
    """

    mode: Array
    feature: Array
    threshold: Array
    true: Array
    false: Array
    nan_true: Array
    number: Array
    roots: Array
    members: Sets


@dataclass(frozen=True)
class LeafWeights:
    """The weights of leaves, as three arrays (V,): position of the leaf, output, weight."""

    leaf: Array
    target: Array
    weight: Array


def read_listed_nodes(op: TreeOp) -> tuple[NodeTable, LeafWeights]:
    """Return the nodes and weights of the operators of opsets 1 to 3.

    They are `TreeEnsembleRegressor` and `TreeEnsembleClassifier`.
    """
    prefix = "target" if op.kind == "TreeEnsembleRegressor" else "class"
    trees, ids = op.integers("nodes_treeids"), op.integers("nodes_nodeids")
    size = len(trees)
    op.integers("nodes_nodeids", size)
    feature, true, false = (
        op.integers(f"nodes_{name}", size) for name in ("featureids", "truenodeids", "falsenodeids")
    )
    threshold = op.numbers("nodes_values", size)
    mode = _read_modes(op, size)
    roots = np.flatnonzero(np.append(True, trees[1:] != trees[:-1])[:size])
    if len(np.unique(trees[roots])) != len(roots):
        raise unsupported("nodes_treeids", "the nodes of a tree lie apart", _EXPORT)
    finder = _NodeFinder(np.sort(trees[roots]), trees, ids)
    inner = np.flatnonzero(mode != IS_LEAF)
    for name, child in (("nodes_truenodeids", true), ("nodes_falsenodeids", false)):
        child[inner] = finder.find(name, trees[inner], child[inner])
        child[mode == IS_LEAF] = LEAF
    leaf = finder.find(
        f"{prefix}_nodeids", op.integers(f"{prefix}_treeids"), op.integers(f"{prefix}_nodeids")
    )
    weight = op.numbers(f"{prefix}_weights", len(leaf))
    target = op.integers(f"{prefix}_ids", len(leaf))
    at_leaf = mode[leaf] == IS_LEAF  # old converters list weights of inner nodes, unused
    if prefix == "class" and not at_leaf.all():  # but onnxruntime looks at their signs
        raise unsupported("class_nodeids", "a weight of an inner node", _EXPORT)
    bare = mode == IS_LEAF
    bare[leaf] = False
    if bare[true[mode == EQ]].any():
        # onnxruntime may join such nodes, as if the leaf had the weight that is listed next
        what = "a leaf below BRANCH_EQ has no weight"
        raise unsupported(f"{prefix}_nodeids", what, "give it a weight of zero")
    nan_true = op.flags("nodes_missing_value_tracks_true", size, optional=True)
    nodes = NodeTable(mode, feature, threshold, true, false, nan_true, ids, roots, {})
    return nodes, LeafWeights(leaf[at_leaf], target[at_leaf], weight[at_leaf])


class _NodeFinder:
    """Finds the positions of nodes by the numbers of tree and node.

    Both make one key: the index of the tree among the known ones, times 2^31, plus the node.
    """

    def __init__(self, known: Array, trees: Array, ids: Array) -> None:
        self.trees = known
        if ids.size and (ids.min() < 0 or ids.max() >= _MAX_NUMBER):
            raise damaged("nodes_nodeids", "a number is not within 0 to 2147483647")
        keys = self._make_keys(trees, ids)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if np.any(self.keys[1:] == self.keys[:-1]):
            raise damaged("nodes_nodeids", "two nodes of a tree have the same number")

    def find(self, name: str, trees: Array, ids: Array) -> Array:
        """Return the positions of nodes among those that the operator lists.

        Args:
            name: the attribute that refers to the nodes, for messages.
            trees, ids: numbers of the tree and of the node in it, for each reference.

        Raises:
            ModelFormatError: the lists differ in length, or a node does not exist.
        """
        if len(trees) != len(ids):
            raise damaged(name, f"{len(ids)} entries for {len(trees)} trees")
        keys = self._make_keys(trees, ids)
        place = np.searchsorted(self.keys, keys)
        wrong = ~np.isin(trees, self.trees) | (ids < 0) | (ids >= _MAX_NUMBER)
        wrong |= np.append(self.keys, -1)[place] != keys
        refuse_damaged(wrong, name, lambda at: f"no node {ids[at]} in tree {trees[at]}")
        return self.order[place]

    def _make_keys(self, trees: Array, ids: Array) -> Array:
        return np.searchsorted(self.trees, trees) << 31 | (ids & (_MAX_NUMBER - 1))


def _read_modes(op: TreeOp, size: int) -> Array:
    texts = op.texts("nodes_modes", size)
    known = {f"BRANCH_{mode}".encode(): code for code, mode in enumerate(MODES[:MEMBER])}
    known[b"LEAF"] = IS_LEAF
    strange = set(texts) - set(known)
    if strange:
        text = min(strange).decode(errors="replace")
        raise unsupported("nodes_modes", f"unknown mode '{text:.40}'", _EXPORT)
    return np.fromiter(map(known.__getitem__, texts), np.int8, size)


def read_split_nodes(op: TreeOp) -> tuple[NodeTable, LeafWeights]:
    """Return the nodes and weights of `TreeEnsemble`, which lists inner nodes and leaves apart.

    The leaves get the positions after the inner nodes.
    """
    mode = op.tensor("nodes_modes", dtype="uint8")
    size, weight = len(mode), op.tensor("leaf_weights")
    n_leaves = len(weight)
    target = op.integers("leaf_targetids", n_leaves)
    threshold = op.tensor("nodes_splits", size)
    feature = op.integers("nodes_featureids", size)
    if np.any(mode > MEMBER):
        raise unsupported("nodes_modes", f"unknown mode {mode.max()}", _EXPORT)
    true, false = (_read_children(op, branch, size, n_leaves) for branch in ("true", "false"))
    roots = op.integers("tree_roots")
    refuse_outside("tree_roots", roots, np.full(len(roots), size))
    # A tree of a single leaf is stored as a node with that leaf on both sides.
    alone = (true[roots] == false[roots]) & (true[roots] >= size)
    none = np.full(n_leaves, LEAF, np.int64)
    nan_true = op.flags("nodes_missing_value_tracks_true", size, optional=True)
    nodes = NodeTable(
        mode=np.append(mode.astype(np.int8), np.full(n_leaves, IS_LEAF, np.int8)),
        feature=np.append(feature, none),
        threshold=np.append(threshold, np.zeros(n_leaves, threshold.dtype)),
        true=np.append(true, none),
        false=np.append(false, none),
        nan_true=np.append(nan_true, none > 0),
        number=np.append(np.arange(size), np.arange(n_leaves)),
        roots=np.where(alone, true[roots], roots),
        members=_read_members(op, np.flatnonzero(mode == MEMBER)),
    )
    return nodes, LeafWeights(size + np.arange(n_leaves), target, weight)


def _read_children(op: TreeOp, branch: str, size: int, n_leaves: int) -> Array:
    child = op.integers(f"nodes_{branch}nodeids", size)
    is_leaf = op.flags(f"nodes_{branch}leafs", size)
    refuse_outside(f"nodes_{branch}nodeids", child, np.where(is_leaf, n_leaves, size))
    return np.where(is_leaf, size + child, child)


def _read_members(op: TreeOp, nodes: Array) -> Sets:
    """Return the set of each of `nodes`; they follow each other in one list, and NaN ends each."""
    values = op.tensor("membership_values")
    ends = np.flatnonzero(np.isnan(values))
    if values.size and (not ends.size or ends[-1] != len(values) - 1):
        ends = np.append(ends, len(values))
    if len(ends) != len(nodes):
        raise damaged("membership_values", f"{len(ends)} sets for {len(nodes)} nodes")
    wrong = ~(np.isnan(values) | is_category(values))
    remedy = f"only whole numbers from 0 to {_MAX_CATEGORIES - 1} can be compiled"
    describe = lambda at: f"a set holds {values[at]}"  # noqa: E731
    refuse_unsupported(wrong, "membership_values", describe, remedy)
    begins = np.append(0, ends + 1)[: len(ends)]
    return {
        int(node): tuple(sorted({int(value) for value in values[begin:end]}))
        for node, begin, end in zip(nodes, begins, ends, strict=True)
    }


def is_category(values: Array) -> Array:
    """Return for each value whether a set may contain it: a whole number from 0 to 2^24 - 1."""
    with np.errstate(invalid="ignore"):
        whole = values == np.trunc(values)
    return np.less_equal(0, values) & (values < _MAX_CATEGORIES) & whole


def refuse_outside(name: str, values: Array, sizes: Array) -> None:
    """Refuse the array `name` if a value is below 0, or not below its own entry in `sizes`."""
    wrong = (values < 0) | (values >= sizes)
    refuse_damaged(wrong, name, lambda at: f"{values[at]} is not within 0 to {sizes[at] - 1}")
