"""Turns kernels into loops that run on a CPU, one GPU thread after the other.

takes: a function with loops bound to blockIdx and threadIdx; gives: a function of plain loops.

    for bx in thread_binding(m, "blockIdx.x"):         for bx in range(m):
        for tx in thread_binding(64, "threadIdx.x"):       for tx in range(64):
            S                                                  S
            tvm_storage_sync("shared")           -->       for tx in range(64):
            T                                                  T

The statements between two barriers become one loop over the threads. A buffer that is declared
between barriers is either shared memory, one per block, or local to a thread. A local buffer gets a
dimension for the threads, so that its values survive a barrier. A shuffle is handled like two
barriers: all threads store their value in a table, then all read it. Threads of a team run in
lockstep, see `run_teams`.

All threads of a block must reach every barrier, so barriers inside conditions or loops that depend
on the thread are refused. Threads and blocks can be run in reverse order: if a barrier is missing,
results differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import BuildError
from ...tir_gen.ir import find_all, guard, i64, join_statements, replace_vars, with_body
from ...tir_gen.ops import BALLOT, find_calls
from . import kernel_code
from .run_teams import TeamWriter


def run_threads(func: tirx.PrimFunc, backwards: bool = False) -> tirx.PrimFunc:
    """Replace thread bindings by serial loops.

    Args:
        func: function whose kernels are nests of loops bound to blockIdx and threadIdx, with blocks
            outermost.
        backwards: run blocks, and the threads of each block, in reverse order.

    Raises:
        BuildError: a barrier or shuffle is inside a condition or loop that depends on the thread,
            or it or a ballot is inside a statement that is not supported, such as an `else`.
    """
    body = kernel_code.map_kernels(func.body, lambda kernel: _run_kernel(kernel, backwards))
    return func.with_body(kernel_code.change_scope(body, "local", "global"))


def _run_kernel(root: tirx.For, backwards: bool) -> tirx.Stmt:
    """Return a kernel as serial loops over its blocks."""
    blocks, threads, body = list[tirx.For](), list[tirx.For](), root
    while isinstance(body, tirx.For) and kernel_code.axis_tag(body):
        (threads if kernel_code.axis_tag(body).startswith("threadIdx") else blocks).append(body)
        body = body.body
    threads.sort(key=lambda loop: kernel_code.axis_tag(loop)[::-1], reverse=True)  # z, y, x
    block = _BlockWriter(threads, backwards)
    phases = block.write(body)
    code = join_statements([*map(tirx.AllocBuffer, block.memory), *phases])
    return repeat(code, blocks, backwards)


@dataclass
class _BlockWriter:
    """Builds the code of a thread block.

    Attributes:
        threads: the loops over threads, slowest first.
        backwards: whether the last thread runs first.
        memory: buffers of the block that must be declared outside the loops over threads.
        places: new places of the nest's buffers; local ones have an index for the thread.
    """

    threads: list[tirx.For]
    backwards: bool
    memory: list[Any] = field(default_factory=list)
    places: dict[Any, kernel_code.Place] = field(default_factory=dict)

    @property
    def _count(self) -> int:
        return prod(int(loop.extent) for loop in self.threads)

    @property
    def _number(self) -> Any:
        """Return the index of a thread in its block."""
        number = i64(0)
        for loop in self.threads:
            number = number * int(loop.extent) + loop.loop_var.astype("int64")
        return number

    def write(self, statement: tirx.Stmt) -> list[tirx.Stmt]:
        """Split a statement at its barriers; return loops over all threads, in order."""
        parts = list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]
        if not any(map(kernel_code.has_meeting, parts)):
            return [self._each(parts)]
        done, waiting = list[tirx.Stmt](), list[tirx.Stmt]()

        def flush() -> None:
            done.extend([self._each(waiting)] if waiting else [])
            waiting.clear()

        for old in parts:
            part = kernel_code.move_buffers(old, self.places)
            if isinstance(part, tirx.AllocBuffer):
                self._keep_buffer(part.buffer)
            elif not kernel_code.has_meeting(part):
                waiting.append(part)
            elif _first_shuffle(part) is not None:
                for step in self._split_shuffles(part):
                    waiting.append(step)
                    flush()
            else:
                flush()
                done += self._around_barrier(part)
        flush()
        return done

    def _keep_buffer(self, buffer: Any) -> None:
        """Declare a buffer whose values must survive a barrier."""
        sizes, place = ([], []) if _is_shared(buffer) else ([i64(self._count)], [self._number])
        wide = kernel_code.widen(buffer, sizes, "global")
        self.memory.append(wide)
        self.places[buffer] = (wide, place)

    def _split_shuffles(self, part: tirx.Stmt) -> list[tirx.Stmt]:
        """Split a statement at its first shuffle: store every thread's value, then do the rest.

        A lane is a thread's index in its group of the shuffle's width. A lane that would read past
        the end of the group reads its own value.
        """
        call: Any = _first_shuffle(part)
        if call is None:
            return [part]
        _, value, by, width, _ = call.args
        slot = tirx.decl_buffer((i64(self._count),), str(value.ty.dtype), "slot", scope="global")
        self.memory.append(slot)
        width, by, number = width.astype("int64"), by.astype("int64"), self._number
        lane = tirx.floormod(number, width)
        source = tirx.Select(lane + by < width, lane + by, lane)
        load = tirx.BufferLoad(slot, [number - lane + source])
        rest = tvm_ffi.structural_map(part, (tvm.ir.Call, lambda c: load if c.same_as(call) else c))
        return [tirx.BufferStore(slot, value, [number]), *self._split_shuffles(rest)]

    def _around_barrier(self, part: tirx.Stmt) -> list[tirx.Stmt]:
        """Return loops over threads for a statement with a barrier inside; none for a barrier.

        Raises:
            BuildError: not all threads may reach the barrier, or its place is not supported.
        """
        if isinstance(part, tirx.Evaluate):
            return []
        if isinstance(part, tirx.SeqStmt):
            return self.write(part)
        if isinstance(part, tirx.For):
            self._check(part.extent, f"a loop of {part.extent} iterations")
            self._check(part.min, f"a loop from {part.min} on")
            return [with_body(part, join_statements(self.write(part.body)))]
        if isinstance(part, tirx.IfThenElse) and part.else_case is None:
            self._check(part.condition, f"a condition, {part.condition}")
            return [guard(join_statements(self.write(part.then_case)), [part.condition])]
        raise BuildError(f"build: a barrier stands inside {type(part).__name__}, found by 'simt'")

    def _check(self, expr: Any, what: str) -> None:
        """Refuse a condition or bound around a barrier that may differ between threads."""
        own = [loop.loop_var for loop in self.threads]
        own += [wide for buffer, (wide, _) in self.places.items() if not _is_shared(buffer)]
        variables = find_all(expr, tirx.Var, lambda var: any(x.same_as(var) for x in own))
        if variables:
            raise BuildError(
                f"build: a barrier stands inside {what}, which depends on the thread "
                f"('{variables[0].name}'); all threads of a block must reach it"
            )

    def _each(self, parts: list[tirx.Stmt]) -> tirx.Stmt:
        """Wrap statements in a loop over all threads, or over all teams if they have ballots."""
        code, around = join_statements(parts), self.threads
        if kernel_code.find_extern(code, BALLOT):
            around, team = self.threads[:-1], self.threads[-1]
            code = TeamWriter(team, lambda s: repeat(s, [team], self.backwards)).write(code)
        return repeat(code, around, self.backwards)


def repeat(code: tirx.Stmt, loops: list[tirx.For], backwards: bool) -> tirx.Stmt:
    """Wrap code in serial loops, which run in reverse order with `backwards`.

    The reversed index is stored in a variable, as TVM 0.27 miscompiles (7 - x) % 4 to a remainder
    by -4.
    """
    for loop in reversed(loops):
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        extent = loop.extent.astype(var.ty.dtype)
        if backwards:
            cell = tirx.decl_buffer((1,), str(var.ty.dtype), str(var.name), scope="global")
            code = replace_vars(code, {loop.loop_var: tirx.BufferLoad(cell, [i64(0)])})
            number = tirx.BufferStore(cell, extent - 1 - var, [i64(0)])
            code = tirx.SeqStmt([tirx.AllocBuffer(cell), number, code])
        else:
            code = replace_vars(code, {loop.loop_var: var})
        code = tirx.For(var, tirx.const(0, var.ty.dtype), extent, tirx.ForKind.SERIAL, code)
    return code


def _is_shared(buffer: Any) -> bool:
    return str(buffer.scope()).startswith("shared")


def _first_shuffle(statement: tirx.Stmt) -> Any | None:
    """Return the first shuffle in a store or evaluation; None if there is none."""
    if not isinstance(statement, (tirx.BufferStore, tirx.Evaluate)):
        return None
    return next(iter(find_calls(statement, kernel_code.SHUFFLE)), None)
