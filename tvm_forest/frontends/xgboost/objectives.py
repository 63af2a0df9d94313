"""The links of XGBoost's objectives, and the functions from base scores to margins.

takes: Header; gives: the link, and the base score in margin space.

Refused are base scores out of range, and those whose meaning depends on the version of XGBoost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np

from ...forest import Array, Link
from ...forest.c_functions import find_c_function
from ..refusals import damaged, unsupported
from .header import Header

BaseSpace = Literal["identity", "logit", "log"]

_LOGISTIC_EPS = np.float32(1e-6)
_IDENTITY = (
    "reg:squarederror reg:linear reg:squaredlogerror reg:pseudohubererror reg:absoluteerror "
    "reg:quantileerror reg:expectileerror binary:logitraw rank:pairwise rank:ndcg rank:map"
)
_LOG = "count:poisson reg:gamma reg:tweedie survival:cox survival:aft"
OBJECTIVES: dict[str, tuple[Link, BaseSpace]] = {
    **dict.fromkeys(_IDENTITY.split(), ("identity", "identity")),
    **dict.fromkeys(("reg:logistic", "binary:logistic"), ("sigmoid", "logit")),
    **dict.fromkeys(_LOG.split(), ("exp", "log")),
    **dict.fromkeys(("multi:softmax", "multi:softprob"), ("softmax", "identity")),
    "binary:hinge": ("step", "identity"),
}
"""By objective, its link, and the function that converts a base score to a margin."""


def find_link(header: Header) -> tuple[Link, BaseSpace]:
    """Return the link of the model's objective, and the function from base score to margin.

    Both are entries of `OBJECTIVES`, except that XGBoost since 3.4 sorts the quantiles of a row,
    because they may cross. Unknown objectives are refused, and so are several expectiles, each of
    which XGBoost adds to those before it.
    """
    name, several = header.objective, header.n_outputs > 1
    if name not in OBJECTIVES:
        what = f"'{name:.40}' is not among those known ({', '.join(OBJECTIVES)})"
        raise unsupported("objective", what, "train with one of these")
    if name == "reg:expectileerror" and several:
        what = f"{header.n_outputs} expectiles, each of which adds to those before it"
        raise unsupported("expectile_alpha", what, "train one model for each")
    if name == "reg:quantileerror" and several and header.version >= (3, 4):
        return "sorted", "identity"
    return OBJECTIVES[name]


def base_margin(header: Header, space: BaseSpace) -> Array:
    """Return the base score in margin space, float32 (C,), computed as XGBoost does."""
    score = header.base_score
    if np.isnan(score).any():
        raise damaged("base_score", "not a number")
    if not header.has_estimate and space != "identity":
        if header.version < (3, 1):
            what = f"an estimate that XGBoost {header.release} never made, but 3.1 asks for"
            raise unsupported("base_score", what, "train one round")
    elif header.version >= (1,):  # before, the file holds the margin itself
        if space == "logit":
            score = _logit(score, header)
        elif space == "log":
            score = _log(score)
        elif header.objective == "binary:logitraw" and header.version < (2,):
            what = f"binary:logitraw of XGBoost {header.release} means another number since 2.0"
            raise unsupported("base_score", what, "train again with XGBoost 2.0 or newer")
    return np.broadcast_to(score, header.n_outputs).astype(np.float32)


def _logit(score: Array, header: Header) -> Array:
    low, high, shown = _LOGISTIC_EPS, np.float32(1) - _LOGISTIC_EPS, ", ".join(map(str, score))
    if np.any((score < 0) | (score > 1)):
        raise damaged("base_score", f"expected 0 to 1, got {shown}")
    bounded = np.clip(score, low, high)
    if header.version < (3, 2) and np.any(bounded != score):
        what = f"{shown} from XGBoost {header.release} means another number since 3.2"
        raise unsupported("base_score", what, f"train with a base_score between {low} and {high}")
    return -_logf(np.float32(1) / bounded - np.float32(1))


def _log(score: Array) -> Array:
    if np.any(score < 0):
        raise damaged("base_score", f"expected 0 or more, got {', '.join(map(str, score))}")
    return _logf(score)


def _logf(values: Array) -> Array:
    logf = find_logf()
    return np.array([logf(float(value)) for value in values], np.float32)


@cache
def find_logf() -> Callable[[float], float]:
    """Return the C library's logf, which XGBoost calls; if it has none, Python's logarithm."""
    logf = find_c_function("log", "float32")
    return logf or (lambda value: math.log(value) if value else -math.inf)
