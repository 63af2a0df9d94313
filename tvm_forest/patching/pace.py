"""Measures whether compiled code or the library is faster, by number of rows.

takes: durations of calls; gives: which of the two serves the next call.

Each call of compiled code first checks that the estimator is unchanged, which takes as long for one
row as for many; for a few rows the library may therefore be faster.
"""

from __future__ import annotations

from collections import defaultdict

TRIES = 3
"""Number of calls of compiled code before its durations count: the first have cold caches."""


class Pace:
    """The shortest durations of the library and of compiled code, by the number of rows.

    Numbers of rows are grouped by the number of their binary digits.

    Attributes:
        seconds: how long all calls of the library's own methods have taken together.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._theirs: dict[int, float] = {}
        self._ours: dict[int, list[float]] = defaultdict(list)

    def note_theirs(self, n_rows: int, seconds: float) -> None:
        """Record a duration of the library's own method."""
        size = n_rows.bit_length()
        self.seconds += seconds
        self._theirs[size] = min(seconds, self._theirs.get(size, seconds))

    def note_ours(self, n_rows: int, seconds: float) -> None:
        """Record a duration of compiled code, including all checks."""
        times = self._ours[n_rows.bit_length()]
        if len(times) < TRIES:
            times.append(seconds)
        else:
            times[0] = min(times[0], seconds)

    def prefers_ours(self, n_rows: int) -> bool:
        """Return whether compiled code should be called.

        If the library was timed with about as many rows, compiled code is tried `TRIES` times, and
        then the faster one is called. If not, the choice for the next smaller number of rows with
        which the library was timed holds; if there is none, the library is called, and so timed.
        """
        return self._prefers_ours(n_rows.bit_length())

    def _prefers_ours(self, size: int) -> bool:
        if size in self._theirs:
            times = self._ours[size]
            return len(times) < TRIES or min(times) <= self._theirs[size]
        smaller = [known for known in self._theirs if known < size]
        return bool(smaller) and self._prefers_ours(max(smaller))
