"""A progress bar with the number of rows predicted.

takes: numbers of rows; gives: text on standard error, by default only on a terminal.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ..errors import InputError


class RowsBar:
    """Shows the fraction and the number of rows that are predicted, and rows per second."""

    def __init__(self, shown: bool | None = None) -> None:
        """Make the bar; if `shown` is None, only on a terminal and with the package rich.

        Raises:
            InputError: `shown` is True, but the package rich is not installed.
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
        """Update the bar: rows predicted, and their fraction of all rows, None if unknown."""
        if self._bar is None:
            return
        speed = rows / max(1e-3, time.monotonic() - self._begin)
        text = f"{rows:,} rows, {speed:,.0f} a second"
        total = None if fraction is None else 1.0
        self._bar.update(self._task, completed=fraction or 0.0, total=total, description=text)


def _make_bar(shown: bool | None) -> Any:
    """Return a rich progress bar; None if it is not to be shown.

    Raises:
        InputError: see `RowsBar.__init__`.
    """
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
