"""Models with trees of usual shapes, drawn for the code that such as they will need.

takes: a trained Forest in canonical form; gives: forests with its columns, outputs and dtypes.

Trees, tests and leaves are drawn. What they say does not matter: code depends on shapes alone.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.rules import LEAF

DEPTHS = (3, 4, 5, 6, 7, 8, 9)
"""Levels of trees that grow level by level, as XGBoost and CatBoost grow them."""

SPLITS = (1.0, 0.97, 0.92, 0.85)
"""Which share of the nodes of a level has children: of full trees, of nearly full ones, and of such
as are too deep for the rows."""

LEAVES = (7, 15, 31, 63, 127)
"""Leaves of trees that grow where it pays, as LightGBM does it."""

BENDS = (2.5, 0.8)
"""How these look: some of the first are broad, all of the second are deep."""

TREES = 8
"""Trees that differ in a model, where any do."""

ROUNDS, COMPILED_ROUNDS = (25, 50, 100, 200, 500, 1000), (500, 100)
"""Numbers of rounds, by which schedules are chosen, and those for which code is compiled."""

FEW, BINS, MANY = 30, 240, 4000
"""Thresholds of a feature: of small models, of trainings that sort them into bins, of others."""

MAX_BYTE = 255
"""Thresholds of a feature that a byte tells apart."""

LOPSIDED = 1.2
"""How much deeper trees are than full ones, on average, if they grow where it pays."""

REPEATED = 0.97
"""Which share of the thresholds that tests would find among 255 is as many as without bins."""

MAX_NODES = 500_000
"""Nodes of a model: larger ones are rare, and take long to draw."""


class TreeShape(NamedTuple):
    """How trees look.

    Attributes:
        depth: levels of trees that grow level by level; 0 for such as grow where it pays.
        split: which share of the nodes of a level has children.
        leaves: of trees that grow where it pays.
        bend: how likely leaves near the root are split: 0 for the deepest ones only.
    """

    depth: int = 0
    split: float = 1.0
    leaves: int = 0
    bend: float = 1.0

    def grow(self) -> list[Array]:
        """Return the left children of some trees, -1 at leaves; the right ones follow them."""
        if self.leaves:
            return [_grow_leaves(self, seed) for seed in range(TREES)]
        return [_grow_levels(self, seed) for seed in range(TREES if self.split < 1 else 1)]


class Drawn(NamedTuple):
    """What a model is drawn by.

    Attributes:
        shape: of its trees.
        rounds: of trees.
        cuts: thresholds of a feature that tests are drawn from.
    """

    shape: TreeShape
    rounds: int
    cuts: int

    @property
    def is_compiled(self) -> bool:
        """Whether code is compiled for it; for others, schedules are chosen only."""
        return self.rounds in (COMPILED_ROUNDS[1:] if self.cuts == FEW else COMPILED_ROUNDS)


def list_drawn(like: Forest) -> list[Drawn]:
    """List what is drawn for a model in canonical form, by trees that grow as its own do."""
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
    """Return whether trees are as if they had been given a number of leaves, and not a depth."""
    leaves, depth = like.leaf_counts, like.depths
    is_lopsided = np.mean(depth / np.log2(np.maximum(2, leaves))) > LOPSIDED
    return bool(
        is_lopsided and (np.mean(leaves == leaves.max()) > 0.9 or depth.max() > max(DEPTHS))
    )


def _has_bins(like: Forest) -> bool:
    """Return whether thresholds repeat as often as if there were few that tests choose from."""
    tests = np.bincount(like.column[~like.is_leaf])
    expected = MAX_BYTE * (1 - (1 - 1 / MAX_BYTE) ** tests)
    cuts = like.cuts_per_column
    return bool(cuts.max(initial=0) <= MAX_BYTE and cuts.sum() < REPEATED * expected.sum())


def _grow_levels(shape: TreeShape, seed: int) -> Array:
    """Return the left children of a tree that grows level by level."""
    rng, left, first, count = np.random.default_rng(seed), list[Array](), 0, 1
    for level in range(shape.depth):
        is_split = (rng.random(count) < shape.split) | (level < 2) | (np.arange(count) == 0)
        children = first + count + 2 * np.cumsum(is_split) - 2
        left.append(np.where(is_split, children, LEAF))
        first, count = first + count, 2 * int(is_split.sum())
    return np.concatenate([*left, np.full(count, LEAF)])


def _grow_leaves(shape: TreeShape, seed: int) -> Array:
    """Return the left children of a tree in which leaves are split that were drawn."""
    rng, left = np.random.default_rng(seed), np.full(2 * shape.leaves - 1, LEAF)
    ends = [0]
    for split in range(shape.leaves - 1):
        # later leaves are deeper: some trees of a model are, and others are not
        at = ends.pop(int(len(ends) * rng.random() ** (shape.bend / (1 + seed / 4))))
        left[at] = 2 * split + 1
        ends += [2 * split + 1, 2 * split + 2]
    return left


def _number_tests(left: Array, by_level: bool) -> Array:
    """Number the tests of a tree: one for each node, or for each level."""
    node = np.arange(len(left))
    return np.frexp(node + 1)[1] if by_level else node


def _find_shares(like: Forest, few: bool) -> Array:
    """Return for each feature at which share of its tests missing values go left.

    Where there are few tests, half of the features have them all on one side.
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
    """Return a model with drawn tests and leaves, of the features that another one tests."""
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
