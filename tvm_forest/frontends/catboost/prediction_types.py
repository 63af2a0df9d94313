"""Computes the results of CatBoost's `predict` for each `prediction_type`.

takes: Forest, margins and values; gives: the arrays that CatBoost returns, to the bit.

Every object of CatBoost can return nearly all types, whatever its loss. Logarithms, and
exponentials outside of `coarse_powers`, are those of the C library, as in CatBoost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...forest import Array, Forest, LabelRule, Link, apply_link, choose_labels
from ...forest.c_functions import take_c_powers
from ...forest.coarse_powers import sum_powers
from .losses import CLASSES


def list_types(forest: Forest) -> list[str]:
    """Return the prediction types that a model supports."""
    lacks = {"Class": forest.labels is None, "RMSEWithUncertainty": forest.n_outputs < 2}
    return [name for name in TYPES if not lacks.get(name)]


def make(asked: str, forest: Forest, margin: Array, value: Array) -> Array:
    """Return what CatBoost's `predict` returns for a prediction type.

    Args:
        asked: one of `list_types`.
        forest: the model.
        margin, value: (R, C), the model's margins and values of some rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return TYPES[asked](forest, margin, value)


def _to_margins(forest: Forest, margin: Array, value: Array) -> Array:
    return margin[:, 0] if forest.n_outputs == 1 else margin


def _to_classes(forest: Forest, margin: Array, value: Array) -> Array:
    is_of_many = forest.source == "catboost MultiClassOneVsAll" or _has_softmax(forest)
    targets = (forest.n_outputs,) if is_of_many else ()
    rule: LabelRule = "top_margin" if is_of_many else "cut"
    return choose_labels(replace(forest, label_rule=rule, targets=targets), margin, value)


def _to_probabilities(forest: Forest, margin: Array, value: Array) -> Array:
    found = _link("coarse_softmax" if _has_softmax(forest) else "sigmoid", forest, margin, value)
    return found if forest.n_outputs > 1 else np.concatenate([1 - found, found], axis=1)


def _to_logarithms(forest: Forest, margin: Array, value: Array) -> Array:
    if _has_softmax(forest):
        top, total = sum_powers(margin)[:2]
        return margin - top - _take_logarithms(total)
    both = margin if forest.n_outputs > 1 else np.concatenate([-margin, margin], axis=1)
    return -_take_logarithms(1 + take_c_powers(-both))


def _to_powers(forest: Forest, margin: Array, value: Array) -> Array:
    found = _link("coarse_exp", forest, margin[:, :1], value)
    return found[:, 0] if forest.n_outputs == 1 else found


def _to_variances(forest: Forest, margin: Array, value: Array) -> Array:
    return _link("variance", forest, margin[:, :2], value)


TYPES: dict[str, Callable[[Forest, Array, Array], Array]] = {
    "RawFormulaVal": _to_margins,
    "Class": _to_classes,
    "Probability": _to_probabilities,
    "LogProbability": _to_logarithms,
    "Exponent": _to_powers,
    "RMSEWithUncertainty": _to_variances,
}


def _is_of_labels(forest: Forest) -> bool:
    """Return whether each output has an independent probability."""
    loss = forest.source.partition(" ")[2]
    return loss != "MultiClass" and CLASSES.get(loss) == "sigmoid"


def _has_softmax(forest: Forest) -> bool:
    return forest.n_outputs > 1 and not _is_of_labels(forest)


def _link(link: Link, forest: Forest, margin: Array, value: Array) -> Array:
    """Return the values of a link, reusing those of the model if it has this link."""
    return value if link == forest.link else apply_link(link, margin)


def _take_logarithms(x: Array) -> Array:
    return np.array([math.log(v) for v in x.ravel().tolist()]).reshape(x.shape)
