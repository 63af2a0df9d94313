"""What directives say of loops, and whole nests, as plain values that IR and JSON can hold.

takes: loops; gives: numbers, texts, lists and dicts; and the other way round.

    interleave("b1", 16), cache("b1", "pack")  -->  {"interleave": 16, "cache": "pack"}

A loop as a whole is a dict of its name, its kind and its range, what directives say of it, and the
loops inside, such as {"name": "t1", "kind": "tree", "range": [0, 8, 1], "interleave": 4}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import ScheduleError
from . import OUTPUT_KINDS, Bound, Guard, Loop, Share

Told = dict[str, Any]
Marks = Mapping[str, Told]
"""What directives say of loops, by the names of these."""

MARKS: dict[str, tuple[str, ...]] = {
    "parallel": ("parallel",),
    "gpu_dimension": ("gpu", "dimension"),
    "unroll": ("unroll",),
    "interleave": ("interleave", "factor"),
    "simdize": ("simdize", "how"),
    "unroll_walk": ("hops", "hops"),
    "peel_walk": ("peel", "hops", "check"),
    "cooperate": ("cooperate",),
    "cache": ("cache", "how"),
    "atomic_reduce": ("reduce",),
    "vector_reduce": ("reduce", "width"),
    "ordered_reduce": ("reduce",),
    "shared_reduce": ("reduce",),
}
"""The directives that say something of a loop, each with the field of `Loop` where that is kept and
the arguments that a mark holds; in an order in which none refuses what another has said before."""


def marks_of(loop: Loop) -> Told:
    """Return what directives say of a loop, by their names: 1, or their argument, or a list."""
    said: Told = {}
    for word, (field, *_) in MARKS.items():
        value = getattr(loop, field)
        if field == "peel" and value:
            value = [value, int(loop.check)]
        if field == "reduce":
            value = loop.width if word == f"{value}_reduce" else None
        if value != getattr(Loop, field):  # what it is where nothing is said
            said[word] = int_of_flag(value)
    return said


def int_of_flag(value: Any) -> Any:
    """Return 0 or 1 for a truth value, and anything else as it is."""
    return int(value) if isinstance(value, bool) else value


def with_marks(loop: Loop, marks: Marks) -> Loop:
    """Return a loop and those inside with what marks say of each, by its name; unchecked."""
    changes: Told = {"children": tuple(with_marks(x, marks) for x in loop.children)}
    said = marks.get(loop.name, {})
    for word in MARKS.keys() & said.keys():
        (field, *names), value = MARKS[word], said[word]
        if field == "peel":
            value, *check = value if isinstance(value, list) else [value]
            changes["check"] = all(check)
        elif field == "reduce":
            value, changes["width"] = word.removesuffix("_reduce"), value if names else 1
        changes[field] = value if names or field == "reduce" else bool(value)
    return replace(loop, **changes)


# -- whole nests ----------------------------------------------------------------------------------


def write_bound(value: Bound) -> Any:
    """Return a bound or a step as JSON can say it."""
    return "n" if value is None else str(value) if isinstance(value, Share) else value


def read_bound(value: Any) -> Bound:
    """Return what `write_bound` was given.

    Raises:
        ValueError: it was given nothing like that.
    """
    if type(value) is int or value == "n":
        return None if value == "n" else value
    parts = int(str(value).removeprefix("ceil(n/").removesuffix(")"))
    if parts < 1:
        raise ValueError(f"no share {value!r} of the rows")
    return Share(parts)


def write_loops(loops: tuple[Loop, ...], of: dict[str, str]) -> list[Told]:
    """Return loops as plain values, each with the name of the loop of S-TIR that it comes `of`."""
    told = []
    for loop in loops:
        span = [loop.start, write_bound(loop.stop), write_bound(loop.step)]
        here = {"name": loop.name, "of": of[loop.name], "kind": loop.kind, "range": span}
        case = {} if loop.case is None else {"case": loop.case}
        inside = {"loops": write_loops(loop.children, of)} if loop.children else {}
        told.append({**here, **case, **marks_of(loop), **inside})
    return told


def read_loops(told: list[Told]) -> tuple[Loop, ...]:
    """Return the loops that `write_loops` was given, without their marks.

    Raises:
        ValueError, TypeError, LookupError: it was given nothing like that.
    """
    loops = []
    for here in told:
        start, stop, step = map(read_bound, here["range"])
        if here["kind"] not in (*OUTPUT_KINDS, "tree") or not isinstance(here["name"], str):
            raise ValueError(f"no loop {here['name']!r} over {here['kind']!r}")
        if not _is_range(start, stop, step, counts_rows=here["kind"] == "batch"):
            raise ValueError(f"no range {here['range']!r} of loop {here['name']!r}")
        case = read_bound(here.get("case", "n"))
        if isinstance(case, Share) or (case is not None and case < 0):
            raise ValueError(f"no iteration {here['case']!r} of loop {here['name']!r}")
        inside = read_loops(here.get("loops", []))
        loops.append(Loop(here["name"], here["kind"], start, stop, step, inside, case))
    return tuple(loops)


def _is_range(start: Bound, stop: Bound, step: Bound, counts_rows: bool) -> bool:
    """Return whether values are those of a loop; only rows have a number that is not known."""
    known = [x for x in (stop, step) if type(x) is int]
    sound = type(start) is int and start >= 0 and step is not None and min(known, default=0) >= 0
    return sound and step != 0 and (counts_rows or len(known) == 2)


def list_told(told: list[Told]) -> Iterator[Told]:
    """Yield all loops of those that `write_loops` gave, outermost first."""
    for here in told:
        yield here
        yield from list_told(here.get("loops", []))


def name_arguments(loop: str, word: str, value: Any) -> dict[str, Any]:
    """Return the arguments of the directive that a mark of a loop stands for.

    Raises:
        ScheduleError: they are too many, or a mark without any says no.
    """
    names, values = MARKS[word][1:], [*value] if isinstance(value, list | tuple) else [value]
    if len(values) > max(1, len(names)) or (not names and value not in (1, True)):
        wanted = " and ".join(names) or "1, or nothing"
        raise ScheduleError(
            f"{word}: argument 'index': loop '{loop}' has the annotation {value!r}; give {wanted}"
        )
    given = dict(zip(names, values, strict=False))
    flags = {name: bool(x) for name, x in given.items() if name == "check" and x in (0, 1)}
    return {"index": loop, **given, **flags}


def write_guards(guards: Iterable[Guard]) -> list[Any]:
    """Return guards as plain values."""
    return [[list(guard.loops), write_bound(guard.stop)] for guard in guards]


def read_guards(told: list[Any]) -> tuple[Guard, ...]:
    """Return the guards that `write_guards` was given.

    Raises:
        ValueError, TypeError: it was given nothing like that.
    """
    if not all(isinstance(name, str) for names, _ in told for name in names):
        raise ValueError("a guard names no loops")
    return tuple(Guard(tuple(names), read_bound(stop)) for names, stop in told)
