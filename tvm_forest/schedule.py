"""The schedule: how a forest is to be evaluated, as a value.

takes: the size of a problem; gives: Schedule, an immutable nest of loops and the trace behind it.

This module holds the nest and its invariants. The directives that rewrite it live in
`schedule_prims` and become methods of `Schedule` there; nothing here knows TVM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .errors import ScheduleError

Kind = Literal["batch", "class", "tree"]
Stop = int | None  # None is the symbolic number of rows, n

JSON_VERSION = 1


@dataclass(frozen=True)
class Loop:
    """One index variable: the values start, start + step, ... below stop.

    The row (class, tree) that an iteration works on is the sum of the values of all enclosing
    loops of that kind.

    Attributes:
        name: unique in the schedule.
        kind: what the index counts.
        start: first value.
        stop: bound, exclusive; None means n, the number of rows.
        step: distance of two values.
        children: loops inside, in order; none for a leaf loop, whose body is one walk.
        parallel: whether the iterations may run at the same time on CPU threads.
        interleave: walks that advance together, 1 for one after the other.
    """

    name: str
    kind: Kind
    start: int
    stop: Stop
    step: int
    children: tuple[Loop, ...] = ()
    parallel: bool = False
    interleave: int = 1

    @property
    def count(self) -> int | None:
        """Number of iterations; None if it depends on n."""
        return None if self.stop is None else max(0, -(-(self.stop - self.start) // self.step))

    def walk(self) -> Iterator[Loop]:
        """Yield this loop and all loops inside, outermost first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Guard:
    """A condition on a partial tile: the sum of the loops' values stays below `stop`."""

    loops: tuple[str, ...]
    stop: Stop


@dataclass(frozen=True)
class Step:
    """One directive of the trace, with named arguments only."""

    do: str
    arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the form that the JSON text holds."""
        return {"do": self.do, **self.arguments}


class Directive(Protocol):
    """What `schedule_prims.directive` registers for each word of the language."""

    name: str
    onto_tir: Callable[..., None] | None

    def apply(self, sch: Schedule, arguments: dict[str, Any]) -> Schedule:
        """Return `sch` rewritten, with the step appended to its trace."""


DIRECTIVES: dict[str, Directive] = {}


@dataclass(frozen=True, eq=False)
class Schedule:
    """A nest of loops over rows, classes and trees.

    Every directive is a method that returns a new schedule and leaves the old one alone, so one
    can print between any two lines. Two schedules are equal if they compute the same way: same
    problem, same nest, whatever steps led there.

    Attributes:
        trees: number of trees, all classes together.
        classes: number of outputs; with more than one, a `class` loop stands around `tree`.
        batch: number of rows if it is fixed, None for any.
        representation: in-memory layout of the model.
        nest: the outermost loop.
        guards: conditions of partial tiles.
        replaced: names that are gone, with the names that took their place.
        steps: the trace.
    """

    trees: int
    classes: int = 1
    batch: int | None = None
    representation: str = "array"
    nest: Loop = field(default=None)  # type: ignore[assignment]
    guards: tuple[Guard, ...] = ()
    replaced: tuple[tuple[str, tuple[str, ...]], ...] = ()
    steps: tuple[Step, ...] = ()

    if TYPE_CHECKING:  # the directives are attached by schedule_prims

        def __getattr__(self, name: str) -> Callable[..., Schedule]: ...

    def __post_init__(self) -> None:
        for name in ("trees", "classes", "batch"):
            value = getattr(self, name)
            least = 1 if name == "classes" else 0
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if not whole and (name, value) != ("batch", None):
                raise ScheduleError(
                    f"schedule: argument '{name}': {value!r} is no count; "
                    f"give an integer >= {least}"
                )
        if self.nest is None:
            object.__setattr__(self, "nest", self._default_nest())

    def _default_nest(self) -> Loop:
        rounds = -(-self.trees // self.classes)
        nest = Loop("tree", "tree", 0, rounds, 1)
        if self.classes > 1:
            nest = Loop("class", "class", 0, self.classes, 1, (nest,))
        return Loop("batch", "batch", 0, self.batch, 1, (nest,))

    # -- looking ----------------------------------------------------------------------------------

    def loops(self) -> tuple[Loop, ...]:
        """Return all live loops, outermost first."""
        return tuple(self.nest.walk())

    def names(self) -> tuple[str, ...]:
        """Return the names of all live loops, outermost first."""
        return tuple(loop.name for loop in self.loops())

    def __getitem__(self, name: str) -> Loop:
        """Return the live loop of that name.

        Raises:
            KeyError: no live loop has that name.
        """
        return {loop.name: loop for loop in self.loops()}[name]

    def path(self, name: str) -> tuple[Loop, ...]:
        """Return the loops from the outermost one down to `name`, inclusive."""
        return _path_to(self.nest, name)

    def is_default(self) -> bool:
        """Return whether no directive has changed the nest."""
        return self == Schedule(self.trees, self.classes, self.batch)

    @property
    def keeps_order(self) -> bool:
        """Whether every row adds its trees in ascending model order, one after the other.

        If so, results are bit-equal to the source model; otherwise sums are regrouped.
        """
        leaves = [loop for loop in self.loops() if not loop.children]
        return all(
            _ascending([x for x in self.path(leaf.name) if x.kind == "tree"]) for leaf in leaves
        )

    def problem(self) -> str | None:
        """Return the first broken invariant as a sentence, or None."""
        loops = self.loops()
        names = [loop.name for loop in loops]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            return f"two loops are named '{doubled}'"
        outer = next((x for x in loops if x.children and x.interleave > 1), None)
        if outer is not None:
            return f"'{outer.name}' is interleaved but contains '{outer.children[0].name}'"
        wanted = {"batch", "tree"} | ({"class"} if self.classes > 1 else set())
        for loop in loops:
            kinds = {x.kind for x in self.path(loop.name)}
            if not loop.children and kinds != wanted:
                return f"the loops around '{loop.name}' run over {sorted(kinds)} only"
        return None

    # -- changing ---------------------------------------------------------------------------------

    def with_loop(self, name: str, new: Loop) -> Schedule:
        """Return this schedule with the subtree at loop `name` replaced by `new`."""
        return replace(self, nest=_replace_loop(self.nest, name, new))

    def without(self, directive: str) -> Schedule:
        """Return the schedule that the trace gives if all steps of one directive are left out."""
        return _replay(self, [step for step in self.steps if step.do != directive])

    # -- texts ------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def render(self, mark: str | None = None) -> str:
        """Return the nest as text, with an arrow at the loop `mark`."""
        return "\n".join(self._lines(mark))

    def _lines(self, mark: str | None = None) -> Iterator[str]:
        yield from self._loop_lines(self.nest, 0, mark)

    def _loop_lines(self, loop: Loop, depth: int, mark: str | None) -> Iterator[str]:
        stop = "n" if loop.stop is None else loop.stop
        head = f"{'parallel' if loop.parallel else 'for'} {loop.name}"
        line = f"{'  ' * depth}{head} in ({loop.start}, {stop}, {loop.step})"
        notes = "; ".join([loop.kind, *self._notes(loop)]) if loop.name != loop.kind else ""
        notes = notes or "; ".join(self._notes(loop))
        line = f"{line:<40} # {notes}" if notes else line
        yield line + ("   <----" if loop.name == mark else "")
        for child in loop.children:
            yield from self._loop_lines(child, depth + 1, mark)
        if not loop.children:
            yield "  " * (depth + 1) + self._body(loop)

    def _notes(self, loop: Loop) -> Iterator[str]:
        inside = {x.name for x in loop.walk()} - {loop.name}
        for guard in self.guards:
            if loop.name in guard.loops and not inside & set(guard.loops):
                stop = "n" if guard.stop is None else guard.stop
                yield f"guard {' + '.join(guard.loops)} < {stop}"
        if loop.interleave > 1:
            yield f"interleave {loop.interleave}"

    def _body(self, leaf: Loop) -> str:
        terms = {"batch": "", "class": "", "tree": ""}
        for loop in self.path(leaf.name):
            terms[loop.kind] += ("+" if terms[loop.kind] else "") + loop.name
        row, output, tree = terms["batch"], terms["class"], terms["tree"]
        if self.classes == 1:
            return f"out[{row}] += walk({tree}, {row})"
        tree = f"({tree})" if "+" in tree else tree
        return f"out[{row}, {output}] += walk({tree}*{self.classes} + {output}, {row})"

    def to_json(self) -> str:
        """Return the problem and the trace as JSON text."""
        head = {"version": JSON_VERSION, "batch": self.batch, "trees": self.trees}
        steps = [step.to_dict() for step in self.steps]
        return json.dumps({**head, "classes": self.classes, "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Rebuild a schedule by replaying its trace.

        Raises:
            ScheduleError: the text is no schedule, or a step is refused.
        """
        try:
            data = json.loads(text)
            start = cls(data["trees"], data["classes"], data["batch"])
            steps = [Step(step.pop("do"), step) for step in data["steps"]]
            version = data["version"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ScheduleError(
                f"from_json: argument 'text': no schedule ({error}); give what to_json returned"
            ) from None
        if version != JSON_VERSION:
            raise ScheduleError(
                f"from_json: field 'version': expected {JSON_VERSION}, got {version!r}; "
                "write the schedule again with this version of tvm_forest"
            )
        return _replay(start, steps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        size = (self.trees, self.classes, self.batch, self.representation)
        return (*size, self.nest, self.guards)


def _replay(sch: Schedule, steps: list[Step]) -> Schedule:
    start = Schedule(sch.trees, sch.classes, sch.batch)
    for step in steps:
        if not isinstance(step.do, str) or step.do not in DIRECTIVES:
            known = ", ".join(sorted(DIRECTIVES))
            raise ScheduleError(f"schedule: no directive {step.do!r} (have: {known})")
        start = DIRECTIVES[step.do].apply(start, step.arguments)
    return start


def _ascending(tree_loops: list[Loop]) -> bool:
    """Whether nested loops visit their sums in ascending order, on one thread."""
    pairs = zip(tree_loops, tree_loops[1:], strict=False)
    nested = all(outer.step >= (inner.stop or 0) - inner.start for outer, inner in pairs)
    return nested and not any(loop.parallel for loop in tree_loops)


def _path_to(loop: Loop, name: str) -> tuple[Loop, ...]:
    if loop.name == name:
        return (loop,)
    for child in loop.children:
        below = _path_to(child, name)
        if below:
            return (loop, *below)
    return ()


def _replace_loop(loop: Loop, name: str, new: Loop) -> Loop:
    if loop.name == name:
        return new
    return replace(loop, children=tuple(_replace_loop(x, name, new) for x in loop.children))
