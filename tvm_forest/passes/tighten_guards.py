"""Turns guards inside loops into bounds of the loops.

takes: IRModule without blocks; gives: IRModule.

    for b1 in range(64):                      for b1 in range(min(64, n - b0 * 64)):
        if b0 * 64 + b1 < n:        -->           S
            S

A condition that does not depend on a loop's variable moves out of the loop. The time for the last
tile then depends on its number of rows, and LowerWalks can group the rows.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import sym, tirx

from ..tir_gen.ir import change_loop, guard, mentions, rewrite_loops, split_condition
from .function_pass import NestPass, function_pass


@function_pass
class TightenGuards(NestPass):
    """Bounds loops whose whole body is guarded by conditions that are linear in their variables.

    Parallel loops are left unchanged, since they can be fused only if they are adjacent and have
    constant extents.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Turn guards into bounds of all loops, inner ones first; move other guards outwards."""
        return func.with_body(rewrite_loops(func.body, self._tighten))

    def _tighten(self, loop: tirx.For) -> tirx.Stmt:
        is_behind_walk = self.facts.form(loop) is not None or self.facts.of(loop).kind == "class"
        body = _guard_together(loop.body) if is_behind_walk else loop.body
        if not _is_guarded(body) or self.facts.is_parallel(loop):
            return loop
        extent, inside, outside = loop.extent, list[Any](), list[Any]()
        for part in split_condition(body.condition):
            if not mentions(part, {loop.loop_var}):
                outside.append(part)
                continue
            bound = _upper_bound(part, loop.loop_var) if loop.kind == tirx.ForKind.SERIAL else None
            if bound is None:
                inside.append(part)
            else:
                zero = tirx.const(0, extent.ty.dtype)
                extent = tirx.min(extent, tirx.max(bound - loop.min, zero))
        extent = sym.Analyzer().simplify(extent)
        tight = change_loop(loop, extent=extent, body=guard(body.then_case, inside))
        return guard(tight, outside)


def _guard_together(body: tirx.Stmt) -> tirx.Stmt:
    """Move the conditions that all statements of a sequence have into one guard around it."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else []
    if len(parts) < 2 or not all(map(_is_guarded, parts)):
        return body
    first, *others = conditions = [split_condition(part.condition) for part in parts]
    shared = [x for x in first if all(_holds(x, other) for other in others)]
    alone = [[x for x in own if not _holds(x, shared)] for own in conditions]
    rest = [guard(part.then_case, own) for part, own in zip(parts, alone, strict=True)]
    return guard(tirx.SeqStmt(rest), shared)


def _is_guarded(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.IfThenElse) and statement.else_case is None


def _holds(condition: Any, conditions: list[Any]) -> bool:
    return any(tvm_ffi.structural_equal(condition, other) for other in conditions)


def _upper_bound(condition: Any, var: tirx.Var) -> Any | None:
    """Return the least e with (condition iff var < e); None if the condition has another form."""
    if not isinstance(condition, tirx.LT):
        return None
    linear = sym.detect_linear_equation(condition.b - condition.a, [var])
    if len(linear) != 2 or not isinstance(linear[0], tirx.IntImm) or linear[0].value >= 0:
        return None
    factor, bound = -linear[0].value, linear[1]  # factor * var < bound
    return bound if factor == 1 else tirx.floordiv(bound + (factor - 1), factor)
