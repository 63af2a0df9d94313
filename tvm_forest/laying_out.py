"""A model in memory: the arrays that compiled functions read.

takes: Forest, Schedules; gives: LaidOut, and Packed for each schedule. By numpy alone: who has the
code needs nothing else to call it.

    Forest --canonicalize, rewrite--> Forest --pack--> Representation + arrays
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .forest import Array, Forest
from .forest.rewrites.canonical_form import canonicalize
from .forest.rewrites.ordering import take_trees
from .layouts import representation
from .runtime.leaves import leaf_arrays, with_leaf_numbers
from .runtime.results import (
    OF_LEAVES,
    SUMS,
    Output,
    check_forest,
    columns_of_trees,
    link_arrays,
    model_buffers,
)
from .schedule import Schedule
from .schedule_prims import rewrite
from .schedule_prims.batches import name_functions, select_hop_schedule
from .schedule_prims.fitting import check_order, check_tiles

if TYPE_CHECKING:
    from .runtime import Library


class Compiled(NamedTuple):
    """Functions that can be called.

    Attributes:
        library: gives them by name.
        arguments: for each, the arrays that it takes between the rows and its outputs.
        columns: (T, W), the places `round * C + class` of each tree of the source model.
    """

    library: Library
    arguments: dict[str, list[Array]]
    columns: Array


class Packed(NamedTuple):
    """A model in memory.

    Attributes:
        forest: the model as the schedule rewrote it.
        layout: how to read the arrays.
        arrays: all buffers, by name.
    """

    forest: Forest
    layout: representation.Representation
    arrays: dict[str, Array]

    def read_by(self, output: Output) -> dict[str, Array]:
        """Return the arrays that a function reads, in its order of arguments."""
        specs = model_buffers(self.forest, self.layout, output)
        return {spec.name: self.arrays[spec.name] for spec in specs}

    def arguments_of(self, output: Output) -> list[Array]:
        """Return the arrays that a function takes between the rows and its outputs."""
        forest = self.forest
        arrays = [*self.read_by(output).values()]
        if output == SUMS:
            arrays += [forest.base_score.astype(forest.base_dtype), *link_arrays(forest).values()]
        return arrays


class Wanted(NamedTuple):
    """A function that is to be compiled: its name, what it gives, and how."""

    name: str
    output: Output
    schedule: Schedule


class LaidOut(NamedTuple):
    """A model in memory for each of the functions that are to be compiled.

    Attributes:
        packed: the model in the layout of each.
        arguments: for each by name, the arrays that it takes between the rows and its outputs.
        columns: (T, W), the places `round * C + class` of each tree of the source model.
    """

    packed: dict[Wanted, Packed]
    arguments: dict[str, list[Array]]
    columns: Array


def lay_out(
    forest: Forest,
    schedules: dict[int, Schedule],
    outputs: tuple[Output, ...],
    exact: bool = False,
) -> LaidOut:
    """Lay the model out for the functions of some outputs.

    Args:
        forest, schedules, outputs, exact: see `compile_forest`.
    """
    packed = _pack_each(forest, schedules, exact)
    names = name_functions(schedules)
    sums = [Wanted(name, SUMS, schedules[k]) for k, name in names.items()]
    of_leaves = select_hop_schedule(schedules)
    leaves = [Wanted(name, name, of_leaves) for name in OF_LEAVES]
    wanted = [each for each in dict.fromkeys([*sums, *leaves]) if each.output in outputs]
    return LaidOut(
        {each: packed[each.schedule] for each in wanted},
        {each.name: packed[each.schedule].arguments_of(each.output) for each in wanted},
        columns_of_trees(packed[of_leaves].forest),
    )


def _pack_each(
    forest: Forest, schedules: dict[int, Schedule], exact: bool = False
) -> dict[Schedule, Packed]:
    """Lay the model out for each schedule, once for all that ask for the same."""
    forest, shared = canonicalize(forest), dict[tuple[str, ...], Packed]()
    packed = {}
    for sch in schedules.values():
        check_order(forest, sch, exact)
        key = (sch.representation, str(sch.types), *(str(step) for step in sch.rewrites))
        if key not in shared:
            shared[key] = pack(forest, sch, exact)
        packed[sch] = shared[key]
    return packed


def pack(forest: Forest, sch: Schedule, exact: bool = False, tree: int | None = None) -> Packed:
    """Rewrite a model as a schedule asks, and lay it out in memory.

    Args:
        forest, sch, exact: see `build`.
        tree: lay out this tree by itself, counted after the rewrites; None for all.

    Raises:
        ScheduleError, BuildError: see `build`.
    """
    forest = canonicalize(forest)
    check_forest(forest)
    check_order(forest, sch, exact)
    forest = rewrite(forest, sch)
    if tree is not None:
        forest = take_trees(forest, np.array([tree]))
    layout = representation.find(sch.representation)
    check_tiles(layout, forest, sch)
    forest_of_numbers, types = with_leaf_numbers(forest), dict(sch.types)
    rep, arrays = representation.pack_with_types(layout, forest_of_numbers, types)
    return Packed(forest, rep, arrays | leaf_arrays(forest))
