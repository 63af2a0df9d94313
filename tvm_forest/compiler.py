"""The compiler, from top to bottom: read this file first.

takes: Forest, Schedule, Target; gives: functions that can be called (`compile_forest`), or the
IRModules that they are made of (`lower`).

    Forest --plain, rewrite--> Forest --pack--> Representation + arrays
    Forest + Representation --emit--> canonical TIR      one loop nest, walks are operators
    TIR + Schedule --replay--> scheduled TIR             the nest that was asked for
    scheduled TIR --pipeline--> plain TIR                walks are loads and comparisons
    plain TIR + Target --compile--> machine code
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import tvm
from tvm import s_tir, tirx

from .errors import BuildError, ForestError, ScheduleError, UnsupportedModel
from .forest import Array, Forest
from .forest.rewrites.canonical_form import plain
from .forest.rewrites.ordering import take_trees
from .layouts import representation
from .nest import Loop
from .passes import pipeline
from .passes.cpu.share_blocks import TWIN, on_one_thread
from .passes.gpu import make_kernels
from .passes.model_table import MODEL
from .schedule import Schedule
from .schedule_prims import replay, rewrite
from .schedule_prims.batches import PARALLEL, Schedules, by_batch, function_names, walked
from .schedule_prims.fitting import check_fit
from .schedule_prims.memory import WALKED
from .schedule_prims.walks import LANES, WalkForm, walk_forms
from .target import Target
from .targets import Library, cpu, cuda, opencl, rocm, simt
from .tir_gen.canonical import OF_LEAVES, OUTPUTS, SUMS, Output, emit_canonical, model_buffers
from .tir_gen.leaves import leaf_arrays, numbered


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

    def read_by(self, output: Output) -> dict[str, Array]:
        """Return the arrays that a function reads, in its order of arguments."""
        specs = model_buffers(self.forest, self.layout, output)
        return {spec.name: self.arrays[spec.name] for spec in specs}


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
        schedules: how batches of so many rows and more are evaluated, see `by_batch`; made for
            `plain(forest)`.
        target: the machine.
        outputs: what the functions give.
        exact: refuse a schedule that adds leaves in another order than the model.

    Raises:
        ScheduleError: a schedule does not fit the model, or is not exact.
        BuildError: a layout cannot hold the model, or TVM fails.
        InputError: the target is unknown.
    """
    packed = _pack_each(forest, schedules, exact)
    for sch in packed:
        _check_device(sch, target)
    lowered, arguments = _lower(packed, schedules, target, outputs)
    try:
        library = _machine_code(lowered.after, target)
    except ForestError:
        raise
    except Exception as error:  # whatever TVM throws, users get one kind of error and the trace
        shown = "\n".join(map(str, packed))
        raise BuildError(f"build: TVM cannot compile the schedule: {error}\n{shown}") from error
    return Compiled(library, arguments, columns_of_trees(packed[walked(schedules)].forest))


def _machine_code(mod: tvm.IRModule, target: Target) -> Library:
    if target.kind == cuda.KIND:
        return cuda.compile_module(mod, target)
    if target.kind == rocm.KIND:
        return rocm.compile_module(mod, target)
    if target.kind == opencl.KIND:
        return opencl.compile_module(mod, target)
    if target.kind == simt.KIND:
        return simt.compile_module(mod, target)
    return cpu.compile_module(mod, cpu.tvm_target(target))


def lower(forest: Forest, schedule: Schedules, target: Target) -> Lowered:
    """Return the functions before and after lowering, to be looked at.

    Raises:
        The same as `build`.
    """
    schedules = by_batch(schedule, "lower")
    return _lower(_pack_each(forest, schedules), schedules, target, OUTPUTS)[0]


def _pack_each(
    forest: Forest, schedules: dict[int, Schedule], exact: bool = False
) -> dict[Schedule, Packed]:
    """Lay the model out for each schedule, once for all that ask for the same."""
    forest, shared = plain(forest), dict[tuple[str, ...], Packed]()
    packed = {}
    for sch in schedules.values():
        _check_schedule(forest, sch, exact)
        _check_walks(sch)
        asked = (sch.representation, *(str(step) for step in sch.rewrites))
        if asked not in shared:
            shared[asked] = pack(forest, sch, exact)
        packed[sch] = shared[asked]
    return packed


def pack(forest: Forest, sch: Schedule, exact: bool = False, tree: int | None = None) -> Packed:
    """Rewrite a model as a schedule asks, and lay it out in memory.

    Args:
        forest, sch, exact: see `build`.
        tree: lay out this tree by itself, counted after the rewrites; None for all.

    Raises:
        ScheduleError, BuildError: see `build`.
    """
    forest = plain(forest)
    _check_forest(forest)
    _check_schedule(forest, sch, exact)
    rewritten = rewrite(forest, sch)
    if tree is not None:
        rewritten = take_trees(rewritten, np.array([tree]))
    return _laid_out(rewritten, sch)


def _laid_out(forest: Forest, sch: Schedule) -> Packed:
    layout, arrays = _layout(forest, sch).pack(numbered(forest))
    return Packed(forest, layout, arrays | leaf_arrays(forest))


def _lower(
    packed: dict[Schedule, Packed],
    schedules: dict[int, Schedule],
    target: Target,
    outputs: tuple[Output, ...],
) -> tuple[Lowered, dict[str, list[Array]]]:
    """Lower the sums of every schedule, and what leaves say by the last that walks hop by hop."""
    names = function_names(schedules)
    sums = [(name, SUMS, schedules[smallest]) for smallest, name in names.items()]
    leaves = [(name, name, walked(schedules)) for name in OF_LEAVES]
    before, after = dict[str, tirx.PrimFunc](), dict[str, tirx.PrimFunc]()
    arguments = dict[str, list[Array]]()
    wanted = (entry for entry in dict.fromkeys([*sums, *leaves]) if entry[1] in outputs)
    for name, output, sch in wanted:
        found = _lower_function(name, output, packed[sch], sch, target)
        before[name], arguments[name] = found[0], found[2]
        after |= found[1]
    return Lowered(tvm.IRModule(before), tvm.IRModule(after)), arguments


def _lower_function(
    name: str, output: Output, packed: Packed, sch: Schedule, target: Target
) -> tuple[tirx.PrimFunc, dict[str, tirx.PrimFunc], list[Array]]:
    """Return a function before and after lowering, with its twin for threads, and its arrays."""
    # 1. what the schedule asked of the model, and how that lies in memory: see `pack`
    forest, rep, _ = packed
    machine = cpu.tvm_target(target)
    abilities = None if target.on_gpu else cpu.abilities(machine)
    forms = walk_forms(sch, forest)
    # 2. what is to be computed, and from what
    base = [forest.base_score.astype(forest.base_dtype)] if output == "predict" else []
    model = [*packed.read_by(output).values(), *base]
    canonical = emit_canonical(forest, rep, output)
    functions = {}
    for suffix, variant in _variants(sch).items():
        # 3. how it is to be computed
        scheduled = _schedule(canonical, variant, forms)
        # 4. what the machine has to do
        mod = tirx.transform.BindTarget(machine)(scheduled)
        mod = pipeline(rep, forest.comparison, variant, forms, abilities)(mod)
        function = mod["main"]
        if target.on_gpu:
            function = make_kernels(function, variant, packed.arrays)
        function = function.with_attr("global_symbol", name + suffix)
        functions[name + suffix] = function.with_attr(MODEL, len(model))
    if list(functions) == [name + PARALLEL]:
        twin = functions[name + PARALLEL].with_attr(TWIN, name)
        functions = {name: on_one_thread(twin), name + PARALLEL: twin}
    return canonical["main"], functions, model


def _layout(forest: Forest, sch: Schedule) -> type[representation.Representation]:
    layout = representation.find(sch.representation)
    if forest.tile_size not in layout.tile_sizes:
        sizes = ", ".join(str(size) if size > 1 else "none" for size in layout.tile_sizes)
        tiles = f"tiles of {forest.tile_size} nodes" if forest.tile_size > 1 else "no tiles"
        raise ScheduleError(
            f"represent_as: argument 'name': {sch.representation!r} cannot hold {tiles} (tiles it "
            f"can hold: {sizes}); choose another layout or size with tile_nodes\n{sch}"
        )
    return layout


def _check_walks(sch: Schedule) -> None:
    """Refuse a nest that does not walk as the layout must be walked."""
    layout = representation.find(sch.representation)
    how = layout.walks
    other = next((loop for loop in sch.leaves() if loop.simdize != how), None)
    if how != "hops" and other is not None:
        counts = ", ".join(map(str, LANES[how]))
        raise ScheduleError(
            f"represent_as: argument 'name': {sch.representation!r} is walked by {how} only, not "
            f"as '{other.name}' is; tile the rows by one of {counts}, put the trees around that "
            f"loop, and use simdize('{other.name}', '{how}')\n{sch.render(other.name)}"
        )
    marked = [loop for loop in sch.leaves() if loop.simdize in set(WALKED.values())]
    if how == "hops" and marked:
        said = marked[0].simdize
        layout_of = next(name for name, word in WALKED.items() if word == said)
        raise ScheduleError(
            f"simdize: argument 'how': {said!r} is for layout '{layout_of}', not for "
            f"{sch.representation!r}; use represent_as('{layout_of}')\n"
            f"{sch.render(marked[0].name)}"
        )
    if how == "permute" and sch.vectors:
        raise ScheduleError(
            f"represent_as: argument 'name': {sch.representation!r} looks up one number for a "
            "leaf, but the leaves of this model hold vectors; choose another layout\n"
            f"{sch.render(marked[0].name)}"
        )
    endless = next((loop for loop in marked if not _in_blocks(sch.path(loop.name))), None)
    if endless is not None:
        raise ScheduleError(
            f"represent_as: argument 'name': {sch.representation!r} codes rows in blocks of a "
            f"known size, but no loop around the trees of '{endless.name}' has one; tile 'batch', "
            f"and put the loop over blocks outermost\n{sch.render(endless.name)}"
        )
    least = LANES.get(how, (1,))[0]
    odd = next((x for loop in marked for x in _in_block(sch.path(loop.name)) if x[1] % least), None)
    if odd is not None:
        raise ScheduleError(
            f"simdize: argument 'how': {how!r} takes groups of {least} rows, but '{odd[0]}' begins "
            f"at multiples of {odd[1]} in a block; tile by multiples of {least}\n"
            f"{sch.render(odd[0])}"
        )


def _in_block(path: tuple[Loop, ...]) -> Iterator[tuple[str, int]]:
    """Yield the starts and steps, in rows, of the loops inside a block of a known size."""
    rows = [loop for loop in path if loop.kind == "batch"]
    block = next(k for k in range(len(rows)) if all(x.count is not None for x in rows[k + 1 :]))
    for loop in rows[block + 1 :]:
        yield loop.name, loop.start
        if loop is not rows[-1] and isinstance(loop.step, int):
            yield loop.name, loop.step


def _in_blocks(path: tuple[Loop, ...]) -> bool:
    """Whether a loop over rows stands around all others and reaches a known number of rows."""
    outer = list(takewhile(lambda loop: loop.kind == "batch", path))
    inside = [loop for loop in path[len(outer) :] if loop.kind == "batch"]
    return bool(outer) and all(loop.count is not None for loop in inside)


def _variants(sch: Schedule) -> dict[str, Schedule]:
    """A schedule with parallel loops has a twin without, for small batches and one thread.

    Where threads share out rows only, the twin is what comes of the schedule, on one thread.
    """
    parallel = [loop for loop in sch.loops() if loop.parallel]
    if not parallel:
        return {"": sch}
    alone = sch.without("parallel", "atomic_reduce", "vector_reduce")
    if all(loop.kind == "batch" for loop in parallel) and alone == sch.without("parallel"):
        return {PARALLEL: sch}
    return {"": alone, PARALLEL: sch}


def _schedule(mod: tvm.IRModule, sch: Schedule, forms: dict[str, WalkForm]) -> tvm.IRModule:
    """Replay the directives on TVM's schedule of one function."""
    tir = s_tir.Schedule(mod, error_render_level="fast")
    try:
        replay(tir, sch, forms)
    except s_tir.ScheduleError as error:
        raise BuildError(f"build: TVM refuses a step of the schedule: {error}\n{sch}") from error
    return tir.mod


def _check_forest(forest: Forest) -> None:
    """Refuse by name what a Forest can say and the code generators cannot do yet."""
    refused = {
        "n_features": forest.n_features == 0,
        "threshold": forest.threshold.dtype != forest.leaf_value.dtype and not forest.has_vectors,
    }
    field = next((name for name, fires in refused.items() if fires), None)
    if field is not None:
        value = getattr(forest, field)
        shown = f"{value.dtype} {value.shape}" if hasattr(value, "shape") else repr(value)
        raise UnsupportedModel(
            f"build: argument 'model': field '{field}': {shown} cannot be compiled yet; "
            "predict with Forest.predict_reference or the source library"
        )


def _check_device(sch: Schedule, target: Target) -> None:
    where = "build: argument 'schedule'"
    mapped = next((loop for loop in sch.loops() if loop.gpu or loop.cache == "shared"), None)
    if not target.on_gpu and mapped is not None:
        said = "; ".join(mapped.annotations())
        raise ScheduleError(
            f"{where}: '{mapped.name}' is for a GPU ({said}), but the target "
            f"is a CPU; use target 'cuda' or 'simt', or look at it with tvm_forest.lower\n{sch}"
        )
    if not target.on_gpu:
        return
    parallel = next((loop for loop in sch.loops() if loop.parallel), None)
    if parallel is not None:
        raise ScheduleError(
            f"{where}: '{parallel.name}' is parallel, which is for CPU threads, but the target is "
            f"{target.kind!r}; use gpu_dimension\n{sch}"
        )
    if not any(loop.gpu for loop in sch.loops()):
        raise ScheduleError(
            f"{where}: no loop is mapped to the threads of a GPU, but the target is "
            f"{target.kind!r}; use gpu_dimension\n{sch}"
        )
    if representation.find(sch.representation).walks != "hops":
        raise ScheduleError(
            f"{where}: layout {sch.representation!r} is for CPUs only; choose another with "
            f"represent_as\n{sch}"
        )


def _check_schedule(forest: Forest, sch: Schedule, exact: bool) -> None:
    check_fit("build", forest, sch)
    if sch.batch is not None:
        raise ScheduleError(
            f"build: argument 'schedule': made for batches of {sch.batch} rows, but code is made "
            f"for any number; leave 'batch' out\n{sch}"
        )
    if forest.aggregate in ("min", "max") and not sch.keeps_order:
        raise ScheduleError(
            f"build: argument 'schedule': it adds up parts of the forest, but the model takes the "
            f"{forest.aggregate} of its leaves; run rows in parallel, not trees\n{sch}"
        )
    if exact and not sch.keeps_order:
        raise ScheduleError(
            "build: argument 'schedule': it adds the trees in another order than the model, so "
            f"results differ in the last bits; allow that with exact=False\n{sch}"
        )


def columns_of_trees(forest: Forest) -> Array:
    """Return (T, W), the places `round * C + class` of each tree of the source model."""
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.argsort(forest.tree_id[known], kind="stable")]
    if forest.has_vectors:
        return order[:, None] * forest.n_outputs + np.arange(forest.n_outputs)
    trees = len(np.unique(forest.tree_id[known]))
    return order.reshape(trees, -1) if trees else order.reshape(0, 1)
