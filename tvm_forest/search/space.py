"""What a CPU search may choose: a template of schedules with named parameters.

takes: Forest, Target, size of batch; gives: points, and the Schedule of each.

The template is a list of decisions, taken in order. Each asks the directives which `choices` they
declare for the schedule as it stands, so its options depend on what was decided before, and the
space is the product of what is legal, less what the constants here leave out, each with its reason.
The default schedule is always a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ScheduleError
from ..forest import Forest
from ..schedule import DIRECTIVES, Schedule
from ..schedule_prims.memory import WALKED
from ..schedule_prims.walks import LANES
from ..target import Target
from . import heuristic
from .facts import Facts

Options = dict[Any, Schedule]
"""What a parameter may be, and what becomes of the schedule."""

ONE_ROW = {"tile": (2,), "layout": ("reorg",)}
"""What is tried for single rows only: 4096 rows of `airline` take 2.8 times as long in tiles of 2
as in tiles of 8, and in `reorg`, which scatters the nodes of a tree, 1.4 times as long as in
`array` (1.5 times on `covtype`)."""

MOST_STRAIGHT = 16
"""Hops of a straight line: deeper trees are lopsided, and most of the line would be in vain."""

BLOCKS = (16, 64, 256, 2048)
"""Rows of a block of walks; of those between, 128 to 1024 rows take 0.99 to 1.02 of the time of 64
(`airline`, `covtype`, ranked). Larger ones serve trees that lie in the third-level cache."""

FEW = 256
"""Rows of a batch from which blocks of less than 64 rows are left out: 16 of them take 1.06 and
1.08 of the time (`covtype`, `airline`)."""

TREES_AND_ROWS = {"trees": (2, heuristic.TREES, 16), "rows": (16,)}
"""Walks that are tried besides those that `interleave` declares."""

FEWEST = {"trees": 2, "rows": 4}
"""Walks that hide some of each other's loads: 2 rows take 1.9 times as long as 8, 1 tree 1.9 to 2.2
times as long as 10 (`airline`, `covtype`, 4096 rows)."""

SHARED_OUT = 512
"""Rows of a batch from which rows are shared out among cores, as in the default schedules."""


class Point(NamedTuple):
    """A place in the space.

    Attributes:
        tile: nodes of a tile; 1 for none.
        layout: argument of `represent_as`.
        block: rows of a block; 0 for the whole batch.
        order: what the innermost loop runs over, "trees" or "rows".
        walks: walks that advance together, or "gather", "permute" or "bits" for vectors.
        hops: "loop", "depth" for straight lines, or "peel".
        cache: "stream" if the next tree is fetched as a whole, else "".
        parallel: whether blocks of rows, or rows, run on all cores.
    """

    tile: int = 1
    layout: str = "array"
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
        start: the schedule without directives.
        default: the schedule that is used without a search, parallel only if `threads`.
        batch: rows of a call.
        threads: whether a call may use several cores.
        facts: counts of the model.
    """

    start: Schedule
    default: Schedule
    batch: int
    threads: bool
    facts: Facts

    @classmethod
    def of(cls, forest: Forest, target: Target, batch: int, n_jobs: int | None = None) -> Space:
        """Return the space of a model; `n_jobs` as in `build`."""
        return cls.each(forest, target, (batch,), n_jobs)[batch]

    @classmethod
    def each(
        cls, forest: Forest, target: Target, batches: Iterable[int], n_jobs: int | None = None
    ) -> dict[int, Space]:
        """Return the space of each size of batch; the model is looked at once."""
        known, facts = heuristic.default_schedules(forest, target), Facts.of(forest, target)
        threads = n_jobs != 1 and target.cores > 1
        start, spaces = heuristic.new_schedule(forest), dict[int, Space]()
        for batch in batches:
            default = known[max(smallest for smallest in known if smallest <= batch)]
            default = default if threads else default.without("parallel")
            spaces[batch] = cls(start, default, batch, threads, facts)
        return spaces

    def points(self) -> dict[Point, Schedule]:
        """Return every point and its schedule, in a fixed order."""
        return {Point(*values): sch for values, sch in self._from((), self.start)}

    def schedule(self, point: Point) -> Schedule:
        """Return the schedule of a point."""
        sch = self.start
        for name, decide in DECISIONS.items():
            sch = decide(self, sch)[getattr(point, name)]
        return sch

    def _from(self, values: tuple[Any, ...], sch: Schedule) -> Iterator[tuple[Any, Schedule]]:
        """Yield all points that begin with some values."""
        if len(values) == len(DECISIONS):
            yield values, sch
            return
        decide = DECISIONS[Point._fields[len(values)]]
        for value, new in decide(self, sch).items():
            yield from self._from((*values, value), new)

    def block_of_default(self, layout: str) -> int:
        """Return the rows of a block of the default schedule; 0 if it has another layout."""
        has = self.default.representation == layout and "b0" in self.default.names()
        return self.default["b0"].step if has else 0


# -- the decisions, in order ----------------------------------------------------------------------


def _legal(sch: Schedule, do: str, **wanted: Any) -> Iterator[tuple[dict[str, Any], Schedule]]:
    """Yield the choices that a directive declares and does not refuse, with what they give."""
    for arguments in DIRECTIVES[do].choices(sch):
        if all(arguments.get(name) == value for name, value in wanted.items()):
            try:
                new = DIRECTIVES[do].apply(sch, arguments)
            except ScheduleError:
                continue
            if new.keeps_order:
                yield arguments, new


def _tiles(space: Space, sch: Schedule) -> Options:
    facts = space.facts
    if facts.hops > heuristic.MOST_TILED or facts.nodes > heuristic.MOST_TILED_NODES:
        return {1: sch}
    found = {1: sch} | {x["size"]: new for x, new in _legal(sch, "tile_nodes")}
    return {size: new for size, new in found.items() if _serves(space, "tile", size)}


def _serves(space: Space, name: str, value: Any) -> bool:
    return space.batch == 1 or value not in ONE_ROW[name]


def _layouts(space: Space, sch: Schedule) -> Options:
    known = {sch.representation: sch} | {x["name"]: y for x, y in _legal(sch, "represent_as")}
    if sch.rewrites:
        return {name: y for name, y in known.items() if name in space.facts.tiled}
    known |= {name: sch.represent_as(name) for name in WALKED if _lanes(space, name)}
    fit = {*space.facts.layouts, space.default.representation}
    return {name: y for name, y in known.items() if name in fit and _serves(space, "layout", name)}


def _lanes(space: Space, layout: str) -> list[int]:
    """Blocks of a layout with lanes that a batch fills, and the default's."""
    sizes = LANES[WALKED[layout]]
    return [x for x in sizes if x <= space.batch or x == space.block_of_default(layout)]


def _blocks(space: Space, sch: Schedule) -> Options:
    if sch.representation in WALKED:
        sizes, found = _lanes(space, sch.representation), Options()
    else:
        least = 1 if space.batch < FEW else 64
        fit = {x for x in BLOCKS if least <= x <= space.batch}
        sizes = sorted(fit | {space.block_of_default(sch.representation)} - {0})
        found = {0: sch}
    return found | {size: sch.tile("batch", "b0", "b1", size) for size in sizes}


def _orders(space: Space, sch: Schedule) -> Options:
    """Blocks are for rows that walk together; a single row does not."""
    inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
    if "b0" in sch.names():
        return {"rows": sch.reorder("b0", *inner, "b1")}
    too_few = 1 < space.batch < BLOCKS[0]
    return {"trees": sch} | ({"rows": sch.reorder(*inner, "batch")} if too_few else {})


def _walks(space: Space, sch: Schedule) -> Options:
    leaf = sch.leaves()[0]
    if sch.representation in WALKED:
        return {x["how"]: y for x, y in _legal(sch, "simdize", index=leaf.name)}
    order = "trees" if leaf.kind == "tree" else "rows"
    declared = [x["factor"] for x, _ in _legal(sch, "interleave", index=leaf.name)]
    factors = sorted({*declared, *TREES_AND_ROWS[order]})
    found: Options = {
        k: sch.interleave(leaf.name, k) for k in factors if declared and k >= FEWEST[order]
    }
    if leaf.kind == "batch" and not sch.rewrites and "b1" in sch.names():
        found["gather"] = heuristic.in_lanes(sch)
    return found


def _hops(space: Space, sch: Schedule) -> Options:
    found: Options = {"loop": sch}
    if sch.representation in WALKED:
        return found
    leaf, facts = sch.leaves()[0].name, space.facts
    if sch.rewrites or facts.deepest <= MOST_STRAIGHT:
        found["depth"] = sch.unroll_walk(leaf, "depth")
    shallowest = min(1, facts.shallowest) if sch.rewrites else facts.shallowest  # a hop is a tile
    return found | {"peel": heuristic.peeled(sch, shallowest, leaf)}


def _caches(space: Space, sch: Schedule) -> Options:
    """Trees that the first-level cache does not hold may be fetched ahead."""
    large = space.facts.nodes > heuristic.NEAR * space.facts.trees
    found: Options = {"": sch}
    fetched = {"packed", space.default.representation} - set(WALKED)
    if large and sch.representation in fetched and "b0" in sch.names():
        found |= {x["how"]: new for x, new in _legal(sch, "cache", index="tree", how="stream")}
    return found


def _parallel(space: Space, sch: Schedule) -> Options:
    """Large batches are shared out, as where the default does so."""
    outer = sch.nest.children[0]
    shared = any(loop.parallel for loop in space.default.loops()) or space.batch >= SHARED_OUT
    if not (space.threads and shared) or outer.kind != "batch":
        return {False: sch}
    return {True: sch.parallel(outer.name)}


DECISIONS: dict[str, Callable[[Space, Schedule], Options]] = {
    "tile": _tiles,
    "layout": _layouts,
    "block": _blocks,
    "order": _orders,
    "walks": _walks,
    "hops": _hops,
    "cache": _caches,
    "parallel": _parallel,
}
