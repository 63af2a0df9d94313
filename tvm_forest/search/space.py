"""What a CPU search may choose: a template of schedules with named parameters.

takes: Forest, Target, size of batch; gives: points, and the Schedule of each.

The template is a list of decisions, taken in order. Each asks the directives which `choices` they
declare for the schedule as it stands, so its options depend on what was decided before. The space
is the product of what is legal, less what the constants here leave out; `docs/tuning.md` has the
reasons. The default schedule is always a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ScheduleError
from ..forest import Forest
from ..layouts import OCTETS, SIMDIZED, SIMDIZED_TREES, TILED, TRANSPOSED, WORD_NODES
from ..schedule import DIRECTIVES, Schedule
from ..schedule_prims.batches import select_schedule
from ..schedule_prims.walks import LANE_COUNTS
from ..target import Target
from . import cpu_rules, heuristic
from .layout_fit import fitting_layouts
from .workload import Workload

Options = dict[Any, Schedule]
"""What a parameter may be, and what becomes of the schedule."""

ONE_ROW_ONLY = {"tile": (2,), "layout": (TRANSPOSED,)}
"""What is tried for single rows only."""

MAX_STRAIGHT_HOPS = 16
"""Hops of a straight line: deeper trees are lopsided, and most of the line would be in vain."""

BLOCKS = (16, 64, 256, 2048)
"""Rows of a block of walks. The largest ones serve trees that lie in the third-level cache."""

SMALL_BLOCK_BATCH, LEAST_BLOCK = 256, 64
"""Rows of a batch from which smaller blocks than of so many rows are left out."""

MORE_WALKS = {"trees": (2, cpu_rules.TREES_TOGETHER, 16), "rows": (16,)}
"""Walks that are tried besides those that `interleave` declares."""

LEAST_WALKS = {"trees": 2, "rows": 4}
"""Walks that hide some of each other's loads."""

SHARED_BATCH = 512
"""Rows of a batch from which rows are shared out among cores, as in the default schedules."""


class Point(NamedTuple):
    """A place in the space.

    Attributes:
        tile: nodes of a tile; 1 for none.
        layout: argument of `represent_as`.
        block: rows of a block; 0 for the whole batch.
        order: what the innermost loop runs over, "trees" or "rows".
        walks: walks that advance together, or "gather", "permute", "bits" or "octets" for vectors.
        hops: "loop", "depth" for straight lines, or "peel".
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

    @classmethod
    def of(cls, forest: Forest, target: Target, batch: int, n_jobs: int | None = None) -> Space:
        """Return the space of a model; `n_jobs` as in `build`."""
        return cls.each(forest, target, (batch,), n_jobs)[batch]

    @classmethod
    def each(
        cls, forest: Forest, target: Target, batches: Iterable[int], n_jobs: int | None = None
    ) -> dict[int, Space]:
        """Return the space of each size of batch; the model is looked at once."""
        work = Workload.of(forest, target)
        defaults, spaces = heuristic.default_schedules_for(work), dict[int, Space]()
        threads = n_jobs != 1 and target.cores > 1
        for batch in batches:
            default = select_schedule(defaults, batch)
            default = default if threads else default.without("parallel")
            spaces[batch] = cls(work, default, batch, threads)
        return spaces

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
        return {Point(*values): sch for values, sch in self._extend((), self.start)}

    def schedule(self, point: Point) -> Schedule:
        """Return the schedule of a point."""
        sch = self.start
        for name, decide in DECISIONS.items():
            sch = decide(self, sch)[getattr(point, name)]
        return sch

    def _extend(self, values: tuple[Any, ...], sch: Schedule) -> Iterator[tuple[Any, Schedule]]:
        """Yield all points that begin with some values."""
        if len(values) == len(DECISIONS):
            yield values, sch
            return
        decide = DECISIONS[Point._fields[len(values)]]
        for value, new in decide(self, sch).items():
            yield from self._extend((*values, value), new)

    def default_block(self, layout: str) -> int:
        """Return the rows of a block of the default schedule; 0 if it has another layout."""
        has = self.default.representation == layout and "b0" in self.default.names()
        return self.default["b0"].step if has else 0

    def vector_blocks(self, layout: str) -> list[int]:
        """Return the blocks of a layout of vectors that a batch fills, and the default's."""
        sizes = LANE_COUNTS[SIMDIZED[layout]]
        return [x for x in sizes if x <= self.batch or x == self.default_block(layout)]

    def tries(self, name: str, value: Any) -> bool:
        """Whether a tile or layout is tried for this size of batch."""
        return self.batch == 1 or value not in ONE_ROW_ONLY[name]


# -- the decisions, in order ----------------------------------------------------------------------


def apply_choices(
    sch: Schedule, do: str, **wanted: Any
) -> Iterator[tuple[dict[str, Any], Schedule]]:
    """Yield the choices of a directive that keep the order of additions, with what they give.

    Args:
        sch: a schedule.
        do: the directive; what it declares and refuses nevertheless is left out.
        wanted: arguments that choices must have.
    """
    for arguments in DIRECTIVES[do].choices(sch):
        if all(arguments.get(name) == value for name, value in wanted.items()):
            try:
                new = DIRECTIVES[do].apply(sch, arguments)
            except ScheduleError:
                continue
            if new.keeps_order:
                yield arguments, new


def _decide_tile(space: Space, sch: Schedule) -> Options:
    if cpu_rules.is_too_large_for_tiles(space.facts):
        return {1: sch}
    tiles = {x["size"]: new for x, new in apply_choices(sch, "tile_nodes")}
    return {size: new for size, new in ({1: sch} | tiles).items() if space.tries("tile", size)}


def _decide_layout(space: Space, sch: Schedule) -> Options:
    declared = {x["name"]: new for x, new in apply_choices(sch, "represent_as")}
    known, fit = {sch.representation: sch} | declared, fitting_layouts(space.facts)
    if sch.rewrites:
        return {name: new for name, new in known.items() if name in fit and name in TILED}
    known |= {name: sch.represent_as(name) for name in SIMDIZED if space.vector_blocks(name)}
    if space.batch < cpu_rules.BLOCK_BATCHES[0]:
        known |= {OCTETS: sch.represent_as(OCTETS)}
    fit |= {space.default.representation}
    return {name: new for name, new in known.items() if name in fit and space.tries("layout", name)}


def _decide_block(space: Space, sch: Schedule) -> Options:
    layout = sch.representation
    if layout in SIMDIZED_TREES:
        return {0: sch}
    if layout in SIMDIZED:
        sizes, options = space.vector_blocks(layout), Options()
    else:
        least = 1 if space.batch < SMALL_BLOCK_BATCH else LEAST_BLOCK
        fit = {x for x in BLOCKS if least <= x <= space.batch}
        sizes, options = sorted(fit | {space.default_block(layout)} - {0}), {0: sch}
    return options | {size: sch.tile("batch", "b0", "b1", size) for size in sizes}


def _decide_order(space: Space, sch: Schedule) -> Options:
    """Blocks are for rows that walk together; a single row does not."""
    inner = cpu_rules.inner_loops(sch)
    if "b0" in sch.names():
        return {"rows": sch.reorder("b0", *inner, "b1")}
    too_few = 1 < space.batch < BLOCKS[0] and sch.representation not in SIMDIZED_TREES
    return {"trees": sch} | ({"rows": sch.reorder(*inner, "batch")} if too_few else {})


def _decide_walks(space: Space, sch: Schedule) -> Options:
    leaf = sch.leaves()[0]
    if sch.representation in SIMDIZED | SIMDIZED_TREES:
        return {x["how"]: new for x, new in apply_choices(sch, "simdize", index=leaf.name)}
    order = "trees" if leaf.kind == "tree" else "rows"
    declared = [x["factor"] for x, _ in apply_choices(sch, "interleave", index=leaf.name)]
    factors = sorted({*declared, *MORE_WALKS[order]}) if declared else []
    options: Options = {k: sch.interleave(leaf.name, k) for k in factors if k >= LEAST_WALKS[order]}
    if leaf.kind == "batch" and not sch.rewrites and "b1" in sch.names():
        options["gather"] = cpu_rules.make_lanes(sch)
    return options


def _decide_hops(space: Space, sch: Schedule) -> Options:
    options: Options = {"loop": sch}
    if sch.representation in SIMDIZED | SIMDIZED_TREES:
        return options
    leaf, work = sch.leaves()[0].name, space.facts
    if sch.rewrites or work.deepest <= MAX_STRAIGHT_HOPS:
        options["depth"] = sch.unroll_walk(leaf, "depth")
    return options | {"peel": cpu_rules.peel(sch, work.shallowest, leaf)}


def _decide_cache(space: Space, sch: Schedule) -> Options:
    """Trees that the first-level cache does not hold may be fetched ahead."""
    options: Options = {"": sch}
    fetched = {WORD_NODES, space.default.representation} - set(SIMDIZED | SIMDIZED_TREES)
    large = not space.facts.has_small_trees
    if large and sch.representation in fetched and "b0" in sch.names():
        choices = apply_choices(sch, "cache", index="tree", how="stream")
        options |= {x["how"]: new for x, new in choices}
    return options


def _decide_parallel(space: Space, sch: Schedule) -> Options:
    """Large batches are shared out, as where the default does so."""
    outer = sch.nest.children[0]
    shared = any(loop.parallel for loop in space.default.loops()) or space.batch >= SHARED_BATCH
    if not (space.threads and shared) or outer.kind != "batch":
        return {False: sch}
    return {True: sch.parallel(outer.name)}


DECISIONS: dict[str, Callable[[Space, Schedule], Options]] = {
    "tile": _decide_tile,
    "layout": _decide_layout,
    "block": _decide_block,
    "order": _decide_order,
    "walks": _decide_walks,
    "hops": _decide_hops,
    "cache": _decide_cache,
    "parallel": _decide_parallel,
}
