"""Declares the dimensions of a grid and its blocks, and distributes iterations over threads.

takes: nests of independent iterations; gives: nests of thread bindings.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from ...schedule_prims.replay import EPILOGUE
from ...tir_gen.builder import Builder
from ...tir_gen.ir import change_loop, guard, i64, mentions, replace_vars
from ..nest_facts import NestFacts
from .kernel_code import change_scope, is_spread, max_value, simplify, thread_axis

AXES = {
    f"{level}.{axis}": f"{tag}Idx.{axis}"
    for level, tag in (("grid", "block"), ("block", "thread"))
    for axis in "zyx"
}
"""TVM's names of thread axes, by the schedule's names of dimensions, slowest first."""

Dimension = tuple[tirx.Var, Any]
"""The variable and the extent of a dimension of a grid or block."""


def bind(body: tirx.Stmt, dimensions: dict[str, Dimension]) -> tirx.Stmt:
    """Return `body` inside thread bindings for some dimensions, the slowest one outermost."""
    for dimension, (var, extent) in reversed(dimensions.items()):
        axis = thread_axis(var, AXES[dimension])
        extent = i64(extent) if isinstance(extent, int) else extent
        body = tirx.For(var, i64(0), extent, tirx.ForKind.THREAD_BINDING, body, axis, {})
    return body


def dimension_var(dimension: str) -> tirx.Var:
    """Declare the variable of a dimension, such as `threadx` for "block.x"."""
    return tirx.Var(AXES[dimension].replace("Idx.", ""), "int64")


def split_number(chain: list[tirx.For], number: Any) -> dict[Any, Any]:
    """Return the values of nested loop variables for a flat iteration number, from 0.

    Iteration 17 of `for i in range(4): for j in range(5)` is i = 17 // 5 = 3, j = 17 % 5 = 2.
    """
    swaps = dict[Any, Any]()
    for loop in reversed(chain):
        extent = loop.extent.astype("int64")
        here = number if loop is chain[0] else tirx.floormod(number, extent)
        swaps[loop.loop_var] = loop.min + here
        number = tirx.floordiv(number, extent)
    return swaps


WIDE = 2
"""If the innermost loop has this many iterations per thread, threads share only that loop."""

AHEAD = 8
"""Number of loads of a copy that a thread has in flight at once."""


def share_out(chain: list[tirx.For], body: tirx.Stmt, worker: Any, count: int) -> tirx.Stmt:
    """Return code in which threads share the iterations of a nest: thread k takes k, k + count, ...

    If the innermost loop has enough iterations, threads share only that loop, since computing
    indices from a flat number takes divisions. The loop of a copy is partly unrolled, so that its
    loads overlap.

    Args:
        chain: the loops of the nest, outermost first.
        body: body of the innermost loop.
        worker: index of the thread.
        count: number of threads.
    """
    total = _count_iterations(chain)
    known = isinstance(total, tirx.IntImm)
    around = chain[:-1] if known and int(chain[-1].extent) >= WIDE * count else []
    shared = chain[len(around) :]
    most = _count_iterations(shared)
    per, runs = simplify(tirx.ceildiv(most, i64(count))), _count_iterations(around)

    number, is_copy = tirx.Var("number", "int64"), isinstance(body, tirx.BufferStore)
    body = replace_vars(body, split_number(shared, number))
    if is_copy:  # only here can (number // 90) * 90 + number % 90 be simplified
        indices = list(map(simplify, body.indices))
        body = tirx.BufferStore(body.buffer, simplify(body.value), indices)

    def do(turn: Any) -> None:
        here = (tirx.floormod(turn, per) if around else turn) * count + worker
        swaps = {number: here} | split_number(around, tirx.floordiv(turn, per))
        sure = known and int(most) % count == 0
        code.add(guard(replace_vars(body, swaps), [] if sure else [here < most]))

    turns, code = simplify(per * runs), Builder()
    if not known or not (is_copy or int(turns) == 1):
        with code.repeat("turn", turns) as turn:
            do(turn)
        return code.finish()
    whole = int(turns) // AHEAD * AHEAD
    for begin, some, size in ((0, whole, AHEAD), (whole, int(turns) - whole, int(turns) - whole)):
        if some:
            with (
                code.parts("turn", some, size) as first,
                code.repeat("ahead", i64(size), True) as k,
            ):
                do(first + k + begin)
    return code.finish()


def _count_iterations(loops: list[tirx.For]) -> Any:
    return simplify(prod((loop.extent.astype("int64") for loop in loops), start=i64(1)))


FLAT_THREADS = 256
"""Number of threads in a block of a kernel if no loop of the schedule determines it."""


def flat_kernel(nest: tirx.Stmt, facts: NestFacts) -> tirx.Stmt:
    """Turn a nest of independent iterations into a kernel with a thread for each.

    Args:
        nest: loops over rows and outputs, whose iterations are distributed over threads. A loop
            whose length depends on another one gets the greatest length, and a condition. Loops of
            other kinds, and all inside them, stay serial.
        facts: facts about the loops.
    """
    chain, conditions, body = list[tirx.For](), list[Any](), nest
    while isinstance(body, tirx.For) and _is_independent(body, facts):
        extent = body.extent
        if mentions(extent, {loop.loop_var for loop in chain}):
            most = max_value(extent)
            if most is None:
                break
            conditions.append(body.loop_var < extent)
            extent = most
        chain.append(change_loop(body, extent=extent))
        body = body.body
    total = _count_iterations(chain)
    blocks, threads = dimension_var("grid.x"), dimension_var("block.x")
    number = blocks * FLAT_THREADS + threads
    swaps = split_number(chain, number)
    body = guard(replace_vars(body, swaps), [replace_vars(x, swaps) for x in conditions])
    body = change_scope(guard(body, [number < total]), "global", "local")
    size = simplify(tirx.ceildiv(total, i64(FLAT_THREADS)))
    return bind(body, {"grid.x": (blocks, size), "block.x": (threads, FLAT_THREADS)})


def _is_independent(loop: tirx.For, facts: NestFacts) -> bool:
    """Return whether the iterations of a loop outside kernels are independent."""
    if is_spread(loop) or EPILOGUE in loop.annotations or facts.of(loop).kind in ("batch", "class"):
        return True
    return str(loop.loop_var.name).endswith("_init")  # TVM writes base scores in such loops
