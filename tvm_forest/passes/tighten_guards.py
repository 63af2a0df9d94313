"""Turn the guard inside a loop into the bound of the loop.

takes: IRModule without blocks; gives: IRModule.

    for b1 in range(64):                      for b1 in range(min(64, n - b0 * 64)):
        if b0 * 64 + b1 < n:        -->           S
            S

The last tile then costs as much as it has rows, and the walk pass can group its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.TightenGuards")
@dataclass(frozen=True)
class TightenGuards:
    """Innermost loops only, and guards that are linear in the loop variable with factor 1."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Rewrite every loop whose whole body is guarded."""
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _tighten), order="post"))


def _tighten(loop: tirx.For) -> tirx.For:
    body = loop.body
    if not isinstance(body, tirx.IfThenElse) or body.else_case is not None:
        return loop
    extent, kept = loop.extent, []
    for part in _conjuncts(body.condition):
        bound = _upper_bound(part, loop.loop_var)
        if bound is None:
            kept.append(part)
        else:
            extent = tirx.min(extent, tirx.max(bound - loop.min, tirx.const(0, extent.ty.dtype)))
    if extent is loop.extent:
        return loop
    inside = body.then_case
    if kept:
        inside = tirx.IfThenElse(tirx.all(*kept), inside, None)
    extent = sym.Analyzer().simplify(extent)
    return tirx.For(
        loop.loop_var, loop.min, extent, loop.kind, inside, loop.thread_binding, loop.annotations
    )


def _conjuncts(condition: Any) -> list[Any]:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _upper_bound(condition: Any, var: tirx.Var) -> Any | None:
    """Return e if the condition reads var < e, else None."""
    if not isinstance(condition, tirx.LT):
        return None
    linear = sym.detect_linear_equation(condition.b - condition.a, [var])
    if len(linear) != 2:
        return None
    factor, bound = linear
    return bound if isinstance(factor, tirx.IntImm) and factor.value == -1 else None
