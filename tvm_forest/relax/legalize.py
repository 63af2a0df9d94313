"""Forests in a module that TVM compiles by itself: the operator's FLegalize.

takes: a call of the operator; gives: calls of PrimFuncs in the same module.

The user's pipeline makes the machine code, so it decides about threads and flags. What is emitted
here is code for the target that the module is compiled for, and no other instruction.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op, register_op_attr

from ..passes.model_table import MODEL
from .functions import BatchFunction, hide_indirect_buffers
from .lowering import expand
from .model import to_tensor_constant
from .operator import NAME
from .targets import from_tvm


def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return what a call becomes; see `lowering.expand` for what it raises."""
    vdevice = call.args[0].ty.vdevice
    known = tvm.target.Target.current(allow_none=True) if vdevice is None else vdevice.target

    def compute(
        function: BatchFunction, rows: Any, kinds: list[relax.TensorType]
    ) -> list[relax.Expr]:
        func = hide_indirect_buffers(function.func).without_attr(MODEL)
        func = func.without_attr("target").without_attr("global_symbol")
        var = bb.add_func(func, "forest")
        arrays = [to_tensor_constant(array) for array in function.arrays.values()]
        out = kinds if len(kinds) > 1 else kinds[0]
        results = bb.emit(relax.call_tir(var, [rows, *arrays], out_ty=out))
        if len(kinds) == 1:
            return [results]
        return [bb.emit(relax.TupleGetItem(results, i)) for i in range(len(kinds))]

    return expand(bb, call, from_tvm(known), compute)


def register() -> None:
    """Tell TVM how to legalise the operator, once in a process."""
    if Op.get(NAME).get_attr("FLegalize") is None:
        register_op_attr(NAME, "FLegalize", legalize)
