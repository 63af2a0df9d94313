"""Predictors of some boosting rounds.

takes: Predictor, range of rounds; gives: Predictor.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Forest
from ..forest.rewrites.ordering import find_rounds, take_rounds
from ..search import heuristic
from .building import build
from .predictor import Predictor

MAX_PARTS = 8
"""Compiled ranges that a predictor keeps; the one that was asked for longest ago goes first."""

_lock = threading.Lock()
"""Held while a range is looked up, and compiled if it is not there."""


def rounds(whole: Predictor, begin: int, end: int) -> Predictor:
    """See `Predictor.rounds`."""
    span = _to_span(whole.forest, begin, end)
    if span is None:
        return whole
    with _lock:
        part = whole._parts.pop(span, None)
        if part is None:
            forest = take_rounds(whole.forest, *span)
            part = build(forest, heuristic.default_schedules(forest, whole.target), whole.target)
            part.n_jobs = whole.n_jobs
        whole._parts[span] = part
        for oldest in list(whole._parts)[:-MAX_PARTS]:
            del whole._parts[oldest]
    return part


def _to_span(forest: Forest, begin: Any, end: Any) -> tuple[int, int] | None:
    """Return the range, or None for the whole model."""
    count = int(find_rounds(forest).max(initial=-1)) + 1
    where = f"rounds: argument 'iteration_range': ({begin!r}, {end!r})"
    is_whole = (isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in (begin, end))
    if not all(is_whole):
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
