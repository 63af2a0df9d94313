"""Selects the schedule that serves a batch of a given size.

takes: a Schedule, or several by the smallest batch that each serves; gives: these in order of batch
size, the schedule for a number of rows, names of compiled functions, how many steps a thread takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ScheduleError
from ..layouts import BIT_PLANES, OCTETS, PERMUTED
from .schedule import Schedule

if TYPE_CHECKING:
    from tvm import s_tir

PARALLEL = "_parallel"
"""Suffix of the names of functions that use threads; others run on the caller's thread."""

STEPS_BY_HOPS = 10_000
"""Least number of steps of each thread that shares a batch, where walks go hop by hop. A step is a
hop or a leaf of a row in a tree. Here each waits for memory, 0.5 to 1.4 ns, so they take about 10
us; to wake another thread takes 3 us, and longer where other work keeps its core busy."""

STEPS_BY_VECTORS = {OCTETS: 50_000, PERMUTED: 50_000, BIT_PLANES: 125_000}
"""The same where one instruction takes many steps, by layout: 0.2 to 0.3 ns for each, in bit planes
0.03 to 0.1 ns. A row takes 900 steps through 100 trees of depth 8."""

Schedules = Schedule | Mapping[int, Schedule]
"""One schedule for all batches, or several by the smallest batch, such as {1: a, 8: b, 64: c}."""

Edit = Callable[[Schedule], Schedule]
"""A function, such as a recipe, that turns the schedule without directives into another one."""

Given: TypeAlias = "Schedule | Edit | s_tir.Schedule"
Edited: TypeAlias = "Given | Mapping[int, Given]"
"""Everything that users may pass as a schedule: also functions, and schedules of TVM."""


def edit(given: Edited, start: Callable[[], Schedule], take: Callable[[Any], Any]) -> Any:
    """Replace functions by the schedules they return, and TVM's schedules by ours.

    Args:
        given: schedules and functions; `arrange_by_batch` refuses anything else later.
        start: makes the schedule without directives.
        take: converts an `s_tir.Schedule` to a Schedule.

    Returns:
        The schedule, or for a mapping a dict of the schedules with the same keys.

    Raises:
        ScheduleError: a function does not return a schedule, or `take` refuses TVM's schedule.
    """
    if isinstance(given, Mapping):
        return {key: edit(value, start, take) for key, value in given.items()}
    if type(given).__module__.partition(".")[0] == "tvm":
        return take(given)
    if not callable(given):
        return given
    made = given(start())
    if not isinstance(made, Schedule):
        what = f"the function gave {type(made).__name__} and no Schedule; return what the last"
        raise _error("build", f"{what} directive gives")
    return made


def arrange_by_batch(schedule: Schedules, where: str = "build") -> dict[int, Schedule]:
    """Return schedules by the smallest batch that each serves, in ascending order.

    Args:
        schedule: one for all batches, or several. A batch gets the greatest key that is at most its
            number of rows, so 1 must be a key; equal neighbours are merged.
        where: name of the argument in error messages.

    Raises:
        ScheduleError: the type is wrong, key 1 is missing, or a key is not a number of rows.
    """
    named = schedule if isinstance(schedule, Mapping) else {1: schedule}
    for key, sch in named.items():
        if type(key) is not int or key < 1:
            what = f"{key!r} is no number of rows; use whole numbers from 1 on as keys"
            raise _error(where, what)
        if not isinstance(sch, Schedule):
            at = f" at {key}" if isinstance(schedule, Mapping) else ""
            what = f"expected a Schedule{at}, got {type(sch).__name__}; make one with"
            raise _error(where, f"{what} tvm_forest.new_schedule(model)")
    if 1 not in named:
        have = ", ".join(map(str, sorted(named)))
        raise _error(where, f"no schedule for batches of 1 row (have: {have}); add the key 1")
    first_of_runs = (next(run) for _, run in groupby(sorted(named), key=named.__getitem__))
    return {key: named[key] for key in first_of_runs}


def _error(where: str, what: str) -> ScheduleError:
    return ScheduleError(f"{where}: argument 'schedule': {what}")


def select_schedule(schedules: Mapping[int, Schedule], rows: int) -> Schedule:
    """Return the schedule that serves a batch of `rows` rows."""
    keys = sorted(schedules)
    return schedules[keys[max(0, bisect_right(keys, rows) - 1)]]


def select_hop_schedule(schedules: Mapping[int, Schedule]) -> Schedule:
    """Return, of the schedules that do not walk by bits, the one for the largest batches.

    If there is none, return the schedule of the largest batches. Functions that return leaves are
    compiled with it: in bit planes, a few rows would cost as much as a whole block.
    """
    keys = sorted(schedules, reverse=True)
    hops = (key for key in keys if not schedules[key].sliced)
    return schedules[next(hops, keys[0])]


def name_functions(schedules: Mapping[int, Schedule]) -> dict[int, str]:
    """Return the name of the compiled function for batches from each size on.

    It is "predict" for the largest batches, and for example "predict_from_8" for others. Equal
    schedules share a function.
    """
    names = {schedules[max(schedules)]: "predict"}
    for smallest in sorted(schedules):
        names.setdefault(schedules[smallest], f"predict_from_{smallest}")
    return {smallest: names[sch] for smallest, sch in schedules.items()}


def count_steps_of_a_thread(sch: Schedule) -> int:
    """Return the least number of steps of each thread, if the number of threads is not given.

    It is inversely proportional to the time of a step.
    """
    return STEPS_BY_VECTORS.get(sch.layout, STEPS_BY_HOPS)


def rows_per_block(sch: Schedule, schedules: dict[int, Schedule]) -> int:
    """Return the rows of a bit-plane block of a schedule's function; 0 without such blocks.

    The rows of a batch beyond the last full block go to the function of smaller batches. If a
    schedule adds in another order, results would then depend on the batch, so this returns 0.
    """
    return sch.sliced if all(x.keeps_order for x in schedules.values()) else 0
