"""Keeps the sums of a block of rows in one vector while trees are added to them.

takes: IRModule without blocks, leaf loops with `simdize`; gives: IRModule.

    for tree in range(100):                     sums[0:extent] = margin[r + 0 ..., c]
        for b1 in range(extent):  # bits  -->   for tree in range(100):
            margin[r + b1, c] += walk                for b1 in range(512):  # bits
                                                         sums[b1] += walk
                                                margin[r + 0 ..., c] = sums[0:extent]

Rows past the last one are summed too, with meaningless results, since bit planes have bits for
them. So the inner loop has the same form for every block.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...tir_gen import ops
from ...tir_gen.builder import Builder
from ...tir_gen.ir import at_iteration, change_loop, i64, mentions, rewrite_loops
from ...tir_gen.walks import WALKERS
from ..function_pass import NestPass, function_pass


@function_pass
class KeepSums(NestPass):
    """Lets loops over trees add to a buffer of sums that is stored to the result after the loop.

    These are loops on one thread that contain only a leaf loop whose walker computes many rows at
    once, such as that of bit planes. Models with linear leaves are left unchanged.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Keep the sums of all loops over trees for which that is possible."""
        return func.with_body(rewrite_loops(func.body, self._keep))

    def _keep(self, trees: tirx.For) -> tirx.Stmt:
        leaf, fact = trees.body, self.facts.of(trees.body)
        alone = self.facts.of(trees).kind == "tree" and not self.facts.is_parallel(trees)
        if not alone or not fact.name or fact.count is None:  # threads would share the sums
            return trees
        computed = WALKERS[fact.simdize].computed_rows(leaf.extent, fact.count)
        store = leaf.body
        if computed is None or not isinstance(store, tirx.BufferStore):
            return trees
        # linear leaves read rows, and there are none past the last one
        if mentions(store.indices, {trees.loop_var}) or ops.find_calls(store, ops.LINEAR):
            return trees
        code = Builder()
        sums = code.buffer("sums", (i64(fact.count),), store.buffer.dtype)
        with code.repeat("row", leaf.extent) as row:
            at = list(at_iteration(leaf, leaf.min + row).indices)
            code.store(sums, ops.begin_kept(store.buffer[at], store.value), [row])
        code.add(change_loop(trees, body=_inside(leaf, store, sums, computed)))
        with code.repeat("row", leaf.extent) as row:
            at = list(at_iteration(leaf, leaf.min + row).indices)
            total = ops.end_kept(store.buffer[at], sums[row], store.value)
            code.store(store.buffer, total, at)
        return code.finish()


def _inside(leaf: tirx.For, store: tirx.BufferStore, sums: Any, count: Any) -> tirx.Stmt:
    """Return the leaf loop over all `count` computed rows, which adds to `sums`."""
    row = leaf.loop_var - leaf.min
    value = ops.add_to_kept(sums[row], store.value)
    return change_loop(leaf, extent=count, body=tirx.BufferStore(sums, value, [row]))
