"""Whether rows that come now gain by stopping early, from how long those before them took.

takes: seconds of calls; gives: the way that took less.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EARLY, WHOLE = 0, 1
"""The ways: stretch by stretch, or the whole model at once. Both give the same answers."""

PATIENCE = 64
"""Calls after which the other way is tried again, for other rows may have come."""

FORGETTING = 1.25
"""By how much a time may seem to grow with a call: one that waited for the machine says little."""


class TwoWays:
    """Which way took less for rows like these."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = [None, None]
        self._calls = 0

    @property
    def is_known(self) -> bool:
        """Whether both ways were tried."""
        return None not in self.seconds

    def choose(self) -> int:
        """Return the way to go: one that was never tried, or that of less time, mostly."""
        early, whole = self.seconds
        if early is None or whole is None:
            return EARLY if early is None else WHOLE
        self._calls += 1
        return int((whole < early) != (self._calls % PATIENCE == 0))

    def take(self, way: int, rows: int, call: Callable[[], None]) -> None:
        """Call, and note how long a row took."""
        begin = time.perf_counter()
        call()
        seconds, before = (time.perf_counter() - begin) / max(1, rows), self.seconds[way]
        self.seconds[way] = seconds if before is None else min(seconds, before * FORGETTING)
