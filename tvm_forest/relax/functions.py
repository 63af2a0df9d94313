"""Builds one function for batches of all sizes, which chooses a schedule by the number of rows.

takes: BuildRequest; gives: a PrimFunc (rows, model ..., results ...) and its arrays.

    def forest(rows, nodes, cuts, base, margin):
        if n < 8: S of the schedule for batches from 1 row on
        else:
            if n < 512: S of the schedule for batches from 8 rows on
            else: S of the schedule for batches from 512 rows on

Schedules that read the same array share one parameter.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from .. import compiler
from ..errors import UnsupportedModel
from ..forest import Array
from ..layouts.laying_out import lay_out
from ..layouts.laying_out.request import BuildRequest
from ..layouts.protocol import takes_memberships
from ..passes.cpu.outline import mark_part
from ..passes.cpu.share_blocks import TWIN
from ..passes.model_table import MODEL
from ..runtime.results import SUMS
from ..schedule_prims.batches import PARALLEL, name_functions
from ..tir_gen.internals.names import ADDRESS_OF, IS_SCHEDULED, OP_PATTERN
from ..tir_gen.ir import find_all, find_stores, i64, replace_vars
from ..tir_gen.ops import find_calls
from .gpu.amd_kernels import make_portable
from .gpu.kernels import embed_kernels

OPAQUE = 8
"""Relax's number for the pattern of functions that it does not fuse with others."""


STACK_BYTES = 1024
"""Largest buffer that TVM keeps on the stack, in bytes."""

PREPARE = {"cuda": embed_kernels, "rocm": make_portable}
"""Functions that protect GPU kernels from TVM's passes, by kind of target."""


class BatchFunction(NamedTuple):
    """A function for batches of all sizes.

    Attributes:
        func: takes rows, arrays of the model, results.
        arrays: the arrays to pass for the model, by the names of its parameters.
        columns: (T, W), which columns of the results "per_tree" and "apply" belong to each tree of
            the source model, see `results.columns_of_trees`.
    """

    func: tirx.PrimFunc
    arrays: dict[str, Array]
    columns: Array


def lower_for_batches(request: BuildRequest) -> BatchFunction:
    """Lower a forest into one function for all batch sizes.

    Args:
        request: a request with one output.

    Raises:
        UnsupportedModel, ScheduleError, BuildError, InputError: see `compiler.compile_forest`.
    """
    laid_out = lay_out(request)
    lowered = compiler.lower_request(request, laid_out)
    (output,) = request.outputs
    by_name = {var.name_hint: func for var, func in lowered.after.functions.items()}
    names = name_functions(request.schedules) if output == SUMS else {1: output}
    prepare = PREPARE.get(request.target.kind, lambda func: func)
    parts = [
        (smallest, prepare(by_name.get(name + PARALLEL, by_name[name])), laid_out.arguments[name])
        for smallest, name in names.items()
    ]
    return BatchFunction(*choose_by_rows(parts), laid_out.columns)


def leave_out_memberships(request: BuildRequest) -> BuildRequest:
    """Remove schedules whose rows need membership columns, which only Python code can append.

    Batches of a removed schedule go to that for the next smaller batches, or if there is none, for
    the next larger ones.

    Raises:
        UnsupportedModel: no schedule is left.
    """
    forest, schedules = request.forest, request.schedules
    kept = {k: sch for k, sch in schedules.items() if not takes_memberships(sch.layout, forest)}
    if not kept:
        names = sorted({sch.layout for sch in schedules.values()})
        raise UnsupportedModel(
            f"relax.tvm_forest.predict: argument 'model': rows of '{forest.source}' need columns "
            f"of memberships in sets of categories for the layout {names[0]!r}; give a schedule "
            "with a layout that codes rows, such as represent_as('ranked')"
        )
    first = min(kept)
    return replace(request, schedules={1 if k == first else k: x for k, x in kept.items()})


def choose_by_rows(
    parts: list[tuple[int, tirx.PrimFunc, list[Array]]],
) -> tuple[tirx.PrimFunc, dict[str, Array]]:
    """Combine functions into one that selects among them by the number of rows.

    Args:
        parts: for each function, in ascending order: its smallest batch, the function, its arrays.

    Returns:
        The function, and its arrays by the names of their parameters.
    """
    first = parts[0][1]
    rows, results = first.params[0], list(first.params[1 + int(first.attrs[MODEL]) :])
    params: dict[int, Any] = {}  # by the identity of the array
    arrays: dict[str, Array] = {}
    body, bound = None, 0
    for smallest, func, model in reversed(parts):
        own = func.params[1 : 1 + len(model)]
        swaps = dict(zip(func.params[1 + len(model) :], results, strict=True))
        swaps |= {func.params[0]: rows, func.params[0].shape[0]: rows.shape[0]}
        for array, buffer in zip(model, own, strict=True):
            if id(array) not in params:
                name = buffer.name if buffer.name not in arrays else f"{buffer.name}_{len(arrays)}"
                params[id(array)], arrays[name] = buffer, array
            swaps[buffer] = params[id(array)]
        part = mark_part(replace_vars(func.body, swaps))
        body = part if body is None else tirx.IfThenElse(rows.shape[0] < i64(bound), part, body)
        bound = smallest
    attrs = first.without_attr(TWIN).attrs
    func = tirx.PrimFunc([rows, *params.values(), *results], body, first.ret_type, attrs)
    func = func.with_attr({OP_PATTERN: OPAQUE, IS_SCHEDULED: True, MODEL: len(arrays)})
    return func, arrays


def hide_buffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function some of whose buffers are views, which TVM's pipeline does not analyse.

    TVM shrinks a buffer to the part that is accessed. If the address of an element is passed to a
    function that reads further elements, TVM would keep only the first one. For large buffers with
    indices that are loaded from memory, such as bit planes, the analysis would take seconds. Both
    kinds of buffers become views of other memory.
    """
    accesses = find_all(func.body, tvm.ir.TensorLoad), find_stores(func.body)
    places = [(x.source, x.indices) for x in accesses[0]]
    places += [(x.buffer, x.indices) for x in accesses[1]]
    addressed = {call.args[0].source for call in find_calls(func.body, ADDRESS_OF)}
    indirect = {buffer for buffer, at in places if any(find_all(i, tvm.ir.TensorLoad) for i in at)}

    def hide(statement: tirx.AllocBuffer) -> tirx.Stmt:
        buffer, item = statement.buffer, tvm.DataType(statement.buffer.dtype).itemsize
        size = prod(buffer.shape, start=i64(1))  # for all rows it is an expression
        is_small = isinstance(size, tirx.IntImm) and int(size) * item <= STACK_BYTES
        hidden = buffer in addressed or (buffer in indirect and not is_small)
        if not hidden or buffer.scope() != "global":
            return statement
        memory = tirx.decl_buffer((size,), buffer.dtype, "memory")
        return tirx.SeqStmt([tirx.AllocBuffer(memory), tirx.DeclBuffer(buffer, data=memory.data)])

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, hide)))
