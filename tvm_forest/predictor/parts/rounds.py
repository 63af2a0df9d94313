"""Derives predictors from a predictor: of some rounds, of all rounds, and for copied rows.

takes: Predictor, range of rounds; gives: Predictor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BuildError, InputError, ScheduleError, UnsupportedModel
from ...forest import Array, Forest
from ...forest.rewrites.ordering import count_rounds, find_rounds, silence_rounds, take_rounds
from ...layouts.laying_out import Compiled, LaidOut, lay_out
from ...layouts.laying_out.request import BuildRequest
from ...system.late import import_late
from ...system.process.locks import make_lock

if TYPE_CHECKING:
    from .. import building
    from ..predictor import Predictor
else:
    building = import_late("tvm_forest.predictor.building")  # imports `predictor`

MAX_PARTS = 8
"""Ranges that a predictor keeps; the least recently used is dropped first."""

WITH_ALL_ROUNDS = {
    "xgboost": "model.get_booster()",
    "lightgbm": "lightgbm.Booster(model_str=booster.model_to_string(num_iteration=-1))",
}
"""For each library, Python code for the model with the rounds beyond the best one."""


class RoundCache:
    """Caches predictors derived from one predictor: of ranges of rounds, and of variants.

    The predictor passes itself to each call, instead of being stored here: a reference cycle would
    keep code in memory until Python's cycle collector runs.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], Predictor] = {}  # by range, the latest last
        self._others: dict[str, Predictor] = {}  # of other models, by attributes of the forest
        self._lock = make_lock()  # held while a predictor is looked up or made

    def find(self, whole: Predictor, begin: int, end: int) -> Predictor:
        """Return the predictor of a range of rounds, made once; see `Predictor.rounds`."""
        reached = self.reach(whole, end)
        if reached is not whole:
            return reached.rounds(begin, end)
        span = _to_span(whole.forest, begin, end)
        if span is None:
            return whole
        with self._lock:
            part = self._parts.pop(span, None) or _silence_others(whole, span)
            part = part or _build(whole, take_rounds(whole.forest, *span))
            self._parts[span] = part
            for oldest in list(self._parts)[:-MAX_PARTS]:
                del self._parts[oldest]
        return part

    def reach(self, best: Predictor, end: Any) -> Predictor:
        """Return `best`, or the predictor of all rounds if `end` is beyond the best round."""
        forest = best.forest
        is_beyond = isinstance(end, int | np.integer) and end > count_rounds(forest)
        if not is_beyond or forest.with_all_rounds is None:
            return best
        return self.find_other(best, "with_all_rounds")

    def find_other(self, whole: Predictor, model: str) -> Predictor:
        """Return the predictor of another form of the model, which is compiled at most once.

        `model` is the attribute of the forest with that form, such as "with_all_rounds".
        """
        with self._lock:
            if model not in self._others:
                self._others[model] = _build(whole, getattr(whole.forest, model))
        return self._others[model]


def read_range(forest: Forest, iteration_range: Any) -> tuple[Any, Any]:
    """Return the first round and the one after the last; (0, 0) for all.

    Raises:
        InputError: the range is not a pair.
    """
    if iteration_range is None:
        return 0, 0
    try:
        begin, end = iteration_range
    except (TypeError, ValueError):
        raise InputError(
            f"predict: argument 'iteration_range': {iteration_range!r} is no pair; give the first "
            "round and the one after the last, such as (0, 10)"
        ) from None
    return (0, 0) if forest.needs_end and end == 0 else (begin, end)


def columns_of_rounds(whole: Predictor, begin: int, end: int) -> Array:
    """Return which columns of the whole model's results per tree belong to some rounds' trees.

    Returns:
        (t, W), `Predictor.columns` of these trees, in the order of the source model.

    Raises:
        InputError, UnsupportedModel: see `Predictor.rounds`.
    """
    span = _to_span(whole.forest, begin, end)
    if span is None:
        return whole.columns
    trees = whole.columns[:, 0] // whole.forest.leaf_value.shape[1]
    rounds = find_rounds(whole.forest)[trees]
    return whole.columns[(rounds >= span[0]) & (rounds < span[1])]


def _silence_others(whole: Predictor, span: tuple[int, int]) -> Predictor | None:
    """Return a predictor in whose arrays leaves of other rounds' trees change no margin.

    It shares all code, as no node is removed. None if that is impossible: the code of an average
    divides by the number of trees, and numbered leaf values may become fewer.
    """
    if whole.forest.aggregate == "average":
        return None
    forest = silence_rounds(whole.forest, *span)
    return share_code(whole, forest, columns_of_rounds(whole, *span))


def share_code(whole: Predictor, forest: Forest, columns: Array | None = None) -> Predictor | None:
    """Return a predictor with other leaf values that shares the code of `whole`.

    Args:
        whole: the predictor with the code.
        forest: the same trees with other leaf values.
        columns: see `Predictor.columns`; None for all trees.

    Returns:
        Predictor: None if the code cannot read the new arrays.
    """
    request = BuildRequest.of(forest, whole.schedules, whole.target).settled()
    known, laid_out = lay_out(whole.request), lay_out(request)
    if list_layouts(known) != list_layouts(laid_out):
        return None
    places = laid_out.columns if columns is None else columns
    request = replace(request, given=whole.request.given)
    return with_arguments(whole, request, laid_out.arguments, places)


def with_arguments(
    whole: Predictor, request: BuildRequest, arguments: dict[str, list[Any]], columns: Array
) -> Predictor:
    """Return a predictor whose functions are those of `whole` and read other arrays.

    Args:
        whole: the predictor with the code.
        request: the request of the new predictor's model.
        arguments: for each function by name, the arrays that it is to read.
        columns: see `Predictor.columns`.
    """
    of_model = (x for x in whole.libraries if x.symbols.keys() <= arguments.keys())
    code = [replace(x, library=whole._functions.share(x.library)) for x in of_model]
    part = type(whole)(request, Compiled(code, arguments, columns))
    part.n_jobs = whole.n_jobs
    return part


def list_layouts(laid_out: LaidOut) -> list[Any]:
    """Return the properties of arrays on which code depends: their layouts, shapes and dtypes.

    Code for one model can read the arrays of another if these are equal for both.
    """
    sizes = [[(x.shape, x.dtype) for x in arrays] for arrays in laid_out.arguments.values()]
    return [sizes, laid_out.layouts]


def _build(whole: Predictor, forest: Forest) -> Predictor:
    """Compile a variant of the model of `whole`, for the same target and number of threads.

    Its schedules are those given for `whole` if they fit, else default ones.
    """
    built = _build_as_asked(whole, forest)
    built = built or building.build(BuildRequest.of(forest, None, whole.target))
    built.n_jobs = whole.n_jobs
    return built


def _build_as_asked(whole: Predictor, forest: Forest) -> Predictor | None:
    """Compile a variant by the schedules, or the function that makes them, of `whole`.

    Returns:
        Predictor: None if `whole` has default schedules, or if its own do not fit the variant or
        add leaves in another order.
    """
    given = whole.request.given
    if given is None:
        return None
    try:
        return building.build(building.plan(forest, given, whole.target, exact=True))
    except (BuildError, ScheduleError):
        return None


def _to_span(forest: Forest, begin: Any, end: Any) -> tuple[int, int] | None:
    """Check a range of rounds; return it, or None for the whole model.

    Raises:
        InputError, UnsupportedModel: see `Predictor.rounds`.
    """
    count = count_rounds(forest)
    where = f"rounds: argument 'iteration_range': ({begin!r}, {end!r})"
    is_whole = (isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in (begin, end))
    if not all(is_whole):
        raise InputError(f"{where} must be two whole numbers; give rounds such as (0, 10)")
    first, last = int(begin), int(end) or count
    if (first, last) == (0, count):
        return None
    if 0 <= first <= last and count < last <= count + forest.rounds_left_out:
        remedy = WITH_ALL_ROUNDS[forest.source.partition(" ")[0]]
        raise InputError(
            f"{where}: the model has its {count} best rounds, {forest.rounds_left_out} more are "
            f"left out; compile one with all, {remedy}"
        )
    if not 0 <= first <= last <= count:
        raise InputError(
            f"{where} is no range of the {count} rounds of the model; use 0 <= begin <= end <= "
            f"{count}, or end 0 for all that follow"
        )
    if forest.link == "isolation":
        raise UnsupportedModel(
            f"{where}: the scores of an isolation forest are of all its trees; train it with fewer"
        )
    return first, last


def refuse_which(method: str, which: Any, remedy: str) -> None:
    """Refuse the argument `which` of a method that gives results of all outputs only.

    Raises:
        InputError: `which` is given.
    """
    if which is not None:
        raise InputError(
            f"{method}: argument 'which': only predict, predict_value and predict_margin choose an "
            f"output for each row; {remedy}"
        )
