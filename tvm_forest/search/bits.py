"""When bit-slicing pays: what a block of rows costs, from counts of the model.

takes: Forest; gives: nanoseconds, Schedule.

A block costs the same whether it is full or not, so slicing pays from some number of rows on. What
its steps take is in `nanoseconds`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..forest import Forest
from ..layouts.complete_trees import count_leaves
from ..layouts.selections import is_listed
from ..schedule import Schedule
from .nanoseconds import Nanoseconds, nanoseconds_of

ROWS = 64
"""Rows of a block that walk together through ranked nodes."""

BLOCK = 512
"""Rows of a block of a large batch, by bits."""

SMALLER = 256
"""Rows of a block of a batch of less than `BLOCK` rows: 64, 128 and 256 rows take 0.52 to 0.97
of the time that they take in blocks of 512 (ten models). Each size is code of its own to compile.
"""

FEWEST = 64
"""The same of a batch of less than 128 rows, where an estimate says that it gains much. In the time
of blocks of 256 rows: Zen 4, `abalone` 0.78 (0.5 by estimate), others 0.8 to 1.1 (0.6 to 0.9); a
Xeon, `year` 0.57, `abalone` 0.6, `xgb_nan` 0.64, `covtype` 0.69, others 0.86 to 1.04."""

SMALL_SHARE = 0.15
"""Large batches go in smaller blocks too where a block costs at most this share of what its rows
cost anyway: `epsilon`, 2,000 columns of which 1,200 are coded."""

GAIN = 0.9
"""The share of the time of walking below which slicing is taken."""

PER_NODE = 3.2
"""Selections for each inner node of a listed tree, on trees of 255 leaves."""

MOST_TESTS = 60_000
MOST_THRESHOLDS = (1 << 16) - 1
MOST_LEAVES = 1 << 16
MOST_CATEGORIES = 30_000
MOST_TREES = 1 << 17
"""What the layout holds, on the safe side."""


class Counts(NamedTuple):
    """What decides.

    Attributes:
        columns: searches for a row.
        sets: columns of memberships.
        named: categories by which these are named.
        codes: bytes of a row's codes.
        tests: distinct tests.
        slots: of complete trees.
        selections: of other trees, about.
        hops: of a row through all trees.
        trees: number of them.
        by_bytes: whether leaves are looked up by bytes.
        values: of a leaf that holds a vector; 0 if leaves hold one value.
        ns: what each of these takes.
    """

    columns: int
    sets: int
    named: int
    codes: int
    tests: int
    slots: int
    selections: int
    hops: int
    trees: int
    by_bytes: bool
    values: int
    ns: Nanoseconds


def counts_of(forest: Forest, vendor: str = "") -> Counts:
    """Count what a block of rows has to do on a CPU, see `Target.vendor`."""
    cuts = forest.cuts_per_column
    depth = np.minimum(forest.depths.astype(np.int64), 40)
    leaves, listed = count_leaves(forest), is_listed(forest)
    wide = listed.any() and leaves[listed].max() > 256
    return Counts(
        forest.searches,
        sum(x.sets for x in forest.questions),
        sum(x.named for x in forest.questions),
        len(cuts) * (1 if cuts.max(initial=0) <= 255 else 2),
        int(cuts.sum()),
        int((1 << depth[~listed]).sum()),
        int(PER_NODE * leaves[listed].sum()),
        int(forest.depths.sum()),
        forest.n_trees,
        forest.leaf_value.dtype == np.float32 and not wide,
        forest.n_outputs if forest.has_vectors else 0,
        nanoseconds_of(vendor),
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
        (most_categories(forest), "categories of a feature", MOST_CATEGORIES),
    )
    over = next((x for x in most if x[0] > x[2]), None)
    return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"


def most_categories(forest: Forest) -> int:
    """Return for how many categories a feature is asked at most."""
    return max((x.categories for x in forest.questions), default=0)


def block_of(forest: Forest, counts: Counts, rows: int) -> int:
    """Return the rows of a block of a batch: fewer where that serves it better, or all as well.

    Small blocks leave something to do for each core.
    """
    fewest, smaller = (cost_of_slicing(forest, counts, x, rows) for x in (FEWEST, SMALLER))
    if rows < 2 * FEWEST and fewest < counts.ns.fewest * smaller:
        return FEWEST
    of_block = cost_of_block(counts, SMALLER) / SMALLER
    is_little = of_block < SMALL_SHARE * cost_of_each_row(forest, counts)
    return SMALLER if is_little or rows < BLOCK else BLOCK


def cost_of_slicing(forest: Forest, counts: Counts, block: int, rows: int) -> float:
    """Nanoseconds a row, for a batch of full blocks, or of part of one."""
    return cost_of_block(counts, block) / min(rows, block) + cost_of_each_row(forest, counts)


def cost_of_block(counts: Counts, block: int) -> float:
    """Nanoseconds of a block, whether it is full or not, but for what each of its rows adds."""
    ns = counts.ns
    test = ns.test_of_vectors if counts.values else ns.slot
    trees = ns.slot * counts.slots + ns.selection * counts.selections + test * counts.tests
    leaf = ns.leaf_by_bytes if counts.by_bytes else ns.leaf
    leaves = 0 if counts.values else leaf * counts.trees * block
    return (trees + ns.united * counts.named) * ns.share[block] + leaves


def cost_of_walking(forest: Forest, counts: Counts, permuted: bool) -> float:
    """Nanoseconds a row where rows walk together, or by permutes."""
    ns = counts.ns
    hop = ns.hop if is_near(counts, ns.rows_of_far or ROWS) else ns.far_hop
    hop = ns.permuted + ns.permuted_column * counts.columns if permuted else hop
    return hop * counts.hops + ns.copied * counts.sets + cost_of_each_row(forest, counts)


def is_near(counts: Counts, rows: int) -> bool:
    """Whether the first-level cache holds the codes of so many rows."""
    return counts.codes * rows <= counts.ns.near


def cost_of_each_row(forest: Forest, counts: Counts) -> float:
    """Nanoseconds to code the values of a row, and to add the vectors of its leaves."""
    ns = counts.ns
    leaf = ns.leaf_of_vector + ns.value_of_vector * counts.values if counts.values else 0
    value = ns.value if forest.row_dtype == "float32" else ns.wide_value
    return value * counts.columns + leaf * counts.trees


def sliced(sch: Schedule, block: int, parallel: bool) -> Schedule:
    """Return the schedule that evaluates blocks of so many rows by bits."""
    sch = sch.represent_as("bitsliced").tile("batch", "b0", "b1", block)
    inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
    sch = sch.reorder("b0", *inner, "b1").simdize("b1", "bits")
    return sch.parallel("b0") if parallel else sch
