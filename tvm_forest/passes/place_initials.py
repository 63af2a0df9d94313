"""Write what sums start from, and let it enter once where TVM has made several sums of one.

takes: IRModule with blocks; gives: IRModule with blocks, whose reduction loops are not bound.

`SeparateSums` gives the initial values of our own schedules loops of their own, before the
outermost loop over trees. `PlaceInitials` is for what TVM's primitives have made:

    init: part[k, r] = base[c]                       init: part[k, r] = 0
          part[k, r] = reduce(part[k, r], walk)            part[k, r] = reduce(part[k, r], walk)
    init: margin[r] = base[c]                -->     init: margin[r] = base[c]
          margin[r] = reduce(margin[r], part[k, r])        margin[r] = reduce(margin[r], part[k, r])

`rfactor` lets every part begin with the value that the whole begins with, since a base score passes
for what additions start from (`tir_gen.ops`). A part that is joined to another sum starts from what
its reduction says. So do the sums of threads that share a reduction, and the initial value is
joined to what they give together. Conditions that TVM's primitives lose are made anew.

Our own schedules have one sum here, and are left as they are: PrivatizeSums comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..schedule_prims.replay import EPILOGUE, FINISH_BLOCK, PREFIX
from ..tir_gen import ir, ops
from .function_pass import function_pass
from .nest_facts import NestFacts, name_of
from .reading.blocks import WalkBlock, find_walk_block, list_blocks


@function_pass
@dataclass(frozen=True)
class SeparateSums:
    """Let initial values have loops of their own, and the epilogue the threads of the walks.

    Attributes:
        facts: of the loops of the nest.
    """

    facts: NestFacts

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite what is before and behind the walks; without facts, nothing."""
        facts, blocks = self.facts, list_blocks(func)
        walk = find_walk_block(func)
        if walk is None or not facts.nest.loops():
            return func
        body, parallel = func.body, any(loop.parallel for loop in facts.nest.loops())
        finish = next((x for x in blocks if x.block.name_hint == FINISH_BLOCK), None)
        if finish is not None and finish.around:
            loop, kind = finish.around[0], tirx.ForKind.PARALLEL
            notes = {**loop.annotations, EPILOGUE: 1} if facts.on_gpu else loop.annotations
            own = ir.change_loop(loop, kind=kind if parallel else loop.kind, annotations=notes)
            body = _swap(body, {loop.loop_var: lambda _: own})
        if walk.block.init is not None:
            first = self._find_first(walk.around)
            initial = _write_initial(walk, walk.around[first:])
            body = tvm_ffi.structural_map(body, (s_tir.SBlock, partial(_without_initial, walk)))
            before = {walk.around[first].loop_var: lambda loop: tirx.SeqStmt([initial, loop])}
            body = _swap(body, before)
        return func.with_body(body)

    def _find_first(self, around: tuple[tirx.For, ...]) -> int:
        """Return the place of the outermost loop that runs over trees or is written anew.

        If that loop is parallel, it stays the only child of parallel loops around it.
        """
        facts, names = self.facts, list(map(name_of, around))
        first = next(
            place
            for place, loop in enumerate(around)
            if names[place] in facts.origins or facts.kind(loop) == "tree"
        )
        parallel = {loop.name for loop in facts.nest.loops() if loop.parallel}
        while first and parallel.issuperset(names[first - 1 : first + 1]):
            first -= 1
        return first


@function_pass
class PlaceInitials:
    """Rewrite what parts start from, then let TVM lower the reductions that threads share."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Look for parts first, for those of threads have no stores yet."""
        body = _start_parts(func.body)
        loops = ir.find_all(body, tirx.For, lambda loop: loop.thread_binding is not None)
        func, bound = func.with_body(body), {loop.loop_var for loop in loops}
        return func.with_body(_reduce_across_threads(func, bound)) if bound else func


def _swap(body: Any, changes: dict[Any, Callable[[tirx.For], tirx.Stmt]]) -> Any:
    """Return code in which loops, by their variables, are changed."""
    return ir.rewrite_loops(body, lambda x: changes.get(x.loop_var, lambda loop: loop)(x))


def _write_initial(walk: WalkBlock, inside: tuple[tirx.For, ...]) -> tirx.Stmt:
    """Return loops that write the initial values of all rows and classes of some loops."""
    block, pairs = walk.block, zip(walk.block.iter_vars, walk.realize.iter_values, strict=True)
    axes = [(x, value) for x, value in pairs if x.iter_type == tirx.IterVar.DataPar]
    values = [value for _, value in axes]
    kept = [loop for loop in inside if ir.mentions(values, {loop.loop_var})]
    dropped = {loop.loop_var for loop in inside} - {loop.loop_var for loop in kept}
    own = {x.loop_var: tirx.Var(f"{x.loop_var.name}_init", x.loop_var.ty) for x in kept}
    new = {x.var: tirx.Var(x.var.name, x.var.ty) for x, _ in axes}
    clauses = ir.split_condition(walk.realize.predicate)
    when = tirx.all(*[x for x in clauses if not ir.mentions(x, dropped)] or [True])
    store, writes = ir.replace_vars(block.init, new), ir.replace_vars(block.writes, new)
    iters = [tirx.IterVar(x.dom, new[x.var], x.iter_type) for x, _ in axes]
    body = s_tir.SBlock(iters, [], writes, f"{block.name_hint}_init", store)
    nest = s_tir.SBlockRealize(ir.replace_vars(values, own), ir.replace_vars(when, own), body)
    for loop in reversed(kept):
        notes = {k: x for k, x in loop.annotations.items() if not str(k).startswith(PREFIX)}
        nest = ir.change_loop(loop, loop_var=own[loop.loop_var], body=nest, annotations=notes)
    return nest


def _without_initial(walk: WalkBlock, block: Any) -> Any:
    """Return the block with the walk as one that goes on with what is there; others as they are."""
    if block.name_hint != walk.block.name_hint:
        return block
    reads, name = [*block.writes, *block.reads], f"{block.name_hint}_update"
    return s_tir.SBlock(block.iter_vars, reads, block.writes, name, block.body)


def _start_parts(body: tirx.Stmt) -> tirx.Stmt:
    """Let sums that are joined to others start from what their reductions say."""
    stores = ir.find_stores(body)
    reductions = [x for x in stores if ops.is_call(x.value, ops.REDUCE)]
    sums = {x.buffer: x.value.args[2] for x in reductions}
    copies = [x for x in stores if isinstance(x.value, tvm.ir.TensorLoad)]
    holding = _close(sums, [(x.value.source, x.buffer) for x in copies])
    joined = [x.value.args[1] for x in reductions if isinstance(x.value.args[1], tvm.ir.TensorLoad)]
    parts = _close([x.source for x in joined], [(x.buffer, x.value.source) for x in copies])
    if not parts.intersection(x.buffer for x in stores):
        return body

    def start(store: tirx.BufferStore) -> tirx.BufferStore:
        is_part = store.buffer in sums and store.buffer in parts
        if not is_part or ops.is_call(store.value, ops.REDUCE):
            return store
        if isinstance(store.value, tvm.ir.TensorLoad) and store.value.source in holding:
            return store  # a copy of a sum
        return tirx.BufferStore(store.buffer, sums[store.buffer], list(store.indices))

    body = tvm_ffi.structural_map(body, (s_tir.SBlockRealize, _stay_in_domain))
    return tvm_ffi.structural_map(body, (tirx.BufferStore, start))


def _stay_in_domain(realize: Any) -> Any:
    """Return a block with the conditions that `rfactor` leaves out: its axes end where they end."""
    if not isinstance(realize.predicate, tirx.IntImm):
        return realize
    axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    ends = [value < x.dom.extent for x, value in axes if not isinstance(value, tirx.Var)]
    return s_tir.SBlockRealize(realize.iter_values, tirx.all(*ends or [True]), realize.block)


def _close(first: Any, steps: list[tuple[Any, Any]]) -> set[Any]:
    """Return what can be reached by steps from one thing to another."""
    reached, size = set(first), -1
    while size != len(reached):
        size = len(reached)
        reached |= {end for begin, end in steps if begin in reached}
    return reached


def _reduce_across_threads(func: tirx.PrimFunc, bound: set[Any]) -> tirx.Stmt:
    """Lower reductions whose loops are bound to threads.

    TVM wants every thread to start from one value, and writes the sum of all with the initial value
    left out. It also writes it without a condition that stands alone, so conditions come in pairs.
    """
    initials = dict[Any, tuple[tirx.BufferStore, str]]()

    def prepare(realize: Any) -> Any:
        block, pairs = realize.block, zip(realize.block.iter_vars, realize.iter_values, strict=True)
        shared = [value for x, value in pairs if x.iter_type == tirx.IterVar.CommReduce]
        reduction: Any = getattr(block.body, "value", None)
        if not ir.mentions(shared, bound):
            return realize
        whole = block.init is not None and ops.is_call(reduction, ops.REDUCE)
        assert whole, f"threads share '{block.name_hint}', which is no whole reduction"
        _, _, start, how = reduction.args
        initials[block.init.buffer] = block.init, how.value
        start = tirx.BufferStore(block.init.buffer, start, list(block.init.indices))
        swap = (tirx.BufferStore, lambda store: start if store.same_as(block.init) else store)
        condition = realize.predicate
        if not isinstance(condition, tirx.IntImm):
            condition = tirx.And(condition, condition)
        block = tvm_ffi.structural_map(block, swap)
        return s_tir.SBlockRealize(realize.iter_values, condition, block)

    def finish(store: tirx.BufferStore) -> tirx.BufferStore:
        load = store.value
        if store.buffer not in initials or not isinstance(load, tvm.ir.TensorLoad):
            return store
        if ir.mentions(func.body, {load.source}):
            return store  # not what threads gave
        initial, how = initials[store.buffer]
        here = dict(zip(initial.indices, store.indices, strict=True))
        total = ops.reduce(ir.replace_vars(initial.value, here), load, how)
        return tirx.BufferStore(store.buffer, total, list(store.indices))

    prepared = func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, prepare)))
    mod = s_tir.transform.LowerCrossThreadReduction()(tvm.IRModule({"main": prepared}))
    return tvm_ffi.structural_map(mod["main"].body, (tirx.BufferStore, finish))
