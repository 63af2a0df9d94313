"""Generates models with typical tree shapes, to compile code for future models in advance.

takes: a trained Forest in canonical form; gives: forests with its columns, outputs and dtypes.

Trees, tests and leaves are random. Their predictions do not matter: code depends on shapes alone.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.rules import LEAF

DEPTHS = (3, 4, 5, 6, 7, 8, 9)
"""Depths of trees grown level by level, as by XGBoost and CatBoost."""

SPLITS = (1.0, 0.97, 0.92, 0.85)
"""Share of a level's nodes that have children: in full trees, in nearly full trees, and in trees
with fewer rows than leaves."""

LEAVES = (7, 15, 31, 63, 127)
"""Leaf counts of trees grown leaf-wise, as by LightGBM."""

BENDS = (2.5, 0.8)
"""Values of `TreeShape.bend` for leaf-wise trees: some are broad with the first, all are deep with
the second."""

TREES = 8
"""Distinct trees in a model, if its trees differ."""

ROUNDS, COMPILED_ROUNDS = (25, 50, 100, 200, 500, 1000), (500, 100)
"""Numbers of rounds for which schedules are chosen, and those for which code is compiled."""

FEW, BINS, MANY = 30, 240, 4000
"""Numbers of thresholds per feature: in small models, with bins as in histograms, without bins."""

MAX_BYTE = 255
"""Most thresholds of a feature whose ranks fit into a byte."""

LOPSIDED = 1.2
"""Mean ratio of depth to log2(leaves) above which trees count as grown leaf-wise."""

REPEATED = 0.97
"""Ratio of distinct thresholds to those expected with 255 bins, above which a training had none."""

MAX_NODES = 500_000
"""Most nodes of a generated model: larger ones are rare, and take long."""


class TreeShape(NamedTuple):
    """The shape of trees.

    Attributes:
        depth: depth of trees grown level by level; 0 for leaf-wise trees.
        split: likelihood that a node below the first two levels has children, in trees grown level
            by level.
        leaves: number of leaves of leaf-wise trees; 0 for trees grown level by level.
        bend: how broad leaf-wise trees are: the larger, the more often leaves near the root are
            split; the smaller, the more often deep ones.
    """

    depth: int = 0
    split: float = 1.0
    leaves: int = 0
    bend: float = 1.0

    def grow(self) -> list[Array]:
        """Return several random trees, or one if chance decides nothing.

        A tree is an array with the left child of each node, -1 at leaves. The right child is the
        node after the left one.
        """
        if self.leaves:
            return [_grow_leaves(self, seed) for seed in range(TREES)]
        return [_grow_levels(self, seed) for seed in range(TREES if self.split < 1 else 1)]


class Drawn(NamedTuple):
    """The parameters of a generated model.

    Attributes:
        shape: shape of its trees.
        rounds: number of rounds.
        cuts: number of thresholds per feature.
    """

    shape: TreeShape
    rounds: int
    cuts: int

    @property
    def is_compiled(self) -> bool:
        """Whether code is compiled for it, or only schedules are chosen."""
        return self.rounds in (COMPILED_ROUNDS[1:] if self.cuts == FEW else COMPILED_ROUNDS)


def list_drawn(like: Forest) -> list[Drawn]:
    """List the models to generate for a given model.

    Their trees are grown level by level or leaf-wise, as those of the given model seem to be.
    """
    if _grows_by_leaves(like):
        shapes = [TreeShape(leaves=count, bend=bend) for count in LEAVES for bend in BENDS]
    else:
        splits = (1.0,) if like.is_oblivious.all() else SPLITS
        shapes = [TreeShape(depth, split) for split in splits for depth in DEPTHS]
    of_tests = (FEW, BINS) if _has_bins(like) else (FEW, BINS, MANY)
    sizes = {shape: like.round_size * len(shape.grow()[0]) for shape in shapes}
    return [
        Drawn(shape, rounds, cuts)
        for shape, rounds, cuts in itertools.product(shapes, ROUNDS, of_tests)
        if sizes[shape] * rounds <= MAX_NODES
        and (cuts < MANY or sizes[shape] * rounds > 2 * MAX_BYTE * like.n_features)
    ]


def _grows_by_leaves(like: Forest) -> bool:
    """Return whether trees look grown leaf-wise, to a number of leaves and not a depth."""
    leaves, depth = like.leaf_counts, like.depths
    is_lopsided = np.mean(depth / np.log2(np.maximum(2, leaves))) > LOPSIDED
    return bool(
        is_lopsided and (np.mean(leaves == leaves.max()) > 0.9 or depth.max() > max(DEPTHS))
    )


def _has_bins(like: Forest) -> bool:
    """Return whether thresholds repeat so often that they look binned."""
    tests = np.bincount(like.column[~like.is_leaf])
    expected = MAX_BYTE * (1 - (1 - 1 / MAX_BYTE) ** tests)
    cuts = like.cuts_per_column
    return bool(cuts.max(initial=0) <= MAX_BYTE and cuts.sum() < REPEATED * expected.sum())


def _grow_levels(shape: TreeShape, seed: int) -> Array:
    """Return a random tree grown level by level, in the form of `TreeShape.grow`."""
    rng, left, first, count = np.random.default_rng(seed), list[Array](), 0, 1
    for level in range(shape.depth):
        is_split = (rng.random(count) < shape.split) | (level < 2) | (np.arange(count) == 0)
        children = first + count + 2 * np.cumsum(is_split) - 2
        left.append(np.where(is_split, children, LEAF))
        first, count = first + count, 2 * int(is_split.sum())
    return np.concatenate([*left, np.full(count, LEAF)])


def _grow_leaves(shape: TreeShape, seed: int) -> Array:
    """Return a random tree grown leaf-wise, in the form of `TreeShape.grow`."""
    rng, left = np.random.default_rng(seed), np.full(2 * shape.leaves - 1, LEAF)
    ends = [0]
    for split in range(shape.leaves - 1):
        # later entries of `ends` are deeper leaves; trees of other seeds differ in depth
        at = ends.pop(int(len(ends) * rng.random() ** (shape.bend / (1 + seed / 4))))
        left[at] = 2 * split + 1
        ends += [2 * split + 1, 2 * split + 2]
    return left


def _number_tests(left: Array, by_level: bool) -> Array:
    """Return the number of each node's test: every node has its own, or every level has one."""
    node = np.arange(len(left))
    return np.frexp(node + 1)[1] if by_level else node


def _find_shares(like: Forest, few: bool) -> Array:
    """Return, for each feature, the share of its tests that send missing values left.

    If `few`, as for a model with few thresholds, half of the features have a share of 0 or 1.
    """
    inner = ~like.is_leaf
    tests, lefts = (
        np.bincount(like.feature[inner], like.default_left[inner] >= least, like.n_features)
        for least in (0, 1)
    )
    shares = np.where(
        tests > 0, lefts / np.maximum(tests, 1), like.default_left[inner].mean() > 0.5
    )
    return np.where(few & (np.arange(len(shares)) % 2 > 0), shares.round(), shares)


def draw_forest(like: Forest, drawn: Drawn) -> Forest:
    """Generate a model with random tests and leaves, on the features that a given model tests."""
    rng, count = np.random.default_rng(drawn.rounds), drawn.rounds * like.round_size
    trees = drawn.shape.grow()
    lefts = [trees[t % len(trees)] for t in range(count)]
    left, sizes = np.concatenate(lefts).astype(np.int32), [len(x) for x in lefts]
    is_leaf, width = left == LEAF, like.leaf_value.shape[1]
    places = np.concatenate([_number_tests(x, bool(like.is_oblivious.all())) for x in lefts])
    tests = places + np.repeat(np.arange(count), sizes) * max(sizes)
    tested = np.bincount(like.feature[~like.is_leaf], minlength=like.n_features) + 0.1
    feature = rng.choice(like.n_features, tests.max() + 1, p=tested / tested.sum())[tests]
    cuts = rng.normal(size=(like.n_features, drawn.cuts)).astype(like.threshold.dtype)
    cut = cuts[feature, rng.integers(drawn.cuts, size=tests.max() + 1)[tests]]
    missing_left = rng.random(len(left)) < _find_shares(like, drawn.cuts == FEW)[feature]
    values = rng.normal(size=(len(left), width)).astype(like.leaf_value.dtype)
    fields: dict[str, Any] = {
        "tree_offset": np.append(0, np.cumsum(sizes)).astype(np.int64),
        "feature": np.where(is_leaf, LEAF, feature).astype(np.int32),
        "threshold": np.where(is_leaf, 0, cut).astype(cut.dtype),
        "left": left,
        "right": np.where(is_leaf, LEAF, left + 1).astype(np.int32),
        "default_left": missing_left & ~is_leaf,
        "leaf_value": np.where(is_leaf[:, None], values, 0).astype(values.dtype),
        "node_id": np.concatenate([np.arange(size) for size in sizes]).astype(np.int32),
        "tree_class": np.resize(like.tree_class[: like.round_size], count).astype(np.int32),
        "tree_id": np.arange(count, dtype=np.int32),
        "n_rounds": drawn.rounds,
    }
    told = ("copied_value", "bare_value", "tree_weight", "tree_round", "hits", "cover", "tile")
    fields |= dict.fromkeys((*told, "with_all_rounds")) | {"tile_size": 1}
    return replace(like, **fields)
