"""XGBoost models: files of 0.90 to 3.x, boosters and the estimators of its scikit-learn interface.

takes: bytes, Booster or fitted estimator; gives: Forest.

XGBoost adds float32 leaves to a float32 base score, in tree order, and compares float32 rows by
`<`. The header says what else is needed: which function of the base score the sum starts from, what
turns margins into values, which class a tree adds to.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np

from ...errors import ModelFormatError
from ...forest import LEAF, Array, CategoryRule, Forest, LabelRule, Link
from ..refusals import damaged, unsupported
from ..support import Support, accepted, linked, refused
from .binary import is_binary
from .header import BOOSTERS, Format, Header, dotted, even_rounds, read_header

Base = Literal["identity", "logit", "log"]
Labels = tuple[LabelRule, Array | None]
Kind = Literal["Booster", "XGBClassifier", "XGBRegressor", "XGBRanker"]

_KINDS: dict[str, Kind] = {
    "Booster": "Booster",
    "XGBClassifier": "XGBClassifier",
    "XGBRFClassifier": "XGBClassifier",
    "XGBRegressor": "XGBRegressor",
    "XGBRFRegressor": "XGBRegressor",
    "XGBRanker": "XGBRanker",
}
_LOGISTIC_EPS = np.float32(1e-6)


_IDENTITY = (
    "reg:squarederror reg:linear reg:squaredlogerror reg:pseudohubererror reg:absoluteerror "
    "reg:quantileerror binary:logitraw rank:pairwise rank:ndcg rank:map"
)
_LOG = "count:poisson reg:gamma reg:tweedie survival:cox survival:aft"
_OBJECTIVES: dict[str, tuple[Link, Base]] = {
    **dict.fromkeys(_IDENTITY.split(), ("identity", "identity")),
    **dict.fromkeys(("reg:logistic", "binary:logistic"), ("sigmoid", "logit")),
    **dict.fromkeys(_LOG.split(), ("exp", "log")),
    **dict.fromkeys(("multi:softmax", "multi:softprob"), ("softmax", "identity")),
    "binary:hinge": ("step", "identity"),
}
"""What an objective does to the margins, and to the base score."""
_REFUSED = {
    "objective": "any other",
    "booster": "gblinear; dart estimators of XGBoost before 3.0",
    "num_target": "several targets of several classes; several targets in the binary format",
    "num_class": "an estimator of 2 classes with one output for each, by multi:softprob, or of "
    "several labels that are all 0",
    "base_score": "binary:logitraw before 2.0; 0, 1 or nearly so before 3.2 with a logistic link; "
    "no trees before 3.1 with a link",
    "version": "categories of XGBoost before 1.7",
    "leaf_weights": "vector leaves of XGBoost before 3.2",
    "weight_drop": "weighted trees in gbtree of XGBoost before 3.3",
}


def support() -> list[Support]:
    """Return what is accepted and refused."""
    return [
        *accepted("xgboost", "format", ("JSON", "UBJSON"), "XGBoost 1.0 to 3.x"),
        *accepted("xgboost", "format", ["binary"], "XGBoost 0.90 to 2.0"),
        *accepted("xgboost", "object", _KINDS),
        *accepted("xgboost", "booster", BOOSTERS),
        *linked("xgboost", "objective", {name: link for name, (link, _) in _OBJECTIVES.items()}),
        *refused("xgboost", _REFUSED),
    ]


def format_of(data: bytes) -> Format | None:
    """Return the format of a model file by its content, or None if it is none of XGBoost's."""
    if is_binary(data):
        return "binary"
    head = data[:64].lstrip()
    if not head.startswith(b"{"):
        return None
    return "ubjson" if head[1:2] in b"iUIlL$#N" and len(head) > 1 else "json"


def kind_of(model: Any) -> Kind | None:
    """Return what kind of XGBoost object this is, by names, without importing xgboost."""
    for cls in type(model).__mro__:
        if cls.__module__.split(".")[0] == "xgboost" and cls.__name__ in _KINDS:
            return _KINDS[cls.__name__]
    return None


def from_bytes(data: bytes, kind: Format, where: str) -> Forest:
    """Load the content of a model file."""
    header = read_header(data, kind, where)
    return _forest(header, header.n_trees, _booster_labels(header, np.float32))


def from_object(model: Any, kind: Kind) -> Forest:
    """Load a Booster or a fitted estimator.

    An estimator predicts with the trees up to its best iteration, a Booster with all.
    """
    where = f"xgboost {type(model).__name__}"
    try:
        booster = model if kind == "Booster" else model.get_booster()
        data = _raw(booster)
    except ValueError as error:  # XGBoostError and NotFittedError are both
        reason = _reason(str(error))
        raise damaged(where, "model", f"holds no trained model ({reason})", "train it") from None
    form = format_of(data)
    if form is None:
        raise damaged(where, "model", "saves itself in an unknown format", "use XGBoost 1.0 to 3.x")
    header = read_header(data, form, where)
    labels, n_trees = _booster_labels(header, np.float32), header.n_trees
    if kind == "XGBClassifier":
        labels = _classifier_labels(model, header)
    if kind == "Booster":
        return _forest(header, n_trees, labels)
    n_trees = _best_trees(model, booster, header)
    forest = _forest(header, n_trees, labels, in_place=True)
    return replace(forest, missing=_missing(model))


def _raw(booster: Any) -> bytes:
    """Bytes of a Booster, through the same formats as files."""
    try:
        return bytes(booster.save_raw(raw_format="ubj"))
    except TypeError:  # before XGBoost 1.6
        return bytes(booster.save_raw())


def _missing(model: Any) -> float | None:
    """The number that an estimator takes for missing, beside nan."""
    missing = getattr(model, "missing", None)
    with np.errstate(over="ignore"):
        return None if missing is None or math.isnan(missing) else float(np.float32(missing))


def _best_trees(model: Any, booster: Any, header: Header) -> int:
    best = booster.attr("best_iteration")
    if best is None:
        return header.n_trees
    ends = header.round_ends
    if ends is None:  # before XGBoost 1.6 the model does not tell
        parallel = getattr(model, "num_parallel_tree", None) or 1
        ends = even_rounds(header.n_trees, parallel * header.n_outputs)
    if not best.isdecimal() or int(best) >= len(ends):
        what = f"expected one of {len(ends)} rounds, got '{best}'"
        raise damaged(header.where, "best_iteration", what)
    return ends[int(best)]


# -- labels ---------------------------------------------------------------------------------------


def _booster_labels(header: Header, dtype: type[np.generic]) -> Labels:
    if header.objective == "multi:softmax":
        return "argmax_margin", np.arange(header.n_outputs, dtype=dtype)
    return "none", None


def _classifier_labels(model: Any, header: Header) -> Labels:
    if header.objective == "multi:softmax":
        return _booster_labels(header, np.int32)
    if header.n_outputs == 1:
        return "half", np.arange(2, dtype=np.int64)
    if model.n_classes_ == 2 and not header.objective.startswith("multi:"):
        return "half", np.arange(2, dtype=np.float64)  # several labels, each there or not
    if model.n_classes_ <= 2:
        classes = "1 class" if model.n_classes_ == 1 else f"{model.n_classes_} classes"
        what = f"a classifier of {classes} with {header.n_outputs} outputs predicts no class"
        remedy = "give model.get_booster(), which predicts probabilities"
        raise unsupported(header.where, "num_class", what, remedy)
    return "argmax_probability", np.arange(header.n_outputs, dtype=np.int64)


# -- base score -----------------------------------------------------------------------------------


def _base_margin(header: Header, base: Base) -> Array:
    """Base score in margin space, float32 (C,), computed as XGBoost does."""
    score = header.base_score
    if np.isnan(score).any():
        raise damaged(header.where, "base_score", "not a number")
    if not header.has_estimate and base != "identity":
        if header.version < (3, 1):
            what = f"an estimate that XGBoost {dotted(header.version)} never made, but 3.1 asks for"
            raise unsupported(header.where, "base_score", what, "train one round")
    elif header.version >= (1,):  # before, the file holds the margin itself
        if base == "logit":
            score = _logit(score, header)
        elif base == "log":
            score = _log_base(score, header)
        elif header.objective == "binary:logitraw" and header.version < (2,):
            what = f"binary:logitraw of XGBoost {dotted(header.version)} means another number"
            remedy = "train again with XGBoost 2.0 or newer"
            raise unsupported(header.where, "base_score", f"{what} since 2.0", remedy)
    return np.broadcast_to(score, header.n_outputs).astype(np.float32)


def _logit(score: Array, header: Header) -> Array:
    low, high = _LOGISTIC_EPS, np.float32(1) - _LOGISTIC_EPS
    if np.any((score < 0) | (score > 1)):
        raise damaged(header.where, "base_score", f"expected 0 to 1, got {_plain(score)}")
    bounded = np.clip(score, low, high)
    if header.version < (3, 2) and np.any(bounded != score):
        what = (
            f"{_plain(score)} from XGBoost {dotted(header.version)} means another number since 3.2"
        )
        remedy = f"train with a base_score between {low} and {high}"
        raise unsupported(header.where, "base_score", what, remedy)
    return -_logf(np.float32(1) / bounded - np.float32(1))


def _log_base(score: Array, header: Header) -> Array:
    if np.any(score < 0):
        raise damaged(header.where, "base_score", f"expected 0 or more, got {_plain(score)}")
    return _logf(score)


def _logf(values: Array) -> Array:
    logf = _libm_logf()
    return np.array([logf(float(value)) for value in values], np.float32)


@cache
def _libm_logf() -> Callable[[float], float]:
    """Return the C library's logf, which XGBoost calls; else the rounded double logarithm."""
    try:
        logf = ctypes.CDLL(None).logf
    except (OSError, TypeError, AttributeError):
        return lambda value: math.log(value) if value else -math.inf
    logf.restype, logf.argtypes = ctypes.c_float, [ctypes.c_float]
    found: Callable[[float], float] = logf
    return found


def _plain(score: Array) -> str:
    return ", ".join(str(value) for value in score)


# -- trees ----------------------------------------------------------------------------------------


def _forest(header: Header, n_trees: int, labels: Labels, in_place: bool = False) -> Forest:
    """Put header and trees together; estimators predict `in_place`, which DART rounds otherwise."""
    if header.objective not in _OBJECTIVES:
        what = f"'{header.objective:.40}' is not among those known ({', '.join(_OBJECTIVES)})"
        raise unsupported(header.where, "objective", what, "train with one of these")
    link, base = _OBJECTIVES[header.objective]
    base_score = _base_margin(header, base)
    arrays = header.trees.first(n_trees).node_arrays()
    if arrays["categories"] and header.version < (1, 7):
        what = "unknown categories mean another thing since 1.7, got XGBoost "
        remedy = "train again with XGBoost 1.7 or newer"
        raise unsupported(header.where, "version", what + dotted(header.version), remedy)
    if header.tree_weights is not None:
        arrays["leaf_value"] = _weighted(arrays, header, base_score, in_place)
    ends = header.round_ends or even_rounds(header.n_trees, header.n_outputs)
    try:
        return Forest(
            **arrays,
            tree_class=header.tree_class[:n_trees].astype(np.int32),
            tree_id=np.arange(n_trees, dtype=np.int32),
            base_score=base_score,
            n_features=header.n_features,
            category_rule=CategoryRule("right") if arrays["categories"] else None,
            category_names=header.category_names,
            absent=math.nan,
            in_place=in_place and header.tree_weights is not None and header.version < (3, 3),
            refuses=("category",) if header.category_names else (),
            comparison="<",
            row_dtype="float32",
            link=link,
            label_rule=labels[0],
            labels=labels[1],
            leaf_id_dtype="float32",
            feature_names=header.feature_names,
            n_rounds=int(np.searchsorted(ends, n_trees)) + 1 if n_trees else 0,
            tree_round=np.searchsorted(ends, np.arange(n_trees), side="right").astype(np.int32),
            source=f"xgboost {header.objective}",
        )
    except ModelFormatError as error:
        raise ModelFormatError(f"{header.where}: field 'trees': {error}") from None


@np.errstate(over="ignore", invalid="ignore")
def _weighted(arrays: dict[str, Array], header: Header, base: Array, in_place: bool) -> Array:
    """Leaf values (N, W) times the weights of their trees, as XGBoost rounds them.

    Before 3.3 it adds a leaf to what a sum begins with, and multiplies what this sum is more than
    that: the base score for `inplace_predict`, otherwise zero, to which it only adds.
    """
    assert header.tree_weights is not None
    leaf, sizes = arrays["leaf_value"], np.diff(arrays["tree_offset"])
    weights, tree_class = (x[: len(sizes)] for x in (header.tree_weights, header.tree_class))
    if header.version < (3, 3) and in_place:
        if header.version < (3,):
            what = f"'dart' estimators of XGBoost {dotted(header.version)} round in an unknown way"
            raise unsupported(header.where, "booster", what, "give model.get_booster()")
        start = np.repeat(base[tree_class], sizes)[:, None]
        leaf = leaf + start - start
    elif header.version < (3, 3):
        leaf = leaf + np.float32(0)
    leaf = leaf * np.repeat(weights, sizes)[:, None]
    return np.where(arrays["left"][:, None] == LEAF, leaf, np.float32(0))


def _reason(text: str) -> str:
    """First line of a message of a library, without its time and source file."""
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[\S+\] \S+: ", "", line)[:200]
