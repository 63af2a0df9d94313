"""Expands a call of `relax.tvm_forest.predict` into calls of compiled functions.

takes: a call of the operator, and a function that emits one call; gives: expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..forest import Forest
from ..forest.rules import ZERO
from ..layouts.laying_out.request import BuildRequest
from ..runtime.results import SUMS, Output, result_dtype, result_names
from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch
from ..search.heuristic import default_schedules, hop_schedule
from ..target import STATIC_SHARED_BYTES, Target
from .comparison import order_of, order_of_number
from .functions import BatchFunction, leave_out_memberships, lower_for_batches
from .model import from_constant, refuse_encoder, to_tensor_constant
from .operator import read_outputs, read_schedules
from .outputs import assemble, function_of

SHARED_ROWS = 512
"""Number of rows from which on threads share a batch: TVM's pool wakes all of its threads for every
parallel loop, however little there is to do."""

Compute = Callable[[BatchFunction, Any, list[relax.TensorType]], list[Any]]
"""Emits a call of a compiled function, given the rows and the types of its results, and returns the
results as expressions."""


def expand(bb: relax.BlockBuilder, call: relax.Call, target: Target, compute: Compute) -> Any:
    """Return the expression that replaces a call of the operator, for a target.

    Raises:
        ModelFormatError: see `from_constant`.
        UnsupportedModel, ScheduleError, BuildError, InputError: see `lower_outputs`.
    """
    forest, outputs = from_constant(call.args[1]), read_outputs(call)
    functions = lower_outputs(
        forest, outputs, read_schedules(call), target, bool(call.attrs["exact"])
    )
    return compute_outputs(bb, forest, outputs, functions, call.args[0], compute)


def lower_outputs(
    forest: Forest,
    outputs: list[str],
    schedules: dict[int, Schedule] | None,
    target: Target,
    exact: bool,
) -> dict[Output, BatchFunction]:
    """Return the functions that compute some outputs, by their names (see `function_of`).

    If `schedules` is None, they have the default schedules of the target.

    Raises:
        UnsupportedModel: rows would have to be encoded, or given membership columns, in Python.
        ScheduleError, BuildError, InputError: see `lower_for_batches`.
    """
    refuse_encoder(forest)
    schedules = schedules or choose_schedules(forest, target)
    request = BuildRequest.of(forest, schedules, target, exact=exact)
    request.check_machine()
    request = leave_out_memberships(request)
    return {
        name: lower_for_batches(request.with_outputs(name))
        for name in dict.fromkeys(map(function_of, outputs))
    }


def compute_outputs(
    bb: relax.BlockBuilder,
    forest: Forest,
    outputs: list[str],
    functions: dict[Output, BatchFunction],
    rows: Any,
    compute: Compute,
) -> Any:
    """Return the expression of an output, or a tuple of several, computed from rows.

    Args:
        bb: builder for the cleaning of rows, and for what turns results into outputs.
        forest: the model.
        outputs: names of the outputs.
        functions: the compiled functions that the outputs need, see `lower_outputs`.
        rows: expression (n, F), as users pass rows.
        compute: emits the calls of functions.
    """
    cleaned = clean_rows(bb, forest, rows)
    results = {
        name: compute(function, cleaned, types_of_results(forest, name, function, rows.ty))
        for name, function in functions.items()
    }
    parts = [
        assemble(bb, forest, name, results[function_of(name)], functions[function_of(name)].columns)
        for name in outputs
    ]
    return parts[0] if len(parts) == 1 else relax.Tuple(parts)


def choose_schedules(forest: Forest, target: Target) -> dict[int, Schedule]:
    """Return default schedules, by smallest batch, which TVM's own pipeline compiles correctly."""
    if target.kind == "rocm":  # neither shared memory nor more than 256 threads
        return {1: hop_schedule(forest, target).without("cache")}
    here = replace(target, shared_limit=STATIC_SHARED_BYTES)
    chosen = default_schedules(forest, here)
    ends = [*list(chosen)[1:], None]
    alone = {k for k, end in zip(chosen, ends, strict=True) if end and end <= SHARED_ROWS}
    return arrange_by_batch(
        {k: sch.on_one_thread() if k in alone else sch for k, sch in chosen.items()}
    )


def types_of_results(
    forest: Forest, output: Output, function: BatchFunction, rows: relax.TensorType
) -> list[relax.TensorType]:
    """Return the types of the results of the function `output` for these rows."""
    n = rows.shape.values[0]
    if output == SUMS:
        dtypes = [result_dtype(forest, name) for name in result_names(forest)]
        shape = (n, forest.n_outputs)
    else:
        dtypes = ["int32" if output == "apply" else forest.sum_dtype]
        shape = (n, int(function.func.params[-1].shape[1]))
    return [relax.TensorType(shape, dtype, vdevice=rows.vdevice) for dtype in dtypes]


def clean_rows(bb: relax.BlockBuilder, forest: Forest, rows: Any) -> Any:
    """Return rows whose missing values are all NaN, as `Forest.clean_rows` does."""
    if not forest.needs_cleaning:
        return rows
    may_be_zero = np.ones(forest.row_width, bool)
    may_be_zero[list(forest.zero_missing)] = False
    mark = partial(_mark_missing, forest)
    return bb.emit_te(mark, rows, to_tensor_constant(may_be_zero), primfunc_name_hint="clean")


def _mark_missing(forest: Forest, rows: te.Tensor, may_be_zero: te.Tensor) -> te.Tensor:
    """Replace all values that the model takes for missing by NaN, (n, F).

    Args:
        forest: the model.
        rows: (n, F).
        may_be_zero: bool (F,), False for the features whose zeros are missing values.
    """
    dtype = rows.dtype
    nan, zero = (tirx.const(float(x), dtype) for x in (np.nan, ZERO))

    def mark(r: Any, c: Any) -> Any:
        x = rows[r, c]
        missing = [tirx.all(tirx.abs(x) <= zero, tirx.Not(may_be_zero[c]))]
        if forest.missing is not None:
            number = order_of_number(forest.missing, dtype)
            missing.append(tirx.EQ(order_of(x), number))
        for feature, known in forest.compared_categories.items():
            orders = (order_of_number(category, dtype) for category in known)
            others = [tirx.NE(order_of(x), order) for order in orders]
            missing.append(tirx.all(c == feature, *others))
        return tirx.Select(tirx.any(*missing), nan, x)

    return te.compute(rows.shape, mark, name="cleaned")
