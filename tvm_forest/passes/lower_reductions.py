"""Lowers reductions to additions, minima and maxima, or calls of an atomic addition.

takes: IRModule with `b[i] = tvm_forest.reduce(b[i], value, ...)`; gives: IRModule without it.

At this point no two concurrent iterations reduce into one element, unless atomically. TIR has no
atomic addition for CPUs, so the function is imported as LLVM IR, which every CPU target of LLVM
lowers in its own way.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..tir_gen import ops
from ..tir_gen.internals.names import IMPORT_LLVM
from .function_pass import function_pass

FUNCTION = """
define {c} @tvmf_atomic_add_{dtype}(ptr %p, {c} %v) alwaysinline nounwind {{
  %old = atomicrmw fadd ptr %p, {c} %v monotonic
  ret {c} %old
}}"""
C_TYPES = {"float32": "float", "float64": "double"}
FUNCTIONS = "".join(FUNCTION.format(c=c, dtype=x) for x, c in C_TYPES.items()) + "\n"


@function_pass
class LowerReductions:
    """Replaces every reduction by an addition, minimum or maximum, or an atomic addition."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Lower reductions; import the function for atomic additions if it is called."""
        calls = ops.find_calls(func.body, ops.REDUCE)
        kinds = [(tirx.BufferStore, _add_atomically), (tvm.ir.Call, _join)]
        body = tvm_ffi.structural_map(func.body, kinds)
        if any(map(ops.is_atomic, calls)):
            zero = tirx.const(0, "int32")
            body = tirx.AttrStmt(zero, IMPORT_LLVM, tvm.ir.StringImm(FUNCTIONS), body)
        return func.with_body(body)


def _add_atomically(store: tirx.BufferStore) -> tirx.Stmt:
    """Replace a store of an atomic addition by a call; return other stores unchanged."""
    if not ops.is_atomic(store.value):
        return store
    dtype, value = store.value.ty.dtype, store.value.args[1]
    place = tirx.address_of(store.buffer[list(store.indices)])
    return tirx.Evaluate(tirx.call_extern(dtype, f"tvmf_atomic_add_{dtype}", place, value))


def _join(call: tvm.ir.Call) -> Any:
    return ops.join(call) if ops.is_call(call, ops.REDUCE) and not ops.is_atomic(call) else call
