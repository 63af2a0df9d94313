"""What parallel iterations, or threads of a kernel, write to one place, read off the code.

Threads may never meet while a test runs, and a race of theirs may be seen in one call of a hundred.
On the target "simt", threads never meet. So this looks at the code: a store inside a parallel loop
must be to memory that is declared inside, or its place must depend on the iteration. A store in a
kernel must be to memory of the thread, or its place must depend on all dimensions, but for those of
which a condition chooses one thread or block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import tvm
from tvm import sym, tirx

from tvm_forest.passes.gpu.kernel_code import axis_tag, buffers_of, max_value
from tvm_forest.tir_gen.ir import (
    find_all,
    find_loops,
    find_stores,
    mentions,
    rewrite_nest,
    split_condition,
)


def find_races(func: tirx.PrimFunc) -> set[str]:
    """Return the names of buffers that iterations which run at the same time store to alike."""
    loops = find_all(func.body, tirx.For, lambda loop: loop.kind == tirx.ForKind.PARALLEL)
    return {str(store.buffer.name) for loop in loops for store in _common_stores(loop)}


def _common_stores(loop: tirx.For) -> Iterator[Any]:
    own = set(buffers_of(loop))
    depending = _find_depending(loop, own)
    stores = find_stores(loop)
    yield from (x for x in stores if x.buffer not in own and not mentions(x.indices, depending))


def _find_depending(loop: tirx.For, own: set[Any]) -> set[Any]:
    """Return the variable of a loop and the cells, of those of its `own`, that depend on it."""
    depending, size = {loop.loop_var}, 0
    while size != len(depending):  # an index may have been held in a cell before it is used
        size = len(depending)
        depending |= {
            x.buffer for x in find_stores(loop) if x.buffer in own and mentions(x, depending)
        }
    return depending


def find_kernel_races(func: tirx.PrimFunc) -> set[str]:
    """Return the names of buffers that threads or blocks of a kernel store to alike."""
    names = set[str]()

    def look(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        if not isinstance(s, tirx.For) or not axis_tag(s):
            return None
        names.update(str(store.buffer.name) for store in _kernel_stores(s, around))
        return s

    rewrite_nest(func.body, look)
    return names


def _kernel_stores(kernel: tirx.For, around: tuple[tirx.For, ...]) -> Iterator[Any]:
    cells, of_block = set(buffers_of(kernel, "local")), set(buffers_of(kernel, "shared"))
    analyzer = sym.Analyzer()
    for loop in around:
        analyzer.bind(loop.loop_var, tvm.ir.Range(loop.min, loop.extent))
    for loop in filter(axis_tag, find_loops(kernel)):
        most = max_value(loop.extent, analyzer)
        known = isinstance(loop.extent, tirx.IntImm) or mentions(loop.body, {loop.loop_var})
        if not known or (most is not None and int(most) <= 1):
            continue  # of a variable that occurs nowhere, TVM has seen that it is 0
        own = cells | of_block if axis_tag(loop).startswith("block") else cells
        depending = _find_depending(loop, cells)
        chosen = partial(_chooses_one, loop=loop, depending=depending)
        branches = find_all(kernel, tirx.IfThenElse, chosen)
        alone = {store for branch in branches for store in find_stores(branch.then_case)}
        stores = (x for x in find_stores(kernel) if x.buffer not in own and x not in alone)
        yield from (x for x in stores if not mentions(x.indices, depending))


def _chooses_one(branch: tirx.IfThenElse, loop: tirx.For, depending: set[Any]) -> bool:
    """Whether a condition holds for one iteration only, such as the first or the last one."""
    for part in split_condition(branch.condition):
        below = isinstance(part, tirx.LT)
        first = below and _is_constant(part.b, 1)
        if (first or isinstance(part, tirx.EQ)) and mentions(part.a, depending):
            return True
        if below and part.b.same_as(loop.loop_var) and _is_constant(loop.extent - part.a, 2):
            return True
    return False


def _is_constant(x: Any, value: int) -> bool:
    return isinstance(x, tirx.IntImm) and int(x) == value
