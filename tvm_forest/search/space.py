"""What a CPU search may choose: a template of schedules with named parameters.

takes: Forest, Target, size of batch; gives: points, and the Schedule of each.

The template is a list of decisions, taken in order. Each asks the directives which `choices` they
declare for the schedule as it stands, so its options depend on what was decided before, and the
space is the product of what is legal. A new factor or layout of a directive is in the space by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ScheduleError
from ..forest import Forest
from ..schedule import DIRECTIVES, Schedule
from ..schedule_prims.memory import WALKED
from ..schedule_prims.walks import LANES
from ..target import Target
from . import heuristic

Options = dict[Any, Schedule]
"""What a parameter may be, and what becomes of the schedule."""


class Point(NamedTuple):
    """A place in the space.

    Attributes:
        tile: nodes of a tile; 1 for none.
        layout: argument of `represent_as`.
        block: rows of a block; 0 for the whole batch.
        order: what the innermost loop runs over, "trees" or "rows".
        walks: walks that advance together, or "gather", "permute" or "bits" for vectors.
        hops: "loop", "depth" for straight lines, "peel 1" or "peel 2".
        parallel: whether blocks of rows, or rows, run on all cores.
    """

    tile: int = 1
    layout: str = "array"
    block: int = 0
    order: str = "trees"
    walks: int | str = 1
    hops: str = "loop"
    parallel: bool = False


@dataclass(frozen=True)
class Space:
    """All schedules of the template for one model, machine and size of batch.

    Every one of them keeps the order of additions.

    Attributes:
        start: the schedule without directives.
        default: the schedule that is used without a search.
        batch: rows of a call.
        threads: whether a call may use several cores.
    """

    start: Schedule
    default: Schedule
    batch: int
    threads: bool

    @classmethod
    def of(cls, forest: Forest, target: Target, batch: int, n_jobs: int | None = None) -> Space:
        """Return the space of a model; `n_jobs` as in `build`."""
        known = heuristic.default_schedules(forest, target)
        default = known[max(smallest for smallest in known if smallest <= batch)]
        threads = n_jobs != 1 and target.cores > 1
        return cls(heuristic.new_schedule(forest), default, batch, threads)

    def points(self) -> Iterator[Point]:
        """Yield every point, in a fixed order."""
        return (Point(*values) for values, _ in self._from((), self.start))

    def schedule(self, point: Point) -> Schedule:
        """Return the schedule of a point.

        Raises:
            ScheduleError: a parameter has a value that is no option.
        """
        sch = self.start
        for name, value in point._asdict().items():
            options = DECISIONS[name](self, sch)
            if value not in options:
                known = ", ".join(map(repr, options))
                raise ScheduleError(
                    f"search: parameter '{name}': {value!r} is no option (have: {known})\n{sch}"
                )
            sch = options[value]
        return sch

    def nearest(self, wish: Mapping[str, Any]) -> Point:
        """Return the point that has the wished values as far as they are legal."""
        sch, values = self.start, []
        for name, decide in DECISIONS.items():
            options = decide(self, sch)
            values.append(_closest(list(options), wish.get(name)))
            sch = options[values[-1]]
        return Point(*values)

    def varied(
        self, point: Point, names: tuple[str, ...], only: Mapping[str, tuple[Any, ...]]
    ) -> list[Point]:
        """Return the points with all options of some parameters, others as near as legal.

        A layout is never so near, so one that does not fit an option rules it out.

        Args:
            point: where the other parameters come from.
            names: parameters to vary.
            only: values to which options of a parameter are limited.
        """
        found, wishes = {point: None}, [point._asdict()]
        for name in names:
            wishes = [{**wish, name: v} for wish in wishes for v in self._options(name, wish, only)]
        found |= dict.fromkeys(map(self.nearest, wishes))
        return [p for p in found if p.layout == point.layout or "layout" in names]

    def _options(
        self, name: str, wish: dict[str, Any], only: Mapping[str, tuple[Any, ...]]
    ) -> list[Any]:
        sch = self.start
        for earlier, decide in DECISIONS.items():
            options = decide(self, sch)
            if earlier == name:
                return [value for value in options if value in only.get(name, options)]
            sch = options[_closest(list(options), wish[earlier])]
        raise AssertionError(f"no parameter {name}")

    def _from(self, values: tuple[Any, ...], sch: Schedule) -> Iterator[tuple[Any, Schedule]]:
        """Yield all points that begin with some values."""
        if len(values) == len(DECISIONS):
            yield values, sch
            return
        decide = DECISIONS[Point._fields[len(values)]]
        for value, new in decide(self, sch).items():
            yield from self._from((*values, value), new)


def wish_of(sch: Schedule) -> dict[str, Any]:
    """Read the parameters off a schedule, as far as it is one of the template."""
    leaf = sch.leaves()[0]
    sizes = [step.arguments["size"] for step in sch.rewrites if step.do == "tile_nodes"]
    return {
        "tile": sizes[0] if sizes else 1,
        "layout": sch.representation,
        "block": (sch["b1"].count or 0) if "b1" in sch.names() else 0,
        "order": "rows" if leaf.kind == "batch" else "trees",
        "walks": leaf.simdize or leaf.interleave,
        "hops": "loop",
        "parallel": any(loop.parallel for loop in sch.loops()),
    }


def _closest(options: list[Any], wished: Any) -> Any:
    """Return the wished option, else the nearest number, else the first."""
    if wished in options:
        return wished
    numbers = [x for x in options if type(x) is int]
    if type(wished) is int and numbers:
        return min(numbers, key=lambda x: abs(x - wished))
    return options[0]


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
    return {1: sch} | {x["size"]: new for x, new in _legal(sch, "tile_nodes")}


def _layouts(space: Space, sch: Schedule) -> Options:
    found = {sch.representation: sch} | {x["name"]: new for x, new in _legal(sch, "represent_as")}
    fit = (name for name in WALKED if any(True for _ in _lanes(space, name)))
    return found if sch.rewrites else found | {name: sch.represent_as(name) for name in fit}


def _lanes(space: Space, layout: str) -> Iterator[int]:
    """Blocks of a layout with lanes that a batch fills, for the most part, and the default's."""
    default = wish_of(space.default)
    for size in LANES[WALKED[layout]]:
        if size < 2 * space.batch or (default["layout"], default["block"]) == (layout, size):
            yield size


def _blocks(space: Space, sch: Schedule) -> Options:
    if sch.representation in WALKED:
        sizes, found = list(_lanes(space, sch.representation)), Options()
    else:
        choices = DIRECTIVES["tile"].choices(sch)
        sizes, found = [x["size"] for x in choices if x["index"] == "batch"], {0: sch}
        sizes = [size for size in sizes if size < 2 * space.batch]
    return found | {size: sch.tile("batch", "b0", "b1", size) for size in sizes}


def _orders(space: Space, sch: Schedule) -> Options:
    inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
    rows = ("b0", *inner, "b1") if "b0" in sch.names() else (*inner, "batch")
    found = {"rows": sch.reorder(*rows)}
    return found if sch.representation in WALKED else {"trees": sch} | found


def _walks(space: Space, sch: Schedule) -> Options:
    leaf = sch.leaves()[0]
    lanes = {x.get("how", "gather"): y for x, y in _legal(sch, "simdize", index=leaf.name)}
    if sch.representation in WALKED:
        return lanes
    found = {1: sch} | {x["factor"]: y for x, y in _legal(sch, "interleave", index=leaf.name)}
    if leaf.kind == "tree":
        found[heuristic.TREES] = sch.interleave(leaf.name, heuristic.TREES)
    return found | lanes


def _hops(space: Space, sch: Schedule) -> Options:
    found: Options = {"loop": sch}
    if sch.representation not in WALKED:
        found |= {str(x["hops"]): y for x, y in _legal(sch, "unroll_walk", index="tree")}
        found |= {f"peel {x['hops']}": y for x, y in _legal(sch, "peel_walk", index="tree")}
    return found


def _parallel(space: Space, sch: Schedule) -> Options:
    """A single block has nothing to share out, but larger batches of its schedule have."""
    outer = sch.nest.children[0]
    if not space.threads or outer.kind != "batch":
        return {False: sch}
    if max(outer.step, space.batch) == 1:
        return {False: sch}
    return {False: sch, True: sch.parallel(outer.name)}


DECISIONS: dict[str, Callable[[Space, Schedule], Options]] = {
    "tile": _tiles,
    "layout": _layouts,
    "block": _blocks,
    "order": _orders,
    "walks": _walks,
    "hops": _hops,
    "parallel": _parallel,
}
