"""Legalises the operator `relax.tvm_forest.predict`: TVM then compiles the forest itself.

takes: a call of the operator; gives: calls of PrimFuncs in the same module.

The user's pipeline makes the machine code, so it decides about threads and flags. The PrimFuncs use
only instructions of the target that the module is compiled for.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op, register_op_attr

from ..passes.model_table import MODEL
from ..tir_gen.internals.names import LEGALIZE
from .functions import BatchFunction, hide_buffers
from .gpu.devices import DeviceBuilder
from .lowering import expand
from .model import to_tensor_constant
from .operator import NAME
from .targets import from_tvm


def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the expression that replaces a call; for errors see `lowering.expand`."""
    current, vdevice = tvm.target.Target.current(allow_none=True), call.args[0].ty.vdevice
    known = current if vdevice is None else vdevice.target
    elsewhere = current is not None and current.kind != known.kind
    target = from_tvm(known)
    builder = DeviceBuilder(bb, known, vdevice if elsewhere else None, target.on_gpu)

    def compute(
        function: BatchFunction, rows: Any, kinds: list[relax.TensorType]
    ) -> list[relax.Expr]:
        func = function.func if target.on_gpu else hide_buffers(function.func)
        func = func.without_attr("target").without_attr("global_symbol").without_attr(MODEL)
        var = bb.add_func(func.with_attrs(builder.attributes), "forest")
        arrays = [builder.bring(to_tensor_constant(array)) for array in function.arrays.values()]
        out = kinds if len(kinds) > 1 else kinds[0]
        results = bb.emit(relax.call_tir(var, [rows, *arrays], out_ty=out))
        if len(kinds) == 1:
            return [results]
        return [bb.emit(relax.TupleGetItem(results, i)) for i in range(len(kinds))]

    return expand(builder, call, target, compute)


def register() -> None:
    """Register the legalisation with TVM, once per process."""
    if Op.get(NAME).get_attr(LEGALIZE) is None:
        register_op_attr(NAME, LEGALIZE, legalize)
