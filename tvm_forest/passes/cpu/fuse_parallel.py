"""Makes loops parallel as the schedule marks them, and fuses nested parallel loops into one.

takes: IRModule without blocks; gives: IRModule.

    for b0 in range(8):         # parallel         parallel b0t0 in range(32):
        for t0 in range(4):     # parallel   -->       S(b0t0 // 4, b0t0 % 4)
            S(b0, t0)

TVM's thread pool refuses a parallel loop inside another.
"""

from __future__ import annotations

from tvm import tirx

from ...tir_gen.ir import change_loop, replace_vars, rewrite_loops
from ..function_pass import NestPass, function_pass


@function_pass
class FuseParallel(NestPass):
    """Makes loops parallel, and a chain of them one loop.

    The fused loop has the name of the innermost one, by which passes find its facts.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Make all loops parallel that the schedule marks, and fuse adjacent ones."""
        return func.with_body(rewrite_loops(func.body, self._fuse))

    def _fuse(self, loop: tirx.For) -> tirx.For:
        if not self.facts.is_parallel(loop):
            return loop
        loop = change_loop(loop, kind=tirx.ForKind.PARALLEL)
        var, inner = loop.loop_var, loop.body
        if not self.facts.is_parallel(inner):
            return loop
        fused = tirx.Var(f"{var.name}{inner.loop_var.name}", var.ty)
        count = inner.extent.astype(var.ty.dtype)
        places = {var: tirx.floordiv(fused, count), inner.loop_var: tirx.floormod(fused, count)}
        return change_loop(
            loop,
            loop_var=fused,
            extent=loop.extent * count,
            body=replace_vars(inner.body, places),
            annotations={**loop.annotations, **inner.annotations},
        )
