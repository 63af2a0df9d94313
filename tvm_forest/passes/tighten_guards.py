"""Turn the guards inside loops into the bounds of the loops.

takes: IRModule without blocks; gives: IRModule.

    for b1 in range(64):                      for b1 in range(min(64, n - b0 * 64)):
        if b0 * 64 + b1 < n:        -->           S
            S

A condition that does not depend on a loop moves out of it, to the next loop. The last tile then
costs as much as it has rows, and the walk pass can group its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from .cpu.fuse_parallel import is_parallel


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.TightenGuards")
@dataclass(frozen=True)
class TightenGuards:
    """Loops whose whole body is guarded, by conditions that are linear in the loop variable."""

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Rewrite all loops, innermost first."""
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _tighten), order="post"))


def _tighten(loop: tirx.For) -> tirx.Stmt:
    body = loop.body
    if not isinstance(body, tirx.IfThenElse) or body.else_case is not None or is_parallel(loop):
        return loop  # parallel loops must stay neighbours, of constant extents, to be fused
    extent, inside, outside = loop.extent, [], []
    bounded = loop.kind == tirx.ForKind.SERIAL
    for part in conjuncts(body.condition):
        if not _mentions(part, loop.loop_var):
            outside.append(part)
            continue
        bound = _upper_bound(part, loop.loop_var) if bounded else None
        if bound is None:
            inside.append(part)
        else:
            extent = tirx.min(extent, tirx.max(bound - loop.min, tirx.const(0, extent.ty.dtype)))
    tight = tirx.For(
        loop.loop_var,
        loop.min,
        sym.Analyzer().simplify(extent),
        loop.kind,
        _guarded(inside, body.then_case),
        loop.thread_binding,
        loop.annotations,
    )
    return _guarded(outside, tight)


def _guarded(conditions: list[Any], statement: tirx.Stmt) -> tirx.Stmt:
    return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement


def conjuncts(condition: Any) -> list[Any]:
    """Return the conditions that all hold where this one does."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def _mentions(expr: Any, var: tirx.Var) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tirx.Var, lambda v: found.append(v) if v.same_as(var) else None))
    return bool(found)


def _upper_bound(condition: Any, var: tirx.Var) -> Any | None:
    """Return the least e with: condition iff var < e; None if it has another form."""
    if not isinstance(condition, tirx.LT):
        return None
    linear = sym.detect_linear_equation(condition.b - condition.a, [var])
    if len(linear) != 2 or not isinstance(linear[0], tirx.IntImm) or linear[0].value >= 0:
        return None
    factor, bound = -linear[0].value, linear[1]  # factor * var < bound
    return bound if factor == 1 else tirx.floordiv(bound + (factor - 1), factor)
