"""Take over what a user of `s_tir.Schedule` has made of a canonical function.

takes: a function scheduled by TVM's primitives and our annotations; gives: the same as `replay`
would have left it, and the Schedule that it stands for.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...schedule_prims.replay import NAME, PREFIX
from ...schedule_prims.schedule import JSON_VERSION, Schedule
from ...tir_gen import ir
from ...tir_gen.attributes import read_model_facts
from ..nest_facts import name_of
from .blocks import find_walk_block, list_blocks
from .read_nest import find_nest, make_loop_error

BLOCKS = {"walk", "walk_init", "walk_update", "finish"}
"""The blocks of a canonical function, and what `decompose_reduction` makes of them."""
LEVELS = {"blockIdx": "grid", "threadIdx": "block"}


def adopt_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function scheduled by `s_tir.Schedule` as `replay` would have left it.

    Its loops get names, those of their variables; what TVM's `bind` and `vectorize` say becomes an
    annotation; loops beside the walks are plain again, for passes give them what walks have.

    Raises:
        ScheduleError: there is a block that passes cannot follow, or a loop bound elsewhere.
    """
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
    adopted, used = dict[Any, tirx.For](), Counter[str]()
    for loop in walk.around:
        name = name_of(loop) or str(loop.loop_var.name).removesuffix("_")
        used[name] += 1
        own = f"{name}.{used[name]}" if used[name] > 1 else name
        adopted[loop.loop_var] = _adopt(loop, own)

    def change(loop: tirx.For) -> tirx.For:
        own = adopted.get(loop.loop_var)
        if own is not None:
            return ir.with_body(own, loop.body)
        return ir.change_loop(loop, kind=tirx.ForKind.SERIAL, thread_binding=None, annotations={})

    return func.with_body(ir.rewrite_loops(func.body, change))


def _adopt(loop: tirx.For, name: str) -> tirx.For:
    """Return a loop around the walk with a name, and annotations for all that TVM says of it."""
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
        ScheduleError: the function is of no model, or its loops are those of no schedule.
    """
    model = read_model_facts(func)
    found = find_nest(func, model)
    size = {"trees": model.trees, "classes": model.classes, "vectors": model.vectors, "batch": None}
    about = {"version": JSON_VERSION, **size, "steps": model.steps}
    return Schedule.from_json(json.dumps(about)).take_nest(found.nest, found.guards, found.marks)


def computes(func: tirx.PrimFunc, canonical: tirx.PrimFunc) -> bool:
    """Return whether a function has the parameters of another one, and its blocks."""
    same = tvm_ffi.structural_equal
    if not same(func.params, canonical.params, map_free_vars=True):
        return False
    params = dict(zip(canonical.params, func.params, strict=True))
    params[canonical.params[0].shape[0]] = func.params[0].shape[0]
    wanted = {}
    for x in list_blocks(canonical):
        wanted[str(x.block.name_hint)] = ir.replace_vars(x.block, params)
    for x in list_blocks(func):
        name = str(x.block.name_hint)
        model = wanted[name.partition("_")[0]]
        bodies = (model.init if name.endswith("_init") else model.body), x.block.body
        if not same(*bodies, map_free_vars=True):
            return False
    return True
