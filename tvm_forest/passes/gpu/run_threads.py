"""Run the kernels of a function on a CPU, one thread after the other.

takes: a function with loops bound to blockIdx and threadIdx; gives: a function of plain loops.

    for bx in thread_binding(m, "blockIdx.x"):         for bx in range(m):
        for tx in thread_binding(64, "threadIdx.x"):       for tx in range(64):
            S                                                  S
            tvm_storage_sync("shared")           -->       for tx in range(64):
            T                                                  T

The statements between two barriers become one loop over the threads. A buffer that is declared
between barriers is shared memory, one for each block, or local to a thread, and then it gets a
dimension for the threads, so that its values outlive the barrier. A shuffle stands between two
barriers of its own: all threads leave their value in a table, then all read.

All threads of a block must meet at every barrier, so one is refused inside a condition or a loop
that depends on the thread. Threads and blocks may be run backwards: code that needs a barrier and
has none then gives other results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import BuildError
from ...tir_gen.ir import i64, replaced, sequence, with_body
from ...tir_gen.ops import calls_of
from ..ir import SYNC, map_kernels, rescoped

SHUFFLES = {
    "tirx.tvm_warp_shuffle": lambda lane, by, width: tirx.floormod(by, width),
    "tirx.tvm_warp_shuffle_up": lambda lane, by, width: tirx.Select(lane >= by, lane - by, lane),
    "tirx.tvm_warp_shuffle_down": (
        lambda lane, by, width: tirx.Select(lane + by < width, lane + by, lane)
    ),
}
"""The lane from which each reads; lanes count from the first of their part of the warp."""


def run_threads(func: tirx.PrimFunc, backwards: bool = False) -> tirx.PrimFunc:
    """Return a function without thread bindings.

    Args:
        func: kernels are nests of loops bound to blockIdx and threadIdx, blocks outermost.
        backwards: run the last block, and the last thread of each, first.

    Raises:
        BuildError: a barrier or shuffle is inside a condition or loop that depends on the thread.
    """
    body = map_kernels(func.body, lambda kernel: _run_kernel(kernel, backwards))
    return func.with_body(rescoped(body, "local", "global"))


def _tag(loop: tirx.For) -> str:
    """The dimension that a loop is bound to, or ""."""
    return str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""


def _run_kernel(root: tirx.For, backwards: bool) -> tirx.Stmt:
    blocks, threads, body = list[tirx.For](), list[tirx.For](), root
    while isinstance(body, tirx.For) and _tag(body):
        (threads if _tag(body).startswith("threadIdx") else blocks).append(body)
        body = body.body
    threads.sort(key=lambda loop: _tag(loop)[::-1], reverse=True)  # z, y, x
    code: tirx.Stmt = _Block(threads, backwards).written(body)
    return _looped(code, blocks, backwards)


@dataclass
class _Block:
    """A thread block under construction.

    Attributes:
        threads: the loops over threads, the slowest first.
        backwards: whether the last thread runs first.
        memory: buffers of the block.
        local: buffers of the nest that are local to a thread, and what they have become.
    """

    threads: list[tirx.For]
    backwards: bool
    memory: list[Any] = field(default_factory=list)
    local: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def _count(self) -> int:
        return prod(int(loop.extent) for loop in self.threads)

    @property
    def _number(self) -> Any:
        """The number of a thread."""
        number = i64(0)
        for loop in self.threads:
            number = number * int(loop.extent) + loop.loop_var.astype("int64")
        return number

    def written(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return the block as plain loops."""
        code = sequence(self._phases(body))
        return sequence([*map(tirx.AllocBuffer, self.memory), code])

    def _phases(self, statement: tirx.Stmt) -> list[tirx.Stmt]:
        """Return statements without barriers, each over all threads, in order."""
        parts = list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]
        if not any(map(_meets, parts)):
            return [self._each(parts)]
        done, waiting = list[tirx.Stmt](), list[tirx.Stmt]()

        def flush() -> None:
            done.extend([self._each(waiting)] if waiting else [])
            waiting.clear()

        for part in map(self._relocated, parts):
            if isinstance(part, tirx.AllocBuffer):
                self._keep(part.buffer)
            elif isinstance(part, tirx.Bind):
                waiting.append(self._kept_value(part))
            elif not _meets(part):
                waiting.append(part)
            elif _shuffle(part) is not None:
                for step in self._shuffled(part):
                    waiting.append(step)
                    flush()
            else:
                flush()
                done += self._around_barrier(part)
        flush()
        return done

    def _relocated(self, part: tirx.Stmt) -> tirx.Stmt:
        """Let a statement use the buffers that locals have become."""
        values = [(old, new) for old, new in self.local if not _is_buffer(old)]
        buffers = [(old, new) for old, new in self.local if _is_buffer(old)]

        def place(buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
            old, new = next((pair for pair in buffers if pair[0].same_as(buffer)), (None, None))
            own = [] if old is None or _is_shared(old) else [self._number]
            return None if old is None else (new, [*own, *indices])

        def load(x: Any) -> Any:
            found = place(x.source, x.indices)
            return x if found is None else tirx.BufferLoad(*found)

        def store(x: tirx.BufferStore) -> tirx.BufferStore:
            found = place(x.buffer, x.indices)
            return x if found is None else tirx.BufferStore(found[0], x.value, found[1])

        def value(x: tirx.Var) -> Any:
            new = next((new for old, new in values if old.same_as(x)), None)
            return x if new is None else tirx.BufferLoad(new, [self._number])

        kinds = [(tvm.ir.expr.TensorLoad, load), (tirx.BufferStore, store)]
        part = tvm_ffi.structural_map(part, kinds) if buffers else part
        return tvm_ffi.structural_map(part, (tirx.Var, value)) if values else part

    def _keep(self, buffer: Any) -> None:
        """Declare a buffer that outlives a barrier."""
        if buffer.scope().startswith("shared"):
            plain = tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope="global")
            self.memory.append(plain)
            self.local.append((buffer, plain))
            return
        shape = [i64(self._count), *(x.astype("int64") for x in buffer.shape)]
        wide = tirx.decl_buffer(shape, buffer.dtype, buffer.name, scope="global")
        self.memory.append(wide)
        self.local.append((buffer, wide))

    def _kept_value(self, bind: tirx.Bind) -> tirx.Stmt:
        """Declare a variable that outlives a barrier."""
        cell = self._table(bind.var.name, str(bind.value.ty.dtype))
        self.local.append((bind.var, cell))
        return tirx.BufferStore(cell, bind.value, [self._number])

    def _table(self, name: str, dtype: str) -> Any:
        """Declare one value for every thread."""
        table = tirx.decl_buffer((i64(self._count),), dtype, name, scope="global")
        self.memory.append(table)
        return table

    def _shuffled(self, part: tirx.Stmt) -> list[tirx.Stmt]:
        """Take the first shuffle of a statement apart: what all threads give, what they take."""
        call: Any = _shuffle(part)
        _, value, by, width, _ = call.args
        slot = self._table("slot", str(value.ty.dtype))
        width, number = width.astype("int64"), self._number
        lane = tirx.floormod(number, width)
        source = SHUFFLES[call.op.name](lane, by.astype("int64"), width)
        taken = tirx.BufferLoad(slot, [number - lane + source])
        rest = tvm_ffi.structural_map(
            part, (tvm.ir.Call, lambda c: taken if c.same_as(call) else c)
        )
        give = tirx.BufferStore(slot, value, [number])
        return [give, *(self._shuffled(rest) if _shuffle(rest) is not None else [rest])]

    def _around_barrier(self, part: tirx.Stmt) -> list[tirx.Stmt]:
        """Take apart a statement in which threads meet."""
        if isinstance(part, tirx.Evaluate):
            return []
        if isinstance(part, tirx.SeqStmt):
            return self._phases(part)
        if isinstance(part, tirx.For):
            self._check(part.extent, f"a loop of {part.extent} iterations")
            self._check(part.min, f"a loop from {part.min} on")
            return [with_body(part, sequence(self._phases(part.body)))]
        if isinstance(part, tirx.While):
            self._check(part.condition, f"a loop while {part.condition}")
            return [tirx.While(part.condition, sequence(self._phases(part.body)))]
        if isinstance(part, tirx.IfThenElse):
            self._check(part.condition, f"a condition, {part.condition}")
            inside = sequence(self._phases(part.then_case))
            other = part.else_case
            other = None if other is None else sequence(self._phases(other))
            return [tirx.IfThenElse(part.condition, inside, other)]
        raise BuildError(f"build: a barrier stands inside {type(part).__name__}, found by 'simt'")

    def _check(self, expr: Any, what: str) -> None:
        """Refuse what may differ between the threads that meet inside."""
        wide = [new for old, new in self.local if not _is_shared(old)]
        own = [*(loop.loop_var for loop in self.threads), *wide]
        found: list[Any] = []

        def look(var: tirx.Var) -> None:
            found.extend(x for x in own if x.same_as(var))

        tvm_ffi.structural_walk(expr, (tirx.Var, look))
        if found:
            raise BuildError(
                f"build: a barrier stands inside {what}, which depends on the thread "
                f"('{found[0].name}'); all threads of a block must reach it"
            )

    def _each(self, parts: list[tirx.Stmt]) -> tirx.Stmt:
        """Let all threads run some statements, one thread after the other."""
        return _looped(sequence(parts), self.threads, self.backwards)


def _looped(code: tirx.Stmt, loops: list[tirx.For], backwards: bool) -> tirx.Stmt:
    """Return code in serial loops, from the last iteration of each to the first if backwards.

    A number that runs down lies in a cell: TVM 0.27 makes (7 - x) % 4 a remainder by -4, wrongly.
    """
    for loop in reversed(loops):
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        extent = loop.extent.astype(var.ty.dtype)
        if backwards:
            cell = tirx.decl_buffer((1,), str(var.ty.dtype), str(var.name), scope="global")
            code = replaced(code, {loop.loop_var: tirx.BufferLoad(cell, [i64(0)])})
            number = tirx.BufferStore(cell, extent - 1 - var, [i64(0)])
            code = tirx.SeqStmt([tirx.AllocBuffer(cell), number, code])
        else:
            code = replaced(code, {loop.loop_var: var})
        code = tirx.For(var, tirx.const(0, var.ty.dtype), extent, tirx.ForKind.SERIAL, code)
    return code


def _is_buffer(var: Any) -> bool:
    return hasattr(var, "scope") and hasattr(var, "shape")


def _is_shared(var: Any) -> bool:
    return _is_buffer(var) and var.scope().startswith("shared")


def _meets(statement: tirx.Stmt) -> bool:
    """Whether threads meet inside a statement."""
    return bool(calls_of(statement, SYNC, *SHUFFLES))


def _shuffle(statement: tirx.Stmt) -> Any | None:
    """Return the first shuffle of a statement that holds no other statements, or None."""
    if not isinstance(statement, (tirx.BufferStore, tirx.Evaluate)):
        return None
    return next(iter(calls_of(statement, *SHUFFLES)), None)
