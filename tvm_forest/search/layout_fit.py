"""Determines which layouts hold a model, on a machine that can walk through them.

takes: Workload; gives: names of layouts, or the reason why one does not fit or would not pay.
`cost` decides which one is fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..layouts import (
    ANY_FOREST,
    BIT_PLANES,
    CODED,
    OCTETS,
    PADDED,
    PERMUTED,
    PIECES,
    TRANSPOSED,
    WORD_NODES,
)
from ..layouts.protocol import find
from .workload import Workload

LANES_ABILITY, PERMUTE_ABILITY = "avx512f", "avx512vbmi"
"""CPU features needed for vector lanes, and for byte permutes."""

MAX_SLOTS_PER_NODE = 64
"""Largest number of slots of complete trees per node; with more, each field of 4 bytes would be in
a cache line of its own."""

WORD_BITS = 32
"""Number of bits for a node's fields other than the threshold, including the default side."""

NEAR_CACHES, WORD_BYTES = 2, 8
"""Number of near caches, and bytes of a one-word node: if these caches hold all nodes, pieces,
whose walks wait for memory together, bring nothing."""

MAX_TESTS, MAX_CATEGORIES = 60_000, 30_000
"""Largest numbers of distinct tests, and of a feature's categories, for codes and bit planes;
the exact limits of layouts are known only when they pack."""

MAX_TILED_HOPS, MAX_TILED_NODES = 12_000, 2_000_000
"""Largest numbers of hops through all trees, and of nodes, for tiles, which take long to build."""


def is_too_large_for_tiles(work: Workload) -> bool:
    """Return whether tiles would take too long to build."""
    return work.hops > MAX_TILED_HOPS or work.forest.n_nodes > MAX_TILED_NODES


def find_obstacle_to_complete(work: Workload) -> str | None:
    """Return why complete trees would be much larger than the model's trees; None if not."""
    if work.slots_per_node <= MAX_SLOTS_PER_NODE:
        return None
    return f"{work.slots_per_node:.3g} slots for each node, {MAX_SLOTS_PER_NODE} at most"


def find_obstacle_to_words(work: Workload) -> str | None:
    """Return why a threshold, feature and child do not fit a word of 8 bytes; None if they do."""
    forest = work.forest
    if forest.threshold.dtype != np.float32 and forest.row_dtype != "float32":
        return f"rows are {forest.row_dtype}, a word holds float32"
    layout: Any = find(WORD_NODES)
    fields = layout.node_bits(forest)
    needed = fields.feature + 1 + fields.link  # one for the default side
    return None if needed <= WORD_BITS else f"fields of {needed} bits, {WORD_BITS} fit"


def find_obstacle_to_codes(work: Workload) -> str | None:
    """Return why rank, column and child do not fit a word, or categories the codes; else None."""
    thresholds = int(work.forest.cuts_per_column.max(initial=0))
    layout: Any = find(CODED)
    rank, column, link, word = layout.node_bits(work.forest)
    if thresholds > np.iinfo(np.uint16).max or rank + column + link > word:
        return f"rank {rank} + column {column} + child {link} bits, {word} fit"
    if work.most_categories > MAX_CATEGORIES:
        return f"{work.most_categories} categories of a feature, {MAX_CATEGORIES} fit"
    return None


def find_obstacle_to_permutes(work: Workload) -> str | None:
    """Return why walks by permutes are not possible for a model and CPU; None if they are."""
    if not work.target.has(PERMUTE_ABILITY):
        return f"this CPU, as far as known, has no {PERMUTE_ABILITY}"
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if work.forest.has_vectors:
        return "leaves hold vectors, a byte for each is looked up"
    return work.unfit(PERMUTED)


def find_obstacle_to_octets(work: Workload) -> str | None:
    """Return why walks by octets are not possible for a model and CPU, or do not pay; else None."""
    if not work.target.has(PERMUTE_ABILITY):
        return f"this CPU, as far as known, has no {PERMUTE_ABILITY}"
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if work.forest.has_vectors and not work.all_oblivious:
        return "leaves hold vectors, which trees one by one are as fast for"
    return work.unfit(OCTETS)


def find_obstacle_to_planes(work: Workload) -> str | None:
    """Return why walks by bit planes are not possible for a model and CPU; None if they are."""
    if work.forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if not work.target.has_bit_masks:
        return "the machine has no instructions for bits of comparisons"
    if work.tests > MAX_TESTS:
        return f"{work.tests} distinct tests, {MAX_TESTS} fit"
    if work.most_categories > MAX_CATEGORIES:
        return f"{work.most_categories} categories of a feature, {MAX_CATEGORIES} fit"
    return work.unfit(BIT_PLANES)


def find_obstacle_to_pieces(work: Workload) -> str | None:
    """Return why the layout of pieces cannot hold a model, or need not be faster; else None."""
    triple = str(dict(work.target.options).get("mtriple", "x86_64"))
    if work.target.has("neon") or not triple.startswith("x86_64"):
        return "only on x86-64 it is known what they take"
    near = work.machine.cache_bytes[:NEAR_CACHES][-1]
    if work.forest.n_nodes * WORD_BYTES <= near:
        return f"{near} bytes of the cache hold all nodes"
    return work.unfit(PIECES)


OBSTACLES: dict[str, Callable[[Workload], str | None]] = {
    BIT_PLANES: find_obstacle_to_planes,
    PERMUTED: find_obstacle_to_permutes,
    OCTETS: find_obstacle_to_octets,
    PIECES: find_obstacle_to_pieces,
    CODED: find_obstacle_to_codes,
    WORD_NODES: find_obstacle_to_words,
    PADDED: find_obstacle_to_complete,
    TRANSPOSED: find_obstacle_to_complete,
    ANY_FOREST: lambda work: None,
}
"""For each layout, a function that returns why it cannot hold a model; None if it can."""


def fitting_layouts(work: Workload) -> frozenset[str]:
    """Return the names of layouts that are worth trying for a model without tiles.

    `ANY_FOREST` is one of them, but for models with sets of categories: these are tried in layouts
    that make membership columns, and in `ANY_FOREST` only if they fit none of these.
    """
    return work.ask_once(_find_fitting)


def _find_fitting(work: Workload) -> frozenset[str]:
    tried = (CODED, BIT_PLANES) if work.forest.derived else tuple(OBSTACLES)
    fitting = frozenset(name for name in tried if OBSTACLES[name](work) is None)
    return fitting or frozenset({ANY_FOREST})
