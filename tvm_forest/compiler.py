"""The compiler, from top to bottom: read this file first.

takes: BuildRequest; gives: functions that can be called (`compile_forest`), or the IRModules that
they are made of (`lower`).

    BuildRequest --lay_out--> Representation + arrays    see `laying_out`
    Forest + Representation --emit--> canonical TIR      one loop nest, walks are operators
    TIR + Schedule --replay--> scheduled TIR             the nest of the schedule
    scheduled TIR --pipeline--> plain TIR                walks are loads and comparisons
    plain TIR + Target --compile--> machine code         unless the cache has it, see `CodeKeeper`
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace

import tvm
from tvm import s_tir, tirx

from .errors import BuildError, ForestError
from .forest import Forest
from .laying_out import Compiled, LaidFunction, LaidOut, LaidTables, lay_out
from .laying_out.request import BuildRequest
from .passes import pipeline
from .passes.cpu.share_blocks import TWIN, AddTwins, make_twin
from .passes.gpu.array_facts import with_array_facts
from .passes.gpu.map_threads import SPILLED
from .passes.model_table import MODEL
from .passes.nest_facts import NestFacts
from .passes.stages import keep_stage, keep_stages, run_passes
from .runtime import Library
from .runtime.results import OF_LEAVES, OUTPUTS, SUMS
from .schedule import Schedule
from .schedule_prims import replay
from .schedule_prims.batches import PARALLEL, Schedules, arrange_by_batch
from .schedule_prims.walks import WalkForm, find_walk_forms
from .target import Target
from .targets import cpu
from .targets.kept_code import CodeKeeper
from .targets.machine_code import compile_module
from .tir_gen import canonical, contributions
from .tir_gen.walks import check_walks

LOG = logging.getLogger(__name__)

GLOBAL_SYMBOL = "global_symbol"


@dataclass(frozen=True)
class Lowered:
    """The functions of a model before and after lowering.

    Attributes:
        before: canonical functions, one walk operator each.
        after: what is given to TVM's code generator.
        block_rows: for functions without a schedule, how many rows each takes together.
        stages: what is in between, in order: the functions as scheduled, "schedule", and then as
            each pass left them, by its name, such as "tvm_forest.LowerWalks"; kept by `lower` only.
    """

    before: tvm.IRModule
    after: tvm.IRModule
    block_rows: dict[str, int]
    stages: dict[str, tvm.IRModule] = field(default_factory=dict, repr=False)


def compile_forest(request: BuildRequest, anew: bool = False) -> Compiled:
    """Compile the functions of a request.

    Args:
        request: what is to be compiled.
        anew: make the library here, of which texts can be seen, though the cache may have its
            machine code.

    Raises:
        ScheduleError: a schedule does not walk as its layout must, or is beyond the limits of a
            GPU.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    target = request.target
    keeper = None if anew else CodeKeeper.of(target)  # refuses targets before there is much to do
    laid_out = lay_out(request)
    lowered = lower_request(request, laid_out)
    text = to_text(lowered.after) if keeper else ""
    key, library = keeper.find(text) if keeper else ("", None)
    if library is None:
        begin = time.perf_counter()
        library = _compile_lowered(lowered, request)
        library = keeper.keep(key, library) if keeper else library
        _say_compiled(request, begin)
    return Compiled(library, laid_out.arguments, laid_out.columns, lowered.block_rows, key)


def _compile_lowered(lowered: Lowered, request: BuildRequest) -> Library:
    """Compile functions that are lowered.

    Raises:
        BuildError, InputError: see `compile_forest`.
    """
    try:
        return compile_module(lowered.after, request.target)
    except ForestError:
        raise
    except Exception as error:  # whatever TVM throws, users get one kind of error and the trace
        shown = "\n".join(map(str, dict.fromkeys(request.schedules.values())))
        raise BuildError(f"build: TVM cannot compile the schedule: {error}\n{shown}") from error


def _say_compiled(request: BuildRequest, begin: float) -> None:
    """Log what was compiled since a time of the clock."""
    seconds, batches = time.perf_counter() - begin, sorted(request.schedules)
    about = "%s: compiled for %s in %.2f s, for batches from %s rows on"
    LOG.info(about, ", ".join(request.outputs), request.target.to_dict(), seconds, batches)


def to_text(mod: tvm.IRModule) -> str:
    """Return all that functions say, as a text."""
    return str(tvm.ir.save_json(mod))


def lower(forest: Forest, schedule: Schedules, target: Target) -> Lowered:
    """Return the functions before and after lowering, to be looked at.

    Raises:
        The same as `build`.
    """
    schedules = arrange_by_batch(schedule, "lower")
    request = BuildRequest.of(forest, schedules, target, outputs=OUTPUTS, exact=False)
    if target.on_gpu:  # for a CPU, schedules for GPUs can be looked at as well
        request.check_machine()
    with keep_stages() as stages:
        lowered = lower_request(request, lay_out(request))
    modules = {name: tvm.IRModule(functions) for name, functions in stages.items()}
    return replace(lowered, stages=modules)


def lower_request(request: BuildRequest, laid_out: LaidOut) -> Lowered:
    """Lower the functions of a request whose model is laid out.

    Raises:
        ScheduleError: see `compile_forest`.
    """
    for sch in dict.fromkeys(request.schedules.values()):
        check_walks(sch)
    lowered = _lower_each(laid_out, request.target)
    spills = any(SPILLED in x.attrs for x in lowered.after.functions.values())
    if spills and request.outputs == (SUMS,):
        # what leaves say is compiled when it is asked for, and its limits are looked at now
        _lower_each(lay_out(request.with_outputs(*OF_LEAVES)), request.target)
    return lowered


def _lower_each(laid_out: LaidOut, target: Target) -> Lowered:
    """Lower functions one by one."""
    before, after = dict[str, tirx.PrimFunc](), dict[str, tirx.PrimFunc]()
    block_rows = dict[str, int]()
    for laid in laid_out.functions:
        if isinstance(laid, LaidTables):
            variants, rows = _lower_contributions(laid, target)
            before, block_rows = before | variants, block_rows | rows
        else:
            before[laid.name], variants = _lower_function(laid, target)
        after |= variants
    return Lowered(tvm.IRModule(before), tvm.IRModule(after), block_rows)


def _lower_contributions(
    laid: LaidTables, target: Target
) -> tuple[dict[str, tirx.PrimFunc], dict[str, int]]:
    """Lower the functions of contributions or interactions.

    Returns:
        The functions, and their names with the number of rows that each takes together: first that
        of single rows, then that of blocks if there is one.
    """
    machine, name = cpu.tvm_target(target), laid.name
    abilities = cpu.abilities(machine)
    fused = not target.on_gpu and bool({"fma", "neon"} & abilities)
    widths: dict[str, int] = {name: 1}
    if not target.on_gpu:
        widths = {name + contributions.SINGLE: 1, name: contributions.choose_width(abilities)}
    functions = {}
    for own, width in widths.items():
        emitted = contributions.emit_contributions(laid.tables, name, width, fused, target.on_gpu)
        emitted = emitted.with_attr(MODEL, len(laid.arguments)).with_attr(GLOBAL_SYMBOL, own)
        function = tirx.transform.BindTarget(machine)(tvm.IRModule({own: emitted}))[own]
        function = function.with_attr(TWIN, own)
        functions[own] = make_twin(function)
        if width > 1:
            functions[own + PARALLEL] = function.with_attr(GLOBAL_SYMBOL, own + PARALLEL)
    return functions, {own: contributions.count_block_rows(width) for own, width in widths.items()}


def _lower_function(
    laid: LaidFunction, target: Target
) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """Return a function before and after lowering, with its twin for threads."""
    # 1. the model as the schedule rewrote it, and how it lies in memory: see `pack`
    name, sch = laid.name, laid.schedule
    forest, rep, arrays = laid.packed
    machine = cpu.tvm_target(target)
    abilities = None if target.on_gpu else cpu.abilities(machine)
    forms = find_walk_forms(sch, forest)
    # 2. what is to be computed
    unscheduled = canonical.emit_canonical(forest, rep, laid.output)
    shared_bytes = target.shared_bytes if target.on_gpu else None
    functions = {}
    for suffix, variant in _variants(sch).items():
        # 3. how it is to be computed
        scheduled, facts = _schedule(unscheduled, variant, forms)
        # 4. what the machine has to do
        own = name + suffix
        function = scheduled["main"].with_attr(GLOBAL_SYMBOL, own)
        if target.on_gpu:
            function = with_array_facts(function, rep, arrays)
        mod = tvm.IRModule({own: function})
        keep_stage("schedule", mod)
        steps = pipeline(rep, forest.comparison, facts, abilities, shared_bytes).passes
        mod = run_passes([tirx.transform.BindTarget(machine), *steps], mod)
        functions[own] = mod[own].with_attr(MODEL, len(laid.arguments))
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
