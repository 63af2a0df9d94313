"""The compiler from top to bottom: read this file first.

takes: BuildRequest; gives: callable functions (`compile_forest`), or the IRModules before and after
lowering (`lower`).

    BuildRequest --lay_out--> Layout + arrays            see `laying_out`
    Forest + Layout --emit--> canonical TIR              one loop nest, walks are operators
    TIR + Schedule --replay--> scheduled TIR             the nest of the schedule
    scheduled TIR --pipeline--> plain TIR                walks are loads and comparisons
    plain TIR + Target --compile--> machine code         or from the cache, see `CodeKeeper`
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import s_tir, tirx

from .errors import BuildError, ForestError, ScheduleError
from .forest import Forest
from .layouts.laying_out import Compiled, LaidFunction, LaidOut, LaidTables, lay_out
from .layouts.laying_out.request import BuildRequest
from .passes import pipeline
from .passes.cpu.outline import SYMBOL
from .passes.cpu.share_blocks import TWIN, AddTwins, make_serial, make_twin
from .passes.gpu.array_facts import STARTS, with_array_facts
from .passes.gpu.map_threads import SPILLED
from .passes.model_table import MODEL
from .passes.nest_facts import NestFacts
from .passes.reading.adopt import adopt_loops, computes, read_schedule
from .passes.reading.computation import with_seal
from .passes.reading.read_nest import read_nest
from .passes.stages import SCHEDULE, Stages
from .runtime import Library
from .runtime.results import OF_LEAVES, OUTPUTS, SUMS, Output
from .schedule_prims import Schedule, replay
from .schedule_prims.batches import PARALLEL, Schedules, arrange_by_batch
from .schedule_prims.fitting import check_additions, check_device, check_exact
from .schedule_prims.model import OF_MODEL
from .schedule_prims.regions import adds_in_order
from .system.values import dataclass, field, replace
from .target import Target, parse_target
from .targets import cpu
from .targets.kept_code import CodeKeeper
from .targets.machine_code import compile_module
from .tir_gen import canonical, contributions
from .tir_gen.attributes import read_model_facts
from .tir_gen.walks import check_walks

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lowered:
    """The functions of a model before and after lowering.

    Attributes:
        before: canonical functions, each with one walk operator.
        after: functions that are passed to TVM's code generator.
        block_rows: for functions without a schedule, the number of rows that each takes together.
        stages: the functions in between, in order, by stage: as scheduled, "schedule", and then
            after each pass, such as "tvm_forest.LowerWalks"; only `lower` keeps them.
    """

    before: tvm.IRModule
    after: tvm.IRModule
    block_rows: dict[str, int]
    stages: dict[str, tvm.IRModule] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = ", ".join(sorted(x.name_hint for x in self.before.functions))
        return f"<Lowered: {names}; .before, .after and {len(self.stages)} .stages have .show()>"


def compile_forest(
    request: BuildRequest, laid_out: LaidOut | None = None, anew: bool = False, about: str = ""
) -> Compiled:
    """Compile the functions of a request.

    Args:
        request: what to compile.
        laid_out: result of `lay_out` for the request, if it is known already.
        anew: compile even if the cache has the machine code, so that source texts can be shown.
        about: a text that identifies the code as the lowered functions do, such as their kinds; ""
            to print them, which takes as long as some passes.

    Raises:
        ScheduleError: a schedule does not walk as its layout requires, or exceeds a GPU's limits.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError, UnsupportedModel: the target is unknown; see `lay_out`.
    """
    target = request.target
    keeper = None if anew else CodeKeeper.of(target)  # refuses unknown targets before the work
    laid_out = laid_out or lay_out(request)
    lowered = lower_request(request, laid_out)
    key, library = keeper.find(about or to_text(lowered.after)) if keeper else ("", None)
    if library is None:
        begin = time.perf_counter()
        library = _compile_lowered(lowered.after, request.schedules, target)
        library = keeper.keep(key, library) if keeper else library
        told = "%s: compiled for %s in %.2f s, for batches from %s rows on"
        about, seconds = ", ".join(request.outputs), time.perf_counter() - begin
        LOG.info(told, about, target.to_dict(), seconds, sorted(request.schedules))
    return Compiled.of(library, laid_out, key, lowered.block_rows)


def _compile_lowered(
    lowered: tvm.IRModule, schedules: Mapping[int, Schedule], target: Target
) -> Library:
    """Compile lowered functions to a library.

    Raises:
        BuildError, InputError: see `compile_forest`.
    """
    try:
        return compile_module(lowered, target)
    except ForestError:
        raise
    except Exception as error:  # whatever TVM raises, users get one kind of error and the trace
        shown = "\n".join(map(str, dict.fromkeys(schedules.values())))
        raise BuildError(f"build: TVM cannot compile the schedule: {error}\n{shown}") from error


def to_text(mod: tvm.IRModule) -> str:
    """Return all functions of a module as JSON text."""
    return str(tvm.ir.save_json(mod))


def lower(
    forest: Forest, schedule: Schedules, target: Target, outputs: tuple[Output, ...] = OUTPUTS
) -> Lowered:
    """Return the functions of these outputs before and after lowering, for inspection.

    Raises:
        UnsupportedModel, ScheduleError, BuildError, InputError: see `tvm_forest.build`.
    """
    request = BuildRequest.of(forest, arrange_by_batch(schedule, "lower"), target, outputs=outputs)
    if target.on_gpu:  # with a CPU target, schedules for GPUs can be inspected too
        request.check_machine()
    stages, here = Stages(), tvm.transform.PassContext.current()
    with tvm.transform.PassContext(here.opt_level, config=here.config, instruments=[stages]):
        lowered = lower_request(request, lay_out(request))
    modules = {name: tvm.IRModule(functions) for name, functions in stages.functions.items()}
    return replace(lowered, stages=modules)


def lower_request(request: BuildRequest, laid_out: LaidOut) -> Lowered:
    """Lower the functions of a request whose model has been laid out.

    Raises:
        ScheduleError, BuildError, InputError: see `compile_forest`.
    """
    for sch in dict.fromkeys(request.schedules.values()):
        check_walks(sch)
    lowered = _lower_each(laid_out, request.target)
    spills = any(SPILLED in x.attrs for x in lowered.after.functions.values())
    if spills and request.outputs == (SUMS,):
        # outputs of leaves are compiled on first use, but their limits are checked now
        _lower_each(lay_out(request.with_outputs(*OF_LEAVES)), request.target)
    return lowered


def take_schedule(given: Any, forest: Forest) -> Any:
    """Convert an `s_tir.Schedule`, or its module, to a Schedule; return anything else unchanged.

    Args:
        given: the `s_tir.Schedule` of a function of `lower(model).before`, or a module with such
            functions.
        forest: the model.

    Raises:
        ScheduleError, BuildError: an annotation is invalid, the loops do not form one nest, the
            module has not exactly one function of sums, or this is of another model; see `lay_out`.
    """
    module = given.mod if isinstance(given, s_tir.Schedule) else given
    if not isinstance(module, tvm.IRModule):
        return given
    functions = [adopt_loops(func) for func in module.functions.values()]
    sums = [func for func in functions if read_model_facts(func).output == SUMS]
    if len(sums) != 1:
        raise ScheduleError(
            f"build: argument 'schedule': {len(sums)} functions of the module give sums, but one "
            "is scheduled; give s_tir.Schedule(lower(model, schedule).before['predict'])"
        )
    sch = read_schedule(sums[0]).retell()
    (laid,) = lay_out(BuildRequest.of(forest, sch, Target())).functions
    if not isinstance(laid, LaidFunction) or not computes(sums[0], _emit(laid)["main"]):
        raise ScheduleError(
            "build: argument 'schedule': the s_tir.Schedule is of another model; begin with "
            "tvm_forest.lower(model, schedule).before of this one"
        )
    return sch


def compile(
    module: Any, target: str | dict[str, Any] | Target = "llvm", *, exact: bool = True
) -> Library:
    """Compile scheduled functions, with the help of their attributes about the model.

    The functions are those of `lower(model).before`, scheduled by `tvm.s_tir.Schedule` and
    annotations. They may come from TVMScript or from JSON, in a process that has neither the model
    nor a Schedule:

        start = tvm_forest.new_schedule(model).represent_as("packed")
        sch = s_tir.Schedule(tvm_forest.lower(model, start).before["predict"])
        rows, trees = sch.get_loops("walk")
        blocks, rows = sch.split(rows, [None, 64])
        sch.reorder(blocks, trees, rows)
        sch.annotate(rows, "tvm_forest.interleave", 16)
        text = tvm.ir.save_json(sch.mod)
        library = tvm_forest.compile(tvm.ir.load_json(text))

    Args:
        module: an IRModule whose functions are all scheduled so, or an `s_tir.Schedule`.
        target: see `build`.
        exact: see `build`.

    Returns:
        The functions by name; those with threads are "<name>_parallel". Each takes the rows, a
        uint64 array with the addresses of the model's arrays, and arrays for results.

    Raises:
        ScheduleError: the module is of another type, a function has no attributes about a model, a
            loop or an annotation cannot be read, the directive for an annotation is refused, the
            schedule does not suit the target or `exact`, or two functions get the same name.
        InputError, BuildError: see `build`.
    """
    module = module.mod if isinstance(module, s_tir.Schedule) else module
    if not isinstance(module, tvm.IRModule):
        what = f"expected an IRModule or an s_tir.Schedule, got {type(module).__name__}"
        raise ScheduleError(f"compile: argument 'module': {what}; see docs/directives.md")
    schedules, lowered = dict[int, Schedule](), dict[str, tirx.PrimFunc]()
    machine = parse_target(target)
    for name, func in sorted((x.name_hint, func) for x, func in module.functions.items()):
        adopted = adopt_loops(func)
        model = read_model_facts(adopted)
        sch = schedules[len(schedules)] = read_schedule(adopted)
        check_device(sch, machine)
        if machine.on_gpu and STARTS not in func.attrs:
            what = f"function '{name}' was made for a CPU; begin with tvm_forest.lower(model, "
            raise ScheduleError(f"compile: argument 'module': {what}schedule, target).before")
        check_additions(model.aggregate, sch)
        if exact:
            check_exact(sch)
        check_walks(sch)
        made = lower_scheduled(adopted, name, machine)
        if lowered.keys() & made.keys():
            what = f"function '{name}' has the name of what threads run of another; rename it"
            raise ScheduleError(f"compile: argument 'module': {what}")
        lowered |= made
    return _compile_lowered(tvm.IRModule(lowered), schedules, machine)


def _lower_each(laid_out: LaidOut, target: Target) -> Lowered:
    """Lower the functions of a model that is laid out, one by one."""
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
        The functions by name, variants with threads included, and by name the number of rows that
        each serial function takes together.
    """
    machine, name = cpu.tvm_target(target), laid.name
    abilities = cpu.abilities(machine)
    fused = not target.on_gpu and bool({"fma", "neon"} & abilities)
    listed = contributions.list_functions(name, laid.looks_up, target.on_gpu, abilities)
    functions = dict[str, tirx.PrimFunc]()
    for own, (width, rows) in listed.items():
        emitted = contributions.emit_contributions(laid.tables, name, width, fused, target.on_gpu)
        made = _add_twin(emitted, own, len(laid.arguments), machine)
        functions |= made if rows > 1 else {own: made[own]}
    return functions, {own: rows for own, (_, rows) in listed.items()}


def _add_twin(
    emitted: tirx.PrimFunc, name: str, n_arrays: int, machine: tvm.target.Target
) -> dict[str, tirx.PrimFunc]:
    """Return a function with a parallel loop, as "<name>_parallel", and its serial twin, `name`."""
    emitted = emitted.with_attr(MODEL, n_arrays).with_attr(SYMBOL, name)
    function = tirx.transform.BindTarget(machine)(tvm.IRModule({name: emitted}))[name]
    function = function.with_attr(TWIN, name)
    return {name: make_twin(function), name + PARALLEL: function.with_attr(SYMBOL, name + PARALLEL)}


def compile_shared(name: str, emitted: tirx.PrimFunc, n_arrays: int, target: Target) -> Library:
    """Compile a function that depends on no model, and its twin for one thread.

    Args:
        name: name of the twin in the library; the function is "<name>_parallel".
        emitted: the function, which has a parallel loop.
        n_arrays: how many of its arguments are arrays of the model, whose addresses it gets.
        target: the machine to compile for.

    Raises:
        BuildError, InputError: see `compile_forest`.
    """
    functions = _add_twin(emitted, name, n_arrays, cpu.tvm_target(target))
    return _compile_lowered(tvm.IRModule(functions), {}, target)


def _lower_function(
    laid: LaidFunction, target: Target
) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc]]:
    """Return a canonical function, and the lowered functions made from it, by name."""
    # 1. what is computed: the model as the schedule rewrote it and laid it out
    function = _emit(laid)["main"]
    if target.on_gpu:
        function = with_array_facts(function, laid.packed.layout, laid.packed.arrays)
    unscheduled = tvm.IRModule({"main": with_seal(function)})
    # 2. how it is computed: the loops of the schedule
    scheduled = schedule_function(unscheduled, laid.schedule)["main"]
    # 3. what the machine does: loads, comparisons and additions
    return unscheduled["main"], lower_scheduled(scheduled, laid.name, target)


def _emit(laid: LaidFunction) -> tvm.IRModule:
    """Return a module with the canonical function for one output of a model that is laid out."""
    steps = [step.to_dict() for step in laid.schedule.steps if step.do in OF_MODEL]
    return canonical.emit_canonical(laid.packed.forest, laid.packed.layout, laid.output, steps)


def lower_scheduled(
    scheduled: tirx.PrimFunc, name: str, target: Target
) -> dict[str, tirx.PrimFunc]:
    """Lower a scheduled function; return it, and if a loop is parallel a variant with threads.

    Both are found by their names: the serial function is `name`, the other "<name>_parallel".

    Raises:
        ScheduleError: the loops cannot be read, or exceed the limits of a GPU.
        BuildError, InputError: see `cpu.tvm_target`.
    """
    machine = cpu.tvm_target(target)
    abilities = None if target.on_gpu else cpu.abilities(machine)
    shared_bytes = target.shared_bytes if target.on_gpu else None
    scheduled = scheduled.with_attr(SYMBOL, name)
    tvm.transform.Sequential([SCHEDULE])(tvm.IRModule({name: scheduled}))
    facts, functions = read_nest(scheduled), dict[str, tirx.PrimFunc]()
    for suffix, (variant, own_facts) in _variants(scheduled, facts).items():
        own = name + suffix
        mod = tvm.IRModule({own: variant.with_attr(SYMBOL, own)})
        steps = pipeline(own_facts, abilities, shared_bytes).passes
        mod = tvm.transform.Sequential([tirx.transform.BindTarget(machine), *steps])(mod)
        functions[own] = mod[own].with_attr(MODEL, facts.model.n_arguments)
    if list(functions) == [name + PARALLEL]:
        alone = tvm.IRModule({name + PARALLEL: functions[name + PARALLEL].with_attr(TWIN, name)})
        mod = tvm.transform.Sequential([AddTwins(facts)])(alone)
        functions = {own: mod[own] for own in (name, name + PARALLEL)}
    return functions


def _variants(func: tirx.PrimFunc, facts: NestFacts) -> dict[str, tuple[tirx.PrimFunc, NestFacts]]:
    """Return the variants of a function to lower, with their facts, by suffix of the name.

    A function with parallel loops also needs a serial one, for small batches and one thread. That
    is lowered separately, unless threads only divide the rows, or only the schedule's reduction
    keeps the order of additions: then `AddTwins` makes it from the parallel one.
    """
    parallel = [loop for loop in facts.nest.loops() if loop.parallel]
    if not parallel:
        return {"": (func, facts)}
    alone = facts.on_one_thread()
    reduces = any(loop.reduce not in (None, "shared") for loop in facts.nest.loops())
    of_rows = all(loop.kind == "batch" for loop in parallel) and not reduces
    keeps_order = adds_in_order(facts.nest.nest) and not facts.model.is_sorted
    if of_rows or (keeps_order and not adds_in_order(alone.nest.nest)):
        return {PARALLEL: (func, facts)}
    return {"": (make_serial(func), alone), PARALLEL: (func, facts)}


def schedule_function(mod: tvm.IRModule, sch: Schedule) -> tvm.IRModule:
    """Return a module with one function, whose loops a schedule has changed by TVM's primitives.

    Raises:
        BuildError: TVM refuses a step.
    """
    tir = s_tir.Schedule(mod, error_render_level="fast")
    try:
        replay(tir, sch)
    except s_tir.ScheduleError as error:
        raise BuildError(f"build: TVM refuses a step of the schedule: {error}\n{sch}") from error
    return tir.mod
