"""The search space of schedules for GPUs.

takes: Forest, Target, size of batch; gives: points, and the Schedule of each.

The space is the paper's (`silvanforge`), with more values of its parameters, blocks of trees, and
dimensions for classes. Points that distribute trees over threads or blocks change the order of
additions, unless they add tree by tree, so a search leaves them out by default.

Points of the layout "banked" belong to another recipe, `gpu_shared_ranks`, which has only two
parameters: rows of a block, and interleaved walks. All their other parameters are those of `RANKS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ..errors import ScheduleError
from ..forest import Forest
from ..layouts import BANKED, CODED, WORD_NODES
from ..schedule_prims import Schedule, recipes, rewrite
from ..schedule_prims.batches import select_schedule
from ..system.values import dataclass
from ..target import Target
from . import gpu_rules, heuristic, silvanforge
from .gpu_facts import facts_of
from .gpu_rules import MIN_RANKED_ROWS, RANKS
from .silvanforge import GpuPoint, GpuProblem
from .workload import Workload

VALUES: dict[str, tuple[Any, ...]] = {
    **silvanforge.TABLE_5,
    "rows_tb": (*silvanforge.TABLE_5["rows_tb"], 128, 256, 512),
    "tree_threads": (1, *silvanforge.TABLE_5["tree_threads"], 32),
    "shared": (False, True, "shuffle", "atomic", "ordered"),
    "layout": (*silvanforge.TABLE_5["layout"], WORD_NODES, CODED, BANKED),
    "tree_blocks": (1, 4, 16),
    "tree_chunk": (0,),
    "class_on": ("", "grid.z", "block.z"),
}
"""The values of each parameter: the paper's, and more."""

VARIED = (
    *("layout", "shared", "tree_blocks", "rows_tb", "tree_threads", "rows_thread"),
    *("cache_rows", "cache_trees", "unroll", "class_on"),
)
"""Parameters that are varied one by one after Algorithm 1, in this order."""

NODE_BYTES = 16
"""Approximate bytes of a node, those of the largest layout."""


@dataclass(frozen=True)
class GpuSpace:
    """The search space of one model and batch size on a GPU.

    Attributes:
        start: the schedule without directives.
        by_depth: the same with trees sorted by depth, for unrolled walks in any order.
        default: the schedule that is used without a search.
        problem: counts for filters and estimates.
        exact: whether the space has only points that keep the order of additions.
    """

    start: Schedule
    by_depth: Schedule
    default: Schedule
    problem: GpuProblem
    exact: bool = True

    @classmethod
    def of(cls, forest: Forest, target: Target, batch: int, exact: bool = True) -> GpuSpace:
        """Return the space of a model, for a GPU and batches of this size."""
        work = Workload.of(forest, target)
        forest, by_depth = work.forest, work.start.sort_trees()
        depths = rewrite(forest, by_depth).depths.reshape(-1, forest.round_size).max(axis=1)
        by_depth = by_depth.know_depths(depths.tolist())
        problem = GpuProblem(
            batch,
            forest.row_width,
            work.start.rounds,
            forest.n_outputs,
            work.start.round_size,
            tree_bytes=int(np.diff(forest.tree_offset).max(initial=0)) * NODE_BYTES,
            number_bytes=np.dtype(forest.row_dtype).itemsize,
            hops=work.deepest,
            lines=_count_straight_lines(work.start if exact else by_depth),
            gpu=facts_of(target),
            block_bytes=target.shared_bytes,
        )
        default = select_schedule(heuristic.default_schedules_for(work), batch)
        return cls(work.start, by_depth, default, problem, exact)

    def allows(self, point: GpuPoint) -> bool:
        """Return whether a point can run, and keeps the order of additions if required."""
        if point.layout == BANKED:
            alike = point == RANKS._replace(rows_tb=point.rows_tb, factor=point.factor)
            return alike and gpu_rules.fits_ranks(point, self.problem)
        if point.is_alone and point.shared:
            return False  # there is nothing to add up
        if point.tree_threads == 1 and point.shared in (True, "shuffle"):
            return False  # there is nothing to add up in this way
        if point.shared == "shuffle" and point.tree_threads % 2:
            return False
        ordered = point.is_alone or point.shared == "ordered"
        return (ordered or not self.exact) and silvanforge.find_obstacle(
            point, self.problem
        ) is None

    def points(self) -> Iterator[GpuPoint]:
        """Yield every point that passes the filters, in a fixed order."""
        values = VALUES | ({"shared": (False, "ordered")} if self.exact else {})
        values |= {"class_on": VALUES["class_on"][: None if self.problem.walks > 1 else 1]}
        points = (GpuPoint(*x) for x in product(*values.values()))
        return filter(self.allows, (silvanforge.fit_chunk(p, self.problem) for p in points))

    def schedule(self, point: GpuPoint) -> Schedule:
        """Return the schedule of a point.

        For unrolled walks the tree loop is split where the depth changes; if that gives too many
        pieces and the order must be kept, all walks are as long as the longest.

        Raises:
            ScheduleError: a directive refuses it; `allows` rules that out.
        """
        if point.layout == BANKED:
            return gpu_rules.walk_ranks(self.start, point, self.problem)
        start = self.by_depth if point.unroll and not self.exact else self.start
        try:
            return recipes.gpu_template(start, **point._asdict())
        except ScheduleError:
            if not (point.unroll and self.exact):
                raise
            in_loops = recipes.gpu_template(start, **point._replace(unroll=False)._asdict())
            return in_loops.unroll_walk("tree")

    def first_points(self) -> list[GpuPoint]:
        """Return the points to try first, the most promising ones first.

        These are the points of Algorithm 1, with ordered additions if the order must be kept. If
        none of them can run, a row has one thread, and a block has more rows. For large batches
        `RANKS` comes before them.
        """
        sizes = (32, 64) if silvanforge.has_small_blocks(self.problem) else (64, 128)
        paper = [self._cache_rows(self._settle(p)) for p in silvanforge.first_phase(self.problem)]
        alone = (
            self._cache_rows(self._settle(p._replace(rows_tb=r, tree_threads=1)))
            for p in paper
            for r in sizes
        )
        points = list(filter(self.allows, paper)) or filter(self.allows, alone)
        first = [RANKS] if self.problem.batch >= MIN_RANKED_ROWS and self.allows(RANKS) else []
        return [*first, *sorted(dict.fromkeys(points), key=self.cycles)]

    def _settle(self, point: GpuPoint) -> GpuPoint:
        """Return a point with the reduction that it needs, and a chunk of trees that fits.

        There is no reduction if a row has one thread; otherwise it is ordered if required.
        """
        if point.is_alone or self.exact:
            point = point._replace(shared=False if point.is_alone else "ordered")
        return silvanforge.fit_chunk(point._replace(tree_chunk=0), self.problem)

    def _cache_rows(self, point: GpuPoint) -> GpuPoint:
        """Return the point with rows cached in shared memory, or not cached if they do not fit."""
        cached = point._replace(cache_rows=True)
        fits = silvanforge.count_shared_bytes(cached, self.problem) < self.problem.block_bytes
        return cached._replace(cache_rows=fits)

    def vary(self, point: GpuPoint, name: str) -> list[GpuPoint]:
        """Return points with all values of the parameter `name`, the most promising first.

        The other parameters are those of `point`, except the reduction and the chunk of trees,
        which are fitted to the new value. Points that cannot run are left out.
        """
        points = [point._replace(**{name: value}) for value in VALUES[name]]
        if name == "tree_blocks" and not point.shared:
            points += [p._replace(shared="atomic") for p in points]
        settled = dict.fromkeys(p if name == "shared" else self._settle(p) for p in points)
        return sorted(filter(self.allows, settled), key=self.cycles)

    def cycles(self, point: GpuPoint) -> float:
        """Estimate the cycles of a point, see `silvanforge.estimate_cycles`."""
        return silvanforge.estimate_cycles(point, self.problem)


def _count_straight_lines(sch: Schedule) -> int:
    """Return into how many loops unrolled walks split the trees.

    It is 1 if there would be too many, since all walks are then as long as the longest.
    """
    try:
        return len(sch.split_by_depth("tree").pieces("tree"))
    except ScheduleError:
        return 1
