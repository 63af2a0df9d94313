"""Loads LightGBM models: text files, boosters and estimators of its scikit-learn interface.

takes: bytes, Booster or fitted estimator; gives: Forest.

LightGBM adds float64 leaves in tree order and compares float64 rows by `<=`. It takes values within
1e-35 of zero for zero, except in sparse matrices. Each node stores where a missing value goes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...forest import CategoryRule, Forest, LabelRule, Link
from ...forest.rules import ZERO
from ..assemble import build_forest
from ..objects import find_class
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .nodes import read_nodes
from .text import VERSIONS, ModelText, read_text

_OBJECTS = ("Booster", "LGBMClassifier", "LGBMModel")  # the last are regressors and rankers
_LINKS: dict[str, Link] = {
    **dict.fromkeys(
        ("regression", "regression_l1", "huber", "fair", "quantile", "mape"), "identity"
    ),
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "exp"),
    "binary": "sigmoid",
    "multiclass": "softmax",
    **dict.fromkeys(("multiclassova", "cross_entropy"), "sigmoid"),
    "cross_entropy_lambda": "log1p_exp",
    **dict.fromkeys(("lambdarank", "rank_xendcg", ""), "identity"),  # "" is a user's own objective
}
_OPTIONS = {  # that may follow the name of an objective
    "binary": {"sigmoid"},
    "multiclass": {"num_class"},
    "multiclassova": {"num_class", "sigmoid"},
} | dict.fromkeys(("regression", "regression_l1", "fair", "quantile", "mape"), {"sqrt"})

# LightGBM converts a category to an int32; numbers that do not fit become negative.
_CATEGORIES = CategoryRule("left", negative_fractions=True, highest=2**31)

SUPPORT = [
    *list_accepted(
        "lightgbm",
        "format",
        (f"text {version}" for version in VERSIONS),
        "LightGBM 2.0.3 and newer",
    ),
    *list_accepted("lightgbm", "object", _OBJECTS, "and what derives from it"),
    *list_linked("lightgbm", "objective", _LINKS),
    *list_accepted("lightgbm", "option", ("linear_tree", "reg_sqrt")),
    *list_refused(
        "lightgbm",
        objective="any other, and options that are not known",
        version="files of other versions",
        leaf_features="a term of a linear leaf whose feature has zeros that are missing",
        decision_type="zero is missing at some nodes of a feature, and not at others",
        average_output="a random forest without trees",
        sigmoid="a number in memory that the model's text rounds",
        pred_early_stop="an estimator that leaves trees out row by row",
        classes_="a number of classes that is not that of the outputs",
    ),
]


def from_bytes(data: bytes, name: str) -> Forest | None:
    """Load the content of a model file; return None if it is not LightGBM's.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    if not data.startswith((b"tree\n", b"tree\r")):
        return None
    with name_in_errors(f"lightgbm {name}"):
        return _build(read_text(data))


def from_object(model: Any) -> Forest | None:
    """Load a Booster or a fitted estimator, with the trees up to its best iteration.

    Return None for any other object.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    name = find_class(model, "lightgbm", _OBJECTS)
    if name is None:
        return None
    with name_in_errors(f"lightgbm {type(model).__name__}"):
        try:
            booster = model if name == "Booster" else model.booster_
        except ValueError as error:  # NotFittedError
            raise damaged("model", f"holds no trained model ({error})", "train it") from None
        forest = _build(read_text(booster.model_to_string().encode()))
        sigmoid = (booster.params or {}).get("sigmoid")
        has_option = "sigmoid" in _OPTIONS.get(forest.source.removeprefix("lightgbm "), ())
        if sigmoid is not None and has_option and float(sigmoid) != forest.link_scale:
            what = f"{sigmoid} in memory, but {forest.link_scale} when saved"
            raise unsupported("sigmoid", what, "train with a number of six digits")
        if name != "Booster" and model.get_params().get("pred_early_stop"):
            what = "expected False, got True, which leaves trees out row by row"
            raise unsupported("pred_early_stop", what, "give model.booster_")
        forest = _of_object(forest, model, name)
        left_out = booster.num_trees() // forest.n_outputs - forest.n_rounds
        if not left_out:
            return forest
        whole = _build(read_text(booster.model_to_string(num_iteration=-1).encode()))
        whole = _of_object(whole, model, name)
        return replace(forest, rounds_left_out=left_out, with_all_rounds=whole)


def _of_object(forest: Forest, model: Any, name: str) -> Forest:
    """Return the forest with what depends on the class of the loaded object, `name`.

    This is the dtype to which the object casts rows of Python objects, and a classifier's labels.
    """
    if name != "Booster":  # estimators check rows as scikit-learn does
        forest = replace(forest, object_dtype="float64")
    return _with_labels(forest, model) if name == "LGBMClassifier" else forest


def _with_labels(forest: Forest, model: Any) -> Forest:
    """Return the forest with a classifier's labels, unless it predicts margins."""
    labels = np.asarray(model.classes_)
    if callable(model.objective_):
        return forest
    if len(labels) == forest.n_outputs == 1:  # all training rows had the same label
        labels = np.repeat(labels, 2)
    if len(labels) != max(2, forest.n_outputs):
        what = f"{len(labels)} classes with {forest.n_outputs} outputs"
        raise unsupported("classes_", what, "train with one output per class, or one for 2")
    rule: LabelRule = "half" if forest.n_outputs == 1 else "argmax_probability"
    return replace(forest, label_rule=rule, labels=labels)


def _read_link(text: ModelText) -> tuple[Link, float]:
    """Return the link and `link_scale` of a model, by its objective and that one's options.

    An option is "sqrt" or "sigmoid:1", for example.
    """
    name, *words = text.objective or ("",)
    if name not in _LINKS:
        what = f"'{name:.40}' is not among those known ({', '.join(filter(None, _LINKS))})"
        raise unsupported("objective", what, "train with one of these")
    known = _OPTIONS.get(name, set())
    options = dict(word.partition(":")[::2] for word in words)
    unknown = options.keys() - known
    if unknown:
        what = f"option '{min(unknown)}' of '{name}' is not known"
        raise unsupported("objective", what, "train without it")
    whole = " ".join(text.objective)
    if options.get("num_class", "1") != str(text.n_outputs) and name:
        raise damaged("objective", f"'{whole}' with {text.n_outputs} classes")
    if "sqrt" in options:
        return "signed_square", 1.0
    try:
        scale = float(options.get("sigmoid", "nan" if "sigmoid" in known else "1"))
    except ValueError:
        scale = 0.0
    if not 0 < scale < np.inf:
        raise damaged("objective", f"expected a positive sigmoid, got '{whole}'")
    return _LINKS[name], scale


def _build(text: ModelText) -> Forest:
    link, scale = _read_link(text)
    n_trees = len(text.columns["num_leaves"])
    if text.averages and not n_trees:
        raise unsupported("average_output", "no trees to average", "train the model")
    sizes, nodes, rules = read_nodes(text)
    return build_forest(
        sizes,
        nodes,
        np.arange(n_trees) % text.n_outputs,
        category_rule=_CATEGORIES,
        base_score=np.zeros(text.n_outputs),
        sparse_above=float(ZERO),
        n_features=len(text.names),
        comparison="<=",
        row_dtype="float64",
        aggregate="average" if text.averages else "sum",
        link=link,
        link_scale=scale,
        feature_names=text.names if text.has_names else None,
        blank="_",
        listed_categories=text.listed_categories,
        pandas_categories=text.pandas_categories,
        other_dtype="float32",
        object_dtype="float32",
        n_rounds=n_trees // text.n_outputs,
        source=f"lightgbm {' '.join(text.objective[:1]) or 'custom'}",
        **rules,
    )
