"""Keep the sums of a GPU's thread in registers while it walks trees.

takes: IRModule without blocks, walks in stores, loops annotated `tvm_forest.gpu`; gives: IRModule.

    for t0 in range(20):                      for b in range(2):  # unrolled
        for b in range(min(2, n - ...)):          sums[b] = margin[r + b, c]
            margin[r + b, c] += walk    -->   for t0 in range(20):
                                                  for b in range(2):  # unrolled
                                                      sums[b] += walk
                                              for b in range(2):  # unrolled
                                                  if b < n - ...:
                                                      margin[r + b, c] = sums[b]

The order of additions stays. Loops over rows have their full length inside, so that their indices
are constants: what is walked for rows behind the last one is read from the last one, and not
written. Atomic additions are done once, with the sum.

With `vector_reduce` on the dimension "block.x", threads next to each other add up their sums by
shuffles, the upper half of a group to the lower one until one thread has the sum:

    sums[b] += shuffle_down(sums[b], 16), ..., shuffle_down(sums[b], 1)
    if threadIdx.x % 32 == 0:
        part[threadIdx.x / 32, c, r + b] += sums[b]
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...schedule import Schedule
from ...schedule_prims.replay import NAME
from ...tir_gen import ops
from ...tir_gen.builder import Code
from ...tir_gen.ir import (
    conjuncts,
    guarded,
    i64,
    loops_of,
    mentions,
    replaced,
    stores_of,
    with_body,
)
from ...tir_gen.ops import find_walk
from ..annotations import GPU, INTERLEAVE, KIND, SIMDIZE, on_gpu, shuffled
from ..ir import SHUFFLE, has

MOST = 32
"""Sums of one thread: more would not stay in registers."""

LANES = 32
"""Threads that shuffle: those of a warp, half of those of some AMD GPUs."""

KEPT = (NAME, KIND, GPU)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.ThreadSums")
@dataclass(frozen=True)
class ThreadSums:
    """Rewrite the outermost loops over trees that a thread does by itself.

    Attributes:
        sch: the schedule, asked for the counts of loops.
    """

    sch: Schedule

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Visit the nest with the loops around in mind."""
        return func.with_body(self._visit(func.body, ())) if on_gpu(self.sch) else func

    def _visit(self, s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        if isinstance(s, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(part, around) for part in s.seq])
        if isinstance(s, tirx.IfThenElse):
            return tirx.IfThenElse(s.condition, self._visit(s.then_case, around), None)
        trees = isinstance(s, tirx.For) and str(s.annotations.get(KIND, "")) == "tree"
        lanes = _lanes(around)
        if (trees and GPU not in s.annotations and _has_gpu(around)) or (
            lanes and isinstance(s, tirx.BufferStore)
        ):
            sums = _Sums.of(s, self.sch, around, lanes)
            if sums is not None:
                return sums.written()
        if not isinstance(s, tirx.For):
            return s
        return with_body(s, self._visit(s.body, (*around, s)))


def _has_gpu(around: tuple[tirx.For, ...]) -> bool:
    """Return whether one of some loops is mapped to a GPU."""
    return any(GPU in loop.annotations for loop in around)


def _lanes(around: tuple[tirx.For, ...]) -> tuple[tirx.For, int] | None:
    """Return the loop around whose iterations are added up by shuffles, and how many at once."""
    for loop in around:
        width = shuffled(loop)
        if width:
            return loop, width
    return None


@dataclass
class _Sums:
    """A statement that adds to one place for each of a few rows and classes.

    Attributes:
        statement: a loop over trees, or the store itself.
        store: the only accumulation inside.
        index: the loops inside that the place depends on, or that threads share, outermost first.
        counts: their full lengths.
        conditions: what holds for their iterations that are of the batch.
        lanes: see `_lanes`.
        sums: the registers.
    """

    statement: tirx.Stmt
    store: tirx.BufferStore
    index: list[tirx.For]
    counts: list[int]
    conditions: list[Any]
    lanes: tuple[tirx.For, int] | None
    sums: Any = field(init=False)

    def __post_init__(self) -> None:
        shape = [i64(count) for count in self._serial().values()] or [i64(1)]
        self.sums = tirx.decl_buffer(shape, self.store.buffer.dtype, "sums", scope="local")

    @classmethod
    def of(
        cls,
        statement: tirx.Stmt,
        sch: Schedule,
        around: tuple[tirx.For, ...],
        lanes: tuple[tirx.For, int] | None,
    ) -> _Sums | None:
        """Return the sums of a statement, or None where they cannot be kept."""
        stores = [store for store in stores_of(statement) if _loads_itself(store)]
        loops = loops_of(statement)
        if len(stores) != 1 or has(statement, GPU, "grid") or has(statement, SIMDIZE):
            return None
        if _uses(statement, stores[0].buffer) > _uses(stores[0], stores[0].buffer):
            return None  # it is set to zero, or added up, inside
        path = [loop for loop in loops if stores_of(loop, stores[0].buffer)]
        place, lanes = stores[0].indices, lanes or _lanes(tuple(path))
        index = [x for x in path if GPU in x.annotations or mentions(place, {x.loop_var})]
        others = {loop.loop_var for loop in path if loop not in index}
        if statement in index or mentions([loop.extent for loop in index], others):
            return None
        named = [sch[str(loop.annotations[NAME])].count for loop in index]
        counts = [count for count in named if count is not None]
        if len(counts) < len(named) or prod(_registers(index, counts)) > MOST:
            return None
        pairs = zip(index, counts, strict=True)
        ends = [x.loop_var < x.extent for x, count in pairs if not _is_const(x.extent, count)]
        asked = [x for x in _conditions(statement, stores[0]) if not mentions(x, others)]
        return cls(statement, stores[0], index, counts, [*ends, *asked], lanes)

    def _serial(self) -> dict[Any, int]:
        """The loops that one thread does, by their variables, and their lengths."""
        pairs = zip(self.index, self.counts, strict=True)
        return {loop.loop_var: count for loop, count in pairs if GPU not in loop.annotations}

    def _place(self) -> list[Any]:
        return list(self._serial()) or [i64(0)]

    def written(self) -> tirx.Stmt:
        """Return what comes before the statement, the statement, and what comes behind."""
        store, load = self.store, tirx.BufferLoad(self.sums, self._place())
        before = tirx.BufferLoad(store.buffer, list(store.indices))
        adds = bool(_atomic(store.value)) or self.lanes is not None
        code = Code()
        code.add(tirx.AllocBuffer(self.sums))
        if adds:
            zero = tirx.BufferStore(self.sums, tirx.const(0.0, store.buffer.dtype), self._place())
            self._repeat(code, zero, free=True)
        else:
            self._repeat(code, tirx.BufferStore(self.sums, before, self._place()))
        code.add(self._inside())
        if self.lanes is not None:
            for distance in _halves(self.lanes[1]):
                self._repeat(code, self._shuffle(distance, self.lanes[1]), free=True)
        total: Any = before + load if adds else load
        if _atomic(store.value):
            total = tirx.call_intrin(load.ty, ops.ATOMIC_ADD, before, load)
        done: tirx.Stmt = tirx.BufferStore(store.buffer, total, list(store.indices))
        if self.lanes is not None:
            loop, width = self.lanes
            done = guarded(done, [tirx.EQ(tirx.floormod(loop.loop_var, i64(width)), i64(0))])
        self._repeat(code, done)
        return code.finish()

    def _repeat(self, code: Code, body: tirx.Stmt, free: bool = False) -> None:
        """Do something for every sum; not `free`: for those of the batch alone."""
        loops = [loop for loop in self.index if not (free and GPU in loop.annotations)]
        fresh = {loop.loop_var: tirx.Var(loop.loop_var.name, "int64") for loop in loops}
        with ExitStack() as stack:
            for loop in loops:
                stack.enter_context(code.block(self._loop(loop, fresh[loop.loop_var])))
            body = body if free else guarded(body, self.conditions)
            code.add(replaced(body, fresh))

    def _loop(self, loop: tirx.For, var: tirx.Var) -> Any:
        """A loop with another variable; registers are named by constants, so it is unrolled."""
        count = self._serial().get(loop.loop_var)
        if count is None:
            notes = {key: loop.annotations[key] for key in KEPT if key in loop.annotations}
            return lambda body: tirx.For(
                var, i64(0), loop.extent, tirx.ForKind.SERIAL, body, None, notes
            )
        return lambda body: tirx.For(var, i64(0), i64(count), tirx.ForKind.UNROLLED, body)

    def _inside(self) -> tirx.Stmt:
        """The statement, with registers in the place of the buffer, and loops of full length."""
        old, place = self.store, self._place()
        serial, load = self._serial(), tirx.BufferLoad(self.sums, place)

        def store(x: tirx.BufferStore) -> tirx.BufferStore:
            if not x.buffer.same_as(old.buffer):
                return x
            value = x.value
            for call in _atomic(value):
                value = call.args[0] + call.args[1]
            return tirx.BufferStore(self.sums, _reading(value, old, load, serial), place)

        def loop(x: tirx.For) -> tirx.For:
            count = serial.get(x.loop_var)
            if count is None:
                return x
            kind = x.kind if INTERLEAVE in x.annotations else tirx.ForKind.UNROLLED
            return tirx.For(x.loop_var, x.min, i64(count), kind, x.body, None, x.annotations)

        kinds = [(tirx.BufferStore, store), (tirx.For, loop)]
        return tvm_ffi.structural_map(self.statement, kinds)

    def _shuffle(self, distance: int, width: int) -> tirx.Stmt:
        """Add the sum of the lane that is so far behind."""
        load, mask = tirx.BufferLoad(self.sums, self._place()), tirx.IntImm("uint32", 2**32 - 1)
        numbers = (tirx.const(x, "int32") for x in (distance, width, LANES))
        theirs = tirx.call_intrin(self.sums.dtype, SHUFFLE, mask, load, *numbers)
        return tirx.BufferStore(self.sums, load + theirs, self._place())


def _halves(width: int) -> list[int]:
    """Return half of a power of two, half of that, down to 1."""
    return [1 << k for k in reversed(range(width.bit_length() - 1))]


def _conditions(statement: tirx.Stmt, store: tirx.BufferStore) -> list[Any]:
    """Return the conditions between a statement and a store inside."""
    found: list[Any] = []

    def look(x: tirx.IfThenElse) -> None:
        if stores_of(x.then_case, store.buffer):
            found.extend(conjuncts(x.condition))

    tvm_ffi.structural_walk(statement, (tirx.IfThenElse, look))
    return found


def _reading(value: Any, old: tirx.BufferStore, sums: Any, clipped: dict[Any, int]) -> Any:
    """Let a value read registers, and rows behind the last one nowhere."""

    def load(x: Any) -> Any:
        if x.source.same_as(old.buffer):
            return sums
        first, *rest = x.indices
        end = x.source.shape[0]
        if isinstance(end, tirx.IntImm) or not mentions(first, clipped):
            return x
        return tirx.BufferLoad(x.source, [tirx.min(first, end - 1), *rest])

    return tvm_ffi.structural_map(value, (tvm.ir.expr.TensorLoad, load))


def _loads_itself(store: tirx.BufferStore) -> bool:
    """Whether a store adds a walk to the place that it writes."""
    return find_walk(store.value) is not None and mentions(store.value, {store.buffer})


def _uses(statement: tirx.Stmt, buffer: Any) -> int:
    """Count the loads and stores of a buffer."""
    found: list[Any] = list(stores_of(statement, buffer))
    look = (tvm.ir.expr.TensorLoad, lambda x: found.append(x) if x.source.same_as(buffer) else None)
    tvm_ffi.structural_walk(statement, look)
    return len(found)


def _atomic(value: Any) -> list[Any]:
    """The atomic addition that a value is, if it is one."""
    return [value] if getattr(getattr(value, "op", None), "name", "") == ops.ATOMIC_ADD else []


def _registers(index: list[tirx.For], counts: list[int]) -> list[int]:
    pairs = zip(index, counts, strict=True)
    return [count for loop, count in pairs if GPU not in loop.annotations]


def _is_const(extent: Any, count: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == count
