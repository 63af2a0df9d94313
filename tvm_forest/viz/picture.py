"""Defines a picture: a text, and a drawing that is made when it is needed.

takes: a text, a function that draws; gives: Picture.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..system.archive import replace_file
from ..system.values import dataclass, field

SIZE = 8  # of letters, in points
LETTER, LINE = 0.6 * SIZE / 72, 1.4 * SIZE / 72  # inches
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tvm_forest",  # otherwise the names of parts are random
    "svg.fonttype": "none",
    "font.family": "monospace",
    "font.size": SIZE,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Picture:
    """A text that can also be drawn; equal texts make equal pictures.

    Attributes:
        text: the text, which `str` returns.
        draw: a function that draws on an empty matplotlib figure.
    """

    text: str
    draw: Callable[[Any], None] = field(compare=False)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    @property
    def svg(self) -> str:
        """The drawing as an SVG document, the same text every time.

        Raises:
            InputError: matplotlib is not installed.
        """
        try:
            import matplotlib
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError(
                "viz: property 'svg': matplotlib, which makes drawings, is not installed; "
                "run pip install 'tvm-forest[plot]', or print the picture"
            ) from None
        document = io.StringIO()
        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # the user's style would change the document
            matplotlib.rcParams.update(STYLE)
            figure = Figure()
            self.draw(figure)
            metadata = {"Date": None, "Creator": "tvm_forest"}
            figure.savefig(document, format="svg", metadata=metadata, bbox_inches="tight")
        return document.getvalue()

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, which appears under its name once it is complete.

        Args:
            path: name of the file, ending in .svg for the drawing or .txt for the text.

        Raises:
            InputError: another ending, or matplotlib is not installed.
            OSError: the file cannot be written.
        """
        target = Path(path)
        if target.suffix not in (".svg", ".txt"):
            raise InputError(f"save: argument 'path': '{target}' does not end in .svg or .txt")
        content = self.svg if target.suffix == ".svg" else f"{self.text}\n"
        replace_file(target, content.encode())


def draw_squares(axes: Any, places: Any, colour: Any) -> None:
    """Draw squares of one colour as one path, which keeps documents small.

    Args:
        axes: matplotlib axes whose unit is a square.
        places: (N, 2), line and column of each square, from 0.
        colour: any colour of matplotlib.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    outlines = [
        Outline([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
        for y, x in places
    ]
    path = Outline.make_compound_path(*outlines)
    axes.add_patch(PathPatch(path, facecolor=colour, edgecolor="white", linewidth=1))
