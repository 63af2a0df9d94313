"""Forests as modules of `tvm.relax.frontend.nn`, like `nn.Linear`.

takes: models; gives: modules for `export_tvm`.

    class Net(nn.Module):
        def __init__(self):
            self.trees = tvm_forest.relax.nn.ParameterForest("model.json", target)
            self.dense = nn.Linear(1, 3)

        def forward(self, x: nn.Tensor):
            return self.dense(self.trees(x))

    mod, params = Net().export_tvm(spec={"forward": {"x": spec.Tensor(["n", 12], "float32")}})
    tvm.compile(mod, target)          # params: trees.nodes, trees.leaf_value, ..., dense.weight

A `ParameterForest` holds the arrays of the compiled model as parameters. Their layout depends on
the schedules, and these on the target, so it needs the target of `tvm.compile` when it is created.
By default, the code runs on every x86-64 CPU. Compiling the module for a CPU that lacks an
instruction of the code raises an error, see `check_target`.

A `ConstantForest` is a call of the operator with the model as a constant; it needs no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from .. import frontends
from ..errors import InputError, UnsupportedModel
from ..passes.model_table import MODEL
from ..runtime.results import SUMS
from ..schedule_prims.batches import Schedules, arrange_by_batch
from ..target import Target
from .check_target import check_target, name_target
from .functions import BatchFunction
from .lowering import compute_outputs, lower_outputs
from .model import to_constant
from .operator import check_rows, predict
from .outputs import check_outputs
from .targets import from_tvm

WHERE = "tvm_forest.relax.nn.ParameterForest: argument"


class ParameterForest(nn.Module):
    """A forest whose arrays are parameters of the module.

    Arrays that the walk does not read remain constants: labels, the order of leaves, and the
    description of missing values.

    Args:
        model: a model that `tvm_forest.load` accepts.
        target: the CPU that the module will be compiled for: a target of TVM, its string or dict,
            or a `tvm_forest.Target`; None for every x86-64 CPU.
        schedule: how to evaluate the model, see `tvm_forest.build`; None for the default ones.
        outputs: a name, or several, see `tvm_forest.relax.outputs`; by default values (n, C).
        exact: refuse a schedule that adds leaves in another order than the model does.

    Raises:
        ModelFormatError: see `tvm_forest.load`.
        UnsupportedModel: see `tvm_forest.load`; or the model has no such output; or the target is
            a GPU.
        InputError: an output or a target is unknown.
        ScheduleError, BuildError: see `tvm_forest.build`.
    """

    def __init__(
        self,
        model: Any,
        target: tvm.target.Target | Target | str | dict[str, Any] | None = None,
        schedule: Schedules | None = None,
        outputs: str | Sequence[str] = "value",
        exact: bool = True,
    ) -> None:
        super().__init__()
        forest, machine = frontends.load(model), _read_target(target)
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        check_outputs(forest, names)
        given = arrange_by_batch(schedule, WHERE) if schedule else None
        self._forest, self._outputs, self._made_for = forest, names, name_target(machine)
        self._functions = lower_outputs(forest, names, given, machine, exact)
        self._names: dict[int, str] = {}  # of parameters, by the identity of the array
        for output, function in self._functions.items():
            prefix = "" if output == SUMS else f"{output}_"
            for name, array in function.arrays.items():
                if id(array) not in self._names:
                    self._names[id(array)] = self._add_parameter(prefix + name, array)

    def _add_parameter(self, name: str, array: Any) -> str:
        """Register an array as a parameter, and return its name."""
        while hasattr(self, name):
            name += "_"
        data = tvm.runtime.tensor(array)
        parameter = nn.Parameter(array.shape, str(data.dtype))
        parameter.data = data
        setattr(self, name, parameter)
        return name

    def to(self, dtype: str | None = None) -> None:
        """Do nothing: exact results need the model's own dtypes."""

    def forward(self, rows: nn.Tensor) -> nn.Tensor | tuple[nn.Tensor, ...]:
        """Return the outputs of the forest for some rows.

        Args:
            rows: (n, F) of the model's `row_dtype`; NaN is a missing value.

        Returns:
            A tensor, or a tuple of them if there are several outputs.

        Raises:
            InputError: the rows have another shape or dtype.
        """
        check_rows(self._forest, rows._expr)
        bb = relax.BlockBuilder.current()
        checked = bb.emit(check_target(rows._expr, self._made_for), "rows")
        args = (bb, self._forest, self._outputs, self._functions, checked, self._compute)
        return nn.op.wrap_nested(compute_outputs(*args), "forest")

    def _compute(
        self, function: BatchFunction, rows: Any, kinds: list[relax.TensorType]
    ) -> list[relax.Expr]:
        """Emit a call of a function with the parameters for its arrays; return its results."""
        func = function.func.without_attr("target").without_attr("global_symbol")
        arrays = [getattr(self, self._names[id(array)]) for array in function.arrays.values()]
        out = [nn.Tensor.from_ty(kind) for kind in kinds]
        given = [nn.Tensor(_expr=rows), *arrays]
        results = nn.op.tensor_ir_op(func.without_attr(MODEL), "forest", given, out)
        return [x._expr for x in (results if isinstance(results, tuple) else [results])]


class ConstantForest(nn.Module):
    """A forest as a call of `relax.tvm_forest.predict`, with the model as a constant.

    Args:
        model, outputs, schedule, exact: see `tvm_forest.relax.predict`.

    Raises:
        ModelFormatError, UnsupportedModel: see `tvm_forest.relax.predict`.
        InputError, ScheduleError: see there; raised by `forward`.
    """

    def __init__(
        self,
        model: Any,
        outputs: str | Sequence[str] = "value",
        schedule: Schedules | Mapping[int | str, str] | None = None,
        exact: bool = True,
    ) -> None:
        super().__init__()
        self._model = to_constant(frontends.load(model))
        self._attributes = outputs, schedule, exact

    def forward(self, rows: nn.Tensor) -> nn.Tensor | tuple[nn.Tensor, ...]:
        """Return the outputs; see `ParameterForest.forward`."""
        return nn.op.wrap_nested(predict(rows._expr, self._model, *self._attributes), "forest")


def _read_target(target: Any) -> Target:
    """Convert what `ParameterForest` takes as `target` to a Target, which must be a CPU.

    Raises:
        InputError: TVM does not know the target, or this package does not support it.
        UnsupportedModel: it is a GPU.
    """
    if isinstance(target, str | dict):
        try:
            target = tvm.target.Target(target)
        except (ValueError, TypeError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(f"{WHERE} 'target': TVM refuses {target!r}: {reason}") from None
    machine = target if isinstance(target, Target) else from_tvm(target)
    if machine.on_gpu:
        raise UnsupportedModel(
            f"{WHERE} 'target': {machine.kind!r} is a GPU, for which arrays cannot be parameters; "
            "use tvm_forest.relax.nn.ConstantForest"
        )
    return machine
