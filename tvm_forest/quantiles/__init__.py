"""Quantile forests: predict a distribution of the target from training rows in the same leaves.

takes: a fitted estimator of quantile-forest, or a model with training rows and targets; gives:
QuantilePredictor.

    rows --leaves of all trees--> samples --counts by rank--> quantiles, means, scores, proximities

A sample is a training row in a leaf; a tally counts the samples of a row by the rank of the target.

Meinshausen, Quantile Regression Forests, 2006. The code of tallies is emitted by
`tir_gen.leaf_samples`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from .. import frontends
from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest
from ..frontends.objects import library_of
from ..frontends.refusals import damaged, name_in_errors, unsupported
from ..frontends.sklearn.trees import load_trees
from ..predictor import building
from ..predictor.inputs import to_rows
from ..runtime.threads import check_n_jobs
from ..schedule_prims.batches import Edited
from ..system.values import replace
from ..target import Target, parse_target
from .estimates import MAX_NUMBERS, read_asked
from .predictor import QuantilePredictor as QuantilePredictor
from .predictor import read_saved as read_saved
from .samples import LeafSamples, collect_samples, count_nodes, read_library, read_targets
from .tallies import check_target

LIBRARY = "quantile_forest"

OLDEST = (1, 4)
"""The oldest supported version of quantile-forest."""

ESTIMATORS = ("RandomForestQuantileRegressor", "ExtraTreesQuantileRegressor")


def read_estimator(model: Any) -> tuple[Forest, LeafSamples]:
    """Return the trees and the samples of a fitted estimator of quantile-forest.

    Raises:
        ModelFormatError: the estimator is not fitted, or its parts contradict each other.
        UnsupportedModel: the class is derived, the version too old, or see `read_library`.
    """
    name = type(model).__name__
    with name_in_errors(f"quantile-forest {name}"):
        if library_of(type(model)) != LIBRARY or name not in ESTIMATORS:
            raise UnsupportedModel(
                f"{type(model).__module__}.{name} may predict otherwise; give an object of "
                f"{' or '.join(ESTIMATORS)} itself"
            )
        version = str(getattr(sys.modules.get(LIBRARY), "__version__", "0.0"))
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
            what = f"quantile-forest {version} predicts by other rules"
            raise unsupported("__version__", what, "fit it again with 1.4 or newer")
        if "forest_" not in vars(model):
            raise damaged("forest_", "the estimator is not fitted", "fit it first")
        try:
            return replace(load_trees(model), source=f"quantile-forest {name}"), read_library(model)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"its parts do not fit together ({type(error).__name__}: {error})"
            raise damaged("forest_", what, "train it again") from error


def build_estimator(
    model: Any, target: Target, schedule: Edited | None, exact: bool, n_jobs: int | None
) -> QuantilePredictor:
    """Compile an estimator of quantile-forest; see `tvm_forest.build`."""
    check_target(target)
    forest, samples = read_estimator(model)
    predictor = building.build(building.plan(forest, schedule, target, exact=exact))
    predictor.n_jobs = n_jobs
    return QuantilePredictor(predictor, samples)


def build_quantiles(
    model: Any,
    rows: Any,
    targets: Any,
    *,
    in_bag: bool = False,
    default_quantiles: Any = 0.5,
    target: str | dict[str, Any] | Target = "llvm",
    schedule: Edited | None = None,
    n_jobs: int | None = None,
) -> QuantilePredictor:
    """Compile a forest that predicts quantiles, from any model and its training rows.

    A row's quantiles are those of the targets of the training rows that end in the same leaves. An
    estimator of quantile-forest stores them itself: pass it to `build`.

    Args:
        model: see `load`; a forest whose trees have equal weights, such as a random forest.
        rows: (N, F), the training rows, or other rows whose targets are known.
        targets: (N,) or (N, C), the targets of the rows.
        in_bag: for each tree, leave out the rows that it did not draw in training, and count others
            as often as it drew them, as quantile-forest does. For forests of scikit-learn; rows
            must be the training rows in their order.
        default_quantiles: what `predict` returns: quantiles, or "mean".
        target, schedule, n_jobs: see `build`; for the CPU at hand.

    Returns:
        QuantilePredictor: see its methods.

    Raises:
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `build`.
        InputError: rows or targets of the wrong kind or number, or no such quantiles.

    Examples:
        >>> found = tvm_forest.build_quantiles(regressor, rows, labels, n_jobs=1)
        >>> found.predict_quantiles(rows, [0.1, 0.9]).shape
        (150, 2)
    """
    where = "build_quantiles"
    check_n_jobs(where, n_jobs)
    read_asked(where, default_quantiles, "linear", True, False, True)
    machine = parse_target(target)
    check_target(machine)
    forest = frontends.load(model)
    rows = to_rows(rows, forest)
    values = read_targets(where, targets, len(rows))
    if not len(rows):
        raise InputError(f"{where}: argument 'rows': there are none; give those of the training")
    drawn = _list_drawn(where, model, len(rows)) if in_bag else None
    predictor = building.build(building.plan(forest, schedule, machine, exact=True))
    step = max(1, MAX_NUMBERS // max(1, forest.n_trees))
    leaves = np.concatenate(
        [predictor.apply(rows[x : x + step], n_jobs) for x in range(0, len(rows), step)]
    ).astype(np.int32)
    samples = collect_samples(
        leaves, values, count_nodes(predictor.forest), drawn, default_quantiles
    )
    predictor.n_jobs = n_jobs
    return QuantilePredictor(predictor, samples)


def _list_drawn(where: str, model: Any, n_rows: int) -> list[Array]:
    """Return the indices of the training rows that each tree of a scikit-learn forest drew.

    Raises:
        InputError: the model does not tell, or was trained on another number of rows than `n_rows`.
    """
    drawn = getattr(model, "estimators_samples_", None)
    if drawn is None:
        raise InputError(
            f"{where}: argument 'in_bag': {type(model).__name__} does not tell which rows trees "
            "drew; leave it out"
        )
    if model._n_samples != n_rows:
        raise InputError(
            f"{where}: argument 'rows': {n_rows} rows, and the model was trained on "
            f"{model._n_samples}; give those, or leave out 'in_bag'"
        )
    return list(drawn)
