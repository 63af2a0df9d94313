"""XGBoost models: files of 0.90 to 3.x, boosters and the estimators of its scikit-learn interface.

takes: bytes, Booster or fitted estimator; gives: Forest.

XGBoost adds float32 leaves to a float32 base score, in tree order, and compares float32 rows by
`<`. The header says what else is needed: which function of the base score the sum starts from, what
turns margins into values, which class a tree adds to.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import ForestError, ModelFormatError
from ..forest import Array, CategoryRule, Forest, LabelRule, Link
from .from_treelite import node_arrays
from .refusals import damaged, unsupported
from .support import Support, accepted, linked, refused
from .xgboost_header import BOOSTERS, Format, Header, dotted, even_rounds, is_binary, read_header
from .xgboost_trees import without_names, without_weights

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
_UPDATE = "update treelite; else the file is damaged"
_LOGISTIC_EPS = np.float32(1e-6)


@dataclass(frozen=True)
class _Objective:
    """What an objective does to the base score and to the margins."""

    link: Link = "identity"
    base: Base = "identity"


_OBJECTIVES = {
    "reg:squarederror": _Objective(),
    "reg:linear": _Objective(),
    "reg:squaredlogerror": _Objective(),
    "reg:pseudohubererror": _Objective(),
    "reg:absoluteerror": _Objective(),
    "reg:quantileerror": _Objective(),
    "reg:logistic": _Objective("sigmoid", "logit"),
    "binary:logistic": _Objective("sigmoid", "logit"),
    "binary:logitraw": _Objective(),
    "binary:hinge": _Objective("step"),
    "count:poisson": _Objective("exp", "log"),
    "reg:gamma": _Objective("exp", "log"),
    "reg:tweedie": _Objective("exp", "log"),
    "survival:cox": _Objective("exp", "log"),
    "survival:aft": _Objective("exp", "log"),
    "multi:softmax": _Objective("softmax"),
    "multi:softprob": _Objective("softmax"),
    "rank:pairwise": _Objective(),
    "rank:ndcg": _Objective(),
    "rank:map": _Objective(),
}
_REFUSED = {
    "objective": "any other",
    "booster": "gblinear; dart estimators of XGBoost before 3.0 or after 3.2",
    "num_target": "several targets of several classes; several targets in the binary format",
    "num_class": "an estimator of 2 classes with one output for each, by multi:softprob",
    "base_score": "binary:logitraw before 2.0; 0, 1 or nearly so before 3.2 with a logistic link",
    "version": "categories of XGBoost before 1.7",
    "leaf_weights": "vector leaves of XGBoost before 3.2",
    "weight_drop": "weighted trees in gbtree, of XGBoost after 3.2",
}


def support() -> list[Support]:
    """Return what is accepted and refused."""
    return [
        *accepted("xgboost", "format", ("JSON", "UBJSON"), "XGBoost 1.0 to 3.x"),
        *accepted("xgboost", "format", ["binary"], "XGBoost 0.90 to 2.0"),
        *accepted("xgboost", "object", _KINDS),
        *accepted("xgboost", "booster", BOOSTERS),
        *linked("xgboost", "objective", {name: o.link for name, o in _OBJECTIVES.items()}),
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
    return _forest(data, kind, header, header.n_trees, _booster_labels(header, np.float32))


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
        return _forest(data, form, header, n_trees, labels)
    n_trees = _best_trees(model, booster, header)
    forest = _forest(data, form, header, n_trees, labels, in_place=True)
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
        ends = _even_rounds(header, getattr(model, "num_parallel_tree", None) or 1)
    if not best.isdecimal() or int(best) >= len(ends):
        what = f"expected one of {len(ends)} rounds, got '{best}'"
        raise damaged(header.where, "best_iteration", what)
    return ends[int(best)]


def _even_rounds(header: Header, parallel: int) -> tuple[int, ...]:
    return even_rounds(header.n_trees, parallel * header.n_outputs)


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
    if model.n_classes_ == 2:
        what = f"a classifier of 2 classes with {header.n_outputs} outputs predicts no class"
        remedy = "give model.get_booster(), which predicts probabilities"
        raise unsupported(header.where, "num_class", what, remedy)
    return "argmax_probability", np.arange(header.n_outputs, dtype=np.int64)


# -- base score -----------------------------------------------------------------------------------


def _base_margin(header: Header, objective: _Objective) -> Array:
    """Base score in margin space, float32 (C,), computed as XGBoost does."""
    score = header.base_score
    if np.isnan(score).any():
        raise damaged(header.where, "base_score", "not a number")
    if header.version >= (1,):  # before, the file holds the margin itself
        if objective.base == "logit":
            score = _logit(score, header)
        elif objective.base == "log":
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


def _forest(
    data: bytes,
    kind: Format,
    header: Header,
    n_trees: int,
    labels: Labels,
    in_place: bool = False,
) -> Forest:
    """Put header and trees together; estimators predict `in_place`, which DART rounds otherwise."""
    objective = _OBJECTIVES.get(header.objective)
    if objective is None:
        what = f"'{header.objective:.40}' is not among those known ({', '.join(_OBJECTIVES)})"
        raise unsupported(header.where, "objective", what, "train with one of these")
    base_score = _base_margin(header, objective)
    if header.category_names:
        data = without_names(data, kind)
    weights = _weights_in_place(header) if in_place else None
    if weights is not None:
        data = without_weights(data, header.n_trees)  # an object saves itself as UBJSON
    model = _treelite(data, kind, header.where)
    trees = [model.get_tree_accessor(tree) for tree in range(n_trees)]
    width = int(model.get_header_accessor().get_field("leaf_vector_shape").prod())
    arrays = node_arrays(trees, header.where, width, header.node_ids)
    if weights is not None:
        arrays["leaf_value"] = _dart_in_place(arrays, weights, base_score[header.tree_class])
    ends = header.round_ends or _even_rounds(header, 1)
    try:
        return Forest(
            **arrays,
            tree_class=header.tree_class[:n_trees].astype(np.int32),
            tree_id=np.arange(n_trees, dtype=np.int32),
            base_score=base_score,
            n_features=header.n_features,
            category_rule=CategoryRule("right") if arrays.get("categories") else None,
            category_names=header.category_names,
            absent=math.nan,
            in_place=weights is not None,
            refuses=("category",) if header.category_names else (),
            comparison="<",
            row_dtype="float32",
            link=objective.link,
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


def _weights_in_place(header: Header) -> Array | None:
    """The weights of DART trees; None for other boosters."""
    if header.booster == "dart" and not (3,) <= header.version < (3, 3):
        what = f"'dart' estimators of XGBoost {dotted(header.version)} round in an unknown way"
        raise unsupported(header.where, "booster", what, "give model.get_booster()")
    return header.tree_weights


def _dart_in_place(arrays: dict[str, Any], weights: Array, base: Array) -> Array:
    """Leaf values (N, 1) as `inplace_predict` adds them, for weights and base scores of the trees.

    XGBoost adds the base score to the leaf and takes it off again before it multiplies.
    """
    sizes = np.diff(arrays["tree_offset"])
    base, weights = (np.repeat(each[: len(sizes)], sizes)[:, None] for each in (base, weights))
    return (arrays["leaf_value"] + base - base) * weights


def _treelite(data: bytes, kind: Format, where: str) -> Any:
    """Let treelite read the trees; what it prints and raises becomes one error of ours."""
    import treelite

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "ubjson":
                return treelite.frontend.from_xgboost_ubjson(data)
            if kind == "json":
                # Its error message shows 50 bytes behind an error without looking for the end.
                return treelite.frontend.from_xgboost_json(data + b" " * 64)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model"
                path.write_bytes(data)
                return treelite.frontend.load_xgboost_model_legacy_binary(path)
    except (treelite.TreeliteError, ValueError) as error:
        raise _explained(f"{printed.getvalue()}\n{error}", where) from None


def _explained(text: str, where: str) -> ForestError:
    key = re.search(r'key "(.*?)" is not recognized', text)
    if key:
        return unsupported(where, key[1], "unknown to treelite", _UPDATE)
    objective = re.search(r"Unrecognized XGBoost objective: (\S+)", text)
    if objective:
        return unsupported(where, "objective", f"'{objective[1]}' is unknown to treelite", _UPDATE)
    return damaged(where, "trees", f"treelite cannot read them ({_reason(text)})")


def _reason(text: str) -> str:
    """First line of a message of a library, without its time and source file."""
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[\S+\] \S+: ", "", line)[:200]
