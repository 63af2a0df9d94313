"""A search for schedules by TVM's MetaSchedule, over the canonical functions of a model.

takes: a forest, its rows; gives: Found, the trials one after the other and the fastest schedule.

Each layout has parameters of its own, so it is a task. The decisions are TVM's splits and
reorderings and the annotations of docs/tvm_schedules.md; a schedule is built by
`tvm_forest.compile`, in MetaSchedule's own processes, compared to the bit, and then timed.

MetaSchedule refuses functions for any number of rows, so it searches with a constant one. What it
finds is repeated on the function for any number, and goes to `tvm_forest.build`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

import tvm_forest
from tvm_forest.forest import Forest
from tvm_forest.laying_out import pack
from tvm_forest.layouts import SIMDIZED
from tvm_forest.runtime.results import SUMS
from tvm_forest.schedule import Schedule
from tvm_forest.schedule_prims.walks import LANE_COUNTS
from tvm_forest.search.measuring.child import look_at
from tvm_forest.target import parse_target
from tvm_forest.targets import cpu
from tvm_forest.tir_gen import ir
from tvm_forest.tir_gen.attributes import read_model_facts

LAYOUTS = ("packed", "ranked", "bitsliced")
BLOCKS = (16, 64, 256)
"""Rows of a block, where walks go hop by hop."""
SIZES = {*BLOCKS, *LANE_COUNTS["bits"]}
"""Rows of a block, of any layout."""
ANY_ROWS = 999_983
"""Stands for any number of rows in functions that MetaSchedule schedules: no other number there."""
TOGETHER = (2, 4, 8, 16)
"""Walks that advance together."""
HOPS: tuple[dict[str, Any], ...] = ({}, {"unroll_walk": "depth"}, {"peel_walk": 1})
BATCHES = 4
"""Batches of rows that a schedule is timed with."""
SECONDS = 0.1
TRIALS_PER_ROUND = 8


class Trial(NamedTuple):
    """A schedule that was tried.

    Attributes:
        seconds: of a call; infinity if it was refused.
        cpu: seconds that all processes of the search have computed by then.
        wall: seconds by the clock.
    """

    seconds: float
    cpu: float
    wall: float


class Found(NamedTuple):
    """What a search has found: its trials in order, and the fastest schedule, for `build`."""

    trials: list[Trial]
    best: Any


# -- the space ------------------------------------------------------------------------------------


def start(forest: Forest, layout: str) -> Schedule:
    """Return a schedule that says no more than a layout."""
    return tvm_forest.new_schedule(forest).represent_as(layout)


def canonical(forest: Forest, layout: str) -> tirx.PrimFunc:
    """Return the function of the sums before any schedule, for any number of rows."""
    sch, walks = start(forest, layout), SIMDIZED.get(layout)
    if walks is not None:  # or the layout is refused; `before` does not depend on it
        sch = sch.tile("batch", "b0", "b1", LANE_COUNTS[walks][0]).reorder("b0", "tree", "b1")
        sch = sch.simdize("b1", walks)
    return tvm_forest.lower(forest, sch).before["predict"]


def fix_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function for `ANY_ROWS` rows, which MetaSchedule takes."""
    return ir.replace_vars(func, {func.params[0].shape[0]: tirx.IntImm("int64", ANY_ROWS)})


def free_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of `fix_rows` for any number of rows, with the loops that it has now."""
    n = tirx.Var("n", "int64")

    def free_tiles(loop: tirx.For) -> tirx.For:
        size = next((x for x in SIZES if -(-ANY_ROWS // x) == loop.extent.value), None)
        counted = size is not None and loop.loop_var.name == "batch_0"
        tiles = tirx.floordiv(n + (size - 1), ir.i64(size)) if counted else loop.extent
        return ir.change_loop(loop, extent=tiles)

    func = func.with_body(ir.rewrite_loops(func.body, free_tiles))
    free = (tirx.IntImm, lambda x: n if x.value == ANY_ROWS else x)
    return tvm_ffi.structural_map(func, free)


def make_space(layout: str, rows: int) -> ms.space_generator.ScheduleFn:
    """Return the space of a layout: all nests, and in each the numbers that TVM draws.

    Args:
        layout: see `canonical`.
        rows: of a batch; blocks are no larger.
    """
    walks = SIMDIZED.get(layout)
    sizes = sorted(BLOCKS if walks is None else LANE_COUNTS[walks])
    sizes = [x for x in sizes if x <= rows] or sizes[:1]

    def write(sch: s_tir.Schedule) -> list[s_tir.Schedule]:
        if walks is not None:
            return [_write_planes(sch, sizes, walks)]
        ways = [(order, hops, "") for order in ("rows", "trees") for hops in HOPS]
        ways += [("rows", hops, "stream") for hops in HOPS if layout == "packed"]
        return [_write_walks(sch.copy(), sizes, *way) for way in ways]

    mutators = {ms.mutator.MutateTileSize(): 1.0}
    return ms.space_generator.ScheduleFn(write, [], [], mutators)


def _write_planes(sch: s_tir.Schedule, sizes: list[int], walks: str) -> s_tir.Schedule:
    """Walk a block of rows at once, in the lanes of vectors."""
    batch, tree = sch.get_loops("walk")
    blocks, row = sch.split(batch, [None, _choose(sch, sizes)])
    sch.reorder(blocks, tree, row)
    sch.annotate(row, "tvm_forest.simdize", walks)
    return sch


def _write_walks(
    sch: s_tir.Schedule, sizes: list[int], order: str, hops: dict[str, Any], cache: str
) -> s_tir.Schedule:
    """Walk hop by hop, several walks together.

    Args:
        sch: of a canonical function with the loops batch and tree, changed in place.
        sizes: rows that a block may have.
        order: what is innermost, "rows" or "trees".
        hops: annotations of the innermost loop.
        cache: how trees are fetched, or "".
    """
    batch, tree = sch.get_loops("walk")
    groups, trees = sch.split(tree, sch.sample_perfect_tile(tree, 2, 128))
    blocks, row = sch.split(batch, [None, _choose(sch, sizes)])
    nest = [groups, blocks, trees, row] if order == "rows" else [blocks, groups, row, trees]
    sch.reorder(*nest)
    notes = hops | {"interleave": _choose(sch, TOGETHER)}
    for word, value in notes.items():
        sch.annotate(nest[-1], f"tvm_forest.{word}", value)
    if cache:
        sch.annotate(trees, "tvm_forest.cache", cache)
    return sch


def _choose(sch: s_tir.Schedule, numbers: Sequence[int]) -> Any:
    """Let TVM draw one of some numbers."""
    return sch.sample_categorical(list(numbers), [1 / len(numbers)] * len(numbers))


# -- what runs in MetaSchedule's processes --------------------------------------------------------


def register() -> None:
    """Make our operators known, without which no module is unpickled."""
    import tvm_forest.compiler  # noqa: F401


class Log(NamedTuple):
    """Where trials are written: the file, the process that searches, and when it began."""

    path: Path
    process: int
    cpu: float
    wall: float


def begin_log(path: Path) -> Log:
    """Begin now."""
    return Log(path, os.getpid(), _count_seconds(os.getpid()), time.time())


def note(place: Log, seconds: float) -> Trial:
    """Return a trial that is done now."""
    return Trial(seconds, _count_seconds(place.process) - place.cpu, time.time() - place.wall)


def log(place: Log, seconds: float) -> None:
    """Add a trial to the file of a search."""
    with place.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(note(place, seconds)) + "\n")


def _count_seconds(process: int) -> float:
    """Return the seconds that a process, and those that it has started, have computed."""
    looked = look_at(process)
    return looked.worked if looked else float("nan")


def build(place: Log, mod: tvm.IRModule, target: Any, params: Any) -> Any:
    """Build a candidate; what is refused is a trial, too."""
    try:
        return tvm_forest.compile(tvm.IRModule({"main": free_rows(mod["main"])})).mod
    except tvm_forest.ForestError:
        log(place, float("inf"))
        raise


def name_arguments(infos: Any) -> str:
    """Return the name of the arrays of a layout, which are known by the shapes of arguments."""
    return json.dumps([[str(x) for x in info] for info in infos])


def allocate(folder: Path, device: Any, infos: Any, repeats: int) -> list[list[Any]]:
    """Return arguments: rows, the addresses of the model's arrays, and room for margins.

    Those that MetaSchedule would make are random, and walks would leave the model.
    """
    names = json.loads((folder / "arguments.json").read_text(encoding="utf-8"))
    stored = np.load(folder / names[name_arguments(infos)])
    model = [stored[f"model{i}"] for i in range(len(stored.files))]
    table = np.array([x.ctypes.data for x in model], np.uint64)
    rows, margins = np.load(folder / "rows.npy"), np.load(folder / "margins.npy")
    given = []
    for batch, expected in zip(rows, margins, strict=True):
        shapes = [(dtype, (len(batch), shape[1])) for _, dtype, shape in infos[len(model) + 1 :]]
        results = [tvm.runtime.empty(shape, dtype) for dtype, shape in shapes]
        held = [model, table]  # code knows their addresses only
        call = [tvm.runtime.tensor(batch), ctypes.c_void_p(table.ctypes.data), *results]
        given.append([call, expected, held])
    return given[:repeats]


def evaluate(place: Log, module: Any, device: Any, config: Any, given: Any) -> list[float]:
    """Compare margins, then return seconds of a call, by the thread's own clock."""
    function = module["main"]
    for arguments, expected, _ in given:
        function(*arguments)
        if not np.array_equal(arguments[2].numpy(), expected):
            log(place, float("inf"))
            raise ValueError("wrong margins")
    seconds = time_calls([functools.partial(function, *arguments) for arguments, *_ in given])
    log(place, seconds)
    return [seconds]


def time_calls(calls: Sequence[Any], most: float = SECONDS) -> float:
    """Return the least seconds of a call, of rounds in which each is made as often.

    Args:
        calls: functions without arguments.
        most: seconds for all rounds, more or less.
    """
    begin, best, turns = time.thread_time(), float("inf"), 1
    while True:
        before = time.thread_time()
        for _ in range(turns):
            for call in calls:
                call()
        after = time.thread_time()
        if after - before < most / 10:
            turns *= 2
        else:
            best = min(best, (after - before) / turns / len(calls))
        if after - begin > most and best < float("inf"):
            return best


# -- the search -----------------------------------------------------------------------------------


def prepare() -> None:
    """Read TVM's tensor intrinsics, as MetaSchedule does before its first search."""
    import tvm.s_tir.tensor_intrin  # noqa: F401


def search(forest: Forest, rows: Any, trials: int, layouts: Sequence[str] = LAYOUTS) -> Found:
    """Search with MetaSchedule, on one thread.

    Args:
        forest: a model of one output.
        rows: (BATCHES, N, F), batches of N rows as the model takes them.
        trials: of all layouts together.
        layouts: a task each.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    target = cpu.tvm_target(parse_target("llvm"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        functions = {layout: canonical(forest, layout) for layout in layouts}
        fixed = {x: fix_rows(func) for x, func in functions.items()}
        _store(folder, forest, rows, fixed)
        place = begin_log(folder / "trials.jsonl")
        tasks = [
            ms.TuneContext(
                mod=tvm.IRModule({"main": func.with_attr("global_symbol", "main")}),
                target=target,
                space_generator=make_space(layout, rows.shape[1]),
                search_strategy="evolutionary",
                task_name=layout,
                rand_state=seed,
                num_threads=1,
            ).clone()
            for seed, (layout, func) in enumerate(fixed.items(), 1)
        ]
        common = {"timeout_sec": 60, "initializer": register}
        database = ms.tune.tune_tasks(
            tasks=tasks,
            task_weights=[1.0] * len(tasks),
            work_dir=name,
            max_trials_global=trials,
            num_trials_per_iter=TRIALS_PER_ROUND,
            builder=ms.builder.LocalBuilder(
                max_workers=1, f_build=functools.partial(build, place), **common
            ),
            runner=ms.runner.LocalRunner(
                f_alloc_argument=functools.partial(allocate, folder),
                f_run_evaluator=functools.partial(evaluate, place),
                alloc_repeat=BATCHES,
                **common,
            ),
            task_scheduler="round-robin",
        )
        lines = place.path.read_text(encoding="utf-8").splitlines()
        best = min(filter(_has_time, database.get_all_tuning_records()), key=_time_of)
        return Found([Trial(*json.loads(x)) for x in lines], repeat(best, functions))


def _store(folder: Path, forest: Forest, rows: Any, functions: dict[str, tirx.PrimFunc]) -> None:
    """Write the arguments of all layouts, for other processes."""
    simple = tvm_forest.build(forest, schedule=start(forest, "array"))
    np.save(folder / "rows.npy", rows)
    margins = [simple.predict_margin(x).reshape(len(x), -1) for x in rows]
    np.save(folder / "margins.npy", np.array(margins))
    names = {}
    for layout, func in functions.items():
        arrays = pack(forest, start(forest, layout)).arguments_of(SUMS)
        kept = {f"model{i}": np.ascontiguousarray(x) for i, x in enumerate(arrays)}
        np.savez(folder / f"{layout}.npz", **kept)
        infos = ms.arg_info.ArgInfo.from_prim_func(func)
        names[name_arguments([x.as_json() for x in infos])] = f"{layout}.npz"
    (folder / "arguments.json").write_text(json.dumps(names), encoding="utf-8")


def _time_of(record: Any) -> float:
    return min(float(x) for x in record.run_secs)


def _has_time(record: Any) -> bool:
    return record.run_secs is not None and _time_of(record) < 1e9


def repeat(record: Any, functions: dict[str, tirx.PrimFunc]) -> s_tir.Schedule:
    """Return the schedule of a record, of the function for any number of rows."""
    layout = read_model_facts(record.workload.mod["main"]).layout.name
    sch = s_tir.Schedule(functions[layout])
    record.trace.apply_to_schedule(sch, remove_postproc=True)
    return sch
