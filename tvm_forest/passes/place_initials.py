"""Makes sure that initial values enter sums once, even if TVM has split a sum into several.

takes: IRModule with blocks; gives: IRModule with blocks, whose reduction loops are not bound to
threads.

`SeparateSums` moves the initial values of our own schedules into separate loops before the
outermost loop over trees. `PlaceInitials` handles functions scheduled by TVM's primitives:

    init: part[k, r] = base[c]                       init: part[k, r] = 0
          part[k, r] = reduce(part[k, r], walk)            part[k, r] = reduce(part[k, r], walk)
    init: margin[r] = base[c]                -->     init: margin[r] = base[c]
          margin[r] = reduce(margin[r], part[k, r])        margin[r] = reduce(margin[r], part[k, r])

`rfactor` starts every part with the initial value of the whole, since a base score is registered as
an initial value of additions (`tir_gen.ops`). A part that is added to another sum must start from
the neutral value of its reduction instead. So must the sums of threads that share a reduction; the
initial value is added to their joint result. Conditions that TVM's primitives drop are restored.

Schedules of this package have one sum here, and `PlaceInitials` leaves them unchanged;
PrivatizeSums splits sums later.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..schedule_prims.replay import EPILOGUE, FINISH_BLOCK, PREFIX
from ..tir_gen import ir, ops
from .function_pass import NestPass, function_pass
from .nest_facts import name_of
from .reading.blocks import find_walk_block, list_blocks


@function_pass
class SeparateSums(NestPass):
    """Moves initial values into loops of their own, and shares the epilogue among threads.

    On a GPU, the loop of the epilogue gets the mark `EPILOGUE`, by which later passes find it. If a
    loop of the nest is parallel, the loop of the epilogue becomes parallel too.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Move initial values before the walks, and mark the epilogue, or make it parallel.

        A function without a nest is returned unchanged.
        """
        loops, walk = self.facts.nest.loops(), find_walk_block(func)
        if walk is None or not loops:
            return func
        # unchecked: TVM refuses indices that it cannot analyse, such as some of nested tiles
        tir = s_tir.Schedule(func, error_render_level="fast", enable_check=False)
        if walk.block.init is not None:
            first, block = self._find_first(walk.around), tir.get_sblock(walk.block.name_hint)
            initial = tir.decompose_reduction(block, tir.get_loops(block)[first])
            for loop in tir.get_loops(initial)[first:]:  # copies, which must have no annotations
                for key in [x for x in tir.get(loop).annotations if x.startswith(PREFIX)]:
                    tir.unannotate(loop, key)
        if any(x.block.name_hint == FINISH_BLOCK for x in list_blocks(func)):
            loop, *_ = tir.get_loops(FINISH_BLOCK)
            if self.facts.on_gpu:
                tir.annotate(loop, EPILOGUE, 1)
            if any(x.parallel for x in loops):
                tir.parallel(loop)
        return tir.mod["main"]

    def _find_first(self, around: tuple[tirx.For, ...]) -> int:
        """Return the index in `around` of the loop before which initial values are written.

        It is the outermost loop that is over trees or that `WriteNest` will replace, or a parallel
        loop around it, since nested parallel loops must stay adjacent.
        """
        facts, names = self.facts, list(map(name_of, around))
        first = next(
            place
            for place, loop in enumerate(around)
            if names[place] in facts.origins or facts.of(loop).kind == "tree"
        )
        parallel = {loop.name for loop in facts.nest.loops() if loop.parallel}
        while first and parallel.issuperset(names[first - 1 : first + 1]):
            first -= 1
        return first


@function_pass
class PlaceInitials:
    """Corrects the initial values of parts, then lets TVM lower reductions across threads."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Start parts from neutral values, then lower the reductions that threads share.

        A part is a sum that is added to another sum. The second step adds stores, which the first
        one must not take for parts.
        """
        body = _start_parts(func.body)
        loops = ir.find_all(body, tirx.For, lambda loop: loop.thread_binding is not None)
        func, bound = func.with_body(body), {loop.loop_var for loop in loops}
        return func.with_body(_reduce_across_threads(func, bound)) if bound else func


def _start_parts(body: tirx.Stmt) -> tirx.Stmt:
    """Start parts, sums that are added to other sums, from the neutral values of reductions.

    If there are parts, blocks also get back the conditions that `rfactor` omits.
    """
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
    """Give a block without a condition the bounds of its axes, some of which `rfactor` omits.

    A block with a condition is returned unchanged.
    """
    if not isinstance(realize.predicate, tirx.IntImm):
        return realize
    axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    ends = [value < x.dom.extent for x, value in axes if not isinstance(value, tirx.Var)]
    return s_tir.SBlockRealize(realize.iter_values, tirx.all(*ends or [True]), realize.block)


def _close(first: Any, steps: list[tuple[Any, Any]]) -> set[Any]:
    """Return the transitive closure: all items that can be reached from `first` by `steps`."""
    reached, size = set(first), -1
    while size != len(reached):
        size = len(reached)
        reached |= {end for begin, end in steps if begin in reached}
    return reached


def _reduce_across_threads(func: tirx.PrimFunc, bound: set[Any]) -> tirx.Stmt:
    """Lower reductions whose loops, with the variables `bound`, are bound to threads.

    TVM's pass needs one constant in every thread to start from, so that is the neutral value, and
    the initial value is added to the total. The pass also drops a block's only condition, so the
    condition is written twice.
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
            return store  # not a result of threads
        initial, how = initials[store.buffer]
        here = dict(zip(initial.indices, store.indices, strict=True))
        total = ops.reduce(ir.replace_vars(initial.value, here), load, how)
        return tirx.BufferStore(store.buffer, total, list(store.indices))

    prepared = func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, prepare)))
    mod = s_tir.transform.LowerCrossThreadReduction()(tvm.IRModule({"main": prepared}))
    return tvm_ffi.structural_map(mod["main"].body, (tirx.BufferStore, finish))
