"""The launch plan of a GPU function: allocations, launches, and loops around them.

takes: JSON, or steps; gives: Plan, whose sizes are expressions of n, the number of rows.

    allocate part: (n + 7) // 8 * 416 bytes
    predict_kernel<<<((n + 7) // 8, 1, 1), (8, 13, 1)>>>(base, nodes, part, rows, int64 n)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import BuildError
from ...system.values import dataclass

SizeExpr = Any
"""A number, the name of a variable or of an array of the model, or (operator, operands...):
("*", ("//", ("+", "n", 7), 8), 416) is (n + 7) // 8 * 416."""

INFIX = {*("+", "-", "*", "//", "%", "<", "<=", "==", "and", "or")}
"""Operators that Python writes between two operands."""


@dataclass(frozen=True)
class Allocate:
    """An allocation of `size` bytes of device memory, used as buffer `name` until the call ends."""

    name: str
    size: SizeExpr


@dataclass(frozen=True)
class Launch:
    """A kernel launch.

    Attributes:
        kernel: its name in the image.
        arguments: in order, ("pointer", name of an array) or (dtype, expression).
        grid, block: sizes x, y and z, in blocks and in threads.
        shared: bytes of dynamic shared memory.
    """

    kernel: str
    arguments: tuple[tuple[str, SizeExpr], ...]
    grid: tuple[SizeExpr, SizeExpr, SizeExpr]
    block: tuple[SizeExpr, SizeExpr, SizeExpr]
    shared: SizeExpr = 0


@dataclass(frozen=True)
class HostLoop:
    """Steps repeated for `variable` = 0 to `count` - 1; an `if` is a loop whose count is 0 or 1."""

    variable: str
    count: SizeExpr
    steps: tuple[HostStep, ...]


HostStep = Allocate | Launch | HostLoop

KINDS: dict[str, type[Any]] = {"allocate": Allocate, "launch": Launch, "loop": HostLoop}


@dataclass(frozen=True)
class Plan:
    """All steps of a function.

    Attributes:
        parameters: names of the arrays that it takes, in order: rows, the model's, results.
        steps: steps in order; in their expressions "n" is the number of rows.
    """

    parameters: tuple[str, ...]
    steps: tuple[HostStep, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches in order, including those inside loops."""
        return tuple(step for step in _walk(self.steps) if isinstance(step, Launch))

    @property
    def allocations(self) -> tuple[Allocate, ...]:
        """All allocations in order, including those inside loops."""
        return tuple(step for step in _walk(self.steps) if isinstance(step, Allocate))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as lists, strings and numbers for JSON."""
        return {"parameters": list(self.parameters), "steps": _to_json(self.steps)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Rebuild a plan from the output of `to_json`, which may have been JSON text meanwhile."""
        return cls(tuple(data["parameters"]), tuple(map(_read_step, data["steps"])))


def _walk(steps: tuple[HostStep, ...]) -> Iterator[HostStep]:
    """Yield all steps, including those inside loops."""
    for step in steps:
        yield step
        if isinstance(step, HostLoop):
            yield from _walk(step.steps)


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


# -- as Python ------------------------------------------------------------------------------------


class PythonNames(NamedTuple):
    """Python text for the names in a plan, so that no text of the plan gets into code.

    Attributes:
        values: literals and variables for the plan's numbers and addresses, by name.
        arrays: variables for arrays of the model on the host, by name.
    """

    values: Mapping[str, str]
    arrays: Mapping[str, str]


def write_python(
    plan: Plan,
    given: Sequence[str],
    pointers: Mapping[str, int],
    arrays: Mapping[str, Any],
    launchers: Sequence[Callable[..., None]],
) -> Callable[..., None]:
    """Compile a plan to a Python function.

    The function takes an allocator, a stream, the number of rows, and the addresses of the arrays
    in `given`.

    Args:
        plan: the launch plan.
        given: names of the arrays that differ from call to call.
        pointers: addresses of the other arrays, by name.
        arrays: arrays on the host that sizes depend on, by name.
        launchers: for each of `Plan.launches`, a function of stream, grid, block, bytes of shared
            memory, and the arguments.
    """
    parameters = [f"p{number}" for number in range(len(given))]
    values = {name: str(int(pointer)) for name, pointer in pointers.items()}
    values |= {**dict(zip(given, parameters, strict=True)), "n": "n"}
    known: dict[str, Any] = {f"launch_{k}": launcher for k, launcher in enumerate(launchers)}
    known |= {f"a{k}": array.reshape(-1) for k, array in enumerate(arrays.values())}
    names = PythonNames(values, {name: f"a{k}" for k, name in enumerate(arrays)})
    count = itertools.count()
    lines = _python_steps(plan.steps, names, count, itertools.count(), "    ")
    head = f"def run(take, stream, n, {', '.join(parameters)}):"
    exec("\n".join([head, *lines, "    return"]), known)
    run: Callable[..., None] = known["run"]
    return run


def _python_steps(
    steps: tuple[HostStep, ...],
    names: PythonNames,
    count: Iterator[int],
    launches: Iterator[int],
    indent: str,
) -> Iterator[str]:
    """Yield Python lines for steps; `count` and `launches` number the variables and launches."""
    for step in steps:
        if isinstance(step, Allocate):
            piece = f"t{next(count)}"
            yield f"{indent}{piece} = take({expression_in_python(step.size, names)})"
            names = names._replace(values={**names.values, step.name: piece})
        elif isinstance(step, HostLoop):
            variable = f"t{next(count)}"
            inside = names._replace(values={**names.values, step.variable: variable})
            end = expression_in_python(step.count, names)
            yield f"{indent}for {variable} in range({end}):"
            yield from _python_steps(step.steps, inside, count, launches, indent + "    ")
            yield f"{indent}    pass"
        else:
            sizes = [
                f"({', '.join(expression_in_python(x, names) for x in size)})"
                for size in (step.grid, step.block)
            ]
            exprs = (step.shared, *(expr for _, expr in step.arguments))
            given = ", ".join(["stream", *sizes, *(expression_in_python(x, names) for x in exprs)])
            yield f"{indent}launch_{next(launches)}({given})"


def expression_in_python(expr: SizeExpr, names: PythonNames) -> str:
    """Return an expression as Python text; arrays are indexed as if they were flat.

    Raises:
        BuildError: it has an operator that plans do not have.
    """
    if isinstance(expr, str):
        return names.values[expr]
    if isinstance(expr, int):
        return str(int(expr))
    name, *operands = expr
    if name == "[]":
        array, index = operands
        return f"int({names.arrays[array]}[{expression_in_python(index, names)}])"
    texts = [expression_in_python(x, names) for x in operands]
    if name == "if":
        return "({1} if {0} else {2})".format(*texts)
    if name in INFIX:
        return f"({texts[0]} {name} {texts[1]})"
    if name in ("min", "max"):
        return f"{name}({', '.join(texts)})"
    if name == "not":
        return f"(not {texts[0]})"
    raise BuildError(f"build: {name!r} is no operator of a plan; build the model again")
