"""Converts the settings of loops to plain values that IR and JSON can hold, and back.

takes: loops; gives: marks, that is numbers, texts, lists and dicts; and the other way round.

    interleave("b1", 16), cache("b1", "pack")  -->  {"interleave": 16, "cache": "pack"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ScheduleError
from . import Loop

Told = dict[str, Any]
Marks = Mapping[str, Told]
"""Settings of loops: for each loop's name, a dict of its settings by the names of directives."""

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
"""For each directive that annotates a loop, its field of `Loop` and the names of its arguments.

The order is such that all annotations of a loop can be applied one after the other.
"""


def marks_of(loop: Loop) -> Told:
    """Return a loop's settings by directive: 1, the argument, or a list of arguments."""
    said: Told = {}
    for word, (field, *_) in MARKS.items():
        value = getattr(loop, field)
        if field == "peel" and value:
            value = [value, int(loop.check)]
        if field == "reduce":
            value = loop.width if word == f"{value}_reduce" else None
        if value != getattr(Loop, field):  # not the default
            said[word] = int(value) if isinstance(value, bool) else value
    return said


def name_arguments(loop: str, word: str, value: Any) -> dict[str, Any]:
    """Return the named arguments of the directive for a mark of a loop.

    Raises:
        ScheduleError: `value` has too many arguments, or it is not 1 or True for a directive
            without arguments.
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
