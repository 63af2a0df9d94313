"""Describes the kind of a function: models of one kind share code, though their trees differ.

takes: LaidFunctions; gives: for each, a text of everything that its code depends on, computed with
numpy alone in a fraction of a millisecond.

A compiled function reads the model from arrays. The code itself depends on what shapes its
instructions: the schedule, the forms of walks, facts such as dtypes and the link, and the fields of
the layout. It does not depend on the lengths of arrays, nor on the number of rounds in a sum if
there are several (with a single round, its index is a constant, 0), so a model retrained with the
same hyperparameters is mostly of the same kind. Layouts help: a number that differs with every
training but must be a constant is rounded up to one that many models share, see
`layouts/row_codes/planes.py`.

Everything counts unless it is known not to. The tests check that two models of one kind have the
same lowered functions, and that code reads no other attributes of a forest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ...runtime.results import OF_LEAVES, OF_SUMS, SIZES, Output
from ...schedule_prims import Schedule
from ...schedule_prims.walks import TreeDepths, find_walk_forms
from ..protocol import BufferSpec
from . import LaidFunction, Packed

FACTS = (
    *("aggregate", "base_dtype", "base_first", "comparison", "has_vectors", "is_linear", "link"),
    *("link_scale", "n_features", "n_outputs", "round_size", "row_dtype", "row_width"),
    *("sum_dtype", "sum_scale", "targets", "tile_size", "value_dtype"),
)
"""Attributes of a forest, besides its arrays, that compiled code depends on."""


def describe_kinds(functions: Iterable[LaidFunction]) -> dict[str, str]:
    """Return a text of everything that each function's code depends on, by the function's name."""
    models = dict[int, str]()
    for laid in functions:  # most functions of a model read the same packed arrays
        if id(laid.packed) not in models:
            models[id(laid.packed)] = _describe_packed(laid.packed)
    return {laid.name: _describe_kind(laid, models[id(laid.packed)]) for laid in functions}


def _describe_kind(laid: LaidFunction, model: str) -> str:
    """Return a text of everything that a function's code depends on, except its name.

    Args:
        laid: the function.
        model: what code of any function of its model depends on, see `_describe_packed`.
    """
    sch, forest = laid.schedule, laid.packed.forest
    leaves = sorted(leaf.name for leaf in sch.leaves() if not leaf.is_walked_alike)
    forms = find_walk_forms(sch, TreeDepths.of(forest)) if leaves else {}
    said = {
        "output": laid.output,
        # what is known of depths only helps to write the loops, which follow
        "steps": [step.to_dict() for step in sch.steps if step.do != "know_depths"],
        "loops": _describe_loops(sch, laid.output),
        "forms": [(name, forms[name]) for name in leaves],
        "model": model,
        "columns": forest.n_trees if laid.output in OF_LEAVES else None,
        "one_round": sch.trees <= sch.round_size,
        "arrays": [(x.dtype.str, x.ndim, x.shape[1:]) for x in laid.arguments],
    }
    return repr(said)


def _describe_packed(packed: Packed) -> str:
    """Return a text of what all functions that read a packed model depend on."""
    forest = packed.forest
    averages = forest.aggregate == "average"
    divisors = forest.trees_of_class.tolist() if averages else None  # text of long arrays has gaps
    facts = [str(getattr(forest, name)) for name in FACTS]
    return repr((facts, divisors, _describe_value(packed.layout)))


@functools.lru_cache(maxsize=128)
def _describe_loops(sch: Schedule, output: Output) -> str:
    """Return loops and guards as text, without the number of rounds if it is read at run time."""
    for loop in sch.loops():
        if output in OF_SUMS and sch.runs_over_rounds(loop):
            sch = sch.with_loop(loop.name, replace(loop, stop=SIZES))
    return repr((sch.nest, sch.guards))


def _describe_value(value: Any) -> Any:
    """Return a layout, or a field's value, as plain values without the lengths of buffers."""
    if isinstance(value, BufferSpec):
        return (value.name, value.dtype, len(value.shape), value.shape[1:])
    said = getattr(value, "kind", None)
    if said is not None:  # the value holds more than code depends on
        return (type(value).__qualname__, _describe_value(said))
    if isinstance(value, tuple):
        return [_describe_value(x) for x in value]
    kind: Any = type(value)
    names = _list_fields(kind)
    if names is None:
        return value
    about = {name: _describe_value(getattr(value, name)) for name in names}
    return (type(value).__module__, type(value).__qualname__, about)


@functools.cache
def _list_fields(kind: Any) -> list[str] | None:
    """Return the names of a dataclass's fields; None for other classes."""
    return [x.name for x in fields(kind)] if is_dataclass(kind) else None
