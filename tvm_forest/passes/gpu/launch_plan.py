"""Splits a function into its kernels and a plan that launches them.

takes: a function with kernels, a target of TVM; gives: functions for the device, and a Plan.

    part = alloc((n + 7) // 8 * 104)             Allocate("part", (n + 7) // 8 * 416)
    for bx in thread_binding(n, "blockIdx.x"):   Launch("predict_kernel", ..., grid=("n", 1, 1))
        S                                   -->
                                                 def predict_kernel(...):
                                                     S

Buffers that a kernel declares outside shared memory belong to one thread and become "local". Shared
buffers are not merged: barriers are placed for the buffers as they are.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...errors import BuildError
from ...runtime.gpu.plan import Allocate, HostLoop, HostStep, Launch, Plan, SizeExpr
from ...tir_gen.internals import names as tvm_names
from ...tir_gen.ir import change_loop, rewrite_loops, rewrite_nest
from ...tir_gen.ops import is_call
from . import kernel_code

BINARY = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"},
    **{"Min": "min", "Max": "max", "LT": "<", "LE": "<=", "EQ": "==", "And": "and", "Or": "or"},
}
"""The plan's operators for TIR nodes, which sizes of grids and buffers may use."""


class Host(NamedTuple):
    """The host part of a function.

    Attributes:
        func: function that allocates memory and launches kernels by `CALL_KERNEL`.
        parameters: names that its parameters had before TVM's passes.
    """

    func: tirx.PrimFunc
    parameters: list[str]


def split_kernels(
    mod: tvm.IRModule, target: tvm.target.Target
) -> tuple[tvm.IRModule, dict[str, Plan]]:
    """Return a module's kernels, and the launch plan of each function.

    Args:
        mod: functions whose kernels are nests of loops bound to blockIdx and threadIdx.
        target: TVM's device target, with a host.

    Raises:
        BuildError: a size is not simple integer arithmetic, a kernel needs memory of unknown size,
            or code outside kernels does more than allocate memory, repeat, and launch kernels.
    """
    hosts, kernels = separate(mod, target)
    plans = {}
    for name, (func, parameters) in hosts.items():
        buffers = dict(zip(func.params, parameters, strict=True))
        plans[name] = Plan(tuple(parameters), tuple(_plan_steps(func.body, buffers)))
    return kernels, plans


def separate(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[dict[str, Host], tvm.IRModule]:
    """Split functions into their host part and their kernels.

    Args:
        mod, target: see `split_kernels`.

    Raises:
        BuildError: a kernel needs memory of unknown size.
    """
    functions = {
        var: func.with_body(for_device(func.body)).with_attr("target", target)
        for var, func in mod.functions.items()
    }
    parameters = {
        func.attrs["global_symbol"]: [x.name for x in func.params] for func in functions.values()
    }
    lowered = _passes()(tvm.IRModule(functions))
    hosts, kernels = dict[str, Host](), dict[Any, tirx.PrimFunc]()
    for var, func in lowered.functions.items():
        name = str(func.attrs["global_symbol"])
        if name in parameters:
            hosts[name] = Host(func, parameters[name])
        else:
            kernels[var] = func
    return hosts, tvm.IRModule(kernels)


def _passes() -> tvm.transform.Pass:
    """Return TVM's passes for plain loops, without StorageRewrite, which merges shared buffers."""
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


def for_device(statement: tirx.Stmt) -> tirx.Stmt:
    """Convert kernels to the form that TVM's `SplitHostDevice` needs; make their buffers local.

    Raises:
        BuildError: a buffer of a thread has an unknown size.
    """

    def change(s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        if not isinstance(s, tirx.For):
            return None
        if s.thread_binding is None:  # not unrolled, or its kernels would share variables
            body = rewrite_nest(s.body, change)
            return change_loop(s, body=body, kind=tirx.ForKind.SERIAL, annotations={})
        return _prepare_kernel(s)

    host = tvm_ffi.structural_map(statement, (tirx.AttrStmt, lambda attr: attr.body))
    return rewrite_nest(host, change)


def _prepare_kernel(kernel: tirx.For) -> tirx.Stmt:
    for buffer in kernel_code.buffers_of(kernel, "global"):
        if not all(isinstance(size, tirx.IntImm) for size in buffer.shape):
            raise BuildError(
                f"build: argument 'schedule': each thread needs memory '{buffer.name}' of unknown "
                f"size {list(buffer.shape)}; give loops around it a constant count with tile"
            )
    return rewrite_loops(kernel_code.change_scope(kernel, "global", "local"), _rename)


def _rename(loop: tirx.For) -> tirx.Stmt:
    """Rename a loop variable, which may be a C++ keyword; turn thread bindings into attributes."""
    var = tirx.Var(f"{loop.loop_var.name}_", loop.loop_var.ty)
    loop, tag = kernel_code.change_variable(loop, var), kernel_code.axis_tag(loop)
    axis = kernel_code.thread_axis(var, tag)
    return tirx.AttrStmt(axis, tvm_names.THREAD_EXTENT, loop.extent, loop.body) if tag else loop


# -- plan -----------------------------------------------------------------------------------------


BufferNames = dict[Any, str]
"""Names in the launch plan, by buffer."""


def _plan_steps(statement: tirx.Stmt, names: BufferNames) -> list[HostStep]:
    """Return the plan's steps for a host statement.

    Raises:
        BuildError: a plan has no step for the statement, or no operator for a size.
    """
    if isinstance(statement, tirx.SeqStmt):
        return [step for part in statement.seq for step in _plan_steps(part, names)]
    if isinstance(statement, tirx.AttrStmt):
        return _plan_steps(statement.body, names)
    if isinstance(statement, tirx.DeclBuffer):
        names[statement.buffer] = names[statement.data.args[0]]
        return []
    if isinstance(statement, tirx.AllocBuffer):
        return [_plan_allocation(statement.buffer, names)]
    if isinstance(statement, tirx.For):
        assert _size_expr(statement.min) == 0, "loops of a nest count from 0"
        steps = tuple(_plan_steps(statement.body, names))
        return [HostLoop(statement.loop_var.name, _size_expr(statement.extent), steps)]
    if isinstance(statement, tirx.IfThenElse):
        then = tuple(_plan_steps(statement.then_case, names))
        return [HostLoop("", _size_expr(statement.condition), then)]
    call = getattr(statement, "value", None)
    if is_call(call, tvm_names.CALL_KERNEL):
        return [_plan_launch(call, names)]
    raise BuildError(f"build: the host of a GPU cannot do: {statement}")


def _plan_allocation(buffer: Any, names: BufferNames) -> Allocate:
    others = (f"{buffer.name}_{number}" for number in range(1, 1000))
    name = next(x for x in (buffer.name, *others) if x not in names.values())
    names[buffer] = name
    item = tvm.DataType(buffer.dtype).itemsize
    sizes = list(map(_size_expr, buffer.shape))
    constant = prod(size for size in sizes if isinstance(size, int)) * item
    expr: SizeExpr = constant
    for size in (size for size in sizes if not isinstance(size, int)):
        expr = ("*", size, expr)
    return Allocate(name, expr)


def _plan_launch(call: Any, names: BufferNames) -> Launch:
    tags = [str(tag) for tag in call.attrs.launch_params]
    kernel, *arguments = call.args[: -len(tags)]
    extents = map(_size_expr, call.args[-len(tags) :])
    sizes: dict[str, SizeExpr] = dict(zip(tags, extents, strict=True))
    return Launch(
        str(kernel.value),
        tuple(_argument(x, names) for x in arguments),
        tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in "xyz"),
        tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz"),
        sizes.get(tvm_names.DYNAMIC_SHARED, 0),
    )


def _argument(x: Any, names: BufferNames) -> tuple[str, SizeExpr]:
    if is_call(x, tvm_names.BUFFER_DATA):
        return "pointer", names[x.args[0]]
    return str(x.ty.dtype), _size_expr(x)


def _size_expr(expr: Any) -> SizeExpr:
    """Convert a TIR expression to an expression of the plan.

    Raises:
        BuildError: a plan has no such operator.
    """
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, kernel_code.TensorLoad) and len(expr.indices) == 1:
        # TVM may have made a variable of its own for the array, but it keeps the name.
        return ("[]", expr.source.name, _size_expr(expr.indices[0]))
    if isinstance(expr, tirx.Var):
        return expr.name
    if isinstance(expr, tirx.Cast):
        return _size_expr(expr.value)
    kind = type(expr).__name__
    if kind in BINARY:
        return (BINARY[kind], _size_expr(expr.a), _size_expr(expr.b))
    if isinstance(expr, tirx.Not):
        return ("not", _size_expr(expr.a))
    if isinstance(expr, tirx.Select):
        return ("if", *map(_size_expr, (expr.condition, expr.true_value, expr.false_value)))
    if is_call(expr, tvm_names.IF_THEN_ELSE):
        return ("if", *map(_size_expr, expr.args))
    raise BuildError(f"build: a size that is no arithmetic of whole numbers: {expr}")
