"""What users call: load, new_schedule, tune, lower, build, verify, load_predictor and others.

takes: a model in any form; gives: Forest, Profile, Schedule, IRModules, Predictor, Report.

The only room that picks defaults. TVM is imported when the first model is built.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError
from .forest import Forest
from .forest.hits import find_peel_depths
from .forest.rewrites.canonical_form import canonicalize
from .late import import_late
from .schedule_prims import Schedule
from .schedule_prims import rewrite as rewrite_forest
from .schedule_prims.batches import Edited
from .schedule_prims.fitting import check_fit
from .target import Target, TvmTarget, parse_target
from .threads import check_n_jobs

if TYPE_CHECKING:
    from . import compiler, frontends, verification
    from .compiler import Lowered
    from .forest import profile as profiles
    from .forest.profile import Profile
    from .predictor import building, saving
    from .predictor.live import pending
    from .predictor.predictor import Predictor
    from .predictor.saving import Source
    from .search import heuristic, measuring, strategies
    from .search import records as kept_records
    from .search.measuring import Tuned, gpu
    from .search.measuring import remote as remote_machines
    from .verification import Report
else:
    building = import_late("tvm_forest.predictor.building")
    compiler = import_late("tvm_forest.compiler")
    frontends = import_late("tvm_forest.frontends")
    gpu = import_late("tvm_forest.search.measuring.gpu")
    heuristic = import_late("tvm_forest.search.heuristic")
    measuring = import_late("tvm_forest.search.measuring")
    pending = import_late("tvm_forest.predictor.live.pending")
    profiles = import_late("tvm_forest.forest.profile")
    kept_records = import_late("tvm_forest.search.records")
    remote_machines = import_late("tvm_forest.search.measuring.remote")
    saving = import_late("tvm_forest.predictor.saving")
    strategies = import_late("tvm_forest.search.strategies")
    verification = import_late("tvm_forest.verification")

TargetLike = str | dict[str, Any] | Target | TvmTarget


def load(model: Any) -> Forest:
    """Read a model.

    Args:
        model: path of a model file of XGBoost (JSON, UBJSON or the old binary format), LightGBM
            (text), CatBoost (JSON, cbm), ONNX or treelite, its content (bytes, text), or an open
            file; a Booster of XGBoost or LightGBM, an `onnx.ModelProto`, a `treelite.Model`; a
            fitted estimator of XGBoost, LightGBM, CatBoost or scikit-learn; a model of YDF, or its
            folder; a Forest; or a list of models of the same columns (docs/many_models.md).

    Returns:
        Forest: all that decides the bits of a prediction.

    Raises:
        ModelFormatError: the file is missing, damaged or no model.
        UnsupportedModel: the model has a part that cannot be reproduced exactly.
    """
    return frontends.load(model)


def new_schedule(model: Any) -> Schedule:
    """Return the schedule of a model, see `load`, to begin with: row by row, tree by tree."""
    return heuristic.new_schedule(load(model))


def hop_schedule(model: Any, target: TargetLike = "llvm") -> Schedule:
    """Return the best schedule for large batches that walks hop by hop, to write others from.

    It need not be one of `default_schedules`, which may walk in other ways.

    Args:
        model, target: see `load` and `build`.
    """
    return heuristic.hop_schedule(load(model), parse_target(target))


def default_schedules(model: Any, target: TargetLike = "llvm") -> dict[int, Schedule]:
    """Return what `build` uses if no schedule is given: schedules by the smallest batch of each.

    Args:
        model, target: see `load` and `build`.
    """
    return heuristic.default_schedules(load(model), parse_target(target))


def profile(model: Any, rows: Any) -> Profile:
    """Count how many rows end at each leaf of a model.

    Args:
        model: see `load`.
        rows: (R, F) rows like those that will be predicted, such as the training rows.

    Returns:
        Profile: give it to `build(profile=...)`, or `save` it; profiles of more rows can be added.

    Raises:
        InputError: rows of the wrong kind.
    """
    forest = _load_with_hits(model)
    return profiles.Profile.of_leaves(forest, build(forest).apply(rows))


def rewrite(model: Any, schedule: Schedule, profile: Profile | None = None) -> Forest:
    """Return the model as a schedule wants it: tiled, padded, sorted.

    Args:
        model, profile: see `load` and `build`.
        schedule: made for this model.

    Raises:
        ScheduleError: a rewrite needs a profile, or the schedule is of another model.
        InputError: the profile is of another model.
    """
    forest = canonicalize(_load_with_hits(model, profile))
    check_fit("rewrite", forest, schedule)
    return rewrite_forest(forest, schedule)


def with_depths(schedule: Schedule, model: Any, profile: Profile | None = None) -> Schedule:
    """Return a schedule that knows how deep the trees are after its rewrites of the model.

    Args:
        schedule: made for this model.
        model: see `load`.
        profile: see `build`; with one, the hops to the likely leaves are known as well.

    Raises:
        ScheduleError, InputError: see `rewrite`.
    """
    forest = rewrite(model, schedule, profile)
    depths = [forest.depths] if forest.hits is None else [forest.depths, find_peel_depths(forest)]
    rounds = (x.reshape(-1, forest.round_size).max(axis=1).tolist() for x in depths)
    return schedule.know_depths(*rounds)


def _load_with_hits(model: Any, profile: Profile | None = None) -> Forest:
    """Load a model, and give it the hits of a profile if there is one."""
    forest = load(model)
    return forest if profile is None else profiles.with_hits(forest, profile)


def lower(
    model: Any,
    schedule: Edited | None = None,
    target: TargetLike = "llvm",
    *,
    profile: Profile | None = None,
) -> Lowered:
    """Return the functions of a model before and after lowering, printable with `.show()`.

    Args:
        model, schedule, target, profile: see `build`.

    Returns:
        Lowered: `.before` and `.after`, an IRModule each, and `.stages`, one for each pass.

    Raises:
        ScheduleError, InputError: see `build`.
    """
    forest, machine = _load_with_hits(model, profile), parse_target(target)
    schedule = default_schedules(forest, machine) if schedule is None else schedule
    return compiler.lower(forest, building.edit_schedule(schedule, forest), machine)


def build(
    model: Any,
    target: TargetLike = "llvm",
    schedule: Edited | None = None,
    *,
    profile: Profile | None = None,
    exact: bool = True,
    n_jobs: int | None = None,
    records: str | os.PathLike[str] | None = None,
    refuse_unseen: bool | Sequence[str | int] = False,
    wait: bool = True,
) -> Predictor:
    """Compile a model.

    Args:
        model: see `load`.
        target: "llvm" for the CPU at hand, a dict such as {"kind": "llvm", "mcpu": "x86-64-v3"},
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu"} for another machine, to be exported
            (docs/other_processors.md), "cuda" or {"kind": "cuda", "arch": "sm_90", "device": 0}
            for a GPU of NVIDIA, which need not be there yet, {"kind": "rocm", "mcpu": "gfx942"}
            for one of AMD, "rocm" for the one at hand or a list of them (docs/gpu.md), "opencl"
            for any device, "simt" to run a schedule for GPUs on the CPU, a Target, or one of TVM's.
        schedule: how to evaluate the model: a Schedule, a function that is given
            `new_schedule(model)` and returns one, such as a recipe, an `s_tir.Schedule`
            (docs/tvm_schedules.md), or several of these by the smallest batch that each serves,
            such as {1: a, 8: b}; `default_schedules` if None.
        profile: how many rows end at each leaf, for schedules that ask for it; a forest may carry
            one already (`profile.onto(forest)`).
        exact: refuse a schedule that adds leaves in another order than the model does.
        n_jobs: threads of a call that does not say: None for all cores when a batch is large
            enough and one otherwise, -1 for all cores.
        records: file that `tune` has written, in place of a schedule: its fastest schedules are
            used. Those of another model, target, CPU or version are refused.
        refuse_unseen: True, or columns by name or number: refuse rows with categories that the
            model does not know, see `Forest.refuse_unseen`. Others are treated as the source does.
        wait: return once the code is there. With False, return at once: rows go through the
            reference walk, with the same bits, while another process compiles, see
            `Predictor.ready` and `Predictor.wait`. For the CPU at hand.

    Raises:
        ModelFormatError, UnsupportedModel: see `load` and `Forest.refuse_unseen`.
        ScheduleError: the schedule does not fit the model, or is not exact.
        InputError: the target is unknown, or has to be waited for, the profile is of another model,
            n_jobs is no number of threads, or records hold nothing for this model here.
        BuildError: LLVM is missing, or the compiler fails.
    """
    check_n_jobs("build", n_jobs)
    forest, machine = _load_with_hits(model, profile), parse_target(target)
    if records is not None:
        if schedule is not None:
            raise InputError(
                "build: argument 'records': a schedule is given as well; leave one of them out"
            )
        gpu_name = gpu.identify_gpu(machine)
        schedule = kept_records.load_schedules(records, forest, machine, gpu_name)
    forest = forest.refuse_unseen(refuse_unseen) if refuse_unseen is not False else forest
    request = building.plan(forest, schedule, machine, exact=exact)
    predictor = building.build(request) if wait else pending.build_later(request)
    predictor.n_jobs = n_jobs
    return predictor


def tune(
    model: Any,
    target: TargetLike = "llvm",
    batch_size: int | Sequence[int] = (1, 64, 4096),
    rows: Any = None,
    strategy: str = "heuristic",
    *,
    budget_s: float = 60.0,
    trials: int | None = None,
    seed: int = 0,
    records: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    limit_s: float = 30.0,
    limit_mb: float = 8192.0,
    progress: bool | None = None,
    exact: bool = True,
    remote: str | None = None,
) -> Tuned:
    """Search for the fastest schedules of a model, by measuring on this machine.

    Every candidate is built and timed in a process of its own, after its margins were compared
    with the reference walk to the bit. Ctrl-C ends the search and keeps what was found.

    Args:
        model: see `load`.
        target: see `build`. Times are the GPU's own, for rows in its memory; times of "simt" say
            nothing about GPUs.
        batch_size: rows of a call, or several such sizes; each gets a schedule.
        rows: (R, F) rows like those that will be predicted, see `predict`; None for rows between
            the model's thresholds.
        strategy: "heuristic", the default and what a cost model expects to be fastest, corrected
            by the times so far, 2 to 18 schedules for each size, on a GPU Algorithm 1 of
            SilvanForge; "exhaustive", all of a space of some hundreds, on a GPU thousands, in an
            order drawn by the seed; "beam", one directive at a time, on CPUs only.
        budget_s: seconds for all sizes together, from when the process is ready.
        trials: most schedules to measure for each size; None for any number.
        seed: the same seed gives the same rows, and the same order where a strategy draws one.
        records: file to which each result is appended; what it holds is not measured again.
        n_jobs: threads of a call, see `build`.
        limit_s: seconds to build and time one schedule; waits for cores that others have do not
            count, as far as Linux tells.
        limit_mb: megabytes that the process may hold while it does so, as far as Linux tells.
        progress: show a bar; None for where a person would see it.
        exact: on a GPU, leave out schedules that add leaves in another order than the model does;
            with False, `build` needs `exact=False` as well.
        remote: "host:port" of a machine that runs `tvm-forest rpc`, to measure there; the target
            is that machine's.

    Returns:
        Tuned: give its `schedules` to `build(schedule=...)`, or the file to `build(records=...)`.

    Raises:
        InputError: an argument of the wrong kind, or a file that holds something else.
        DeviceError: there is no GPU that the target names, or no driver or compiler for it.
        ModelFormatError, UnsupportedModel: see `load`.
    """
    check_n_jobs("tune", n_jobs)
    sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
    for size in sizes or [0]:
        _check_count("tune", "batch_size", size, 1)
    if trials is not None:
        _check_count("tune", "trials", trials, 1)
    for name, number in {"budget_s": budget_s, "limit_s": limit_s, "limit_mb": limit_mb}.items():
        _check_limit(name, number)
    place: Any = contextlib.nullcontext()  # None: schedules are measured here
    if remote is not None:
        place = remote_machines.RemoteMachine(remote)
    with place as machine:
        aim = parse_target(target) if machine is None else machine.target(target)
        known = strategies.strategies_of(aim)
        if strategy not in known:
            names = ", ".join(known)
            raise InputError(f"tune: argument 'strategy': {strategy!r} is unknown (have: {names})")
        return measuring.tune(
            load(model),
            aim,
            sorted(set(sizes)),
            rows,
            strategy,
            budget_s=budget_s,
            trials=trials,
            seed=seed,
            records=None if records is None else Path(records),
            n_jobs=n_jobs,
            limit_s=limit_s,
            limit_mb=limit_mb,
            progress=progress,
            exact=exact,
            machine=machine,
        )


def _check_count(where: str, name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{where}: argument '{name}': expected {least} or more, got {value!r}")


def _check_limit(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError(f"tune: argument '{name}': expected a number from 0 on, got {value!r}")


def load_predictor(file: Source, model: Any = None, *, recompile: bool = False) -> Predictor:
    """Read a predictor that `Predictor.save` wrote; no training library is needed.

    The stored code is used where it can run: code for the CPU at hand on every CPU that has its
    instructions. With another version of TVM or of this package, or on a CPU that lacks one of its
    instructions, the stored model is compiled anew, and the log says why. Machine code can do
    anything, so load only files that you trust, or with `recompile`.

    Args:
        file: its path, its bytes, or what can be read in binary.
        model: see `load`; if given, a file of another model is refused. None for any.
        recompile: compile the stored model, and run none of the stored code.

    Raises:
        ModelFormatError: the file is missing, damaged, no saved predictor, of a newer version, or
            of another model.
        BuildError: it was built for a CPU named by "mcpu" that this machine cannot stand in for.
        InputError: file is neither a path nor bytes, and cannot be read in binary.
    """
    return saving.load_predictor(file, None if model is None else load(model).signature, recompile)


def verify(
    model: Any,
    rows: Any = None,
    *,
    schedule: Edited | None = None,
    target: TargetLike = "llvm",
    n_rows: int = 1000,
) -> Report:
    """Compile a model, and compare it with the reference walk and with its training library.

    Args:
        model: see `load`.
        rows: (R, F) rows as `predict` takes them, or None. Rows made of the model's own thresholds
            are always compared as well.
        schedule: see `build`; must keep the order of additions.
        target: see `build`.
        n_rows: number of rows to make.

    Returns:
        Report: `report.ok` tells whether margins are equal to the bit, labels are equal and values
        are within the bound of their link; `print(report)` tells more. A library that is missing
        is not compared, and `report.library` says so.

    Raises:
        InputError: rows or n_rows of the wrong kind.
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `build`.
    """
    _check_count("verify", "n_rows", n_rows, 0)
    forest = replace(load(model), refuses_unseen=())  # they are compared as well
    return verification.verify(model, forest, build(forest, target, schedule), rows, n_rows)
