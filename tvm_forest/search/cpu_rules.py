"""The rules of the default schedules for CPUs.

takes: Workload; gives: for each smallest batch, rules in the order in which they are asked.

Few rows go through several trees at once, more rows through one tree after the other in blocks. A
rule looks at counts of the model and at what the CPU can do, and says whether it fits, and why.
To add a layout is to write a rule and to put it into `CPU_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..layouts import (
    ANY_FOREST,
    BIT_PLANES,
    CODED,
    OCTETS,
    PADDED,
    PERMUTED,
    SIMDIZED,
    SIMDIZED_TREES,
    WORD_NODES,
)
from ..schedule import Schedule
from . import layout_fit, walk_costs
from .layout_fit import Fit
from .workload import Workload

WALKS, WALKS_IN_LARGE_FORESTS = 8, 16
"""Rows that walk together and hide each other's loads; the second through tiles, and where leaves
hold vectors. With 16 registers, more of them spill."""

TREES_TOGETHER, TILED_TREES_TOGETHER = 10, 16
"""Trees that a single row walks through together, node by node and tile by tile."""

LARGE_TREE_BLOCK, LARGEST_BLOCK = 256, 2048
"""Rows of a block, where trees are large or leaves hold vectors: the rows of a block share what is
fetched of a tree. The second is for batches of as many rows and more."""

LANES = 64
"""Rows of a vector walk."""

MAX_BLOCK_BYTES = 256 * 1024
"""Bytes of the rows of such a block, so that the second-level cache holds a tree beside them."""

MAX_LOPSIDED_DEPTH = 0.7
"""Mean depth of a leaf over that of its tree, up to which walks end when all are at leaves."""

ROWS_BEYOND_OCTETS = 24
"""Rows of a batch from which rows walk together and no longer 8 trees at once."""

ROWS_TOGETHER, ROWS_TOGETHER_BESIDE_TILES, ROWS_PERMUTED = 8, 16, 12
"""Rows of a batch from which rows walk together and no longer trees; the same where smaller batches
go through tiles; and from which 16 rows walk through 4 trees by permutes."""

BLOCK_BATCHES = (64, 128, 256, 512)
"""Rows of a batch from which the rules of blocks are asked anew: other blocks may pay there, though
the last block of a batch is not full."""

MAX_PLANES_RATIO = 0.9
"""Estimated time by bit planes over that of walking, up to which bit planes are taken."""

TILE_NODES = 8
"""Nodes of a tile, the lanes of a vector of AVX2."""

MAX_TILED_HOPS, MAX_TILED_NODES = 12_000, 2_000_000
"""Hops through all trees, and nodes, up to which nodes are tiled: tiles, half empty, outgrow the
caches, and take long to build."""

FASTER_BY_PLANES = Fit(False, "slices of bits are faster")


class Rule(NamedTuple):
    """One way to evaluate a model.

    Attributes:
        name: what `explain` calls it.
        fit: says whether it is taken, and why or why not, with the counts that decided.
        write: gives the schedule of a workload that it fits.
    """

    name: str
    fit: Callable[[Workload], Fit]
    write: Callable[..., Schedule]


# -- a few rows: trees walk together --------------------------------------------------------------


def _write_trees(layout: str, work: Workload) -> Schedule:
    sch = work.start.represent_as(layout).interleave("tree", TREES_TOGETHER)
    return _peel_lopsided(sch, work, "tree")


def _peel_lopsided(sch: Schedule, work: Workload, index: str) -> Schedule:
    """End walks of lopsided trees with the last one that reaches its leaf."""
    if work.mean_leaf_depth > MAX_LOPSIDED_DEPTH * work.mean_tree_depth:
        return sch
    return peel(sch, work.shallowest, index)


def peel(sch: Schedule, shallowest: int, index: str) -> Schedule:
    """Peel up to two hops that no walk ends in; with a leaf at a root one that is checked.

    Args:
        sch: a schedule.
        shallowest: hops to the nearest leaf; through tiles, a hop is a tile.
        index: the leaf loop.
    """
    hops = min(1, shallowest) if sch.rewrites else min(2, shallowest)
    return sch.peel_walk(index, max(1, hops), check=hops == 0)


def _fit_tiled_trees(work: Workload) -> Fit:
    """Take tiles where one instruction picks the values of a tile, or where trees are large.

    A tile of a large tree is one or two cache lines, and decides three hops.
    """
    forest, width = work.forest, work.forest.n_features
    if forest.derived:
        return Fit(False, "memberships in categories are known to codes of rows")
    if is_too_large_for_tiles(work):
        counts = f"{work.hops} hops and {forest.n_nodes} nodes"
        return Fit(False, f"{counts}, at most {MAX_TILED_HOPS} and {MAX_TILED_NODES} are tiled")
    floats = forest.row_dtype == "float32" == forest.threshold.dtype.name
    if work.has_small_trees and not floats:
        return Fit(False, f"rows of {forest.row_dtype} are not picked from registers")
    if work.columns > width and layout_fit.fit_codes_one_row(work).fits:
        return Fit(False, "missing values go both ways, which is one more comparison of a tile")
    known = (("avx512f", 32), ("avx2", 8), ("this CPU, as far as known,", 0))
    cpu, most = next((name, x) for name, x in known if not x or work.has(name))
    if width > most:
        return Fit(False, f"{width} columns, registers of {cpu} hold {most}")
    counts = f"{width} columns, at most {most} fit registers"
    return Fit(True, f"{counts}, so {TILE_NODES} nodes are decided at once")


def is_too_large_for_tiles(work: Workload) -> bool:
    """Whether tiles would outgrow the caches."""
    return work.hops > MAX_TILED_HOPS or work.forest.n_nodes > MAX_TILED_NODES


def _write_tiled_trees(work: Workload) -> Schedule:
    layout, trees = ANY_FOREST, TILED_TREES_TOGETHER
    complete = work.step_times.complete_tiles_together
    if complete and work.has_small_trees and layout_fit.fit_padded(work).fits:
        layout, trees = PADDED, complete
    return work.start.tile_nodes(TILE_NODES).represent_as(layout).interleave("tree", trees)


def _write_octets(work: Workload) -> Schedule:
    return work.start.represent_as(OCTETS).simdize("tree", SIMDIZED_TREES[OCTETS])


# -- blocks of rows: rows walk together -----------------------------------------------------------


def write_blocks(sch: Schedule, layout: str, rows: int) -> Schedule:
    """Let blocks of so many rows go through one tree after the other, fetched once a block."""
    sch = sch.represent_as(layout).tile("batch", "b0", "b1", rows)
    return sch.reorder("b0", *inner_loops(sch), "b1")


def inner_loops(sch: Schedule) -> tuple[str, ...]:
    """Name the loops over trees, and over classes if these have walks of their own."""
    return ("class", "tree") if sch.round_size > 1 else ("tree",)


def _share_out(sch: Schedule, work: Workload) -> Schedule:
    """Run blocks on all cores, if there is more than one."""
    return sch.parallel("b0") if work.target.cores > 1 else sch


def _write_rows(layout: str, work: Workload, rows: int = 0, tile: int = 1) -> Schedule:
    vectors = work.forest.has_vectors
    if not rows:
        rows = walk_costs.ROWS if work.has_small_trees and not vectors else LARGE_TREE_BLOCK
        if layout == CODED and not walk_costs.has_near_codes(work, walk_costs.ROWS):
            rows = work.step_times.far_block_rows or rows
    sch = work.start.tile_nodes(tile) if tile > 1 else work.start
    walks = WALKS_IN_LARGE_FORESTS if vectors or tile > 1 else WALKS
    sch = write_blocks(sch, layout, rows).interleave("b1", walks)
    return _share_out(_peel_lopsided(sch, work, "b1"), work)


def _find_row_rule(work: Workload) -> tuple[Rule, str]:
    """Return the rule by which rows walk together, and why."""
    fits = ((rule, rule.fit(work)) for rule in OF_ROWS)
    return next((rule, fit.reason) for rule, fit in fits if fit.fits)


def _fit_large_blocks(work: Workload) -> Fit:
    if work.has_small_trees:
        return _say_small_trees(work)
    if is_faster_by_planes(work):
        return FASTER_BY_PLANES
    reason = f"trees of {work.mean_nodes} nodes are fetched anew for every block"
    return Fit(True, f"{reason}; {_find_row_rule(work)[1]}")


def _write_large_blocks(most: int, work: Workload) -> Schedule:
    """Write blocks of `LARGE_TREE_BLOCK` to `most` rows."""
    rows = 1 << (MAX_BLOCK_BYTES // work.row_bytes).bit_length() - 1
    rows = min(most, max(LARGE_TREE_BLOCK, rows))
    return _find_row_rule(work)[0].write(work, rows).cache("tree", "stream")


def _say_small_trees(work: Workload) -> Fit:
    return Fit(False, f"trees of {work.mean_nodes} nodes stay in the first-level cache")


def _fit_lanes(work: Workload) -> Fit:
    """Take lanes of vectors, which hide more loads than walks one by one, if trees are large."""
    if not work.has(layout_fit.LANES_ABILITY):
        return Fit(False, f"this CPU, as far as known, has no {layout_fit.LANES_ABILITY}")
    if work.step_times.lanes_ratio > 1:
        return Fit(False, "rows that walk together are faster on this CPU")
    if work.has_small_trees and not work.forest.has_vectors:
        return _say_small_trees(work)
    if work.forest.leaf_const is not None:
        return Fit(False, "linear leaves read the rows themselves")
    if is_faster_by_planes(work):
        return FASTER_BY_PLANES
    rule, reason = _find_row_rule(work)
    if rule.write(work).representation != WORD_NODES:
        return Fit(False, reason)
    return Fit(True, f"loads of {LANES} rows hide each other; {reason}")


def _write_lanes(work: Workload) -> Schedule:
    sch = make_lanes(write_blocks(work.start, WORD_NODES, LARGE_TREE_BLOCK))
    sch = sch if work.has_small_trees else sch.cache("tree", "stream")
    return _share_out(sch, work)


def make_lanes(sch: Schedule) -> Schedule:
    """Make the rows "b1" of a block lanes of vectors."""
    if (sch["b1"].count or 0) <= LANES:
        return sch.simdize("b1")
    return sch.tile("b1", "b10", "b11", LANES).simdize("b11")


def _fit_tiled_rows(from_rows: int, work: Workload) -> Fit:
    """Take tiles for batches of `from_rows` and more, where a CPU fetches a tile faster.

    Where leaves hold one number, large blocks of rows share what they fetch of a tree as well.
    """
    forest = work.forest
    if work.step_times.tiles_ratio > 1:
        return Fit(False, "nodes by themselves are faster on this CPU, as far as known")
    if work.has_small_trees and not forest.has_vectors:
        return _say_small_trees(work)
    if from_rows >= LARGEST_BLOCK and not forest.has_vectors:
        return Fit(False, "rows of a large block share nodes")
    if forest.derived or forest.row_dtype != "float32":
        return Fit(False, "rows of float32 without sets of categories pay")
    if is_too_large_for_tiles(work):
        return Fit(False, f"{work.hops} hops and {forest.n_nodes} nodes, too many for tiles")
    if is_faster_by_planes(work):
        return FASTER_BY_PLANES
    trees = f"trees of {work.mean_nodes} nodes"
    return Fit(True, f"{trees}: {TILE_NODES} of them are fetched and decided at once")


def _write_tiled_rows(from_rows: int, work: Workload) -> Schedule:
    rows = LARGEST_BLOCK if from_rows >= LARGEST_BLOCK else LARGE_TREE_BLOCK
    return _write_rows(ANY_FOREST, work, rows, TILE_NODES)


# -- blocks of rows: bytes out of registers, bits of words ----------------------------------------


def _write_simdized(layout: str, work: Workload, rows: int) -> Schedule:
    sch = write_blocks(work.start, layout, rows).simdize("b1", SIMDIZED[layout])
    return _share_out(sch, work)


def _write_permutes(work: Workload) -> Schedule:
    return _write_simdized(PERMUTED, work, walk_costs.ROWS)


def _fit_planes(from_rows: int, work: Workload) -> Fit:
    """Take bit planes for batches of `from_rows` and more."""
    refusal = layout_fit.refuse_planes(work)
    if refusal is not None:
        return Fit(False, refusal)
    permuted = layout_fit.fit_permutes(work).fits
    walking = walk_costs.ns_per_row_by_hops(work, permuted)
    rows = walk_costs.rows_per_block(work, from_rows)
    planes = walk_costs.ns_per_row_by_planes(work, rows, from_rows)
    sets = f" and {work.membership_columns} sets" if work.membership_columns else ""
    counts = (
        f"{work.tests} tests in {work.forest.searches} columns{sets}, {work.slots} slots and "
        f"about {work.selections} selections for {rows} rows: {planes:.3g} ns a row "
        f"by estimate, {walking:.3g} {'by permutes' if permuted else 'hop by hop'}"
    )
    return Fit(planes <= MAX_PLANES_RATIO * walking, counts)


def is_faster_by_planes(work: Workload) -> bool:
    """Whether large batches go by bit planes."""
    return _fit_planes(BLOCK_BATCHES[-1], work).fits


def _write_planes(from_rows: int, work: Workload) -> Schedule:
    return _write_simdized(BIT_PLANES, work, walk_costs.rows_per_block(work, from_rows))


# -- the rules, in order --------------------------------------------------------------------------

TILED_TREES = Rule("trees in tiles", _fit_tiled_trees, _write_tiled_trees)
OF_OCTETS = Rule("trees in octets", layout_fit.fit_octets, _write_octets)
OF_NEAR_OCTETS = Rule("trees in octets", layout_fit.fit_octets_some_rows, _write_octets)
OF_TREES = [
    OF_OCTETS,
    TILED_TREES,
    Rule(f"trees {CODED}", layout_fit.fit_codes_one_row, partial(_write_trees, CODED)),
    Rule(f"trees {WORD_NODES}", layout_fit.fit_word_nodes, partial(_write_trees, WORD_NODES)),
    Rule(f"trees in {PADDED}", layout_fit.fit_padded, partial(_write_trees, PADDED)),
    Rule(f"trees {ANY_FOREST}", layout_fit.fit_any, partial(_write_trees, ANY_FOREST)),
]
OF_ROWS = [
    Rule(f"rows {CODED}", layout_fit.fit_codes, partial(_write_rows, CODED)),
    Rule("rows of vectors", layout_fit.fit_leaf_vectors, partial(_write_rows, WORD_NODES)),
    Rule(f"rows in {PADDED}", layout_fit.fit_padded, partial(_write_rows, PADDED)),
    Rule(f"rows {WORD_NODES}", layout_fit.fit_word_nodes, partial(_write_rows, WORD_NODES)),
    Rule(f"rows {ANY_FOREST}", layout_fit.fit_any, partial(_write_rows, ANY_FOREST)),
]
BY_PERMUTES = Rule("rows permuted", layout_fit.fit_permutes, _write_permutes)
OF_FEW_ROWS = [
    BY_PERMUTES,
    Rule(
        f"few rows {CODED}",
        partial(layout_fit.fit_codes, few_rows=True),
        partial(_write_rows, CODED),
    ),
    *OF_ROWS[1:],
]


def _unless_in_tiles(rule: Rule) -> Rule:
    def fit(work: Workload) -> Fit:
        tiled = TILED_TREES.fit(work).fits
        return Fit(False, "trees in tiles are as fast") if tiled else rule.fit(work)

    return rule._replace(fit=fit)


def _rules_of_blocks(from_rows: int, most: int) -> list[Rule]:
    """Return the rules for batches of `from_rows` and more, in blocks of up to `most`."""
    planes, tiles = (partial(fit, from_rows) for fit in (_fit_planes, _fit_tiled_rows))
    return [
        Rule("rows in bits", planes, partial(_write_planes, from_rows)),
        Rule("rows in lanes", _fit_lanes, _write_lanes),
        Rule("rows in tiles", tiles, partial(_write_tiled_rows, from_rows)),
        Rule("rows in large blocks", _fit_large_blocks, partial(_write_large_blocks, most)),
    ]


CPU_RULES: dict[int, list[Rule]] = {
    1: OF_TREES,
    ROWS_TOGETHER: [
        OF_OCTETS,
        Rule("few rows permuted", layout_fit.fit_permutes_few_rows, _write_permutes),
        *map(_unless_in_tiles, OF_FEW_ROWS),
    ],
    ROWS_PERMUTED: [OF_NEAR_OCTETS, BY_PERMUTES],
    ROWS_TOGETHER_BESIDE_TILES: [OF_NEAR_OCTETS, BY_PERMUTES, *OF_ROWS],
    ROWS_BEYOND_OCTETS: [BY_PERMUTES, *OF_ROWS],
    **{from_rows: _rules_of_blocks(from_rows, LARGE_TREE_BLOCK) for from_rows in BLOCK_BATCHES},
    LARGEST_BLOCK: _rules_of_blocks(LARGEST_BLOCK, LARGEST_BLOCK),
}
"""By the smallest batch that they serve, the rules in the order in which they are asked."""
