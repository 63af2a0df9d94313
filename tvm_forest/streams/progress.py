"""A bar on the terminal with the number of rows predicted.

takes: numbers of rows; gives: text on the standard error stream, if a person looks at it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..errors import InputError


class RowsBar:
    """Shows which part of the rows is predicted, how many these are, and how many a second."""

    def __init__(self, shown: bool | None = None) -> None:
        """Begin; `shown` None means if the stream is a terminal.

        Raises:
            InputError: a bar is asked for, and rich, which draws it, is not installed.
        """
        self._bar = _make_bar(shown)
        self._task = None if self._bar is None else self._bar.add_task("reading", total=None)
        self._begin = time.monotonic()

    def __enter__(self) -> RowsBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, rows: int, fraction: float | None) -> None:
        """Say how many rows are predicted, and which part of all, if it is known."""
        if self._bar is None:
            return
        speed = rows / max(1e-3, time.monotonic() - self._begin)
        text = f"{rows:,} rows, {speed:,.0f} a second"
        total = None if fraction is None else 1.0
        self._bar.update(self._task, completed=fraction or 0.0, total=total, description=text)


def _make_bar(shown: bool | None) -> Any:
    """Return a bar of rich, or None where nobody would see it, or it need not be shown."""
    if not (sys.stderr.isatty() if shown is None else shown):
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        if shown is None:
            return None
        raise InputError(
            "predict: argument 'progress': rich, which draws the bar, is not installed; run pip "
            "install rich, or leave it out"
        ) from None
    columns = (BarColumn(30), TextColumn("{task.description}"), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
