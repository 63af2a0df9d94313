"""What a build asks of a schedule: that it can do, on this machine, what the model needs.

takes: Forest, Schedule, Target; gives: nothing, or an error.
"""

from __future__ import annotations

from ..errors import ScheduleError
from ..forest import Forest
from ..target import Target
from .fitting import check_fit
from .memory import WALKED
from .schedule import Schedule

WHERE = "build: argument 'schedule'"


def check_order(forest: Forest, sch: Schedule, exact: bool) -> None:
    """Refuse schedules of another model, or that add leaves in an order that is not allowed.

    Raises:
        ScheduleError: as said.
    """
    check_fit("build", forest, sch)
    if sch.batch is not None:
        raise ScheduleError(
            f"{WHERE}: made for batches of {sch.batch} rows, but code is made "
            f"for any number; leave 'batch' out\n{sch}"
        )
    if forest.aggregate in ("min", "max") and not sch.keeps_order:
        raise ScheduleError(
            f"{WHERE}: it adds up parts of the forest, but the model takes the "
            f"{forest.aggregate} of its leaves; run rows in parallel, not trees\n{sch}"
        )
    if exact and not sch.keeps_order:
        raise ScheduleError(
            f"{WHERE}: it adds the trees in another order than the model, so "
            f"results differ in the last bits; allow that with exact=False\n{sch}"
        )


def check_device(sch: Schedule, target: Target) -> None:
    """Refuse loops for a GPU on a CPU, and the other way round.

    Raises:
        ScheduleError: as said.
    """
    mapped = next((loop for loop in sch.loops() if loop.gpu or loop.cache == "shared"), None)
    if not target.on_gpu and mapped is not None:
        raise ScheduleError(
            f"{WHERE}: '{mapped.name}' is for a GPU ({'; '.join(mapped.annotations())}), but the "
            "target is a CPU; use target 'cuda' or 'simt', or look at it with "
            f"tvm_forest.lower\n{sch}"
        )
    if not target.on_gpu:
        return
    parallel = next((loop for loop in sch.loops() if loop.parallel), None)
    if parallel is not None:
        raise ScheduleError(
            f"{WHERE}: '{parallel.name}' is parallel, which is for CPU threads, but the target is "
            f"{target.kind!r}; use gpu_dimension\n{sch}"
        )
    if not any(loop.gpu for loop in sch.loops()):
        raise ScheduleError(
            f"{WHERE}: no loop is mapped to the threads of a GPU, but the target is "
            f"{target.kind!r}; use gpu_dimension\n{sch}"
        )
    if any(loop.simdize in WALKED.values() for loop in sch.leaves()):
        raise ScheduleError(
            f"{WHERE}: layout {sch.representation!r} is for CPUs only; choose another with "
            f"represent_as\n{sch}"
        )
