"""Keep the sums of a block of rows beside each other while trees are added to them.

takes: IRModule without blocks, leaf loops marked `simdize bits` or `permute`; gives: IRModule.

    for tree in range(100):                     sums[0:extent] = margin[r + 0 ..., c]
        for b1 in range(extent):  # bits  -->   for tree in range(100):
            margin[r + b1, c] += walk                for b1 in range(512):  # bits
                                                         sums[b1] += walk
                                                margin[r + 0 ..., c] = sums[0:extent]

The sums of a class are one vector then, and rows behind the last one are added up with the others,
whatever that gives: planes have bits for them. So the inner loop has one form for every block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...layouts.levels import ROWS
from ...tir_gen.builder import Code, i64
from ..lower_linear import has_linear
from ..lower_walks import SIMDIZE, at_iteration
from ..write_nest import KIND, with_body


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.KeepSums")
@dataclass(frozen=True)
class KeepSums:
    """Rewrite loops over trees that hold nothing but a bit-sliced walk."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Visit all loops."""
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _keep)))


def _keep(trees: tirx.For) -> tirx.Stmt:
    leaf = trees.body
    if str(trees.annotations.get(KIND, "")) != "tree" or not _is_sliced(leaf):
        return trees
    store = leaf.body
    if not isinstance(store, tirx.BufferStore) or _uses(store.indices, trees.loop_var):
        return trees
    if has_linear(store.value):  # reads the row, which rows behind the last one do not have
        return trees
    count = i64(int(str(leaf.annotations[SIMDIZE]).split()[1]))
    sums = tirx.decl_buffer((count,), store.buffer.dtype, "sums", scope="global")
    code = Code()
    code.add(tirx.AllocBuffer(sums))
    with code.repeat("row", leaf.extent) as row:
        at = list(at_iteration(leaf, leaf.min + row).indices)
        code.add(tirx.BufferStore(sums, tirx.BufferLoad(store.buffer, at), [row]))
    code.add(with_body(trees, _inside(leaf, store, sums, _computed(leaf, count))))
    with code.repeat("row", leaf.extent) as row:
        at = list(at_iteration(leaf, leaf.min + row).indices)
        code.add(tirx.BufferStore(store.buffer, tirx.BufferLoad(sums, [row]), at))
    return code.finish()


def _computed(leaf: tirx.For, count: Any) -> Any:
    """The number of rows that are computed: by bits all, by permutes 16 by 16."""
    if str(leaf.annotations[SIMDIZE]).startswith("bits"):
        return count
    return tirx.ceildiv(leaf.extent, i64(ROWS)) * ROWS


def _inside(leaf: tirx.For, store: tirx.BufferStore, sums: Any, count: Any) -> tirx.Stmt:
    """The leaf loop over all rows that are computed, which adds to `sums`."""
    row = leaf.loop_var - leaf.min

    def swap(load: Any) -> Any:
        return tirx.BufferLoad(sums, [row]) if load.source.same_as(store.buffer) else load

    value = tvm_ffi.structural_map(store.value, (tvm.ir.expr.TensorLoad, swap))
    body = tirx.BufferStore(sums, value, [row])
    return tirx.For(
        leaf.loop_var, leaf.min, count, leaf.kind, body, annotations=dict(leaf.annotations)
    )


def _is_sliced(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.For) and str(
        statement.annotations.get(SIMDIZE, "")
    ).startswith(("bits", "permute"))


def _uses(indices: Any, var: tirx.Var) -> bool:
    found: list[tirx.Var] = []
    for index in indices:
        tvm_ffi.structural_walk(
            index, (tirx.Var, lambda v: found.append(v) if v.same_as(var) else None)
        )
    return bool(found)
