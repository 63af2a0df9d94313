"""The links and class rules of CatBoost's loss functions.

takes: the part `model_info` of a document; gives: fields of Forest.

The class of the object decides what `predict` returns: a `CatBoost` returns margins, a classifier
labels, a ranker margins, and a regressor margins, or their `exp` for losses of counts, or a mean
and a variance for a loss with uncertainty. A file is read as an object of the class that fits its
loss.

Unknown losses are refused.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from ...forest import Array, Link
from ..refusals import damaged, unsupported
from .document import Document, as_numbers, take, take_written

Kind = Literal["margins", "classifier", "regressor", "by loss"]
"""The kind of a model: "margins" for a `CatBoost` or ranker, "by loss" for a file."""

CLASSES: dict[str, Link] = {
    **dict.fromkeys(("Logloss", "CrossEntropy", "Focal"), "sigmoid"),
    **dict.fromkeys(("MultiLogloss", "MultiCrossEntropy", "MultiClassOneVsAll"), "sigmoid"),
    "MultiClass": "coarse_softmax",
}
_SEVERAL = ("MultiLogloss", "MultiCrossEntropy")
"""Loss functions of several independent labels."""
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
"""User-defined loss functions, and "", since a sum of models may lack a loss function."""
_KNOWN = (*CLASSES, *NUMBERS, *RANKS)
_MAX_CLASSES = 2**16
_LABEL_TYPES = {"Integer": int, "Float": float, "String": str, "Boolean": bool}


def read_loss(info: Document) -> str:
    """Return the name of the loss function, "" if the model has none.

    Raises:
        UnsupportedModel: the loss is unknown.
    """
    holder = info if "loss_function" in info else take_written(info, "params")
    loss = take_written(holder, "loss_function") or {"type": ""}
    name: str = take(loss, "type", str)
    if name not in (*_KNOWN, *_OWN):
        what = f"'{name:.40}' is not among those known ({', '.join(_KNOWN)})"
        raise unsupported("loss_function", what, "train with one of these")
    return name


def read_outputs(info: Document, loss: str, kind: Kind, n_outputs: int) -> dict[str, Any]:
    """Return fields of the Forest that the loss and the object's kind decide, such as the link.

    Other such fields are the labels, the rule that chooses one, and the targets.
    """
    if kind == "by loss":
        kind = "classifier" if loss in CLASSES else "regressor"
    if kind == "regressor":
        return {"link": NUMBERS.get(loss, "identity")}
    if kind == "margins" and loss not in CLASSES:
        return {}
    if loss not in CLASSES:
        what = f"a classifier of the loss '{loss}'"
        raise unsupported("loss_function", what, "give catboost.to_regressor(model), or a file")
    labels = np.arange(2) if loss in _SEVERAL else _read_labels(info, n_outputs)
    cut = math.nextafter(_read_cut(info), math.inf)
    if kind == "margins":  # its labels are returned only for a prediction type
        return {"labels": labels, "label_cut": cut}
    found: dict[str, Any] = {"link": CLASSES[loss], "labels": labels}
    if loss in ("MultiClass", "MultiClassOneVsAll"):  # a target, since labels come as a column
        return {**found, "label_rule": "top_margin", "targets": (n_outputs,)}
    return {**found, "label_rule": "cut", "label_cut": cut}


def _read_cut(info: Document) -> float:
    """Return the margin above which the second label is chosen; 0 if the model has no threshold."""
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
    """Return leaf values and biases with an output for each label, also of labels without rows.

    If `classes_count` or `class_names` was given in training, a model may have labels that no
    training row has. The file stores no outputs for them; here their biases are -inf.

    Args:
        info: the part `model_info` of the document.
        loss: name of the loss function.
        values: float64 (N, C), leaf values with the outputs that the file stores.
        base_score: float64 (C,), their biases.

    Raises:
        UnsupportedModel: the labels of the outputs contradict the list of classes.
    """
    params = _take_class_params(info)
    count = max(take(params, "classes_count", int, 0), len(take(params, "class_names", list, [])))
    seen = take(params, "class_to_label", list, [])
    if loss not in CLASSES or loss in _SEVERAL or not seen or not count:
        return values, base_score
    trained = max(2, len(base_score))
    known = {x for x in seen if type(x) in (int, float) and x in range(count)}
    if not len(seen) == len(known) == trained or count > _MAX_CLASSES:
        what = f"class_to_label {seen!r:.80} is not {trained} of {count} classes"
        raise unsupported("class_params", what, "train with the classes that the labels have")
    if len(base_score) == 1 or seen == list(range(count)):
        return values, base_score
    wide, base = np.zeros((len(values), count), values.dtype), np.full(count, -np.inf)
    places = np.array(seen, np.int64)
    wide[:, places], base[places] = values, base_score
    return wide, base


def _take_class_params(info: Document) -> Document:
    """Return the member that describes the classes; CatBoost 0.20 gave it another name."""
    name = next((x for x in ("class_params", "multiclass_params") if x in info), "class_params")
    return take_written(info, name)


def _read_labels(info: Document, n_outputs: int) -> Array:
    """Return the labels in CatBoost's dtype; if the model does not name them, they are numbers."""
    params, count = _take_class_params(info), max(2, n_outputs)
    names, kind = take(params, "class_names", list, []), None
    if names:
        kind = take(params, "class_label_type", str, "String").replace("None", "String")
    elif take(params, "classes_count", int, 0):
        names = list(range(min(take(params, "classes_count", int), count + 1)))
    elif take(params, "class_to_label", list, []):
        names = as_numbers(params["class_to_label"], "class_to_label").astype(np.int64).tolist()
    else:
        options = take(take_written(info, "params"), "data_processing_options", dict, {})
        names = take(options, "class_names", list, []) or list(range(count))
    kind = kind or next((k for k, own in _LABEL_TYPES.items() if type(names[0]) is own), "String")
    if kind not in _LABEL_TYPES:
        raise unsupported("class_params", f"labels of the kind '{kind:.40}'", "train with texts")
    if len(names) != count:
        raise damaged("class_names", f"{len(names)} labels for {count} classes")
    types = {int, float} if kind == "Float" else {_LABEL_TYPES[kind]}
    if not set(map(type, names)) <= types:
        raise damaged("class_names", f"expected labels of the kind {kind}, got {names!r:.80}")
    dtype = {"String": object, "Integer": np.int64, "Float": np.float64, "Boolean": bool}[kind]
    return np.array(names, dtype)
