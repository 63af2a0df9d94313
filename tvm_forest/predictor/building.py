"""Builds a predictor from a model.

takes: Forest, schedules and functions that make them, Target; gives: BuildRequest. takes:
BuildRequest; gives: Predictor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..forest import Forest
from ..layouts.laying_out import Compiled
from ..layouts.laying_out.request import BuildRequest
from ..schedule_prims.batches import Edited, Schedules, edit
from ..system.late import import_late
from ..target import Target
from .compiling import compile_or_load
from .predictor import Predictor

if TYPE_CHECKING:
    from .. import compiler
    from ..runtime.gpu import library as kernels
    from ..search import heuristic
    from . import device, distant
else:
    compiler = import_late("tvm_forest.compiler")
    kernels = import_late("tvm_forest.runtime.gpu.library")
    heuristic = import_late("tvm_forest.search.heuristic")
    device = import_late("tvm_forest.predictor.device")
    distant = import_late("tvm_forest.predictor.distant")


def edit_schedule(given: Edited, forest: Forest) -> Schedules:
    """Return the schedules that a user gives, all as Schedules of this package.

    A function is called with the forest's `new_schedule`, and replaced by what it returns; a
    schedule written with TVM is converted.

    Raises:
        ScheduleError: a function does not return a schedule, or one of TVM's cannot be converted.
    """
    start = heuristic.new_schedule
    return edit(given, lambda: start(forest), lambda x: compiler.take_schedule(x, forest))


def plan(
    forest: Forest, schedule: Edited | None, target: Target, *, exact: bool = False
) -> BuildRequest:
    """Return the build request, which also keeps the schedules as they were given.

    Args:
        forest, schedule, target, exact: see `tvm_forest.build`.

    Raises:
        UnsupportedModel, ScheduleError: see `BuildRequest.of`.
    """
    made = None if schedule is None else edit_schedule(schedule, forest)
    return replace(BuildRequest.of(forest, made, target, exact=exact), given=schedule)


def build(request: BuildRequest) -> Predictor:
    """Compile a request into a predictor.

    Raises:
        ScheduleError: a schedule does not fit the machine, or does not walk as its layout must.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    return to_predictor(*compile_or_load(request))


def to_predictor(request: BuildRequest, compiled: Compiled) -> Predictor:
    """Return the compiled functions as a predictor.

    It is a DevicePredictor for a GPU, a DistantPredictor for another machine, else a Predictor.
    """
    kind: type[Predictor] = Predictor
    if request.target.on_gpu and isinstance(compiled.library, kernels.KernelLibrary):
        kind = device.DevicePredictor
    if request.target.is_elsewhere:
        kind = distant.DistantPredictor
    return kind(request.settled(), compiled)
