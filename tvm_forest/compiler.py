"""The compiler, from top to bottom: read this file first.

takes: Forest, Schedule, Target; gives: functions that can be called (`compile_forest`), or the
IRModules that they are made of (`lower`).

    Forest --canonicalize, rewrite--> Forest --pack--> Representation + arrays
    Forest + Representation --emit--> canonical TIR      one loop nest, walks are operators
    TIR + Schedule --replay--> scheduled TIR             the nest of the schedule
    scheduled TIR --pipeline--> plain TIR                walks are loads and comparisons
    plain TIR + Target --compile--> machine code
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm
from tvm import s_tir, tirx

from .errors import BuildError, ForestError
from .forest import Array, Forest
from .forest.rewrites.canonical_form import canonicalize
from .forest.rewrites.ordering import take_trees
from .layouts import representation
from .passes import pipeline
from .passes.cpu.share_blocks import TWIN, make_twin
from .passes.gpu import make_kernels
from .passes.model_table import MODEL
from .passes.nest_facts import NestFacts
from .schedule import Schedule
from .schedule_prims import replay, rewrite
from .schedule_prims.batches import (
    PARALLEL,
    Schedules,
    arrange_by_batch,
    name_functions,
    select_hop_schedule,
)
from .schedule_prims.fitting import check_device, check_order
from .schedule_prims.walks import WalkForm, find_walk_forms
from .target import Target
from .targets import Library, cpu
from .targets.machine_code import compile_module
from .tir_gen import canonical
from .tir_gen.leaves import leaf_arrays, with_leaf_numbers
from .tir_gen.walks import check_walks


class Lowered(NamedTuple):
    """The functions of a model before and after lowering.

    Attributes:
        before: canonical functions, one walk operator each.
        after: what is given to TVM's code generator.
    """

    before: tvm.IRModule
    after: tvm.IRModule


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

    def read_by(self, output: canonical.Output) -> dict[str, Array]:
        """Return the arrays that a function reads, in its order of arguments."""
        specs = canonical.model_buffers(self.forest, self.layout, output)
        return {spec.name: self.arrays[spec.name] for spec in specs}

    def arguments_of(self, output: canonical.Output) -> list[Array]:
        """Return the arrays that a function takes between the rows and its outputs."""
        forest = self.forest
        base = [forest.base_score.astype(forest.base_dtype)] if output == canonical.SUMS else []
        return [*self.read_by(output).values(), *base]


class Wanted(NamedTuple):
    """A function that is to be compiled: its name, what it gives, and how."""

    name: str
    output: canonical.Output
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


def compile_forest(
    forest: Forest,
    schedules: dict[int, Schedule],
    target: Target,
    outputs: tuple[canonical.Output, ...] = (canonical.SUMS,),
    exact: bool = False,
) -> Compiled:
    """Compile the functions of a forest for some outputs.

    Args:
        forest: the model.
        schedules: how batches of so many rows and more are evaluated, see `arrange_by_batch`; made
            for `canonicalize(forest)`.
        target: the machine.
        outputs: what the functions give.
        exact: refuse a schedule that adds leaves in another order than the model.

    Raises:
        ScheduleError: a schedule does not fit the model, or is not exact.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    for sch in schedules.values():
        check_device(sch, target)
    laid_out = lay_out(forest, schedules, outputs, exact)
    library = compile_lowered(lower_each(laid_out, target), schedules, target)
    return Compiled(library, laid_out.arguments, laid_out.columns)


def compile_lowered(lowered: Lowered, schedules: dict[int, Schedule], target: Target) -> Library:
    """Compile functions that are lowered by some schedules.

    Raises:
        BuildError, InputError: see `compile_forest`.
    """
    try:
        return compile_module(lowered.after, target)
    except ForestError:
        raise
    except Exception as error:  # whatever TVM throws, users get one kind of error and the trace
        shown = "\n".join(map(str, dict.fromkeys(schedules.values())))
        raise BuildError(f"build: TVM cannot compile the schedule: {error}\n{shown}") from error


def lower(forest: Forest, schedule: Schedules, target: Target) -> Lowered:
    """Return the functions before and after lowering, to be looked at.

    Raises:
        The same as `build`.
    """
    schedules = arrange_by_batch(schedule, "lower")
    return lower_each(lay_out(forest, schedules, canonical.OUTPUTS), target)


def lay_out(
    forest: Forest,
    schedules: dict[int, Schedule],
    outputs: tuple[canonical.Output, ...],
    exact: bool = False,
) -> LaidOut:
    """Lay the model out for the functions of some outputs.

    Args:
        forest, schedules, outputs, exact: see `compile_forest`.
    """
    packed = _pack_each(forest, schedules, exact)
    names = name_functions(schedules)
    sums = [Wanted(name, canonical.SUMS, schedules[k]) for k, name in names.items()]
    of_leaves = select_hop_schedule(schedules)
    leaves = [Wanted(name, name, of_leaves) for name in canonical.OF_LEAVES]
    wanted = [each for each in dict.fromkeys([*sums, *leaves]) if each.output in outputs]
    return LaidOut(
        {each: packed[each.schedule] for each in wanted},
        {each.name: packed[each.schedule].arguments_of(each.output) for each in wanted},
        canonical.columns_of_trees(packed[of_leaves].forest),
    )


def lower_each(laid_out: LaidOut, target: Target) -> Lowered:
    """Lower the sums of every schedule, and what leaves say by the last that walks hop by hop."""
    before, after = dict[str, tirx.PrimFunc](), dict[str, tirx.PrimFunc]()
    for wanted, packed in laid_out.packed.items():
        arguments = laid_out.arguments[wanted.name]
        before[wanted.name], variants = _lower_function(wanted, packed, len(arguments), target)
        after |= variants
    return Lowered(tvm.IRModule(before), tvm.IRModule(after))


def _pack_each(
    forest: Forest, schedules: dict[int, Schedule], exact: bool = False
) -> dict[Schedule, Packed]:
    """Lay the model out for each schedule, once for all that ask for the same."""
    forest, shared = canonicalize(forest), dict[tuple[str, ...], Packed]()
    packed = {}
    for sch in schedules.values():
        check_order(forest, sch, exact)
        check_walks(sch)
        key = (sch.representation, *(str(step) for step in sch.rewrites))
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
    canonical.check_forest(forest)
    check_order(forest, sch, exact)
    forest = rewrite(forest, sch)
    if tree is not None:
        forest = take_trees(forest, np.array([tree]))
    layout = representation.find(sch.representation)
    representation.check_tiles(layout, forest, sch)
    rep, arrays = layout.pack(with_leaf_numbers(forest))
    return Packed(forest, rep, arrays | leaf_arrays(forest))


def _lower_function(
    wanted: Wanted, packed: Packed, n_arguments: int, target: Target
) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """Return a function before and after lowering, with its twin for threads."""
    # 1. the model as the schedule rewrote it, and how it lies in memory: see `pack`
    name, output, sch = wanted
    forest, rep, _ = packed
    machine = cpu.tvm_target(target)
    abilities = None if target.on_gpu else cpu.abilities(machine)
    forms = find_walk_forms(sch, forest)
    # 2. what is to be computed
    unscheduled = canonical.emit_canonical(forest, rep, output)
    functions = {}
    for suffix, variant in _variants(sch).items():
        # 3. how it is to be computed
        scheduled, facts = _schedule(unscheduled, variant, forms)
        # 4. what the machine has to do
        mod = tirx.transform.BindTarget(machine)(scheduled)
        mod = pipeline(rep, forest.comparison, facts, abilities)(mod)
        function = mod["main"]
        if target.on_gpu:
            function = make_kernels(function, facts, packed.arrays, target.shared_bytes)
        function = function.with_attr("global_symbol", name + suffix)
        functions[name + suffix] = function.with_attr(MODEL, n_arguments)
    if list(functions) == [name + PARALLEL]:
        parallel = functions[name + PARALLEL]
        twin = parallel.with_attr(TWIN, name)
        if not any(loop.kind == "tree" for loop in sch.loops() if loop.parallel):
            parallel = twin  # nothing beside the blocks touches what they do, so they are shared
        functions = {name: make_twin(twin), name + PARALLEL: parallel}
    return unscheduled["main"], functions


def _variants(sch: Schedule) -> dict[str, Schedule]:
    """A schedule with parallel loops has a twin without, for small batches and one thread.

    Where threads share out rows only, or the order of additions is lost without the schedule's way
    of adding up, the twin is what comes of the schedule, on one thread.
    """
    parallel = [loop for loop in sch.loops() if loop.parallel]
    if not parallel:
        return {"": sch}
    alone = sch.without("parallel", "atomic_reduce", "vector_reduce", "ordered_reduce")
    if sch.keeps_order and not alone.keeps_order:
        return {PARALLEL: sch}
    if all(loop.kind == "batch" for loop in parallel) and alone == sch.without("parallel"):
        return {PARALLEL: sch}
    return {"": alone, PARALLEL: sch}


def _schedule(
    mod: tvm.IRModule, sch: Schedule, forms: dict[str, WalkForm]
) -> tuple[tvm.IRModule, NestFacts]:
    """Replay the directives on TVM's schedule of one function."""
    tir = s_tir.Schedule(mod, error_render_level="fast")
    try:
        origins = replay(tir, sch)
    except s_tir.ScheduleError as error:
        raise BuildError(f"build: TVM refuses a step of the schedule: {error}\n{sch}") from error
    return tir.mod, NestFacts(sch, forms, origins)
