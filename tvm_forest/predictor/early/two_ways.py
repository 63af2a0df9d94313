"""Chooses between early stopping and the whole model, by the times of earlier calls.

takes: seconds of calls; gives: the faster way.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EARLY, WHOLE = 0, 1
"""The two ways: stretch by stretch, or the whole model at once. Both give the same results."""

PATIENCE = 64
"""Every so many calls, the slower way is tried again, as rows may have changed."""

FORGETTING = 1.25
"""Factor by which a recorded time grows at most per call: one slow call may be chance."""


class TwoWays:
    """Records the time per row of both ways, and chooses the faster one.

    Attributes:
        seconds: for EARLY and WHOLE, seconds per row; None until the way was tried.
    """

    def __init__(self) -> None:
        self.seconds: list[float | None] = [None, None]
        self._calls = 0

    @property
    def is_known(self) -> bool:
        """Whether both ways were tried."""
        return None not in self.seconds

    def choose(self) -> int:
        """Return a way that was not tried yet, else the faster one; now and then the slower one."""
        early, whole = self.seconds
        if early is None or whole is None:
            return EARLY if early is None else WHOLE
        self._calls += 1
        return int((whole < early) != (self._calls % PATIENCE == 0))

    def take(self, way: int, rows: int, call: Callable[[], None]) -> None:
        """Call a function that computes `rows` rows by a way, and record its time per row."""
        begin = time.perf_counter()
        call()
        seconds, before = (time.perf_counter() - begin) / max(1, rows), self.seconds[way]
        self.seconds[way] = seconds if before is None else min(seconds, before * FORGETTING)
