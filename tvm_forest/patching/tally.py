"""Counts the calls that ran compiled, and the others by their reason.

takes: calls; gives: a summary, and a line of the log for each new reason.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from ..system.process.locks import make_lock

LOG = logging.getLogger("tvm_forest.patching")

MOST_REASONS = 100
"""Approximate limit of lines in a summary, since reasons may contain numbers."""


class Tally:
    """Counts of calls and rows, by class and reason; the reason of compiled calls is None."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str | None], list[int]] = defaultdict(lambda: [0, 0])
        self._lock = make_lock()

    def add(self, name: str, reason: str | None, n_rows: int) -> None:
        """Count a call, and log a reason that is new for the class.

        Args:
            name: name of the class.
            reason: why the library's own method has run; None for compiled code.
            n_rows: number of rows of the call.
        """
        with self._lock:
            is_new = (name, reason) not in self._counts
            if is_new and reason is not None and len(self._counts) >= MOST_REASONS:
                reason, is_new = "other reasons", False
            count = self._counts[name, reason]
            count[0] += 1
            count[1] += n_rows
        if is_new:
            what = "runs compiled" if reason is None else f"runs as it is: {reason}"
            LOG.info("%s %s", name, what)

    def __str__(self) -> str:
        with self._lock:
            counts = sorted(self._counts.items(), key=lambda x: (x[0][0], x[0][1] or ""))
        if not counts:
            return "tvm-forest: no forest has predicted"
        lines = [
            f"  {name}: {calls:,} calls, {rows:,} rows "
            + ("compiled" if reason is None else f"as they were: {reason}")
            for (name, reason), (calls, rows) in counts
        ]
        return "\n".join(["tvm-forest: what has predicted", *lines])
