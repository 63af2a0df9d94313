"""Schedules from the literature, each written as a few directives.

takes: Schedule; gives: Schedule. Recipes use nothing but directives.

A recipe begins with the schedule without directives, `new_schedule(model)`, and serves any number
of classes. E1, E2, ... are the examples of the specification. [SF] is SilvanForge (Prasad and
others, SOSP 2024), whose authors wrote most of these as examples of their language. Recipes for a
GPU say so; the others run on CPUs. Loops over trees count rounds, so numbers of trees in arguments
are those of each class.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from .schedule import Schedule

Recipe = Callable[..., Schedule]


def _order(sch: Schedule, names: str) -> Schedule:
    """Put loops in the order of `names`, outermost first; skip "class" if a round is one tree."""
    words = (name for name in names.split() if name != "class" or sch.round_size > 1)
    return sch.reorder(*words)


def _tile_both(sch: Schedule, rows: int, trees: int) -> Schedule:
    """Tile rows to `b0`, `b1` and trees to `t0`, `t1`."""
    return sch.tile("batch", "b0", "b1", rows).tile("tree", "t0", "t1", trees)


def _map_to_gpu(sch: Schedule, **dimensions: str) -> Schedule:
    """Map loops, by name, to dimensions of the grid and of thread blocks."""
    for index, dimension in dimensions.items():
        sch = sch.gpu_dimension(index, dimension)
    return sch


def _interleave_copies(sch: Schedule, index: str, factor: int) -> Schedule:
    """Interleave every copy of a leaf loop, unless the factor is 1."""
    for name in sch.copies(index) if factor > 1 else ():
        sch = sch.interleave(name, factor)
    return sch


# -- CPU ------------------------------------------------------------------------------------------


def xgboost_rows(sch: Schedule, rows: int = 64) -> Schedule:
    """Walk a block of rows through one tree after the other, with blocks in parallel (E1).

    XGBoost's CPU predictor (Chen and Guestrin, KDD 2016). Keeps the order of additions.

    Args:
        sch: schedule without directives.
        rows: rows of a block.
    """
    return _order(sch.tile("batch", "b0", "b1", rows), "b0 class tree b1").parallel("b0")


def serial_straight_lines(sch: Schedule, at: int) -> Schedule:
    """Walk one tree at a time with unrolled hops, shallow trees first (E2).

    Figure 1b of [SF]. Keeps the order of additions.

    Args:
        sch: schedule without directives.
        at: number of shallow trees, 1 to the number of trees - 1.
    """
    sch = _order(sch, "class tree batch").split("tree", "d1", "d2", at)
    return sch.unroll_walk("d1").unroll_walk("d2")


def treebeard_tree_at_a_time(
    sch: Schedule, cores: int = 2, walks: int = 8, tree_groups: int = 1
) -> Schedule:
    """Walk trees of equal depth in one loop, unrolled, `walks` rows together (E9).

    Treebeard (Prasad and others, MICRO 2022), the CPU baseline of [SF]. Makes one loop for each
    change of depth, so the trees should be sorted by it. Keeps the order of additions if there is
    one group and trees are not sorted. Treebeard itself sorts them, as it begins with
    `with_depths(new_schedule(model).tile_nodes(8).sort_trees(), model)`.

    Args:
        sch: schedule with known depths, without directives about loops.
        cores: parts of the batch, one for each core.
        walks: rows that walk together; 1 for one after the other.
        tree_groups: parts of the forest that are walked at the same time, 1 to the number of trees.
            Part k takes every tree_groups-th tree, so that all have trees of all depths.
    """
    sch = sch.tile("batch", "b0", "b1", parts=cores)
    tree = "tree"
    if tree_groups > 1:
        sch, tree = sch.tile("tree", "t", "group", tree_groups), "t"
        sch = _order(sch, "b0 group class t b1").parallel("b0").parallel("group")
    else:
        sch = _order(sch, "b0 class tree b1").parallel("b0")
    return _interleave_copies(sch.split_by_depth(tree), "b1", walks)


def tree_parallel(sch: Schedule, parts: int = 2, width: int = 8) -> Schedule:
    """Give every thread a part of the forest, and add up the parts' sums with vectors (E10).

    [SF], section on CPU schedules: best for small batches. Regroups the additions.

    Args:
        sch: schedule without directives.
        parts: parts of the forest, 1 to the number of trees.
        width: lanes of a vector of rows: 2, 4, 8, 16 or 32.
    """
    sch = _order(sch.tile("tree", "t0", "t1", parts=parts), "t0 class t1 batch")
    return sch.parallel("t0").vector_reduce("t0", width)


def row_and_tree_parallel(sch: Schedule, row_parts: int = 2, tree_parts: int = 2) -> Schedule:
    """Let every thread walk a part of the rows through a part of the forest (E11).

    The draft of [SF] on the scheduling language. Regroups the additions.

    Args:
        sch: schedule without directives.
        row_parts: parts of the batch.
        tree_parts: parts of the forest, 1 to the number of trees.
    """
    sch = sch.tile("batch", "b0", "b1", parts=row_parts).tile("tree", "t0", "t1", parts=tree_parts)
    return _order(sch, "b0 t0 class t1 b1").parallel("b0").parallel("t0")


def two_trees_at_a_time(sch: Schedule, trees: int = 2) -> Schedule:
    """Walk every row through `trees` trees before the next ones are fetched (E12, first).

    The draft of [SF] on the scheduling language. Keeps the order of additions.

    Args:
        sch: schedule without directives.
        trees: trees that a row walks in turn, 1 to the number of trees.
    """
    return _order(sch.tile("tree", "t0", "t1", trees), "t0 batch class t1")


def rows_by_trees(sch: Schedule, rows: int = 4, trees: int = 2) -> Schedule:
    """Walk tiles of `rows` rows x `trees` trees (E12, second).

    The draft of [SF] on the scheduling language. Keeps the order of additions.

    Args:
        sch: schedule without directives.
        rows: rows of a tile.
        trees: trees of a tile, 1 to the number of trees.
    """
    return _order(_tile_both(sch, rows, trees), "b0 class t0 b1 t1")


# -- GPU ------------------------------------------------------------------------------------------


def gpu_straight_lines(sch: Schedule, at: int, threads: int = 2) -> Schedule:
    """Give every row a thread block whose threads share the trees in turn (E3; GPU).

    Figure 1c of [SF]: thread 0 walks trees 0, 2, 4, ..., thread 1 trees 1, 3, 5, ..., in straight
    lines, shallow trees first. Regroups the additions.

    Args:
        sch: schedule without directives.
        at: number of shallow trees, a multiple of `threads`.
        threads: threads of a block.
    """
    sch = _order(sch.tile("tree", "t0", "t1", threads), "batch t1 class t0")
    sch = sch.split("t0", "e1", "e2", at).unroll_walk("e1").unroll_walk("e2")
    return _map_to_gpu(sch, batch="grid.x", t1="block.x")


def tahoe_direct(sch: Schedule, rows: int = 256) -> Schedule:
    """Give every row a thread (E4; GPU).

    The "direct" strategy of Tahoe (Xie and others, EuroSys 2021). Keeps the order of additions.

    Args:
        sch: schedule without directives.
        rows: rows, and threads, of a block.
    """
    return _map_to_gpu(sch.tile("batch", "b0", "b1", rows), b0="grid.x", b1="block.x")


def tahoe_shared_data(sch: Schedule) -> Schedule:
    """Give every row a block, every tree a thread, and keep the row in shared memory (E5; GPU).

    The "shared data" strategy of Tahoe, for forests of no more trees than a block has threads.
    Regroups the additions.

    Args:
        sch: schedule without directives.
    """
    sch = _order(sch, "batch tree class")
    return _map_to_gpu(sch, batch="grid.x", tree="block.x").cache("batch")


def tahoe_shared_data_rows(sch: Schedule, rows: int = 8, threads: int = 32) -> Schedule:
    """Let a block keep several rows in shared memory, each with threads of its own (E5b; GPU).

    The "shared data" strategy of Tahoe as [SF]'s source has it. Regroups the additions.

    Args:
        sch: schedule without directives.
        rows: rows of a block.
        threads: threads of a row; no more than there are trees are used.
    """
    sch = _tile_both(sch, rows, _limit_threads(sch, threads))
    sch = _order(sch, "b0 b1 t1 class t0")
    return _map_to_gpu(sch, b0="grid.x", b1="block.x", t1="block.y").cache("b0")


def _limit_threads(sch: Schedule, threads: int) -> int:
    """Return the number of threads, limited so that each has at least one round of trees."""
    return min(threads, max(1, sch.rounds))


def tahoe_shared_forest(sch: Schedule, fit: int, rows: int = 256) -> Schedule:
    """Keep as many trees as fit in shared memory, for all rows of a block (E6; GPU).

    The "shared forest" strategy of Tahoe. Keeps the order of additions.

    Args:
        sch: schedule without directives.
        fit: trees that fit, 1 to the number of trees.
        rows: rows, and threads, of a block.
    """
    sch = _order(_tile_both(sch, rows, fit), "b0 b1 class t0 t1")
    return _map_to_gpu(sch, b0="grid.x", b1="block.x").cache("t0")


def tahoe_shared_partial_forest(sch: Schedule, fit: int, rows: int = 256) -> Schedule:
    """Let every column of the grid keep its own part of the forest (E7; GPU).

    The "shared partial forest" strategy of Tahoe, for forests larger than shared memory. The sums
    of the parts are added atomically. Regroups the additions.

    Args:
        sch: schedule without directives.
        fit: trees of a part, 1 to the number of trees.
        rows: rows, and threads, of a block.
    """
    sch = sch.tile("tree", "g", "t", fit).tile("batch", "b0", "b1", rows)
    sch = _map_to_gpu(_order(sch, "g b0 b1 class t"), g="grid.y", b0="grid.x", b1="block.x")
    return sch.cache("g").atomic_reduce("g")


def rapids_fil(sch: Schedule, rows: int = 4, threads: int = 256) -> Schedule:
    """Share the trees among the threads of a block; each thread walks a few rows (E8; GPU).

    The Forest Inference Library of RAPIDS, with its layout "reorg" left to `represent_as`.
    Regroups the additions.

    Args:
        sch: schedule without directives.
        rows: rows of a block, as many as shared memory holds; the library uses up to 4.
        threads: threads of a block; no more than there are trees are used.
    """
    sch = _tile_both(sch, rows, _limit_threads(sch, threads))
    sch = _map_to_gpu(_order(sch, "b0 t1 class t0 b1"), b0="grid.x", t1="block.x").cache("b0")
    return _interleave_copies(sch, "b1", rows).shared_reduce("t1")


def gpu_shared_ranks(
    sch: Schedule, rows: int = 512, tree_bytes: int = 40 << 10, together: int = 4
) -> Schedule:
    """Walk rows of ranks through trees in shared memory, several trees of a row interleaved (GPU).

    For large batches. Each thread has one row, whose ranks lie in a shared-memory bank of its own,
    and a block goes through the forest some trees at a time, which its threads first copy. Keeps
    the order of additions.

    Args:
        sch: schedule with known depths, without directives.
        rows: rows, and threads, of a block.
        tree_bytes: bytes of the trees that are copied at a time, unless one round has more.
        together: walks that a thread interleaves.
    """
    depth = max(sch.hops or (8,))
    if sch.round_size > 1 or len(set(sch.hops or ())) != 1:
        sch = sch.pad_trees("forest")
    round_bytes = sch.round_size * max(16, 8 << depth)
    most = min(max(1, sch.rounds), max(1, tree_bytes // round_bytes))
    whole = max(size for size in range(1, most + 1) if sch.rounds % size == 0)
    fit = whole if 2 * whole >= most else most  # copies of one size are simpler
    sch = _order(_tile_both(sch.represent_as("banked"), rows, fit), "b0 b1 t0 class t1")
    sch = _map_to_gpu(sch, b0="grid.x", b1="block.x").cache("b0").cache("t0").unroll_walk("t1")
    return _interleave_copies(sch, "t1", min(together, fit))


def gpu_template(
    sch: Schedule,
    rows_tb: int = 32,
    rows_thread: int = 1,
    tree_threads: int = 10,
    cache_rows: bool = True,
    cache_trees: bool = False,
    unroll: bool = True,
    factor: int = 2,
    shared: bool | str = True,
    layout: str | None = None,
    tree_blocks: int = 1,
    tree_chunk: int = 0,
    class_on: str = "",
) -> Schedule:
    """Build the schedule for nine parameters of SilvanForge's search space (E13; GPU).

    Table 5 and Algorithm 1 of [SF], with three more parameters and three more ways of reduction.
    Regroups the additions if several threads or blocks share the trees, unless they add in order.
    Interleaved walks are over the trees of one thread, others over its rows.

    Args:
        sch: schedule without directives, with known depths if `unroll`.
        rows_tb: rows of a thread block; the paper tries 8, 32 and 64.
        rows_thread: rows of a thread: 1, 2 or 4.
        tree_threads: threads among which the trees are dealt out: 2, 10, 20 or 50.
        cache_rows: keep the rows of a block in shared memory.
        cache_trees: keep the trees of an iteration in shared memory; then `factor` is 1, and the
            layout one of `layouts.COPIED`.
        unroll: unroll the walks.
        factor: walks of a thread that advance together: 1, 2 or 4.
        shared: keep the partial sums in shared memory; "shuffle" first adds those of neighbouring
            threads by shuffles, "atomic" keeps no partial sums, "ordered" adds trees in order.
        layout: argument of `represent_as`; None keeps the layout.
        tree_blocks: number of parts of the forest, each of which gets blocks along "grid.y".
        tree_chunk: trees that the threads of a block walk before they synchronise; 0 for all.
        class_on: dimension for the classes, such as "grid.z" or "block.z"; "" for a serial loop.
    """
    if layout is not None:
        sch = sch.represent_as(layout)
    sch = sch.tile("batch", "bx", "r", rows_tb).tile("r", "tx", "b", rows_thread)
    tree, threads = "tree", {"bx": "grid.x", "tx": "block.x"}
    order: dict[str, float] = {"bx": 1, "tx": 4}
    order |= {"class": 3 if class_on else 7, "b": 8 + (factor == 1)}
    if tree_blocks > 1:
        sch, tree = sch.tile("tree", "g", "part", -(-max(1, sch.rounds) // tree_blocks)), "part"
        threads, order = {**threads, "g": "grid.y"}, {**order, "g": 0}
    if tree_chunk:
        sch, tree = sch.tile(tree, "chunk", "near", tree_chunk), "near"
        order |= {"chunk": 3.5 if class_on.startswith("grid") else 2}
    if tree_threads > 1:
        sch, tree = sch.tile(tree, "t", "ty", tree_threads), "t"
        threads |= {"tx": "block.y", "ty": "block.x"} if shared == "shuffle" else {"ty": "block.y"}
        order |= {"ty": 5}
    order |= {tree: 8.5}
    if class_on:
        threads |= {"class": class_on}
    sch = _map_to_gpu(_order(sch, " ".join(sorted(order, key=order.__getitem__))), **threads)
    sch = sch.cache("bx") if cache_rows else sch
    sch = sch.cache(tree) if cache_trees else sch
    for name in sorted({"g", "ty"} & set(threads)):
        sch = _add_up_sums(sch, name, shared)
    return _interleave_copies(sch.split_by_depth(tree) if unroll else sch, tree, factor)


def _add_up_sums(sch: Schedule, name: str, how: bool | str) -> Schedule:
    """Apply the directive that `how`, see `shared` of `gpu_template`, asks for, if any."""
    if how in ("atomic", "ordered"):
        return sch.atomic_reduce(name) if how == "atomic" else sch.ordered_reduce(name)
    if name == "g" or not how:
        return sch
    if how == "shuffle":
        return sch.vector_reduce(name, gcd(sch[name].count or 1, 32))
    return sch.shared_reduce(name)


RECIPES: dict[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        *(xgboost_rows, serial_straight_lines, gpu_straight_lines, tahoe_direct),
        *(tahoe_shared_data, tahoe_shared_data_rows, tahoe_shared_forest),
        *(tahoe_shared_partial_forest, rapids_fil, treebeard_tree_at_a_time, tree_parallel),
        *(row_and_tree_parallel, two_trees_at_a_time, rows_by_trees),
        *(gpu_template, gpu_shared_ranks),
    )
}
"""Every recipe by its name: E1 to E13 of the specification, in order, and one more."""
