"""The model: an immutable structure of arrays that carries the whole meaning of a forest.

takes: arrays; gives: Forest, the high-level IR of the compiler and the oracle of its tests.

Shapes use R rows, F features, T trees, N nodes of all trees together, C outputs, W values a leaf.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from . import memberships as prepare
from . import reference
from .leaf_table import LeafTable, leaf_table
from .linear_leaves import FIELDS as LINEAR_FIELDS
from .linear_leaves import linear_problem
from .rules import Aggregate, Array, CategoryRule, Comparison, LabelRule, Link, Output

LEAF = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """A decision forest with everything that decides the bits of its predictions.

    The nodes of tree t are ``tree_offset[t] : tree_offset[t + 1]``; the first one is its root.
    A row goes to the left child of a node if ``row[feature] <comparison> threshold``; a missing
    value (NaN) goes left if ``default_left``. The margin of output c is ``base_score[c]``, to which
    the leaf values of the trees of class c are added one by one, in tree order, in the dtype of
    ``leaf_value``; ``base_first`` False adds the base score last.

    Attributes:
        tree_offset: int64 (T + 1,), where the nodes of each tree begin.
        feature: int32 (N,), feature that a node tests, -1 at leaves.
        threshold: float32 or float64 (N,), compared in this dtype.
        left, right: int32 (N,), children as node numbers within the tree, -1 at leaves.
        default_left: bool (N,), where a missing value goes.
        leaf_value: float32 or float64 (N, W), 0 at inner nodes. W is 1, or C for vector leaves. A
            linear leaf says it if a feature of its terms is missing.
        node_id: int32 (N,), number of the node in the source model's tree (what `apply` reports).
        tree_class: int32 (T,), output that a tree adds to; -1 for trees with vector leaves.
        tree_id: int32 (T,), number of the tree in the source model; -1 for a tree without one.
        base_score: (C,), in margin space and in the dtype of the sum; float64 with `base_first`
            False adds it to float32 sums in float64.
        n_features: F, columns that walks read.
        categories: per node, the set of categories that it asks for, for categorical nodes only.
        category_rule: what such a node does; needed if there is one, or a derived column.
        derived: (feature, set of categories) of the last columns, which are made of the others: 0
            where the rule sends a row to the left, 1 where to the right.
        known_categories: per feature, the categories beside which all values are missing.
        missing: a number that means missing, beside NaN.
        category_names: per feature, the labels of its categories in the order of their codes, by
            which columns of categories of a frame are numbered; others hold numbers.
        zero_missing: features whose values within 1e-35 of zero are missing.
        absent: what an entry is that a sparse matrix does not hold: NaN for XGBoost, else 0.
        sparse_above: entries of a sparse matrix that are not zero must be larger than this, for the
            source library compares smaller ones otherwise than those of an array.
        in_place: whether rows are refused that an estimator of XGBoost copies into a DMatrix, from
            which it predicts a DART model with another rounding.
        refuses: what rows may not hold, for the source object refuses it: "nan", "inf", or
            "category", a label in a frame that is not among `category_names`; else that is NaN.
        comparison: what sends a value to the left.
        row_dtype: dtype that rows are cast to before they are compared.
        other_dtype: dtype that arrays and lists of others than float32 and float64 are cast to
            before that (LightGBM takes integers for float32, but not those of frames); or None.
        base_first: whether the sum starts from the base score.
        aggregate: what is made of the leaf values of a class; "average" divides their sum by the
            number of trees of the class.
        link: what turns margins into values.
        link_scale: what margins are multiplied with before a sigmoid, or divided by before a
            "halving", `2 ** -margin`, or an "isolation", `-(2 ** -margin)`.
        score_offset: what `decision_function` of an isolation forest takes off its values; or None.
        value_dtype: dtype that margins are rounded to before the link, and that of the values; None
            is the dtype of the sum.
        label_rule: how `predict` picks a class: not at all, the largest margin, the largest
            probability, a probability above one half, or a margin of `label_cut` or more.
        label_cut: the smallest margin of the second label under the rule "cut".
        labels: (n_classes,) class labels in the dtype that `predict` returns, or None.
        targets: how many outputs, and labels, belong to each target, one after the other; a softmax
            and the choice of a label are of one target each. Empty for a single target.
        leaf_id_dtype: dtype in which the source library reports leaf numbers.
        feature_names: names of the columns, or None.
        pandas_categories: categories of the i-th categorical column of a frame, whose places in
            this list are the codes that the model takes; none if it saw no such column.
        n_rounds: boosting rounds of the model.
        tree_round: int32 (T,), the boosting round of each tree, -1 for a tree without one; None if
            a round is one tree of each class.
        tile: int32 (N,), number of the tile of each node within its tree; None if every node is a
            tile of its own. Leaves are alone in their tiles.
        tile_size: most nodes of a tile.
        hits: int64 (N,), rows of a profile that ended at each leaf, 0 at inner nodes; or None.
        leaf_const: float64 (N,), what the sum of a leaf's terms starts from, see `linear`; a leaf
            without terms says it. None, like the next three, if leaves hold plain values.
        leaf_terms: int64 (N, 2), begin and end of the terms of each leaf.
        term_feature: int32 (K,), feature of each term.
        term_coefficient: float64 (K,), what its value is multiplied with.
        source: library and objective, for people, e.g. "xgboost binary:logistic".
    """

    tree_offset: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    default_left: Array
    leaf_value: Array
    node_id: Array
    tree_class: Array
    tree_id: Array
    base_score: Array
    n_features: int
    categories: dict[int, tuple[int, ...]] = field(default_factory=dict)
    category_rule: CategoryRule | None = None
    derived: tuple[tuple[int, tuple[int, ...]], ...] = ()
    known_categories: dict[int, tuple[int, ...]] = field(default_factory=dict)
    missing: float | None = None
    category_names: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    zero_missing: tuple[int, ...] = ()
    absent: float = 0.0
    sparse_above: float = 0.0
    in_place: bool = False
    refuses: tuple[str, ...] = ()
    comparison: Comparison = "<"
    row_dtype: str = "float32"
    other_dtype: str | None = None
    base_first: bool = True
    aggregate: Aggregate = "sum"
    link: Link = "identity"
    link_scale: float = 1.0
    score_offset: float | None = None
    value_dtype: str | None = None
    label_rule: LabelRule = "none"
    label_cut: float = 0.0
    labels: Array | None = None
    targets: tuple[int, ...] = ()
    leaf_id_dtype: str = "int32"
    feature_names: tuple[str, ...] | None = None
    pandas_categories: tuple[tuple[Any, ...], ...] = ()
    n_rounds: int = 0
    tree_round: Array | None = None
    tile: Array | None = None
    tile_size: int = 1
    hits: Array | None = None
    leaf_const: Array | None = None
    leaf_terms: Array | None = None
    term_feature: Array | None = None
    term_coefficient: Array | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.ndarray):
                frozen = np.ascontiguousarray(value).view()
                frozen.flags.writeable = False
                object.__setattr__(self, entry.name, frozen)
        problem = self.problem()
        if problem is not None:
            raise ModelFormatError(f"forest: {problem}; the model is damaged")

    # -- counts -----------------------------------------------------------------------------------

    @property
    def n_trees(self) -> int:
        """T."""
        return len(self.tree_offset) - 1

    @property
    def n_nodes(self) -> int:
        """N, leaves included."""
        return len(self.feature)

    @property
    def n_outputs(self) -> int:
        """C, the margins of one row."""
        return len(self.base_score)

    @property
    def is_linear(self) -> bool:
        """Whether leaves hold linear functions of the row."""
        return self.leaf_terms is not None

    @property
    def has_vectors(self) -> bool:
        """Whether leaves hold a value for each output."""
        return self.leaf_value.shape[1] > 1

    @property
    def round_size(self) -> int:
        """Trees that add to every output once: C, or one whose leaves hold vectors."""
        return self.n_outputs // self.leaf_value.shape[1]

    @cached_property
    def leaf_table(self) -> LeafTable:
        """The distinct leaves."""
        return leaf_table(self)

    @cached_property
    def sum_dtype(self) -> str:
        """Dtype in which margins are summed."""
        return str(self.leaf_value.dtype)

    @property
    def base_dtype(self) -> str:
        """Dtype in which the base score is added."""
        if self.base_first:
            return self.sum_dtype
        return str(np.result_type(self.sum_dtype, self.base_score.dtype))

    @cached_property
    def is_leaf(self) -> Array:
        """Bool (N,)."""
        return self.left == LEAF

    @cached_property
    def node_tree(self) -> Array:
        """Int64 (N,), the tree of each node."""
        return np.repeat(np.arange(self.n_trees), np.diff(self.tree_offset))

    @cached_property
    def node_depth(self) -> Array:
        """Int32 (N,), hops from the root; -1 where no path leads."""
        return node_depths(self.tree_offset, self.left, self.right)

    @cached_property
    def hop_depth(self) -> Array:
        """Int32 (N,), hops from the root to the tile of each node; without tiles, its depth."""
        if self.tile is None:
            return self.node_depth
        return node_depths(self.tree_offset, self.left, self.right, self.tile)

    @cached_property
    def depths(self) -> Array:
        """Int32 (T,), hops to the deepest leaf of each tree; 0 for a single leaf."""
        if self.n_trees == 0:
            return np.zeros(0, np.int32)
        return np.maximum.reduceat(self.hop_depth, self.tree_offset[:-1])

    @cached_property
    def shallowest(self) -> Array:
        """Int32 (T,), hops to the leaf of each tree that is nearest to the root."""
        if self.n_trees == 0:
            return np.zeros(0, np.int32)
        depth = np.where(self.is_leaf, self.hop_depth, np.iinfo(np.int32).max)
        return np.minimum.reduceat(depth, self.tree_offset[:-1])

    @cached_property
    def tests(self) -> Array:
        """(P, 2) float64, the distinct (feature, threshold) pairs, sorted."""
        inner = ~self.is_leaf
        pairs = np.stack([self.feature[inner], self.threshold[inner]], axis=1, dtype=np.float64)
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]  # np.unique takes 4 times as long
        return pairs[np.append(True, np.any(pairs[1:] != pairs[:-1], axis=1))[: len(pairs)]]

    @property
    def cuts_per_column(self) -> Array:
        """Int64 (columns,), distinct thresholds of each feature and side of missing values."""
        return self._columns[1]

    @cached_property
    def searches(self) -> int:
        """How many searches code a row: for each column but memberships, and each question."""
        compared = np.searchsorted(self._columns[0], 2 * self.row_width)
        return int(compared) + len(self.questions)

    @cached_property
    def _columns(self) -> tuple[Array, Array]:
        """Int64 (columns,) each: twice the feature plus the side, and distinct thresholds."""
        inner = ~self.is_leaf
        column = 2 * self.feature[inner].astype(np.int64) + self.default_left[inner]
        cut = self.threshold[inner]
        order = np.lexsort((cut, column))
        column, cut = column[order], cut[order]
        fresh = np.append(True, (column[1:] != column[:-1]) | (cut[1:] != cut[:-1]))[: len(cut)]
        return np.unique(column[fresh], return_counts=True)

    @cached_property
    def signature(self) -> str:
        """Hex digest of everything that decides a prediction; equal for equal models."""
        digest = hashlib.sha256()
        for entry in fields(self):
            if entry.name in ("tile", "tile_size", "hits"):
                continue
            value = getattr(self, entry.name)
            unset = value is None or value is False
            if unset and entry.name in ("in_place", "score_offset", *LINEAR_FIELDS):
                continue  # so that plain models keep the signature that files of old versions hold
            digest.update(entry.name.encode())
            if isinstance(value, np.ndarray) and value.dtype.hasobject:
                value = value.tolist()  # labels, of which the bytes are pointers
            if isinstance(value, np.ndarray):
                digest.update(str((value.dtype.str, value.shape)).encode())
                digest.update(value.tobytes())
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()

    @cached_property
    def trees_of_class(self) -> Array:
        """Int64 (C,), trees of the source model that add to each output."""
        known = self.tree_class[self.tree_id >= 0]
        return np.bincount(known[known >= 0], minlength=self.n_outputs) + np.sum(known < 0)

    # -- invariants -------------------------------------------------------------------------------

    def problem(self) -> str | None:
        """Return the first broken invariant as a sentence, or None."""
        plain = self._shape_problem() or self._rule_problem() or self._node_problem()
        return plain or linear_problem(self)

    def _shape_problem(self) -> str | None:
        nodes = self.n_nodes
        for name in ("threshold", "left", "right", "default_left", "node_id", "leaf_value"):
            if len(getattr(self, name)) != nodes:
                return f"field '{name}' has {len(getattr(self, name))} entries for {nodes} nodes"
        for name in ("tile", "hits"):
            value = getattr(self, name)
            if value is not None and len(value) != nodes:
                return f"field '{name}' has {len(value)} entries for {nodes} nodes"
        if len(self.tree_class) != self.n_trees or len(self.tree_id) != self.n_trees:
            return f"fields 'tree_class' and 'tree_id' need {self.n_trees} entries"
        if self.tree_round is not None and len(self.tree_round) != self.n_trees:
            return f"field 'tree_round' has {len(self.tree_round)} entries for {self.n_trees} trees"
        if np.any(np.diff(self.tree_offset) < 1) or self.tree_offset[-1] != nodes:
            return "field 'tree_offset' does not cover the nodes in order"
        if self.n_outputs < 1 or np.any(self.tree_class >= self.n_outputs):
            return f"field 'tree_class' names a class beyond the {self.n_outputs} outputs"
        if np.any(self.tree_class < (0 if self.leaf_value.shape[1] == 1 else -1)):
            return "field 'tree_class' is negative, but leaves hold one value"
        return None

    def _rule_problem(self) -> str | None:
        if (self.categories or self.derived) and self.category_rule is None:
            return "field 'category_rule' is missing, but a node asks for categories"
        if any(not 0 <= feature < self.n_features for feature in self.category_names):
            return f"field 'category_names' names a feature beyond the {self.n_features}"
        if self.targets and (min(self.targets) < 1 or sum(self.targets) != self.n_outputs):
            return f"field 'targets' is {self.targets}, but there are {self.n_outputs} outputs"
        if self.comparison not in ("<", "<="):
            return f"field 'comparison' is {self.comparison!r}, expected '<' or '<='"
        if not {"nan", "inf", "category"}.issuperset(self.refuses):
            return f"field 'refuses' is {self.refuses!r}, expected 'nan', 'inf' or 'category'"
        return None

    def _node_problem(self) -> str | None:
        if self.n_trees == 0:
            return None
        size = np.diff(self.tree_offset)[self.node_tree]
        inner = ~self.is_leaf
        for name, child in (("left", self.left), ("right", self.right)):
            wrong = inner & ((child < 1) | (child >= size))
            if wrong.any():
                return f"{self._where(wrong)} has {name} child {child[np.argmax(wrong)]}"
        wrong = inner & ((self.feature < 0) | (self.feature >= self.n_features))
        if wrong.any():
            feature = self.feature[np.argmax(wrong)]
            return f"{self._where(wrong)} tests feature {feature} of {self.n_features}"
        wrong = inner & np.isnan(self.threshold)
        if wrong.any():
            return f"{self._where(wrong)} has a threshold that is not a number"
        wrong = self._parents > 1  # first, for without this a walk could take for ever
        if wrong.any():
            return f"{self._where(wrong)} has two parents"
        wrong = (self.node_depth < 0) | (self._parents != (self.node_depth > 0))
        if wrong.any():
            return f"{self._where(wrong)} is part of a cycle or no path leads to it"
        return None

    @cached_property
    def _parents(self) -> Array:
        """Int64 (N,), how many inner nodes name a node as their child."""
        inner = np.flatnonzero(~self.is_leaf)
        base = self.tree_offset[self.node_tree[inner]]
        children = np.concatenate([base + self.left[inner], base + self.right[inner]])
        return np.bincount(children, minlength=self.n_nodes)

    def _where(self, wrong: Array) -> str:
        node = int(np.argmax(wrong))
        tree = int(self.node_tree[node])
        return f"tree {tree}, node {node - int(self.tree_offset[tree])}"

    # -- reference --------------------------------------------------------------------------------

    def prepared(self, rows: Array) -> Array:
        """Return rows as walks read them: only NaN is missing, and derived columns follow.

        Args:
            rows: (R, row_width) in `row_dtype`; left as they are.

        Returns:
            (R, F), the same array if there is nothing to do.
        """
        return prepare.prepared(self, rows)

    def cleaned(self, rows: Array) -> Array:
        """Return rows as layouts that code them read them: only NaN is missing.

        Such layouts know the sets of categories, and which categories are known.

        Args:
            rows: (R, row_width) in `row_dtype`; left as they are.

        Returns:
            (R, row_width), the same array if there is nothing to do.
        """
        return prepare.cleaned(self, rows)

    @cached_property
    def compared_categories(self) -> dict[int, tuple[int, ...]]:
        """The known categories of features that are compared, or added up, as numbers too."""
        numbers = [x for x in (self.feature, self.term_feature) if x is not None]
        return {k: x for k, x in self.known_categories.items() if any(k in n for n in numbers)}

    @property
    def needs_preparation(self) -> bool:
        """Whether `prepared` may change rows."""
        return self.needs_cleaning or bool(self.known_categories or self.derived)

    @property
    def needs_cleaning(self) -> bool:
        """Whether `cleaned` may change rows."""
        return self.missing is not None or bool(self.zero_missing or self.compared_categories)

    @property
    def row_width(self) -> int:
        """Columns of the rows that users pass."""
        return self.n_features - len(self.derived)

    @cached_property
    def questions(self) -> list[prepare.Question]:
        """What features are asked for, from which the derived columns come."""
        return prepare.questions(self)

    @cached_property
    def memberships(self) -> list[prepare.Memberships]:
        """Tables of the derived columns."""
        return prepare.memberships(self)

    def reference_nodes(self, rows: Array) -> Array:
        """Walk every row through every tree, one level at a time.

        Args:
            rows: (R, row_width), cast to `row_dtype` first.

        Returns:
            int64 (R, T), the leaf reached, as an index into the node arrays.
        """
        return reference.nodes(self, rows)

    def predict_reference(self, rows: Array, output: Output = "margin") -> Array:
        """Predict with numpy, slowly and plainly: the oracle that compiled code must equal.

        Args:
            rows: (R, row_width) numbers.
            output: "margin" (R, C); "value" (R, C), the margins after the link, whose last bits
                depend on numpy's `exp`; "apply" (R, T), source numbers of the leaves;
                "per_tree" (R, T), leaf values, or (R, T, C) if leaves hold vectors.
        """
        return reference.predict(self, rows, output)


def node_depths(tree_offset: Array, left: Array, right: Array, tile: Array | None = None) -> Array:
    """Depth of every node, all trees level by level; -1 for unreached nodes.

    With tile numbers, an edge inside a tile does not count.
    """
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
        step = 1 if tile is None else tile[children] != np.concatenate([tile[node], tile[node]])
        node, base, below = children, np.tile(base, 2), np.tile(below, 2) + step
        levels += 1
    return depth
