"""The schedules among which MetaSchedule searches, and the functions that it schedules.

takes: a forest and a layout; gives: its canonical function, and a space generator.

    sch.split, sch.reorder              tiles of rows, groups of trees, and what is innermost
    sch.annotate                        how walks are done, see docs/tvm_schedules.md
    sch.sample_categorical              rows of a block, walks that advance together
    sch.sample_perfect_tile             trees of a group

MetaSchedule refuses functions for any number of rows. So it schedules one whose number of rows is a
constant that occurs nowhere else, and `free_rows` takes it out again before code is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

import tvm_forest
from tvm_forest.forest import Forest
from tvm_forest.layouts import SIMDIZED
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.walks import LANE_COUNTS
from tvm_forest.tir_gen import ir

BLOCKS = (16, 64, 256)
"""Rows of a block, where walks go hop by hop."""
SIZES = {*BLOCKS, *LANE_COUNTS["bits"], *LANE_COUNTS["permute"]}
"""Rows of a block, of any layout."""
ANY_ROWS = 999_983
"""Stands for any number of rows in functions that MetaSchedule schedules: no other number there."""
TOGETHER = (2, 4, 8, 16)
"""Walks that advance together."""
HOPS: tuple[dict[str, Any], ...] = ({}, {"unroll_walk": "depth"}, {"peel_walk": 1})


def start(forest: Forest, layout: str) -> Schedule:
    """Return a schedule that says no more than a layout."""
    return tvm_forest.new_schedule(forest).represent_as(layout)


def canonical(forest: Forest, layout: str) -> tirx.PrimFunc:
    """Return the function of the sums before any schedule, for any number of rows."""
    sch, walks = start(forest, layout), SIMDIZED.get(layout)
    if walks is not None:  # or the layout is refused; `before` does not depend on it
        sch = sch.tile("batch", "b0", "b1", LANE_COUNTS[walks][0]).reorder("b0", "tree", "b1")
        sch = sch.simdize("b1", walks)
    return tvm_forest.lower(forest, sch).before["predict"]


def fix_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function for `ANY_ROWS` rows, which MetaSchedule takes."""
    return ir.replace_vars(func, {func.params[0].shape[0]: tirx.IntImm("int64", ANY_ROWS)})


def free_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of `fix_rows` for any number of rows, with the loops that it has now."""
    n = tirx.Var("n", "int64")

    def free_tiles(loop: tirx.For) -> tirx.For:
        size = next((x for x in SIZES if -(-ANY_ROWS // x) == loop.extent.value), None)
        counted = size is not None and loop.loop_var.name == "batch_0"
        tiles = tirx.floordiv(n + (size - 1), ir.i64(size)) if counted else loop.extent
        return ir.change_loop(loop, extent=tiles)

    func = func.with_body(ir.rewrite_loops(func.body, free_tiles))
    free = (tirx.IntImm, lambda x: n if x.value == ANY_ROWS else x)
    return tvm_ffi.structural_map(func, free)


def make_space(layout: str, rows: int) -> ms.space_generator.ScheduleFn:
    """Return the space of a layout: all nests, and in each the numbers that TVM draws.

    Args:
        layout: see `canonical`.
        rows: of a batch; blocks are no larger.
    """
    walks = SIMDIZED.get(layout)
    sizes = sorted(BLOCKS if walks is None else LANE_COUNTS[walks])
    sizes = [x for x in sizes if x <= rows] or sizes[:1]

    def write(sch: s_tir.Schedule) -> list[s_tir.Schedule]:
        if walks is not None:
            return [_write_planes(sch, sizes, walks)]
        ways = [(order, hops, "") for order in ("rows", "trees") for hops in HOPS]
        ways += [("rows", hops, "stream") for hops in HOPS if layout == "packed"]
        return [_write_walks(sch.copy(), sizes, *way) for way in ways]

    mutators = {ms.mutator.MutateTileSize(): 1.0}
    return ms.space_generator.ScheduleFn(write, [], [], mutators)


def _write_planes(sch: s_tir.Schedule, sizes: list[int], walks: str) -> s_tir.Schedule:
    """Walk a block of rows at once, in the lanes of vectors."""
    batch, tree = sch.get_loops("walk")
    blocks, row = sch.split(batch, [None, _choose(sch, sizes)])
    sch.reorder(blocks, tree, row)
    sch.annotate(row, "tvm_forest.simdize", walks)
    return sch


def _write_walks(
    sch: s_tir.Schedule, sizes: list[int], order: str, hops: dict[str, Any], cache: str
) -> s_tir.Schedule:
    """Walk hop by hop, several walks together.

    Args:
        sch: of a canonical function with the loops batch and tree, changed in place.
        sizes: rows that a block may have.
        order: what is innermost, "rows" or "trees".
        hops: annotations of the innermost loop.
        cache: how trees are fetched, or "".
    """
    batch, tree = sch.get_loops("walk")
    groups, trees = sch.split(tree, sch.sample_perfect_tile(tree, 2, 128))
    blocks, row = sch.split(batch, [None, _choose(sch, sizes)])
    nest = [groups, blocks, trees, row] if order == "rows" else [blocks, groups, row, trees]
    sch.reorder(*nest)
    notes = hops | {"interleave": _choose(sch, TOGETHER)}
    for word, value in notes.items():
        sch.annotate(nest[-1], f"tvm_forest.{word}", value)
    if cache:
        sch.annotate(trees, "tvm_forest.cache", cache)
    return sch


def _choose(sch: s_tir.Schedule, numbers: Sequence[int]) -> Any:
    """Let TVM draw one of some numbers."""
    return sch.sample_categorical(list(numbers), [1 / len(numbers)] * len(numbers))
