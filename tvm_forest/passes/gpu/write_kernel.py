"""Writes a kernel: threads, barriers and memory.

takes: a nest whose loops are mapped to a GPU; gives: a nest of thread bindings.

Each dimension of grid and block is as large as its largest loop. A loop marked `spread` has
independent iterations, which the threads of a block share. Work that no loop distributes over a
dimension is done by its first thread. A barrier separates two statements of a block if one writes
memory that the other accesses, unless each thread runs both by itself.

Barriers and shuffles are never inside a condition on threads: such conditions move inwards, to the
statements without barriers. A loop with thread-dependent bounds gets the largest bounds, and a
condition inside.

If a team of threads decides tiles together ("block.x", see `cooperate`), all its threads compute
the next tile, in variables of their own, and the first thread uses the leaf.

A buffer that one thread fills and reads is private ("local": registers). Others must be visible to
all threads that share them: in shared memory, or in device memory with a part for every block. If
threads fill such a buffer separately, each has its own part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...schedule_prims.devices import MAX_BLOCK_THREADS, TEAM_DIMENSION, say_too_many
from ...schedule_prims.directive import make_error
from ...schedule_prims.nest import Nest
from ...tir_gen import ir
from ...tir_gen.builder import SPREAD
from ...tir_gen.internals.names import ADDRESS_OF
from ...tir_gen.ir import find_stores, guard, i64, join_statements, mentions, replace_vars
from ...tir_gen.ops import BALLOT, find_calls
from ..nest_facts import NestFacts, name_of
from ..ordered_sums import TERMS
from . import kernel_code
from .kernel_code import simplify
from .thread_axes import AXES, FLAT_THREADS, Dimension, bind, dimension_var, share_out

ROW_BUFFERS = ("near", "codes")
"""Names of the buffers that hold rows."""


@dataclass
class KernelWriter:
    """Writes one kernel, and collects its memory meanwhile.

    Attributes:
        facts: facts about the loops.
        blocks, threads: variable and extent of each dimension in use, slowest first.
        most: extents of the grid in the largest launch.
        shared: buffers in shared memory.
        outer: buffers in device memory, with a part for every block.
        registers: buffers of a thread that survive a barrier.
        places: current places of the nest's buffers.
    """

    facts: NestFacts
    blocks: dict[str, Dimension]
    threads: dict[str, tuple[tirx.Var, int]]
    most: list[Any]
    shared: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    registers: list[Any] = field(default_factory=list)
    places: dict[Any, kernel_code.Place] = field(default_factory=dict)

    @classmethod
    def of(cls, root: tirx.For, facts: NestFacts, outer: tuple[tirx.Var, ...]) -> KernelWriter:
        """Create a writer: determine the sizes of the grid and the blocks of a nest.

        Args:
            root: the nest.
            facts: facts about its loops.
            outer: variables of the host loops, which launch the kernel repeatedly.

        Raises:
            ScheduleError: a block has too many threads.
        """
        loops = facts.on_levels(root)
        inner = {loop.loop_var: i64(0) for loop in ir.find_loops(root)}
        blocks, threads = dict[str, Dimension](), dict[str, tuple[tirx.Var, int]]()
        for dimension in AXES:
            mine = [loop for loop in loops if facts.of(loop).gpu == dimension]
            var = dimension_var(dimension)
            if mine and dimension.startswith("block"):
                threads[dimension] = (var, max(facts.nest[name_of(x)].count or 1 for x in mine))
            elif mine:  # bounds only shrink when the loops around go on
                blocks[dimension] = (var, _largest([replace_vars(x.extent, inner) for x in mine]))
        for ballot in kernel_code.find_extern(root, BALLOT):
            threads[TEAM_DIMENSION] = (dimension_var(TEAM_DIMENSION), int(ballot.args[2]))
        if not blocks and not threads:
            threads["block.x"] = (dimension_var("block.x"), FLAT_THREADS)
        counts = [count for _, count in threads.values()]
        if prod(counts) > MAX_BLOCK_THREADS:
            raise make_error(facts.nest, "build", f"argument 'schedule': {say_too_many(counts)}")
        launches = {var: i64(0) for var in outer}
        sizes = [simplify(replace_vars(extent, launches)) for _, extent in blocks.values()]
        return cls(facts, blocks, threads, sizes)

    def write(self, root: tirx.For, shared_bytes: int) -> tirx.Stmt:
        """Return the kernel, after the declarations of its device memory.

        Args:
            root: the nest.
            shared_bytes: bytes of shared memory that a block may use.

        Raises:
            ScheduleError: a block needs too much shared memory, or its number of threads is not a
                multiple of the width of a shuffle.
        """
        body = self._visit(kernel_code.put_lane(root, self._lane), (), ())
        mine = kernel_code.buffers_of(body, "global")
        self.places |= {buffer: (kernel_code.widen(buffer, [], "local"), []) for buffer in mine}
        body = kernel_code.move_buffers(body, self.places)
        _check_shared(self.facts.nest, self.shared, shared_bytes)
        memory = [tirx.AllocBuffer(buffer) for buffer in (*self.shared, *self.registers)]
        body = bind(join_statements([*memory, body]), {**self.blocks, **self.threads})
        return join_statements([*map(tirx.AllocBuffer, self.outer), body])

    @property
    def _lane(self) -> Any:
        """Return the index of a thread in its team; 0 without teams."""
        var, _ = self.threads.get(TEAM_DIMENSION, (i64(0), 1))
        return var

    # -- statements -------------------------------------------------------------------------------

    def _visit(self, s: tirx.Stmt, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Rewrite a statement that all threads reach, under the conditions `when`.

        `bound` lists the block dimensions whose threads have different work in it.
        """
        if self._is_alone(s):
            return self._do_alone(s, when, bound)
        if isinstance(s, tirx.BufferStore):
            return self._check_lanes(s)
        if isinstance(s, tirx.SeqStmt):
            return self._sequence(list(s.seq), when, bound)
        if isinstance(s, tirx.IfThenElse):
            return self._visit(s.then_case, (*when, s.condition), bound)
        assert isinstance(s, tirx.For), "only loops and conditions are around mapped loops"
        if kernel_code.is_spread(s):
            return self._share(s, when, bound)
        if self.facts.level(s):
            return self._map(s, when, bound)
        extent = self._uniform(s.extent)
        if not extent.same_as(s.extent):
            when = (*when, s.loop_var < s.extent)
        body = self._visit(s.body, when, bound)
        if find_calls(body, kernel_code.SYNC) or kernel_code.has_spread(s.body):
            body = tirx.SeqStmt([body, kernel_code.barrier()])
        return ir.change_loop(s, extent=extent, body=body, annotations={})

    def _do_alone(self, s: tirx.Stmt, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Restrict a statement to one thread, or one team, among those with the same work.

        `when` and `bound` are as in `_visit`.
        """
        is_local = all(store.buffer.scope() == "local" for store in find_stores(s))
        if is_local and not kernel_code.loads_of(s):
            return s  # threads may always set their own registers
        if kernel_code.find_extern(s, BALLOT):
            s, bound = _store_by_first(s, self._lane), (*bound, TEAM_DIMENSION)
        idle = [var for d, (var, _) in self.threads.items() if d not in bound]
        return guard(s, [*when, *(tirx.EQ(var, i64(0)) for var in idle)])

    def _map(self, s: tirx.For, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Rewrite a mapped loop, see `_visit`: each thread or block runs one iteration."""
        dimension = str(self.facts.of(s).gpu)
        of_block = dimension in self.threads
        var, extent = (self.threads if of_block else self.blocks)[dimension]
        limit = i64(extent) if isinstance(extent, int) else extent
        count = replace_vars(s.extent, {s.loop_var: var})
        if not tvm_ffi.structural_equal(count, limit):
            when = (*when, var < count)
        body = replace_vars(s.body, {s.loop_var: var})
        return self._visit(body, when, (*bound, dimension) if of_block else bound)

    def _sequence(
        self, parts: list[tirx.Stmt], when: tuple[Any, ...], bound: tuple[str, ...]
    ) -> tirx.Stmt:
        """Rewrite statements, see `_visit`, with barriers between those that access one memory."""
        written, since = list[tirx.Stmt](), list[_Accesses]()
        for part in kernel_code.join_users(self._flatten(parts), self._are_of_thread):
            if isinstance(part, tirx.AllocBuffer):
                self._place(part.buffer, parts, bound)
                continue
            accesses = _Accesses.of(part, self._is_alone(part))
            if any(earlier.meets(accesses) for earlier in since):
                written.append(kernel_code.barrier())
                since = []
            since.append(accesses)
            written.append(self._visit(part, when, bound))
        return join_statements(written)

    def _flatten(self, parts: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Flatten nested sequences, unless one thread runs them by itself."""
        flat = list[tirx.Stmt]()
        for s in parts:
            apart = isinstance(s, tirx.SeqStmt) and not self._is_alone(s)
            flat += self._flatten(list(s.seq)) if apart else [s]
        return flat

    def _are_of_thread(self, buffer: Any, users: list[tirx.Stmt]) -> bool:
        """Return whether a buffer, and all statements that use it, belong to one thread."""
        return buffer.scope() == "global" and all(map(self._is_alone, users))

    def _is_alone(self, s: tirx.Stmt) -> bool:
        """Return whether one thread runs a statement by itself."""
        shares = self.facts.has_level(s) or kernel_code.has_spread(s)
        return not (shares or find_calls(s, kernel_code.SHUFFLE))

    def _share(self, s: tirx.For, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Let all threads with the same work share a `spread` nest's iterations, see `_visit`."""
        fixed = self._dimensions_of(s, bound)
        workers = [self.threads[d] for d in self.threads if d not in fixed]
        count, worker = prod(size for _, size in workers), i64(0)
        chain, body = list[tirx.For](), s
        while kernel_code.is_spread(body):
            chain.append(body)
            body = body.body
        for var, size in workers:
            worker = worker * size + var
        others = {self.threads[d][0] for d in bound if d not in fixed}
        conditions = [x for x in when if not mentions(x, others)]
        return guard(share_out(chain, body, worker, count), conditions)

    def _check_lanes(self, store: tirx.BufferStore) -> tirx.Stmt:
        """Refuse a shuffle whose width does not divide the number of threads."""
        width = int(find_calls(store, kernel_code.SHUFFLE)[0].args[3])
        threads = self.threads["block.x"][1]
        if threads % width:
            what = f"argument 'schedule': {threads} threads of block.x cannot be dealt out in"
            what += f" groups of {width}, as vector_reduce asks; use a multiple of {width}"
            raise make_error(self.facts.nest, "build", what)
        return store

    # -- memory -----------------------------------------------------------------------------------

    def _place(self, buffer: Any, parts: list[tirx.Stmt], bound: tuple[str, ...]) -> None:
        """Move a buffer out of the nest; threads that fill it separately get their own parts."""
        if buffer.scope() == "local":
            self.registers.append(buffer)
            return
        copies = [x for part in parts for x in ir.find_loops(part, SPREAD)]
        fills = [self._dimensions_of(x, bound) for x in copies if find_stores(x, buffer)]
        own = {d for dimensions in fills or [list(bound)] for d in dimensions}
        threads = [self.threads[d] for d in self.threads if d in own]
        sizes, place = [i64(size) for _, size in threads], [var for var, _ in threads]
        if buffer.scope() == "shared":
            wide = kernel_code.widen(buffer, sizes, "shared")
            self.shared.append(wide)
        else:
            wide = kernel_code.widen(buffer, [*self.most, *sizes], "global")
            self.outer.append(wide)
            place = [*(var for var, _ in self.blocks.values()), *place]
        self.places[buffer] = (wide, place)

    def _dimensions_of(self, s: Any, bound: tuple[str, ...]) -> list[str]:
        """Return the block dimensions that a statement depends on."""
        return [d for d in bound if mentions(s, {self.threads[d][0]})]

    def _uniform(self, extent: Any) -> Any:
        """Return a loop's bound for all threads: that of the first thread, which is the largest."""
        firsts = {var: i64(0) for var, _ in self.threads.values()}
        return simplify(replace_vars(extent, firsts)) if mentions(extent, firsts) else extent


@dataclass(frozen=True)
class _Accesses:
    """The buffers, visible to several threads, that a statement reads and writes.

    Attributes:
        alone: whether each thread runs the statement by itself.
        apart: whether it writes elements that no other such statement writes, see `Builder.nest`.
    """

    reads: set[Any]
    writes: set[Any]
    alone: bool
    apart: bool

    @classmethod
    def of(cls, statement: tirx.Stmt, alone: bool) -> _Accesses:
        """Collect the accesses of a statement; taking an address counts as a read and a write."""
        pointed = {call.args[0].source for call in find_calls(statement, ADDRESS_OF)}
        reads = {load.source for load in kernel_code.loads_of(statement)}
        writes = pointed | {store.buffer for store in find_stores(statement)}
        reads, writes = ({x for x in y if x.scope() != "local"} for y in (reads, writes))
        apart = isinstance(statement, tirx.For) and int(statement.annotations.get(SPREAD, 0)) > 1
        return cls(reads, writes, alone, apart)

    def meets(self, other: _Accesses) -> bool:
        """Return whether one statement writes memory that other threads access in the other."""
        if self.alone and other.alone:
            return False
        reads = self.writes & other.reads or self.reads & other.writes
        return bool(reads or (self.writes & other.writes and not (self.apart and other.apart)))


def _store_by_first(s: tirx.Stmt, lane: Any) -> tirx.Stmt:
    """Let the first thread of a team store the result of a walk; each has its own variables."""
    cells = set(kernel_code.buffers_of(s, "global"))

    def store(x: Any) -> tirx.Stmt:
        own = isinstance(x, tirx.BufferStore) and x.buffer in cells
        return x if own else guard(x, [tirx.EQ(lane, i64(0))])

    return tvm_ffi.structural_map(s, [(tirx.BufferStore, store), (tirx.Evaluate, store)])


def _largest(extents: list[Any]) -> Any:
    """Return the largest of some extents."""
    most = extents[0]
    for extent in extents[1:]:
        most = most if tvm_ffi.structural_equal(most, extent) else tirx.max(most, extent)
    return simplify(most)


def _check_shared(nest: Nest, buffers: list[Any], most: int) -> None:
    """Refuse too much shared memory per block; the error names the number of rows that fit."""
    sizes = {x: prod(map(int, x.shape)) * tvm.DataType(x.dtype).itemsize for x in buffers}
    spare = most - sum(sizes.values())
    if spare >= 0:
        return
    text = " + ".join(
        f"{size} ({buffer.name} {' x '.join(map(str, map(int, buffer.shape)))})"
        for buffer, size in sizes.items()
    )
    remedy = "use smaller tiles, or leave a cache out"
    for buffer in (buffer for buffer in buffers if buffer.name in ROW_BUFFERS):
        fit = (spare + sizes[buffer]) * int(buffer.shape[-2]) // sizes[buffer]
        remedy = f"use at most {fit} rows" if fit > 0 else "leave the cache of rows out"
    for buffer in (buffer for buffer in buffers if buffer.name == TERMS):
        trees, _, rows = map(int, buffer.shape[-3:])
        fit = [(spare + sizes[buffer]) * count // sizes[buffer] for count in (trees, rows)]
        few = f"at most {fit[0]} trees at a time, by a serial loop over tiles of them around those"
        if fit[0] > 0:
            remedy = f"use {few} of the block, or at most {fit[1]} rows"
    what = f"argument 'schedule': {text} bytes of shared memory per block, the target allows {most}"
    raise make_error(nest, "build", f"{what}; {remedy}")
