"""Kinds of functions: those of models that share code, though trees, tests and leaves differ.

takes: LaidFunction; gives: what its code depends on, as a text, by numpy alone, in a fraction of a
millisecond.

A compiled function reads the model from arrays. What is left in the code is what shapes its
instructions: the schedule, the forms of walks, facts such as dtypes and the link, and the fields of
the layout. How long arrays are is not among it, nor how many rounds of trees a sum has if there are
several (the number of the only one is a constant, 0), so a model that is trained again with the
same hyperparameters is mostly of the same kind. Layouts help: a
number that differs with every training and is needed as a constant is rounded up to one that many
models have, see `layouts/row_codes/planes.py`.

Everything counts unless it is known not to. The tests compare kinds with what they stand for: two
models of one kind have the same lowered functions, and code asks a forest for nothing else.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..layouts.protocol import BufferSpec
from ..runtime.results import OF_LEAVES, OF_SUMS, SIZES, Output
from ..schedule import Schedule
from ..schedule_prims.walks import TreeDepths, find_walk_forms
from . import LaidFunction

FACTS = (
    *("aggregate", "base_dtype", "base_first", "comparison", "has_vectors", "is_linear", "link"),
    *("link_scale", "n_features", "n_outputs", "round_size", "row_dtype", "row_width"),
    *("sum_dtype", "sum_scale", "targets", "tile_size", "value_dtype"),
)
"""What compiled code depends on in a forest, besides its arrays."""


def describe_kind(laid: LaidFunction) -> str:
    """Return all that the code of a function depends on, but its name."""
    sch, forest = laid.schedule, laid.packed.forest
    leaves = sorted(leaf.name for leaf in sch.leaves() if not leaf.is_walked_alike)
    forms = find_walk_forms(sch, TreeDepths.of(forest)) if leaves else {}
    said = {
        "output": laid.output,
        # what is known of depths only helps to write the loops, which follow
        "steps": [step.to_dict() for step in sch.steps if step.do != "know_depths"],
        "loops": _describe_loops(sch, laid.output),
        "forms": [(name, forms[name]) for name in leaves],
        "facts": [str(getattr(forest, name)) for name in FACTS],
        "divisors": forest.trees_of_class if forest.aggregate == "average" else None,
        "columns": forest.n_trees if laid.output in OF_LEAVES else None,
        "one_round": sch.trees <= sch.round_size,
        "layout": _describe_value(laid.packed.layout),
        "arrays": [(x.dtype.str, x.ndim, x.shape[1:]) for x in laid.arguments],
    }
    return repr(said)


@functools.lru_cache(maxsize=128)
def _describe_loops(sch: Schedule, output: Output) -> str:
    """Return loops and guards of a schedule, without the number of rounds where sums read it."""
    for loop in sch.loops():
        if output in OF_SUMS and sch.runs_over_rounds(loop):
            sch = sch.with_loop(loop.name, replace(loop, stop=SIZES))
    return repr((sch.nest, sch.guards))


def _describe_value(value: Any) -> Any:
    """Return a layout, or what one holds, with buffers of any length."""
    if isinstance(value, BufferSpec):
        return (value.name, value.dtype, len(value.shape), value.shape[1:])
    said = getattr(value, "kind", None)
    if said is not None:  # what holds more than code depends on
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
    """Return the names of the fields of a dataclass; None of other classes."""
    return [x.name for x in fields(kind)] if is_dataclass(kind) else None
