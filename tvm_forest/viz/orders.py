"""Draws an order of walks: when each row walks through each tree, and on which thread.

takes: Schedule, a number of rows; gives: Picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..schedule_prims import Schedule
from ..schedule_prims.fitting import check_schedule
from ..schedule_prims.nest import Bound, Loop, Share
from .picture import LINE, SIZE, Picture, draw_squares

SHADES = 16
"""Number of shades for steps, from the first to the last, if there is one thread."""


class _DrawnWalk(NamedTuple):
    """One walk in the picture: its place, its time and its thread.

    Attributes:
        row, tree: the row, and the tree through which it walks.
        step: number of walks that its thread does before, counting interleaved walks once.
        thread: the values of the concurrent loops around it, which identify the thread.
    """

    row: int
    tree: int
    step: int
    thread: tuple[int, ...]


def order(schedule: Schedule, rows: int = 8, trees: int = 16) -> Picture:
    """Show at which step each row walks through each tree: rows downwards, trees to the right.

    Interleaved walks share a step. Each iteration of a concurrent loop has its own thread, with its
    own colour; the steps of all its threads begin when the walks before the loop have ended. In the
    text, the number of the thread precedes the step: "thread:step".

    Args:
        schedule: any schedule.
        rows: number of rows of the batch, 1 to 64.
        trees: largest number of trees to show, from the first one on, after the rewrites.

    Raises:
        ScheduleError: `schedule` is not a Schedule.
        InputError: `rows` is not from 1 to 64.
    """
    check_schedule("order", schedule)
    if not isinstance(rows, int) or not 1 <= rows <= 64:
        raise InputError(f"order: argument 'rows': expected 1 to 64, got {rows!r}; show fewer rows")
    walks = list(_list_walks(schedule, rows))
    names = sorted({walk.thread for walk in walks})
    shape = rows, min(trees, max(walk.tree for walk in walks) + 1)
    step, thread = np.zeros((2, *shape), int)
    for walk in walks:
        if walk.tree < trees:
            step[walk.row, walk.tree] = walk.step + 1
            thread[walk.row, walk.tree] = names.index(walk.thread)
    last = max(walk.step for walk in walks) + 1
    title = f"rows: {rows}, trees: {shape[1]}, steps: {last}"
    title += f", threads: {len(names)}" if len(names) > 1 else ""
    cells = [
        [f"{k}:{at}" if len(names) > 1 else f"{at}" for k, at in zip(*line, strict=True)]
        for line in zip(thread, step, strict=True)
    ]
    width = max(len(cell) for line in cells for cell in line) + 2
    text = "\n".join([title, *("".join(cell.rjust(width) for cell in line) for line in cells)])
    shade = -0.05 - 0.55 * np.floor(step * SHADES / (last + 1)) / SHADES
    colour = thread % 12 if len(names) > 1 else shade
    return Picture(text, lambda figure: _draw(figure, title, step, colour))


def _list_walks(sch: Schedule, rows: int) -> Iterator[_DrawnWalk]:
    """Yield all walks; a concurrent loop ends when its last iteration does."""
    leaves = {leaf.name for leaf in sch.leaves()}

    def run(loop: Loop, around: dict[str, int], thread: tuple[int, ...], now: int) -> Any:
        """Yield the walks of a loop that begins at step `now`; return the step after its last."""
        ends, together = [now], rows if loop.simdize else loop.interleave
        values = range(loop.start, _amount(loop.stop, rows), _amount(loop.step, rows) or 1)
        for iteration, value in enumerate(values):
            here = {**around, loop.name: value}
            if any(
                sum(here.get(x, 0) for x in guard.loops) >= _amount(guard.stop, rows)
                for guard in sch.guards
            ):
                continue
            own = (*thread, value) if loop.is_concurrent else thread
            begin = now if loop.is_concurrent else ends[-1]
            if loop.name in leaves:
                at = begin if loop.is_concurrent else now + iteration // together
                yield _walk(sch, loop, here, own, at)
                ends.append(at + 1)
                continue
            for child in loop.children:
                if child.case in (None, iteration):
                    begin = yield from run(child, here, own, begin)
            ends.append(begin)
        return max(ends)

    now = 0
    for loop in sch.nest.children:
        now = yield from run(loop, {}, (), now)


def _walk(
    sch: Schedule, leaf: Loop, here: dict[str, int], thread: tuple[int, ...], step: int
) -> _DrawnWalk:
    sums = {"batch": 0, "class": 0, "tree": 0}
    for loop in sch.path(leaf.name):
        sums[loop.kind] += here[loop.name]
    return _DrawnWalk(sums["batch"], sums["tree"] * sch.round_size + sums["class"], step, thread)


def _amount(bound: Bound, rows: int) -> int:
    if isinstance(bound, Share):
        return -(-rows // bound.parts)
    return rows if bound is None else int(bound)


def _draw(figure: Any, title: str, step: Any, colour: Any) -> None:
    """Draw a square for each walk, with its step."""
    from matplotlib import colormaps

    side = LINE * (1.4 + 0.3 * len(str(step.max())))
    figure.set_size_inches(side * step.shape[1], side * step.shape[0])
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, step.shape[1]), ylim=(step.shape[0], 0))
    axes.axis("off")
    axes.set_title(title, fontsize=SIZE)
    axes.text(step.shape[1] / 2, step.shape[0] + 0.5, "trees", ha="center", va="center")
    axes.text(-0.5, step.shape[0] / 2, "rows", ha="center", va="center", rotation=90)
    for value in np.unique(colour):
        face = colormaps["Set3"](int(value)) if value >= 0 else colormaps["YlGnBu"](-float(value))
        draw_squares(axes, np.argwhere(colour == value), face)
    for (row, tree), at in np.ndenumerate(step):
        axes.text(tree + 0.5, row + 0.5, at, ha="center", va="center")
