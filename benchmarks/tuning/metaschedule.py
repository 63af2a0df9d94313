"""A search for schedules by TVM's MetaSchedule, beside ours.

takes: a forest, its rows; gives: Found, the trials one after the other and the fastest schedule.

Each layout has parameters of its own, so it is a task. Candidates are built by `tvm_forest.compile`
and timed in MetaSchedule's own processes, after their margins were compared to the bit. The trace
of the fastest is repeated on the function for any number of rows, for `tvm_forest.build`.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
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
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms

import tvm_forest
from benchmarks.tuning.metaschedule_space import canonical, fix_rows, free_rows, make_space, start
from tvm_forest.forest import Forest
from tvm_forest.layouts.laying_out import pack
from tvm_forest.runtime.results import SUMS
from tvm_forest.search.measuring.child import look_at
from tvm_forest.target import parse_target
from tvm_forest.targets import cpu
from tvm_forest.tir_gen.attributes import read_model_facts

LAYOUTS = ("packed", "ranked", "bitsliced")
BATCHES = 4
"""Batches of rows that a schedule is timed with."""
SECONDS = 0.1
TRIALS_PER_ROUND = 8


class Trial(NamedTuple):
    """A schedule that was tried.

    Attributes:
        seconds: of a call; infinity if it was refused.
        cpu: seconds that all processes of the search have computed by then.
    """

    seconds: float
    cpu: float


class Found(NamedTuple):
    """What a search has found: its trials in order, and the fastest schedule, for `build`."""

    trials: list[Trial]
    best: Any


# -- what runs in MetaSchedule's processes --------------------------------------------------------


def register() -> None:
    """Make our operators known, without which no module is unpickled."""
    import tvm_forest.compiler  # noqa: F401


class Log(NamedTuple):
    """Where trials are written.

    Attributes:
        path: of the file.
        process: the one that searches.
        cpu: seconds that it had computed before.
    """

    path: Path
    process: int
    cpu: float


def begin_log(path: Path) -> Log:
    """Begin now."""
    return Log(path, os.getpid(), _count_seconds(os.getpid()))


def note(place: Log, seconds: float) -> Trial:
    """Return a trial that is done now."""
    return Trial(seconds, _count_seconds(place.process) - place.cpu)


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
    """Read TVM's tensor intrinsics, as MetaSchedule does before its first search.

    Each of hundreds would look up the source of every frame around it, which none of them needs.
    """
    stack = inspect.stack
    inspect.stack = lambda context=0: stack(0)
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.stack = stack


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
        common = {"timeout_sec": 300, "initializer": register}
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
