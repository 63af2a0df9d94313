"""Whether a layout holds a model, and whether walks through it pay.

takes: Workload; gives: Fit, for the rules of the default schedules and for the spaces.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..layouts import (
    ANY_FOREST,
    BIT_PLANES,
    CODED,
    OCTETS,
    PADDED,
    PERMUTED,
    TRANSPOSED,
    WORD_NODES,
)
from ..layouts.representation import find
from .workload import Workload

LANES_ABILITY, PERMUTE_ABILITY = "avx512f", "avx512vbmi"
"""What a CPU must be able to do for lanes, and for permutes."""

# Layouts that are asked for the sizes of their fields, which sentences tell.
_word_nodes: Any = find(WORD_NODES)
_coded: Any = find(CODED)
_permuted: Any = find(PERMUTED)

MAX_SLOTS_PER_NODE = 32
"""Slots of complete trees for each node, above which the default schedules link nodes instead."""

MAX_TRIED_SLOTS_PER_NODE = 64
"""Slots for each node up to which a search tries complete trees: with more, each field of a node,
4 bytes, would lie in a cache line of its own."""

MAX_COLUMNS_PER_HOP = 4.0
"""Columns to be coded for each hop of a row through the forest, up to which ranks pay."""

MAX_COLUMNS_PER_HOP_FEW_ROWS = 0.5
"""Columns for each hop up to which ranks pay for batches of 8 rows, and permutes for any."""

MAX_STEPS_PER_HOP_ONE_ROW = 0.5
"""Steps of the searches that code a single row, for each hop, up to which ranks pay."""

MAX_PERMUTED_COLUMNS = 128
"""Columns of a coded row up to which permutes pay."""

PERMUTED_TREES = 4
"""Trees that share vectors with 16 rows."""

OCTET = 8
"""Trees that one row goes through at once."""

MAX_OCTET_LEAVES = 1 << 19
"""Leaves of complete trees, 8 bytes each with what tests lead there, up to which several rows go
through all trees one after the other."""

REGISTER_NODES = 64
"""Inner nodes of one level of a tree whose bytes fit a register of AVX-512."""

WORD_BITS = 32
"""Bits for the fields of a node beside its threshold, the default side always counted."""

MAX_TESTS, MAX_CATEGORIES = 60_000, 30_000
"""Distinct tests, and categories of a feature, up to which codes and bit planes are tried: what the
layouts hold is known for sure when they are packed."""


class Fit(NamedTuple):
    """Whether a layout is taken, and why or why not, with the counts that decided."""

    fits: bool
    reason: str


def fit_any(work: Workload) -> Fit:
    """Say that the layout of last resort holds every model."""
    return Fit(True, "it holds every model")


def fit_padded(work: Workload) -> Fit:
    """Say whether complete trees are not much larger than those that there are."""
    counts = f"{work.slots_per_node:.3g} slots for each of {work.forest.n_nodes} nodes"
    if work.slots_per_node > MAX_SLOTS_PER_NODE:
        return Fit(False, f"{counts}, {MAX_SLOTS_PER_NODE} pay")
    return Fit(True, counts)


def fit_word_nodes(work: Workload) -> Fit:
    """Say whether a number, feature and child fit a word of 8 bytes."""
    forest = work.forest
    if forest.threshold.dtype != np.float32 and forest.row_dtype != "float32":
        return Fit(False, f"rows are {forest.row_dtype}, a word holds float32")
    fields = _word_nodes.node_bits(forest)
    feature, link = fields.feature + 1, fields.link  # one for the default side
    counts = f"feature {feature} + child {link} = {feature + link} bits of {WORD_BITS}"
    return Fit(feature + link <= WORD_BITS, f"{counts} beside the threshold")


def fit_leaf_vectors(work: Workload) -> Fit:
    """Say whether leaves hold vectors, which lie apart, and the rest of a node fits a word."""
    if not work.forest.has_vectors:
        return Fit(False, "leaves hold one number")
    return fit_word_nodes(work)


def fit_codes_one_row(work: Workload) -> Fit:
    """Say whether codes pay for a single row: the searches that code it must be short too."""
    fit, forest = fit_codes(work), work.forest
    steps = np.ceil(np.log2(forest.cuts_per_column + 1)).sum() / max(1, work.hops)
    if fit.fits and steps > MAX_STEPS_PER_HOP_ONE_ROW and not forest.derived:
        counts = f"{steps:.2g} steps of searches for each hop, {MAX_STEPS_PER_HOP_ONE_ROW} pay"
        return Fit(False, f"{fit.reason}; {counts}")
    return fit


def fit_codes(work: Workload, few_rows: bool = False) -> Fit:
    """Say whether rank, column and child fit a word, and few columns are coded for each hop.

    Nodes that compare ranks need rows that are coded before they are walked. In batches of 8 rows,
    fewer columns pay.
    """
    max_columns_per_hop = MAX_COLUMNS_PER_HOP_FEW_ROWS if few_rows else MAX_COLUMNS_PER_HOP
    hops, thresholds = work.hops, int(work.forest.cuts_per_column.max(initial=0))
    rank, column, link, word = _coded.node_bits(work.forest)
    needed = rank + column + link
    counts = (
        f"{work.columns} columns, at most {thresholds} thresholds in one: rank {rank} + column "
        f"{column} + child {link} = {needed} bits of {word}"
    )
    if thresholds > np.iinfo(np.uint16).max or needed > word:
        return Fit(False, counts)
    if work.forest.derived:
        counts += f"; features are asked for up to {work.most_categories} categories"
        return Fit(work.most_categories <= MAX_CATEGORIES, counts)
    counts += f"; {work.columns / max(1, hops):.2g} columns to code for each of {hops} hops"
    if work.columns > max_columns_per_hop * hops:
        return Fit(False, f"{counts}, {max_columns_per_hop} pay")
    return Fit(True, counts)


def refuse_permutes(work: Workload) -> str | None:
    """Say why bytes cannot hold all fields of nodes, or the CPU cannot permute them."""
    if not work.has(PERMUTE_ABILITY):
        return f"this CPU, as far as known, has no {PERMUTE_ABILITY}"
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if work.forest.has_vectors:
        return "leaves hold vectors, a byte for each is looked up"
    return work.unfit(PERMUTED)


def fit_permutes(work: Workload) -> Fit:
    """Say whether permutes are possible, and 16 rows are coded for enough hops."""
    forest, refusal = work.forest, refuse_permutes(work)
    if refusal is not None:
        return Fit(False, refusal)
    if forest.n_trees < PERMUTED_TREES * forest.n_outputs:
        counted = f"{forest.n_trees} trees for {forest.n_outputs} outputs"
        return Fit(False, f"{counted}, {PERMUTED_TREES} for each pay")
    counts = f"{work.columns} columns for {work.hops} hops"
    if work.columns > min(MAX_PERMUTED_COLUMNS, MAX_COLUMNS_PER_HOP_FEW_ROWS * work.hops):
        pay = f"{MAX_PERMUTED_COLUMNS} and {MAX_COLUMNS_PER_HOP_FEW_ROWS} for each hop pay"
        return Fit(False, f"{counts}, {pay}")
    widest = f"at most {_permuted.widest_level(forest)} inner nodes on a level of a tree"
    return Fit(True, f"{counts}, {widest}")


def fit_permutes_few_rows(work: Workload) -> Fit:
    """Say whether permutes pay for 8 rows: each level of a tree must fit a register too."""
    widest = _permuted.widest_level(work.forest)
    if widest > REGISTER_NODES:
        counts = f"{widest} inner nodes on a level of a tree"
        return Fit(False, f"{counts}, {REGISTER_NODES} fit a register")
    return fit_permutes(work)


def refuse_octets(work: Workload) -> str | None:
    """Say why tiles of bytes cannot hold a model, or the CPU cannot permute them."""
    if not work.has(PERMUTE_ABILITY):
        return f"this CPU, as far as known, has no {PERMUTE_ABILITY}"
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if work.forest.has_vectors:
        return "leaves hold vectors, which trees one by one are as fast for"
    return work.unfit(OCTETS)


def fit_octets(work: Workload) -> Fit:
    """Say whether rows go through 8 trees at once: few slots are empty, few columns are coded."""
    forest, refusal = work.forest, refuse_octets(work)
    if refusal is not None:
        return Fit(False, refusal)
    if forest.n_trees < OCTET * forest.round_size:
        return Fit(False, f"{forest.n_trees} trees for {forest.round_size} outputs, {OCTET} pay")
    slots = forest.n_trees << int(forest.depths.max(initial=0)) + 1
    counts = f"{slots / forest.n_nodes:.3g} slots for each of {forest.n_nodes} nodes"
    if slots > MAX_SLOTS_PER_NODE * forest.n_nodes:
        return Fit(False, f"{counts}, {MAX_SLOTS_PER_NODE} pay")
    counts += f"; {work.columns} columns for {work.hops} hops"
    return Fit(work.columns <= MAX_COLUMNS_PER_HOP_FEW_ROWS * work.hops, counts)


def fit_octets_some_rows(work: Workload) -> Fit:
    """Say the same for 12 rows and more: each fetches the trees anew, which have to be near."""
    fit, leaves = fit_octets(work), work.forest.n_trees << int(work.forest.depths.max(initial=0))
    if fit.fits and leaves > MAX_OCTET_LEAVES:
        return Fit(False, f"{fit.reason}; {leaves} leaves, {MAX_OCTET_LEAVES} stay in near caches")
    return fit


def refuse_planes(work: Workload) -> str | None:
    """Say why bit planes cannot hold a model, or hold it badly."""
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if not work.target.has_bit_masks:
        return "the machine has no instructions for bits of comparisons"
    if work.tests > MAX_TESTS:
        return f"{work.tests} distinct tests, {MAX_TESTS} fit"
    if work.most_categories > MAX_CATEGORIES:
        return f"{work.most_categories} categories of a feature, {MAX_CATEGORIES} fit"
    return work.unfit(BIT_PLANES)


def fitting_layouts(work: Workload) -> frozenset[str]:
    """Return the layouts without tiles that a search tries: those that hold the model well."""
    coded = {CODED: fit_codes(work).fits, BIT_PLANES: refuse_planes(work) is None}
    padded = work.slots_per_node <= MAX_TRIED_SLOTS_PER_NODE
    others = {
        PADDED: padded,
        TRANSPOSED: padded,
        WORD_NODES: fit_word_nodes(work).fits,
        PERMUTED: refuse_permutes(work) is None,
        OCTETS: refuse_octets(work) is None,
        ANY_FOREST: True,
    }
    fits = coded if work.forest.derived else coded | others  # memberships are known to codes
    return frozenset(name for name, fit in fits.items() if fit)
