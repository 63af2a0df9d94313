"""Which trees a bit-sliced walk takes complete, and which as a list of selections.

takes: Forest; gives: what the layout and its cost model must agree on.
"""

from __future__ import annotations

import numpy as np

from ..forest import Array, Forest

MOST_DEPTH = 8
"""Levels of a complete tree. Twice the code for one more."""

MOST_SLOTS = 8
"""Complete slots for each leaf, above which a tree is a list of selections: a selection of a list
takes 3.5 times as long as one of a complete tree, and there are 2 to 3 for each node."""


RARE = 64
"""Of so many trees, one of a depth of its own is not worth code of its own: a tree of 8 levels
among 199 lists took 0.25 s to compile (`lgb_cat`)."""


def leaves_of_trees(forest: Forest) -> Array:
    """Return int64 (T,), the number of leaves of each tree."""
    return np.bincount(forest.node_tree[forest.is_leaf], minlength=forest.n_trees)


def is_listed(forest: Forest) -> Array:
    """Return bool (T,), whether a tree is too deep or empty to be made complete, or too rare."""
    depth = np.minimum(forest.depths.astype(np.int64), 40)
    listed = (depth > MOST_DEPTH) | (1 << depth > MOST_SLOTS * leaves_of_trees(forest))
    alike = np.bincount(depth[~listed], minlength=41)
    return listed | (RARE * alike[depth] < forest.n_trees)
