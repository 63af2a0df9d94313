"""The schedule that is used when none is given.

takes: Forest, Target; gives: Schedule.
"""

from __future__ import annotations

import numpy as np

from ..forest import Forest
from ..forest_passes.plain import plain
from ..schedule import Schedule
from ..target import Target

ROWS = 64
"""Rows of one block: they and one tree stay in the first-level cache together."""

WALKS = 8
"""Walks that hide each other's loads; with 16 registers more of them spill (measured: 4 walks 1.3
times slower, 12 walks 1.1 times, `airline`, batch 4096, Zen 4)."""


MOST_PADDING = 32
"""Slots of the array layout for each node, above which the sparse layout is taken. Padding costs
memory only: with 9 slots a node (covtype, 800 trees) the array is still 1.7 times faster."""

MOST_COLUMNS = 4
"""Columns to be coded for each hop of a row through the forest, above which the ranked layout is
not taken. `epsilon` has 2.2 of them, and takes half the time that it takes in the array layout."""

WORD = 32
"""Bits that the ranked layout has for a node."""


def _layout(forest: Forest) -> str:
    """Name the layout that was fastest, in batches, on every model that it can hold."""
    if _fits_ranked(forest):
        return "ranked"
    slots = float(np.sum(2.0 ** (forest.depths + 1.0) - 1.0))
    return "array" if slots <= MOST_PADDING * forest.n_nodes else "sparse"


def _fits_ranked(forest: Forest) -> bool:
    """Whether columns, ranks and children fit a word, and coding rows costs less than walking."""
    inner = ~forest.is_leaf
    column = 2 * forest.feature[inner].astype(np.int64) + forest.default_left[inner]
    tests = np.stack([column, forest.threshold[inner]], axis=1, dtype=np.float64)
    columns, counts = np.unique(np.unique(tests, axis=0)[:, 0], return_counts=True)
    most = int(counts.max(initial=0))
    links = 2 * int(np.diff(forest.tree_offset).max()) - 1
    bits = (8 if most <= 255 else 16) + max(0, len(columns) - 1).bit_length() + links.bit_length()
    pays = len(columns) <= MOST_COLUMNS * int(forest.depths.sum())
    return pays and most <= 65535 and bits <= WORD


def new_schedule(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model: one row at a time, tree by tree."""
    arranged = plain(forest)
    rounds = arranged.depths.reshape(-1, arranged.n_outputs).max(axis=1)
    depths = tuple(int(depth) for depth in rounds)
    return Schedule(arranged.n_trees, arranged.n_outputs, depths=depths)


def default_schedule(forest: Forest, target: Target) -> Schedule:
    """Return a good schedule for any number of rows.

    Blocks of rows go through one tree after the other, so a tree is fetched once a block; eight
    rows walk together; blocks run on all cores, if there is more than one.
    """
    forest = plain(forest)
    sch = new_schedule(forest).represent_as(_layout(forest))
    sch = sch.tile("batch", "b0", "b1", ROWS)
    inner = ("class", "tree") if sch.classes > 1 else ("tree",)
    sch = sch.reorder("b0", *inner, "b1").interleave("b1", WALKS)
    return sch.parallel("b0") if target.cores > 1 else sch
