"""From a request to a predictor, and from scheduled functions to a library.

takes: BuildRequest; gives: Predictor; takes: IRModule; gives: Library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..gpu_runtime.library import KernelLibrary
from ..late import import_late
from ..laying_out.request import BuildRequest
from ..runtime import Library
from ..target import Target, parse_target
from .compiling import compile_or_load
from .predictor import Predictor

if TYPE_CHECKING:
    from .. import compiler
    from . import device, distant
else:
    compiler = import_late("tvm_forest.compiler")
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


def compile(
    module: Any, target: str | dict[str, Any] | Target = "llvm", *, exact: bool = True
) -> Library:
    """Compile scheduled functions, by what they say themselves.

    The functions are those of `lower(model).before`, scheduled by `tvm.s_tir.Schedule` and our
    annotations. They may come from TVMScript or from JSON, in a process that knows neither the
    model nor a Schedule:

        start = tvm_forest.new_schedule(model).represent_as("packed")
        sch = s_tir.Schedule(tvm_forest.lower(model, start).before["predict"])
        rows, trees = sch.get_loops("walk")
        blocks, rows = sch.split(rows, [None, 64])
        sch.reorder(blocks, trees, rows)
        sch.annotate(rows, "tvm_forest.interleave", 16)
        text = tvm.ir.save_json(sch.mod)
        library = tvm_forest.compile(tvm.ir.load_json(text))

    Args:
        module: an IRModule, all functions of which are scheduled so; or an `s_tir.Schedule`.
        target: see `build`.
        exact: see `build`.

    Returns:
        the functions by name, and those that use threads as "<name>_parallel". Each takes the rows,
        the addresses of the arrays of the model in an array of uint64, and arrays for results.

    Raises:
        ScheduleError: a function has no attributes of a model, a loop or an annotation cannot be
            read, or is refused as the directive of that name would be.
        InputError, BuildError: see `build`.
    """
    return compiler.compile_scheduled(module, parse_target(target), exact)
