"""Counts of a model that decide which schedules are worth a trial, and what they may cost.

takes: Forest, Target; gives: Facts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..forest import Forest
from ..forest.rewrites.canonical_form import plain
from ..layouts.levels import LevelsLayout
from ..schedule_prims.walks import LANES
from ..target import Target
from . import bits, heuristic

MOST_SLOTS = 64
"""Slots of the array layout for each node above which it is not tried: 4 bytes of a node would
take a cache line and more, and `skl_rf_reg` would take 1 GB."""


class Facts(NamedTuple):
    """What is counted once for a model.

    Attributes:
        trees: number of them.
        nodes: leaves included.
        hops: of a row through all trees, at most.
        deepest: hops to the deepest leaf of any tree.
        shallowest: hops to the nearest leaf of any tree.
        lopsided: mean depth of a leaf over that of its tree.
        columns: searches to code a row.
        outputs: margins of a row.
        vectors: whether leaves hold a value for each output.
        wide: whether rows are float64.
        layouts: those without tiles that hold the model.
        tiled: those with tiles.
        slicing: by rows of a block of bits, nanoseconds of a block, and of each row besides.
        vendor: who made the CPU, see `Target`.
    """

    trees: int
    nodes: int
    hops: int
    deepest: int
    shallowest: int
    lopsided: float
    columns: int
    outputs: int
    vectors: bool
    wide: bool
    layouts: frozenset[str]
    tiled: frozenset[str]
    slicing: dict[int, tuple[float, float]]
    vendor: str

    @classmethod
    def of(cls, forest: Forest, target: Target) -> Facts:
        """Count; the order of trees and their tiles do not matter."""
        forest = plain(forest)
        leaf, counts = forest.is_leaf, bits.counts_of(forest, target.vendor)
        depth = forest.hop_depth[leaf]
        each_row = bits.cost_of_each_row(forest, counts)
        of_tree = max(1.0, float(forest.depths[forest.node_tree[leaf]].mean()))
        return cls(
            forest.n_trees,
            forest.n_nodes,
            max(1, int(forest.depths.sum())),
            int(forest.depths.max(initial=0)),
            int(depth.min(initial=64)),
            float(depth.mean()) / of_tree,
            counts.columns,
            forest.n_outputs,
            forest.has_vectors,
            forest.row_dtype == "float64",
            *_layouts(forest, target, counts),
            {x: (bits.cost_of_block(counts, x), each_row) for x in LANES["bits"]},
            target.vendor,
        )


def _layouts(
    forest: Forest, target: Target, counts: bits.Counts
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the layouts that hold a model, without tiles and with; nothing is compiled for it."""
    slots = float(np.sum(2.0 ** (forest.depths + 1.0)))
    padded = slots <= MOST_SLOTS * forest.n_nodes
    permutes = heuristic.VBMI in (target.abilities or ()) and forest.leaf_const is None
    held = {
        "array": padded,
        "reorg": padded,
        "packed": heuristic.fits_packed(forest)[0],
        "ranked": heuristic.fits_ranked(forest, heuristic.MOST_COLUMNS)[0],
        "sparse": True,
        "levels": permutes and not forest.has_vectors and LevelsLayout.unfit(forest) is None,
        "bitsliced": bits.unfit(forest, counts) is None,
    }
    if forest.derived:  # memberships in categories are known to codes of rows
        held = {name: x and name in ("ranked", "bitsliced") for name, x in held.items()}
    found = frozenset(name for name, holds in held.items() if holds)
    return found, found & {"array", "sparse"}
