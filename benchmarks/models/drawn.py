"""The random models of SilvanForge's study, from seeds.

takes: a number of trees, features, a depth, a seed; gives: Forest, rows.

The study has 100 to 1,000 trees, 8 to 1,024 features and depths of 6 to 8, three models each.
Thresholds, leaf values and rows are uniform in (-10, 10). A node at depth d becomes a leaf with
probability 0.1 * d / depth, but for the root and its children, so leaves begin at depth 2. The
models are regressions with the base score 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tvm_forest.forest import LEAF, Array, Forest

TREES = range(100, 1001, 100)
FEATURES = tuple(8 << k for k in range(8))
DEPTHS = (6, 7, 8)
SEEDS = (0, 1, 2)
ROWS = 8192
LEAF_SHARE = 0.1
"""Of the nodes of the last level but one, about."""
LARGEST = 10.0
"""Of thresholds, leaf values and rows."""


class RandomModel(NamedTuple):
    """What a model is drawn from."""

    trees: int
    features: int
    depth: int
    seed: int

    @property
    def name(self) -> str:
        """Such as "random-100-8-6-0"."""
        return "-".join(["random", *map(str, self)])

    def _generator(self, what: int) -> np.random.Generator:
        return np.random.default_rng([*self, what])

    def rows(self, n: int = ROWS) -> Array:
        """Return (n, features) rows, float32."""
        size = (n, self.features)
        return self._generator(1).uniform(-LARGEST, LARGEST, size).astype(np.float32)

    def forest(self) -> Forest:
        """Draw the forest."""
        rng = self._generator(0)
        parts = [_draw_tree(rng, self.features, self.depth) for _ in range(self.trees)]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        leaf_value = joined.pop("leaf_value").astype(np.float32)[:, None]
        return Forest(
            **joined,
            leaf_value=leaf_value,
            tree_offset=np.cumsum([0, *(len(part["left"]) for part in parts)]),
            tree_class=np.zeros(self.trees, np.int32),
            tree_id=np.arange(self.trees, dtype=np.int32),
            base_score=np.array([0.5], np.float32),
            n_features=self.features,
            row_dtype="float32",
            n_rounds=self.trees,
            source=self.name,
        )


def list_models() -> Iterator[RandomModel]:
    """Yield all 720 models of the study."""
    for trees, features, depth, seed in product(TREES, FEATURES, DEPTHS, SEEDS):
        yield RandomModel(trees, features, depth, seed)


def find(name: str) -> RandomModel:
    """Return the model of a name, such as "random-100-8-6-0"."""
    return RandomModel(*map(int, name.split("-")[1:]))


def _draw_tree(rng: np.random.Generator, features: int, depth: int) -> dict[str, Any]:
    """Return the nodes of a tree, level by level."""
    is_leaf, level = list[Array](), 1
    for d in range(depth + 1):
        share = 1.0 if d == depth else LEAF_SHARE * d / depth if d > 1 else 0.0
        is_leaf.append(rng.random(level) < share)
        level = 2 * int(np.sum(~is_leaf[-1]))
    leaf = np.concatenate(is_leaf)
    n, inner = len(leaf), ~leaf
    left = np.full(n, LEAF, np.int32)
    left[inner] = 1 + 2 * np.arange(inner.sum())
    number = rng.uniform(-LARGEST, LARGEST, n)
    return {
        "feature": np.where(inner, rng.integers(features, size=n), LEAF).astype(np.int32),
        "threshold": np.where(inner, number, 0).astype(np.float32),
        "left": left,
        "right": np.where(inner, left + 1, LEAF).astype(np.int32),
        "default_left": np.zeros(n, bool),
        "leaf_value": np.where(leaf, number, 0),
        "node_id": np.arange(n, dtype=np.int32),
    }
