"""When bit-slicing pays: what a block of rows costs, from counts of the model.

takes: Forest; gives: nanoseconds, Schedule.

A block costs the same whether it is full or not, so slicing pays from some number of rows on. The
constants were measured on one core of Zen 4 (AVX-512); their ratios decide, not their size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..forest import Forest
from ..forest_passes.slicing import is_listed, leaves_of_trees
from ..schedule import Schedule

BLOCK = 512
"""Rows of a block. Smaller blocks would serve smaller batches better, 256 rows 1.4 times as fast
(`airline`), but each is code of its own, 0.7 s to compile."""

HOP = 0.55
"""A hop of a row, where rows walk together through ranked nodes."""

SLOT = 0.42
"""A slot of a complete tree, for all rows of a block, up to 512."""

SELECTION = 2.7
"""A selection of a list, for all rows of a block."""

PER_NODE = 3.2
"""Selections for each inner node of a listed tree, on trees of 255 leaves."""

VALUE = {"float32": 1.4, "float64": 2.5}
"""To code one value of a row."""

LEAF = {True: 0.2, False: 0.6}
"""To look up and add one leaf of a row, by bytes in registers or one by one."""

GAIN = 0.9
"""The share of the time of walking below which slicing is taken."""

MOST_TESTS = 60_000
MOST_THRESHOLDS = (1 << 16) - 1
MOST_LEAVES = 1 << 16
MOST_TREES = 1 << 17
"""What the layout holds, on the safe side."""


class Counts(NamedTuple):
    """What decides.

    Attributes:
        columns: columns of a coded row.
        tests: distinct tests.
        slots: of complete trees.
        selections: of other trees, about.
        hops: of a row through all trees.
        trees: number of them.
        by_bytes: whether leaves are looked up by bytes.
    """

    columns: int
    tests: int
    slots: int
    selections: int
    hops: int
    trees: int
    by_bytes: bool


def counts_of(forest: Forest) -> Counts:
    """Count what a block of rows has to do."""
    columns = forest.cuts_per_column
    depth = np.minimum(forest.depths.astype(np.int64), 40)
    leaves, listed = leaves_of_trees(forest), is_listed(forest)
    wide = listed.any() and leaves[listed].max() > 256
    return Counts(
        len(columns),
        int(columns.sum()),
        int((1 << depth[~listed]).sum()),
        int(PER_NODE * leaves[listed].sum()),
        int(forest.depths.sum()),
        forest.n_trees,
        forest.leaf_value.dtype == np.float32 and not wide,
    )


def unfit(forest: Forest, counts: Counts) -> str | None:
    """Say why the layout cannot hold a forest, or holds it badly."""
    if forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    most = (
        (counts.tests, "distinct tests", MOST_TESTS),
        (int(forest.cuts_per_column.max(initial=0)), "thresholds of a feature", MOST_THRESHOLDS),
        (int(np.bincount(forest.node_tree).max()), "nodes of a tree", MOST_LEAVES),
        (counts.trees, "trees", MOST_TREES),
    )
    over = next((x for x in most if x[0] > x[2]), None)
    return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"


def cost_of_slicing(forest: Forest, counts: Counts, rows: int) -> float:
    """Nanoseconds a row, for a batch of at most one block."""
    trees = SLOT * counts.slots + SELECTION * counts.selections + SLOT * counts.tests
    leaves = LEAF[counts.by_bytes] * counts.trees * BLOCK
    return (trees + leaves) / rows + VALUE[forest.row_dtype] * counts.columns


def cost_of_walking(forest: Forest, counts: Counts) -> float:
    """Nanoseconds a row where rows walk together."""
    return HOP * counts.hops + VALUE[forest.row_dtype] * counts.columns


def sliced(sch: Schedule, block: int, parallel: bool) -> Schedule:
    """Return the schedule that evaluates blocks of so many rows by bits."""
    sch = sch.represent_as("bitsliced").tile("batch", "b0", "b1", block)
    inner = ("class", "tree") if sch.classes > 1 else ("tree",)
    sch = sch.reorder("b0", *inner, "b1").simdize("b1", "bits")
    return sch.parallel("b0") if parallel else sch
