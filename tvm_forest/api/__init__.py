"""The functions for users: load, new_schedule, tune, lower, build, verify and others.

takes: a model in any form; gives: Forest, Profile, Schedule, IRModules, Predictor, Report.

Only this part picks defaults. The first build imports TVM. What takes models raises as `load` does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from ..errors import InputError, UnsupportedModel
from ..forest import Forest
from ..forest.hits import find_peel_depths
from ..forest.rewrites.canonical_form import canonicalize
from ..runtime.threads import check_n_jobs
from ..schedule_prims import Schedule
from ..schedule_prims import rewrite as rewrite_forest
from ..schedule_prims.batches import Edited
from ..schedule_prims.fitting import check_fit
from ..system.late import import_late
from ..target import Target, parse_target
from .tuning import TargetLike as TargetLike
from .tuning import check_count
from .tuning import tune as tune

if TYPE_CHECKING:
    from .. import compiler, frontends, quantiles, verification
    from ..compiler import Lowered
    from ..forest import profile as profiles
    from ..forest.profile import Profile
    from ..predictor import building, crossover, saving
    from ..predictor.crossover import Crossover
    from ..predictor.live import pending
    from ..predictor.predictor import Predictor
    from ..predictor.saving import Source
    from ..search import heuristic
    from ..search import records as kept_records
    from ..search.measuring import gpu
    from ..verification import Report
else:
    building = import_late("tvm_forest.predictor.building")
    crossover = import_late("tvm_forest.predictor.crossover")
    compiler = import_late("tvm_forest.compiler")
    frontends = import_late("tvm_forest.frontends")
    gpu = import_late("tvm_forest.search.measuring.gpu")
    heuristic = import_late("tvm_forest.search.heuristic")
    pending = import_late("tvm_forest.predictor.live.pending")
    profiles = import_late("tvm_forest.forest.profile")
    quantiles = import_late("tvm_forest.quantiles")
    kept_records = import_late("tvm_forest.search.records")
    saving = import_late("tvm_forest.predictor.saving")
    verification = import_late("tvm_forest.verification")


def load(model: Any) -> Forest:
    """Load a model, see `tvm_forest.load` for its forms.

    Args:
        model: path of a model file of XGBoost (JSON, UBJSON or the old binary format), LightGBM
            (text), CatBoost (JSON, cbm), ONNX or treelite, its content (bytes, text), or an open
            file; a Booster of XGBoost or LightGBM, an `onnx.ModelProto`, a `treelite.Model`; a
            fitted estimator of XGBoost, LightGBM, CatBoost or scikit-learn; a model of YDF, or its
            folder; a Forest; or a list of models of the same columns (docs/many_models.md).

    Returns:
        Forest: everything that decides the bits of a prediction.

    Raises:
        ModelFormatError: the file is missing, damaged or not a model.
        UnsupportedModel: the model has a part that cannot be reproduced exactly.

    Examples:
        >>> tvm_forest.load(model).n_trees
        15
    """
    return frontends.load(model)


def new_schedule(model: Any) -> Schedule:
    """Return the schedule without directives for a model: row by row, tree by tree.

    Examples:
        >>> print(tvm_forest.new_schedule(model))
        for batch in (0, n, 1)
          for class in (0, 3, 1)
            for tree in (0, 5, 1)
              out[batch, class] += walk(tree*3 + class, batch)
    """
    return heuristic.new_schedule(load(model))


def hop_schedule(model: Any, target: TargetLike = "llvm") -> Schedule:
    """Return the best hop-by-hop schedule for large batches, as a start for others.

    It need not be one of `default_schedules`, which may walk in other ways.

    Args:
        model, target: see `load` and `build`.

    Examples:
        >>> tvm_forest.hop_schedule(model).keeps_order
        True
    """
    return heuristic.hop_schedule(load(model), parse_target(target))


def default_schedules(model: Any, target: TargetLike = "llvm") -> dict[int, Schedule]:
    """Return the default schedules of `build`, by the smallest batch that each serves.

    Args:
        model, target: see `load` and `build`.

    Examples:
        >>> min(tvm_forest.default_schedules(model))  # the first serves a single row
        1
    """
    return heuristic.default_schedules(load(model), parse_target(target))


def profile(model: Any, rows: Any) -> Profile:
    """Count how many rows end at each leaf of a model.

    Args:
        model: see `load`.
        rows: (R, F) rows like those that will be predicted, such as the training rows.

    Returns:
        Profile: pass it to `build(profile=...)`, or `save` it; `+` adds profiles of more rows.

    Raises:
        InputError, BuildError: rows of the wrong kind; see `build`.

    Examples:
        >>> counted = tvm_forest.profile(model, rows)
        >>> predictor = tvm_forest.build(model, profile=counted, schedule=plain)
    """
    given = load(model)
    return profiles.Profile.of_leaves(given, build(given, "llvm", hop_schedule(given)).apply(rows))


def rewrite(model: Any, schedule: Schedule, profile: Profile | None = None) -> Forest:
    """Apply a schedule's rewrites to a model: tiles, padding, sorting.

    Args:
        model, profile: see `load` and `build`.
        schedule: made for this model.

    Raises:
        ScheduleError, BuildError: another model's schedule, or no profile; too many padded nodes.
        InputError: the profile is of another model.

    Examples:
        >>> tiled = plain.tile_nodes(2)
        >>> tvm_forest.rewrite(model, tiled).n_trees
        15
    """
    forest = canonicalize(_load_with_hits(model, profile))
    check_fit("rewrite", forest, schedule)
    return rewrite_forest(forest, schedule)


def with_depths(schedule: Schedule, model: Any, profile: Profile | None = None) -> Schedule:
    """Return a schedule with the depths of trees after its rewrites of the model.

    Args:
        schedule: made for this model.
        model: see `load`.
        profile: see `build`; with one, the hops to the likely leaves are known as well.

    Raises:
        ScheduleError, BuildError, InputError: see `rewrite`.

    Examples:
        >>> schedule = tvm_forest.with_depths(plain.sort_trees(), model)
    """
    forest = rewrite(model, schedule, profile)
    depths = [forest.depths] if forest.hits is None else [forest.depths, find_peel_depths(forest)]
    rounds = (x.reshape(-1, forest.round_size).max(axis=1).tolist() for x in depths)
    return schedule.know_depths(*rounds)


def _load_with_hits(model: Any, profile: Profile | None = None) -> Forest:
    """Load a model, and add the hits of a profile if there is one."""
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
        ScheduleError, InputError, BuildError: see `build`.

    Examples:
        >>> lowered = tvm_forest.lower(model, plain)
        >>> lowered.before.show()  # doctest: +SKIP
    """
    forest, machine = _load_with_hits(model, profile), parse_target(target)
    schedule = default_schedules(forest, machine) if schedule is None else schedule
    return compiler.lower(forest, building.edit_schedule(schedule, forest), machine)


@overload
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
) -> Predictor: ...
@overload
def build(
    model: Any,
    target: list[Any],
    *,
    profile: Profile | None = None,
    exact: bool = True,
    n_jobs: int | None = None,
    refuse_unseen: bool | Sequence[str | int] = False,
) -> Crossover: ...
def build(
    model: Any,
    target: TargetLike | list[Any] = "llvm",
    schedule: Edited | None = None,
    *,
    profile: Profile | None = None,
    exact: bool = True,
    n_jobs: int | None = None,
    records: str | os.PathLike[str] | None = None,
    refuse_unseen: bool | Sequence[str | int] = False,
    wait: bool = True,
) -> Predictor | Crossover:
    """Compile a model.

    Args:
        model: see `load`.
        target: "llvm" for the CPU at hand, a dict such as {"kind": "llvm", "mcpu": "x86-64-v3"},
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu"} for another machine, to be exported
            (docs/other_processors.md), "cuda" or {"kind": "cuda", "arch": "sm_90", "device": 0}
            for a GPU of NVIDIA, which need not be there yet, {"kind": "rocm", "mcpu": "gfx942"}
            for one of AMD, "rocm" for the one at hand or a list of them (docs/gpu.md), "opencl"
            for any device, "simt" to run a schedule for GPUs on the CPU, a Target, or one of TVM's.
            A list of one for a CPU and one for a GPU, such as ["llvm", "cuda"], makes a
            `Crossover`: the GPU serves the batches for which it is faster.
        schedule: how to evaluate the model: a Schedule, a function that is given
            `new_schedule(model)` and returns one, such as a recipe, an `s_tir.Schedule`
            (docs/tvm_schedules.md), or several of these by the smallest batch that each serves,
            such as {1: a, 8: b}; `default_schedules` if None.
        profile: how many rows end at each leaf, for schedules that need it; a forest may have one
            already (`profile.onto(forest)`).
        exact: refuse a schedule that adds leaves in another order than the model does.
        n_jobs: number of threads of calls that do not set it: None for all cores if the batch is
            large enough and one otherwise, -1 for all cores.
        records: file that `tune` has written, in place of a schedule: its fastest schedules are
            used. Records of another model, target, CPU or version are refused.
        refuse_unseen: True, or columns by name or number: refuse rows with categories that the
            model does not know, see `Forest.refuse_unseen`. By default, such categories are
            treated as in the source library.
        wait: whether to return only when the code is compiled. With False, return at once: rows go
            through the reference walk, with the same bits, while another process compiles, see
            `Predictor.ready` and `Predictor.wait`. For the CPU at hand only.

    Raises:
        ModelFormatError, UnsupportedModel: see `load` and `Forest.refuse_unseen`.
        ScheduleError: the schedule does not fit the model, or is not exact.
        InputError: the target is unknown, or not allowed with `wait=False`; the profile is of
            another model; n_jobs is not a number of threads; `refuse_unseen` names no column; the
            records have nothing for this model, target and machine; or two arguments exclude each
            other.
        BuildError: LLVM is missing, or the compiler fails.

    Examples:
        >>> predictor = tvm_forest.build(model, schedule=plain)
        >>> bool((predictor.predict(rows) == model.predict(rows)).all())
        True
    """
    check_n_jobs("build", n_jobs)
    if frontends.is_quantile_forest(model):
        others = {"profile": profile, "records": records, "refuse_unseen": refuse_unseen or None}
        several = target if isinstance(target, list) else None
        _refuse_for_quantiles(others | {"wait": None if wait else wait, "target": several})
        machine = Target() if isinstance(target, list) else parse_target(target)
        return quantiles.build_estimator(model, machine, schedule, exact, n_jobs)
    forest = _load_with_hits(model, profile)
    forest = forest.refuse_unseen(refuse_unseen) if refuse_unseen is not False else forest
    if isinstance(target, list):
        if schedule is not None or records is not None or not wait:
            raise InputError(
                "build: argument 'target': a list takes neither 'schedule' nor 'records' nor "
                "'wait'; build each target, and join them by tvm_forest.Crossover(cpu, gpu)"
            )
        return crossover.build_both(forest, list(map(parse_target, target)), exact, n_jobs)
    machine = parse_target(target)
    if records is not None:
        if schedule is not None:
            raise InputError(
                "build: argument 'records': a schedule is given as well; leave one of them out"
            )
        gpu_name = gpu.identify_gpu(machine)
        schedule = kept_records.load_schedules(records, forest, machine, gpu_name)
    request = building.plan(forest, schedule, machine, exact=exact)
    predictor = building.build(request) if wait else pending.build_later(request)
    predictor.n_jobs = n_jobs
    return predictor


def _refuse_for_quantiles(given: dict[str, Any]) -> None:
    """Refuse arguments of `build` that quantile forests do not have."""
    for name, value in given.items():
        if value is not None:
            raise UnsupportedModel(
                f"build: argument {name!r}: {value!r:.80}: quantile forests go without; leave it "
                "out"
            )


def load_predictor(file: Source, model: Any = None, *, recompile: bool = False) -> Predictor:
    """Read a predictor that `Predictor.save` wrote; no training library is needed.

    The stored code is used where it can run: code for the CPU at hand on every CPU that has its
    instructions. With another version of TVM or of this package, or on a CPU that lacks one of its
    instructions, the stored model is compiled anew, and the log says why. Machine code can do
    anything, so load only files that you trust, or with `recompile`.

    Args:
        file: path of the file, its bytes, or an open binary file.
        model: see `load`; a file of another model is refused. None accepts any model.
        recompile: compile the stored model, and run none of the stored code.

    Raises:
        ModelFormatError: the file is missing, damaged, not a saved predictor, of a newer version,
            or of another model.
        BuildError: it was built for a CPU named by "mcpu" whose code cannot run on this machine.
        InputError: `file` is neither a path nor bytes, and cannot be read as binary.

    Examples:
        >>> predictor.save("model.tvmf")
        >>> tvm_forest.load_predictor("model.tvmf")
        <Predictor of xgboost multi:softprob: 15 trees, 4 features, target llvm>
    """
    signature = None if model is None else load(model).signature
    others = {"quantile predictor": lambda *saved: quantiles.read_saved(*saved)}
    return saving.load_predictor(file, signature, recompile, others)


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
        n_rows: number of rows to generate.

    Returns:
        Report: `report.ok` is true if margins are equal to the bit, labels are equal and values are
        within the bound of their link; `print(report)` shows details. If the training library
        cannot be compared, as it is not installed, `report.library` is a text that says why.

    Raises:
        InputError: rows or n_rows of the wrong kind, or an unknown target.
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `build`.

    Examples:
        >>> tvm_forest.verify(model, rows, schedule=plain, n_rows=100).ok
        True
    """
    check_count("verify", "n_rows", n_rows, 0)
    forest = replace(load(model), refuses_unseen=())  # they are compared as well
    return verification.verify(model, forest, build(forest, target, schedule), rows, n_rows)
