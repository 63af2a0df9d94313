"""What a directive is: a checked rewrite of the nest, a trace entry, and a mapping onto TVM.

takes: a function Schedule -> Schedule; gives: a method of `Schedule` and an entry in `DIRECTIVES`.

The mapping receives TVM's live schedule and only calls its methods, so no module of this folder
imports tvm when it runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import ScheduleError
from ..forest import Forest
from ..nest import Loop
from ..schedule import DIRECTIVES, Schedule, Step

if TYPE_CHECKING:
    from tvm import s_tir

Choices = Callable[[Schedule], Iterator[dict[str, Any]]]
Rewrite = Callable[..., Schedule]


@dataclass
class Nest:
    """The nest while it is rebuilt in TVM.

    Attributes:
        tir: TVM's schedule of the function.
        loops: TVM's loop of each index that S-TIR can still rewrite.
        order: names of all indices in S-TIR's nest, outermost first.
        reductions: names of the indices over trees.
    """

    tir: s_tir.Schedule
    loops: dict[str, Any]
    order: list[str]
    reductions: set[str]

    def is_reduction(self, name: str) -> bool:
        """Return whether S-TIR sees a reduction loop, which it will not make parallel."""
        return name in self.reductions

    def replace(self, name: str, new: dict[str, Any]) -> None:
        """Put loops in the place of one."""
        del self.loops[name]
        self.loops |= new
        at = self.order.index(name)
        self.order[at : at + 1] = new
        if name in self.reductions:
            self.reductions |= set(new)


@dataclass
class RegisteredDirective:
    """A word of the language."""

    name: str
    rewrite: Rewrite
    choices: Choices
    onto_tir: Callable[..., None] | None = None
    onto_forest: Callable[..., Forest] | None = None

    def apply(self, sch: Schedule, arguments: dict[str, Any]) -> Schedule:
        """Rewrite, check the invariants, and append the step to the trace.

        Raises:
            ScheduleError: an argument is wrong; `sch` is unchanged.
        """
        named = dict(arguments)
        listed = named.pop(_list_parameter(self.rewrite), ())
        try:
            bound = inspect.signature(self.rewrite).bind(sch, *listed, **named)
        except TypeError as error:
            raise refuse(sch, self.name, str(error)) from None
        for name, value in arguments.items():
            if getattr(value, "ndim", 0):  # no comparison with an array is true or false
                what = f"argument '{name}': got an array, which JSON cannot say; use .tolist()"
                raise refuse(sch, self.name, what)
        new = self.rewrite(*bound.args, **bound.kwargs)
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
        problem = new.problem()
        if problem is not None:
            raise refuse(sch, self.name, f"{problem}; leave this step out")
        return replace(new, steps=(*sch.steps, Step(self.name, arguments)))


@dataclass(frozen=True)
class DirectiveHandle:
    """What the decorated name is bound to; carries the hooks."""

    registered: RegisteredDirective

    def onto_tir(self, function: Callable[..., None]) -> Callable[..., None]:
        """Register how the step is replayed on TVM's schedule: `function(nest, **arguments)`."""
        self.registered.onto_tir = function
        return function

    def onto_forest(self, function: Callable[..., Forest]) -> Callable[..., Forest]:
        """Register how the step rewrites the model: `function(forest, **arguments)`."""
        self.registered.onto_forest = function
        return function


def directive(choices: Choices) -> Callable[[Rewrite], DirectiveHandle]:
    """Make a rewrite a directive: a method of `Schedule` under the function's name.

    Args:
        choices: yields the argument dicts that a search may try on a schedule.
    """

    def register(rewrite: Rewrite) -> DirectiveHandle:
        entry = RegisteredDirective(rewrite.__name__, rewrite, choices)
        DIRECTIVES[entry.name] = entry

        @functools.wraps(rewrite)
        def method(sch: Schedule, *args: Any, **kwargs: Any) -> Schedule:
            return entry.apply(sch, _named_arguments(rewrite, sch, args, kwargs))

        setattr(Schedule, entry.name, method)
        return DirectiveHandle(entry)

    return register


def _list_parameter(rewrite: Rewrite) -> str:
    """Name of the `*` parameter, which the trace stores as a list; "" if there is none."""
    parameters = inspect.signature(rewrite).parameters.values()
    return next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")


def _named_arguments(
    rewrite: Rewrite, sch: Schedule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    signature = inspect.signature(rewrite)
    try:
        bound = signature.bind(sch, *args, **kwargs)
    except TypeError as error:
        raise refuse(sch, rewrite.__name__, str(error)) from None
    named = dict(bound.arguments)
    named.pop(next(iter(signature.parameters)))
    listed = _list_parameter(rewrite)
    return {**named, listed: list(named.get(listed, ()))} if listed else named


def refuse(sch: Schedule, where: str, what: str, mark: str | None = None) -> ScheduleError:
    """Make the exception of this room: what is wrong, then the nest as it stands."""
    return ScheduleError(f"{where}: {what}\n{sch.render(mark)}")


def find_loop(sch: Schedule, where: str, argument: str, name: Any) -> Loop:
    """Return the live loop `name`.

    Raises:
        ScheduleError: there is none; the message lists the live ones, or what replaced it.
    """
    if isinstance(name, str) and name in sch.names():
        return sch[name]
    for old, new in sch.replaced:
        if isinstance(name, str) and old == name:
            names = ", ".join(f"'{x}'" for x in new)
            raise refuse(sch, where, f"argument '{argument}': '{name}' was replaced by {names}")
    live = ", ".join(sch.names())
    raise refuse(sch, where, f"argument '{argument}': no live index {name!r} (live: {live})")


def check_new_name(sch: Schedule, where: str, argument: str, name: Any) -> None:
    """Refuse a name that is no identifier or was already used in this schedule."""
    if not (isinstance(name, str) and name.replace(".", "_").isidentifier()):
        raise refuse(
            sch, where, f"argument '{argument}': {name!r} is no name; use letters and digits"
        )
    if name in sch.names() or name in dict(sch.replaced):
        raise refuse(
            sch, where, f"argument '{argument}': '{name}' already exists; choose another name"
        )
