"""A bar on the terminal that says how many rows are predicted.

takes: numbers of rows; gives: text on the standard error stream, if a person looks at it.
"""

from __future__ import annotations

import time
from typing import Any


class RowsBar:
    """Shows which part of the rows is predicted, how many these are, and how many a second."""

    def __init__(self, shown: bool | None = None) -> None:
        """Begin; `shown` None means if the stream is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        hidden = not (console.is_terminal if shown is None else shown)
        columns = (BarColumn(30), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=hidden)
        self._task = self._bar.add_task("reading", total=None)
        self._begin = time.monotonic()

    def __enter__(self) -> RowsBar:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def show(self, rows: int, fraction: float | None) -> None:
        """Say how many rows are predicted, and which part of all, if it is known."""
        speed = rows / max(1e-3, time.monotonic() - self._begin)
        text = f"{rows:,} rows, {speed:,.0f} a second"
        total = None if fraction is None else 1.0
        self._bar.update(self._task, completed=fraction or 0.0, total=total, description=text)
