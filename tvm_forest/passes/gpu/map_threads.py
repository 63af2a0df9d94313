"""Binds the mapped loops of a function to blocks and threads of a GPU.

takes: a lowered function whose loops are mapped to a GPU; gives: a function with kernels.

    for b0 in range(n / 64):     # grid.x       for bx in thread_binding(n / 64, "blockIdx.x"):
        near[0:64, :] = rows[...]  # spread         for tx in thread_binding(64, "threadIdx.x"):
        for b1 in range(64):     # block.x            for k in range(F):
            S(b0, b1)                      -->            near[(k * 64 + tx) / F, ...] = ...
                                                      tvm_storage_sync("shared")
                                                      if bx * 64 + tx < n:
                                                          S(bx, tx)

The outermost mapped loop becomes a kernel, see `write_kernel`. If it contains several nests of
blocks in sequence, each of these becomes a kernel, since blocks cannot wait for each other. A
statement next to the kernels becomes a kernel as well, with a thread per iteration, since only
kernels can access device memory. Statements that share registers form one kernel, since registers
do not outlive it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm import tirx

from ...schedule_prims.fitting import check_gaps
from ...system.values import dataclass
from ...tir_gen.ir import change_loop, find_all, i64, replace_vars, with_body
from ..function_pass import NestPass, function_pass
from ..nest_facts import NestFacts
from .kernel_code import Place, buffers_of, join_users, move_buffers, needs_block, simplify, widen
from .thread_axes import flat_kernel
from .write_kernel import KernelWriter

SPILLED = "tvm_forest.spilled"
"""Attribute of a function that has buffers in device memory although the schedule puts them in
shared memory, because several kernels use them."""


@function_pass
@dataclass(frozen=True)
class MapThreads(NestPass):
    """Turns mapped loops into kernels, each a nest of thread bindings.

    Attributes:
        facts: see `NestPass`.
        shared_bytes: bytes of shared memory that a block may use.
    """

    shared_bytes: int

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Turn the nest, and the statements next to it, into kernels.

        Raises:
            ScheduleError: a block has too many threads, not a multiple of the width of
                `vector_reduce`, or too much shared memory, or threads would add to rows of other
                blocks.
        """
        check_gaps(self.facts.nest)
        body = self._make(func.body, ())
        spilled = _count_shared(func.body) - _count_shared(body)
        func = func.with_body(body)
        return func.with_attr(SPILLED, 1) if spilled else func

    def _make(self, s: tirx.Stmt, around: tuple[tirx.Var, ...]) -> tirx.Stmt:
        """Return a statement rewritten as kernels, in the host loops that repeat them.

        `around` are the variables of the host loops that are around the statement already.
        """
        facts, parts = self.facts, _list_parts(s)
        if len(parts) > 1:
            buffers, work = _move_out(parts, [], [])
            return tirx.SeqStmt([*buffers, *(self._make(x, around) for x in work)])
        if isinstance(s, tirx.AttrStmt):
            return tirx.AttrStmt(s.node, s.attr_key, s.value, self._make(s.body, around))
        if not facts.has_level(s):
            return self._write(s, around) if needs_block(s) else flat_kernel(s, facts)
        if isinstance(s, tirx.SeqStmt):
            return self._write(s, around)
        if isinstance(s, tirx.IfThenElse):
            return tirx.IfThenElse(s.condition, self._make(s.then_case, around), None)
        inside = (*around, s.loop_var)
        if not facts.level(s):
            return with_body(s, self._make(s.body, inside))
        parts = _split_loop(s, facts, around)
        if len(parts) > 1:
            return self._make(tirx.SeqStmt(parts), around)
        if _holds_kernels(s.body, facts):
            return change_loop(s, body=self._make(s.body, inside), annotations={})
        return self._write(s, around)

    def _write(self, s: tirx.Stmt, around: tuple[tirx.Var, ...]) -> tirx.Stmt:
        """Return one kernel that does the work of a statement; see `_make` for `around`."""
        return KernelWriter.of(s, self.facts, around).write(s, self.shared_bytes)


def _list_parts(s: tirx.Stmt) -> list[tirx.Stmt]:
    """Return the statements of a sequence; those that share registers are merged."""
    parts = list(s.seq) if isinstance(s, tirx.SeqStmt) else [s]
    return join_users(parts, lambda buffer, _: buffer.scope() == "local")


def _count_shared(body: tirx.Stmt) -> Counter[str]:
    """Count the buffers in shared memory by name."""
    return Counter(str(buffer.name) for buffer in buffers_of(body, "shared"))


def _move_out(
    parts: list[tirx.Stmt], sizes: list[Any], index: list[Any]
) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    """Move the buffers that statements declare to device memory.

    Args:
        parts: the statements.
        sizes, index: leading dimensions for the buffers, and the statements' indices in them.

    Returns:
        The declarations, and the other statements.
    """
    buffers = [part.buffer for part in parts if isinstance(part, tirx.AllocBuffer)]
    places: dict[Any, Place] = {x: (widen(x, sizes, "global"), index) for x in buffers}
    work = [move_buffers(x, places) for x in parts if not isinstance(x, tirx.AllocBuffer)]
    return [tirx.AllocBuffer(wide) for wide, _ in places.values()], work


def _holds_kernels(body: tirx.Stmt, facts: NestFacts) -> bool:
    """Return whether a body needs several kernels, since blocks cannot wait for each other."""
    for sequence in find_all(body, tirx.SeqStmt):
        work = [part for part in sequence.seq if not isinstance(part, tirx.AllocBuffer)]
        if len(work) > 1 and any(facts.has_level(part, "grid") for part in work):
            return True
    return False


def _split_loop(loop: tirx.For, facts: NestFacts, around: tuple[tirx.Var, ...]) -> list[tirx.Stmt]:
    """Split a loop over blocks into one loop per statement, if it contains loops over blocks too.

    Blocks cannot wait for each other, but kernels can. Buffers inside get a part for each
    iteration. They are sized for the first run of the loop, which is the longest, since they are
    declared before the host loops `around`.
    """
    parts = _list_parts(loop.body)
    if len(parts) == 1 or not any(facts.has_level(part, "grid") for part in parts):
        return [loop]
    most = simplify(replace_vars(loop.extent, {var: i64(0) for var in around}))
    split, work = _move_out(parts, [most], [loop.loop_var])
    for part in work:
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        body = replace_vars(part, {loop.loop_var: var})
        split.append(change_loop(loop, loop_var=var, body=body))
    return split
