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

from typing import Any, NamedTuple

import tvm
from tvm import s_tir, tirx

from .contributions import ContributionTables, contribution_arrays
from .errors import BuildError, ForestError, ScheduleError
from .forest import Forest
from .forest.rewrites.canonical_form import canonicalize
from .laying_out import Compiled, LaidOut, Packed, Wanted, lay_out
from .passes import pipeline
from .passes.cpu.share_blocks import TWIN, make_twin
from .passes.gpu import SPILLED, make_kernels
from .passes.model_table import MODEL
from .passes.nest_facts import NestFacts
from .passes.reading.adopt import adopt_loops, put_into_model, read_schedule
from .passes.reading.read_nest import make_serial, read_nest
from .schedule import Schedule
from .schedule_prims import replay
from .schedule_prims.batches import PARALLEL, Schedules, arrange_by_batch
from .schedule_prims.fitting import check_additions, check_device, check_order
from .schedule_prims.model import OF_MODEL
from .schedule_prims.regions import adds_in_order
from .target import Target
from .targets import Library, cpu
from .targets.machine_code import compile_module
from .tir_gen import canonical, contributions
from .tir_gen.attributes import read_model_facts
from .tir_gen.results import OF_LEAVES, OUTPUTS, SUMS, Output
from .tir_gen.walks import check_walks

GLOBAL_SYMBOL = "global_symbol"


class Lowered(NamedTuple):
    """The functions of a model before and after lowering.

    Attributes:
        before: canonical functions, one walk operator each.
        after: what is given to TVM's code generator.
    """

    before: tvm.IRModule
    after: tvm.IRModule


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
    return lower_each(check_and_lay_out(forest, schedules, OUTPUTS), target)


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


def take_schedule(given: Any) -> Any:
    """Return the Schedule that stands for an `s_tir.Schedule`; anything else as it is.

    Args:
        given: the schedule of a function of `lower(model).before`, or a module with one.

    Raises:
        ScheduleError: what it says of loops is wrong, or more than a nest of loops.
    """
    module = given.mod if isinstance(given, s_tir.Schedule) else given
    if not isinstance(module, tvm.IRModule):
        return given
    sums = [func for func in module.functions.values() if read_model_facts(func).output == SUMS]
    if len(sums) != 1:
        raise ScheduleError(
            f"build: argument 'schedule': {len(sums)} functions of the module give sums, but one "
            "is scheduled; give s_tir.Schedule(lower(model, schedule).before['predict'])"
        )
    return read_schedule(adopt_loops(sums[0]))


def compile_scheduled(module: Any, target: Target, exact: bool) -> Library:
    """Compile scheduled functions, by what they say and nothing else.

    Raises:
        ScheduleError, BuildError, InputError: see `compile_forest`.
    """
    module = module.mod if isinstance(module, s_tir.Schedule) else module
    if not isinstance(module, tvm.IRModule):
        what = f"expected an IRModule or an s_tir.Schedule, got {type(module).__name__}"
        raise ScheduleError(f"compile: argument 'module': {what}; see docs/directives.md")
    schedules, lowered = dict[int, Schedule](), dict[str, tirx.PrimFunc]()
    for name, func in sorted((x.name_hint, func) for x, func in module.functions.items()):
        model, adopted = read_model_facts(func), adopt_loops(func)
        sch = schedules[len(schedules)] = read_schedule(adopted)
        check_device(sch, target)
        check_additions(model.aggregate, sch, exact)
        check_walks(sch)
        lowered |= lower_scheduled(adopted, name, target)
    return compile_lowered(Lowered(module, tvm.IRModule(lowered)), schedules, target)


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
        before[wanted.name], variants = _lower_function(wanted, packed, target)
        after |= variants
    return Lowered(tvm.IRModule(before), tvm.IRModule(after))


def _lower_function(
    wanted: Wanted, packed: Packed, target: Target
) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """Return a function before and after lowering, with its twin for threads."""
    # 1. the model as the schedule rewrote it, and how it lies in memory: see `pack`
    name, output, sch = wanted
    forest, rep, _ = packed
    # 2. what is to be computed
    steps = list_model_steps(sch)
    unscheduled = canonical.emit_canonical(forest, rep, output, packed.arrays, steps)
    # 3. how it is to be computed
    scheduled = schedule_function(unscheduled, sch, output)["main"]
    # 4. what the machine has to do
    return unscheduled["main"], lower_scheduled(scheduled, name, target)


def list_model_steps(sch: Schedule) -> list[dict[str, Any]]:
    """Return the steps of a trace that are about the model and not about loops."""
    return [step.to_dict() for step in sch.steps if step.do in OF_MODEL]


def lower_scheduled(
    scheduled: tirx.PrimFunc, name: str, target: Target
) -> dict[str, tirx.PrimFunc]:
    """Return what a scheduled function becomes, with its twin for threads."""
    machine = cpu.tvm_target(target)
    abilities = None if target.on_gpu else cpu.abilities(machine)
    facts, functions = read_nest(scheduled), dict[str, tirx.PrimFunc]()
    for suffix, variant in _variants(scheduled, facts).items():
        mod = tirx.transform.BindTarget(machine)(tvm.IRModule({"main": variant}))
        mod = pipeline(variant, abilities)(mod)
        function = mod["main"]
        if target.on_gpu:
            function = make_kernels(function, read_nest(variant), target.shared_bytes)
        function = function.with_attr("global_symbol", name + suffix)
        functions[name + suffix] = function.with_attr(MODEL, facts.model.n_arguments)
    if list(functions) == [name + PARALLEL]:
        parallel = functions[name + PARALLEL]
        twin = parallel.with_attr(TWIN, name)
        if not any(loop.kind == "tree" for loop in facts.nest.loops() if loop.parallel):
            parallel = twin  # nothing beside the blocks touches what they do, so they are shared
        functions = {name: make_twin(twin), name + PARALLEL: parallel}
    return functions


def _variants(func: tirx.PrimFunc, facts: NestFacts) -> dict[str, tirx.PrimFunc]:
    """A function with parallel loops has a twin without, for small batches and one thread.

    Where threads share out rows only, or the order of additions is lost without the schedule's way
    of adding up, the twin is what comes of the schedule, on one thread.
    """
    parallel = [loop for loop in facts.nest.loops() if loop.parallel]
    if not parallel:
        return {"": func}
    alone = make_serial(func)
    reduces = any(loop.reduce not in (None, "shared") for loop in facts.nest.loops())
    ordered = adds_in_order(facts.nest.nest)
    if ordered and not adds_in_order(read_nest(alone).nest.nest) and not facts.model.is_sorted:
        return {PARALLEL: func}
    if all(loop.kind == "batch" for loop in parallel) and not reduces:
        return {PARALLEL: func}
    return {"": alone, PARALLEL: func}


def schedule_function(mod: tvm.IRModule, sch: Schedule, output: Output) -> tvm.IRModule:
    """Replay the directives on TVM's schedule of one function, or take what another one made."""
    if sch.function and output == SUMS:
        return tvm.IRModule({"main": put_into_model(sch, mod["main"])})
    tir = s_tir.Schedule(mod, error_render_level="fast")
    try:
        replay(tir, sch)
    except s_tir.ScheduleError as error:
        raise BuildError(f"build: TVM refuses a step of the schedule: {error}\n{sch}") from error
    return tir.mod
