"""What a child does for a GPU, and for the threads of one that run on the CPU ("simt").

takes: a schedule as text; gives: `CallTimes`, those of the GPU by its own events.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

import numpy as np

from ...errors import BuildError, DeviceError, InputError
from ...forest import Array
from ...schedule_prims import Schedule
from ...target import Target
from ..records import REAL_GPUS
from . import measure
from .child import Child, Failure

OPEN_SECONDS = 60.0
"""Time to open a GPU."""


def identify_in(child: Child, target: Target) -> str:
    """Return what times depend on beside the target, see `identify_gpu`; "" for "simt".

    Raises:
        DeviceError: no GPU, no driver, or no compiler.
        InputError: kernels of the target are not run by this package.
    """
    if target.is_elsewhere:
        raise InputError(
            f"tune: argument 'target': {target.to_dict()} is another machine, whose code does not "
            "run here; run tvm-forest serve there, and give remote="
        )
    if target.kind == "opencl":
        raise InputError(
            "tune: argument 'target': kernels for 'opencl' are text that is not run here; use "
            "'cuda', 'rocm' or 'simt'"
        )
    if target.kind not in REAL_GPUS:
        return ""
    answer = child.call(open_gpu, target, seconds=OPEN_SECONDS)
    if isinstance(answer, Failure):
        raise DeviceError(f"tune: {answer.reason.removeprefix('refused: ')}")
    return str(answer)


def open_gpu(target: Target) -> str:
    """Return the `identity` of a GPU, once it is found and can be compiled for.

    Raises:
        DeviceError: no GPU, no driver, or no compiler.
    """
    backend = _backend(target)
    driver = backend.open()
    if target.kind == "cuda":
        backend.translate("", driver.architecture, driver.version)
    return str(driver.identity)


def identify_gpu(target: Target) -> str:
    """Return the `identity` of the GPU of a target; "" if it has none, or none is here."""
    with suppress(DeviceError):
        return str(_backend(target).open().identity) if target.kind in REAL_GPUS else ""
    return ""


def _backend(target: Target) -> Any:
    from ...targets.machine_code import KERNEL_TARGETS

    return KERNEL_TARGETS[target.kind].backend(target)


def measure_candidate(schedule: str, batch: int, best: float) -> measure.CallTimes:
    """Build a schedule, compare it with the reference walk, and time it.

    Margins must be equal to the bit, or as near as another order of additions leaves them. Rows lie
    in the memory of the GPU already, and the time is what its events say. A call of the driver that
    fails may spoil all later ones of the process, so it ends this one.

    Args: those of `measure.measure_candidate`.

    Raises:
        ScheduleError, BuildError: it cannot be built, or its margins are wrong.
        RuntimeError: it cannot be run.
    """
    try:
        calls = _make_calls(Schedule.from_json(schedule), batch)
        return measure.time_beside_fastest(calls, batch, best)
    except DeviceError as error:
        raise RuntimeError(str(error)) from None


def _make_calls(sch: Schedule, batch: int) -> measure.TimedCalls:
    """Build a schedule and compare it; return the calls to be timed."""
    from ...predictor.building import build
    from ...predictor.device import DevicePredictor

    setup = measure.current_setup()
    predictor: Any = build(setup.forest, sch, setup.target, exact=sch.keeps_order)
    if sch.keeps_order:
        measure.check_margins(setup, predictor.predict_margin, batch, parallel=False)
    else:
        check_near_margins(predictor.predict_margin(setup.checks), setup.margins, _bound_margins())
    batches = measure.cut_batches(setup.pool, batch)
    if not isinstance(predictor, DevicePredictor):
        return measure.TimedCalls(predictor.predict_margin, batches)
    rows_on_gpu = [predictor.put(rows) for rows in batches]
    clock = GpuClock(predictor.library.executor.driver)
    return measure.TimedCalls(predictor.start, rows_on_gpu, clock)


class GpuClock:
    """Seconds of a GPU since the clock was made, on its default stream, for which it waits."""

    def __init__(self, driver: Any) -> None:
        """Begin now."""
        self._driver, self._last, self._spent = driver, driver.mark(0), 0.0

    def __call__(self) -> float:
        """Return the time behind all work so far."""
        self._spent += self._driver.seconds(self._last, self._driver.mark(0))
        self._last = self._driver.mark(0)
        return self._spent


@functools.cache
def _bound_margins() -> Array:
    """Return how far two orders of one sum can be apart: 2 (T + 1) u (|base| + sum of |leaf|)."""
    setup = measure.current_setup()
    forest, rows = setup.forest, setup.checks
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    sums = np.zeros((len(rows), forest.n_outputs)) + np.abs(forest.base_score)
    if forest.has_vectors:
        sums += leaves.sum(axis=1)
    else:
        np.add.at(sums.T, forest.tree_class, leaves.T)
    return 2 * (forest.n_trees + 1) * np.finfo(forest.sum_dtype).eps / 2 * sums


def check_near_margins(results: Array, margins: Array, bound: Array) -> None:
    """Compare margins (R, C) with those of the reference, which may differ by `bound`.

    Raises:
        BuildError: they differ by more; names the row.
    """
    results = results.reshape(margins.shape)
    with np.errstate(invalid="ignore"):
        near = np.abs(results.astype(np.float64) - margins) <= bound
    same = (results == margins) | (np.isnan(results) & np.isnan(margins))
    wrong = ~(near | same).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BuildError(
            f"tune: row {row} of {len(results)}: margin {results[row]} is further from the "
            f"reference {margins[row]} than another order of additions explains; please report "
            "this schedule"
        )
