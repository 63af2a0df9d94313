"""Builds code for one device of a module: functions and constants.

takes: a BlockBuilder, a target of TVM and a VDevice; gives: calls of functions for the device.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import GenericConst
from tvm.relax.utils import gen_call_tir_inputs
from tvm.s_tir import dlight

from ...tir_gen.internals.names import IS_SCHEDULED, OP_PATTERN
from ...tir_gen.ir import guard, i64
from ..functions import OPAQUE


class DeviceBuilder:
    """A BlockBuilder for code on one device of a module.

    On a device that is not the first one of the virtual machine, functions have the attribute
    "target", and constants are copied to the device before use. On GPUs, functions have one thread
    for each result: TVM's default schedules launch grids without blocks if there are no rows, and
    use shared memory on AMD's GPUs, see `amd_kernels`.
    """

    def __init__(self, bb: relax.BlockBuilder, target: Any, elsewhere: Any, on_gpu: bool) -> None:
        """Wrap a BlockBuilder; `elsewhere` is the VDevice, or None for the first device."""
        self.bb, self.target, self.elsewhere, self.on_gpu = bb, target, elsewhere, on_gpu
        self.attributes = {"target": target} if elsewhere is not None else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bb, name)

    def bring(self, x: Any) -> Any:
        """Return a copy of a constant on the device; other expressions are already there."""
        if self.elsewhere is None or not isinstance(x, GenericConst):
            return x
        return self.bb.emit(relax.op.to_vdevice(x, self.elsewhere))

    def call_te(self, func: Any, *args: Any, **named: Any) -> relax.Expr:
        """Return a call of a tensor expression, as `BlockBuilder.call_te`, on the device."""
        name = named.pop("primfunc_name_hint", "") or func.__name__
        code, arguments, out = gen_call_tir_inputs(func, *map(self.bring, args), **named)
        if self.on_gpu:
            code = give_threads(code, self.target)
        var = self.bb.add_func(code.with_attrs(self.attributes), name)
        return relax.call_tir(var, arguments, out)

    def emit_te(self, func: Any, *args: Any, **named: Any) -> relax.Var:
        """Emit a call of a tensor expression, as `BlockBuilder.emit_te`, on the device."""
        return self.bb.emit(self.call_te(func, *args, **named))


def give_threads(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Give a function of tensor expressions one GPU thread per result."""
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
    return code.with_attrs({OP_PATTERN: OPAQUE, IS_SCHEDULED: True})
