"""What users call: load, new_schedule, lower, build.

takes: a model in any form; gives: Forest, Schedule, IRModules, Predictor.

The only room that picks defaults. TVM is imported when the first model is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import frontends
from .forest import Forest
from .schedule_prims import Schedule
from .search import heuristic
from .target import Target, parse_target

if TYPE_CHECKING:
    from .lower import Lowered
    from .runtime import Predictor

TargetLike = str | dict[str, Any] | Target


def load(model: Any) -> Forest:
    """Read a model.

    Args:
        model: path of an XGBoost model file (JSON, UBJSON or the old binary format), an
            `xgboost.Booster`, `XGBClassifier`, `XGBRegressor` or the like, or a Forest.

    Returns:
        Forest: all that decides the bits of a prediction.

    Raises:
        ModelFormatError: the file is missing, damaged or no model.
        UnsupportedModel: the model has a part that cannot be reproduced exactly.
    """
    return frontends.load(model)


def new_schedule(model: Any) -> Schedule:
    """Return the schedule to begin with: one row at a time, tree by tree.

    Args:
        model: see `load`.
    """
    return heuristic.new_schedule(load(model))


def default_schedule(model: Any, target: TargetLike = "llvm") -> Schedule:
    """Return the schedule that `build` uses if none is given.

    Args:
        model: see `load`.
        target: see `build`.
    """
    return heuristic.default_schedule(load(model), parse_target(target))


def lower(model: Any, schedule: Schedule | None = None, target: TargetLike = "llvm") -> Lowered:
    """Return the functions of a model before and after lowering, printable with `.show()`.

    Args:
        model: see `load`.
        schedule: how to evaluate it; the default schedule if None.
        target: see `build`.

    Returns:
        Lowered: `.before` and `.after`, an IRModule each.

    Raises:
        ScheduleError: the schedule does not fit the model.
        InputError: the target is unknown.
    """
    from .lower import lower as lower_forest

    forest, machine = load(model), parse_target(target)
    chosen = heuristic.default_schedule(forest, machine) if schedule is None else schedule
    return lower_forest(forest, chosen, machine)


def build(
    model: Any,
    target: TargetLike = "llvm",
    schedule: Schedule | None = None,
    *,
    exact: bool = True,
    n_jobs: int | None = None,
) -> Predictor:
    """Compile a model.

    Args:
        model: see `load`.
        target: "llvm" for the CPU at hand, a dict such as {"kind": "llvm", "mcpu": "x86-64-v3"},
            or a Target.
        schedule: how to evaluate the model; the default schedule if None.
        exact: refuse a schedule that adds leaves in another order than the model does.
        n_jobs: threads of a call that does not say: None for all cores when a batch is large
            enough and one otherwise, -1 for all cores.

    Raises:
        ModelFormatError, UnsupportedModel: see `load`.
        ScheduleError: the schedule does not fit the model, or is not exact.
        InputError: the target is unknown, or n_jobs is no number of threads.
        BuildError: LLVM is missing, or the compiler fails.
    """
    from .lower import build as compile_forest
    from .runtime import check_n_jobs

    check_n_jobs("build", n_jobs)
    forest, machine = load(model), parse_target(target)
    chosen = heuristic.default_schedule(forest, machine) if schedule is None else schedule
    predictor = compile_forest(forest, chosen, machine, exact)
    predictor.n_jobs = n_jobs
    return predictor
