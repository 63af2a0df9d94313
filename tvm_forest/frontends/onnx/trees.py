"""Node arrays of a forest, from the nodes that an ONNX tree operator lists.

takes: TreeOp; gives: the node arrays of a Forest, by name.

ONNX has seven kinds of nodes, a Forest has one comparison and sets of categories. Rows have the
dtype of the thresholds, which makes every step of the way exact (see `comparisons`): `x == 3` is
the set {3}, and `x == 0.5` is `x <= 0.5` above `x < 0.5`, for which the tree below `x != 0.5` is
there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...forest import LEAF, Array, Comparison
from ..comparisons import one_comparison
from ..refusals import damaged, unsupported
from .graph import TreeOp

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _IS_LEAF = range(8)
_WHOLE = 1 << 24
_GROWTH = 4
_EXPORT = "export the model again"


@dataclass(frozen=True)
class Nodes:
    """The nodes of all trees, leaves included, at positions 0 to M - 1.

    Attributes:
        mode: int8 (M,), index into `MODES`; 7 at leaves.
        feature: int64 (M,).
        threshold: (M,), in the dtype of rows.
        true, false: int64 (M,), positions of the children; LEAF at leaves.
        nan_true: bool (M,), whether NaN takes the true branch.
        number: int64 (M,), number of the node in the model.
        roots: int64 (T,), positions.
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
    members: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Votes:
    """What leaves add to targets: position of the leaf, target, weight; all (V,)."""

    leaf: Array
    target: Array
    weight: Array


# -- opsets 1 to 3 --------------------------------------------------------------------------------


def listed_nodes(op: TreeOp, prefix: str) -> tuple[Nodes, Votes]:
    """Read `TreeEnsembleRegressor` (prefix "target") or `TreeEnsembleClassifier` ("class")."""
    trees, ids = op.integers("nodes_treeids"), op.integers("nodes_nodeids")
    size = len(trees)
    columns = {
        name: _column(op, f"nodes_{name}", op.integers(f"nodes_{name}"), size)
        for name in ("nodeids", "featureids", "truenodeids", "falsenodeids")
    }
    threshold = _column(op, "nodes_values", op.numbers("nodes_values"), size)
    mode = _modes(op, size)
    begins = np.flatnonzero(np.concatenate([trees[:1] == trees[:1], trees[1:] != trees[:-1]]))
    if len(np.unique(trees[begins])) != len(begins):
        raise unsupported(op.where, "nodes_treeids", "the nodes of a tree lie apart", _EXPORT)
    find = _Finder(op, np.sort(trees[begins]), trees, ids)
    inner = np.flatnonzero(mode != _IS_LEAF)
    children = {}
    for name in ("truenodeids", "falsenodeids"):
        children[name] = np.full(size, LEAF, np.int64)
        asked = columns[name][inner]
        children[name][inner] = find.positions(f"nodes_{name}", trees[inner], asked)
    leaf = find.positions(
        f"{prefix}_nodeids",
        op.integers(f"{prefix}_treeids"),
        op.integers(f"{prefix}_nodeids"),
    )
    weight = _column(op, f"{prefix}_weights", op.numbers(f"{prefix}_weights"), len(leaf))
    target = _column(op, f"{prefix}_ids", op.integers(f"{prefix}_ids"), len(leaf))
    at_leaf = mode[leaf] == _IS_LEAF  # old converters list weights of inner nodes, unused
    if prefix == "class" and not at_leaf.all():  # but onnxruntime looks at their signs
        raise unsupported(op.where, "class_nodeids", "a weight of an inner node", _EXPORT)
    bare = mode == _IS_LEAF
    bare[leaf] = False
    if bare[children["truenodeids"][mode == _EQ]].any():
        # onnxruntime may join such nodes, as if the leaf had the weight that is listed next
        what = "a leaf below BRANCH_EQ has no weight"
        raise unsupported(op.where, f"{prefix}_nodeids", what, "give it a weight of zero")
    nodes = Nodes(
        mode=mode,
        feature=columns["featureids"],
        threshold=threshold,
        true=children["truenodeids"],
        false=children["falsenodeids"],
        nan_true=_flags(op, size),
        number=ids,
        roots=begins,
        members={},
    )
    return nodes, Votes(leaf[at_leaf], target[at_leaf], weight[at_leaf])


class _Finder:
    """Finds nodes by the number of their tree and their own."""

    def __init__(self, op: TreeOp, known: Array, trees: Array, ids: Array) -> None:
        self.op, self.trees = op, known
        if ids.size and (ids.min() < 0 or ids.max() >= 1 << 31):
            raise damaged(op.where, "nodes_nodeids", "a number is not within 0 to 2147483647")
        keys = self._keys(trees, ids)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if np.any(self.keys[1:] == self.keys[:-1]):
            raise damaged(op.where, "nodes_nodeids", "two nodes of a tree have the same number")

    def positions(self, name: str, trees: Array, ids: Array) -> Array:
        if len(trees) != len(ids):
            raise damaged(self.op.where, name, f"{len(ids)} entries for {len(trees)} trees")
        keys = self._keys(trees, ids)
        place = np.minimum(np.searchsorted(self.keys, keys), max(0, len(self.keys) - 1))
        known = np.isin(trees, self.trees) & (ids >= 0) & (ids < 1 << 31)
        wrong = ~known if not self.keys.size else ~known | (self.keys[place] != keys)
        if wrong.any():
            first = int(np.argmax(wrong))
            what = f"no node {ids[first]} in tree {trees[first]}"
            raise damaged(self.op.where, name, what)
        return self.order[place] if ids.size else np.zeros(0, np.int64)

    def _keys(self, trees: Array, ids: Array) -> Array:
        return np.searchsorted(self.trees, trees) << 31 | (ids & 0x7FFFFFFF)


def _modes(op: TreeOp, size: int) -> Array:
    texts = _column(op, "nodes_modes", op.texts("nodes_modes"), size)
    known = {f"BRANCH_{mode}".encode(): code for code, mode in enumerate(MODES[:_MEMBER])}
    known[b"LEAF"] = _IS_LEAF
    strange = set(texts) - set(known)
    if strange:
        text = min(strange).decode(errors="replace")
        raise unsupported(op.where, "nodes_modes", f"unknown mode '{text:.40}'", _EXPORT)
    return np.fromiter(map(known.__getitem__, texts), np.int8, size)


# -- opset 5 --------------------------------------------------------------------------------------


def split_nodes(op: TreeOp) -> tuple[Nodes, Votes]:
    """Read `TreeEnsemble`, which lists inner nodes and leaves apart; leaves come last here."""
    mode = op.tensor("nodes_modes", "uint8")
    size, weight = len(mode), op.tensor("leaf_weights")
    target = _column(op, "leaf_targetids", op.integers("leaf_targetids"), len(weight))
    threshold = _column(op, "nodes_splits", op.tensor("nodes_splits"), size)
    feature = _column(op, "nodes_featureids", op.integers("nodes_featureids"), size)
    if np.any(mode > _MEMBER):
        raise unsupported(op.where, "nodes_modes", f"unknown mode {mode.max()}", _EXPORT)
    children = {}
    for branch in ("true", "false"):
        child = _column(op, f"nodes_{branch}nodeids", op.integers(f"nodes_{branch}nodeids"), size)
        is_leaf = _binary(op, f"nodes_{branch}leafs", op.integers(f"nodes_{branch}leafs"), size)
        _within(op, f"nodes_{branch}nodeids", child, np.where(is_leaf, len(weight), size))
        children[branch] = np.where(is_leaf, size + child, child)
    roots = op.integers("tree_roots")
    _within(op, "tree_roots", roots, np.full(len(roots), size))
    # A node with one leaf on both sides is how a tree says that it is a leaf.
    both = children["true"][roots]
    alone = (both == children["false"][roots]) & (both >= size)
    none = np.full(len(weight), LEAF, np.int64)
    zero = np.zeros(len(weight), threshold.dtype)
    nodes = Nodes(
        mode=np.concatenate([mode.astype(np.int8), np.full(len(weight), _IS_LEAF, np.int8)]),
        feature=np.concatenate([feature, none]),
        threshold=np.concatenate([threshold, zero]),
        true=np.concatenate([children["true"], none]),
        false=np.concatenate([children["false"], none]),
        nan_true=np.concatenate([_flags(op, size), none > 0]),
        number=np.concatenate([np.arange(size), np.arange(len(weight))]),
        roots=np.where(alone, both, roots),
        members=_members(op, np.flatnonzero(mode == _MEMBER)),
    )
    return nodes, Votes(size + np.arange(len(weight)), target, weight)


def _members(op: TreeOp, nodes: Array) -> dict[int, tuple[int, ...]]:
    """Sets of whole numbers, in the order of the nodes; NaN ends each."""
    values = op.tensor("membership_values")
    ends = np.flatnonzero(np.isnan(values))
    if values.size and (not ends.size or ends[-1] != len(values) - 1):
        ends = np.append(ends, len(values))
    if len(ends) != len(nodes):
        what = f"{len(ends)} sets for {len(nodes)} nodes"
        raise damaged(op.where, "membership_values", what)
    wrong = ~(np.isnan(values) | _is_category(values))
    if wrong.any():
        what = f"a set holds {values[np.argmax(wrong)]}"
        remedy = f"only whole numbers from 0 to {_WHOLE - 1} can be compiled"
        raise unsupported(op.where, "membership_values", what, remedy)
    begins = np.concatenate([[0], ends + 1])[: len(ends)]
    return {
        int(node): tuple(sorted({int(value) for value in values[begin:end]}))
        for node, begin, end in zip(nodes, begins, ends, strict=True)
    }


def _is_category(values: Array) -> Array:
    with np.errstate(invalid="ignore"):
        whole = values == np.trunc(values)
    return np.less_equal(0, values) & (values < _WHOLE) & whole


# -- checks of both -------------------------------------------------------------------------------


def _column(op: TreeOp, name: str, values: Any, size: int) -> Any:
    if len(values) != size:
        raise damaged(op.where, name, f"{len(values)} entries, expected {size}")
    return values


def _flags(op: TreeOp, size: int) -> Array:
    name = "nodes_missing_value_tracks_true"
    flags = op.integers(name)
    return _binary(op, name, flags if flags.size else np.zeros(size, np.int64), size)


def _binary(op: TreeOp, name: str, flags: Array, size: int) -> Array:
    wrong = _column(op, name, flags, size) >> 1 != 0
    if wrong.any():
        raise damaged(op.where, name, f"expected 0 or 1, got {flags[np.argmax(wrong)]}")
    return flags == 1


def _within(op: TreeOp, name: str, values: Array, sizes: Array) -> None:
    wrong = (values < 0) | (values >= sizes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise damaged(op.where, name, f"{values[first]} is not within 0 to {sizes[first] - 1}")


# -- one comparison -------------------------------------------------------------------------------


def node_arrays(
    op: TreeOp, nodes: Nodes
) -> tuple[dict[str, Array], dict[int, tuple[int, ...]], Comparison, Array]:
    """Return the node arrays of a Forest, categories, comparison, and the position of each node.

    The arrays are those of `Forest` but for `leaf_value`; the nodes of a tree come level by level.
    """
    _check_tree(op, nodes)
    nodes, comparison = _one_comparison(_without_equals(nodes))
    position, tree, left, right = _unfolded(op, nodes)
    is_leaf = left == LEAF
    is_set = nodes.mode[position] == _MEMBER
    threshold = np.where(is_leaf | is_set, 0, nodes.threshold[position])
    arrays = {
        "tree_offset": np.searchsorted(tree, np.arange(len(nodes.roots) + 1)),
        "feature": np.where(is_leaf, LEAF, nodes.feature[position]).astype(np.int32),
        "threshold": threshold.astype(nodes.threshold.dtype),
        "left": left.astype(np.int32),
        "right": right.astype(np.int32),
        "default_left": nodes.nan_true[position] & ~is_leaf,
        "node_id": nodes.number[position].astype(np.int32),
    }
    categories = {int(at): nodes.members[int(position[at])] for at in np.flatnonzero(is_set)}
    return arrays, categories, comparison, position


def _check_tree(op: TreeOp, nodes: Nodes) -> None:
    """Refuse inner nodes that two nodes share, and so every cycle, and wrong features."""
    inner = np.flatnonzero(nodes.mode != _IS_LEAF)
    children = np.concatenate([nodes.true[inner], nodes.false[inner]])
    parents = np.bincount(children, minlength=len(nodes.mode))
    parents[nodes.roots] += nodes.mode[nodes.roots] != _IS_LEAF
    wrong = (parents > 1) & (nodes.mode != _IS_LEAF)
    twice = np.unique(nodes.roots[nodes.mode[nodes.roots] != _IS_LEAF], return_counts=True)
    wrong[twice[0][twice[1] > 1]] = True
    if wrong.any():
        number = nodes.number[np.argmax(wrong)]
        what = f"node {number} has two parents or is the root of a tree and a child"
        raise damaged(op.where, "nodes_truenodeids", what)
    features = np.full(len(inner), op.n_features or 1 << 31)
    _within(op, "nodes_featureids", nodes.feature[inner], features)


def _without_equals(nodes: Nodes) -> Nodes:
    """Put sets, or two nodes each, in the place of nodes that ask for one number."""
    equals = (nodes.mode == _EQ) | (nodes.mode == _NEQ)
    unequal = nodes.mode == _NEQ
    match, other = (np.where(unequal, *pair) for pair in _both_ways(nodes.true, nodes.false))
    nan_match = nodes.nan_true ^ unequal
    is_set = equals & _is_category(nodes.threshold)
    pair = np.flatnonzero(equals & ~is_set)
    added = len(nodes.mode) + np.arange(len(pair))
    sets = {int(at): (int(nodes.threshold[at]),) for at in np.flatnonzero(is_set)}
    true, false = np.where(equals, match, nodes.true), np.where(equals, other, nodes.false)
    true[pair] = added
    mode = np.where(is_set, _MEMBER, np.where(equals, _LEQ, nodes.mode)).astype(np.int8)
    return replace(
        nodes,
        mode=np.concatenate([mode, np.full(len(pair), _LT, np.int8)]),
        feature=np.concatenate([nodes.feature, nodes.feature[pair]]),
        threshold=np.concatenate([nodes.threshold, nodes.threshold[pair]]),
        true=np.concatenate([true, other[pair]]),
        false=np.concatenate([false, match[pair]]),
        nan_true=np.concatenate([np.where(equals, nan_match, nodes.nan_true), pair < 0]),
        number=np.concatenate([nodes.number, nodes.number[pair]]),
        members=nodes.members | sets,
    )


def _both_ways(one: Array, other: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (other, one), (one, other)


def _one_comparison(nodes: Nodes) -> tuple[Nodes, Comparison]:
    """Write all comparisons as one of `<` and `<=`, exact for rows in the dtype of thresholds."""
    strict = (nodes.mode == _LT) | (nodes.mode == _GTE)
    reverse = (nodes.mode == _GTE) | (nodes.mode == _GT)
    comparison, threshold, swap = one_comparison(
        strict, reverse, nodes.threshold, strict | reverse | (nodes.mode == _LEQ)
    )
    left, right = (np.where(swap, *pair) for pair in _both_ways(nodes.true, nodes.false))
    changed = replace(
        nodes, threshold=threshold, true=left, false=right, nan_true=nodes.nan_true ^ swap
    )
    return changed, comparison


def _unfolded(op: TreeOp, nodes: Nodes) -> tuple[Array, Array, Array, Array]:
    """Walk all trees level by level from their roots, shared nodes once for each path.

    Returns:
        For every node of the trees its position in `nodes`, its tree, and its children as numbers
        within the tree, LEAF at leaves.
    """
    level, tree = nodes.roots, np.arange(len(nodes.roots))
    levels, trees, firsts = [level], [tree], []
    total, most = len(level), _GROWTH * len(nodes.mode) + len(level)
    while level.size:
        inner = nodes.mode[level] != _IS_LEAF
        firsts.append(np.where(inner, total + 2 * (np.cumsum(inner) - 1), LEAF))
        parents = level[inner]
        level = np.stack([nodes.true[parents], nodes.false[parents]], axis=1).ravel()
        tree = np.repeat(tree[inner], 2)
        total += len(level)
        if total > most:
            what = f"EQ and NEQ need copies of subtrees, more than {_GROWTH} times the nodes"
            raise unsupported(op.where, "nodes_modes", what, "split by LEQ or LT")
        levels.append(level)
        trees.append(tree)
    first = np.concatenate([*firsts, np.zeros(0, np.int64)])
    position, tree = np.concatenate(levels), np.concatenate(trees)
    order = np.argsort(tree, kind="stable")
    rank = np.empty(total, np.int64)
    rank[order] = np.arange(total)
    tree, first = tree[order], first[order]
    begin = np.searchsorted(tree, tree)
    left = np.where(first == LEAF, LEAF, rank[first] - begin)
    right = np.where(first == LEAF, LEAF, rank[np.minimum(first + 1, total - 1)] - begin)
    return position[order], tree, left, right
