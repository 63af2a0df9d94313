"""Give the marked loops of a function to the blocks and threads of a GPU.

takes: a lowered function whose loops carry `tvm_forest.gpu`; gives: a function with kernels.

    for b0 in range(n / 64):     # grid.x       for bx in thread_binding(n / 64, "blockIdx.x"):
        near[0:64, :] = rows[...]  # spread         for tx in thread_binding(64, "threadIdx.x"):
        for b1 in range(64):     # block.x            for k in range(F):
            S(b0, b1)                      -->            near[(k * 64 + tx) / F, ...] = ...
                                                      tvm_storage_sync("shared")
                                                      if bx * 64 + tx < n:
                                                          S(bx, tx)

A kernel is the outermost marked loop; where that holds several nests of blocks one after the other,
each of them is one, for blocks cannot wait for each other. Its grid and its blocks are as large as
the largest loop of each dimension asks for. A loop marked `spread` has independent iterations,
which the threads of a block share. What no loop gives to the threads of a dimension is done by the
first of them. Between two statements of a block stands a barrier if one writes what the other
touches, unless each thread goes through both by itself.

Barriers are never inside a condition on threads: such conditions move inwards, to the statements
without barriers. A loop whose bounds depend on the thread gets the largest bounds, and conditions.

Buffers live where all threads that share them see them: shared memory, or else memory of the device
with a part for every block. Where threads fill a buffer by themselves, each has one of its own.

Not a pass of TVM, which would turn our errors into its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..errors import ScheduleError
from ..schedule import Schedule
from ..schedule_prims.devices import MOST_THREADS
from .code import SPREAD, i64
from .write_nest import NAME, with_body

GPU = "tvm_forest.gpu"
AXES = {
    f"{level}.{axis}": f"{tag}Idx.{axis}"
    for level, tag in (("grid", "block"), ("block", "thread"))
    for axis in "zyx"
}
"""TVM's names of the dimensions, the slowest first."""

MOST_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have on every GPU."""

Place = tuple[Any, list[Any]]
"""A buffer, and the indices before those of the buffer that it replaces."""


def map_threads(func: tirx.PrimFunc, sch: Schedule) -> tirx.PrimFunc:
    """Return a function whose marked loops are kernels, each a nest of thread bindings.

    Raises:
        ScheduleError: a block has too many threads or too much shared memory.
    """
    return func.with_body(_outside(func.body, sch))


def _outside(statement: tirx.Stmt, sch: Schedule, around: tuple[tirx.Var, ...] = ()) -> tirx.Stmt:
    """Descend to the kernels; `around` are the loops that launch them again and again."""
    if not _has(statement, GPU):
        return statement
    if isinstance(statement, tirx.SeqStmt):
        allocs = [part for part in statement.seq if isinstance(part, tirx.AllocBuffer)]
        places: list[tuple[Any, Place]] = [
            (x.buffer, (_widened(x.buffer, [], "global"), [])) for x in allocs
        ]
        rest = (part for part in statement.seq if not isinstance(part, tirx.AllocBuffer))
        work = [_moved(part, places) for part in rest]
        kept = [tirx.AllocBuffer(wide) for _, (wide, _) in places]
        return tirx.SeqStmt([*kept, *(_outside(part, sch, around) for part in work)])
    if isinstance(statement, tirx.AttrStmt):
        body = _outside(statement.body, sch, around)
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    if isinstance(statement, tirx.IfThenElse):
        then = _outside(statement.then_case, sch, around)
        return tirx.IfThenElse(statement.condition, then, None)
    inside = (*around, statement.loop_var)
    if GPU not in statement.annotations:
        return with_body(statement, _outside(statement.body, sch, inside))
    parts = _taken_apart(statement)
    if len(parts) > 1:
        return _outside(tirx.SeqStmt(parts), sch, around)
    if _holds_kernels(statement.body):
        body = _outside(statement.body, sch, inside)
        return tirx.For(statement.loop_var, statement.min, statement.extent, statement.kind, body)
    return _Kernel.around(statement, sch, around).written(statement)


def _holds_kernels(body: tirx.Stmt) -> bool:
    """Whether blocks would have to wait for each other, so that each launch is one of many."""
    found: list[Any] = []

    def look(s: tirx.SeqStmt) -> None:
        work = [part for part in s.seq if not isinstance(part, tirx.AllocBuffer)]
        if len(work) > 1 and any(_has(part, GPU, "grid") for part in work):
            found.append(s)

    tvm_ffi.structural_walk(body, (tirx.SeqStmt, look))
    return bool(found)


def _taken_apart(loop: tirx.For) -> list[tirx.Stmt]:
    """Return a loop over blocks, once for each statement inside if these are loops over blocks too.

    Blocks cannot wait for each other, kernels can. Buffers inside get a part for each iteration.
    """
    body = loop.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if len(parts) == 1 or not any(_has(part, GPU, "grid") for part in parts):
        return [loop]
    kept, places = list[tirx.Stmt](), list[tuple[Any, Place]]()
    for buffer in (part.buffer for part in parts if isinstance(part, tirx.AllocBuffer)):
        wide = _widened(buffer, [loop.extent], "global")
        kept.append(tirx.AllocBuffer(wide))
        places.append((buffer, (wide, [loop.loop_var])))
    for part in (part for part in parts if not isinstance(part, tirx.AllocBuffer)):
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        one = _replaced(_moved(part, places), [(loop.loop_var, var)])
        notes = dict(loop.annotations)
        kept.append(tirx.For(var, loop.min, loop.extent, loop.kind, one, None, notes))
    return kept


@dataclass
class _Kernel:
    """A kernel under construction.

    Attributes:
        sch: the schedule, asked for the counts of loops.
        blocks, threads: variable and extent of the dimensions in use, the slowest first.
        most: extent of a dimension of the grid in the largest launch.
        shared: buffers of a block.
        outer: buffers of all blocks.
        places: where the buffers of the nest are now.
    """

    sch: Schedule
    blocks: dict[str, tuple[tirx.Var, Any]]
    threads: dict[str, tuple[tirx.Var, int]]
    most: dict[str, Any]
    shared: list[Any] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)
    places: list[tuple[Any, Place]] = field(default_factory=list)

    @classmethod
    def around(cls, root: tirx.For, sch: Schedule, outer: tuple[tirx.Var, ...]) -> _Kernel:
        """Measure the grid and the blocks of a nest."""
        loops = _loops(root, GPU)
        inner = [(loop.loop_var, i64(0)) for loop in _loops(root)]
        blocks, threads = dict[str, tuple[tirx.Var, Any]](), dict[str, tuple[tirx.Var, int]]()
        for dimension, tag in AXES.items():
            mine = [loop for loop in loops if loop.annotations[GPU] == dimension]
            var = tirx.Var(tag.replace("Idx.", ""), "int64")
            if mine and dimension.startswith("block"):
                counts = [sch[str(loop.annotations[NAME])].count or 1 for loop in mine]
                threads[dimension] = (var, max(counts))
            elif mine:  # bounds only shrink when the loops around go on
                blocks[dimension] = (var, _most([_replaced(x.extent, inner) for x in mine]))
        _check_threads(sch, [count for _, count in threads.values()])
        launches = [(var, i64(0)) for var in outer]
        sizes = {d: _simplified(_replaced(extent, launches)) for d, (_, extent) in blocks.items()}
        return cls(sch, blocks, threads, sizes)

    def written(self, root: tirx.For) -> tirx.Stmt:
        """Return the kernel, behind the memory that its blocks share."""
        body = _moved(self._visit(root, (), ()), self.places)
        _check_shared(self.sch, self.shared)
        body = tirx.SeqStmt([*map(tirx.AllocBuffer, self.shared), body]) if self.shared else body
        for dimension, (var, extent) in reversed([*self.blocks.items(), *self.threads.items()]):
            axis = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, AXES[dimension])
            extent = i64(extent) if isinstance(extent, int) else extent
            binding = tirx.ForKind.THREAD_BINDING
            body = tirx.For(var, i64(0), extent, binding, body, axis, {})
        return tirx.SeqStmt([*map(tirx.AllocBuffer, self.outer), body]) if self.outer else body

    # -- statements -------------------------------------------------------------------------------

    def _visit(self, s: tirx.Stmt, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Rewrite a statement that all threads reach, to be done `when` all of that holds.

        `bound` names the dimensions of the block whose threads have different work in it.
        """
        if not (_has(s, GPU) or _has(s, SPREAD)):
            others = (self.threads[d][0] for d in self.threads if d not in bound)
            return _guarded(s, [*when, *(tirx.EQ(var, i64(0)) for var in others)])
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
        if has_barrier(body) or _has(s.body, SPREAD):
            body = tirx.SeqStmt([body, barrier()])
        return tirx.For(s.loop_var, s.min, extent, tirx.ForKind.SERIAL, body)

    def _bound(self, s: tirx.For, when: tuple[Any, ...], bound: tuple[str, ...]) -> tirx.Stmt:
        """Let a thread or a block do one iteration of a loop."""
        dimension = str(s.annotations[GPU])
        of_block = dimension in self.threads
        var, extent = (self.threads if of_block else self.blocks)[dimension]
        limit = i64(extent) if isinstance(extent, int) else extent
        own = _replaced(s.extent, [(s.loop_var, var)])
        if not tvm_ffi.structural_equal(own, limit):
            when = (*when, var < own)
        body = _replaced(s.body, [(s.loop_var, var)])
        return self._visit(body, when, (*bound, dimension) if of_block else bound)

    def _sequence(
        self, parts: list[tirx.Stmt], when: tuple[Any, ...], bound: tuple[str, ...]
    ) -> tirx.Stmt:
        written, since = list[tirx.Stmt](), _Touched()
        for part in parts:
            if isinstance(part, tirx.AllocBuffer):
                self._place(part.buffer, parts, bound)
                continue
            touched = _Touched.by(part)
            if since.meets(touched):
                written.append(barrier())
                since = _Touched()
            since = since.and_by(touched)
            written.append(self._visit(part, when, bound))
        return tirx.SeqStmt(written) if len(written) > 1 else written[0]

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
        total: Any = i64(1)
        for loop in chain:
            total = total * loop.extent.astype("int64")
        turn = tirx.Var("turn", "int64")
        number = left = turn * count + worker
        swaps = []
        for loop in reversed(chain):
            extent = loop.extent.astype("int64")
            here = left if loop is chain[0] else tirx.floormod(left, extent)
            swaps.append((loop.loop_var, loop.min + here))
            left = tirx.floordiv(left, extent)
        others = {self.threads[d][0] for d in bound if d not in own}
        kept = [x for x in when if not _mentions(x, others)]
        body = _guarded(_replaced(body, swaps), [*kept, number < total])
        return tirx.For(turn, i64(0), tirx.ceildiv(total, i64(count)), tirx.ForKind.SERIAL, body)

    # -- memory -----------------------------------------------------------------------------------

    def _place(self, buffer: Any, parts: list[tirx.Stmt], bound: tuple[str, ...]) -> None:
        """Move a buffer out of the nest; threads that fill it with different things have parts."""
        filled = [x for part in parts for x in _loops(part, SPREAD) if _stores(x, buffer)]
        own = {d for x in filled for d in self._own(x, bound)} if filled else set(bound)
        threads = [self.threads[d] for d in self.threads if d in own]
        if buffer.scope() == "shared":
            wide = _widened(buffer, [i64(size) for _, size in threads], "shared")
            self.shared.append(wide)
            self.places.append((buffer, (wide, [var for var, _ in threads])))
            return
        blocks = list(self.blocks.values())
        sizes = [*self.most.values(), *(i64(size) for _, size in threads)]
        wide = _widened(buffer, sizes, "global")
        self.outer.append(wide)
        self.places.append((buffer, (wide, [var for var, _ in (*blocks, *threads)])))

    def _own(self, s: Any, bound: tuple[str, ...]) -> list[str]:
        """The dimensions of the block on which a statement depends."""
        return [d for d in bound if _mentions(s, {self.threads[d][0]})]

    def _uniform(self, extent: Any) -> Any:
        """Return a bound that serves all threads: that of the first one is the largest."""
        firsts = {var for var, _ in self.threads.values()}
        if not _mentions(extent, firsts):
            return extent
        return _simplified(_replaced(extent, [(var, i64(0)) for var in firsts]))


@dataclass(frozen=True)
class _Touched:
    """The buffers that code reads and those that it writes."""

    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()

    @classmethod
    def by(cls, statement: tirx.Stmt) -> _Touched:
        """Collect them; who has the address of an element may do both."""
        reads, writes = list[Any](), list[Any]()

        def look(call: Any) -> None:
            if getattr(call.op, "name", "") == "tirx.address_of":
                writes.append(call.args[0].source)

        tvm_ffi.structural_walk(
            statement,
            [
                (tvm.ir.expr.TensorLoad, lambda load: reads.append(load.source)),
                (tirx.BufferStore, lambda store: writes.append(store.buffer)),
                (tvm.ir.Call, look),
            ],
        )
        return cls(tuple(reads), tuple(writes))

    def and_by(self, other: _Touched) -> _Touched:
        """Return what both touch."""
        return _Touched(self.reads + other.reads, self.writes + other.writes)

    def meets(self, other: _Touched) -> bool:
        """Whether one writes what the other touches."""
        pairs = (
            (self.writes, other.reads + other.writes),
            (self.reads, other.writes),
        )
        return any(x.same_as(y) for ours, theirs in pairs for x in ours for y in theirs)


# -- pieces ---------------------------------------------------------------------------------------


def barrier() -> tirx.Stmt:
    """Return a statement at which all threads of a block meet."""
    return tirx.Evaluate(tirx.call_intrin("", SYNC, tvm.ir.StringImm("shared")))


SYNC = "tirx.tvm_storage_sync"


def has_barrier(statement: Any) -> bool:
    """Return whether threads meet inside a statement."""
    found: list[Any] = []

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == SYNC:
            found.append(call)

    tvm_ffi.structural_walk(statement, (tvm.ir.Call, look))
    return bool(found)


def _loops(statement: Any, key: str = "") -> list[tirx.For]:
    """All loops inside that carry an annotation, outermost first."""
    found: list[tirx.For] = []

    def look(loop: tirx.For) -> None:
        if not key or key in loop.annotations:
            found.append(loop)

    tvm_ffi.structural_walk(statement, (tirx.For, look), order="pre")
    return found


def _has(statement: tirx.Stmt, key: str, value: str = "") -> bool:
    return any(str(loop.annotations[key]).startswith(value) for loop in _loops(statement, key))


def _mentions(node: Any, variables: Iterable[tirx.Var]) -> bool:
    wanted, found = list(variables), list[Any]()

    def look(var: tirx.Var) -> None:
        if any(var.same_as(x) for x in wanted):
            found.append(var)

    tvm_ffi.structural_walk(node, (tirx.Var, look))
    return bool(found)


def _stores(statement: Any, buffer: Any) -> bool:
    found: list[Any] = []

    def look(store: tirx.BufferStore) -> None:
        if store.buffer.same_as(buffer):
            found.append(store)

    tvm_ffi.structural_walk(statement, (tirx.BufferStore, look))
    return bool(found)


def _replaced(node: Any, swaps: list[tuple[Any, Any]]) -> Any:
    """Return code with variables replaced by expressions."""

    def swap(var: tirx.Var) -> Any:
        return next((new for old, new in swaps if old.same_as(var)), var)

    return tvm_ffi.structural_map(node, (tirx.Var, swap)) if swaps else node


def _moved(statement: tirx.Stmt, places: list[tuple[Any, Place]]) -> tirx.Stmt:
    """Return code that reads and writes buffers at their new places."""

    def place_of(buffer: Any) -> Place | None:
        return next((place for old, place in places if old.same_as(buffer)), None)

    def load(x: Any) -> Any:
        place = place_of(x.source)
        return x if place is None else tirx.BufferLoad(place[0], [*place[1], *x.indices])

    def store(x: tirx.BufferStore) -> tirx.BufferStore:
        place = place_of(x.buffer)
        if place is None:
            return x
        return tirx.BufferStore(place[0], x.value, [*place[1], *x.indices])

    kinds = ((tvm.ir.expr.TensorLoad, load), (tirx.BufferStore, store))
    return tvm_ffi.structural_map(statement, list(kinds)) if places else statement


def _widened(buffer: Any, sizes: list[Any], scope: str) -> Any:
    shape = [*sizes, *(x.astype("int64") for x in buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope=scope)


def _guarded(statement: tirx.Stmt, conditions: list[Any]) -> tirx.Stmt:
    return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement


def _most(extents: list[Any]) -> Any:
    """The largest of some numbers."""
    most = extents[0]
    for extent in extents[1:]:
        most = most if tvm_ffi.structural_equal(most, extent) else tirx.max(most, extent)
    return _simplified(most)


def _simplified(expr: Any) -> Any:
    return sym.Analyzer().simplify(expr)


def _check_threads(sch: Schedule, counts: list[int]) -> None:
    if prod(counts) > MOST_THREADS:
        text = " x ".join(map(str, counts))
        raise ScheduleError(
            f"build: argument 'schedule': {text} = {prod(counts)} threads per block, the target "
            f"allows {MOST_THREADS}; use smaller tiles\n{sch}"
        )


def _check_shared(sch: Schedule, buffers: list[Any]) -> None:
    sizes = {
        f"{buffer.name} {' x '.join(str(int(x)) for x in buffer.shape)}": prod(
            int(x) for x in buffer.shape
        )
        * tvm.DataType(buffer.dtype).itemsize
        for buffer in buffers
    }
    if sum(sizes.values()) > MOST_SHARED:
        text = " + ".join(f"{size} ({name})" for name, size in sizes.items())
        raise ScheduleError(
            f"build: argument 'schedule': {text} bytes of shared memory per block, the target "
            f"allows {MOST_SHARED}; use smaller tiles, or leave a cache out\n{sch}"
        )
