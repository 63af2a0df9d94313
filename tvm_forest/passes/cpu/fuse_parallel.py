"""Make parallel loops out of those that are marked, one of nested ones.

takes: IRModule without blocks; gives: IRModule.

    for b0 in range(8):         # parallel         parallel b0t0 in range(32):
        for t0 in range(4):     # parallel   -->       S(b0t0 // 4, b0t0 % 4)
            S(b0, t0)

TVM's thread pool refuses a parallel loop inside another.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

PARALLEL = "tvm_forest.parallel"


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.FuseParallel")
@dataclass(frozen=True)
class FuseParallel:
    """Fuse chains of marked loops, outermost first."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Rewrite all loops."""
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _fuse), order="post"))


def _fuse(loop: tirx.For) -> tirx.For:
    if not is_parallel(loop):
        return loop
    var, extent, body, notes = loop.loop_var, loop.extent, loop.body, loop.annotations
    inner = body
    if isinstance(inner, tirx.For) and is_parallel(inner):
        fused = tirx.Var(f"{var.name}{inner.loop_var.name}", var.ty)
        count = inner.extent.astype(var.ty.dtype)
        swaps = ((var, tirx.floordiv(fused, count)), (inner.loop_var, tirx.floormod(fused, count)))

        def swap(v: tirx.Var) -> tirx.Expr:
            return next((new for old, new in swaps if old.same_as(v)), v)

        body = tvm_ffi.structural_map(inner.body, (tirx.Var, swap))
        var, extent = fused, extent * count
        notes = {**notes, **inner.annotations}
    return tirx.For(var, loop.min, extent, tirx.ForKind.PARALLEL, body, None, notes)


def is_parallel(loop: tirx.For) -> bool:
    """Return whether a loop is parallel or marked to become so."""
    return loop.kind == tirx.ForKind.PARALLEL or int(loop.annotations.get(PARALLEL, 0)) == 1
