"""The first part of a Forest: its trees, as arrays over all nodes.

takes: arrays; gives: Trees, with counts, depths and the distinct tests of their nodes.

Shapes use T trees, N nodes of all trees together, C outputs, W values a leaf, K terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...system.process.locks import cached_property
from ...system.values import dataclass, field
from ..rules import LEAF, Array, Comparison
from .distinct_tests import DistinctTests, find_distinct_tests
from .edges import find_oblivious, is_level_ordered
from .leaf_table import LeafTable, collect_leaves
from .metadata import per_model, per_node, per_tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Trees:
    """The trees of a forest: nodes, links, tests and leaves.

    The nodes of tree t are ``tree_offset[t] : tree_offset[t + 1]``; the first one is its root.
    A row goes to the left child of a node if ``row[feature] <comparison> threshold``; a missing
    value (NaN) goes left if ``default_left``.

    Attributes:
        tree_offset: int64 (T + 1,), where the nodes of each tree begin.
        feature: int32 (N,), feature that a node tests, -1 at leaves.
        threshold: float32 or float64 (N,), compared in this dtype.
        left, right: int32 (N,), children as node numbers within the tree, -1 at leaves.
        default_left: bool (N,), whether a missing value goes left.
        leaf_value: float32 or float64 (N, W), 0 at inner nodes. W is 1, or C where leaves hold
            vectors. A linear leaf gives this value if a feature of its terms is missing.
        copied_value: (N, W), other leaf values for rows that XGBoost's estimator copies, see
            `InputMeaning.in_place`; None if there are none.
        bare_value: (N, W), the leaf values before they are multiplied by `tree_weight`: XGBoost's
            estimators of DART models multiply the sum of a user's start and a leaf by the weight.
            None for other models.
        tree_weight: float32 (T,), these weights; None if `bare_value` is.
        node_id: int32 (N,), number of the node in the source model's tree (what `apply` reports).
        tree_class: int32 (T,), output that a tree adds to; -1 for trees with leaf vectors.
        tree_id: int32 (T,), number of the tree in the source model; -1 for a tree without one.
        categories: set of categories that a node tests for, by the number of the node among all N;
            such a node has no threshold.
        comparison: "<" or "<="; values that compare so go left.
        n_rounds: boosting rounds of the model.
        rounds_left_out: number of rounds of the source object after its best one; this forest does
            not have them.
        with_all_rounds: the Forest that has these rounds too; None if there are none, or if the
            forest was read from a file of this package, which does not store them.
        tree_round: int32 (T,), the boosting round of each tree, -1 for a tree without one; None if
            a round is one tree of each class.
        tile: int32 (N,), number of the tile of each node within its tree; None if every node is a
            tile of its own. Leaves are alone in their tiles.
        tile_size: largest number of nodes in a tile.
        hits: int64 (N,), rows of a profile that ended at each leaf, 0 at inner nodes; or None.
        cover: float64 (N,), weight of the training rows that reached each node, which SHAP values
            need; None if the source does not store it.
        leaf_const: float64 (N,), the constant term of a linear leaf, from which its sum starts.
            None, like the next three, if leaves hold plain values.
        leaf_terms: int64 (N, 2), begin and end of the terms of each leaf.
        term_feature: int32 (K,), feature of each term.
        term_coefficient: float64 (K,), the coefficient of the feature in each term.
    """

    tree_offset: Array = field(metadata=per_model(0))
    feature: Array = field(metadata=per_node(1, in_null_tree=LEAF))
    threshold: Array = field(metadata=per_node(2))
    left: Array = field(metadata=per_node(3, in_null_tree=LEAF))
    right: Array = field(metadata=per_node(4, in_null_tree=LEAF))
    default_left: Array = field(metadata=per_node(5))
    leaf_value: Array = field(metadata=per_node(6, in_null_tree=-0.0))
    copied_value: Array | None = field(default=None, metadata=per_node(49, signed_if_set=True))
    bare_value: Array | None = field(default=None, metadata=per_node(51, signed_if_set=True))
    tree_weight: Array | None = field(default=None, metadata=per_tree(52, signed_if_set=True))
    node_id: Array = field(metadata=per_node(7))
    tree_class: Array = field(metadata=per_tree(8))
    tree_id: Array = field(metadata=per_tree(9, in_null_tree=-1))
    categories: dict[int, tuple[int, ...]] = field(default_factory=dict, metadata=per_model(12))
    comparison: Comparison = field(default="<", metadata=per_model(23))
    n_rounds: int = field(default=0, metadata=per_model(39))
    rounds_left_out: int = field(default=0, metadata=per_model(None))
    with_all_rounds: Any = field(default=None, repr=False, metadata=per_model(None))
    tree_round: Array | None = field(default=None, metadata=per_tree(40, in_null_tree=-1))
    tile: Array | None = field(default=None, metadata=per_node(None))
    tile_size: int = field(default=1, metadata=per_model(None))
    hits: Array | None = field(default=None, metadata=per_node(None))
    cover: Array | None = field(default=None, metadata=per_node(None))
    leaf_const: Array | None = field(
        default=None, metadata=per_node(41, in_null_tree=-0.0, signed_if_set=True)
    )
    leaf_terms: Array | None = field(default=None, metadata=per_node(42, signed_if_set=True))
    term_feature: Array | None = field(default=None, metadata=per_model(43, signed_if_set=True))
    term_coefficient: Array | None = field(default=None, metadata=per_model(44, signed_if_set=True))

    @property
    def n_trees(self) -> int:
        """T, the number of trees."""
        return len(self.tree_offset) - 1

    @property
    def n_nodes(self) -> int:
        """N, the number of nodes of all trees, leaves included."""
        return len(self.feature)

    @property
    def is_linear(self) -> bool:
        """Whether leaves hold linear functions of the row."""
        return self.leaf_terms is not None

    @property
    def has_vectors(self) -> bool:
        """Whether leaves hold a value for each output."""
        return self.leaf_value.shape[1] > 1

    @cached_property
    def sum_dtype(self) -> str:
        """Dtype in which margins are summed."""
        return str(self.leaf_value.dtype)

    @cached_property
    def leaf_table(self) -> LeafTable:
        """The distinct leaf values or leaf vectors."""
        return collect_leaves(self)

    @cached_property
    def is_leaf(self) -> Array:
        """Bool (N,), whether each node is a leaf."""
        return self.left == LEAF

    @cached_property
    def node_tree(self) -> Array:
        """Int64 (N,), the tree of each node."""
        return np.repeat(np.arange(self.n_trees), np.diff(self.tree_offset))

    @cached_property
    def node_depth(self) -> Array:
        """Int32 (N,), hops from the root to each node; -1 for a node that no path reaches."""
        return node_depths(self.tree_offset, self.left, self.right)

    @cached_property
    def hop_depth(self) -> Array:
        """Int32 (N,), hops from the root to the tile of each node; without tiles, to the node."""
        if self.tile is None:
            return self.node_depth
        return node_depths(self.tree_offset, self.left, self.right, self.tile)

    @cached_property
    def depths(self) -> Array:
        """Int32 (T,), hops to the deepest leaf of each tree; 0 for a single leaf."""
        return np.maximum.reduceat(self.hop_depth, self.tree_offset[:-1])

    @cached_property
    def shallowest(self) -> Array:
        """Int32 (T,), hops to the leaf of each tree that is nearest to the root."""
        depth = np.where(self.is_leaf, self.hop_depth, np.iinfo(np.int32).max)
        return np.minimum.reduceat(depth, self.tree_offset[:-1])

    @cached_property
    def is_level_ordered(self) -> bool:
        """Whether nodes are numbered level by level, see `edges.is_level_ordered`."""
        return is_level_ordered(self)

    @cached_property
    def is_oblivious(self) -> Array:
        """Bool (T,), whether a tree is oblivious, see `edges.find_oblivious`."""
        return find_oblivious(self)

    @cached_property
    def distinct_tests(self) -> DistinctTests:
        """The distinct tests, by column: a feature and the default side of missing values."""
        return find_distinct_tests(self)

    @property
    def tests(self) -> Array:
        """Float64 (pairs, 2), the distinct (feature, threshold) pairs, sorted."""
        tests = self.distinct_tests
        pairs = np.stack([tests.keys[tests.column] // 2, tests.cut], axis=1, dtype=np.float64)
        return np.unique(pairs, axis=0)

    @cached_property
    def cuts_per_column(self) -> Array:
        """Int64 (columns,), number of distinct thresholds of each feature and default side."""
        return np.bincount(self.distinct_tests.column)

    @property
    def column(self) -> Array:
        """Int64 (N,), ``2 * feature + default_left``, see `DistinctTests`; undefined at leaves."""
        return 2 * self.feature.astype(np.int64) + self.default_left

    @cached_property
    def level_sizes(self) -> Array:
        """Int64, number of inner nodes on each level of each tree; with tiles, of each tile level.

        Entry ``tree * levels + level``, where `levels` is the depth of the deepest tree plus one;
        zeros at the end are left out.
        """
        inner = np.flatnonzero(~self.is_leaf)
        levels = int(self.depths.max(initial=0)) + 1
        return np.bincount(self.node_tree[inner] * levels + self.hop_depth[inner])

    @cached_property
    def leaf_counts(self) -> Array:
        """Int64 (T,), the number of leaves of each tree."""
        return np.add.reduceat(self.is_leaf, self.tree_offset[:-1], dtype=np.int64)

    @property
    def widest_level(self) -> int:
        """The largest number of inner nodes on one level of a tree, with tiles on a tile level."""
        return int(self.level_sizes.max(initial=0))

    def name_first(self, marked: Array) -> str:
        """Return the name, for messages, of the first node that a bool mask (N,) marks."""
        node = int(np.argmax(marked))
        tree = int(self.node_tree[node])
        return f"tree {tree}, node {node - int(self.tree_offset[tree])}"


def node_depths(tree_offset: Array, left: Array, right: Array, tile: Array | None = None) -> Array:
    """Return the depth of every node, int32 (N,); -1 for nodes that no path from a root reaches.

    The links need not form trees: they are checked by this result. With tile numbers, an edge
    inside a tile does not count.
    """
    if tile is None:
        return _node_levels(tree_offset, left, right)
    depth = np.full(len(left), -1, np.int32)
    node, base = tree_offset[:-1], tree_offset[:-1]
    below = np.zeros(len(node), np.int32)
    levels = 0
    while node.size and levels <= len(left):
        fresh = depth[node] < 0
        node, base, below = node[fresh], base[fresh], below[fresh]
        depth[node] = below
        inner = left[node] != LEAF
        node, base, below = node[inner], base[inner], below[inner]
        children = np.concatenate([base + left[node], base + right[node]])
        step = tile[children] != np.concatenate([tile[node], tile[node]])
        node, base, below = children, np.tile(base, 2), np.tile(below, 2) + step
        levels += 1
    return depth


def _node_levels(tree_offset: Array, left: Array, right: Array) -> Array:
    """Implement `node_depths` without tiles: all nodes of a level get their depth at once."""
    depth = np.full(len(left), -1, np.int32)
    number = np.int32 if len(left) <= np.iinfo(np.int32).max else np.int64
    base = np.repeat(tree_offset[:-1].astype(number), np.diff(tree_offset))
    left_child, right_child, is_leaf = base + left, base + right, left == LEAF
    del base
    node = tree_offset[:-1]
    for level in range(len(left) + 1):
        node = node[depth[node] < 0]
        if not node.size:
            break
        depth[node] = level
        inner = node[~is_leaf[node]]
        node = np.concatenate([left_child[inner], right_child[inner]])
    return depth
