"""The schedules that are used when none is given, and why.

takes: Forest, Target; gives: Schedules by the smallest batch they serve; sentences.

`RULES` names, for each smallest batch, what is tried in order. A rule looks at counts of the model
and at what the CPU can do, and returns a `Choice` or says why not; a batch for which no rule
chooses is served like smaller ones. To add a layout is to write a rule and to put it in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import NamedTuple

import numpy as np

from ..forest import Forest
from ..forest.rewrites.canonical_form import plain
from ..layouts.levels import REGISTER, LevelsLayout
from ..schedule import Schedule
from ..schedule_prims.batches import by_batch, walked
from ..schedule_prims.memory import LEVELS, WALKED
from ..target import Target
from . import bits
from .nanoseconds import nanoseconds_of

ROWS = bits.ROWS
"""Rows of one block: they and one tree stay in the first-level cache together."""

WALKS = 8
"""Walks that hide each other's loads; with 16 registers more of them spill (measured: 4 walks 1.3
times slower, 12 walks 1.1 times, `airline`, batch 4096, Zen 4)."""

WALKS_OF_VECTORS = 16
"""The same through tiles, and where leaves hold vectors, for such forests are large: 200 trees of
2,500 nodes and 3 classes, batch 4096: 8 walks 1.2 times slower, blocks of 64 rows 1.1 times."""

TREES = 10
"""Trees that a single row walks through together. Zen 4, batch 1, 8 and 16 trees beside 10: `year`
packed 1.13 and 1.11 times slower, `letters` ranked 1.09 and 1.12, others 1.00 to 1.12."""

TREES_IN_TILES = 16
"""The same through tiles, which ask for less at a time, beside 10: 0.89 to 0.98 of the time on a
Xeon (`skl_rf_clf`, `skl_rf_reg`, `airline`, `abalone`, `higgs`), 0.96 on Zen 4 by its prices. What
stays in the caches takes 0.8 to 0.92 of that on a Xeon with 4 trees in the array layout."""

NEAR = 4096
"""Nodes of a tree, on average, that stay in the first-level cache while a block of rows walks."""

MANY, LARGE = 256, 2048
"""Rows of a block of a model with larger trees or vectors: a cache line of a tree is fetched once
for all rows of a block. From 64 rows on a batch touches so much of a tree that it is fetched as a
whole, which takes 0.7 to 0.8 of the time for 64 rows; from 2048 rows on blocks are larger still.
Zen 4, a random forest with trees of 12,600 nodes, batch 4096, us a row in blocks of 256, 1024, 2048
rows, and in the last ones with whole trees: 5.3, 5.0, 4.6, 4.4; while others use the third-level
cache: 20, 12, 7.5, 6.6."""

LANES = 64
"""Rows of a vector walk, which hides more loads than walks one by one: random forests of 12,600
nodes a tree, and of 2,500 with vectors of 3 values, take 0.6 to 0.8 of the time from 64 rows on,
though not in blocks of 16 rows. Trees in the first-level cache wait for no loads (Zen 4). Blocks of
`LARGE` rows gain 5 % at most on a quiet machine, and lose with 512 rows on two threads."""

ROWS_BYTES = 256 * 1024
"""Bytes of the rows of such a block: the second-level cache has room for a tree beside them."""

LOPSIDED = 0.7
"""Mean depth of a leaf over that of its tree, below which walks end when all are at their leaves.
With 0.55 (a random forest) and 0.59 (trees of LightGBM, 255 leaves) that takes 0.8 and 0.9 of the
time; with 0.86 to 1.0 1.05 to 1.2 of it."""

TOGETHER = 8
"""Rows from which they walk together, and not the trees. Time of the latter over the former, 4 and
8 rows, Zen 4: `year` 0.82 and 1.17, `covtype` 0.75 and 1.13, `letters` 0.73 and 1.15."""

TOGETHER_BESIDE_TILES = 16
"""The same where single rows go through tiles, 8, 15 and 16 rows: `airline` 0.84, 0.68 and 0.91,
`abalone` 1.02, 0.87 and 1.12, `letters` 1.15, 0.93 and 1.17."""

MOST_PADDING = 32
"""Slots of the array layout for each node, above which the sparse layout is taken. Padding costs
memory only: with 9 slots a node (covtype, 800 trees) the array is still 1.7 times faster."""

MOST_COLUMNS = 4.0
"""Columns to be coded for each hop of a row through the forest, above which the ranked layout is
not taken. `epsilon` has 2.2 of them, and takes half the time that it takes in the array layout."""

MOST_COLUMNS_FEW_ROWS = 0.5
"""The same for batches of 8 rows: there `epsilon` takes 1.9 times the time of the array layout, and
`year` (0.13) 0.9 of it."""

MOST_STEPS_ONE_ROW = 0.5
"""Steps of the searches that code a single row, for each hop, above which the ranked layout is not
taken. Its time over that of the packed one: 0.75 on `airline_ohe` (0.09 steps, for its columns have
one threshold each), 0.78 on `covtype` (0.02), 0.93 on `higgs` (0.24), 0.96 to 1.1 on `year` (0.92).
"""

PERMUTED = 12
"""Rows from which 16 walk through 4 trees by permutes: time over that of other schedules, 12 rows,
Zen 4: `airline` 0.77, `covtype` 0.74, `year` 0.90, `lgb_reg` 0.44, `letters` 0.11. With 8 rows it
is 0.8 to 1.27 where some level takes two registers, and 0.11 to 0.76 where none does; without tiles
it serves them all the same, which saves a function."""

MOST_COLUMNS_PERMUTED = 128
"""Columns of a coded row, 8 of which take two registers: with 90 of them (`year`) 0.7 to 0.9 of the
time is left."""

FULL = (64, 128, 256, 512)
"""Batches from which blocks may be taken, though the last one is not full."""

WORD = 32
"""Bits that the ranked layout has for a node, and the packed one beside the threshold."""

VBMI, WIDE = "avx512vbmi", "avx512f"
TREES_PERMUTED = 4
"""Trees that share vectors with 16 rows."""

TILE = 8
"""Nodes of a tile, the lanes of a vector of AVX2."""

MOST_TILED = 12_000
"""Hops through all trees above which nodes are not tiled: tiles, half empty, outgrow the caches.
One row of `letters`, 156,000 hops, takes 870 us in tiles, which are slow to build, and 215 us by
codes."""

MOST_TILED_NODES = 2_000_000
"""The same for nodes: 1.3 million (`skl_rf_reg`) take about a second more to build in tiles."""


class Choice(NamedTuple):
    """What a rule has chosen.

    Attributes:
        schedule: how to evaluate the model.
        reason: why, with the counts that decided.
    """

    schedule: Schedule
    reason: str


Rule = Callable[[Forest, Target], Choice | str]
"""Takes a plain forest; gives a choice, or the reason why not."""


def new_schedule(forest: Forest) -> Schedule:
    """Return the schedule without directives for a model: one row at a time, tree by tree."""
    arranged = plain(forest)
    rounds = arranged.depths.reshape(-1, arranged.round_size).max(axis=1)
    depths = tuple(int(depth) for depth in rounds)
    size = (arranged.n_trees, arranged.n_outputs)
    return Schedule(*size, depths=depths, vectors=arranged.has_vectors)


def default_schedules(forest: Forest, target: Target) -> dict[int, Schedule]:
    """Return good schedules by the smallest batch that each serves.

    Threads are for schedules that serve 512 rows and more, which saves the twins of the others, or
    whose blocks two threads share out where larger ones serve.
    """
    found = by_batch({k: choice.schedule for k, choice in _chosen(plain(forest), target).items()})
    following = dict(zip(found, list(found)[1:], strict=False))

    def is_shared_out(smallest: int) -> bool:
        larger = following.get(smallest)
        if larger is None or larger > FULL[-1]:
            return True
        return any(loop.parallel and loop.step > FULL[-1] for loop in found[larger].loops())

    kept = {k: s if is_shared_out(k) else s.without("parallel") for k, s in found.items()}
    return by_batch(kept)


def default_schedule(forest: Forest, target: Target) -> Schedule:
    """Return the one for the largest batches that walks row by row: a start for one's own."""
    scalar = replace(target, abilities=(target.abilities or frozenset()) - {VBMI})
    return walked({k: x.schedule for k, x in _chosen(plain(forest), scalar).items()})


def _chosen(forest: Forest, target: Target) -> dict[int, Choice]:
    """Ask the rules of every batch, each until one chooses."""
    found = dict[int, Choice]()
    for smallest, rules in _rules(target).items():
        results = (rule(forest, target) for rule in rules)
        choice = next((result for result in results if isinstance(result, Choice)), None)
        if choice is not None:
            found[smallest] = choice
    return found


def explain(forest: Forest, target: Target) -> list[str]:
    """Say what `default_schedules` chooses and why, a sentence for each rule that was asked."""
    forest, kept = plain(forest), default_schedules(forest, target)
    return [line for smallest in kept for line in _answers(forest, target, smallest)]


def _answers(forest: Forest, target: Target, smallest: int) -> Iterator[str]:
    batch = f"batches of {smallest} row{'s' * (smallest > 1)} and more"
    for rule in _rules(target)[smallest]:
        result, name = rule(forest, target), rule.__name__.strip("_").replace("_", " ")
        if isinstance(result, Choice):
            yield f"{batch}: {name}: {result.reason}"
            return
        yield f"{batch}: not {name}: {result}"


# -- a few rows: trees walk together --------------------------------------------------------------


def _trees_together(forest: Forest, layout: str) -> Schedule:
    sch = new_schedule(forest).represent_as(layout).interleave("tree", TREES)
    return _while_inside(sch, forest, "tree")


def _tiles_together(forest: Forest, target: Target) -> Schedule:
    layout, trees = "sparse", TREES_IN_TILES
    if _is_near(forest) and _padded(forest)[0]:
        layout, trees = nanoseconds_of(target.vendor).near_tiles
    sch = new_schedule(forest).tile_nodes(TILE).represent_as(layout)
    return sch.interleave("tree", trees)


def _while_inside(sch: Schedule, forest: Forest, index: str) -> Schedule:
    """End walks of lopsided trees with the last one that reaches its leaf."""
    leaf = forest.is_leaf
    depth = forest.hop_depth[leaf]
    if depth.mean() > LOPSIDED * forest.depths[forest.node_tree[leaf]].mean():
        return sch
    shallowest = int(depth.min())
    return peeled(sch, min(1, shallowest) if sch.rewrites else shallowest, index)  # a hop is a tile


def peeled(sch: Schedule, shallowest: int, index: str) -> Schedule:
    """Peel up to two hops that no walk ends in; with a leaf at a root one that is checked."""
    return sch.peel_walk(index, max(1, min(2, shallowest)), check=shallowest == 0)


def _trees_in_tiles(forest: Forest, target: Target) -> Choice | str:
    """Tiles pay where one instruction picks the values of a tile: 0.85 of the time of `ranked`.

    Where trees outgrow the caches they pay too, for a tile is one or two cache lines and decides
    three hops: 0.65 of the time of `packed` (`skl_rf_reg`).
    """
    width, can = forest.n_features, target.abilities or frozenset()
    if forest.derived:
        return "memberships in categories are known to codes of rows"
    if forest.depths.sum() > MOST_TILED or forest.n_nodes > MOST_TILED_NODES:
        said = f"{int(forest.depths.sum())} hops and {forest.n_nodes} nodes"
        return f"{said}, at most {MOST_TILED} and {MOST_TILED_NODES} are tiled"
    floats = forest.row_dtype == "float32" == forest.threshold.dtype.name
    if _is_near(forest) and not floats:
        return f"rows of {forest.row_dtype} are not picked from registers"
    ranked = isinstance(_trees_ranked(forest, target), Choice)
    if ranked and len(forest.cuts_per_column) > width:
        return "missing values go both ways, which is one more comparison of a tile"
    most = 32 if "avx512f" in can else 8 if "avx2" in can else 0
    if width > most:
        known = {32: "avx512f", 8: "avx2", 0: "this CPU, as far as known,"}[most]
        return f"{width} columns, registers of {known} hold {most}"
    reason = f"{width} columns, at most {most} fit registers, so {TILE} nodes are decided at once"
    return Choice(_tiles_together(forest, target), reason)


def _trees_ranked(forest: Forest, target: Target) -> Choice | str:
    fits, reason = fits_ranked(forest, MOST_COLUMNS)
    steps = float(np.ceil(np.log2(forest.cuts_per_column + 1)).sum() / max(1, forest.depths.sum()))
    if fits and steps > MOST_STEPS_ONE_ROW and not forest.derived:
        return f"{reason}; {steps:.2g} steps of searches for each hop, {MOST_STEPS_ONE_ROW} pay"
    return Choice(_trees_together(forest, "ranked"), reason) if fits else reason


def _trees_packed(forest: Forest, target: Target) -> Choice | str:
    fits, reason = fits_packed(forest)
    return Choice(_trees_together(forest, "packed"), reason) if fits else reason


def _trees_in_array(forest: Forest, target: Target) -> Choice | str:
    fits, reason = _padded(forest)
    return Choice(_trees_together(forest, "array"), reason) if fits else reason


def _trees_sparse(forest: Forest, target: Target) -> Choice | str:
    return Choice(_trees_together(forest, "sparse"), "it holds every model")


# -- blocks of rows: rows walk together -----------------------------------------------------------


def _rows_together(
    forest: Forest, layout: str, target: Target, block: int = 0, tile: int = 1
) -> Schedule:
    """Blocks of rows go through one tree after the other, so a tree is fetched once a block.

    Blocks run on all cores, if there is more than one.
    """
    block = block or (ROWS if _is_near(forest) and not forest.has_vectors else MANY)
    sch = new_schedule(forest)
    sch = sch.tile_nodes(tile) if tile > 1 else sch
    sch = sch.represent_as(layout).tile("batch", "b0", "b1", block)
    inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
    walks = WALKS_OF_VECTORS if forest.has_vectors or tile > 1 else WALKS
    sch = sch.reorder("b0", *inner, "b1").interleave("b1", walks)
    sch = _while_inside(sch, forest, "b1")
    return sch.parallel("b0") if target.cores > 1 else sch


def in_lanes(sch: Schedule) -> Schedule:
    """Make the rows "b1" of a block lanes of vectors."""
    if (sch["b1"].count or 0) <= LANES:
        return sch.simdize("b1")
    return sch.tile("b1", "b10", "b11", LANES).simdize("b11")


def _rows_ranked(forest: Forest, target: Target) -> Choice | str:
    fits, reason = fits_ranked(forest, MOST_COLUMNS)
    return Choice(_rows_of_codes(forest, target), reason) if fits else reason


def _few_rows_ranked(forest: Forest, target: Target) -> Choice | str:
    fits, reason = fits_ranked(forest, MOST_COLUMNS_FEW_ROWS)
    return Choice(_rows_of_codes(forest, target), reason) if fits else reason


def _rows_of_codes(forest: Forest, target: Target) -> Schedule:
    """Codes that the first-level cache does not hold may lie in smaller blocks.

    64 rows of `epsilon` take 0.7 of the time in blocks of 16 (a Xeon).
    """
    counts = bits.counts_of(forest, target.vendor)
    block = 0 if bits.is_near(counts, ROWS) else counts.ns.rows_of_far
    return _rows_together(forest, "ranked", target, block)


def _rows_of_vectors(forest: Forest, target: Target) -> Choice | str:
    """Leaves lie apart, so that words hold the nodes of any forest whose rows are float32."""
    if not forest.has_vectors:
        return "leaves hold one number"
    return _rows_packed(forest, target)


def _rows_in_array(forest: Forest, target: Target) -> Choice | str:
    fits, reason = _padded(forest)
    return Choice(_rows_together(forest, "array", target), reason) if fits else reason


def _rows_packed(forest: Forest, target: Target) -> Choice | str:
    fits, reason = fits_packed(forest)
    return Choice(_rows_together(forest, "packed", target), reason) if fits else reason


def _rows_sparse(forest: Forest, target: Target) -> Choice | str:
    return Choice(_rows_together(forest, "sparse", target), "it holds every model")


def _rows_in_large_blocks(most: int) -> Rule:
    """A rule for blocks of at most `most` rows, and of at least `MANY`."""

    def rows_in_large_blocks(forest: Forest, target: Target) -> Choice | str:
        mean = forest.n_nodes // forest.n_trees
        if _is_near(forest):
            return f"trees of {mean} nodes stay in the first-level cache"
        if isinstance(_rows_in_bits(FULL[-1])(forest, target), Choice):
            return "slices of bits are faster"
        smaller = next(x for rule in OF_ROWS if isinstance(x := rule(forest, target), Choice))
        fits = ROWS_BYTES // (forest.n_features * np.dtype(forest.row_dtype).itemsize)
        block = min(most, max(MANY, 1 << fits.bit_length() - 1))
        sch = _rows_together(forest, smaller.schedule.representation, target, block)
        said = f"trees of {mean} nodes are fetched anew for every block; {smaller.reason}"
        return Choice(sch.cache("tree", "stream"), said)

    return rows_in_large_blocks


def _rows_in_lanes(forest: Forest, target: Target) -> Choice | str:
    near, mean = _is_near(forest), forest.n_nodes // forest.n_trees
    if WIDE not in (target.abilities or ()):
        return f"this CPU, as far as known, has no {WIDE}"
    if nanoseconds_of(target.vendor).in_lanes > 1:
        return "rows that walk together are faster on this CPU"
    if near and not forest.has_vectors:
        return f"trees of {mean} nodes stay in the first-level cache"
    if forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if isinstance(_rows_in_bits(FULL[-1])(forest, target), Choice):
        return "slices of bits are faster"
    smaller = next(x for rule in OF_ROWS if isinstance(x := rule(forest, target), Choice))
    if smaller.schedule.representation != "packed":
        return smaller.reason
    sch = new_schedule(forest).represent_as("packed").tile("batch", "b0", "b1", MANY)
    inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
    sch = in_lanes(sch.reorder("b0", *inner, "b1"))
    sch = sch if near else sch.cache("tree", "stream")
    sch = sch.parallel("b0") if target.cores > 1 else sch
    return Choice(sch, f"loads of {LANES} rows hide each other; {smaller.reason}")


def _rows_in_tiles(from_rows: int) -> Rule:
    """A rule for batches of `from_rows` and more, on CPUs that fetch a tile faster than its nodes.

    Where leaves hold one number, large blocks of rows share what they fetch of a tree as well.
    """

    def rows_in_tiles(forest: Forest, target: Target) -> Choice | str:
        mean, hops = forest.n_nodes // forest.n_trees, int(forest.depths.sum())
        if nanoseconds_of(target.vendor).in_tiles > 1:
            return "nodes by themselves are faster on this CPU, as far as known"
        if _is_near(forest) and not forest.has_vectors:
            return f"trees of {mean} nodes stay in the first-level cache"
        if from_rows >= LARGE and not forest.has_vectors:
            return "rows of a large block share nodes"
        if forest.derived or forest.row_dtype != "float32":
            return "rows of float32 without sets of categories pay"
        if hops > MOST_TILED or forest.n_nodes > MOST_TILED_NODES:
            return f"{hops} hops and {forest.n_nodes} nodes, too many for tiles"
        if isinstance(_rows_in_bits(FULL[-1])(forest, target), Choice):
            return "slices of bits are faster"
        block = LARGE if from_rows >= LARGE else MANY
        sch = _rows_together(forest, "sparse", target, block, TILE)
        return Choice(sch, f"trees of {mean} nodes: {TILE} of them are fetched and decided at once")

    return rows_in_tiles


# -- blocks of rows: bytes out of registers ------------------------------------------------------


def _rows_permuted(forest: Forest, target: Target) -> Choice | str:
    can = target.abilities or frozenset()
    if VBMI not in can:
        return f"this CPU, as far as known, has no {VBMI}"
    if forest.leaf_const is not None:
        return "linear leaves read the rows themselves"
    if forest.has_vectors:
        return "leaves hold vectors, a byte for each is looked up"
    unfit, columns = LevelsLayout.unfit(forest), len(forest.cuts_per_column)
    if unfit is not None:
        return unfit
    if forest.n_trees < TREES_PERMUTED * forest.n_outputs:
        return (
            f"{forest.n_trees} trees for {forest.n_outputs} outputs, {TREES_PERMUTED} for each pay"
        )
    said = f"{columns} columns for {int(forest.depths.sum())} hops"
    if columns > min(MOST_COLUMNS_PERMUTED, MOST_COLUMNS_FEW_ROWS * forest.depths.sum()):
        most = f"{MOST_COLUMNS_PERMUTED} and {MOST_COLUMNS_FEW_ROWS} for each hop pay"
        return f"{said}, {most}"
    sch = new_schedule(forest).represent_as(LEVELS).tile("batch", "b0", "b1", ROWS)
    inner = ("class", "tree") if sch.classes > 1 else ("tree",)
    sch = sch.reorder("b0", *inner, "b1").simdize("b1", WALKED[LEVELS])
    said += f", at most {LevelsLayout.widest_level(forest)} inner nodes on a level of a tree"
    return Choice(sch.parallel("b0") if target.cores > 1 else sch, said)


def _few_rows_permuted(forest: Forest, target: Target) -> Choice | str:
    widest = LevelsLayout.widest_level(forest)
    if widest > REGISTER:
        return f"{widest} inner nodes on a level of a tree, {REGISTER} fit a register"
    return _rows_permuted(forest, target)


# -- blocks of rows: bits of words ----------------------------------------------------------------


def _rows_in_bits(from_rows: int) -> Rule:
    """A rule for batches of `from_rows` and more."""

    def rows_in_bits(forest: Forest, target: Target) -> Choice | str:
        counts = bits.counts_of(forest, target.vendor)
        unfit = bits.unfit(forest, counts)
        if unfit is not None:
            return unfit
        permuted = isinstance(_rows_permuted(forest, target), Choice)
        walking = bits.cost_of_walking(forest, counts, permuted)
        block = bits.block_of(forest, counts, from_rows)
        slicing = bits.cost_of_slicing(forest, counts, block, from_rows)
        sets = f" and {counts.sets} sets" if counts.sets else ""
        said = (
            f"{counts.tests} tests in {counts.columns} columns{sets}, {counts.slots} slots and "
            f"about {counts.selections} selections for {block} rows: {slicing:.3g} ns a row "
            f"by estimate, {walking:.3g} {'by permutes' if permuted else 'hop by hop'}"
        )
        if slicing > bits.GAIN * walking:
            return said
        return Choice(bits.sliced(new_schedule(forest), block, target.cores > 1), said)

    return rows_in_bits


def _unless_in_tiles(rule: Rule) -> Rule:
    @wraps(rule)
    def asked(forest: Forest, target: Target) -> Choice | str:
        tiles = isinstance(_trees_in_tiles(forest, target), Choice)
        return "trees in tiles are as fast" if tiles else rule(forest, target)

    return asked


OF_TREES: tuple[Rule, ...] = (
    *(_trees_in_tiles, _trees_ranked, _trees_packed, _trees_in_array, _trees_sparse),
)
OF_ROWS: tuple[Rule, ...] = (
    *(_rows_ranked, _rows_of_vectors, _rows_in_array, _rows_packed, _rows_sparse),
)


def _rules_of_blocks(smallest: int, most: int) -> tuple[Rule, ...]:
    """Rules for batches of `smallest` rows and more, in blocks of up to `most`."""
    rest = (_rows_in_lanes, _rows_in_tiles(smallest), _rows_in_large_blocks(most))
    return _rows_in_bits(smallest), *rest


RULES: dict[int, tuple[Rule, ...]] = {
    1: OF_TREES,
    TOGETHER: (
        _few_rows_permuted,
        *map(_unless_in_tiles, (_rows_permuted, _few_rows_ranked, *OF_ROWS[1:])),
    ),
    PERMUTED: (_rows_permuted,),
    TOGETHER_BESIDE_TILES: (_rows_permuted, *OF_ROWS),
    **{smallest: _rules_of_blocks(smallest, MANY) for smallest in FULL},
    LARGE: _rules_of_blocks(LARGE, LARGE),
}

# -- a GPU: every row has a thread ----------------------------------------------------------------

MOST_SHARED = 48 * 1024
"""Bytes of shared memory of a thread block, in which its rows must fit if they are kept there."""


def _threads(forest: Forest, layout: str) -> tuple[Schedule, str]:
    """A thread for every row: no two threads add to one sum, and the order of additions is kept."""
    row = forest.n_features * np.dtype(forest.row_dtype).itemsize
    rows = next((size for size in (128, 64, 32) if size * row <= MOST_SHARED), 0)
    sch = new_schedule(forest).represent_as(layout).tile("batch", "b0", "b1", rows or 128)
    sch = sch.reorder("b0", "b1", *(("class", "tree") if sch.round_size > 1 else ("tree",)))
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    said = f"{rows} rows of {row} bytes in shared memory" if rows else f"rows of {row} bytes"
    return sch.cache("b0", "shared") if rows else sch, said


def _threads_in_array(forest: Forest, target: Target) -> Choice | str:
    fits, reason = _padded(forest)
    sch, said = _threads(forest, "array")
    return Choice(sch, f"{said}, {reason}") if fits else reason


def _threads_sparse(forest: Forest, target: Target) -> Choice | str:
    return Choice(*_threads(forest, "sparse"))


GPU_RULES: dict[int, tuple[Rule, ...]] = {1: (_threads_in_array, _threads_sparse)}


def _rules(target: Target) -> dict[int, tuple[Rule, ...]]:
    return GPU_RULES if target.on_gpu else RULES


# -- counts ---------------------------------------------------------------------------------------


def fits_ranked(forest: Forest, most: float) -> tuple[bool, str]:
    """Whether columns, ranks and children fit a word, and coding rows costs less than walking."""
    counts = forest.cuts_per_column
    columns, thresholds = len(counts), int(counts.max(initial=0))
    rank = 8 if thresholds <= 255 else 16
    place, link = max(0, columns - 1).bit_length(), _link_bits(forest)
    needed, hops = rank + place + link, int(forest.depths.sum())
    word = 2 * WORD if forest.derived else WORD
    said = f"{columns} columns, at most {thresholds} thresholds in one: rank {rank} + column "
    said += f"{place} + child {link} = {needed} bits of {word}"
    if thresholds > 65535 or needed > word:
        return False, said
    if forest.derived:
        categories = bits.most_categories(forest)
        said += f"; features are asked for up to {categories} categories"
        return categories <= bits.MOST_CATEGORIES, said
    per_hop = columns / max(1, hops)
    said += f"; {per_hop:.2g} columns to code for each of {hops} hops"
    if columns > most * hops:
        return False, f"{said}, {most} pay"
    return True, said


def fits_packed(forest: Forest) -> tuple[bool, str]:
    """Whether a number, feature and child fit a word of 8 bytes."""
    if forest.threshold.dtype != np.float32 and forest.row_dtype != "float32":
        return False, f"rows are {forest.row_dtype}, a word holds float32"
    feature = max(8, (forest.n_features - 1).bit_length()) + 1  # and the default side
    link = _link_bits(forest)
    bits = feature + link
    said = f"feature {feature} + child {link} = {bits} bits of {WORD} beside the threshold"
    return bits <= WORD, said


def _link_bits(forest: Forest) -> int:
    """Bits of a place in the largest tree, and of the flag of inner nodes."""
    return (2 * int(np.diff(forest.tree_offset).max()) - 1).bit_length()


def _is_near(forest: Forest) -> bool:
    """Whether a tree stays in the first-level cache."""
    return forest.n_nodes <= NEAR * forest.n_trees


def _padded(forest: Forest) -> tuple[bool, str]:
    """Whether complete trees are not much larger than those that there are."""
    slots = float(np.sum(2.0 ** (forest.depths + 1.0) - 1.0))
    said = f"{slots / forest.n_nodes:.3g} slots for each of {forest.n_nodes} nodes"
    fits = slots <= MOST_PADDING * forest.n_nodes
    return fits, said if fits else f"{said}, {MOST_PADDING} pay"
