"""What iterations of a parallel loop write to one place, read off the lowered code.

Threads may never meet while a test runs, and a race of theirs may be seen in one call of a hundred.
So this looks at the code: a store inside a parallel loop must be to memory that is declared inside,
or its place must depend on the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import tirx

from tvm_forest.tir_gen.ir import find_all, find_stores, mentions


def find_races(func: tirx.PrimFunc) -> set[str]:
    """Return the names of buffers that iterations which run at the same time store to alike."""
    loops = find_all(func.body, tirx.For, lambda loop: loop.kind == tirx.ForKind.PARALLEL)
    return {str(store.buffer.name) for loop in loops for store in _common_stores(loop)}


def _common_stores(loop: tirx.For) -> Iterator[Any]:
    own = {alloc.buffer for alloc in find_all(loop, tirx.AllocBuffer)}
    depending, size, stores = {loop.loop_var}, 0, find_stores(loop)
    while size != len(depending):  # an index may have been held in a cell before it is used
        size = len(depending)
        depending |= {x.buffer for x in stores if x.buffer in own and mentions(x, depending)}
    yield from (x for x in stores if x.buffer not in own and not mentions(x.indices, depending))
