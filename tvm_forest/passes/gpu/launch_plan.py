"""Part kernels from what launches them.

takes: a function with kernels, a target of TVM; gives: functions of the device, and Plan.

    part = alloc((n + 7) // 8 * 104)             Allocate("part", (n + 7) // 8 * 416)
    for bx in thread_binding(n, "blockIdx.x"):   Launch("predict_kernel", ..., grid=("n", 1, 1))
        S                                   -->
                                                 def predict_kernel(...):
                                                     S

Buffers that a kernel declares outside shared memory are of a thread, and become "local". Shared
buffers are not merged: barriers stand where the buffers ask for them as they are.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...errors import BuildError
from ...gpu_runtime.plan import Allocate, HostLoop, HostStep, Launch, Plan, SizeExpr

LAUNCH = "tirx.call_ffi_kernel"
DATA = "tirx.buffer_data"

BINARY = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"},
    **{"Min": "min", "Max": "max", "LT": "<", "LE": "<=", "EQ": "==", "And": "and", "Or": "or"},
}
"""What the sizes of grids and buffers are made of."""


def split_kernels(
    mod: tvm.IRModule, target: tvm.target.Target
) -> tuple[tvm.IRModule, dict[str, Plan]]:
    """Return the kernels of a module, and for each of its functions what launches them.

    Args:
        mod: functions whose kernels are nests of loops bound to blockIdx and threadIdx.
        target: TVM's target of the device, with a host.

    Raises:
        BuildError: a size is not made of numbers of rows and of loops, or a kernel needs memory of
            unknown size.
    """
    functions = {
        var: func.with_body(_for_device(func.body)).with_attr("target", target)
        for var, func in mod.functions.items()
    }
    parameters = {
        func.attrs["global_symbol"]: [x.name for x in func.params] for func in functions.values()
    }
    lowered = _passes()(tvm.IRModule(functions))
    kernels, plans = dict[Any, tirx.PrimFunc](), dict[str, Plan]()
    for var, func in lowered.functions.items():
        name = str(func.attrs["global_symbol"])
        if name in parameters:
            plans[name] = _planned(func, parameters[name])
        else:
            kernels[var] = func
    return tvm.IRModule(kernels), plans


def _passes() -> tvm.transform.Pass:
    """TVM's passes for plain loops; StorageRewrite would merge shared buffers, barriers or not."""
    plain = tirx.transform
    return tvm.transform.Sequential(
        [
            plain.FlattenBuffer(),
            plain.NarrowDataType(32),
            plain.VectorizeLoop(),
            plain.UnrollLoop(),
            plain.StmtSimplify(),
            plain.RemoveNoOp(),
            s_tir.transform.RewriteUnsafeSelect(),
            plain.VerifyMemory(),
            plain.AnnotateEntryFunc(),
            plain.SplitHostDevice(),
        ],
        name="tvm_forest.device",
    )


# -- kernels --------------------------------------------------------------------------------------


def _for_device(statement: tirx.Stmt) -> tirx.Stmt:
    """Write bindings as TVM wants to split them off, and make the buffers inside local."""
    if isinstance(statement, tirx.AttrStmt):
        return _for_device(statement.body)  # code of another compiler, or a name
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_for_device(part) for part in statement.seq])
    if isinstance(statement, tirx.IfThenElse):
        other = statement.else_case
        other = None if other is None else _for_device(other)
        return tirx.IfThenElse(statement.condition, _for_device(statement.then_case), other)
    if not isinstance(statement, tirx.For):
        return statement
    if statement.thread_binding is None:  # unrolled, its kernels would share their variables
        inside, serial = _for_device(statement.body), tirx.ForKind.SERIAL
        return tirx.For(statement.loop_var, statement.min, statement.extent, serial, inside)
    kernel = _with_plain_names(_with_locals(statement))
    return tvm_ffi.structural_map(kernel, (tirx.For, _extent_of))


def _with_plain_names(kernel: tirx.Stmt) -> tirx.Stmt:
    """Name loops as no word of C++ is named: a schedule may call one "class" or "for"."""

    def rename(loop: tirx.For) -> tirx.For:
        old = loop.loop_var
        var = tirx.Var(f"{old.name}_", old.ty)
        body = tvm_ffi.structural_map(loop.body, (tirx.Var, lambda x: var if x.same_as(old) else x))
        axis = loop.thread_binding
        if axis is not None:
            axis = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, axis.thread_tag)
        return tirx.For(var, loop.min, loop.extent, loop.kind, body, axis, loop.annotations)

    return tvm_ffi.structural_map(kernel, (tirx.For, rename))


def _extent_of(loop: tirx.For) -> tirx.Stmt:
    if loop.thread_binding is None:
        return loop
    tag = str(loop.thread_binding.thread_tag)
    axis = tirx.IterVar(None, loop.loop_var, tirx.IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(axis, "thread_extent", loop.extent, loop.body)


def _with_locals(kernel: tirx.Stmt) -> tirx.Stmt:
    swaps: list[tuple[Any, Any]] = []

    def find(alloc: tirx.AllocBuffer) -> None:
        buffer = alloc.buffer
        if buffer.scope() == "global":
            _check_constant(buffer)
            own = tirx.decl_buffer(buffer.shape, buffer.dtype, buffer.name, scope="local")
            swaps.append((buffer, own))

    def new(buffer: Any) -> Any | None:
        return next((own for old, own in swaps if old.same_as(buffer)), None)

    def alloc(x: tirx.AllocBuffer) -> tirx.AllocBuffer:
        own = new(x.buffer)
        return x if own is None else tirx.AllocBuffer(own)

    def load(x: Any) -> Any:
        own = new(x.source)
        return x if own is None else tirx.BufferLoad(own, list(x.indices))

    def store(x: tirx.BufferStore) -> tirx.BufferStore:
        own = new(x.buffer)
        return x if own is None else tirx.BufferStore(own, x.value, list(x.indices))

    tvm_ffi.structural_walk(kernel, (tirx.AllocBuffer, find))
    kinds = [
        (tirx.AllocBuffer, alloc),
        (tvm.ir.expr.TensorLoad, load),
        (tirx.BufferStore, store),
    ]
    return tvm_ffi.structural_map(kernel, kinds)


def _check_constant(buffer: Any) -> None:
    if not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
        raise BuildError(
            f"build: argument 'schedule': each thread needs memory '{buffer.name}' of unknown size "
            f"{list(buffer.shape)}; give loops around it a constant count with tile"
        )


# -- plan -----------------------------------------------------------------------------------------


def _planned(func: tirx.PrimFunc, parameters: list[str]) -> Plan:
    names = [(var, name) for var, name in zip(func.params, parameters, strict=True)]
    return Plan(tuple(parameters), tuple(_steps(func.body, names)))


Names = list[tuple[Any, str]]
"""Buffers, and what the plan calls their memory."""


def _steps(statement: tirx.Stmt, names: Names) -> list[HostStep]:
    """Return what a statement of the host does."""
    if isinstance(statement, tirx.SeqStmt):
        return [step for part in statement.seq for step in _steps(part, names)]
    if isinstance(statement, tirx.AttrStmt):
        return _steps(statement.body, names)
    if isinstance(statement, tirx.DeclBuffer):
        names.append((statement.buffer, _name_of(statement.data.args[0], names)))
        return []
    if isinstance(statement, tirx.AllocBuffer):
        return [_allocated(statement.buffer, names)]
    if isinstance(statement, tirx.For):
        assert _written(statement.min, names) == 0, "loops of a nest count from 0"
        steps = tuple(_steps(statement.body, names))
        return [HostLoop(statement.loop_var.name, _written(statement.extent, names), steps)]
    if isinstance(statement, tirx.IfThenElse):
        then = tuple(_steps(statement.then_case, names))
        return [HostLoop("", _written(statement.condition, names), then)]
    call = getattr(statement, "value", None)
    if getattr(getattr(call, "op", None), "name", "") == LAUNCH:
        return [_launched(call, names)]
    raise BuildError(f"build: the host of a GPU cannot do: {statement}")


def _allocated(buffer: Any, names: Names) -> Allocate:
    known = [name for _, name in names]
    name = next(x for x in (buffer.name, *_numbered(buffer.name)) if x not in known)
    names.append((buffer, name))
    item = tvm.DataType(buffer.dtype).itemsize
    sizes = [_written(size, names) for size in buffer.shape]
    constant = prod(size for size in sizes if isinstance(size, int)) * item
    expr: SizeExpr = constant
    for size in (size for size in sizes if not isinstance(size, int)):
        expr = ("*", size, expr)
    return Allocate(name, expr)


def _numbered(name: str) -> Any:
    return (f"{name}_{number}" for number in range(1, 1000))


def _launched(call: Any, names: Names) -> Launch:
    tags = [str(tag) for tag in call.attrs.launch_params]
    kernel, *given = call.args
    arguments, extents = given[: -len(tags)], given[-len(tags) :]
    sizes: dict[str, SizeExpr] = {
        tag: _written(extent, names) for tag, extent in zip(tags, extents, strict=True)
    }
    return Launch(
        str(kernel.value),
        tuple(_argument(x, names) for x in arguments),
        tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in "xyz"),
        tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz"),
        sizes.get("tirx.use_dyn_shared_memory", 0),
    )


def _argument(x: Any, names: Names) -> tuple[str, SizeExpr]:
    if getattr(getattr(x, "op", None), "name", "") == DATA:
        return "pointer", _name_of(x.args[0], names)
    return str(x.ty.dtype), _written(x, names)


def _name_of(buffer: Any, names: Names) -> str:
    return next(name for known, name in names if known.same_as(buffer))


def _written(expr: Any, names: Names) -> SizeExpr:
    """Return an expression of the plan for one of TVM."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, tvm.ir.expr.TensorLoad) and len(expr.indices) == 1:
        name = expr.source.name  # TVM may have made a variable of its own for the array
        assert any(name == known for _, known in names), f"no array '{name}'"
        return ("[]", name, _written(expr.indices[0], names))
    if isinstance(expr, tirx.Var):
        return expr.name
    if isinstance(expr, tirx.Cast):
        return _written(expr.value, names)
    kind = type(expr).__name__
    if kind in BINARY:
        return (BINARY[kind], _written(expr.a, names), _written(expr.b, names))
    if isinstance(expr, tirx.Not):
        return ("not", _written(expr.a, names))
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return ("if", *(_written(part, names) for part in parts))
    if getattr(getattr(expr, "op", None), "name", "").endswith(".if_then_else"):
        return ("if", *(_written(part, names) for part in expr.args))
    raise BuildError(f"build: a size that is no arithmetic of whole numbers: {expr}")
