"""A kernel under construction: threads, barriers and memory.

takes: a nest whose loops carry `tvm_forest.gpu`; gives: a nest of thread bindings.

Its grid and its blocks are as large as the largest loop of each dimension asks for. A loop marked
`spread` has independent iterations, which the threads of a block share. What no loop gives to the
threads of a dimension is done by the first of them. Between two statements of a block stands a
barrier if one writes what the other touches, unless each thread goes through both by itself.

Barriers and shuffles are never inside a condition on threads: such conditions move inwards, to the
statements without. A loop whose bounds depend on the thread gets the largest, and conditions.

A buffer that one thread fills is its own ("local": registers). Others live where all threads that
share them see them: shared memory, or else memory of the device with a part for every block. Where
threads fill such a buffer by themselves, each has a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...schedule import Schedule
from ...schedule_prims.devices import MOST_SHARED, MOST_THREADS
from ...schedule_prims.replay import NAME
from ...tir_gen.builder import SPREAD
from ...tir_gen.ir import guarded, i64, loops_of, mentions, replaced, sequence, stores_of
from ...tir_gen.ops import calls_of
from ..annotations import GPU
from ..ir import SHUFFLE, SYNC, Place, barrier, buffers_of, has, moved, simplified, widened
from .thread_axes import AXES, Dimension, bind, dimension_var, numbered


@dataclass
class Kernel:
    """What is known of a kernel while its statements are rewritten.

    Attributes:
        sch: the schedule, asked for the counts of loops.
        blocks, threads: variable and extent of the dimensions in use, the slowest first.
        most: extent of a dimension of the grid in the largest launch.
        shared: buffers of a block.
        outer: buffers of all blocks.
        own: buffers of a thread that outlive a barrier.
        places: where the buffers of the nest are now.
    """

    sch: Schedule
    blocks: dict[str, Dimension]
    threads: dict[str, tuple[tirx.Var, int]]
    most: dict[str, Any]
    shared: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    places: dict[Any, Place] = field(default_factory=dict)

    @classmethod
    def around(cls, root: tirx.For, sch: Schedule, outer: tuple[tirx.Var, ...]) -> Kernel:
        """Measure the grid and the blocks of a nest.

        Raises:
            ScheduleError: a block has too many threads.
        """
        loops = loops_of(root, GPU)
        inner = {loop.loop_var: i64(0) for loop in loops_of(root)}
        blocks, threads = dict[str, Dimension](), dict[str, tuple[tirx.Var, int]]()
        for dimension in AXES:
            mine = [loop for loop in loops if loop.annotations[GPU] == dimension]
            var = dimension_var(dimension)
            if mine and dimension.startswith("block"):
                counts = [sch[str(loop.annotations[NAME])].count or 1 for loop in mine]
                threads[dimension] = (var, max(counts))
            elif mine:  # bounds only shrink when the loops around go on
                blocks[dimension] = (var, _most([replaced(x.extent, inner) for x in mine]))
        _check_threads(sch, [count for _, count in threads.values()])
        launches = {var: i64(0) for var in outer}
        sizes = {d: simplified(replaced(extent, launches)) for d, (_, extent) in blocks.items()}
        return cls(sch, blocks, threads, sizes)

    def written(self, root: tirx.For) -> tirx.Stmt:
        """Return the kernel, behind the memory that its blocks share.

        Raises:
            ScheduleError: too much shared memory.
        """
        body = self._visit(root, (), ())
        mine = [buffer for buffer in buffers_of(body) if buffer.scope() == "global"]
        self.places |= {buffer: (widened(buffer, [], "local"), []) for buffer in mine}
        body = moved(body, self.places)
        _check_shared(self.sch, self.shared)
        memory = [tirx.AllocBuffer(buffer) for buffer in (*self.shared, *self.own)]
        body = bind(sequence([*memory, body]), {**self.blocks, **self.threads})
        return sequence([*map(tirx.AllocBuffer, self.outer), body])

    # -- statements -------------------------------------------------------------------------------

    def _visit(self, s: tirx.Stmt, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Rewrite a statement that all threads reach, to be done `when` all of that holds.

        `bound` names the dimensions of the block whose threads have different work in it.
        """
        if is_alone(s):
            if all(store.buffer.scope() == "local" for store in stores_of(s)) and not _loads(s):
                return s  # a thread may always set what is its own
            others = (self.threads[d][0] for d in self.threads if d not in bound)
            return guarded(s, [*when, *(tirx.EQ(var, i64(0)) for var in others)])
        if isinstance(s, tirx.BufferStore):
            return self._shuffled(s)
        if isinstance(s, tirx.SeqStmt):
            return self._sequence(list(s.seq), when, bound)
        if isinstance(s, tirx.IfThenElse):
            return self._visit(s.then_case, (*when, s.condition), bound)
        assert isinstance(s, tirx.For), "only loops and conditions are around marked loops"
        if SPREAD in s.annotations:
            return self._spread(s, when, bound)
        if GPU in s.annotations:
            return self._bound(s, when, bound)
        extent = self._uniform(s.extent)
        if not extent.same_as(s.extent):
            when = (*when, s.loop_var < s.extent)
        body = self._visit(s.body, when, bound)
        if calls_of(body, SYNC) or has(s.body, SPREAD):
            body = tirx.SeqStmt([body, barrier()])
        return tirx.For(s.loop_var, s.min, extent, s.kind, body)

    def _bound(self, s: tirx.For, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Let a thread or a block do one iteration of a loop."""
        dimension = str(s.annotations[GPU])
        of_block = dimension in self.threads
        var, extent = (self.threads if of_block else self.blocks)[dimension]
        limit = i64(extent) if isinstance(extent, int) else extent
        own = replaced(s.extent, {s.loop_var: var})
        if not tvm_ffi.structural_equal(own, limit):
            when = (*when, var < own)
        body = replaced(s.body, {s.loop_var: var})
        return self._visit(body, when, (*bound, dimension) if of_block else bound)

    def _sequence(
        self, parts: list[tirx.Stmt], when: tuple[Any, ...], bound: tuple[str, ...]
    ) -> tirx.Stmt:
        written, since = list[tirx.Stmt](), list[_Touched]()
        for part in _flat(parts):
            if isinstance(part, tirx.AllocBuffer):
                self._place(part.buffer, parts, bound)
                continue
            touched = _Touched.by(part)
            if any(earlier.meets(touched) for earlier in since):
                written.append(barrier())
                since = []
            since.append(touched)
            written.append(self._visit(part, when, bound))
        return sequence(written)

    def _spread(self, s: tirx.For, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Let all threads that do the same work share the iterations of a nest."""
        chain, body = list[tirx.For](), s
        while isinstance(body, tirx.For) and SPREAD in body.annotations:
            chain.append(body)
            body = body.body
        own = self._own(s, bound)
        workers = [self.threads[d] for d in self.threads if d not in own]
        count, worker = prod(size for _, size in workers), i64(0)
        for var, size in workers:
            worker = worker * size + var
        total = simplified(prod((loop.extent.astype("int64") for loop in chain), start=i64(1)))
        turns = simplified(tirx.ceildiv(total, i64(count)))
        turn, once = tirx.Var("turn", "int64"), isinstance(turns, tirx.IntImm) and int(turns) == 1
        number = worker if once else turn * count + worker
        others = {self.threads[d][0] for d in bound if d not in own}
        kept = [x for x in when if not mentions(x, others)]
        exact = isinstance(total, tirx.IntImm) and int(total) % count == 0
        body = replaced(body, numbered(chain, number))
        body = guarded(body, kept if exact else [*kept, number < total])
        return body if once else tirx.For(turn, i64(0), turns, tirx.ForKind.SERIAL, body)

    def _shuffled(self, store: tirx.BufferStore) -> tirx.Stmt:
        """Let all lanes take part; they must be next to each other, in groups of one width."""
        width = int(calls_of(store, SHUFFLE)[0].args[3])
        threads = self.threads["block.x"][1]
        if threads % width:
            raise ScheduleError(
                f"build: argument 'schedule': {threads} threads of block.x cannot be dealt out in "
                f"groups of {width}, as vector_reduce asks; use a multiple of {width}\n{self.sch}"
            )
        return store

    # -- memory -----------------------------------------------------------------------------------

    def _place(self, buffer: Any, parts: list[tirx.Stmt], bound: tuple[str, ...]) -> None:
        """Move a buffer out of the nest; threads that fill it with different things have parts."""
        if buffer.scope() == "local":
            self.own.append(buffer)
            return
        filled = [x for part in parts for x in loops_of(part, SPREAD) if stores_of(x, buffer)]
        own = {d for x in filled for d in self._own(x, bound)} if filled else set(bound)
        threads = [self.threads[d] for d in self.threads if d in own]
        if buffer.scope() == "shared":
            wide = widened(buffer, [i64(size) for _, size in threads], "shared")
            self.shared.append(wide)
            self.places[buffer] = (wide, [var for var, _ in threads])
            return
        blocks = list(self.blocks.values())
        sizes = [*self.most.values(), *(i64(size) for _, size in threads)]
        wide = widened(buffer, sizes, "global")
        self.outer.append(wide)
        self.places[buffer] = (wide, [var for var, _ in (*blocks, *threads)])

    def _own(self, s: Any, bound: tuple[str, ...]) -> list[str]:
        """The dimensions of the block on which a statement depends."""
        return [d for d in bound if mentions(s, {self.threads[d][0]})]

    def _uniform(self, extent: Any) -> Any:
        """Return a bound that serves all threads: that of the first one is the largest."""
        firsts = {var: i64(0) for var, _ in self.threads.values()}
        return simplified(replaced(extent, firsts)) if mentions(extent, firsts) else extent


@dataclass(frozen=True)
class _Touched:
    """The buffers that several threads may see of those that code reads and writes.

    Attributes:
        alone: whether each thread does the code by itself.
    """

    reads: set[Any]
    writes: set[Any]
    alone: bool

    @classmethod
    def by(cls, statement: tirx.Stmt) -> _Touched:
        """Collect them; who has the address of an element may do both."""
        taken = {call.args[0].source for call in calls_of(statement, "tirx.address_of")}
        writes = taken | {store.buffer for store in stores_of(statement)}
        reads, writes = (
            {x for x in found if x.scope() != "local"} for found in (_loads(statement), writes)
        )
        return cls(reads, writes, is_alone(statement))

    def meets(self, other: _Touched) -> bool:
        """Whether one writes what another thread touches in the other."""
        if self.alone and other.alone:
            return False
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _flat(parts: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """Return statements, sequences among them taken apart where several threads meet inside."""
    inner = (
        _flat(list(s.seq)) if isinstance(s, tirx.SeqStmt) and not is_alone(s) else [s]
        for s in parts
    )
    return [s for some in inner for s in some]


def is_alone(s: tirx.Stmt) -> bool:
    """Return whether one thread does a statement by itself."""
    return not (has(s, GPU) or has(s, SPREAD) or calls_of(s, SHUFFLE))


def _loads(statement: tirx.Stmt) -> set[Any]:
    found: set[Any] = set()
    look = (tvm.ir.expr.TensorLoad, lambda load: found.add(load.source))
    tvm_ffi.structural_walk(statement, look)
    return found


def _most(extents: list[Any]) -> Any:
    """The largest of some numbers."""
    most = extents[0]
    for extent in extents[1:]:
        most = most if tvm_ffi.structural_equal(most, extent) else tirx.max(most, extent)
    return simplified(most)


def _check_threads(sch: Schedule, counts: list[int]) -> None:
    if prod(counts) > MOST_THREADS:
        text = " x ".join(map(str, counts))
        raise ScheduleError(
            f"build: argument 'schedule': {text} = {prod(counts)} threads per block, the target "
            f"allows {MOST_THREADS}; use smaller tiles\n{sch}"
        )


def _check_shared(sch: Schedule, buffers: list[Any]) -> None:
    """Refuse more shared memory than a block has, and say how many rows would fit."""
    sizes = {buffer: _bytes_of(buffer) for buffer in buffers}
    spare = MOST_SHARED - sum(sizes.values())
    if spare >= 0:
        return
    text = " + ".join(
        f"{size} ({buffer.name} {' x '.join(map(str, map(int, buffer.shape)))})"
        for buffer, size in sizes.items()
    )
    remedy = "use smaller tiles, or leave a cache out"
    for buffer in (buffer for buffer in buffers if buffer.name in ROWS):
        fit = (spare + sizes[buffer]) * int(buffer.shape[-2]) // sizes[buffer]
        remedy = f"use at most {fit} rows" if fit > 0 else "leave the cache of rows out"
    raise ScheduleError(
        f"build: argument 'schedule': {text} bytes of shared memory per block, the target "
        f"allows {MOST_SHARED}; {remedy}\n{sch}"
    )


ROWS = ("near", "codes")
"""Names of the buffers that hold rows."""


def _bytes_of(buffer: Any) -> int:
    return prod(map(int, buffer.shape)) * tvm.DataType(buffer.dtype).itemsize
