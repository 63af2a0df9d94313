"""What a function does on a GPU: memory, launches, and loops around them.

takes: JSON, or steps; gives: Plan, whose sizes are arithmetic on the number of rows, n.

    allocate part: (n + 7) // 8 * 416 bytes
    predict_kernel<<<((n + 7) // 8, 1, 1), (8, 13, 1)>>>(base, nodes, part, rows, int64 n)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SizeExpr = Any
"""A number, the name of a variable or of an array of the model, or (operator, operands...):
("*", ("//", ("+", "n", 7), 8), 416) is (n + 7) // 8 * 416."""

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": operator.not_,
    "[]": lambda array, index: array.flat[index],
}

Values = Mapping[str, Any]
"""Numbers, and arrays of the model, by name."""


def evaluate(expr: SizeExpr, values: Values) -> int:
    """Return what an expression is for some values of its variables.

    Arrays are indexed as if they had one dimension. An "if" computes one side only.
    """
    return int(_evaluate(expr, values))


def _evaluate(expr: SizeExpr, values: Values) -> Any:
    if isinstance(expr, str):
        return values[expr]
    if isinstance(expr, int):
        return expr
    name, *operands = expr
    if name == "if":
        condition, then, other = operands
        return _evaluate(then if _evaluate(condition, values) else other, values)
    return OPERATORS[name](*(_evaluate(x, values) for x in operands))


@dataclass(frozen=True)
class Allocate:
    """Memory of the device, until the function ends."""

    name: str
    size: SizeExpr


@dataclass(frozen=True)
class Launch:
    """A kernel, and what it is given.

    Attributes:
        kernel: its name in the image.
        arguments: in its order, ("pointer", name of an array) or (dtype, expression).
        grid, block: x, y and z.
        shared: bytes of shared memory beside those that the kernel declares.
    """

    kernel: str
    arguments: tuple[tuple[str, SizeExpr], ...]
    grid: tuple[SizeExpr, SizeExpr, SizeExpr]
    block: tuple[SizeExpr, SizeExpr, SizeExpr]
    shared: SizeExpr = 0


@dataclass(frozen=True)
class HostLoop:
    """Steps for `variable` = 0 to `count` - 1; a condition is a loop of at most one round."""

    variable: str
    count: SizeExpr
    steps: tuple[HostStep, ...]


HostStep = Allocate | Launch | HostLoop

KINDS: dict[str, type[Any]] = {"allocate": Allocate, "launch": Launch, "loop": HostLoop}


@dataclass(frozen=True)
class Plan:
    """All that a function does.

    Attributes:
        parameters: names of the arrays that it takes, in order: rows, the model's, results.
        steps: in order; "n" is the number of rows.
    """

    parameters: tuple[str, ...]
    steps: tuple[HostStep, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, each once."""
        return tuple(_launches(self.steps))

    def to_json(self) -> dict[str, Any]:
        """Return lists, texts and numbers."""
        return {"parameters": list(self.parameters), "steps": _to_json(self.steps)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Return the plan that `to_json` was given; any form of it that JSON makes will do."""
        return cls(tuple(data["parameters"]), tuple(map(_read_step, data["steps"])))


def _launches(steps: tuple[HostStep, ...]) -> list[Launch]:
    nested = (_launches(s.steps) if isinstance(s, HostLoop) else [s] for s in steps)
    return [step for inside in nested for step in inside if isinstance(step, Launch)]


def _to_json(value: Any) -> Any:
    if isinstance(value, HostStep):
        kind = next(name for name, cls in KINDS.items() if isinstance(value, cls))
        return {"do": kind, **{key: _to_json(x) for key, x in vars(value).items()}}
    return [_to_json(x) for x in value] if isinstance(value, tuple) else value


def _read_step(data: dict[str, Any]) -> HostStep:
    fields = {key: _to_tuples(x) for key, x in data.items() if key not in ("do", "steps")}
    if "steps" in data:
        fields["steps"] = tuple(map(_read_step, data["steps"]))
    return KINDS[data["do"]](**fields)


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
