"""Keeps the sums of a GPU thread in registers while it walks trees.

takes: IRModule without blocks, walks in stores, loops mapped to a GPU; gives: IRModule.

    for t0 in range(20):                      for b in range(2):  # unrolled
        for b in range(min(2, n - ...)):          sums[b] = margin[r + b, c]
            margin[r + b, c] += walk    -->   for t0 in range(20):
                                                  for b in range(2):  # unrolled
                                                      sums[b] += walk
                                              for b in range(2):  # unrolled
                                                  if b < n - ...:
                                                      margin[r + b, c] = sums[b]

The order of additions is kept. Loops over rows have their full length inside, so that the indices
of registers are constants: rows past the last one read the last row, and their sums are not
written. Classes past the last one are not walked. Atomic additions are done once, at the end.

With `vector_reduce` on the dimension "block.x", neighbouring threads add their sums by shuffles,
the upper half of a group to the lower half, until one thread has the sum:

    sums[b] += shuffle_down(sums[b], 16), ..., shuffle_down(sums[b], 1)
    if threadIdx.x % 32 == 0:
        part[threadIdx.x / 32, c, r + b] += sums[b]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from ...schedule_prims.replay import NAME
from ...tir_gen import ir, ops
from ..function_pass import NestPass, function_pass
from ..nest_facts import NestFacts, name_of
from . import kernel_code

MAX_THREAD_SUMS = 32
"""Largest number of sums of one thread; more would not stay in registers."""

WARP_THREADS = 32
"""Number of threads that can shuffle with each other: a warp, or half of one on some AMD GPUs."""


@function_pass
class ThreadSums(NestPass):
    """Lets a GPU thread's outermost loop over trees add to registers, if its sums are few enough.

    The sums are stored, or added atomically, after the loop. Where `vector_reduce` is chosen,
    neighbouring threads add theirs by shuffles before that.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite the loops of a function for a GPU; other functions are returned unchanged."""
        return func.with_body(ir.rewrite_nest(func.body, self._keep)) if self.facts.on_gpu else func

    def _keep(self, s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        """Return a statement with its sums in registers; None if they cannot be."""
        lanes, facts = _find_shuffle(self.facts, around), self.facts
        trees = facts.of(s).kind == "tree" and not facts.level(s) and any(map(facts.level, around))
        if not trees and not (lanes and isinstance(s, tirx.BufferStore)):
            return None
        sums = _RegisterSums.of(s, facts, lanes)
        return None if sums is None else sums.write()


def _find_shuffle(facts: NestFacts, loops: Iterable[tirx.For]) -> tuple[tirx.For, int] | None:
    """Return the loop whose sums are added by shuffles, and the shuffle width; None if none is."""
    shuffled = ((loop, facts.shuffle_width(loop)) for loop in loops)
    return next((pair for pair in shuffled if pair[1]), None)


@dataclass
class _RegisterSums:
    """The sums of a statement that adds to an element for each of a few rows and classes.

    Attributes:
        facts: facts about the loops.
        statement: a loop over trees, or the store itself.
        store: the only store of a reduction inside.
        index: inner loops that the element depends on, or that are mapped to threads, outermost
            first.
        serial: full lengths of the loops of `index` that one thread runs, by their variables.
        conditions: conditions under which the row and class of an iteration of `index` exist.
        lanes: result of `_find_shuffle`.
        sums: buffer of the registers.
    """

    facts: NestFacts
    statement: tirx.Stmt
    store: tirx.BufferStore
    index: list[tirx.For]
    serial: dict[Any, int]
    conditions: list[Any]
    lanes: tuple[tirx.For, int] | None
    sums: Any = field(init=False)

    def __post_init__(self) -> None:
        shape = [ir.i64(count) for count in self.serial.values()] or [ir.i64(1)]
        self.sums = tirx.decl_buffer(shape, self.store.buffer.dtype, "sums", scope="local")

    @classmethod
    def of(
        cls, statement: tirx.Stmt, facts: NestFacts, lanes: tuple[tirx.For, int] | None
    ) -> _RegisterSums | None:
        """Return the sums of a statement; None if they cannot be kept in registers."""
        stores = [x for x in ir.find_stores(statement) if ops.is_call(x.value, ops.REDUCE)]
        loops = ir.find_loops(statement)
        simdized = any(facts.of(loop).simdize for loop in loops)
        if len(stores) != 1 or facts.has_level(statement, "grid") or simdized:
            return None
        if _count_uses(statement, stores[0].buffer) > _count_uses(stores[0], stores[0].buffer):
            return None  # the statement initialises the sums, or reads them elsewhere
        path = [loop for loop in loops if ir.find_stores(loop, stores[0].buffer)]
        place, lanes = stores[0].indices, lanes or _find_shuffle(facts, path)
        index = [x for x in path if facts.level(x) or ir.mentions(place, {x.loop_var})]
        others = {loop.loop_var for loop in path if loop not in index}
        if statement in index or ir.mentions([loop.extent for loop in index], others):
            return None
        counts = {loop: facts.nest[name_of(loop)].count for loop in index}
        serial = {x.loop_var: count for x, count in counts.items() if count and not facts.level(x)}
        if None in counts.values() or prod(serial.values()) > MAX_THREAD_SUMS:
            return None
        ends = [x.loop_var < x.extent for x, n in counts.items() if not _is_constant(x.extent, n)]
        guards = [x for x in _conditions_of(statement, stores[0]) if not ir.mentions(x, others)]
        return cls(facts, statement, stores[0], index, serial, [*ends, *guards], lanes)

    @property
    def _place(self) -> list[Any]:
        """Return the indices of the register for the current iteration."""
        return list(self.serial) or [ir.i64(0)]

    def write(self) -> tirx.Stmt:
        """Return code that sets the registers, runs the statement on them, and stores the sums."""
        store, load = self.store, tirx.BufferLoad(self.sums, self._place)
        before = tirx.BufferLoad(store.buffer, list(store.indices))
        how = store.value.args[-1].value
        adds = how == ops.ATOMIC_ADD or self.lanes is not None
        start = tirx.const(0.0, store.buffer.dtype) if adds else before
        first = tirx.BufferStore(self.sums, start, self._place)
        code = [tirx.AllocBuffer(self.sums), self._repeat(first, free=adds), self._inside()]
        total = ops.reduce(before, load, how) if adds else load
        last: tirx.Stmt = tirx.BufferStore(store.buffer, total, list(store.indices))
        if self.lanes is not None:
            loop, width = self.lanes
            for halving in range(1, width.bit_length()):
                code.append(self._repeat(self._shuffle(width >> halving, width), free=True))
            last = ir.guard(last, [tirx.EQ(tirx.floormod(loop.loop_var, ir.i64(width)), ir.i64(0))])
        return ir.join_statements([*code, self._repeat(last)])

    def _repeat(self, body: tirx.Stmt, free: bool = False) -> tirx.Stmt:
        """Return a statement repeated for every sum.

        With `free` it runs for each register of a thread, else only for the rows and classes that
        exist, in the threads that have work.

        The loops are unrolled, since registers can only be indexed by constants.
        """
        loops = [loop for loop in self.index if not (free and self.facts.level(loop))]
        fresh = {loop.loop_var: tirx.Var(loop.loop_var.name, "int64") for loop in loops}
        body = ir.replace_vars(body if free else ir.guard(body, self.conditions), fresh)
        for loop in reversed(loops):
            count, kind, notes = self.serial.get(loop.loop_var), tirx.ForKind.UNROLLED, {}
            if count is None:
                kind, notes = tirx.ForKind.SERIAL, {NAME: loop.annotations[NAME]}
            extent = ir.replace_vars(loop.extent, fresh) if count is None else ir.i64(count)
            body = tirx.For(fresh[loop.loop_var], ir.i64(0), extent, kind, body, None, notes)
        return body

    def _inside(self) -> tirx.Stmt:
        """Return the statement with registers in place of the buffer, and loops of full length."""
        old, place = self.store, self._place
        load = tirx.BufferLoad(self.sums, place)

        def store(x: tirx.BufferStore) -> tirx.BufferStore:
            if not x.buffer.same_as(old.buffer):
                return x
            value = _read_registers(x.value, old, load, self.serial)
            return tirx.BufferStore(self.sums, ops.add_to_kept(load, value), place)

        def loop(x: tirx.For) -> tirx.For:
            count, fact = self.serial.get(x.loop_var), self.facts.of(x)
            if count is None:
                return x
            kind = x.kind if fact.interleave > 1 else tirx.ForKind.UNROLLED
            whole = fact.kind != "class" or _is_constant(x.extent, count)
            body = x.body if whole else ir.guard(x.body, [x.loop_var < x.extent])
            return ir.change_loop(x, extent=ir.i64(count), kind=kind, body=body)

        kinds = [(tirx.BufferStore, store), (tirx.For, loop)]
        return tvm_ffi.structural_map(self.statement, kinds)

    def _shuffle(self, distance: int, width: int) -> tirx.Stmt:
        """Return a statement by which a thread adds another thread's sum to its own, by a shuffle.

        The other thread is `distance` further in the group of `width` threads.
        """
        load, mask = tirx.BufferLoad(self.sums, self._place), tirx.IntImm("uint32", 2**32 - 1)
        numbers = (tirx.const(x, "int32") for x in (distance, width, WARP_THREADS))
        theirs = tirx.call_intrin(self.sums.dtype, kernel_code.SHUFFLE, mask, load, *numbers)
        return tirx.BufferStore(self.sums, load + theirs, self._place)


def _conditions_of(statement: tirx.Stmt, store: tirx.BufferStore) -> list[Any]:
    """Return the conditions around a store, inside a statement."""
    around = ir.find_all(
        statement, tirx.IfThenElse, lambda x: bool(ir.find_stores(x.then_case, store.buffer))
    )
    return [part for x in around for part in ir.split_condition(x.condition)]


def _read_registers(value: Any, old: tirx.BufferStore, sums: Any, clipped: dict[Any, int]) -> Any:
    """Return a value that reads registers instead of the old buffer, with clipped row indices.

    Args:
        value: the value.
        old: store to the old buffer.
        sums: load of the register.
        clipped: loop variables; indices that use them are clipped to the last row.
    """

    def load(x: Any) -> Any:
        if x.source.same_as(old.buffer):
            return sums
        first, *rest = x.indices
        end = x.source.shape[0]
        if isinstance(end, tirx.IntImm) or not ir.mentions(first, clipped):
            return x
        return tirx.BufferLoad(x.source, [tirx.min(first, end - 1), *rest])

    return tvm_ffi.structural_map(value, (kernel_code.TensorLoad, load))


def _count_uses(statement: tirx.Stmt, buffer: Any) -> int:
    """Count the loads and stores of a buffer."""
    return len(ir.find_stores(statement, buffer)) + len(kernel_code.loads_of(statement, buffer))


def _is_constant(extent: Any, count: int | None) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == count
