"""Drawn forests some of whose nodes ask for categories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_forest.forest import CategoryRule, Forest

SETS = ((0, 3), (1,), (2, 7, 40), ())


def asking(forest: Forest, rule: CategoryRule, share: float = 0.5) -> Forest:
    """Let some nodes of the features 0 and 1 ask for categories."""
    rng = np.random.default_rng(1)
    inner = np.flatnonzero((forest.feature == 0) | (forest.feature == 1))
    asks = inner[rng.random(len(inner)) < share]
    categories = {int(node): SETS[rng.integers(len(SETS))] for node in asks}
    return replace(forest, categories=categories, category_rule=rule)
