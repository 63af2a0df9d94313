"""The functions after every pass: named, in order, well-formed, and within their buffers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

import tvm_forest
from drawn_schedules import GPU_LAYOUTS, LAYOUTS, drawn_schedule
from test_passes import FOREST, SCHEDULES, module, names, walks
from test_script import FORESTS
from tvm_forest.compiler import Lowered
from tvm_forest.errors import ForestError
from tvm_forest.tir_gen import ir, ops

UNKNOWN = 2**31 - 1
"""From here on the bounds of an expression say nothing but its type."""


def find_misplaced(func: tirx.PrimFunc) -> list[str]:
    """Return the accesses that may miss their buffer, as far as TVM can tell.

    It can where sizes are constant, and indices are made of constants and of loops of constant
    length. What is done under a condition, and the lanes of a vector behind the first, are left
    out.
    """
    body, known = tvm_ffi.structural_map(func.body, _LEFT_OUT), sym.Analyzer()
    for loop in ir.find_loops(body):
        if all(isinstance(x, tirx.IntImm) for x in (loop.min, loop.extent)):
            known.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
    return [f"{buffer.name}[{index}]" for buffer, index in _misses(body, known)]


def _leave_out(statement: Any) -> Any:
    is_done = isinstance(statement, tirx.For) and not _is_constant(statement.extent, 0)
    return statement if is_done else tirx.Evaluate(0)


def _is_constant(x: Any, value: int) -> bool:
    return isinstance(x, tirx.IntImm) and int(x) == value


_LEFT_OUT = [
    (tirx.IfThenElse, _leave_out),
    (tirx.For, _leave_out),
    (s_tir.SBlockRealize, lambda x: x if _is_constant(x.predicate, 1) else tirx.Evaluate(0)),
    (
        tvm.ir.Call,
        lambda x: tirx.const(0, x.ty.dtype) if ops.is_call(x, "prim.if_then_else") else x,
    ),
]


def _misses(body: tirx.Stmt, known: Any) -> Iterator[tuple[Any, Any]]:
    loads = [(x.source, x.indices) for x in ir.find_all(body, tvm.ir.TensorLoad)]
    stores = [(x.buffer, x.indices) for x in ir.find_stores(body)]
    for buffer, indices in loads + stores:
        for index, extent in zip(indices, buffer.shape, strict=True):
            first = index.base if isinstance(index, tirx.Ramp) else index
            if not isinstance(extent, tirx.IntImm) or ir.find_all(first, tvm.ir.TensorLoad):
                continue
            bound = known.const_int_bound(known.simplify(first))
            starts_before = -UNKNOWN < bound.min_value < 0
            if starts_before or int(extent) <= bound.max_value < UNKNOWN:
                yield buffer, index


def assert_sound(lowered: Lowered) -> None:
    """Verify every function of every stage."""
    for stage, mod in lowered.stages.items():
        for var, func in mod.functions.items():
            s_tir.analysis.verify_well_formed(func)
            assert find_misplaced(func) == [], (stage, var.name_hint)


def lower_drawn(seed: int, forest: Any, layouts: Any, gpu: bool) -> Lowered:
    """Lower the first drawn schedule that is not refused."""
    rng = random.Random(seed)
    start = tvm_forest.new_schedule(forest)
    while True:
        try:
            sch = drawn_schedule(rng, start, forest, gpu=gpu, layouts=layouts)
            return tvm_forest.lower(forest, sch, "simt" if gpu else "llvm")
        except ForestError:
            continue


SEEN = replace(FOREST, hits=FOREST.is_leaf.astype(np.int64))
"""Some layouts need tiles, which are made of how many rows reached each leaf."""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_functions_of_every_layout_are_sound_after_every_pass(layout: str) -> None:
    assert_sound(lower_drawn(1, SEEN, [layout], gpu=False))


@pytest.mark.slow
@pytest.mark.parametrize("layout", GPU_LAYOUTS)
def test_kernels_of_every_layout_are_sound_after_every_pass(layout: str) -> None:
    assert_sound(lower_drawn(1, SEEN, [layout], gpu=True))


@pytest.mark.slow
@pytest.mark.cases(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gpu", [False, True])
def test_functions_of_drawn_schedules_are_sound_after_every_pass(gpu: bool, seed: int) -> None:
    forest = FORESTS[sorted(FORESTS)[seed % len(FORESTS)]]
    assert_sound(lower_drawn(seed, forest, LAYOUTS, gpu))
