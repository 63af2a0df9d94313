"""Turn stores of atomic sums into calls of a function that adds atomically.

takes: IRModule with `b[i] = tvm_forest.atomic_add(b[i], value)`; gives: IRModule without.

TIR has no atomic addition for CPUs, so the function is imported as LLVM IR, which every CPU target
of LLVM lowers in its own way.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ..tir_gen import ops
from .function_pass import function_pass

FUNCTIONS = """
define float @tvmf_atomic_add_float32(ptr %p, float %v) alwaysinline nounwind {
  %old = atomicrmw fadd ptr %p, float %v monotonic
  ret float %old
}
define double @tvmf_atomic_add_float64(ptr %p, double %v) alwaysinline nounwind {
  %old = atomicrmw fadd ptr %p, double %v monotonic
  ret double %old
}
"""


@function_pass
class LowerAtomics:
    """Rewrite every store whose value is an atomic sum."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Import the function only where it is called."""

        def lower(store: tirx.BufferStore) -> tirx.Stmt:
            call = store.value
            if not ops.is_call(call, ops.ATOMIC_ADD):
                return store
            dtype, (_, value) = call.ty.dtype, call.args
            place = tirx.address_of(store.buffer[list(store.indices)])
            name = f"tvmf_atomic_add_{dtype}"
            return tirx.Evaluate(tirx.call_extern(dtype, name, place, value))

        body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, lower))
        if ops.find_calls(func.body, ops.ATOMIC_ADD):
            zero = tirx.const(0, "int32")
            body = tirx.AttrStmt(zero, "pragma_import_llvm", tvm.ir.StringImm(FUNCTIONS), body)
        return func.with_body(body)
