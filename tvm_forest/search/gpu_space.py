"""What a search for a GPU may choose, and how to walk through it.

takes: Forest, Target, size of batch; gives: points, the Schedule of each, and strategies.

The space is the paper's (`gpu`), with more values of its parameters and blocks of trees. Points
that deal trees out to threads or blocks add up in another order, so a search leaves them out unless
it is asked for them. What remains are threads that walk all trees of their rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..errors import ScheduleError
from ..forest import Forest
from ..forest.rewrites.canonical_form import plain
from ..schedule import Schedule
from ..schedule_prims import recipes, rewrite
from ..target import Target
from . import gpu, heuristic
from .gpu import GpuPoint, Problem
from .strategies import Measure

VALUES: dict[str, tuple[Any, ...]] = {
    **gpu.TABLE_5,
    "rows_tb": (*gpu.TABLE_5["rows_tb"], 128, 256),
    "tree_threads": (1, *gpu.TABLE_5["tree_threads"], 32),
    "shared": (False, True, "shuffle", "atomic"),
    "layout": (*gpu.TABLE_5["layout"], "packed", "ranked"),
    "tree_blocks": (1, 4, 16),
}
"""The values of each parameter: the paper's, and more."""

MOVES = (
    *("layout", "shared", "tree_blocks", "rows_tb", "tree_threads", "rows_thread"),
    *("cache_rows", "cache_trees", "unroll"),
)
"""Parameters that are varied alone behind Algorithm 1, in this order."""

NODE_BYTES = 16
"""About what a node takes, the values of the largest layout."""


@dataclass(frozen=True)
class GpuSpace:
    """All schedules of the template for one model and size of batch.

    Attributes:
        start: the schedule without directives.
        by_depth: the same with trees sorted by depth, for straight lines in any order.
        default: the schedule that is used without a search.
        problem: what filters and estimates ask.
        exact: whether only points that keep the order of additions are in it.
    """

    start: Schedule
    by_depth: Schedule
    default: Schedule
    problem: Problem
    exact: bool = True

    @classmethod
    def of(cls, forest: Forest, target: Target, batch: int, exact: bool = True) -> GpuSpace:
        """Return the space of a model."""
        start, forest = heuristic.new_schedule(forest), plain(forest)
        by_depth = start.sort_trees()
        depths = rewrite(forest, by_depth).depths.reshape(-1, forest.round_size).max(axis=1)
        largest = int(np.diff(forest.tree_offset).max(initial=0)) * NODE_BYTES
        size = np.dtype(forest.row_dtype).itemsize
        hops = int(forest.depths.max(initial=0))
        by_depth = by_depth.know_depths(depths.tolist())
        lines = _loops_by_depth(start if exact else by_depth)
        about = (forest.row_width, start.rounds, forest.n_outputs, largest, size, hops, lines)
        default = heuristic.default_schedules(forest, target)[1]
        return cls(start, by_depth, default, Problem(batch, *about), exact)

    def allows(self, point: GpuPoint) -> bool:
        """Whether a point may run, and adds up as it was asked for."""
        alone = point.tree_threads == 1
        shared = False if alone and point.tree_blocks == 1 else point.shared
        if (alone and shared in (True, "shuffle")) or shared != point.shared:
            return False  # there is nothing to add up in this way
        if point.shared == "shuffle" and point.tree_threads % 2:
            return False
        ordered = alone and point.tree_blocks == 1
        return (ordered or not self.exact) and gpu.refusal(point, self.problem) is None

    def points(self) -> Iterator[GpuPoint]:
        """Yield every point that the filters let pass, in a fixed order."""
        values = VALUES | ({"tree_threads": (1,), "tree_blocks": (1,)} if self.exact else {})
        return filter(self.allows, (GpuPoint(*x) for x in product(*values.values())))

    def schedule(self, point: GpuPoint) -> Schedule:
        """Return the schedule of a point.

        Straight lines are cut where the depth of trees changes; if that is too often and the order
        is to be kept, all walks are as long as the longest.

        Raises:
            ScheduleError: a directive refuses it; `allows` rules that out.
        """
        if not point.unroll:
            return recipes.gpu_template(self.start, **point._asdict())
        if not self.exact:
            return recipes.gpu_template(self.by_depth, **point._asdict())
        try:
            return recipes.gpu_template(self.start, **point._asdict())
        except ScheduleError:
            plainly = recipes.gpu_template(self.start, **point._replace(unroll=False)._asdict())
            return plainly.unroll_walk("tree")

    def first(self) -> list[GpuPoint]:
        """Return what is tried first, the likely ones first.

        These are Algorithm 1's points. If none of them may run, or the order is to be kept, a row
        has one thread, and a block has more rows.
        """
        sizes = (32, 64) if gpu.is_small(self.problem) else (64, 128)
        paper = list(map(self._near, gpu.first_points(self.problem)))
        alone = (self._near(p._replace(rows_tb=r, tree_threads=1)) for p in paper for r in sizes)
        found = list(filter(self.allows, paper)) or filter(self.allows, alone)
        return sorted(dict.fromkeys(found), key=self.cost)

    def _near(self, point: GpuPoint) -> GpuPoint:
        """Leave rows where they are if they do not fit into shared memory."""
        cached = point._replace(cache_rows=True)
        fits = gpu.shared_bytes(cached, self.problem) < gpu.Limits().shared_bytes
        return cached._replace(cache_rows=fits)

    def moved(self, point: GpuPoint, name: str) -> list[GpuPoint]:
        """Return the points with all values of one parameter, the likely ones first."""
        found = [point._replace(**{name: value}) for value in VALUES[name]]
        if name == "tree_blocks" and not point.shared:
            found += [p._replace(shared="atomic") for p in found]
        return sorted(filter(self.allows, found), key=self.cost)

    def cost(self, point: GpuPoint) -> float:
        """Estimate a point, see `gpu.cost`."""
        return gpu.cost(point, self.problem)


def _loops_by_depth(sch: Schedule) -> int:
    """Count the loops of straight lines; 1 if there would be too many, and all are as long."""
    try:
        return len(sch.split_by_depth("tree").pieces("tree"))
    except ScheduleError:
        return 1


def algorithm_1_and_moves(space: GpuSpace, measure: Measure, rng: random.Random) -> None:
    """Take the fastest of Algorithm 1, then change one parameter at a time, as long as that helps.

    The default schedule is measured first, so the result is no slower.
    """
    times: dict[GpuPoint, float] = {}

    def seconds(point: GpuPoint) -> float:
        if point not in times:
            times[point] = measure(space.schedule(point))
        return times[point]

    measure(space.default)
    best = gpu.algorithm_1(space.problem, seconds, space.allows, space.first())
    for name in MOVES:
        if best is not None:
            best = min(space.moved(best, name), key=seconds, default=best)
