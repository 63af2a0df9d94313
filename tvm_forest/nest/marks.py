"""What directives say of loops, and whole nests, as plain values that IR and JSON can hold.

takes: loops; gives: numbers, texts, lists and dicts; and the other way round.

    interleave("b1", 16), cache("b1", "pack")  -->  {"interleave": 16, "cache": "pack"}

A loop as a whole is a dict of its name, its kind and its range, what directives say of it, and the
loops inside, such as {"name": "t1", "kind": "tree", "range": [0, 8, 1], "interleave": 4}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import ScheduleError
from . import OUTPUT_KINDS, Bound, Guard, Loop, Share

Told = dict[str, Any]


def marks_of(loop: Loop) -> dict[str, Any]:
    """Return what directives say of a loop, by their names: 1, or their argument, or a list."""
    how, width = loop.reduce if isinstance(loop.reduce, tuple) else (loop.reduce, 1)
    said = {
        "parallel": loop.parallel or None,
        "unroll": loop.unroll or None,
        "gpu_dimension": loop.gpu,
        "interleave": loop.interleave if loop.interleave > 1 else None,
        "simdize": loop.simdize,
        "unroll_walk": loop.hops,
        "peel_walk": loop.peel and [loop.peel[0], int(loop.peel[1])],
        "cooperate": loop.cooperate or None,
        "cache": loop.cache,
        f"{how}_reduce": width if how else None,
    }
    return {word: int(x) if x is True else x for word, x in said.items() if x is not None}


MARKS: dict[str, tuple[str, ...]] = {
    "parallel": (),
    "gpu_dimension": ("dimension",),
    "unroll": (),
    "interleave": ("factor",),
    "simdize": ("how",),
    "unroll_walk": ("hops",),
    "peel_walk": ("hops", "check"),
    "cooperate": (),
    "cache": ("how",),
    "atomic_reduce": (),
    "vector_reduce": ("width",),
    "ordered_reduce": (),
    "shared_reduce": (),
}
"""The directives that say something of a loop, with the arguments that a mark holds; in an order in
which none of them refuses what another one has said before."""


def with_marks(loop: Loop, marks: dict[str, Any]) -> Loop:
    """Return a loop of which nothing is said with what `marks_of` gives of another; unchecked."""
    reduce = next((word for word in marks if word.endswith("_reduce")), None)
    how: Any = reduce and reduce.removesuffix("_reduce")
    peel = marks.get("peel_walk")
    hops, *check = peel if isinstance(peel, list) else [peel]
    return replace(
        loop,
        parallel=bool(marks.get("parallel")),
        unroll=bool(marks.get("unroll")),
        gpu=marks.get("gpu_dimension"),
        interleave=marks.get("interleave", 1),
        simdize=marks.get("simdize"),
        hops=marks.get("unroll_walk"),
        peel=None if hops is None else (hops, all(check)),
        cooperate=bool(marks.get("cooperate")),
        cache=marks.get("cache"),
        reduce=(how, marks[str(reduce)]) if how == "vector" else how,
    )


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
    """Return loops as plain values, each with the name of the loop of S-TIR that it comes from."""
    told = []
    for loop in loops:
        span = [loop.start, write_bound(loop.stop), write_bound(loop.step)]
        here = {"name": loop.name, "of": of.get(loop.name, ""), "kind": loop.kind, "range": span}
        case = {} if loop.case is None else {"case": loop.case}
        inside = {"loops": write_loops(loop.children, of)} if loop.children else {}
        told.append({**here, **case, **marks_of(loop), **inside})
    return told


def read_loops(told: list[Told], marked: bool = True) -> tuple[Loop, ...]:
    """Return the loops that `write_loops` was given, with their marks or without.

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
        inside = read_loops(here.get("loops", []), marked)
        loop = Loop(here["name"], here["kind"], start, stop, step, inside, case)
        loops.append(with_marks(loop, here) if marked else loop)
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
    names, values = MARKS[word], [*value] if isinstance(value, list | tuple) else [value]
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
