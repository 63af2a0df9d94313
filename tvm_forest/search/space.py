"""What a CPU search may choose: a template of schedules with named parameters.

takes: Workload, size of batch; gives: points, and the Schedule of each.

    Point(tile=1, layout="packed", block=64, order="rows", walks=8, hops="peel")

    represent as packed
    for b0 in (0, n, 64)
      for tree in (0, 100, 1)
        for b1 in (0, 64, 1)           # interleave 8; peel 2

The space is the product of what the constants here name, less what a layout cannot hold and what
directives refuse; `docs/tuning.md` has the reasons. The default schedule is the point that `cost`
expects to be the fastest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import ScheduleError
from ..layouts import CODED, SIMDIZED, SIMDIZED_TREES, TILED, TRANSPOSED, WORD_NODES
from ..process.locks import cached_property
from ..schedule import Schedule
from ..schedule_prims.walks import LANE_COUNTS
from ..values import dataclass
from .layout_fit import fitting_layouts, is_too_large_for_tiles
from .workload import Workload

TILES = (1, 4, 8)
"""Nodes of a tile."""

ONE_ROW_LAYOUT = TRANSPOSED
"""What is tried for single rows only."""

VECTORS = SIMDIZED | SIMDIZED_TREES
"""Layouts whose trees are walked by vectors only, and how `simdize` calls it."""

BLOCKS = (16, 64, 256, 2048)
"""Rows of a block of walks. The largest ones serve trees that lie in the third-level cache."""

SMALL_BLOCK_BATCH, LEAST_BLOCK = 256, 64
"""Rows of a batch from which smaller blocks than of so many rows are left out."""

WALKS: dict[str, tuple[int | str, ...]] = {"trees": (2, 4, 8, 10, 16), "rows": (4, 8, 16, "gather")}
"""Walks that advance together: of as many trees or rows, or of rows in the lanes of vectors."""

LANES = 64
"""Rows in the lanes of vectors."""

SHARED_BATCH = 512
"""Rows of a batch from which rows are shared out among cores."""

FETCHED = (WORD_NODES, CODED)
"""Layouts whose trees may be fetched ahead, if they are larger than the first-level cache."""


class Point(NamedTuple):
    """A place in the space.

    Attributes:
        tile: nodes of a tile; 1 for none.
        layout: argument of `represent_as`.
        block: rows of a block; 0 for the whole batch.
        order: what the innermost loop runs over, "trees" or "rows".
        walks: walks that advance together, or "gather", "permute", "bits", "octets" or
            "pieces" for vectors.
        hops: "loop" or "peel". Straight lines are left to `unroll_walk`: a loop is as fast and
            takes a third of the time to compile, since its code holds one hop and not all of them.
        cache: "stream" if the next tree is fetched as a whole, else "".
        parallel: whether blocks of rows, or rows, run on all cores.
    """

    tile: int
    layout: str
    block: int = 0
    order: str = "trees"
    walks: int | str = 1
    hops: str = "loop"
    cache: str = ""
    parallel: bool = False


class SpaceKey(NamedTuple):
    """What decides which points there are; models that are alike have it in common.

    Attributes:
        layouts: that hold the model, sorted.
        batch: rows of a call.
        large: whether tiles would take too long to build.
        small_trees: whether there is no need to fetch trees ahead.
        shared: whether blocks run on all cores.
    """

    layouts: tuple[str, ...]
    batch: int
    large: bool
    small_trees: bool
    shared: bool

    def kinds(self) -> Iterator[tuple[int, str]]:
        """Yield tiles and layouts that hold the model."""
        for layout in self.layouts:
            if layout != ONE_ROW_LAYOUT or self.batch == 1:
                for tile in (1,) if self.large or layout not in TILED else TILES:
                    yield tile, layout

    def blocks(self, layout: str) -> Iterator[tuple[int, str]]:
        """Yield rows of a block, and what walks together; a single row has no blocks."""
        if layout in SIMDIZED:
            sizes = sorted(LANE_COUNTS[SIMDIZED[layout]]) if self.batch > 1 else []
            yield from ((x, "rows") for x in sizes if x <= max(self.batch, sizes[0]))
            return
        yield 0, "trees"
        if layout in SIMDIZED_TREES:
            return
        least = 1 if self.batch < SMALL_BLOCK_BATCH else LEAST_BLOCK
        yield from ((x, "rows") for x in BLOCKS if least <= x <= self.batch)
        if 1 < self.batch < BLOCKS[0]:
            yield 0, "rows"

    def modes(self, tile: int, layout: str, block: int) -> Iterator[tuple[str, str]]:
        """Yield how hops are counted, and whether trees are fetched ahead."""
        hops = ["loop"] if layout in VECTORS else ["loop", "peel"]
        fetched = block and layout in FETCHED and not self.small_trees
        yield from ((x, cache) for x in hops for cache in (["", "stream"] if fetched else [""]))


@functools.lru_cache(maxsize=64)
def list_points(key: SpaceKey) -> tuple[Point, ...]:
    """List the points of spaces that are alike, in a fixed order."""
    return tuple(
        Point(tile, layout, block, order, walks, hops, cache, key.shared)
        for tile, layout in key.kinds()
        for block, order in key.blocks(layout)
        for walks in ([VECTORS[layout]] if layout in VECTORS else WALKS[order])
        if walks != "gather" or (tile == 1 and block)  # lanes walk node by node through blocks
        for hops, cache in key.modes(tile, layout, block)
    )


@functools.lru_cache(maxsize=64)
def number_points(key: SpaceKey) -> dict[Point, int]:
    """Return where each of these points is in the list."""
    return {point: at for at, point in enumerate(list_points(key))}


@dataclass(frozen=True)
class Space:
    """All schedules of the template for one model, machine and size of batch.

    Every one of them keeps the order of additions.

    Attributes:
        facts: what is known of model and machine.
        default: the schedule that is used without a search, parallel only if `threads`.
        batch: rows of a call.
        threads: whether a call may use several cores.
    """

    facts: Workload
    default: Schedule
    batch: int
    threads: bool

    @property
    def start(self) -> Schedule:
        """The schedule without directives."""
        return self.facts.start

    @property
    def hops(self) -> int:
        """Hops of the rows of a call through all trees, at least one each."""
        return self.batch * max(1, self.facts.hops)

    def points(self) -> dict[Point, Schedule]:
        """Return every point and its schedule, in a fixed order."""
        written = ((point, self.schedule(point)) for point in self.candidates())
        return {point: sch for point, sch in written if sch is not None}

    @cached_property
    def key(self) -> SpaceKey:
        """What decides about the candidates."""
        layouts = tuple(sorted(fitting_layouts(self.facts)))
        return SpaceKey(
            layouts,
            self.batch,
            is_too_large_for_tiles(self.facts),
            self.facts.has_small_trees,
            self.threads and self.batch >= SHARED_BATCH,
        )

    def candidates(self) -> tuple[Point, ...]:
        """Return all points, and those that directives refuse, in a fixed order."""
        return list_points(self.key)

    def schedule(self, point: Point) -> Schedule | None:
        """Return the schedule of a point; None where a directive refuses it."""
        try:
            sch = self.write(point)
        except ScheduleError:
            return None
        return sch if sch.keeps_order else None

    def write(self, point: Point) -> Schedule:
        """Return the schedule of a point.

        Raises:
            ScheduleError: a directive refuses it.
        """
        return write_schedule(ProblemSize.of(self.facts), point)


class ProblemSize(NamedTuple):
    """What schedules are written for; models that are alike have it in common.

    Attributes:
        trees, outputs, vectors, depths: see `Schedule`.
        shallowest: hops to the nearest leaf.
    """

    trees: int
    outputs: int
    vectors: bool
    depths: tuple[int, ...] | None
    shallowest: int

    @classmethod
    def of(cls, work: Workload) -> ProblemSize:
        """Return the problem of a model."""
        start = work.start
        return cls(start.trees, start.classes, start.vectors, start.depths, work.shallowest)


@functools.lru_cache(
    maxsize=32
)  # of a few models; that of a large one holds the depths of its trees
def write_schedule(problem: ProblemSize, point: Point) -> Schedule:
    """Write the schedule of a point.

    Raises:
        ScheduleError: a directive refuses it.
    """
    size = (problem.trees, problem.outputs)
    sch = Schedule(*size, depths=problem.depths, vectors=problem.vectors)
    sch = sch.tile_nodes(point.tile) if point.tile > 1 else sch
    sch = sch.represent_as(point.layout)
    if point.block:
        sch = sch.tile("batch", "b0", "b1", point.block).reorder("b0", *inner_loops(sch), "b1")
    elif point.order == "rows":
        sch = sch.reorder(*inner_loops(sch), "batch")
    leaf = sch.leaves()[0].name
    if type(point.walks) is int:
        sch = sch.interleave(leaf, point.walks)
    elif point.layout in VECTORS:
        sch = sch.simdize(leaf, str(point.walks))
    else:
        sch = make_lanes(sch)
        leaf = sch.leaves()[0].name
    if point.hops == "peel":
        sch = peel(sch, problem.shallowest, leaf)
    sch = sch.cache("tree", point.cache) if point.cache else sch
    outer = sch.nest.children[0]
    return sch.parallel(outer.name) if point.parallel and outer.kind == "batch" else sch


def inner_loops(sch: Schedule) -> tuple[str, ...]:
    """Name the loops over trees, and over classes if these have walks of their own."""
    return ("class", "tree") if sch.round_size > 1 else ("tree",)


def make_lanes(sch: Schedule) -> Schedule:
    """Make the rows of a block lanes of vectors."""
    if "b1" not in sch.names() or (sch["b1"].count or 0) <= LANES:
        return sch.simdize(sch.leaves()[0].name)
    return sch.tile("b1", "b10", "b11", LANES).simdize("b11")


def peel(sch: Schedule, shallowest: int, index: str) -> Schedule:
    """Peel up to two hops that no walk ends in; with a leaf at a root one that is checked.

    Args:
        sch: a schedule.
        shallowest: hops to the nearest leaf; through tiles, a hop is a tile.
        index: the leaf loop.
    """
    hops = min(1, shallowest) if sch.rewrites else min(2, shallowest)
    return sch.peel_walk(index, max(1, hops), check=hops == 0)


class Choice(NamedTuple):
    """What serves some batches.

    Attributes:
        point: where it is in the space; blocks are not parallel.
        schedule: the schedule of the point, for one thread.
        shared: whether it serves batches that are shared out among threads.
    """

    point: Point
    schedule: Schedule
    shared: bool

    def write(self, work: Workload) -> Schedule:
        """Return the schedule, with parallel rows if there are cores to share them."""
        outer = self.schedule.nest.children[0]
        if self.shared and work.target.cores > 1 and outer.kind == "batch":
            return write_schedule(ProblemSize.of(work), self.point._replace(parallel=True))
        return self.schedule
