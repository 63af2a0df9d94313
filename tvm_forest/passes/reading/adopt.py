"""Adopts canonical functions that a user scheduled with `s_tir.Schedule`.

takes: a function scheduled by TVM's primitives, and annotations of this package; gives: the form in
which `replay` would have left it, and its Schedule.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ...errors import ScheduleError
from ...schedule_prims.directive import make_error
from ...schedule_prims.nest.problems import does_each_once
from ...schedule_prims.replay import FINISH_BLOCK, NAME, PREFIX, WALK_BLOCK
from ...schedule_prims.schedule import Schedule
from ...tir_gen import ir
from ...tir_gen.attributes import read_model_facts
from ..nest_facts import name_of
from .blocks import WalkBlock, find_walk_block, list_blocks
from .computation import (
    INIT,
    SEAL,
    UPDATE,
    check_seal,
    list_result_axes,
    sort_axes,
    take_computation,
)
from .read_nest import find_schedules, make_loop_error

BLOCKS = {WALK_BLOCK, INIT, UPDATE, FINISH_BLOCK}
"""Names of the blocks of a canonical function, and of those that `decompose_reduction` makes."""
LEVELS = {"blockIdx": "grid", "threadIdx": "block"}


def adopt_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Convert a function scheduled by `s_tir.Schedule` to the form in which `replay` leaves it.

    Loops are named after their variables; TVM's `bind` and `vectorize` become annotations.
    Statements other than the walks are reset to their unscheduled form, since passes schedule them
    like the walks.

    Raises:
        ScheduleError: the function was edited, has a block that passes cannot handle, or a loop
            with an annotation or binding that is not supported.
    """
    if SEAL not in (func.attrs or {}):
        raise ScheduleError(
            f"build: argument 'schedule': a function has no attribute '{SEAL}', so it was not "
            "made by tvm_forest; begin with tvm_forest.lower(model).before"
        )
    walk = find_walk_block(func)
    blocks = [str(x.block.name_hint) for x in list_blocks(func)]
    noted = next((x.block for x in list_blocks(func) if x.block.annotations), None)
    if noted is not None:
        what = f"block '{noted.name_hint}' has the annotation '{next(iter(noted.annotations))}'"
        raise ScheduleError(f"build: argument 'schedule': {what}; annotate loops")
    if walk is None or not BLOCKS.issuperset(blocks) or len({*blocks}) < len(blocks):
        raise ScheduleError(
            f"build: argument 'schedule': the function has the blocks {', '.join(blocks)}, but "
            f"each of {', '.join(sorted(BLOCKS))} may occur once, and no other; leave out what "
            "makes others, such as rfactor and cache_read: see docs/directives.md for annotations"
        )
    check_seal(func)
    used, around = Counter[str](), list[tirx.For]()
    for loop in walk.around:
        name = name_of(loop) or str(loop.loop_var.name).removesuffix("_")
        used[name] += 1
        own = f"{name}.{used[name]}" if used[name] > 1 else name
        around.append(_adopt(loop, own))
    nest = s_tir.SBlockRealize(walk.realize.iter_values, walk.realize.predicate, _join(func, walk))
    for loop in reversed(around):
        nest = ir.with_body(loop, nest)
    behind = [_finish(x) for x in list_blocks(func) if x.block.name_hint == FINISH_BLOCK]
    root = s_tir.SBlock([], [], [], "root", ir.join_statements([nest, *behind]))
    return func.with_body(s_tir.SBlockRealize([], True, root))


def _join(func: tirx.PrimFunc, walk: WalkBlock) -> Any:
    """Return the walk's block with its init, which `decompose_reduction` may have split off."""
    block = walk.block
    init = next((x.block for x in list_blocks(func) if x.block.name_hint == INIT), None)
    if init is None:
        return block
    pairs = zip(sort_axes(init), list_result_axes(block), strict=True)
    same = {x.var: y.var for x, y in pairs}
    reads = [x for x in block.reads if x.source not in [y.source for y in block.writes]]
    own = ir.replace_vars(init.body, same)
    return s_tir.SBlock(block.iter_vars, reads, block.writes, WALK_BLOCK, block.body, own)


def _finish(found: WalkBlock) -> tirx.Stmt:
    """Return the block of the epilogue in a new loop over all rows.

    Raises:
        ScheduleError: a loop around the block has an annotation.
    """
    noted = next((loop for loop in found.around if loop.annotations and not name_of(loop)), None)
    if noted is not None:
        what = f"has the annotation '{next(iter(noted.annotations))}'"
        raise make_loop_error(str(noted.loop_var.name), what, "annotate loops around walks only")
    (axis,) = found.block.iter_vars
    batch = tirx.Var("batch", axis.var.ty)
    body = s_tir.SBlockRealize([batch], True, found.block)
    return tirx.For(batch, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, body)


def _adopt(loop: tirx.For, name: str) -> tirx.For:
    """Return a loop around the walk with a name, and with its binding or kind as an annotation.

    Raises:
        ScheduleError: it has an annotation of others, or is bound to something else than a GPU's
            blocks or threads.
    """
    foreign = next((str(x) for x in loop.annotations if not str(x).startswith(PREFIX)), None)
    if foreign is not None:
        raise make_loop_error(name, f"has the annotation '{foreign}'", "leave it out")
    notes, kind = {**loop.annotations, NAME: name}, loop.kind
    if loop.thread_binding is not None:
        level, _, axis = str(loop.thread_binding.thread_tag).partition(".")
        if level not in LEVELS:
            raise make_loop_error(name, f"is bound to {level}.{axis}", "bind blockIdx or threadIdx")
        notes[PREFIX + "gpu_dimension"], kind = f"{LEVELS[level]}.{axis}", tirx.ForKind.SERIAL
    if kind == tirx.ForKind.VECTORIZED:
        notes[PREFIX + "simdize"], kind = "gather", tirx.ForKind.SERIAL
    return ir.change_loop(loop, kind=kind, thread_binding=None, annotations=notes)


def read_schedule(func: tirx.PrimFunc) -> Schedule:
    """Return the schedule of a function whose loops were adopted.

    Raises:
        ScheduleError: the layout's class is unknown, or the loops do not form a valid schedule.
    """
    chain, sch = find_schedules(func, read_model_facts(func))
    problem = chain.problem()
    if problem is not None:
        raise make_error(chain, "build", f"argument 'schedule': {problem}", problem.loop)
    if not does_each_once(chain):
        what = "its loops leave out rows, classes or trees, or do them twice; change them by"
        raise make_error(chain, "build", f"argument 'schedule': {what} TVM's primitives only")
    return sch


def computes(func: tirx.PrimFunc, canonical: tirx.PrimFunc) -> bool:
    """Return whether a function has the same parameters and blocks as another."""
    return tvm_ffi.structural_equal(take_computation(func), take_computation(canonical))
