"""Answers beside those of the training library."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCE = 1e-5
"""Of max(1, |reference|): more is wrong, less may be the order in which trees are added."""


def compare(answer: Any, reference: Any) -> dict[str, Any]:
    """Count equal and wrong rows.

    Args:
        answer: what an engine returns for R rows, in any shape. Of the probabilities of two
            classes the second is taken, if the reference has only one.
        reference: (R, C).

    Returns:
        `rows`, `equal` (to the bit) and `wrong`, numbers of rows; `error`, the largest, relative
        above 1, or None if the shape is not that of the reference.
    """
    rows = len(reference)
    answer = np.asarray(answer)
    answer = answer.reshape(rows, -1) if answer.size % max(1, rows) == 0 else answer
    if answer.shape == (rows, 2) and reference.shape == (rows, 1):
        answer = answer[:, 1:]
    if answer.shape != reference.shape:
        return {"rows": rows, "equal": 0, "wrong": rows, "error": None}
    same = (answer == reference) & (np.signbit(answer) == np.signbit(reference))
    same |= np.isnan(answer) & np.isnan(reference)
    with np.errstate(invalid="ignore"):
        apart = np.abs(answer.astype(np.float64) - reference)
        error = np.where(same, 0.0, apart / np.maximum(1, np.abs(reference)))
    equal = same.all(axis=1) if answer.dtype == reference.dtype else np.zeros(rows, bool)
    worst = float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))
    wrong = ~(error <= TOLERANCE).all(axis=1)
    return {"rows": rows, "equal": int(equal.sum()), "wrong": int(wrong.sum()), "error": worst}


def verdict(found: dict[str, list[dict[str, Any]]]) -> str:
    """Say "equal", "close (largest error)" or "WRONG (largest error, rows)".

    Args:
        found: comparisons of "value" and, if the engine tells it, of "margin". Equal are margins;
            of values it is asked only that they are not wrong, unless there are no margins.
    """
    every = [one for several in found.values() for one in several]
    wrong = max(every, key=lambda one: one["wrong"])
    if wrong["wrong"]:
        error = "shape" if wrong["error"] is None else f"{wrong['error']:.0e}"
        return f"WRONG ({error}, {wrong['wrong']} of {wrong['rows']} rows)"
    judged = found.get("margin", found["value"])
    if all(one["equal"] == one["rows"] for one in judged):
        return "equal"
    return f"close ({max(one['error'] for one in judged):.0e})"
