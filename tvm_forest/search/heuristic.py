"""Chooses the default schedules, and explains the choice.

takes: Forest, Target; gives: Schedules by the smallest batch they serve; sentences.

For a CPU, the schedule of a batch is the point of its space with the lowest price in `cost`. It
serves larger batches too, until another point is cheaper by more than the factor `ALIKE`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, pairwise

import numpy as np

from ..errors import ScheduleError
from ..forest import Array, Forest
from ..schedule_prims import Schedule
from ..schedule_prims.batches import arrange_by_batch, count_steps_of_a_thread, select_schedule
from ..target import Target
from .cost import price, price_parts, price_spaces
from .gpu_rules import choose_gpu_schedule, choose_gpu_schedules
from .layout_fit import fitting_layouts, is_too_large_for_tiles
from .space import (
    BLOCKS,
    SHARED_BATCH,
    Choice,
    Point,
    ProblemSize,
    Space,
    number_points,
    write_schedule,
)
from .workload import Workload, new_schedule

__all__ = ["default_schedules", "explain", "find_spaces", "hop_schedule", "new_schedule"]

LOG = logging.getLogger(__name__)

BATCHES = (1, 8, 16, 32, 64, 128, 512, 2048)
"""Batch sizes for which the cheapest point is chosen."""

ALIKE = 1.05
"""Ratio to the cheapest price up to which the previous batch size's point is kept,
since every further point is more code to compile."""

EARLIER = 1.1
"""Ratio of the expected times of a batch in small and large blocks, from which on it takes large
ones."""

SHARED_NANOSECONDS = 50_000
"""Least expected time of the largest batch of a schedule for fewer than `SHARED_BATCH` rows, on one
thread, for which its function is compiled for several threads too."""

ROW_NANOSECONDS = 20_000
"""Least expected time of one row, on one thread, for which a function that shares its trees among
threads is compiled."""

SHOWN = 3
"""Number of points that `explain` compares."""


def default_schedules(forest: Forest, target: Target) -> dict[int, Schedule]:
    """Return the default schedules, by the smallest batch that each serves.

    On a CPU of several cores, those that serve batches of 64 rows or more share rows among threads,
    and those of which a smaller batch takes long. The others run on one thread, so that they need
    not be compiled twice, with threads and without.
    """
    return default_schedules_for(Workload.of(forest, target))


def default_schedules_for(work: Workload) -> dict[int, Schedule]:
    """Return the `default_schedules` of a workload, whose counts may be known already."""
    if work.target.on_gpu:
        return choose_gpu_schedules(work)
    return arrange_by_batch({k: choice.write(work) for k, choice in choose(work).items()})


def choose_points(work: Workload) -> set[Point]:
    """Return the points of the default schedules of a model."""
    chosen, several = choose(work).values(), work.target.cores > 1
    return {x.point._replace(parallel=x.shared if several else "") for x in chosen}


def write_points(work: Workload, points: Iterable[Point]) -> list[Schedule]:
    """Return the schedules of those points that the model's spaces contain."""
    layouts, tiled = fitting_layouts(work), not is_too_large_for_tiles(work)
    written = list[Schedule]()
    for point in points:
        if point.layout in layouts and (tiled or point.tile == 1):
            with suppress(ScheduleError):  # what a space leaves out
                written.append(write_schedule(ProblemSize.of(work), point))
    return written


def hop_schedule(forest: Forest, target: Target) -> Schedule:
    """Return the cheapest schedule, for the largest batches, of those that walk node by node.

    On a GPU it is the one that gives every row a thread.
    """
    work = Workload.of(forest, target)
    if work.target.on_gpu:
        return choose_gpu_schedule(work)
    points = price_points(work, BATCHES[-1])
    by_nodes = ((p, sch) for _, p, sch in points if type(p.walks) is int and p.tile == 1)
    point, sch = next(by_nodes)
    return Choice(point, sch, "rows").write(work)


def choose(work: Workload) -> dict[int, Choice]:
    """Return the choices, by the smallest of `BATCHES` that each serves, as the module says."""
    chosen, last = dict[int, Choice](), 0
    spaces = [Space(work, work.start, batch, threads=False) for batch in BATCHES]
    for batch, space, prices in zip(BATCHES, spaces, price_spaces(spaces), strict=True):
        least, point, sch = next(_list_by_price(space, prices))
        again = {k: _price_again(x.point, space, prices) for k, x in chosen.items()}
        if not last or again[last] > ALIKE * least:
            known = min(again, key=again.__getitem__, default=0)
            is_known = bool(known) and again[known] <= least
            chosen[batch] = chosen[known] if is_known else Choice(point, sch)
            last = batch
            LOG.debug("from %d rows on: %s, %.3g ns a row", batch, " ".join(_name(point)), least)
        if batch >= SHARED_BATCH:
            is_alone = work.target.cores == 1
            shared = chosen[last] if is_alone else _cut_into_blocks(work, chosen[last])
            chosen[last] = shared._replace(shared="rows")
    chosen = _begin_earlier(work, chosen)
    if work.target.cores == 1:
        return chosen
    return _share_trees(work, _share_long_batches(work, chosen))


def _begin_earlier(work: Workload, chosen: dict[int, Choice]) -> dict[int, Choice]:
    """Return choices, of which those with larger blocks of bit planes begin where they take less.

    A block takes as long if it is partly filled. So 65 rows in blocks of 64 take as long as 128,
    which is nearly twice as long as a block of 128.
    """
    moved = {1: chosen[1]}
    for before, begin in pairwise(chosen):
        size, choice = chosen[before].schedule.sliced, chosen[begin]
        if not size or not choice.schedule.sliced:
            moved[begin] = choice
            continue
        others = list(reversed(moved.values()))
        tried = range(-(-before // size) * size + 1, begin, size // 2)
        earlier = (rows for rows in tried if _takes_less(work, choice, others, rows))
        moved[next(earlier, begin)] = choice
    return moved


def _takes_less(work: Workload, choice: Choice, others: list[Choice], rows: int) -> bool:
    """Return whether a batch takes clearly less time by a choice than by any of some others."""
    least = EARLIER * _expect(work, choice, rows)
    return all(least <= _expect(work, other, rows) for other in others)


def _expect(work: Workload, choice: Choice, rows: int) -> float:
    """Return the expected time of a batch, in which every block of bit planes counts as full."""
    size = choice.schedule.sliced
    whole = -(-rows // size) * size if size else rows
    return whole * price(choice.point, work, size or rows)


def _share_long_batches(work: Workload, chosen: dict[int, Choice]) -> dict[int, Choice]:
    """Return choices, shared among threads if the largest batch that they serve takes long."""
    shared = dict[Point, Choice]()
    for begin, end in pairwise(chosen):
        choice = _cut_into_blocks(work, chosen[begin])
        if begin < SHARED_BATCH and _takes_long(work, choice, end - 1):
            shared[chosen[begin].point] = choice._replace(shared="rows")
    return {begin: shared.get(choice.point, choice) for begin, choice in chosen.items()}


def _share_trees(work: Workload, chosen: dict[int, Choice]) -> dict[int, Choice]:
    """Return choices, with one for single rows whose trees threads share, if a row takes long."""
    choice = chosen[1]
    steps = work.hops + work.forest.n_trees
    is_large = steps >= 2 * count_steps_of_a_thread(choice.schedule)
    if not is_large or price(choice.point, work, 1) < ROW_NANOSECONDS:
        return chosen
    with suppress(ScheduleError):
        point = choice.point._replace(parallel="trees")
        if write_schedule(ProblemSize.of(work), point).keeps_order:
            return {1: choice._replace(shared="trees"), 2: choice, **dict(list(chosen.items())[1:])}
    return chosen


def _cut_into_blocks(work: Workload, choice: Choice) -> Choice:
    """Return a choice with a loop over rows outside, as threads need; small batches may have none.

    That costs no time on one thread.
    """
    if choice.schedule.nest.children[0].kind == "batch":
        return choice
    point = choice.point._replace(block=BLOCKS[0])
    sch = Space(work, work.start, BLOCKS[0], threads=False).schedule(point)
    return choice if sch is None else Choice(point, sch, choice.shared)


def _takes_long(work: Workload, choice: Choice, batch: int) -> bool:
    """Return whether several threads are worth their code for a batch.

    It is also large enough by the rule of the predictor, which does not know the price. Blocks are
    small: the code of one of 32 rows, in vectors, takes a sixth longer if threads can share it.
    """
    steps, block = batch * (work.hops + work.forest.n_trees), max(1, choice.point.block)
    is_large = block < batch and steps >= 2 * count_steps_of_a_thread(choice.schedule)
    return (
        is_large
        and block <= BLOCKS[0]
        and batch * price(choice.point, work, batch) >= SHARED_NANOSECONDS
    )


def price_points(work: Workload, batch: int) -> Iterator[tuple[float, Point, Schedule]]:
    """Yield (price, point, schedule) of all points for a batch on one thread, cheapest first."""
    space = Space(work, work.start, batch, threads=False)
    yield from _list_by_price(space, price_spaces([space])[0])


def _list_by_price(space: Space, prices: Array) -> Iterator[tuple[float, Point, Schedule]]:
    """Yield (price, point, schedule) of those points that have a schedule, cheapest first."""
    points = space.candidates()
    for at in np.argsort(prices, kind="stable").tolist():
        sch = space.schedule(points[at])
        if sch is not None:
            yield float(prices[at]), points[at], sch


def _price_again(point: Point, space: Space, prices: Array) -> float:
    """Return the price that a point has for the batches of a space, which need not list it."""
    at = number_points(space.key).get(point)
    return price(point, space.facts, space.batch) if at is None else float(prices[at])


def find_spaces(
    forest: Forest, target: Target, batches: Iterable[int], n_jobs: int | None = None
) -> dict[int, Space]:
    """Return the space of a model for each size of batch; `n_jobs` as in `build`."""
    work = Workload.of(forest, target)
    defaults, threads = default_schedules_for(work), n_jobs != 1 and target.cores > 1
    chosen = {batch: select_schedule(defaults, batch) for batch in batches}
    return {
        batch: Space(work, sch if threads else sch.on_one_thread(), batch, threads)
        for batch, sch in chosen.items()
    }


def explain(forest: Forest, target: Target) -> list[str]:
    """Return lines that explain the default schedules: their prices, and the next best points.

    For a GPU, they are the schedules themselves.
    """
    work = Workload.of(forest, target)
    if work.target.on_gpu:
        schedules = choose_gpu_schedules(work).items()
        return [f"batches of {k} row{'s' * (k > 1)} and more:\n{sch}" for k, sch in schedules]
    lines = [f"nanoseconds a row on one thread, as on {work.machine.name}"]
    for batch in choose(work):
        lines.append(f"batches of {batch} row{'s' * (batch > 1)} and more:")
        lines += [
            f"  {_describe(work, batch, p)}" for _, p, _ in islice(price_points(work, batch), SHOWN)
        ]
    return lines


def _describe(work: Workload, batch: int, point: Point) -> str:
    """Return a text about a point and the parts of its price."""
    parts = price_parts(point, work, batch)
    shown = ", ".join(f"{name} {x:.3g}" for name, x in parts.items() if x)
    return f"{sum(parts.values()):8.3g}  {' '.join(_name(point))}: {shown}"


def _name(point: Point) -> Iterator[str]:
    """Yield the words that describe a point."""
    yield point.layout
    if point.tile > 1:
        yield f"in tiles of {point.tile}"
    if point.block:
        yield f"in blocks of {point.block}"
    is_count = type(point.walks) is int
    yield f"by {point.walks} {point.order} together" if is_count else f"by {point.walks}"
    if is_count:
        yield {"loop": "in a loop", "peel": "peeled"}[point.hops]
    if point.cache:
        yield {"stream": "fetched ahead", "pack": "over copied rows"}[point.cache]
