"""From a forest to a predictor.

takes: Forest, Schedule, Target; gives: Predictor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..forest import Forest
from ..forest.rewrites.canonical_form import canonicalize
from ..gpu_runtime.library import KernelLibrary
from ..late import import_late
from ..runtime import Library
from ..schedule_prims.batches import Schedules, arrange_by_batch
from ..target import Target
from .compiling import compile_or_load
from .predictor import Predictor

if TYPE_CHECKING:
    from . import device, distant
else:
    device = import_late("tvm_forest.predictor.device")
    distant = import_late("tvm_forest.predictor.distant")


def build(
    forest: Forest,
    schedule: Schedules | None,
    target: Target,
    exact: bool = True,
    signature: str | None = None,
) -> Predictor:
    """Compile a forest into a predictor.

    Args:
        forest: the model.
        schedule: how to evaluate it, see `arrange_by_batch`; made for `canonicalize(forest)`. None
            for the default ones.
        target: the machine.
        exact: refuse a schedule that adds leaves in another order than the model.
        signature: of the model if `forest` is what became of it, see `Predictor.forest`.

    Raises:
        ScheduleError: a schedule does not fit the model, or is not exact.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    given = None if schedule is None else arrange_by_batch(schedule)
    compiled, schedules, known = compile_or_load(forest, given, target, exact=exact)
    predictor_class = class_for(compiled.library, target)
    return predictor_class(compiled, canonicalize(forest), schedules, target, signature or known)


def class_for(library: Library, target: Target) -> type[Predictor]:
    """Return the class whose objects call the functions of a library, or say that nobody can."""
    if target.is_elsewhere:
        return distant.DistantPredictor
    return device.DevicePredictor if isinstance(library, KernelLibrary) else Predictor
