"""Supports the arguments of `predict` in the model's own library, with their meaning there.

takes: Predictor, rows, arguments by name; gives: the result of the library's own `predict`.

    xgboost    Booster.predict, Booster.inplace_predict and `predict` of its estimators
    lightgbm   Booster.predict and `predict` of its estimators
    catboost   `predict` of CatBoost and of its estimators

and `predict_proba` of their classifiers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, choose_labels
from ..forest.c_functions import NumberFunction, apply_c_function, apply_numpy_function
from ..forest.reference import finish_sums
from ..forest.rewrites.ordering import count_rounds
from ..system.late import import_late
from .class_numbers import to_probabilities
from .few_rows.small_batches import squeeze
from .inputs import to_rows
from .inputs.checks import is_copied
from .inputs.frames import kind_of
from .parts.rounds import read_range, refuse_which

if TYPE_CHECKING:
    from ..frontends.catboost import prediction_types
    from .early import of_lightgbm
    from .predictor import Predictor, Range
else:
    of_lightgbm = import_late("tvm_forest.predictor.early.of_lightgbm")
    prediction_types = import_late("tvm_forest.frontends.catboost.prediction_types")

KINDS = {
    **dict.fromkeys(("output_margin", "raw_score"), "predict_margin"),
    "pred_leaf": "apply",
    **dict.fromkeys(("pred_contribs", "pred_contrib"), "predict_contributions"),
    "pred_interactions": "predict_interactions",
}
"""Arguments that select another kind of result, and the methods that compute it."""

STOPS = "pred_early_stop"
STOPPING = ("pred_early_stop_freq", "pred_early_stop_margin")
"""LightGBM's arguments for early stopping of predictions, see `early/of_lightgbm.py`."""

ARGUMENTS = {
    "xgboost": (
        *("output_margin", "pred_leaf", "pred_contribs", "pred_interactions"),
        *("approx_contribs", "validate_features", "base_margin"),
    ),
    "lightgbm": (
        *("raw_score", "pred_leaf", "pred_contrib", "validate_features"),
        *("start_iteration", "num_iteration"),
        *(STOPS, *STOPPING),
    ),
    "catboost": (
        *("prediction_type", "ntree_start", "ntree_end"),
        *("thread_count", "verbose", "task_type"),
    ),
}
"""Arguments of `predict` in each library, besides those of `Predictor.predict`."""

PROBABILITIES = "predict_proba"

ARGUMENTS_FOR_PROBABILITIES = {
    "xgboost": ("validate_features", "base_margin"),
    "lightgbm": ARGUMENTS["lightgbm"],
    "catboost": ARGUMENTS["catboost"][1:],
}
"""Arguments of `predict_proba` in each library."""

OF_FIRST_ROUNDS = ("predict_contributions", "predict_interactions")
"""Methods for which XGBoost has no rounds without the first."""

COUNTS = ("start_iteration", "num_iteration")
"""LightGBM's arguments that are numbers of rounds."""

OTHERS = (*COUNTS, *ARGUMENTS["catboost"], "base_margin", *STOPPING)
"""Arguments whose value is not True or False."""


def predict_as_source(
    predictor: Predictor,
    rows: Any,
    n_jobs: int | None,
    iteration_range: Range,
    arguments: dict[str, Any],
    called: str = "predict",
    *,
    which: Any = None,
) -> Any:
    """Predict as the model's library does with these arguments.

    Args:
        predictor: the model.
        rows, n_jobs, iteration_range, which: see `Predictor.predict`.
        arguments: the library's arguments by name.
        called: the library's method, "predict" or "predict_proba".

    Raises:
        InputError: rows, n_jobs or iteration_range of the wrong kind; the library has no such
            argument or refuses its value; or `which` is given, which no library supports.
        UnsupportedModel: an argument asks for what the model does not give, such as contributions.
    """
    forest = predictor.forest
    _check(forest, arguments, called)
    if which is not None:
        raise InputError(
            f"predict: arguments 'which' and {next(iter(arguments))!r}: give one of them; of all "
            "outputs that predict gives without 'which', take that of each row"
        )
    if forest.source.startswith("catboost"):
        asked = "Probability" if called == PROBABILITIES else arguments.get("prediction_type")
        rounds, jobs = _read_catboost(iteration_range, n_jobs, arguments)
        return _predict_as_catboost(predictor, rows, jobs, rounds, asked)
    kinds = [name for name in KINDS if arguments.get(name)]
    if len(kinds) > 1:
        raise InputError(f"predict: arguments {kinds[0]!r} and {kinds[1]!r}: give one of them")
    if arguments.get("validate_features") is False and kind_of(rows) is not None:
        rows = to_rows(rows, replace(forest, feature_names=None))
    if any(name in arguments for name in COUNTS):
        iteration_range = _read_counts(forest, iteration_range, arguments)
    predictor = predictor._reach(iteration_range)
    forest = predictor.forest
    method = KINDS[kinds[0]] if kinds else called
    _refuse_later_rounds(forest, iteration_range, method)
    start = arguments.get("base_margin")
    if start is not None and kinds and method != "predict_margin":
        raise InputError(f"predict: argument 'base_margin': {kinds[0]!r} has no use for it")
    averages = forest.aggregate == "average"  # LightGBM averages values only, and sums the rest
    if averages and method == "predict_contributions":
        found: Array = predictor.predict_contributions(rows, n_jobs, iteration_range)
        return found * (len(predictor._columns_of(iteration_range)) // forest.n_outputs)
    sums_up = averages and method == "predict_margin"
    of_none = averages and not len(predictor._columns_of(iteration_range)) and method == called
    stops = arguments.get(STOPS) and method in (called, "predict_margin")
    if stops and of_lightgbm.stops(forest):
        part = predictor._part(iteration_range)
        margin = of_lightgbm.compute_margins(part, rows, n_jobs, arguments)
        margin = finish_sums(part.forest, margin) if method == called else margin
        return _to_result(forest, margin, method, apply_c_function)
    if start is None and not sums_up and not of_none:
        more = _read_approximate(arguments, method)
        return getattr(predictor, method)(rows, n_jobs, iteration_range, **more)
    margin = _add_leaves(predictor, rows, n_jobs, iteration_range, start)
    return _to_result(forest, margin + np.nan if of_none else margin, method)  # 0 / 0


def _read_approximate(arguments: dict[str, Any], method: str) -> dict[str, bool]:
    """Return `approx_contribs` as an argument of the Predictor's method `method`.

    XGBoost ignores it where no contributions are asked for, so the result is then empty.

    Raises:
        UnsupportedModel: approximate interactions are asked for.
    """
    if not arguments.get("approx_contribs") or method not in OF_FIRST_ROUNDS:
        return {}
    if method == "predict_interactions":
        raise UnsupportedModel(
            "predict: arguments 'approx_contribs' and 'pred_interactions': interactions are exact "
            "here; leave 'approx_contribs' out"
        )
    return {"approximate": True}


def _refuse_later_rounds(forest: Forest, iteration_range: Range, method: str) -> None:
    """Refuse SHAP values of a range that does not begin with the first round, as XGBoost does.

    For 'dart', XGBoost would explain all rounds before the end, whatever the range.

    Raises:
        InputError: the range is such a one.
    """
    is_of_first = forest.library == "xgboost" and method in OF_FIRST_ROUNDS
    if is_of_first and read_range(forest, iteration_range)[0]:
        raise InputError(
            f"predict: argument 'iteration_range': {iteration_range}: XGBoost explains rounds from "
            "the first on only, and of 'dart' all before the end, whatever is asked; use "
            f"predictor.{method}(rows, iteration_range={iteration_range})"
        )


def _to_result(
    forest: Forest, margin: Array, method: str, call: NumberFunction = apply_numpy_function
) -> Any:
    """Return what the Predictor's method of this name returns for rows with margins (R, C)."""
    if method == "predict_margin":
        return squeeze(margin)
    value = forest.values_of(margin, call)
    if method == PROBABILITIES:
        return to_probabilities(forest, value)
    return choose_labels(forest, margin, value) if forest.gives_labels else squeeze(value)


def _check(forest: Forest, arguments: dict[str, Any], called: str) -> None:
    library = forest.source.partition(" ")[0]
    known = (ARGUMENTS_FOR_PROBABILITIES if called == PROBABILITIES else ARGUMENTS).get(library, ())
    for name, value in arguments.items():
        if name == "which":  # of `predict_proba`
            refuse_which(called, value, "predict_value gives the probability of the second class")
        where = f"{called}: argument {name!r}"
        if name not in known:
            has = f"that of {library} has {', '.join(known)}" if known else "no library has it here"
            raise InputError(
                f"{where}: `{called}` of a model of {library or 'no library'} has no such argument "
                f"({has}); see predict_margin, predict_proba, apply"
            )
        if name not in OTHERS and not isinstance(value, bool | np.bool_):
            raise InputError(f"{where}: {value!r} is neither True nor False")


def _read_counts(forest: Forest, iteration_range: Range, arguments: dict[str, Any]) -> Range:
    """Return the range of rounds from LightGBM's two numbers, limited to existing rounds.

    A count of 0 or less means all rounds from the start on. Without a count, the range ends at the
    best round if the start is 0, which None stands for, and otherwise at the last round.

    Raises:
        InputError: `iteration_range` is given, too, or a number is not whole.
    """
    if iteration_range is not None:
        raise InputError(
            "predict: argument 'iteration_range': give it, or 'start_iteration' and "
            "'num_iteration', not both"
        )
    begin, count = (_read_count(name, arguments) for name in COUNTS)
    if begin <= 0 and arguments.get(COUNTS[1]) is None:
        return None
    rounds = count_rounds(forest) + forest.rounds_left_out
    first = min(max(0, begin), rounds)
    return first, rounds if count <= 0 else min(first + count, rounds)


def _read_count(name: str, arguments: dict[str, Any]) -> int:
    """Return an argument that is a whole number; 0 if it is missing or None.

    Raises:
        InputError: it is no whole number.
    """
    number = arguments.get(name)
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InputError(f"predict: argument {name!r}: {number!r} is no whole number")
    return int(number)


def _predict_as_catboost(
    predictor: Predictor, rows: Any, jobs: int | None, rounds: Range, asked: Any
) -> Array:
    """Predict as CatBoost does if its `prediction_type` is `asked`; if None, as for its default.

    Raises:
        InputError: the model does not give what is asked for, or see `Predictor.predict`.
    """
    if asked is None:
        return predictor.predict(rows, jobs, rounds)
    known = prediction_types.list_types(predictor.forest)
    if asked not in known:
        raise InputError(
            f"predict: argument 'prediction_type': {asked!r} is not given by this model here "
            f"(have: {', '.join(known)})"
        )
    margin, value = predictor._sums(rows, jobs, rounds)
    return prediction_types.make(asked, predictor.forest, margin, value)


def _read_catboost(
    iteration_range: Range, n_jobs: int | None, arguments: dict[str, Any]
) -> tuple[Range, int | None]:
    """Return the range of rounds and the number of threads that CatBoost's arguments name.

    Where CatBoost's are missing, they are `iteration_range` and `n_jobs`.

    Raises:
        InputError: a value that CatBoost or this package refuses, or two ranges.
    """
    span = tuple(_read_count(name, arguments) for name in ("ntree_start", "ntree_end"))
    if any(span) and iteration_range is not None:
        raise InputError(
            "predict: argument 'iteration_range': give it, or 'ntree_start' and 'ntree_end', not "
            "both"
        )
    if any(span) and span[0] >= span[1]:
        raise InputError(
            f"predict: arguments 'ntree_start' and 'ntree_end': CatBoost takes {span} for an empty "
            "range; give an end beyond the start"
        )
    task = arguments.get("task_type")
    if task not in (None, "CPU"):
        raise InputError(
            f"predict: argument 'task_type': {task!r} is not taken here; build for the target "
            "'cuda' to predict on a GPU"
        )
    threads = _read_count("thread_count", arguments)
    return (span[0], span[1]) if any(span) else iteration_range, threads or n_jobs


def _add_leaves(
    predictor: Predictor, rows: Any, n_jobs: int | None, iteration_range: Range, start: Any
) -> Array:
    """Return margins (R, C): starting margins, plus the leaves in the order of the model.

    `start` is XGBoost's `base_margin`, as users pass it; None for zeros, without a base score.
    """
    forest, places = predictor.forest, predictor._columns_of(iteration_range)
    weighs = start is not None and forest.tree_weight is not None and not is_copied(rows)
    leaves = predictor._leaves("apply" if weighs else "per_tree", rows, n_jobs, iteration_range)
    margin = np.zeros((len(leaves), forest.n_outputs), forest.sum_dtype)
    if start is not None:
        margin += _read_start(start, margin.shape)
    first = margin.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for tree, place in enumerate(places):
            at = place % forest.n_outputs
            added = leaves[:, tree]
            if weighs:
                added = _weigh(forest, int(place[0]), added[:, 0], first[:, at[0]])[:, None]
            margin[:, at] += added
    return margin


def _weigh(forest: Forest, tree: int, numbers: Array, start: Array) -> Array:
    """Return what a tree adds to margins, (R,), where the tree's weight applies to the start too.

    XGBoost's in-place prediction of an estimator adds a leaf to the starting margin, subtracts the
    base score, and multiplies the result by the tree's weight.

    Args:
        forest: the model.
        tree: index of the tree.
        numbers: (R,), numbers of the leaves that rows reach, as `apply` returns them.
        start: (R,), the starting margins.
    """
    assert forest.bare_value is not None and forest.tree_weight is not None, "it has both"
    own = slice(forest.tree_offset[tree], forest.tree_offset[tree + 1])
    order = np.argsort(forest.node_id[own])
    node = order[np.searchsorted(forest.node_id[own], numbers, sorter=order)]
    base = forest.base_score[tree % forest.n_outputs]
    added: Array = (start + forest.bare_value[own][node, 0] - base) * forest.tree_weight[tree]
    return added


def _read_start(start: Any, shape: tuple[int, ...]) -> Array:
    """Return the user's starting margins as (R, C) float32; they may be given flat.

    Raises:
        InputError: they are not numbers, or of another shape than (R, C) and (R * C,).
    """
    where = "predict: argument 'base_margin'"
    try:
        array = np.asarray(start, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: it cannot be read as numbers ({error})") from None
    if array.shape not in (shape, (shape[0] * shape[1],)):
        wanted = f"{shape}" if shape[1] > 1 else f"({shape[0]},)"
        raise InputError(f"{where}: got shape {array.shape}, the rows need {wanted}")
    return array.reshape(shape)
