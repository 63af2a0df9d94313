"""A progress bar on the terminal, with the best time so far.

takes: records; gives: text on the standard error stream, if it is a terminal.
"""

from __future__ import annotations

import time
from typing import Any

from ..records import TrialRecord, find_fastest


class ProgressBar:
    """Shows the used share of the budget, and the fastest schedule of the current batch size."""

    def __init__(self, budget_s: float, shown: bool | None = None) -> None:
        """Start the bar; `shown` None means only if the stream is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        hidden = not (console.is_terminal if shown is None else shown)
        columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, disable=hidden)
        self._task = self._bar.add_task("starting", total=budget_s)
        self._begin = time.monotonic()
        self._records: list[TrialRecord] = []

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def show(self, record: TrialRecord) -> None:
        """Count a record, and show the best of its batch size."""
        self._records.append(record)
        tried = [x for x in self._records if x.batch == record.batch]
        best = find_fastest(tried)
        time_text = f"{1e6 * best.time:.2f} us" if best else "none yet"
        text = f"batch {record.batch}: {len(tried)} tried, best {time_text}"
        spent = time.monotonic() - self._begin
        self._bar.update(self._task, completed=spent, description=text)
