"""TVM's own primitives on the canonical functions: where they are right, and what we mend.

Functions are scheduled by `s_tir.Schedule`, without a directive, and lowered by our pipeline.
`docs/directives.md` says which directive is carried out by which primitive, and why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_forest
from forests import drawn_forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import protocol
from tvm_forest.passes import pipeline
from tvm_forest.passes.gpu.kernel_code import barrier, thread_axis
from tvm_forest.passes.gpu.run_threads import run_threads
from tvm_forest.passes.place_initials import PlaceInitials
from tvm_forest.passes.reading.read_nest import read_nest
from tvm_forest.runtime.results import result_dtype, result_names, sizes_array
from tvm_forest.targets import cpu
from tvm_forest.tir_gen import ir
from tvm_forest.tir_gen.canonical import emit_canonical

SIZES = (1, 7, 33)
"""No row at all is what `predict` answers without a function."""
GUARD = 3
"""Rows behind the last one, which nobody may write."""


FORESTS = {
    "one class": drawn_forest(30, 4, seed=1, base=[0.3]),
    "classes": drawn_forest(30, 4, seed=3, base=[0.3, -0.2, 0.1]),
    "base last": replace(drawn_forest(30, 4, seed=1, base=[0.3]), base_first=False),
    "classes, base last": replace(
        drawn_forest(30, 4, seed=3, base=[0.3, -0.2, 0.1]), base_first=False
    ),
    "minimum": replace(drawn_forest(30, 4, seed=1), aggregate="min", base_first=False),
}


@functools.cache
def canonical(name: str) -> tuple[Any, Any, dict[str, Any], tvm.IRModule]:
    """Return a forest, its layout and arrays, and the function of its sums."""
    forest = canonicalize(FORESTS[name])
    rep, arrays = protocol.find("array").pack(forest)
    return forest, rep, arrays, emit_canonical(forest, rep, "predict")


Step = Callable[[s_tir.Schedule], None]


def walk_of(tir: s_tir.Schedule, name: str = "walk") -> tuple[Any, ...]:
    """Return a block and its loops."""
    block = tir.get_sblock(name)
    return (block, *tir.get_loops(block))


def factor(size: int) -> Step:
    """Return the step that gives tiles of trees sums of their own."""

    def step(tir: s_tir.Schedule) -> None:
        outer, _ = tir.split(walk_of(tir)[-1], [None, size])
        tir.rfactor(outer, 0)

    return step


def factor_twice(tir: s_tir.Schedule) -> None:
    factor(2)(tir)
    factor(3)(tir)


def factor_then_part_rows(tir: s_tir.Schedule) -> None:
    factor(4)(tir)
    for name in ("walk_rf", "walk"):
        tir.split(walk_of(tir, name)[1], [None, 8])


def part_rows_then_factor(tir: s_tir.Schedule) -> None:
    """TVM forgets the condition on rows, which the pass PlaceInitials makes anew."""
    tir.split(walk_of(tir)[1], [None, 8])
    factor(4)(tir)


def part_rows_then_factor_trees(tir: s_tir.Schedule) -> None:
    """Every tree has a sum of its own, which is only stored."""
    tir.split(walk_of(tir)[1], [None, 8])
    tir.rfactor(walk_of(tir)[-1], 0)


def factor_then_decompose(tir: s_tir.Schedule) -> None:
    factor(4)(tir)
    for name in ("walk_rf", "walk"):
        block, *_, tree = walk_of(tir, name)
        tir.decompose_reduction(block, tree)


def factor_then_copy(tir: s_tir.Schedule) -> None:
    """The parts are copied before they are added up, and so is the base score."""
    factor(4)(tir)
    block = tir.get_sblock("walk_rf")
    names = [region.source.name for region in tir.get(block).reads]
    if "base" in names:
        tir.cache_read(block, names.index("base"), "global")
    tir.cache_write(block, 0, "global")
    tir.decompose_reduction(block, tir.get_loops(block)[-1])


def decompose(tir: s_tir.Schedule) -> None:
    block, *_, tree = walk_of(tir)
    tir.decompose_reduction(block, tree)


def copy_rows(tir: s_tir.Schedule) -> None:
    block, rows, *_ = walk_of(tir)
    outer, _ = tir.split(rows, [None, 8])
    tir.compute_at(tir.cache_read(block, 0, "global"), outer)


def copy_sums(tir: s_tir.Schedule) -> None:
    block, rows, *_ = walk_of(tir)
    tir.reverse_compute_at(tir.cache_write(block, 0, "global"), rows)


def vectorize(tir: s_tir.Schedule) -> None:
    _, rows, *others = walk_of(tir)
    outer, lane = tir.split(rows, [None, 8])
    tir.reorder(outer, *others, lane)
    tir.vectorize(lane)


def parallel(tir: s_tir.Schedule) -> None:
    tir.parallel(walk_of(tir)[1])


def unroll(tir: s_tir.Schedule) -> None:
    _, inner = tir.split(walk_of(tir)[-1], [None, 2])
    tir.unroll(inner)


def bind_trees(size: int) -> Step:
    """Return the step that lets threads share the trees of a row, `size` of them."""

    def step(tir: s_tir.Schedule) -> None:
        _, rows, *_, tree = walk_of(tir)
        tir.bind(rows, "blockIdx.x")
        _, inner = tir.split(tree, [None, size])
        tir.bind(inner, "threadIdx.x")

    return step


def bind_rows_and_trees(tir: s_tir.Schedule) -> None:
    """A condition on rows stands alone, which TVM forgets; the pass PlaceInitials doubles it."""
    _, rows, *_, tree = walk_of(tir)
    outer, inner = tir.split(rows, [None, 8])
    tir.bind(outer, "blockIdx.x")
    tir.bind(inner, "threadIdx.y")
    _, tree = tir.split(tree, [None, 5])
    tir.bind(tree, "threadIdx.x")


def bind_with_local_sums(tir: s_tir.Schedule) -> None:
    copy = tir.cache_write(tir.get_sblock("walk"), 0, "local")
    bind_rows_and_trees(tir)
    tir.reverse_compute_at(copy, walk_of(tir)[2])


SAME_ORDER: dict[str, Step] = {
    "decompose_reduction": decompose,
    "cache_read and compute_at": copy_rows,
    "cache_write and reverse_compute_at": copy_sums,
    "vectorize": vectorize,
    "parallel": parallel,
    "unroll": unroll,
}
OTHER_ORDER: dict[str, Step] = {
    "rfactor": factor(5),
    "rfactor, a last part that is smaller": factor(7),
    "rfactor twice": factor_twice,
    "rfactor, then split of the rows": factor_then_part_rows,
    "split of the rows, then rfactor": part_rows_then_factor,
    "split of the rows, then rfactor of every tree": part_rows_then_factor_trees,
    "rfactor, then decompose_reduction": factor_then_decompose,
    "rfactor, cache_read and cache_write": factor_then_copy,
    "bind": bind_trees(5),
    "bind, a last part that is smaller": bind_trees(7),
    "bind of rows and trees": bind_rows_and_trees,
    "bind, sums in registers": bind_with_local_sums,
}


# -- threads that share a reduction, on a CPU -----------------------------------------------------


def plain(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Run the kernel of a function, if it is one, thread after thread.

    What TVM calls an all-reduce becomes a table of all threads' values between two barriers.
    """
    axes = [x for x in ir.find_all(func.body, tirx.AttrStmt) if x.attr_key == "thread_extent"]
    if not axes:
        return func
    threads = {x.node.var: x.value for x in axes if "threadIdx" in str(x.node.thread_tag)}
    tables: list[Any] = []

    def meet(s: tirx.AttrStmt) -> tirx.Stmt:
        if s.attr_key == "thread_extent":
            loop = (s.node.var, tirx.const(0, s.node.var.ty.dtype), s.value)
            axis = thread_axis(s.node.var, str(s.node.thread_tag))
            return tirx.For(*loop, tirx.ForKind.THREAD_BINDING, s.body, axis)
        if s.attr_key != "reduce_scope":
            return s
        _, given, _, total, shared = s.body.value.args
        table = tirx.decl_buffer(tuple(threads.values()), given.ty.dtype, "table", scope="shared")
        tables.append(table)
        k = tirx.Var("k", shared.ty)
        theirs = table[[k if var.same_as(shared) else var for var in threads]]
        swaps = {s.node.lhs[0]: total, s.node.rhs[0]: theirs}
        joined = ir.replace_vars(s.node.result[0], swaps)
        step = tirx.BufferStore(total.source, joined, list(total.indices))
        zero, start = tirx.const(0, k.ty.dtype), s.node.identity_element[0]
        return tirx.SeqStmt(
            [
                tirx.BufferStore(table, given, list(threads)),
                barrier(),
                tirx.BufferStore(total.source, start, list(total.indices)),
                tirx.For(k, zero, threads[shared], tirx.ForKind.SERIAL, step),
                barrier(),
            ]
        )

    body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, meet))
    if not tables:
        return run_threads(func.with_body(body))
    innermost = axes[0].node.var

    def declare(loop: tirx.For) -> tirx.For:
        if not loop.loop_var.same_as(innermost):
            return loop
        return ir.with_body(loop, tirx.SeqStmt([*map(tirx.AllocBuffer, tables), loop.body]))

    return run_threads(func.with_body(ir.rewrite_loops(body, declare)))


# -- what they compute ----------------------------------------------------------------------------


def scheduled(name: str, step: Step) -> tvm.IRModule:
    tir = s_tir.Schedule(canonical(name)[3])
    step(tir)
    return tir.mod


def compiled(name: str, mod: tvm.IRModule) -> Any:
    """Lower a scheduled function and compile it."""
    machine = cpu.tvm_target(tvm_forest.Target())
    mod = tirx.transform.BindTarget(machine)(mod)
    func = plain(pipeline(read_nest(mod["main"]), None)(mod)["main"])
    return cpu.compile_module(tvm.IRModule({"main": func}), machine)["main"]


def sums(name: str, function: Any, n: int) -> np.ndarray:
    """Return the margins of some rows; what lies behind them must stay."""
    forest, rep, arrays, _ = canonical(name)
    names, shape = result_names(forest), (n + GUARD, forest.n_outputs)
    results = {x: np.full(shape, 7.5, result_dtype(forest, x)) for x in names}
    model = [arrays[spec.name] for spec in rep.value_buffers()]
    rows = hard_rows(forest, n)
    assert len(rows) == n
    inputs = map(tvm.runtime.tensor, (rows, *model, forest.base_score, sizes_array(forest)))
    function(*inputs, *(x[:n] for x in results.values()))
    assert all(np.all(x[n:] == 7.5) for x in results.values())
    return results["margin"][:n]


def check_sums(name: str, step: Step, compare: Callable[[Any, Any], None]) -> None:
    """Compare the sums of a scheduled function with the reference walk."""
    function = compiled(name, scheduled(name, step))
    for n in SIZES:
        expected = FORESTS[name].predict_reference(hard_rows(FORESTS[name], n))
        compare(sums(name, function, n), expected)


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("step", SAME_ORDER)
@pytest.mark.cases(6)
def test_a_primitive_of_tvm_keeps_every_bit(step: str, name: str) -> None:
    check_sums(name, SAME_ORDER[step], np.testing.assert_array_equal)


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("step", OTHER_ORDER)
@pytest.mark.cases(11)
def test_a_primitive_of_tvm_adds_all_trees_and_the_base_score_once(step: str, name: str) -> None:
    check_sums(name, OTHER_ORDER[step], partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5))


@pytest.mark.parametrize("name", ["base last", "classes, base last"])
def test_what_is_read_and_written_after_the_sums_can_be_copied(name: str) -> None:
    def copy(tir: s_tir.Schedule) -> None:
        for read in range(2):
            tir.cache_read(tir.get_sblock("finish"), read, "global")
        tir.cache_write(tir.get_sblock("finish"), 0, "global")

    check_sums(name, copy, np.testing.assert_array_equal)


def bind_then_decompose(tir: s_tir.Schedule) -> None:
    """TVM accepts this, and lets threads add to one sum at the same time."""
    bind_trees(5)(tir)
    block, *_, tree, _ = walk_of(tir)
    tir.decompose_reduction(block, tree)


def bind_blocks_of_trees(tir: s_tir.Schedule) -> None:
    _, rows, tree = walk_of(tir)
    outer, inner = tir.split(tree, [None, 5])
    tir.blockize(inner)
    tir.bind(rows, "blockIdx.x")
    tir.bind(outer, "threadIdx.x")


@pytest.mark.parametrize("step", [bind_then_decompose, bind_blocks_of_trees])
def test_threads_that_cannot_share_a_sum_are_refused(step: Step) -> None:
    with pytest.raises(AssertionError, match="threads share 'walk_(o|update)', which is no whole"):
        compiled("one class", scheduled("one class", step))


# -- parts of sums --------------------------------------------------------------------------------

PARTS = """
@T.prim_func
def main(base: T.Buffer((4,), "float32"), leaf: T.Buffer((4,), "float32"),
         margin: T.Buffer((4,), "float32")):
    near = T.alloc_buffer((4,), "float32")
    first = T.alloc_buffer((4,), "float32")
    second = T.alloc_buffer((4,), "float32")
    for r in range(4):
        near[r] = base[r]
        first[r] = START
        first[r] = T.tvm_forest_reduce(first[r], leaf[r], T.float32(0), "add")
        second[r] = first[r]
        second[r] = T.tvm_forest_reduce(second[r], leaf[r], T.float32(0), "add")
        margin[r] = near[r]
        margin[r] = T.tvm_forest_reduce(margin[r], second[r], T.float32(0), "add")
"""


@pytest.mark.parametrize("start", ["base[r]", "near[r]"])
def test_a_part_starts_from_nothing_and_its_copies_are_kept(start: str) -> None:
    before, expected = (
        tvm.IRModule({"main": tvm.script.from_source(PARTS.replace("START", what))})
        for what in (start, "T.float32(0)")
    )
    tvm.ir.assert_structural_equal(PlaceInitials()(before), expected)


# -- what TVM refuses -----------------------------------------------------------------------------


def after(first: Step, then: str, *arguments: str) -> Step:
    """Return a step that takes another one after it, on the outermost loop of the update."""

    def step(tir: s_tir.Schedule) -> None:
        first(tir)
        loop = tir.get_loops(tir.get_sblock("walk_update"))[0]
        getattr(tir, then)(loop, *arguments)

    return step


REFUSED: dict[str, Step] = {
    "parallel of trees": lambda tir: tir.parallel(walk_of(tir)[-1]),
    "vectorize of trees": lambda tir: tir.vectorize(tir.split(walk_of(tir)[-1], [None, 5])[1]),
    "bind of trees to blocks": lambda tir: tir.bind(walk_of(tir)[-1], "blockIdx.x"),
    "parallel after decompose_reduction": after(decompose, "parallel"),
    "bind after decompose_reduction": after(decompose, "bind", "blockIdx.x"),
    "rfactor after decompose_reduction": after(decompose, "rfactor", 0),
    "loop_partition of rows": lambda tir: tir.loop_partition(walk_of(tir)[1], [10, None]),
}
"""Reasons why directives are passes of ours: where TVM accepts one, `docs/directives.md` is old."""


@pytest.mark.parametrize("step", REFUSED)
def test_what_tvm_refuses_is_done_by_passes_of_ours(step: str) -> None:
    with pytest.raises(s_tir.ScheduleError):
        scheduled("one class", REFUSED[step])
