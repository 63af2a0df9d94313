"""Predictors of some boosting rounds.

takes: Predictor, range of rounds; gives: Predictor.

Importing this module gives `Predictor` its method `rounds`.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .errors import InputError, UnsupportedModel
from .forest import Forest
from .forest_passes.ordering import rounds_of_trees, take_rounds
from .lower import build
from .runtime import Predictor
from .search import heuristic

MOST_PARTS = 8
"""Compiled ranges that a predictor keeps; the one that was not asked for longest is dropped."""

_lock = threading.Lock()


def rounds(self: Predictor, begin: int = 0, end: int = 0) -> Predictor:
    """Return the predictor of the rounds `begin` to `end - 1`; the base score stays.

    A round of XGBoost holds all its parallel trees and classes, a round of LightGBM one tree of
    each class. Other models have no rounds by name: theirs are one tree of each class, too. Sums
    are divided by the trees of the range where the model averages.

    The first call for a range compiles it, by the default schedule, for a schedule is made for a
    number of trees; the latest `MOST_PARTS` ranges are kept. What is kept is not saved.

    Args:
        begin: first round.
        end: the one after the last; 0 for the end of the model.

    Returns:
        Predictor: this one if the range is the whole model.

    Raises:
        InputError: the range is empty or beyond the model, which for an estimator that stopped
            early ends with its best round.
        UnsupportedModel: isolation forests, whose scores are of all trees.
    """
    span = _checked(self.forest, begin, end)
    if span is None:
        return self
    with _lock:
        part = self._parts.pop(span, None) or _compiled(self, *span)
        self._parts[span] = part
        for oldest in list(self._parts)[:-MOST_PARTS]:
            del self._parts[oldest]
    return part


def _compiled(whole: Predictor, begin: int, end: int) -> Predictor:
    forest = take_rounds(whole.forest, begin, end)
    part = build(forest, heuristic.default_schedules(forest, whole.target), whole.target)
    part.n_jobs = whole.n_jobs
    return part


def _checked(forest: Forest, begin: Any, end: Any) -> tuple[int, int] | None:
    """Return the range, or None for the whole model."""
    count = int(rounds_of_trees(forest).max(initial=-1)) + 1
    where = f"rounds: argument 'iteration_range': ({begin!r}, {end!r})"
    whole = (isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in (begin, end))
    if not all(whole):
        raise InputError(f"{where} must be two whole numbers; give rounds such as (0, 10)")
    first, last = int(begin), int(end) or count
    if (first, last) == (0, count):
        return None
    if not 0 <= first < last <= count:
        raise InputError(
            f"{where} is no range of the {count} rounds of the model; use 0 <= begin < end <= "
            f"{count}, or end 0 for all that follow"
        )
    if forest.link == "isolation":
        raise UnsupportedModel(
            f"{where}: the scores of an isolation forest are of all its trees; train it with fewer"
        )
    return first, last


Predictor.rounds = rounds  # type: ignore[method-assign]
