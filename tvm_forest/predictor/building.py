"""From a forest to a predictor.

takes: Forest, Schedule, Target; gives: Predictor.
"""

from __future__ import annotations

from ..forest import Forest
from ..forest.rewrites.canonical_form import canonicalize
from ..gpu_runtime.library import KernelLibrary
from ..schedule_prims.batches import Schedules, arrange_by_batch
from ..target import Target
from ..targets import Library
from .compiling import compile_or_load
from .device import DevicePredictor
from .distant import DistantPredictor
from .predictor import Predictor


def build(
    forest: Forest,
    schedule: Schedules,
    target: Target,
    exact: bool = True,
    signature: str | None = None,
) -> Predictor:
    """Compile a forest into a predictor.

    Args:
        forest: the model.
        schedule: how to evaluate it, see `arrange_by_batch`; made for `canonicalize(forest)`.
        target: the machine.
        exact: refuse a schedule that adds leaves in another order than the model.
        signature: of the model if `forest` is what became of it, see `Predictor.forest`.

    Raises:
        ScheduleError: a schedule does not fit the model, or is not exact.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    schedules = arrange_by_batch(schedule)
    compiled = compile_or_load(forest, schedules, target, exact=exact)
    predictor_class = class_for(compiled.library, target)
    return predictor_class(
        compiled, canonicalize(forest), schedules, target, signature or forest.signature
    )


def class_for(library: Library, target: Target) -> type[Predictor]:
    """Return the class whose objects call the functions of a library, or say that nobody can."""
    if target.is_elsewhere:
        return DistantPredictor
    return DevicePredictor if isinstance(library, KernelLibrary) else Predictor
