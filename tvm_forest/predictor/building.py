"""From a request to a predictor.

takes: BuildRequest; gives: Predictor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..gpu_runtime.library import KernelLibrary
from ..late import import_late
from ..laying_out.request import BuildRequest
from ..runtime import Library
from ..target import Target
from .compiling import compile_or_load
from .predictor import Predictor

if TYPE_CHECKING:
    from . import device, distant
else:
    device = import_late("tvm_forest.predictor.device")
    distant = import_late("tvm_forest.predictor.distant")


def build(request: BuildRequest) -> Predictor:
    """Compile what was asked for into a predictor.

    Raises:
        ScheduleError: a schedule does not fit the machine, or does not walk as its layout must.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    request, compiled = compile_or_load(request)
    return class_for(compiled.library, request.target)(request.settled(), compiled)


def class_for(library: Library, target: Target) -> type[Predictor]:
    """Return the class whose objects call the functions of a library, or say that nobody can."""
    if target.is_elsewhere:
        return distant.DistantPredictor
    return device.DevicePredictor if isinstance(library, KernelLibrary) else Predictor
