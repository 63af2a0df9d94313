"""Defines a directive: a checked rewrite of the nest, a trace step, and a mapping onto TVM.

takes: a function Schedule -> Schedule; gives: a method for `Schedule` and an entry in `DIRECTIVES`.

A directive is written as one function, which raises `Refusal` unless the step is allowed, and then
returns the rewritten schedule. The decorator `directive` adds what all directives share: it names
the arguments, turns a refusal into a ScheduleError that shows the nest, checks the invariants of
the result, and appends the step to the trace. The arguments that a search may try (`choices`) and
the effect on TVM's schedule (`onto_tir`) or on the model (`onto_forest`) are registered with it.
`onto_tir` receives TVM's live schedule and only calls its methods, so no module of this folder
imports tvm at run time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from ..errors import ScheduleError
from ..forest import Forest
from ..system.process.locks import cached_property
from ..system.values import dataclass, replace
from .nest import Loop, Nest, find_leaf_loops
from .nest.problems import Problem

if TYPE_CHECKING:
    from .schedule import Schedule

P = ParamSpec("P")
Choices = Callable[["Schedule"], Iterator[dict[str, Any]]]
Method = Callable[Concatenate["Schedule", P], "Schedule"]
TirLoops = dict[str, Any]
"""TVM's handles of the loops that S-TIR can still rewrite, by name, outermost first."""

LIST_PARAMETER = "indices"
"""Name of a directive's `*` parameter, if it has one; the trace stores its arguments as a list."""


@dataclass(frozen=True)
class TraceStep:
    """One step of the trace: a directive and its arguments, all of them by name."""

    do: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, said: dict[str, Any]) -> TraceStep:
        """Return the step from its dict form, see `to_dict`.

        Raises:
            TypeError, LookupError, AttributeError: the dict is not of that form.
        """
        return cls(said["do"], {name: value for name, value in said.items() if name != "do"})

    def to_dict(self) -> dict[str, Any]:
        """Return the step as a dict, as in the JSON form of a schedule."""
        return {"do": self.do, **self.arguments}


class Refusal(Exception):
    """The reason why a directive refuses a step.

    Args:
        subject: name of the argument that is wrong, or the loop that `index` names; None for the
            step itself.
        what: what is wrong with it, and what to do.
        mark: loop that is marked in the printed nest; None for the loop that `index` names, "" for
            no mark.
    """

    def __init__(self, subject: str | Loop | None, what: str, mark: str | None = None) -> None:
        if isinstance(subject, Loop):
            what = f"'{subject.name}' {what}"
            subject = "index"
        self.what = f"argument '{subject}': {what}" if subject else what
        self.mark = mark


@dataclass(frozen=True)
class Directive:
    """A directive of the scheduling language.

    Attributes:
        name: name of the method that users call.
        rewrite: the function that checks a step and returns the rewritten schedule.
        choices: a function that yields the argument dicts that a search may try on a schedule.
        onto_tir: a function that changes the loops of TVM's schedule, `onto_tir(tir, loops,
            **arguments)`; None if TVM cannot, or if the directive only sets an annotation, which
            `replay` adds.
        onto_forest: a function that rewrites the model, `onto_forest(forest, **arguments)`; None
            for directives about loops.
        check_new: a function that refuses arguments when a user calls the directive,
            `check_new(**arguments)`; not called for a trace, which may come from another process.
    """

    name: str
    rewrite: Callable[..., Schedule]
    choices: Choices
    onto_tir: Callable[..., None] | None = None
    onto_forest: Callable[..., Forest] | None = None
    check_new: Callable[..., None] = lambda **arguments: None

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters of the directive, the schedule first."""
        return inspect.signature(self.rewrite)

    def apply(self, sch: Schedule, arguments: dict[str, Any]) -> Schedule:
        """Return the schedule after a step of this directive, with the step in its trace.

        Raises:
            ScheduleError: an argument is wrong, or the nest would have a problem.
        """
        named = dict(arguments)
        listed = named.pop(LIST_PARAMETER, ())
        bound = self.bind(sch, listed, named)
        for name, value in arguments.items():
            if getattr(value, "ndim", 0):  # no comparison with an array is true or false
                what = f"argument '{name}': got an array, which JSON cannot say; use .tolist()"
                raise make_error(sch, self.name, what)
        try:
            new = self.rewrite(*bound.args, **bound.kwargs)
        except Refusal as refusal:
            mark = arguments.get("index") if refusal.mark is None else refusal.mark
            raise make_error(sch, self.name, refusal.what, mark) from None
        problem = new.problem()
        if problem is not None:
            raise make_error(sch, self.name, self._blame(problem), problem.loop)
        stored = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
        return replace(new, steps=(*sch.steps, TraceStep(self.name, stored)))

    def _blame(self, problem: Problem) -> str:
        """Return the error text for a problem of the nest, with the name of the loop argument."""
        loops = (x for x in self.signature.parameters if x in ("index", LIST_PARAMETER))
        return f"argument '{next(loops, 'self')}': {problem}"

    def bind(self, sch: Schedule, args: Any, kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind the arguments of a call to their names; defaults are left out.

        Raises:
            ScheduleError: the arguments do not match the directive's parameters.
        """
        try:
            return self.signature.bind(sch, *args, **kwargs)
        except TypeError as error:
            raise make_error(sch, self.name, str(error)) from None


DIRECTIVES: dict[str, Directive] = {}


def offer_loops(wanted: Callable[[Loop], object], *more: dict[str, Any]) -> Choices:
    """Return a `choices` function that offers as `index` every loop for which `wanted` is true.

    Each loop is offered once with each dict of other arguments in `more`, or once alone.
    """

    def choices(sch: Schedule) -> Iterator[dict[str, Any]]:
        for loop in filter(wanted, sch.loops()):
            yield from ({"index": loop.name, **further} for further in more or ({},))

    return choices


def name_parts(loop: Loop, *endings: str) -> list[str]:
    """Return names with these endings for a loop's parts; those of `x@t0=1` begin with `x.t0.1`."""
    return [loop.name.replace("@", ".").replace("=", ".") + ending for ending in endings]


def directive(
    choices: Choices = lambda sch: iter(()), **more: Callable[..., Any]
) -> Callable[[Method[P]], Method[P]]:
    """Return a decorator that registers a function as a directive, and returns its method.

    `choices` and `more` are attributes of `Directive`; the method is for the body of `Schedule`.
    A search never takes a directive without `choices`.
    """

    def register(rewrite: Method[P]) -> Method[P]:
        entry = Directive(rewrite.__name__, rewrite, choices, **more)
        DIRECTIVES[entry.name] = entry

        @functools.wraps(rewrite)
        def method(sch: Schedule, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
            _, *named = entry.bind(sch, args, kwargs).arguments.items()
            new = entry.apply(sch, dict(named))
            entry.check_new(**dict(named))
            return new

        return method

    return register


# -- checks that several directives make ----------------------------------------------------------


def make_error(sch: Nest, where: str, what: str, mark: str | None = None) -> ScheduleError:
    """Return a ScheduleError: the reason, followed by the printed nest.

    Args:
        sch: the schedule or nest.
        where: name of the directive, with which the message begins.
        what: what is wrong, and what to do.
        mark: loop that is marked in the printed nest; None for none.
    """
    return ScheduleError(f"{where}: {what}\n{sch.render(mark)}")


def is_whole(value: Any, least: float, most: float = float("inf")) -> bool:
    """Return whether a value is an integer (not a bool) from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_word(argument: str, value: Any, words: Iterable[str]) -> None:
    """Refuse a value that is not one of the allowed words of an argument."""
    if value not in words:
        raise Refusal(argument, f"{value!r} is unknown; use {', '.join(words)}")


def find_loop(sch: Schedule, name: Any, argument: str = "index") -> Loop:
    """Return the loop with this name.

    Raises:
        Refusal: there is none; the message names the loops that replaced it, or all loops.
    """
    if isinstance(name, str):
        if name in sch.names():
            return sch[name]
        if name in dict(sch.replaced):
            names = ", ".join(f"'{x}'" for x in dict(sch.replaced)[name])
            raise Refusal(argument, f"'{name}' was replaced by {names}")
    live = ", ".join(sch.names())
    raise Refusal(argument, f"no live index {name!r} (live: {live})")


def find_unassigned(sch: Schedule, index: str) -> Loop:
    """Return the loop `index`.

    Raises:
        Refusal: there is no such loop, or a directive has set how its iterations run.
    """
    loop = find_loop(sch, index)
    if loop.is_assigned:
        raise Refusal(loop, f"is already {loop.describe()}; choose another loop")
    return loop


def find_unassigned_leaf(sch: Schedule, index: str) -> Loop:
    """Return the leaf loop `index`.

    Raises:
        Refusal: as for `find_unassigned`, or the loop is not a leaf loop.
    """
    loop = find_unassigned(sch, index)
    if find_leaf_loops(loop, sch.vectors) != (loop,):
        inside = f"contains '{loop.children[0].name}'"
        raise Refusal(loop, f"is not innermost ({inside}); choose the innermost loop")
    return loop


def check_new_names(sch: Schedule, advice: str, **names: Any) -> None:
    """Refuse two new loop names that are no identifiers (but for dots), equal, or taken.

    Args:
        sch: the schedule that gets the loops.
        advice: what the error tells users to do if the names are equal.
        names: each name, by the argument of the directive that gives it.
    """
    for argument, name in names.items():
        if not (isinstance(name, str) and name.replace(".", "_").isidentifier()):
            raise Refusal(argument, f"{name!r} is no name; use letters and digits", mark="")
        if name in sch.names() or name in dict(sch.replaced):
            raise Refusal(argument, f"'{name}' already exists; choose another name", mark="")
    first, second = names
    if names[first] == names[second]:
        raise Refusal(second, f"'{names[second]}' is also '{first}'; {advice}", mark="")
