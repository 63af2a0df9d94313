"""Lays a model out in memory: makes the arrays that compiled functions read.

takes: BuildRequest; gives: LaidOut, with a Packed model for each schedule. Uses numpy only, so a
process that loads compiled code from the cache never imports TVM.

    Forest --rewrite--> Forest --pack--> Layout + arrays
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.contributions import CONTRIBUTIONS, ContributionTables, contribution_arrays
from ...forest.rewrites.ordering import take_trees
from ...runtime.leaves import leaf_arrays, with_leaf_numbers
from ...runtime.results import (
    OF_LEAVES,
    OF_SUMS,
    OF_TABLES,
    Output,
    columns_of_trees,
    link_arrays,
    model_buffers,
    sizes_array,
)
from ...schedule_prims import Schedule, rewrite
from ...schedule_prims.batches import name_functions, select_hop_schedule
from ...schedule_prims.fitting import check_tiles
from ...system.process.locks import cached_property
from ...system.values import dataclass, field
from .. import protocol
from .request import BuildRequest

if TYPE_CHECKING:
    from ...runtime import Library


@dataclass(frozen=True, eq=False)
class CodeOf:
    """A library, and the functions of a model that it contains.

    Attributes:
        library: returns its functions by their name in the library.
        symbols: name in the library by name in the model; they differ if the code was compiled for
            another model of the same kind with other batch sizes.
        key: key of the library in the code cache; "" if it is not cached.
        kinds: name in the library by the kind of a function, as far as known.
        block_rows: for functions without a schedule, how many rows each processes together.
    """

    library: Library
    symbols: dict[str, str]
    key: str = ""
    kinds: dict[str, str] = field(default_factory=dict)
    block_rows: dict[str, int] = field(default_factory=dict)


class Compiled(NamedTuple):
    """Compiled functions, ready to be called.

    Attributes:
        code: the libraries that contain the functions.
        arguments: for each function, the arrays passed between the rows and its outputs.
        columns: (T, W), for each tree of the source model, its columns in results per tree, which
            functions return in the order `round * C + class`.
    """

    code: list[CodeOf]
    arguments: dict[str, list[Array]]
    columns: Array

    @classmethod
    def of(
        cls,
        library: Library,
        laid_out: LaidOut,
        key: str = "",
        block_rows: dict[str, int] | None = None,
    ) -> Compiled:
        """Return the functions of one library that was compiled for this very model.

        Args:
            library: the compiled functions, under the names that the model's have.
            laid_out: the model's arrays.
            key, block_rows: see `CodeOf`.
        """
        arguments = laid_out.arguments
        symbols = {name: name for name in arguments}
        code = CodeOf(library, symbols, key, block_rows=block_rows or {})
        return cls([code], arguments, laid_out.columns)

    @property
    def library(self) -> Library:
        """The first library: the only one, unless functions come from several cache entries."""
        return self.code[0].library


class Packed(NamedTuple):
    """A model packed in memory.

    Attributes:
        forest: the model as the schedule rewrote it.
        layout: the layout of the arrays.
        arrays: all buffers, by name.
    """

    forest: Forest
    layout: protocol.Layout
    arrays: dict[str, Array]

    def read_by(self, output: Output) -> dict[str, Array]:
        """Return the layout's arrays that a function reads, in the order of its arguments."""
        specs = model_buffers(self.forest, self.layout, output)
        return {spec.name: self.arrays[spec.name] for spec in specs}

    def arguments_of(self, output: Output) -> list[Array]:
        """Return the arrays passed to a function between the rows and its outputs."""
        forest = self.forest
        arrays = [*self.read_by(output).values()]
        if output in OF_SUMS:
            arrays += [forest.base_score.astype(forest.base_dtype), *link_arrays(forest).values()]
            arrays.append(sizes_array(forest))
        return arrays


@dataclass(frozen=True)
class LaidFunction:
    """A function to be compiled, with the packed model that it reads.

    Attributes:
        name: name of the function.
        output: the kind of output that it computes.
        schedule: the schedule by which it is compiled.
        packed: the model in the layout of the schedule.
    """

    name: str
    output: Output
    schedule: Schedule
    packed: Packed

    @cached_property
    def arguments(self) -> list[Array]:
        """The arrays passed to the function between the rows and its outputs."""
        return self.packed.arguments_of(self.output)


@dataclass(frozen=True)
class LaidTables:
    """Contribution functions to be compiled, with the tables that they read.

    Attributes:
        name: name of the functions, which is also the kind of output.
        tables: tables of the model.
        on_gpu: whether the target is a GPU, where contributions are always computed by walks.
    """

    name: Output
    tables: ContributionTables
    on_gpu: bool

    @property
    def looks_up(self) -> bool:
        """Whether contributions are looked up in tables of subtrees, see `SubtreeTables`."""
        return self.name == CONTRIBUTIONS and not self.on_gpu and self.tables.subtrees.fits

    @cached_property
    def arguments(self) -> list[Array]:
        """The arrays passed to the functions between the rows and their outputs."""
        return list(contribution_arrays(self.tables, self.name, self.looks_up).values())


class LaidOut(NamedTuple):
    """All functions to be compiled, each with the packed model that it reads.

    Attributes:
        functions: the functions, in the order in which they are compiled.
        columns: see `Compiled`.
    """

    functions: list[LaidFunction | LaidTables]
    columns: Array

    @property
    def arguments(self) -> dict[str, list[Array]]:
        """For each function's name, the arrays that it takes between the rows and the outputs."""
        return {each.name: each.arguments for each in self.functions}

    @property
    def layouts(self) -> list[protocol.Layout]:
        """The layouts of the functions that have a schedule."""
        return [x.packed.layout for x in self.functions if isinstance(x, LaidFunction)]


def lay_out(request: BuildRequest) -> LaidOut:
    """Lay the model out for the functions of the requested outputs.

    Raises:
        ScheduleError, BuildError: a layout cannot hold the model, or does not support its tiles.
        UnsupportedModel: contributions are requested, and refused, see `ContributionTables`.
    """
    if request.outputs[0] in OF_TABLES:
        tables = [
            LaidTables(name, request.tables, request.target.on_gpu) for name in request.outputs
        ]
        return LaidOut(list(tables), columns_of_trees(request.forest))
    schedules = request.schedules
    packed = _pack_each(request.forest, schedules)
    names = name_functions(schedules)
    sums = [(name, x, schedules[k]) for x in OF_SUMS for k, name in names.items()]
    of_leaves = select_hop_schedule(schedules)
    leaves = [(name, name, of_leaves) for name in OF_LEAVES]
    functions: list[LaidFunction | LaidTables] = [
        LaidFunction(name, output, sch, packed[sch])
        for name, output, sch in dict.fromkeys([*sums, *leaves])
        if output in request.outputs
    ]
    return LaidOut(functions, columns_of_trees(packed[of_leaves].forest))


def _pack_each(forest: Forest, schedules: dict[int, Schedule]) -> dict[Schedule, Packed]:
    """Return the packed model of each schedule.

    Schedules with equal layout and rewrites share the arrays.
    """
    shared = dict[tuple[str, ...], Packed]()
    packed = {}
    for sch in schedules.values():
        key = (sch.layout, str(sch.types), *(str(step) for step in sch.rewrites))
        if key not in shared:
            shared[key] = pack(forest, sch)
        packed[sch] = shared[key]
    return packed


def pack(forest: Forest, sch: Schedule, tree: int | None = None) -> Packed:
    """Rewrite a model as a schedule requires, and pack it into arrays.

    Args:
        forest: the model in canonical form.
        sch: a schedule made for this model.
        tree: pack only this tree, counted after the rewrites; None for all.

    Raises:
        ScheduleError, BuildError: see `lay_out`.
    """
    forest = rewrite(forest, sch)
    if tree is not None:
        forest = take_trees(forest, np.array([tree]))
    kind = protocol.find(sch.layout)
    check_tiles(kind, forest, sch)
    forest_of_numbers, types = with_leaf_numbers(forest), dict(sch.types)
    layout, arrays = protocol.pack_with_types(kind, forest_of_numbers, types)
    return Packed(forest, layout, arrays | leaf_arrays(forest))
