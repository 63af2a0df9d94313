"""Forests without a training library: made by hand or drawn, for what no library trains.

A tree is a leaf, given as a number, or a `Split`. `forest_of` puts trees into a Forest.

    stump = Split(0, 0.5, -1.0, 2.0)                 # row[0] < 0.5 ? -1 : 2
    forest = forest_of([stump, 0.25], base=[0.5])    # one stump, one tree that is a single leaf
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_forest.forest import LEAF, Forest


class Split(NamedTuple):
    """A test; the children are leaves (numbers) or splits."""

    feature: int
    threshold: float
    left: Any
    right: Any
    default_left: bool = False


def forest_of(
    trees: Sequence[Any],
    *,
    n_features: int = 3,
    base: Sequence[float] = (0.0,),
    dtype: str = "float32",
    **fields: Any,
) -> Forest:
    """Return a Forest; tree t belongs to class t modulo the number of base scores."""
    tables = [_nodes(tree) for tree in trees]
    nodes = [node for table in tables for node in table]
    arrays = {
        name: np.array([node[i] for node in nodes], kind)
        for i, (name, kind) in enumerate(COLUMNS.items())
    }
    arrays["threshold"] = arrays["threshold"].astype(dtype)
    arrays["leaf_value"] = arrays["leaf_value"].astype(dtype).reshape(-1, 1)
    order = {
        "tree_offset": np.cumsum([0, *map(len, tables)]),
        "tree_class": np.arange(len(trees), dtype=np.int32) % len(base),
        "tree_id": np.arange(len(trees), dtype=np.int32),
        "base_score": np.array(base, dtype),
    }
    about = {"n_features": n_features, "row_dtype": dtype, "source": "by hand"}
    return Forest(**(arrays | order | about | fields))


def drawn_forest(
    n_trees: int, depth: int, *, seed: int = 0, n_features: int = 4, **fields: Any
) -> Forest:
    """Draw trees of unequal depth, at most `depth`, with mixed default directions."""
    rng = np.random.default_rng(seed)
    trees = [_drawn_tree(rng, depth, n_features) for _ in range(n_trees)]
    return forest_of(trees, n_features=n_features, **fields)


def full_forest(n_trees: int, depth: int, *, seed: int = 0) -> Forest:
    """Draw trees whose leaves all lie at `depth`."""
    rng = np.random.default_rng(seed)
    return forest_of([_drawn_tree(rng, depth, 3, leaf_share=0) for _ in range(n_trees)])


COLUMNS = {
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "default_left": np.bool_,
    "leaf_value": np.float64,
    "node_id": np.int32,
}


def _nodes(tree: Any) -> list[tuple[Any, ...]]:
    """Number the nodes of one tree level by level, one row of `COLUMNS` each."""
    level, table = [tree], []
    while level:
        next_child = len(table) + len(level)
        below: list[Any] = []
        for node in level:
            number = len(table)
            if isinstance(node, Split):
                left = next_child + len(below)
                below += [node.left, node.right]
                test = (node.feature, node.threshold, left, left + 1, node.default_left)
                table.append((*test, 0.0, number))
            else:
                table.append((LEAF, 0.0, LEAF, LEAF, False, node, number))
        level = below
    return table


def _drawn_tree(
    rng: np.random.Generator, depth: int, n_features: int, leaf_share: float = 0.2
) -> Any:
    if depth == 0 or rng.random() < leaf_share:
        return float(rng.normal())
    feature, threshold = int(rng.integers(n_features)), float(rng.normal())
    children = [_drawn_tree(rng, depth - 1, n_features, leaf_share) for _ in range(2)]
    return Split(feature, threshold, *children, bool(rng.random() < 0.5))


def chain(depth: int, step: float = 1.0) -> Any:
    """A tree with one leaf at every depth, now on the left and now on the right."""
    tree: Any = -1.0
    for level in range(depth):
        leaf, test = float(level), step * level
        sides = (leaf, tree) if level % 2 else (tree, leaf)
        tree = Split(level % 3, test, *sides, level % 4 == 0)
    return tree
