"""Which forests fit tables of bytes, level by level.

takes: Forest; gives: what the layout of levels and the rule for it must agree on.
"""

from __future__ import annotations

import numpy as np

from ..forest import Forest
from .selection_limits import leaves_of_trees

REGISTER = 64
"""Bytes of a register of AVX-512."""

MOST_INNER = 2 * REGISTER
"""Inner nodes of one level of a tree: their children are counted by a byte."""

MOST = 256
"""What a byte tells apart: columns of coded rows, leaves of a tree."""


def widest_level(forest: Forest) -> int:
    """Return the greatest number of inner nodes on one level of a tree."""
    inner = ~forest.is_leaf
    levels = int(forest.depths.max(initial=0)) + 1
    place = forest.node_tree[inner].astype(np.int64) * levels + forest.hop_depth[inner]
    return int(np.bincount(place).max(initial=0))


def excess(forest: Forest) -> str | None:
    """Say what bytes cannot count, or what rows in lanes cannot be asked; None if all fits."""
    if forest.derived:
        return "memberships in sets of categories"
    cuts = forest.cuts_per_column
    counts = (
        (int(cuts.max(initial=0)), "thresholds of a feature", MOST - 1),
        (len(cuts), "columns", MOST),
        (widest_level(forest), "inner nodes on a level of a tree", MOST_INNER),
        (int(leaves_of_trees(forest).max(initial=0)), "leaves of a tree", MOST),
    )
    over = next((x for x in counts if x[0] > x[2]), None)
    return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"
