"""The search space for CPUs: a template of schedules with named parameters.

takes: Workload, batch size; gives: points, and the Schedule of each.

    Point(tile=1, layout="packed", block=64, order="rows", walks=8, hops="peel")

    represent as packed
    for b0 in (0, n, 64)
      for tree in (0, 100, 1)
        for b1 in (0, 64, 1)           # interleave 8; peel 2

The space is the product of the values of the constants here, except those that a layout cannot hold
or directives refuse; `docs/tuning.md` has the reasons. The default schedule is the point with the
lowest price in `cost`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import ScheduleError
from ..layouts import CODED, SIMDIZED, SIMDIZED_TREES, TILED, TRANSPOSED, WORD_NODES
from ..schedule_prims import Schedule
from ..schedule_prims.walks import LANE_COUNTS
from ..system.process.locks import cached_property
from ..system.values import dataclass
from .layout_fit import fitting_layouts, is_too_large_for_tiles
from .workload import Workload

TILES = (1, 4, 8)
"""Tile sizes, in nodes."""

ONE_ROW_LAYOUT = TRANSPOSED
"""Layout that is tried for single rows only."""

VECTORS = SIMDIZED | SIMDIZED_TREES
"""Layouts in which all walks are vector walks, each with its argument of `simdize`."""

BLOCKS = (16, 64, 256, 2048)
"""Block sizes, in rows; the largest suits trees in the third-level cache."""

SMALL_BLOCK_BATCH, LEAST_BLOCK = 256, 64
"""For batches of at least the first number of rows, smaller blocks than the second are left out."""

WALKS: dict[str, tuple[int | str, ...]] = {"trees": (2, 4, 8, 10, 16), "rows": (4, 8, 16, "gather")}
"""Numbers of interleaved trees or rows; "gather" means rows in vector lanes."""

LANES = 64
"""Largest number of rows in vector lanes at once."""

WIDE_ROW_BYTES = 1024
"""Bytes of a row from which copying it is tried: a copy loads all of its cache lines at once, while
walks wait for one after the other."""

SHARED_BATCH = 64
"""Smallest batch whose rows are shared among cores for any model, if there is work enough for them;
smaller ones are shared where the default schedule does so."""

GROUPS = 8
"""Number of groups into which trees are divided where cores share those of one row."""

FETCHED = (WORD_NODES, CODED)
"""Layouts whose trees can be prefetched, if they exceed the first-level cache."""


class Point(NamedTuple):
    """A point of the search space.

    Attributes:
        tile: number of nodes of a tile; 1 for none.
        layout: argument of `represent_as`.
        block: number of rows of a block; 0 for the whole batch.
        order: kind of the innermost loop, "trees" or "rows".
        walks: number of interleaved walks, or "gather", "permute", "bits", "octets" or "pieces" for
            vector walks.
        hops: "loop" or "peel". Unrolled walks are not in the space: a loop is as fast and takes a
            third of the time to compile, since its code has one hop and not all of them.
        cache: "stream" if the next tree is prefetched as a whole, "pack" if each row is copied
            first, else "".
        parallel: what cores share, "rows" (or blocks of them) or "trees": the classes of each row,
            or groups of its trees where there is one class; "" for nothing.
    """

    tile: int
    layout: str
    block: int = 0
    order: str = "trees"
    walks: int | str = 1
    hops: str = "loop"
    cache: str = ""
    parallel: str = ""


class SpaceKey(NamedTuple):
    """The facts that decide which points exist; similar models have equal keys.

    Attributes:
        layouts: sorted names of the layouts that hold the model.
        batch: number of rows in a call.
        large: whether tiles would take too long to build.
        small_trees: whether prefetching trees is useless.
        shared: what all cores share, see `Point`.
        wide: whether rows are so wide that copies of them are tried.
    """

    layouts: tuple[str, ...]
    batch: int
    large: bool
    small_trees: bool
    shared: str
    wide: bool

    def kinds(self) -> Iterator[tuple[int, str]]:
        """Yield (tile size, layout) pairs that hold the model."""
        for layout in self.layouts:
            if layout != ONE_ROW_LAYOUT or self.batch == 1:
                for tile in (1,) if self.large or layout not in TILED else TILES:
                    yield tile, layout

    def blocks(self, layout: str) -> Iterator[tuple[int, str]]:
        """Yield (block size, order of the innermost loop) pairs; size 0 is the whole batch.

        A single row has the one pair (0, "trees"), or none if rows are the lanes of vectors.
        """
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
        """Yield (`hops`, `cache`) pairs, fields of `Point`, for a tile size, layout and block."""
        hops = ["loop"] if layout in VECTORS else ["loop", "peel"]
        fetched = block and layout in FETCHED and not self.small_trees
        packed = self.wide and not block and layout not in (*VECTORS, CODED)
        caches = ["", *["stream"] * bool(fetched), *["pack"] * packed]
        yield from ((x, cache) for x in hops for cache in caches)


@functools.lru_cache(maxsize=64)
def list_points(key: SpaceKey) -> tuple[Point, ...]:
    """List the points of all spaces with this key, in a fixed order."""
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
    """Return the index of each point in `list_points(key)`."""
    return {point: at for at, point in enumerate(list_points(key))}


@dataclass(frozen=True)
class Space:
    """All schedules of the template for one model, machine and batch size.

    Every one of them keeps the order of additions.

    Attributes:
        facts: the model and machine, with their counts.
        default: the schedule that is used without a search, parallel only if `threads`.
        batch: number of rows in a call.
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
        """Largest number of hops of a call: rows times hops through all trees, at least 1 a row."""
        return self.batch * max(1, self.facts.hops)

    def points(self) -> dict[Point, Schedule]:
        """Return every point that has a schedule, with that schedule, in a fixed order."""
        written = ((point, self.schedule(point)) for point in self.candidates())
        return {point: sch for point, sch in written if sch is not None}

    @cached_property
    def key(self) -> SpaceKey:
        """The facts that decide which points the space has."""
        layouts = tuple(sorted(fitting_layouts(self.facts)))
        kinds = [loop.kind for loop in self.default.loops() if loop.parallel]
        kinds += ["batch"] * (self.batch >= SHARED_BATCH)
        shared = ("rows" if kinds[0] == "batch" else "trees") if kinds and self.threads else ""
        return SpaceKey(
            layouts,
            self.batch,
            is_too_large_for_tiles(self.facts),
            self.facts.has_small_trees,
            shared,
            self.facts.row_bytes >= WIDE_ROW_BYTES,
        )

    def candidates(self) -> tuple[Point, ...]:
        """Return all points, including those that directives refuse, in a fixed order."""
        return list_points(self.key)

    def schedule(self, point: Point) -> Schedule | None:
        """Return the schedule of a point; None if refused, or if it changes the order of trees."""
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
    """The size of a problem for which schedules are written; similar models share it.

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
        """Return the problem size of a model."""
        start = work.start
        return cls(start.trees, start.classes, start.vectors, start.depths, work.shallowest)


@functools.lru_cache(
    maxsize=32
)  # few, because the schedule of a large model holds the depths of its trees
def write_schedule(problem: ProblemSize, point: Point) -> Schedule:
    """Build the schedule of a point.

    Raises:
        ScheduleError: a directive refuses it.
    """
    size = (problem.trees, problem.outputs)
    sch = Schedule(*size, depths=problem.depths, vectors=problem.vectors)
    sch = sch.tile_nodes(point.tile) if point.tile > 1 else sch
    sch = sch.represent_as(point.layout)
    if point.parallel == "trees" and sch.round_size == 1:
        sch = group_trees(sch, point)
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
    if point.cache:
        sch = sch.cache("batch" if point.cache == "pack" else "tree", point.cache)
    outer = sch.nest.children[0]
    if point.parallel == "trees":
        shared = "class" if sch.round_size > 1 else "t0"
        sch = sch.parallel(shared)
        return sch.ordered_reduce(shared) if shared == "t0" else sch
    return sch.parallel(outer.name) if point.parallel and outer.kind == "batch" else sch


def group_trees(sch: Schedule, point: Point) -> Schedule:
    """Divide the trees into groups, which cores share, of a multiple of the interleaved walks."""
    several = point.walks if type(point.walks) is int else GROUPS
    whole = -(-sch.trees // (several * GROUPS)) * several
    return sch.tile("tree", "t0", "t1", min(whole, -(-sch.trees // 2)))


def inner_loops(sch: Schedule) -> tuple[str, ...]:
    """Return the names of the class and tree loops; only "tree" if a walk serves all classes."""
    return ("class", "tree") if sch.round_size > 1 else ("tree",)


def make_lanes(sch: Schedule) -> Schedule:
    """Make the rows of a block the lanes of vectors, up to `LANES` rows each."""
    if "b1" not in sch.names() or (sch["b1"].count or 0) <= LANES:
        return sch.simdize(sch.leaves()[0].name)
    return sch.tile("b1", "b10", "b11", LANES).simdize("b11")


def peel(sch: Schedule, shallowest: int, index: str) -> Schedule:
    """Peel the first one or two hops of walks, which need no test for leaves.

    With tiles only one hop is peeled. If the root of some tree is a leaf, one hop is peeled, with a
    test.

    Args:
        sch: a schedule.
        shallowest: hops to the nearest leaf; with tiles, a hop is a tile.
        index: the leaf loop.
    """
    hops = min(1, shallowest) if sch.rewrites else min(2, shallowest)
    return sch.peel_walk(index, max(1, hops), check=hops == 0)


class Choice(NamedTuple):
    """The choice for some batch sizes.

    Attributes:
        point: its point in the space, with serial blocks.
        schedule: the schedule of the point, for one thread.
        shared: what threads share in the batches that it serves, see `Point`.
    """

    point: Point
    schedule: Schedule
    shared: str = ""

    def write(self, work: Workload) -> Schedule:
        """Return the schedule, which is parallel if something is shared by several cores."""
        outer = self.schedule.nest.children[0]
        if self.shared and work.target.cores > 1 and outer.kind == "batch":
            return write_schedule(ProblemSize.of(work), self.point._replace(parallel=self.shared))
        return self.schedule
