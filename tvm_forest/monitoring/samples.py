"""Takes some of the rows that a predictor predicts, and checks what a monitor is made of.

takes: rows of any kind, a Profile, Forest; gives: some of the rows, the trees of the source model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError, RowError
from ..forest import Forest
from ..forest.profile import Profile
from ..forest.rewrites.ordering import take_trees
from ..predictor.inputs import to_rows


def refuse_other(profile: Profile, predictor: Any) -> None:
    """Refuse the profile of another model; that its trees fit is checked elsewhere."""
    if profile.signature not in (None, predictor.signature):
        raise InputError(
            "Monitor: argument 'reference': the profile is of another model, by its signature; "
            "make one of this model with tvm_forest.profile(model, rows)"
        )


def take_source(forest: Forest) -> Forest:
    """Return the trees of the source model, in its order, as `apply` numbers them."""
    known = np.flatnonzero(forest.tree_id >= 0)
    return take_trees(forest, known[np.argsort(forest.tree_id[known])])


def take_rows(rows: Any, picks: list[int]) -> Any:
    """Return the rows with the indices `picks`; None if rows of this kind cannot be indexed.

    One row by name, a dict or a Series, is returned as it is.
    """
    try:
        if isinstance(rows, dict) or getattr(rows, "ndim", 2) == 1:
            return rows  # one row by name
        if isinstance(rows, list | tuple):
            return [rows[pick] for pick in picks]
        if hasattr(rows, "iloc"):
            return rows.iloc[picks]
        return rows.take(picks) if hasattr(rows, "column_names") else rows[picks]
    except (TypeError, IndexError, KeyError, ValueError, NotImplementedError):
        return None


def refuses(rows: Any, forest: Forest) -> bool:
    """Return whether a model refuses one of the rows for its values."""
    try:
        to_rows(rows, forest)
    except RowError:
        return True
    return False
