"""Early stopping as LightGBM has it: inexact, and asked for by name.

takes: a Predictor of a model of LightGBM, rows; gives: margins, from which trees are missing.

Behind every so many rounds, a row stops whose margin is large, whatever the rounds to come would
add: twice the absolute margin, or the lead of the class that is ahead. Its margin is the sum of the
trees so far. Models of which LightGBM wants accurate predictions do not stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...forest import Array, Forest
from ..inputs import to_rows

if TYPE_CHECKING:
    from ..predictor import Predictor

FREQUENCY, MARGIN = "pred_early_stop_freq", "pred_early_stop_margin"
"""The arguments of LightGBM: after how many rounds each, and by which margin."""

DEFAULTS = {FREQUENCY: 10, MARGIN: 10.0}

OBJECTIVES = ("binary", "multiclass", "multiclassova", "lambdarank", "rank_xendcg")
"""Those that need no accurate predictions to LightGBM."""


def stops(forest: Forest) -> bool:
    """Return whether LightGBM would let rows of the model stop."""
    return forest.source.removeprefix("lightgbm ") in OBJECTIVES


def compute_margins(
    whole: Predictor, rows: Any, n_jobs: int | None, arguments: dict[str, Any]
) -> Array:
    """Return margins (R, C) of rows that may have stopped.

    Raises:
        InputError: no such frequency or margin.
    """
    frequency, margin = (arguments.get(name, DEFAULTS[name]) for name in (FREQUENCY, MARGIN))
    is_whole = isinstance(frequency, int | np.integer) and not isinstance(frequency, bool)
    if not is_whole or frequency < 1:
        raise InputError(
            f"predict: argument '{FREQUENCY}': expected a whole number from 1, got {frequency!r}"
        )
    if not isinstance(margin, int | float) or isinstance(margin, bool) or not margin >= 0:
        raise InputError(
            f"predict: argument '{MARGIN}': expected a number from 0, got {margin!r:.80}"
        )
    forest, read = whole.forest, to_rows(rows, whole.forest)
    rounds = forest.n_trees // forest.round_size
    first = (
        int(np.argmax(forest.tree_id >= 0)) // forest.round_size
    )  # of a range: others are silent
    margins = np.empty((len(read), forest.n_outputs), forest.sum_dtype)
    walks = np.ones(len(read), bool)

    def decide(stretch: int, places: Array, sums: Array) -> Array:
        walking = walks[places]
        margins[places[walking]] = sums[walking]
        walks[places] = walking & ~(_lead(sums) > margin)
        return walks[places]

    ends = sorted({0, *range(first, rounds, int(frequency)), rounds})
    stretches = whole._early.cut_at(whole, ends)
    stretches.run(read, n_jobs, decide)
    return margins


def _lead(sums: Array) -> Array:
    """Return what LightGBM compares with its margin, (R,)."""
    if sums.shape[1] == 1:
        return 2.0 * np.abs(sums[:, 0])
    ahead = np.partition(sums, -2, axis=1)
    return np.asarray(ahead[:, -1] - ahead[:, -2])
