"""Lowers the operator for the values of linear leaves.

takes: IRModule with `tvm_forest.linear` in stores, and without walks; gives: IRModule without it.

    leaf, total, hole = number, linear_const[number], False
    for term in range(linear_terms[leaf, 0], linear_terms[leaf, 1]):
        x = rows[r, linear_feature[term]]
        hole = hole or isnan(x)
        total = total + fence(linear_coefficient[term] * (0 if abs(x) <= 1e-35 else x))
    out[r] += linear_value[leaf] if hole else total

The fence is `ops.keep_rounded`. Rows walked in vector lanes are evaluated one after the other.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ..forest.rules import ZERO
from ..tir_gen import ops
from ..tir_gen.builder import Builder
from ..tir_gen.ir import change_loop, i64, rewrite_loops
from .function_pass import function_pass


@function_pass
class LowerLinear:
    """Replaces every linear leaf's operator by code that computes the leaf's value."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Make vector loops around stores of linear leaves serial, then expand the stores."""
        if not ops.find_calls(func.body, ops.LINEAR):  # as in nearly all functions
            return func
        body = rewrite_loops(func.body, _serial)
        return func.with_body(tvm_ffi.structural_map(body, (tirx.BufferStore, _lower)))


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED or not ops.find_calls(loop.body, ops.LINEAR):
        return loop
    return change_loop(loop, kind=tirx.ForKind.SERIAL)


def _lower(store: tirx.BufferStore) -> tirx.Stmt:
    calls = ops.find_calls(store.value, ops.LINEAR)
    if not calls:
        return store
    code = Builder()
    value = ops.replace_call(store.value, (ops.LINEAR,), _emit(code, *calls[0].args))
    code.store(store.buffer, value, list(store.indices))
    return code.finish()


def _emit(code: Builder, number: Any, row: Any, *anchors: Any) -> Any:
    """Emit the sum of a leaf's terms; return the leaf's value.

    Args:
        code: where statements go.
        number: number of the leaf.
        row: load of the row's first value.
        anchors: a load of each buffer of linear leaves, see `runtime.leaves`.
    """
    value, const, terms, features, coefficients = (anchor.source for anchor in anchors)
    leaf = code.hold("leaf", number.astype("int64"))
    begin, end = (code.hold("term", terms[leaf, i64(k)]) for k in (0, 1))
    total = code.hold("total", const[leaf])
    hole = code.hold("hole", tirx.const(False, "bool"))
    with code.repeat("term", end - begin) as place:
        feature = features[begin + place].astype("int64")
        load = row.source[[*list(row.indices)[:-1], feature]]
        x = code.hold("x", load.astype("float64"))
        code.put(hole, tirx.Or(hole, tirx.isnan(x)))
        zero = tirx.FloatImm("float64", 0.0)
        x = tirx.Select(tirx.abs(x) <= tirx.FloatImm("float64", float(ZERO)), zero, x)
        product = coefficients[begin + place] * x
        code.put(total, total + ops.keep_rounded(product))
    return tirx.Select(hole, value[leaf], total)
