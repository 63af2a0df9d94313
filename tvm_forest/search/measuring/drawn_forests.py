"""Generates forests with equal trees, so that operation counts are known exactly.

takes: Shape; gives: Forest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...forest import LEAF, Array, Forest

LEVELS_WITHOUT_LEAVES = 2
"""First levels of a lopsided tree, which contain no leaves."""


class Shape(NamedTuple):
    """The shape of a generated forest: complete or lopsided trees.

    Attributes:
        trees, depth, features: number of trees, their depth, and number of columns.
        cuts: most distinct thresholds of a column.
        outputs: number of values per leaf.
        lopsided: whether every left child is a leaf from the third level on.
        dtype: dtype of rows and thresholds.
    """

    trees: int
    depth: int
    features: int = 16
    cuts: int = 200
    outputs: int = 1
    lopsided: bool = False
    dtype: str = "float32"


def draw_forest(shape: Shape, seed: int = 0) -> Forest:
    """Generate a forest of a shape; thresholds and rows are numbers from 0 to 1.

    Each test roughly halves the feature's range left by the tests above it, so rows spread over all
    leaves, and loads over all nodes.
    """
    rng = np.random.default_rng(seed)
    left = _draw_tree(shape)
    nodes, inner = len(left), left != LEAF
    count = shape.trees * nodes
    feature, cut = _draw_tests(shape, left, rng)
    leaves = rng.normal(size=(count, shape.outputs)) * (feature == LEAF)[:, None]
    return Forest(
        tree_offset=np.arange(shape.trees + 1) * nodes,
        feature=feature.astype(np.int32),
        threshold=(cut / (shape.cuts + 1)).astype(shape.dtype),
        left=np.tile(left, shape.trees).astype(np.int32),
        right=np.tile(np.where(inner, left + 1, LEAF), shape.trees).astype(np.int32),
        default_left=np.zeros(count, bool),
        leaf_value=leaves.astype(shape.dtype),
        node_id=np.tile(np.arange(nodes, dtype=np.int32), shape.trees),
        tree_class=np.full(shape.trees, 0 if shape.outputs == 1 else -1, np.int32),
        tree_id=np.arange(shape.trees, dtype=np.int32),
        base_score=np.zeros(shape.outputs, shape.dtype),
        n_features=shape.features,
        row_dtype=shape.dtype,
        source="calibration",
    )


def _draw_tree(shape: Shape) -> Array:
    """Return the left child of each node of a tree, LEAF at leaves; the right one is the next.

    Nodes are numbered level by level from 0.
    """
    left, level = list[int](), [True]  # whether the nodes of a level have children
    for depth in range(shape.depth):
        child, below = len(left) + len(level), list[bool]()
        for splits in level:
            left.append(child + len(below) if splits else LEAF)
            below += [not shape.lopsided or depth < LEVELS_WITHOUT_LEAVES, True] * splits
        level = below
    return np.array(left + [LEAF] * len(level), np.int64)


def _draw_tests(shape: Shape, left: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return (features, cuts) of all nodes, tree by tree; `left` has one tree's left children."""
    feature = np.full((shape.trees, len(left)), LEAF, np.int32)
    cut = np.zeros(feature.shape)
    low = np.zeros((shape.trees, 1, shape.features), np.int16)
    high = np.full(low.shape, shape.cuts + 1, np.int16)
    begin, width = 0, 1
    while width:
        inner = begin + np.flatnonzero(left[begin : begin + width] != LEAF)
        low, high = (np.repeat(x[:, inner - begin], 2, axis=1) for x in (low, high))
        tested = rng.integers(shape.features, size=(shape.trees, len(inner)))
        place = np.repeat(tested, 2, axis=1)[..., None]  # in the ranges of both children
        begins, ends = (np.take_along_axis(x, place, 2)[:, ::2, 0] for x in (low, high))
        share = rng.uniform(0.4, 0.6, size=tested.shape)
        chosen = np.clip(begins + np.round((ends - begins) * share), 1, shape.cuts)
        feature[:, inner], cut[:, inner] = tested, chosen
        np.put_along_axis(high[:, ::2], tested[..., None], chosen[..., None], 2)
        np.put_along_axis(low[:, 1::2], tested[..., None], chosen[..., None], 2)
        begin, width = begin + width, 2 * len(inner)
    return feature.ravel(), cut.ravel()
