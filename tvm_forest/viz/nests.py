"""Draws a nest: a box for each loop, around the loops and walks inside.

takes: Schedule; gives: Picture.
"""

from __future__ import annotations

from typing import Any

from ..schedule_prims import Schedule
from ..schedule_prims.fitting import check_schedule
from .picture import LETTER, LINE, SIZE, Picture

COLOURS = {"batch": "#cfe3f5", "class": "#f7ddb5", "tree": "#d3ebce", None: "white"}
"""Colours of loops by their kind; lines that are no loops are white."""
STEP = 2
"""Number of blanks by which a line of a nest is indented below the loop around it."""

GAP = 0.25
"""Vertical distance between the ends of two boxes, in lines."""


def nest(schedule: Schedule) -> Picture:
    """Show the loops of a schedule, each as a box around the loops and walks inside.

    Args:
        schedule: any schedule; the text of the picture is `str(schedule)`.

    Raises:
        ScheduleError: `schedule` is not a Schedule.
    """
    check_schedule("nest", schedule)
    text = str(schedule)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    depths = [(len(line) - len(line.lstrip())) // STEP for line in text.splitlines()]
    kinds: dict[str, Any] = {loop.name: loop.kind for loop in schedule.loops()}
    words = [line.split() for line in lines]
    colours = [COLOURS[kinds.get(x[1]) if x[0] in ("for", "parallel") else None] for x in words]
    return Picture(text, lambda figure: _draw(figure, lines, depths, colours))


def _draw(figure: Any, lines: list[str], depths: list[int], colours: list[str]) -> None:
    """Draw a box from each line down to the next line that is not indented further."""
    from matplotlib.patches import FancyBboxPatch

    wide = max(len(line) + 2 * STEP * depth for line, depth in zip(lines, depths, strict=True)) + 3
    tops, bottoms = _place(depths)
    figure.set_size_inches(wide * LETTER, 1.5 * LINE * max(bottoms))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, wide), ylim=(max(bottoms) + 0.1, -0.1))
    axes.axis("off")
    style: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.2", "linewidth": 0.7}
    for line, depth, colour, top, bottom in zip(lines, depths, colours, tops, bottoms, strict=True):
        corner, size = (STEP * depth + 0.5, top), (wide - 2 * STEP * depth - 1, bottom - top)
        axes.add_patch(FancyBboxPatch(corner, *size, facecolor=colour, edgecolor="0.5", **style))
        axes.text(STEP * depth + 1.3, top + 0.5, line, va="center", fontsize=SIZE)


def _place(depths: list[int]) -> tuple[list[float], list[float]]:
    """Return where the box of each line begins and ends, in lines, with gaps below each box."""
    tops, bottoms, y = [0.0] * len(depths), [0.0] * len(depths), 0.0
    open_: list[int] = []
    for at, depth in enumerate([*depths, 0]):
        while open_ and depths[open_[-1]] >= depth:
            bottoms[open_.pop()] = y
            y += GAP
        if at < len(depths):
            tops[at], y = y, y + 1
            open_.append(at)
    return tops, bottoms
