"""Determines the sizes of this CPU's caches.

takes: the system's report, and durations of loads; gives: bytes, nearest cache first.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ..workload import LINE_BYTES

FOLDER = "/sys/devices/system/cpu/cpu0/cache"

ROUNDS = 3
"""Number of times that each size is measured."""


def measure_caches() -> tuple[int, ...]:
    """Return the sizes of the data caches in bytes, nearest first; () if none is reported.

    The last of three may be shared with other virtual machines. If it is reported as at least four
    times the second, it is measured: its size is that of the largest array whose random loads take
    a time nearer to that of small arrays than of large ones, but no more than is reported.
    """
    *near, last = read_caches() or (0,)
    if len(near) < 2 or last < 4 * near[-1]:
        return (*near, last) if last else ()
    sizes = [2 * near[-1]]
    while sizes[-1] < 2 * last:
        sizes.append(int(sizes[-1] * 2**0.5))
    rounds = np.array([[time_lines(size) for size in sizes] for _ in range(ROUNDS)])
    times = np.median(rounds, axis=0)
    held = np.cumprod(times <= np.sqrt(times[0] * times[-1]))
    return (*near, min(last, sizes[max(0, int(held.sum()) - 1)]))


def time_lines(size: int) -> float:
    """Return the nanoseconds of a random load from an array of so many bytes."""
    memory = np.ones((size // LINE_BYTES, LINE_BYTES // 4), np.float32).ravel()
    places = np.random.default_rng(0).permutation(size // LINE_BYTES) * (LINE_BYTES // 4)
    begin = time.thread_time()
    memory.take(places, mode="clip")
    return 1e9 * (time.thread_time() - begin) / len(places)


def read_caches() -> tuple[int, ...]:
    """Return the sizes of the data caches that the system reports, the nearest first."""
    sizes = dict[int, int]()
    for folder in sorted(Path(FOLDER).glob("index*")):
        try:
            fields = [(folder / x).read_text().strip() for x in ("level", "type", "size")]
        except OSError:
            continue
        if fields[1] != "Instruction":
            unit = {"K": 1 << 10, "M": 1 << 20}[fields[2][-1]]
            sizes[int(fields[0])] = int(fields[2][:-1]) * unit
    return tuple(sizes[level] for level in sorted(sizes))
