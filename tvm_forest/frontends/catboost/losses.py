"""What a loss of CatBoost does to margins, and how its classes are told apart.

takes: the part `model_info` of a document; gives: fields of Forest.

Which value `predict` gives is decided by the class of the object: a `CatBoost` gives margins, a
classifier gives labels, a regressor gives `exp` of the margins for counts and a variance for
uncertainty, a ranker gives margins. A file is taken as an object of the class that fits its loss.

Refused are losses that are not known, and classifiers whose labels the file does not hold.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import numpy as np

from ...forest import Array, Link
from ..refusals import damaged, unsupported
from .document import Document, take

Kind = Literal["margins", "classifier", "regressor", "by loss"]
"""What a model is taken as: a `CatBoost` or ranker, an estimator, or what its loss says."""

CLASSES: dict[str, Link] = {
    **dict.fromkeys(("Logloss", "CrossEntropy", "Focal"), "sigmoid"),
    **dict.fromkeys(("MultiLogloss", "MultiCrossEntropy", "MultiClassOneVsAll"), "sigmoid"),
    "MultiClass": "coarse_softmax",
}
_SEVERAL = ("MultiLogloss", "MultiCrossEntropy")
"""Losses of several labels, each of which is there or not."""
NUMBERS: dict[str, Link] = {
    **dict.fromkeys(
        (
            *("RMSE", "MAE", "Quantile", "MultiQuantile", "Expectile", "LogLinQuantile", "MAPE"),
            *("Lq", "Huber", "LogCosh", "RMSPE", "MultiRMSE", "MultiRMSEWithMissingValues"),
            *("SurvivalAft", "Cox", "GroupQuantile"),
        ),
        "identity",
    ),
    **dict.fromkeys(("Poisson", "Tweedie"), "coarse_exp"),
    "RMSEWithUncertainty": "variance",
}
RANKS = (
    *("YetiRank", "YetiRankPairwise", "PairLogit", "PairLogitPairwise", "QueryRMSE"),
    *("QuerySoftMax", "QueryCrossEntropy", "StochasticFilter", "StochasticRank", "LambdaMart"),
)
_OWN = ("PythonUserDefinedPerObject", "PythonUserDefinedMultiTarget", "")
"""Losses of the user's own; a sum of models may have none."""
_KNOWN = (*CLASSES, *NUMBERS, *RANKS)
_MAX_CLASSES = 2**16
_LABEL_TYPES = {"Integer": int, "Float": float, "String": str, "Boolean": bool}


def read_loss(info: Document) -> str:
    """Return the name of the loss, empty if there is none.

    Raises:
        UnsupportedModel: it is not among those known.
    """
    holder = info if "loss_function" in info else take(info, "params", dict, {})
    loss = take(holder, "loss_function", object, {"type": ""})
    if isinstance(loss, str):  # of a sum of models
        try:
            loss = json.loads(loss)
        except ValueError as error:
            raise damaged("loss_function", f"no valid JSON ({error})") from None
    name: str = take(loss, "type", str)
    if name not in (*_KNOWN, *_OWN):
        what = f"'{name:.40}' is not among those known ({', '.join(_KNOWN)})"
        raise unsupported("loss_function", what, "train with one of these")
    return name


def read_outputs(info: Document, loss: str, kind: Kind, n_outputs: int) -> dict[str, Any]:
    """Return link, labels and targets."""
    if kind == "by loss":
        kind = "classifier" if loss in CLASSES else "regressor"
    if kind == "regressor":
        return {"link": NUMBERS.get(loss, "identity")}
    if kind == "margins":
        return {}
    if loss not in CLASSES:
        what = f"a classifier of the loss '{loss}'"
        raise unsupported("loss_function", what, "give catboost.to_regressor(model), or a file")
    labels, link = _read_labels(info, loss, n_outputs), CLASSES[loss]
    if link == "coarse_softmax" or loss == "MultiClassOneVsAll":
        return {
            "link": link,
            "labels": labels,
            "label_rule": "argmax_margin",
            "targets": (n_outputs,),  # labels come as a column
        }
    if loss in _SEVERAL:
        labels = np.arange(2)
    return {
        "link": link,
        "labels": labels,
        "label_rule": "cut",
        "label_cut": math.nextafter(_read_cut(info), math.inf),
    }


def _read_cut(info: Document) -> float:
    """Return the margin above which the second label is chosen."""
    if "binclass_probability_threshold" not in info:
        return 0.0
    text = take(info, "binclass_probability_threshold", str)
    try:
        chance = float(text)
        return math.log(chance / (1 - chance))
    except (ValueError, ZeroDivisionError):
        what = f"expected a number between 0 and 1, got '{text:.40}'"
        raise damaged("binclass_probability_threshold", what) from None


def widen(info: Document, loss: str, values: Array, base_score: Array) -> tuple[Array, Array]:
    """Add the classes without training rows, whose margins are -inf, to leaf values and biases.

    A model has them if it was told by `classes_count` or `class_names`. Classes that CatBoost puts
    into another order are refused.
    """
    params = take(info, "class_params", dict, {})
    count = take(params, "classes_count", int, 0) or len(take(params, "class_names", list, []))
    seen = take(params, "class_to_label", list, [])
    if loss not in CLASSES or loss in _SEVERAL or not seen:
        return values, base_score
    count, trained = max(count, len(seen)), max(2, len(base_score))
    known = sorted({x for x in seen if type(x) is int and 0 <= x < count})
    if len(seen) != trained or seen != known or count > _MAX_CLASSES:
        what = f"class_to_label {seen!r:.80} is not {trained} of {count} classes in their order"
        raise unsupported("class_params", what, "train with the classes that the labels have")
    if count == trained:
        return values, base_score
    wide, base = np.zeros((len(values), count), values.dtype), np.full(count, -np.inf)
    wide[:, seen], base[seen] = values, base_score
    return wide, base


def _read_labels(info: Document, loss: str, n_outputs: int) -> Array:
    """Return the labels in the dtype that CatBoost gives."""
    params = take(info, "class_params", dict, {})
    names = take(params, "class_names", list, [])
    kind = take(params, "class_label_type", str, "Integer")
    count = max(2, n_outputs)
    if loss == "CrossEntropy" and not names:
        names, kind = [0, 1], "Integer"
    if not names and take(params, "classes_count", int, 0) == count:  # labels are their numbers
        names, kind = list(range(count)), "Integer"
    if kind not in _LABEL_TYPES or not names:
        raise unsupported("class_params", "the labels of the classes are not told", "save it again")
    if len(names) != count:
        raise damaged("class_names", f"{len(names)} labels for {count} classes")
    types = {int, float} if kind == "Float" else {_LABEL_TYPES[kind]}
    if not set(map(type, names)) <= types:
        raise damaged("class_names", f"expected labels of the kind {kind}, got {names!r:.80}")
    dtype = {"String": object, "Integer": np.int64, "Float": np.float64, "Boolean": bool}[kind]
    return np.array(names, dtype)
