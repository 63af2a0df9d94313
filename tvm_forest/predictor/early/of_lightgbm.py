"""LightGBM's own early stopping of predictions (`pred_early_stop`), which is inexact.

takes: a Predictor of a LightGBM model, rows; gives: margins, which may lack the last trees.

After every `pred_early_stop_freq` rounds, a row stops if its lead is above
`pred_early_stop_margin`, whatever the remaining rounds would add. The lead is twice the absolute
margin, or for several classes the difference between the two largest margins. As in LightGBM, only
models with some objectives stop.
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
"""LightGBM's arguments: rounds between two checks, and the lead with which a row stops."""

DEFAULTS = {FREQUENCY: 10, MARGIN: 10.0}

OBJECTIVES = ("binary", "multiclass", "multiclassova", "lambdarank", "rank_xendcg")
"""Objectives whose predictions LightGBM allows to be inexact."""


def stops(forest: Forest) -> bool:
    """Return whether LightGBM lets rows stop early with the objective of the model."""
    return forest.source.removeprefix("lightgbm ") in OBJECTIVES


def compute_margins(
    whole: Predictor, rows: Any, n_jobs: int | None, arguments: dict[str, Any]
) -> Array:
    """Return margins (R, C), where the margin of a row that stopped lacks the later trees.

    Raises:
        InputError: an invalid frequency or margin in `arguments`.
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
    )  # trees outside of a range of rounds have no id
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
    """Return the lead of each row, (R,), which LightGBM compares with `pred_early_stop_margin`."""
    if sums.shape[1] == 1:
        return 2.0 * np.abs(sums[:, 0])
    ahead = np.partition(sums, -2, axis=1)
    return np.asarray(ahead[:, -1] - ahead[:, -2])
