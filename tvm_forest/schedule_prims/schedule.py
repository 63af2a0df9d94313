"""The schedule: how a forest is evaluated, as a value, and the directives that change it.

takes: the size of a problem; gives: Schedule, an immutable nest of loops and the trace behind it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from .. import layouts
from ..errors import ScheduleError
from ..system.process.locks import cached_property
from ..system.values import dataclass, field, replace
from . import devices, fission, loops, memory, model, reductions, regions, walks
from .directive import DIRECTIVES, TraceStep, is_whole, make_error
from .nest import Loop, Nest, Share, find_paths, make_chain, replace_loop
from .nest.marks import MARKS, Marks, marks_of, name_arguments
from .nest.problems import Problem, list_problems

JSON_VERSION = 1
ROOT = ""
"""Name of the invisible loop around all others."""


@dataclass(frozen=True, eq=False)
class Schedule(Nest):
    """A nest of loops over rows, classes and trees.

    Without directives, a loop over rows contains one over trees. A model of several classes has a
    loop over classes between them. With leaf vectors, that loop is the innermost, since one walk
    finds the values of all classes: a walk serves all loops over classes inside it.

    Every directive is a method that returns a new schedule and leaves the old one unchanged, so one
    can print after any step. Two schedules are equal if they compute in the same way: same problem,
    same nest, whatever steps led there.

    Attributes:
        trees, classes, vectors, layout, nest, guards, replaced: see `Nest`.
        types: requested types of layout fields, by name; the layout chooses the others.
        target: kind of target whose limits directives check, "cpu" or "gpu"; None for both.
        depths: depth of the deepest tree of each round of the model; None if not known.
        rewrites: steps that change the model before it is laid out, in order.
        hops: depths after the rewrites, for directives such as `split_by_depth`; None if not known.
        likely: hops to the leaves that nine rows of ten reach, for each round; None if not known.
        steps: the trace.
    """

    target: str | None = None
    depths: tuple[int, ...] | None = None
    layout: str = field(default=layouts.PADDED, kw_only=True)
    types: tuple[tuple[str, str], ...] = ()
    rewrites: tuple[TraceStep, ...] = ()
    hops: tuple[int, ...] | None = ()
    likely: tuple[int, ...] | None = None
    steps: tuple[TraceStep, ...] = ()

    def __repr__(self) -> str:
        """Return the directives as one line of text; `print` shows the nest."""
        told = (f"{x.do}({', '.join(map(repr, x.arguments.values()))})" for x in self.steps)
        return f"<Schedule of {self.trees} trees: {'.'.join(told) or 'row by row, tree by tree'}>"

    def _repr_html_(self) -> str:
        from html import escape  # most processes show no schedules

        return f"<pre>{escape(str(self))}</pre>"

    # -- the language -----------------------------------------------------------------------------

    tile = loops.tile
    reorder = loops.reorder
    parallel = loops.parallel
    unroll = loops.unroll
    split = fission.split
    specialize = fission.specialize
    split_by_depth = fission.split_by_depth
    interleave = walks.interleave
    unroll_walk = walks.unroll_walk
    peel_walk = walks.peel_walk
    simdize = walks.simdize
    vectorize = walks.simdize
    tile_nodes = model.tile_nodes
    pad_trees = model.pad_trees
    sort_trees = model.sort_trees
    know_depths = model.know_depths
    represent_as = memory.represent_as
    cache = memory.cache
    atomic_reduce = reductions.atomic_reduce
    vector_reduce = reductions.vector_reduce
    ordered_reduce = reductions.ordered_reduce
    gpu_dimension = devices.gpu_dimension
    cooperate = devices.cooperate
    shared_reduce = reductions.shared_reduce

    # -- making -----------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        for name, least in (("trees", 0), ("classes", 1)):
            value = getattr(self, name)
            if not is_whole(value, least):
                what = f"{value!r} is no count; give an integer >= {least}"
                raise ScheduleError(f"schedule: argument '{name}': {what}")
        if self.hops == ():
            object.__setattr__(self, "hops", self.depths)
        if self.nest is None:
            object.__setattr__(self, "nest", self._make_nest())

    def _make_nest(self) -> Loop:
        batch = Loop("batch", "batch", 0, None, 1)
        outputs = [Loop("class", "class", 0, self.classes, 1)] if self.classes > 1 else []
        rounds = [Loop("tree", "tree", 0, self.rounds, 1)]
        inner = [*rounds, *outputs] if self.vectors else [*outputs, *rounds]
        return make_chain([Loop(ROOT, "batch", 0, 1, 1), batch, *inner])

    # -- looking ----------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Number of iterations of the loop over trees before any directive."""
        return -(-self.trees // self.round_size)

    def is_default(self) -> bool:
        """Return whether this schedule equals the one without directives."""
        return self == self.fresh()

    def fresh(self) -> Schedule:
        """Return the schedule of the same problem without directives."""
        size = (self.trees, self.classes, self.target, self.depths)
        return Schedule(*size, vectors=self.vectors)

    def copy(self) -> Schedule:
        """Return this schedule, which is immutable and so its own copy."""
        return self

    def has_rewrite(self, directive: str) -> bool:
        """Return whether a directive rewrites the model before it is laid out."""
        return any(step.do == directive for step in self.rewrites)

    @cached_property
    def keeps_order(self) -> bool:
        """Whether every row adds its trees in ascending model order, one after the other.

        If so, results are bit-equal to the source model's; otherwise they may differ in the last
        bits.
        """
        return regions.adds_in_order(self.nest) and not self.has_rewrite("sort_trees")

    @property
    def reproducible(self) -> bool:
        """Whether every run gives the same bits.

        The order of atomic additions is by chance; partial sums are added in an order that the
        schedule alone decides.
        """
        return all(loop.reduce != "atomic" for loop in self.loops())

    def problem(self) -> Problem | None:
        """Return the first problem of the nest, such as two loops of one name; None without any."""
        names = self.names()
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            return Problem(doubled, f"two loops are named '{doubled}'", "rename one")
        wanted = {"batch", "tree"} | ({"class"} if self.classes > 1 else set())
        paths = (path[1:] for path in find_paths(self.nest))
        of_paths = (list_problems(path, wanted, self.vectors) for path in paths)
        looks = walks.list_lane_problems, regions.list_order_problems, devices.list_team_problems
        of_nest = (look(self.nest) for look in looks)
        return next(chain.from_iterable(chain(of_paths, of_nest)), None)

    # -- changing ---------------------------------------------------------------------------------

    def with_loop(self, name: str, *new: Loop) -> Schedule:
        """Return this schedule with the loop `name` and its inside replaced by the loops `new`."""
        return replace(self, nest=replace_loop(self.nest, name, new)[0])

    def with_annotations(self, steps: Iterable[TraceStep], marks: Marks) -> Schedule:
        """Return this schedule with the settings in loop annotations applied as directives.

        Args:
            steps: the directives that make copies of loops, and those that apply to the copies.
            marks: settings of each loop without copies, by its name, see `nest.marks`.

        Raises:
            ScheduleError: a directive refuses a step or a setting.
        """
        new = self
        for step in steps:
            new = new.take_steps([step])
            if step.do != "know_depths":  # what it says holds for the next step
                new = replace(new, hops=None, likely=None)
        return replace(_mark(new, marks), steps=self.steps)

    def retell(self) -> Schedule:
        """Return a schedule whose directives produce this nest, which was read from a TIR function.

        Of two loops over the same kind, the one with the larger step becomes the outer loop of a
        `tile`, wherever it is in the nest; a loop that was not split keeps its default name:

            for rows in (0, n, 1)        # the name stays "batch"
              for t1 in (0, 8, 1)        # tile("tree", "t0", "t1", 8)
                for t0 in (0, 96, 8)     # reorder("batch", "t1", "t0")

        Raises:
            ScheduleError: a loop has copies, or a directive refuses a nest that TVM's primitives
                have made.
        """
        for loop in self.nest.traverse():
            if len(loop.children) > 1 or loop.is_specialized:
                what = f"'{loop.name}' holds loops with copies, which only directives make; give"
                what = f"argument 'schedule': {what} the Schedule that made them"
                raise make_error(self, "build", what, loop.name)
        sch, names = self.without(), dict[str, str]()
        for root in sch.loops():
            own = sorted((x for x in self.loops() if x.kind == root.kind), key=_find_depth)
            names |= {x.name: x.name if own[1:] else root.name for x in own}
            index = root.name
            for place, loop in enumerate(own[:-1], 2):
                rest = own[-1].name if place == len(own) else f"{loop.name}.inside"
                parts = isinstance(loop.step, Share)
                how = {"parts": loop.step.parts} if parts else {"size": loop.step}
                sch, index = sch.tile(index, loop.name, rest, **how), rest
        order = [names[loop.name] for loop in self.loops()]
        sch = sch if order == [*sch.names()] else sch.reorder(*order)
        return _mark(sch, {names[loop.name]: marks_of(loop) for loop in self.loops()})

    def without(self, *directives: str) -> Schedule:
        """Return the schedule of the trace without the steps of some directives."""
        return self.fresh().take_steps(x for x in self.steps if x.do not in directives)

    def on_one_thread(self) -> Schedule:
        """Return the schedule without parallel loops, and without the reductions that they need."""
        return self.without("parallel", *(name for name in DIRECTIVES if name.endswith("_reduce")))

    def take_steps(self, steps: Iterable[TraceStep]) -> Schedule:
        """Return the schedule after further steps of a trace.

        Raises:
            ScheduleError: a directive is unknown, or refuses a step.
        """
        sch = self
        for step in steps:
            if not isinstance(step.do, str) or step.do not in DIRECTIVES:
                known = ", ".join(sorted(DIRECTIVES))
                raise ScheduleError(f"schedule: no directive {step.do!r} (have: {known})")
            sch = DIRECTIVES[step.do].apply(sch, step.arguments)
        return sch

    # -- texts ------------------------------------------------------------------------------------

    def _list_lines(self, mark: str | None) -> Iterator[str]:
        for step in self.rewrites:
            words = ", ".join(f"{k} {v}" for k, v in step.arguments.items() if v is not None)
            yield f"{step.do.replace('_', ' ')}: {words}"
        if self.layout != layouts.PADDED or self.types:
            types = ", ".join(f"{name} {value}" for name, value in self.types)
            yield f"represent as {self.layout}" + f": {types}" * bool(types)
        yield from super()._list_lines(mark)

    def to_dot(self) -> str:
        """Return the nest as a graph in the DOT language of Graphviz, one box for each loop."""
        lines = ["digraph schedule {", "  node [shape=box, fontname=monospace];"]
        for loop in self.loops():
            word = ["parallel"] if loop.parallel else []
            label = [f"{loop.name} in {loop.range_text}", loop.kind, *word, *self._list_notes(loop)]
            text = "\\n".join(label).replace('"', "'")
            lines.append(f'  "{loop.name}" [label="{text}"];')
            lines += [f'  "{loop.name}" -> "{child.name}";' for child in loop.children]
        return "\n".join([*lines, "}"])

    def to_json(self) -> str:
        """Return the problem and the trace as JSON text."""
        head = {"version": JSON_VERSION, "batch": None, "trees": self.trees}  # any number of rows
        known = {"target": self.target, "depths": self.depths, "vectors": self.vectors or None}
        size = {key: value for key, value in known.items() if value is not None}
        steps = [step.to_dict() for step in self.steps]
        return json.dumps({**head, "classes": self.classes, **size, "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Rebuild a schedule by replaying its trace.

        Raises:
            ScheduleError: the text does not describe a schedule, or a step is refused.
        """
        try:
            data = json.loads(text)
            depths = None if data.get("depths") is None else tuple(data["depths"])
            size = (data["trees"], data["classes"], data.get("target"), depths)
            start = cls(*size, vectors=bool(data.get("vectors", False)))
            steps = [*map(TraceStep.of, data["steps"])]
            version, batch = data["version"], data["batch"]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ScheduleError(
                f"from_json: argument 'text': no schedule ({error}); give what to_json returned"
            ) from None
        for name, given, wanted, advice in (
            ("version", version, JSON_VERSION, "write it again with this version of tvm_forest"),
            ("batch", batch, None, "schedules are for any number of rows, so write null"),
        ):
            if given != wanted:
                what = f"expected {json.dumps(wanted)}, got {given!r}"
                raise ScheduleError(f"from_json: field '{name}': {what}; {advice}")
        return start.take_steps(steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        size = (self.trees, self.classes, self.vectors, self.target)
        rewrites = tuple(json.dumps(step.to_dict()) for step in self.rewrites)
        return (*size, self.layout, self.types, rewrites, self.nest, self.guards)


def _mark(sch: Schedule, marks: Marks) -> Schedule:
    """Return a schedule after the directives that marks, by name of the loop, stand for."""
    for word in MARKS:
        for name, said in marks.items():
            if word in said:
                sch = DIRECTIVES[word].apply(sch, name_arguments(name, word, said[word]))
    return sch


def _find_depth(loop: Loop) -> tuple[int, bool]:
    """Sort key of loops over one kind: larger steps first; of equal ones, one iteration last."""
    return (-loop.step if isinstance(loop.step, int) else -sys.maxsize), loop.count == 1
