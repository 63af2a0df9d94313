"""Compiles forests with this package, and links them to a module that TVM compiles.

takes: IRModule with calls of `relax.tvm_forest.predict`; gives: IRModule that calls functions of an
external module, which holds the machine code of all its forests.

    y = R.tvm_forest.predict(x, model)  -->  y = R.call_dps_packed("tvm_forest_...", (x, bytes))

The machine code is made as for a Predictor: by the same passes, flags and schedules. Parallel loops
run on the threads of TVM's runtime.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..errors import BuildError, ForestError, InputError
from ..forest import Array
from ..passes.model_table import OFFSETS
from ..target import Target, parse_target
from ..targets import cpu
from ..tir_gen.internals.names import EXTERNAL_MODS
from .functions import BatchFunction
from .gpu.devices import DeviceBuilder
from .lowering import expand
from .model import to_tensor_constant
from .operator import NAME
from .targets import is_gpu

LINKED = "tvm_forest.linked"
"""Attribute of a module with the names of the compiled functions of its forests."""

ALIGNMENT = 64
"""Alignment of arrays, in bytes: a cache line."""


@tvm.transform.module_pass(opt_level=0, name="tvm_forest.LinkForests")
class LinkForests:
    """Compiles the CPU forests of a module, and links them to it.

    Use it before `tvm.compile(mod, target)`:

        mod = tvm_forest.relax.LinkForests()(mod)

    Args:
        target: target for the forests, see `tvm_forest.build`; by default the CPU at hand.

    Raises:
        InputError: the target is unknown, or a GPU.
        UnsupportedModel, ScheduleError, BuildError: a forest cannot be compiled; see `build`.
        ModelFormatError: the constant of a call holds no forest.
    """

    def __init__(self, target: str | dict[str, Any] | Target = "llvm") -> None:
        self.target = parse_target(target)
        if self.target.on_gpu:
            raise InputError(
                f"LinkForests: argument 'target': {self.target.kind!r} is a GPU; leave the pass "
                "out, and tvm.compile will put kernels into the module"
            )

    def transform_module(self, mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
        """Replace the calls of the operator in all Relax functions, and attach the machine code.

        In a module with GPUs, only calls whose rows are on a CPU are replaced.
        """
        linker = _Linker(mod, self.target)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                linker.builder_.update_func(var, linker.visit_expr(func))
        mod = linker.builder_.get()
        if not linker.functions:
            return mod
        for key, new in ((EXTERNAL_MODS, [linker.compile()]), (LINKED, list(linker.functions))):
            mod = mod.with_attr(key, [*_list_attribute(mod, key), *new])
        return mod


def register_linked(mod: tvm.IRModule) -> list[str]:
    """Register linked forests, so that `exec_mode="compiled"` finds them.

    Bytecode finds them without this. Compiled code looks up functions of external modules in TVM's
    global registry, where they stay until `tvm_ffi.remove_global_func` or the end of the process.

    Args:
        mod: a module that `LinkForests` returned.

    Returns:
        list[str]: the names of the functions. A process that loads an exported module must register
        each itself: `tvm_ffi.register_global_func(name, module.get_function(name, True))`.
    """
    names = [str(name) for name in _list_attribute(mod, LINKED)]
    for library in _list_attribute(mod, EXTERNAL_MODS):
        for name in names:
            if library.implements_function(name):
                tvm_ffi.register_global_func(name, library[name], override=True)
    return names


def _list_attribute(mod: tvm.IRModule, key: str) -> list[Any]:
    return list((mod.attrs or {}).get(key, ()))


@mutator
class _Linker(PyExprMutator):
    """Replaces the operator's calls in a module, and collects the functions called instead."""

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        super().__init__(mod)
        self.target = target
        self.before = len(_list_attribute(mod, LINKED))  # the module has so many names already
        self.functions: dict[str, tirx.PrimFunc] = {}
        self.has_gpu = any(map(is_gpu, (mod.global_infos or {}).get("vdevice", ())))

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a call of the operator; in a module with a GPU, only those on the CPU."""
        call = self.visit_expr_post_order(call)
        if not (isinstance(call.op, Op) and call.op.name == NAME):
            return call
        if not self.has_gpu:
            return expand(self.builder_, call, self.target, partial(self._link, lambda x: x))
        vdevice = call.args[0].ty.vdevice
        if vdevice is None or is_gpu(vdevice):
            return call  # FLegalize turns it into kernels
        builder = DeviceBuilder(self.builder_, vdevice.target, vdevice, on_gpu=False)
        return expand(builder, call, self.target, partial(self._link, builder.bring))

    def _link(
        self, bring: Any, function: BatchFunction, rows: Any, kinds: list[relax.TensorType]
    ) -> list[relax.Expr]:
        """Emit a call of a function, whose arrays are one constant; return its results.

        `bring` copies the constant to the device of the rows; `kinds` are the types of results.
        """
        data, offsets = join_arrays(list(function.arrays.values()))
        func = function.func.with_attr(OFFSETS, offsets)
        name = f"tvm_forest_{_digest(func, data)}_{self.before + len(self.functions)}"
        self.functions[name] = func.with_attr("global_symbol", name)
        arguments = relax.Tuple([rows, bring(to_tensor_constant(data))])
        out = kinds if len(kinds) > 1 else kinds[0]
        results = self.builder_.emit(relax.call_dps_packed(name, arguments, out_ty=out))
        if len(kinds) == 1:
            return [results]
        return [self.builder_.emit(relax.TupleGetItem(results, i)) for i in range(len(kinds))]

    def compile(self) -> tvm.runtime.Module:
        """Return the machine code of all functions.

        Raises:
            BuildError: TVM refuses them.
        """
        try:
            target = cpu.tvm_target(self.target)
            mod = tvm.IRModule(self.functions)
            return tvm.compile(mod, target=target, tir_pipeline=cpu.PIPELINE).mod
        except ForestError:
            raise
        except Exception as error:  # whatever TVM throws, users get one kind of error
            raise BuildError(f"LinkForests: TVM cannot compile the forests: {error}") from error


def _digest(func: tirx.PrimFunc, data: Array) -> str:
    """Return 12 hex digits that identify a function and its arrays, as a part of its name.

    So functions of different forests have different names, also in different modules.
    """
    text = f"{tvm_ffi.structural_hash(func)} ".encode()
    return hashlib.sha256(text + data.tobytes()).hexdigest()[:12]


def join_arrays(arrays: list[Array]) -> tuple[Array, list[int]]:
    """Concatenate arrays as bytes at aligned offsets.

    Returns:
        uint8 (bytes,), and a list: the offset of each array, and last the number of bytes.
    """
    offsets = [0]
    for array in arrays:
        offsets.append(-(-(offsets[-1] + array.nbytes) // ALIGNMENT) * ALIGNMENT)
    data = np.zeros(max(1, offsets[-1]), np.uint8)
    for array, begin in zip(arrays, offsets, strict=False):
        data[begin : begin + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    return data, [*offsets[:-1], len(data)]
