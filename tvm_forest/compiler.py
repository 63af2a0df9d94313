"""The compiler, from top to bottom: read this file first.

takes: Forest, Schedule, Target; gives: functions that can be called (`compile_forest`), or the
IRModules that they are made of (`lower`).

    Forest --lay_out--> Representation + arrays          see `laying_out`
    Forest + Representation --emit--> canonical TIR      one loop nest, walks are operators
    TIR + Schedule --replay--> scheduled TIR             the nest of the schedule
    scheduled TIR --pipeline--> plain TIR                walks are loads and comparisons
    plain TIR + Target --compile--> machine code
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import s_tir, tirx

from .contributions import ContributionTables, contribution_arrays
from .errors import BuildError, ForestError
from .forest import Forest
from .forest.rewrites.canonical_form import canonicalize
from .laying_out import Compiled, LaidOut, Packed, Wanted, lay_out
from .passes import pipeline
from .passes.cpu.share_blocks import TWIN, AddTwins, make_twin
from .passes.gpu.array_facts import with_array_facts
from .passes.gpu.map_threads import SPILLED
from .passes.model_table import MODEL
from .passes.nest_facts import NestFacts
from .passes.stages import keep_stage, keep_stages, run_passes
from .schedule import Schedule
from .schedule_prims import replay
from .schedule_prims.batches import PARALLEL, Schedules, arrange_by_batch
from .schedule_prims.fitting import check_device, check_order
from .schedule_prims.walks import WalkForm, find_walk_forms
from .target import Target
from .targets import Library, cpu
from .targets.machine_code import compile_module
from .tir_gen import canonical, contributions
from .tir_gen.results import OF_LEAVES, OUTPUTS, SUMS, Output
from .tir_gen.walks import check_walks

GLOBAL_SYMBOL = "global_symbol"


@dataclass(frozen=True)
class Lowered:
    """The functions of a model before and after lowering.

    Attributes:
        before: canonical functions, one walk operator each.
        after: what is given to TVM's code generator.
        stages: what is in between, in order: the functions as scheduled, "schedule", and then as
            each pass left them, by its name, such as "tvm_forest.LowerWalks"; kept by `lower` only.
    """

    before: tvm.IRModule
    after: tvm.IRModule
    stages: dict[str, tvm.IRModule] = field(default_factory=dict, repr=False)


def compile_forest(
    forest: Forest,
    schedules: dict[int, Schedule],
    target: Target,
    outputs: tuple[Output, ...] = (SUMS,),
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
        ScheduleError: a schedule does not fit the model or the limits of a GPU, or is not exact.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    for sch in schedules.values():
        check_device(sch, target)
    laid_out = check_and_lay_out(forest, schedules, outputs, exact)
    lowered = lower_each(laid_out, target)
    if outputs == (SUMS,) and any(SPILLED in x.attrs for x in lowered.after.functions.values()):
        # what leaves say is compiled when it is asked for, and its limits are looked at now
        lower_each(check_and_lay_out(forest, schedules, OF_LEAVES, exact), target)
    library = compile_lowered(lowered, schedules, target)
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


def to_text(mod: tvm.IRModule) -> str:
    """Return all that functions say, as a text."""
    return str(tvm.ir.save_json(mod))


def lower(forest: Forest, schedule: Schedules, target: Target) -> Lowered:
    """Return the functions before and after lowering, to be looked at.

    Raises:
        The same as `build`.
    """
    schedules = arrange_by_batch(schedule, "lower")
    with keep_stages() as stages:
        lowered = lower_each(check_and_lay_out(forest, schedules, OUTPUTS), target)
    modules = {name: tvm.IRModule(functions) for name, functions in stages.items()}
    return Lowered(lowered.before, lowered.after, modules)


def check_and_lay_out(
    forest: Forest,
    schedules: dict[int, Schedule],
    outputs: tuple[Output, ...],
    exact: bool = False,
) -> LaidOut:
    """Lay the model out for functions that nobody has compiled yet.

    Args:
        forest, schedules, outputs, exact: see `compile_forest`.

    Raises:
        ScheduleError: a schedule is not exact, or does not walk as its layout must be walked.
        BuildError: a layout cannot hold the model.
    """
    canonical_form = canonicalize(forest)
    for sch in schedules.values():
        check_order(canonical_form, sch, exact)
        check_walks(sch)
    return lay_out(forest, schedules, outputs, exact)


def lower_contributions(
    tables: ContributionTables, name: str, target: Target
) -> tuple[tvm.IRModule, dict[str, int]]:
    """Lower the functions of contributions or interactions.

    Returns:
        The functions, and their names with the number of rows that each takes together: first that
        of single rows, then that of blocks if there is one.
    """
    machine = cpu.tvm_target(target)
    abilities = cpu.abilities(machine)
    fused = not target.on_gpu and bool({"fma", "neon"} & abilities)
    widths = {name: 1}
    if not target.on_gpu:
        widths = {name + contributions.SINGLE: 1, name: contributions.choose_width(abilities)}
    functions = {}
    for own, width in widths.items():
        emitted = contributions.emit_contributions(tables, name, width, fused, target.on_gpu)
        arrays = len(contribution_arrays(tables, name))
        emitted = emitted.with_attr(MODEL, arrays).with_attr(GLOBAL_SYMBOL, own)
        function = tirx.transform.BindTarget(machine)(tvm.IRModule({own: emitted}))[own]
        if width == 1:
            functions[own] = make_twin(function.with_attr(TWIN, own))
        else:
            function = function.with_attr(TWIN, own)
            functions[own] = make_twin(function)
            functions[own + PARALLEL] = function.with_attr(GLOBAL_SYMBOL, own + PARALLEL)
    sizes = {own: contributions.count_block_rows(width) for own, width in widths.items()}
    return tvm.IRModule(functions), sizes


def lower_each(laid_out: LaidOut, target: Target) -> Lowered:
    """Lower the sums of every schedule, and what leaves say by the last that walks hop by hop."""
    before, after = dict[str, tirx.PrimFunc](), dict[str, tirx.PrimFunc]()
    for wanted, packed in laid_out.packed.items():
        arguments = laid_out.arguments[wanted.name]
        before[wanted.name], variants = _lower_function(wanted, packed, len(arguments), target)
        after |= variants
    return Lowered(tvm.IRModule(before), tvm.IRModule(after))


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
    shared_bytes = target.shared_bytes if target.on_gpu else None
    functions = {}
    for suffix, variant in _variants(sch).items():
        # 3. how it is to be computed
        scheduled, facts = _schedule(unscheduled, variant, forms)
        # 4. what the machine has to do
        own = name + suffix
        function = scheduled["main"].with_attr(GLOBAL_SYMBOL, own)
        if target.on_gpu:
            function = with_array_facts(function, rep, packed.arrays)
        mod = tvm.IRModule({own: function})
        keep_stage("schedule", mod)
        steps = pipeline(rep, forest.comparison, facts, abilities, shared_bytes).passes
        mod = run_passes([tirx.transform.BindTarget(machine), *steps], mod)
        functions[own] = mod[own].with_attr(MODEL, n_arguments)
    if list(functions) == [name + PARALLEL]:
        alone = functions[name + PARALLEL].with_attr(TWIN, name)
        mod = run_passes([AddTwins(facts)], tvm.IRModule({name + PARALLEL: alone}))
        functions = {own: mod[own] for own in (name, name + PARALLEL)}
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
