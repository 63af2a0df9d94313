"""Give the mapped loops of a function to the blocks and threads of a GPU.

takes: a lowered function whose loops are mapped to a GPU; gives: a function with kernels.

    for b0 in range(n / 64):     # grid.x       for bx in thread_binding(n / 64, "blockIdx.x"):
        near[0:64, :] = rows[...]  # spread         for tx in thread_binding(64, "threadIdx.x"):
        for b1 in range(64):     # block.x            for k in range(F):
            S(b0, b1)                      -->            near[(k * 64 + tx) / F, ...] = ...
                                                      tvm_storage_sync("shared")
                                                      if bx * 64 + tx < n:
                                                          S(bx, tx)

A kernel is the outermost mapped loop, see `write_kernel`; where that holds several nests of blocks
one after the other, each of them is one, for blocks cannot wait for each other. A statement beside
the kernels becomes a kernel as well, with a thread for each of its iterations: no other code
touches memory of the device.

Not a pass of TVM, which would turn our errors into its own.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...tir_gen.ir import change_loop, find_all, replace_vars, with_body
from ..nest_facts import NestFacts
from .kernel_code import Place, move_buffers, widen
from .thread_axes import flat_kernel
from .write_kernel import KernelWriter


def map_threads(func: tirx.PrimFunc, facts: NestFacts) -> tirx.PrimFunc:
    """Return a function whose mapped loops are kernels, each a nest of thread bindings.

    Raises:
        ScheduleError: a block has too many threads or too much shared memory.
    """
    return func.with_body(_make_kernels(func.body, facts, ()))


def _make_kernels(s: tirx.Stmt, facts: NestFacts, around: tuple[tirx.Var, ...]) -> tirx.Stmt:
    """Descend to the kernels; `around` are the loops that launch them again and again."""
    if isinstance(s, tirx.SeqStmt):
        return tirx.SeqStmt([_make_kernels(x, facts, around) for x in _on_device(list(s.seq))])
    if isinstance(s, tirx.AttrStmt):
        return tirx.AttrStmt(s.node, s.attr_key, s.value, _make_kernels(s.body, facts, around))
    if isinstance(s, tirx.AllocBuffer):
        return s
    if not facts.has_level(s):
        return flat_kernel(s, facts)
    if isinstance(s, tirx.IfThenElse):
        return tirx.IfThenElse(s.condition, _make_kernels(s.then_case, facts, around), None)
    inside = (*around, s.loop_var)
    if not facts.level(s):
        return with_body(s, _make_kernels(s.body, facts, inside))
    parts = _split_loop(s, facts)
    if len(parts) > 1:
        return _make_kernels(tirx.SeqStmt(parts), facts, around)
    if _holds_kernels(s.body, facts):
        return change_loop(s, body=_make_kernels(s.body, facts, inside), annotations={})
    return KernelWriter.of(s, facts, around).write(s)


def _split_buffers(parts: list[tirx.Stmt]) -> tuple[list[Any], list[tirx.Stmt]]:
    """Return the buffers that some statements declare, and the other statements."""
    buffers = [part.buffer for part in parts if isinstance(part, tirx.AllocBuffer)]
    return buffers, [part for part in parts if not isinstance(part, tirx.AllocBuffer)]


def _on_device(parts: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """Return statements whose buffers are in the memory of the device, and declared first."""
    buffers, work = _split_buffers(parts)
    places: dict[Any, Place] = {buffer: (widen(buffer, [], "global"), []) for buffer in buffers}
    declared = [tirx.AllocBuffer(wide) for wide, _ in places.values()]
    return [*declared, *(move_buffers(part, places) for part in work)]


def _holds_kernels(body: tirx.Stmt, facts: NestFacts) -> bool:
    """Whether blocks would have to wait for each other, so that each launch is one of many."""
    works = (_split_buffers(list(s.seq))[1] for s in find_all(body, tirx.SeqStmt))
    return any(
        len(work) > 1 and any(facts.has_level(part, "grid") for part in work) for work in works
    )


def _split_loop(loop: tirx.For, facts: NestFacts) -> list[tirx.Stmt]:
    """Return a loop over blocks, once for each statement inside if these are loops over blocks too.

    Blocks cannot wait for each other, kernels can. Buffers inside get a part for each iteration.
    """
    parts = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if len(parts) == 1 or not any(facts.has_level(part, "grid") for part in parts):
        return [loop]
    buffers, work = _split_buffers(parts)
    places: dict[Any, Place] = {
        buffer: (widen(buffer, [loop.extent], "global"), [loop.loop_var]) for buffer in buffers
    }
    loops = list[tirx.Stmt]()
    for part in work:
        var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
        body = replace_vars(move_buffers(part, places), {loop.loop_var: var})
        loops.append(change_loop(loop, loop_var=var, body=body))
    return [*(tirx.AllocBuffer(wide) for wide, _ in places.values()), *loops]
