"""Whether a layout holds a model, and whether it is worth while to walk there.

takes: Workload; gives: Fit, for the rules of the default schedules and for the spaces.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..layouts.level_limits import excess, widest_level
from .workload import Workload

COMPLETE, LINKED, PACKED, RANKED, REORDERED = "array", "sparse", "packed", "ranked", "reorg"
PLANES, LEVELS = "bitsliced", "levels"
TILED = frozenset((COMPLETE, LINKED))
LANES_ABILITY, PERMUTE_ABILITY = "avx512f", "avx512vbmi"

MAX_SLOTS_PER_NODE = 32
"""Slots of complete trees for each node, above which the default schedules link nodes instead."""

MAX_TRIED_SLOTS_PER_NODE = 64
"""The same in a search: 4 bytes of a node would take a cache line and more."""

MAX_COLUMNS_PER_HOP = 4.0
"""Columns to be coded for each hop of a row through the forest, up to which ranks pay."""

MAX_COLUMNS_PER_HOP_FEW_ROWS = 0.5
"""The same for batches of 8 rows, and for permutes."""

MAX_STEPS_PER_HOP_ONE_ROW = 0.5
"""Steps of the searches that code a single row, for each hop, up to which ranks pay."""

MAX_PERMUTED_COLUMNS = 128
"""Columns of a coded row up to which permutes pay."""

PERMUTED_TREES = 4
"""Trees that share vectors with 16 rows."""

REGISTER_NODES = 64
"""Inner nodes of one level of a tree whose bytes fit a register of AVX-512."""

MOST_CATEGORIES = 30_000
WORD_BITS = 32
"""Bits for a node that compares ranks, and for a packed node beside its threshold."""


class Fit(NamedTuple):
    """Whether a layout is taken, and why or why not, with the counts that decided."""

    fits: bool
    reason: str


def fit_any(work: Workload) -> Fit:
    """Say that linked nodes hold every model."""
    return Fit(True, "it holds every model")


def fit_complete_trees(work: Workload) -> Fit:
    """Say whether complete trees are not much larger than those that there are."""
    said = f"{work.slots_per_node:.3g} slots for each of {work.forest.n_nodes} nodes"
    if work.slots_per_node > MAX_SLOTS_PER_NODE:
        return Fit(False, f"{said}, {MAX_SLOTS_PER_NODE} pay")
    return Fit(True, said)


def fit_packed(work: Workload) -> Fit:
    """Say whether a number, feature and child fit a word of 8 bytes."""
    forest = work.forest
    if forest.threshold.dtype != np.float32 and forest.row_dtype != "float32":
        return Fit(False, f"rows are {forest.row_dtype}, a word holds float32")
    feature = max(8, (forest.n_features - 1).bit_length()) + 1  # and the default side
    link = _link_bits(work)
    bits = feature + link
    said = f"feature {feature} + child {link} = {bits} bits of {WORD_BITS} beside the threshold"
    return Fit(bits <= WORD_BITS, said)


def _link_bits(work: Workload) -> int:
    """Count the bits of a place in the largest tree, and of the flag of inner nodes."""
    return (2 * int(np.diff(work.forest.tree_offset).max()) - 1).bit_length()


def fit_packed_vectors(work: Workload) -> Fit:
    """Say the same of forests of leaf vectors, which lie apart from the nodes."""
    if not work.forest.has_vectors:
        return Fit(False, "leaves hold one number")
    return fit_packed(work)


def fit_ranked(work: Workload) -> Fit:
    """Say whether ranks, columns and children fit a word, and coding a row costs less than it."""
    return _fit_ranked(work, MAX_COLUMNS_PER_HOP)


def fit_ranked_few_rows(work: Workload) -> Fit:
    """Say the same of batches of few rows, by permutes or by ranks."""
    return _fit_ranked(work, MAX_COLUMNS_PER_HOP_FEW_ROWS)


def fit_ranked_one_row(work: Workload) -> Fit:
    """Say the same of a single row, whose searches hide no waits of each other."""
    fit, forest = fit_ranked(work), work.forest
    steps = np.ceil(np.log2(forest.cuts_per_column + 1)).sum() / max(1, work.hops)
    if fit.fits and steps > MAX_STEPS_PER_HOP_ONE_ROW and not forest.derived:
        said = f"{steps:.2g} steps of searches for each hop, {MAX_STEPS_PER_HOP_ONE_ROW} pay"
        return Fit(False, f"{fit.reason}; {said}")
    return fit


def _fit_ranked(work: Workload, max_columns_per_hop: float) -> Fit:
    counts, hops = work.forest.cuts_per_column, work.hops
    thresholds = int(counts.max(initial=0))
    rank, place = 8 if thresholds <= 255 else 16, max(0, work.columns - 1).bit_length()
    link = _link_bits(work)
    needed, word = rank + place + link, 2 * WORD_BITS if work.forest.derived else WORD_BITS
    said = (
        f"{work.columns} columns, at most {thresholds} thresholds in one: rank {rank} + column "
        f"{place} + child {link} = {needed} bits of {word}"
    )
    if thresholds > 65535 or needed > word:
        return Fit(False, said)
    if work.forest.derived:
        said += f"; features are asked for up to {work.most_categories} categories"
        return Fit(work.most_categories <= MOST_CATEGORIES, said)
    said += f"; {work.columns / max(1, hops):.2g} columns to code for each of {hops} hops"
    if work.columns > max_columns_per_hop * hops:
        return Fit(False, f"{said}, {max_columns_per_hop} pay")
    return Fit(True, said)


def refuse_permutes(work: Workload) -> str | None:
    """Say why bytes cannot hold all fields of nodes, or the CPU cannot permute them."""
    if not work.has(PERMUTE_ABILITY):
        return f"this CPU, as far as known, has no {PERMUTE_ABILITY}"
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if work.forest.has_vectors:
        return "leaves hold vectors, a byte for each is looked up"
    return excess(work.forest)


def fit_permutes(work: Workload) -> Fit:
    """Say whether permutes are possible, and 16 rows are coded for enough hops."""
    forest, refusal = work.forest, refuse_permutes(work)
    if refusal is not None:
        return Fit(False, refusal)
    if forest.n_trees < PERMUTED_TREES * forest.n_outputs:
        counted = f"{forest.n_trees} trees for {forest.n_outputs} outputs"
        return Fit(False, f"{counted}, {PERMUTED_TREES} for each pay")
    said = f"{work.columns} columns for {work.hops} hops"
    if work.columns > min(MAX_PERMUTED_COLUMNS, MAX_COLUMNS_PER_HOP_FEW_ROWS * work.hops):
        pay = f"{MAX_PERMUTED_COLUMNS} and {MAX_COLUMNS_PER_HOP_FEW_ROWS} for each hop pay"
        return Fit(False, f"{said}, {pay}")
    return Fit(True, f"{said}, at most {widest_level(forest)} inner nodes on a level of a tree")


def fit_permutes_few_rows(work: Workload) -> Fit:
    """Say the same of batches of 8 rows, for which each level of a tree must fit a register."""
    widest = widest_level(work.forest)
    if widest > REGISTER_NODES:
        return Fit(
            False, f"{widest} inner nodes on a level of a tree, {REGISTER_NODES} fit a register"
        )
    return fit_permutes(work)


def refuse_planes(work: Workload) -> str | None:
    """Say why bit planes cannot hold a model, or hold it badly."""
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    most = (
        (work.tests, "distinct tests", 60_000),
        (int(work.forest.cuts_per_column.max(initial=0)), "thresholds of a feature", (1 << 16) - 1),
        (int(np.bincount(work.forest.node_tree).max()), "nodes of a tree", 1 << 16),
        (work.forest.n_trees, "trees", 1 << 17),
        (work.most_categories, "categories of a feature", MOST_CATEGORIES),
    )
    over = next((x for x in most if x[0] > x[2]), None)
    return None if over is None else f"{over[0]} {over[1]}, {over[2]} fit"


def fitting_layouts(work: Workload) -> frozenset[str]:
    """Return the layouts without tiles that a search tries: those that hold the model well."""
    complete = work.slots_per_node <= MAX_TRIED_SLOTS_PER_NODE
    fits = {
        RANKED: fit_ranked(work).fits,
        PLANES: refuse_planes(work) is None,
        COMPLETE: complete,
        REORDERED: complete,
        PACKED: fit_packed(work).fits,
        LINKED: True,
        LEVELS: refuse_permutes(work) is None,
    }
    reads_codes = (RANKED, PLANES)  # these know memberships in sets of categories
    return frozenset(
        name
        for name, fit in fits.items()
        if fit and (name in reads_codes or not work.forest.derived)
    )
