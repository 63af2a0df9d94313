"""The Relax operator `relax.tvm_forest.predict`.

takes: rows, a model as a constant, attributes; gives: a call, its type, its name in TVMScript.

    R.tvm_forest.predict(rows, model, outputs=["margin", "label"], schedule={}, exact=True)

Attributes of a call:
    outputs     names from `outputs.OUTPUTS`; for several, the call returns a tuple.
    schedule    JSON texts of schedules, each by its smallest batch; empty for the default schedules
                of the target that the module is compiled for.
    exact       whether a schedule that adds leaves in another order than the model is refused.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op, register_op_attr

from .. import frontends
from ..errors import ForestError, InputError
from ..forest import Forest
from ..schedule_prims import Schedule
from ..schedule_prims.batches import Schedules, arrange_by_batch
from ..search.records import load_schedules
from ..target import Target
from ..tir_gen.internals.names import DICT_ATTRS, INFER_TYPE, PURITY, REGISTER_OP
from ..tir_gen.internals.replacing import put_word
from .model import from_constant, to_constant
from .outputs import check_outputs, type_of

NAME = "relax.tvm_forest.predict"
WHERE = f"{NAME}: argument"


def predict(
    rows: relax.Expr,
    model: Any,
    outputs: str | Sequence[str] = "value",
    schedule: Schedules | Mapping[int | str, str] | None = None,
    exact: bool = True,
    records: str | os.PathLike[str] | None = None,
) -> relax.Call:
    """Return a call of the operator, to be emitted into a Relax function.

    Emitting it raises InputError or UnsupportedModel if the rows have another shape or dtype, an
    output is unknown, or the model does not have it.

    Args:
        rows: tensor (n, F) of the model's `row_dtype`; NaN is a missing value.
        model: a model that `tvm_forest.load` accepts, or the constant of it by `to_constant`.
        outputs: one name, or several, of "margin", "value", "probability", "label", "leaf" and
            "per_tree"; see `tvm_forest.relax.outputs`.
        schedule: schedules as in `tvm_forest.build`, or their JSON texts; None for the default ones
            of the target that the module is compiled for.
        exact: refuse a schedule that adds leaves in another order than the model does.
        records: path of a file that `tvm_forest.tune` has written on this machine for its CPU; its
            fastest schedules are used. Not together with `schedule`.

    Returns:
        Call: a tensor, or a tuple of them if `outputs` is a sequence of several.

    Raises:
        ModelFormatError, UnsupportedModel: see `tvm_forest.load`.
        InputError: the records have no entry for this model and machine, or schedules are given
            too.
        ScheduleError: an object or a key in `schedule` is invalid.
    """
    if records is not None:
        schedule = _read_records(records, model, schedule)
    constant = model if isinstance(model, relax.Expr) else to_constant(frontends.load(model))
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    attrs = tvm.ir.make_node(
        DICT_ATTRS, outputs=names, schedule=_to_texts(schedule), exact=bool(exact)
    )
    return relax.Call(Op.get(NAME), [rows, constant], attrs)


def _read_records(records: Any, model: Any, schedule: Any) -> dict[int, Schedule]:
    if schedule is not None:
        raise InputError(f"{WHERE} 'records': a schedule is given as well; leave one of them out")
    forest = from_constant(model) if isinstance(model, relax.Expr) else frontends.load(model)
    return load_schedules(records, forest, Target())


def _to_texts(schedule: Any) -> dict[str, str]:
    if not schedule:
        return {}
    if isinstance(schedule, Mapping) and all(isinstance(x, str) for x in schedule.values()):
        return {str(key): str(text) for key, text in schedule.items()}
    return {str(k): sch.to_json() for k, sch in arrange_by_batch(schedule, NAME).items()}


def read_schedules(call: relax.Call) -> dict[int, Schedule] | None:
    """Return the schedules of a call by their smallest batch; None for the default ones.

    Raises:
        ScheduleError: a text is not a schedule, or a key is not a number of rows.
    """
    texts = call.attrs["schedule"]
    if not texts:
        return None
    keyed = {
        int(k) if str(k).isdigit() else k: Schedule.from_json(str(x)) for k, x in texts.items()
    }
    return arrange_by_batch(keyed, NAME)


def read_outputs(call: relax.Call) -> list[str]:
    """Return the names of the outputs of a call."""
    return [str(name) for name in call.attrs["outputs"]]


# -- the type of a call ---------------------------------------------------------------------------


def _infer_type(call: relax.Call, bb: relax.BlockBuilder) -> Any:
    forest = from_constant(call.args[1])
    outputs = read_outputs(call)
    check_outputs(forest, outputs)
    n, vdevice = check_rows(forest, call.args[0])
    kinds = [type_of(forest, name, n, vdevice) for name in outputs]
    return kinds[0] if len(kinds) == 1 else relax.TupleType(kinds)


def check_rows(forest: Forest, rows: relax.Expr) -> tuple[Any, Any]:
    """Check the rows of a call; return their number and their VDevice.

    Raises:
        InputError: the rows are not a matrix of the model's width and dtype.
    """
    kind = rows.ty
    wanted = f"({'n'}, {forest.row_width}) {forest.row_dtype}"
    shape = getattr(kind, "shape", None)
    if not isinstance(kind, relax.TensorType) or kind.ndim != 2 or shape is None:
        raise InputError(
            f"{WHERE} 'rows': expected a tensor {wanted}, got {kind}; give it that shape, by "
            "relax.op.reshape or match_cast"
        )
    n, width = shape.values
    if not isinstance(width, tvm.tirx.IntImm) or int(width) != forest.row_width:
        raise InputError(f"{WHERE} 'rows': expected {wanted}, got {width} columns")
    dtype = str(kind.dtype.dtype)
    if dtype != forest.row_dtype:
        raise InputError(
            f"{WHERE} 'rows': expected {wanted}, got {dtype}; cast them with relax.op.astype"
        )
    return n, kind.vdevice


def register() -> None:
    """Register the operator, and our exceptions, with TVM, once per process.

    TVM passes errors from Python on by the names of their classes; unknown classes become
    RuntimeError.
    """
    for error in ForestError.__subclasses__():
        tvm_ffi.register_error(f"tvm_forest.{error.__name__}", error)
    register_operator(
        predict,
        "What a decision forest predicts.",
        {"rows": "one row of features each", "model": "the forest, in an archive of tvm_forest"},
        _infer_type,
    )


def register_operator(
    function: Any,
    description: str,
    arguments: dict[str, str],
    infer_type: Any,
    **attributes: Any,
) -> None:
    """Register a pure operator `relax.tvm_forest.<function>` with TVM, once per process.

    Args:
        function: function that returns a call; `R.tvm_forest.<function>` in TVMScript.
        description: description of the operator, for TVM.
        arguments: descriptions of its arguments, by name.
        infer_type: function of a call and a block builder that returns the type.
        attributes: further attributes by TVM's names, such as FLegalize.
    """
    name = f"relax.tvm_forest.{function.__name__}"
    if name in Op.list_op_names():
        return
    tvm.get_global_func(REGISTER_OP)(name, description)
    op = Op.get(name)
    op.set_num_inputs(len(arguments))
    for argument, text in arguments.items():
        op.add_argument(argument, "Expr", text)
    attributes |= {INFER_TYPE: infer_type, PURITY: True}
    for key, value in attributes.items():
        register_op_attr(name, key, value)
    from tvm.relax.script import parser

    words = getattr(relax.script, "tvm_forest", types.SimpleNamespace())
    setattr(words, function.__name__, function)
    put_word("tvm_forest", words, (relax.script, parser))
