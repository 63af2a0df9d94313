"""Forests in a module that TVM compiles by itself: the operator's FLegalize.

takes: a call of the operator; gives: calls of PrimFuncs in the same module.

The user's pipeline makes the machine code, so it decides about threads and flags. What is emitted
here is code for the target that the module is compiled for, and no other instruction.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import GenericConst, Op, register_op_attr
from tvm.relax.utils import gen_call_tir_inputs
from tvm.s_tir import dlight

from ..passes.model_table import MODEL
from ..tir_gen.ir import guard, i64
from .functions import OPAQUE, BatchFunction, hide_indirect_buffers
from .lowering import expand
from .model import to_tensor_constant
from .operator import NAME
from .targets import from_tvm


def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return what a call becomes; see `lowering.expand` for what it raises."""
    current, vdevice = tvm.target.Target.current(allow_none=True), call.args[0].ty.vdevice
    known = current if vdevice is None else vdevice.target
    elsewhere = current is not None and current.kind != known.kind
    target = from_tvm(known)
    builder = DeviceBuilder(bb, known, vdevice if elsewhere else None, target.on_gpu)

    def compute(
        function: BatchFunction, rows: Any, kinds: list[relax.TensorType]
    ) -> list[relax.Expr]:
        func = function.func if target.on_gpu else hide_indirect_buffers(function.func)
        func = func.without_attr("target").without_attr("global_symbol").without_attr(MODEL)
        var = bb.add_func(func.with_attrs(builder.attributes), "forest")
        arrays = [builder.bring(to_tensor_constant(array)) for array in function.arrays.values()]
        out = kinds if len(kinds) > 1 else kinds[0]
        results = bb.emit(relax.call_tir(var, [rows, *arrays], out_ty=out))
        if len(kinds) == 1:
            return [results]
        return [bb.emit(relax.TupleGetItem(results, i)) for i in range(len(kinds))]

    return expand(builder, call, target, compute)


class DeviceBuilder:
    """A BlockBuilder for code on one device of a module.

    On another device than the first one of the virtual machine, functions say what they are made
    for, and constants are copied there before they are used. On GPUs, functions have one thread for
    each result: TVM's default schedules launch kernels without blocks if there are no rows, and for
    AMD's GPUs they use shared memory, see `amd_kernels`.
    """

    def __init__(self, bb: relax.BlockBuilder, target: Any, elsewhere: Any, on_gpu: bool) -> None:
        """Take a target of TVM, and the VDevice if it is not the first device."""
        self.bb, self.target, self.elsewhere, self.on_gpu = bb, target, elsewhere, on_gpu
        self.attributes = {"target": target} if elsewhere is not None else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bb, name)

    def bring(self, x: Any) -> Any:
        """Return a constant on the device; anything else is there."""
        if self.elsewhere is None or not isinstance(x, GenericConst):
            return x
        return self.bb.emit(relax.op.to_vdevice(x, self.elsewhere))

    def call_te(self, func: Any, *args: Any, **named: Any) -> relax.Expr:
        """Do what `BlockBuilder.call_te` does, for the device."""
        name = named.pop("primfunc_name_hint", "") or func.__name__
        code, arguments, out = gen_call_tir_inputs(func, *map(self.bring, args), **named)
        if self.on_gpu:
            code = give_threads(code, self.target)
        var = self.bb.add_func(code.with_attrs(self.attributes), name)
        return relax.call_tir(var, arguments, out)

    def emit_te(self, func: Any, *args: Any, **named: Any) -> relax.Var:
        """Do what `BlockBuilder.emit_te` does, for the device."""
        return self.bb.emit(self.call_te(func, *args, **named))


def give_threads(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a function of tensor expressions with a thread for each result."""
    passes = [
        dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    with target:
        code = tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]
    n = code.params[-1].shape[0]
    code = code.with_body(guard(code.body, [n > i64(0)]))
    return code.with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def register() -> None:
    """Tell TVM how to legalise the operator, once in a process."""
    if Op.get(NAME).get_attr("FLegalize") is None:
        register_op_attr(NAME, "FLegalize", legalize)
