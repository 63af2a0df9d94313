"""A bar on the terminal, with the best so far.

takes: records; gives: text on the standard error stream, if a person looks at it.
"""

from __future__ import annotations

import time
from typing import Any

from ..records import TrialRecord


class ProgressBar:
    """Shows how much of the budget is used, and the fastest schedule of the batch at hand."""

    def __init__(self, budget_s: float, shown: bool | None = None) -> None:
        """Say how long it may take; `shown` None means if the stream is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        hidden = not (console.is_terminal if shown is None else shown)
        columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=hidden)
        self._task = self._bar.add_task("starting", total=budget_s)
        self._begin = time.monotonic()
        self._best: dict[int, float] = {}
        self._tried: dict[int, int] = {}

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def show(self, record: TrialRecord) -> None:
        """Count a record, and show the best of its batch."""
        batch = record.batch
        self._tried[batch] = self._tried.get(batch, 0) + 1
        if record.seconds is not None:
            self._best[batch] = min(record.seconds, self._best.get(batch, record.seconds))
        best = f"{1e6 * self._best[batch]:.2f} us" if batch in self._best else "none yet"
        text = f"batch {batch}: {self._tried[batch]} tried, best {best}"
        spent = time.monotonic() - self._begin
        self._bar.update(self._task, completed=spent, description=text)
