"""The functions after every pass: named, in order, well-formed, and within their buffers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import prod
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
from tvm_forest import compiler
from tvm_forest.compiler import Lowered, lower_request
from tvm_forest.errors import ForestError
from tvm_forest.layouts.laying_out import lay_out
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.runtime.results import OUTPUTS, SUMS
from tvm_forest.target import parse_target
from tvm_forest.tir_gen import ir, ops

UNKNOWN = 2**31 - 1
"""From here on the bounds of an expression say nothing but its type."""


def find_misplaced(func: tirx.PrimFunc) -> list[str]:
    """Return the accesses that may miss their buffer, as far as TVM can tell.

    It can where sizes are constant, and indices are sums and products of constants and of loops of
    constant length. What is done under a condition, and the lanes of a vector behind the first, are
    left out.
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


def _is_hard(index: Any) -> bool:
    """Whether an index depends on data, or has terms that make up for each other."""
    return any(ir.find_all(index, kind) for kind in (tvm.ir.TensorLoad, tirx.Min, tirx.Max))


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
        shape, places = list(buffer.shape), list(indices)
        counted = buffer.name in ("rows", "near", "stage")  # of a copy by threads of a GPU
        if counted and all(_is_constant(index, 0) for index in places[:-1]):
            shape, places = [known.simplify(prod(shape))], places[-1:]
        for index, extent in zip(places, shape, strict=True):
            first = index.base if isinstance(index, tirx.Ramp) else index
            if not isinstance(extent, tirx.IntImm) or _is_hard(first):
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


def lower_drawn(seed: int, forest: Any, layouts: Any, gpu: bool, outputs: Any = (SUMS,)) -> Lowered:
    """Lower the first drawn schedule that is not refused."""
    target = parse_target("simt" if gpu else "llvm")
    rng = random.Random(seed)
    start = tvm_forest.new_schedule(forest)
    while True:
        try:
            sch = drawn_schedule(rng, start, forest, gpu=gpu, layouts=layouts)
            return compiler.lower(forest, sch, target, outputs)
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
@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gpu", [False, True])
def test_functions_of_drawn_schedules_are_sound_after_every_pass(gpu: bool, seed: int) -> None:
    forest = FORESTS[sorted(FORESTS)[seed % len(FORESTS)]]
    assert_sound(lower_drawn(seed, forest, LAYOUTS, gpu, OUTPUTS))


def test_loops_on_one_dimension_of_a_gpu_have_variables_of_their_own() -> None:
    start = tvm_forest.new_schedule(FOREST).tile("batch", "b0", "b1", 8)
    sch = start.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.y")
    sch = sch.tile("tree", "t0", "t1", 4).specialize("t0")
    for number in range(3):
        sch = sch.gpu_dimension(f"t1@t0={number}", "block.x")
    assert_sound(tvm_forest.lower(FOREST, sch, "simt"))


@pytest.mark.parametrize("target", ["llvm", "simt"])
def test_stages_are_the_passes_by_their_names_in_order(target: str) -> None:
    sch = SCHEDULES["tiles"]
    if target == "simt":
        sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    stages = tvm_forest.lower(FOREST, sch, target).stages
    assert [*stages][:3] == ["schedule", "tirx.BindTarget", "tvm_forest.SeparateSums"]
    ours = [name.partition(".")[2] for name in stages if name.startswith("tvm_forest.")]
    at_end = ["LowerWalks", "LowerLinear", "LowerReductions"]
    if target == "simt":
        at_end += ["CacheTrees", "LinkInBlocks", "MapThreads", "NarrowIndices"]
    assert ours[:4] == ["SeparateSums", "PlaceInitials", "WriteNest", "TightenGuards"]
    assert ours[-len(at_end) :] == at_end
    assert all(names(mod) == {"predict", "per_tree", "apply"} for mod in stages.values())
    found = [walks(stages[name]) for name in ("schedule", "tvm_forest.LowerWalks")]
    assert found == [3, 0]


def test_the_last_stage_of_a_function_is_what_is_compiled() -> None:
    lowered = tvm_forest.lower(FOREST, SCHEDULES["tiles"].parallel("b0"))
    last: dict[str, Any] = {}
    for mod in lowered.stages.values():
        last |= {var.name_hint: func for var, func in mod.functions.items()}
    assert last.keys() == names(lowered.after)
    for name, func in last.items():
        tvm.ir.assert_structural_equal(func.body, lowered.after[name].body, map_free_vars=True)
    assert names(lowered.stages["schedule"]) == {*OUTPUTS}
    assert names(lowered.stages["tirx.BindTarget"]) == {f"{name}_parallel" for name in OUTPUTS}


def test_a_build_keeps_no_stages() -> None:
    tvm_forest.lower(FOREST, SCHEDULES["new"])
    request = BuildRequest.of(FOREST, {1: SCHEDULES["new"]}, parse_target("llvm"))
    assert lower_request(request, lay_out(request)).stages == {}


@pytest.mark.parametrize(
    ("index", "is_found"), [("i + 24", False), ("i + 25", True), ("i - 1", True), ("i * 25", True)]
)
def test_an_access_beside_its_buffer_is_found(index: str, is_found: bool) -> None:
    text = f"for i in range(1000):\n    out[{index}] = T.float32(1)"
    assert bool(find_misplaced(module(text)["main"])) == is_found
