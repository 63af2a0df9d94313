"""How many CPU cores this process may use.

takes: nothing; gives: a number.

A process may use the cores of its affinity mask. A container may have less processor time: on Linux
it is a quota of a control group, such as 150,000 microseconds in every 100,000, which is one core
and a half. Threads beyond the quota would only wait for each other.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_cores() -> int:
    """Return the number of cores available to this process, by affinity and time quota."""
    cores = most_cores()
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, cores)


@functools.cache
def most_cores() -> int:
    """Return the number of cores available to this process, whatever its affinity.

    A quota is rounded up: for one core and a half the result is 2. It is read only once, since this
    function is called before every parallel call.
    """
    cores, share = os.cpu_count() or 1, read_quota()
    return cores if share is None else min(cores, math.ceil(share))


def read_quota(root: Path = Path("/")) -> float | None:
    """Return the quota of this process in cores, such as 1.5; None if there is none.

    Both versions of control groups are read. A group is limited by the groups that contain it too.

    Args:
        root: folder that contains /proc and /sys.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or the process may not see it
        return None
    mounted = root / "sys/fs/cgroup"
    groups = [line for line in lines if line.count(":") >= 2]
    return min((x for line in groups for x in _read_shares(mounted, line)), default=None)


def _read_shares(mounted: Path, line: str) -> Iterator[float]:
    """Yield the quotas, in cores, for a line of /proc/self/cgroup, such as 1:cpu,cpuacct:/docker/7.

    They are those of the group and of the groups that contain it. The path is the host's; inside a
    container, the group itself may be mounted as the root.
    """
    _, controllers, path = line.split(":", 2)
    group = PurePosixPath("/") / path
    for at in (group, *group.parents):
        if not controllers:
            yield from _divide(_read_numbers(mounted / str(at)[1:] / "cpu.max"))
        elif "cpu" in controllers.split(","):
            here = mounted / controllers / str(at)[1:]
            here = here if here.is_dir() else mounted / "cpu" / str(at)[1:]
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            yield from _divide([x for name in names for x in _read_numbers(here / name)])


def _read_numbers(file: Path) -> list[float]:
    """Return the numbers in a file; empty if it is missing or contains a word such as max."""
    try:
        return [float(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def _divide(numbers: list[float]) -> Iterator[float]:
    """Yield quota / period, the two numbers; nothing without a quota, which version 1 has as -1."""
    if len(numbers) == 2 and min(numbers) > 0:
        yield numbers[0] / numbers[1]
