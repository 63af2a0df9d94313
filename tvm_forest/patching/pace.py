"""Which of two ways is faster for how many rows.

takes: times of calls; gives: the way of the next one.

Compiled code is checked to be that of the estimator at every call, which takes as long for one row
as for many; a library may be faster for a few.
"""

from __future__ import annotations

from collections import defaultdict

TRIES = 3
"""Calls of compiled code before its times count: the first ones find cold caches."""


class Pace:
    """The shortest times of both ways, by the number of binary digits of the number of rows."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._theirs: dict[int, float] = {}
        self._ours: dict[int, list[float]] = defaultdict(list)

    def note_theirs(self, n_rows: int, seconds: float) -> None:
        """Note what the library's own method took."""
        size = n_rows.bit_length()
        self.seconds += seconds
        self._theirs[size] = min(seconds, self._theirs.get(size, seconds))

    def note_ours(self, n_rows: int, seconds: float) -> None:
        """Note what compiled code took, with all checks."""
        times = self._ours[n_rows.bit_length()]
        if len(times) < TRIES:
            times.append(seconds)
        else:
            times[0] = min(times[0], seconds)

    def prefers_ours(self, n_rows: int) -> bool:
        """Tell whether compiled code is to be called.

        It is tried for as many rows as the library was timed with. What holds for fewer holds for
        more until the library was timed, which it is where it was faster for fewer, or for none.
        """
        return self._prefers_ours(n_rows.bit_length())

    def _prefers_ours(self, size: int) -> bool:
        if size in self._theirs:
            times = self._ours[size]
            return len(times) < TRIES or min(times) <= self._theirs[size]
        smaller = [known for known in self._theirs if known < size]
        return bool(smaller) and self._prefers_ours(max(smaller))
