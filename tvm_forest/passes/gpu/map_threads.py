"""Give the marked loops of a function to the blocks and threads of a GPU.

takes: a lowered function whose loops carry `tvm_forest.gpu`; gives: a function with kernels.

    for b0 in range(n / 64):     # grid.x       for bx in thread_binding(n / 64, "blockIdx.x"):
        near[0:64, :] = rows[...]  # spread         for tx in thread_binding(64, "threadIdx.x"):
        for b1 in range(64):     # block.x            for k in range(F):
            S(b0, b1)                      -->            near[(k * 64 + tx) / F, ...] = ...
                                                      tvm_storage_sync("shared")
                                                      if bx * 64 + tx < n:
                                                          S(bx, tx)

A kernel is the outermost marked loop, see `kernel`; where that holds several nests of blocks one
after the other, each of them is one, for blocks cannot wait for each other. A statement beside the
kernels becomes a kernel as well, with a thread for each of its iterations: no other code touches
memory of the device.

Not a pass of TVM, which would turn our errors into its own.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ...schedule import Schedule
from ...tir_gen.ir import replaced, with_body
from ..annotations import GPU
from ..ir import Place, has, moved, widened
from .kernel import Kernel
from .thread_axes import flat_kernel


def map_threads(func: tirx.PrimFunc, sch: Schedule) -> tirx.PrimFunc:
    """Return a function whose marked loops are kernels, each a nest of thread bindings.

    Raises:
        ScheduleError: a block has too many threads or too much shared memory.
    """
    return func.with_body(_outside(func.body, sch))


def _outside(statement: tirx.Stmt, sch: Schedule, around: tuple[tirx.Var, ...] = ()) -> tirx.Stmt:
    """Descend to the kernels; `around` are the loops that launch them again and again."""
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_outside(part, sch, around) for part in _declared(statement)])
    if isinstance(statement, tirx.AttrStmt):
        body = _outside(statement.body, sch, around)
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    if isinstance(statement, tirx.AllocBuffer):
        return statement
    if not has(statement, GPU):
        return flat_kernel(statement)
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
    return Kernel.around(statement, sch, around).written(statement)


def _declared(statements: tirx.SeqStmt) -> list[tirx.Stmt]:
    """Return statements whose buffers are in the memory of the device, and declared first."""
    allocs = [part.buffer for part in statements.seq if isinstance(part, tirx.AllocBuffer)]
    places: dict[Any, Place] = {x: (widened(x, [], "global"), []) for x in allocs}
    rest = [part for part in statements.seq if not isinstance(part, tirx.AllocBuffer)]
    kept = [tirx.AllocBuffer(wide) for wide, _ in places.values()]
    return [*kept, *(moved(part, places) for part in rest)]


def _holds_kernels(body: tirx.Stmt) -> bool:
    """Whether blocks would have to wait for each other, so that each launch is one of many."""
    found: list[Any] = []

    def look(s: tirx.SeqStmt) -> None:
        work = [part for part in s.seq if not isinstance(part, tirx.AllocBuffer)]
        if len(work) > 1 and any(has(part, GPU, "grid") for part in work):
            found.append(s)

    tvm_ffi.structural_walk(body, (tirx.SeqStmt, look))
    return bool(found)


def _taken_apart(loop: tirx.For) -> list[tirx.Stmt]:
    """Return a loop over blocks, once for each statement inside if these are loops over blocks too.

    Blocks cannot wait for each other, kernels can. Buffers inside get a part for each iteration.
    """
    body = loop.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if len(parts) == 1 or not any(has(part, GPU, "grid") for part in parts):
        return [loop]
    kept, places = list[tirx.Stmt](), dict[Any, Place]()
    for buffer in (part.buffer for part in parts if isinstance(part, tirx.AllocBuffer)):
        wide = widened(buffer, [loop.extent], "global")
        kept.append(tirx.AllocBuffer(wide))
        places[buffer] = (wide, [loop.loop_var])
    for part in (part for part in parts if not isinstance(part, tirx.AllocBuffer)):
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        one = replaced(moved(part, places), {loop.loop_var: var})
        notes = dict(loop.annotations)
        kept.append(tirx.For(var, loop.min, loop.extent, loop.kind, one, None, notes))
    return kept
