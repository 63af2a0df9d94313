"""LightGBM models: text files, boosters and the estimators of its scikit-learn interface.

takes: bytes, Booster or fitted estimator; gives: Forest.

LightGBM adds float64 leaves in tree order and compares float64 rows by `<=`. A value within 1e-35
of zero is zero to it, in every model, but for entries of sparse matrices; where a missing value
goes is told node by node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ...errors import ModelFormatError
from ...forest import LEAF, Array, CategoryRule, Forest, Link
from ...forest.rules import ZERO
from ..refusals import damaged, unsupported
from ..support import Support, accepted, linked, refused
from .text import VERSIONS, Text, read_text

Kind = Literal["Booster", "LGBMClassifier", "LGBMModel"]

_KINDS: dict[str, Kind] = {
    "Booster": "Booster",
    "LGBMClassifier": "LGBMClassifier",
    "LGBMModel": "LGBMModel",  # regressors, rankers
}
_LINKS: dict[str, Link] = {
    "regression": "identity",
    "regression_l1": "identity",
    "huber": "identity",
    "fair": "identity",
    "quantile": "identity",
    "mape": "identity",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
    "binary": "sigmoid",
    "multiclass": "softmax",
    "multiclassova": "sigmoid",
    "cross_entropy": "sigmoid",
    "cross_entropy_lambda": "log1p_exp",
    "lambdarank": "identity",
    "rank_xendcg": "identity",
    "": "identity",  # an objective of the user's own
}
_OPTIONS = {  # beside the name of an objective
    "binary": {"sigmoid"},
    "multiclass": {"num_class"},
    "multiclassova": {"num_class", "sigmoid"},
} | dict.fromkeys(("regression", "regression_l1", "fair", "quantile", "mape"), {"sqrt"})

# An integer of 32 bits is made of a category; what does not fit becomes negative.
_CATEGORIES = CategoryRule("left", negative_fractions=True, highest=2**31)
_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of a decision type
_NOTHING_MISSING, _ZERO_MISSING = 0, 1  # its bits above; 2 is NaN

_REFUSED = {
    "objective": "any other, and options that are not known",
    "version": "files of other versions",
    "leaf_features": "a term of a linear leaf whose feature has zeros that are missing",
    "decision_type": "zero is missing at some nodes of a feature, and not at others",
    "average_output": "a random forest without trees",
    "sigmoid": "a number in memory that the model's text rounds",
    "pred_early_stop": "an estimator that leaves trees out row by row",
    "classes_": "a number of classes that is not that of the outputs",
}


def support() -> list[Support]:
    """Return what is accepted and refused."""
    options = (Support("lightgbm", "option", name, "exact") for name in ("linear_tree", "reg_sqrt"))
    return [
        *accepted("lightgbm", "format", (f"text {version}" for version in VERSIONS)),
        *accepted("lightgbm", "object", _KINDS, "and what derives from it"),
        *linked("lightgbm", "objective", _LINKS),
        *options,
        *refused("lightgbm", _REFUSED),
    ]


def is_text(data: bytes) -> bool:
    """Return whether this is the content of a LightGBM model file."""
    return data.startswith(b"tree\n")


def kind_of(model: Any) -> Kind | None:
    """Return what kind of LightGBM object this is, by names, without importing lightgbm."""
    for cls in type(model).__mro__:
        if cls.__module__.split(".")[0] == "lightgbm" and cls.__name__ in _KINDS:
            return _KINDS[cls.__name__]
    return None


def from_bytes(data: bytes, where: str) -> Forest:
    """Load the content of a model file."""
    return _forest(read_text(data, where))


def from_object(model: Any, kind: Kind) -> Forest:
    """Load a Booster or a fitted estimator, with the trees up to its best iteration."""
    where = f"lightgbm {type(model).__name__}"
    try:
        booster = model if kind == "Booster" else model.booster_
    except ValueError as error:  # NotFittedError
        raise damaged(where, "model", f"holds no trained model ({error})", "train it") from None
    forest = from_bytes(booster.model_to_string().encode(), where)
    sigmoid = (booster.params or {}).get("sigmoid")
    has_option = "sigmoid" in _OPTIONS.get(forest.source.removeprefix("lightgbm "), ())
    if sigmoid is not None and has_option and float(sigmoid) != forest.link_scale:
        what = f"{sigmoid} in memory, but {forest.link_scale} when saved"
        raise unsupported(where, "sigmoid", what, "train with a number of six digits")
    if kind == "Booster":
        return forest
    if model.get_params().get("pred_early_stop"):
        what = "expected False, got True, which leaves trees out row by row"
        raise unsupported(where, "pred_early_stop", what, "give model.booster_")
    return forest if kind == "LGBMModel" else _classifier(model, forest, where)


def _classifier(model: Any, forest: Forest, where: str) -> Forest:
    labels = np.asarray(model.classes_)
    if callable(model.objective_):
        return forest  # predicts margins
    if len(labels) != max(2, forest.n_outputs):
        what = f"{len(labels)} classes with {forest.n_outputs} outputs"
        raise unsupported(where, "classes_", what, "train with one output per class, or one for 2")
    rule: Literal["half", "argmax_probability"]
    rule = "half" if forest.n_outputs == 1 else "argmax_probability"
    return replace(forest, label_rule=rule, labels=labels)


# -- header ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Objective:
    name: str
    link: Link
    scale: float = 1.0


def _objective(text: Text) -> _Objective:
    """Read the name of the objective and its options, "sqrt" or "sigmoid:1"."""
    name, *words = text.objective or ("",)
    if name not in _LINKS:
        what = f"'{name:.40}' is not among those known ({', '.join(filter(None, _LINKS))})"
        raise unsupported(text.where, "objective", what, "train with one of these")
    options = dict(word.partition(":")[::2] for word in words)
    unknown = options.keys() - _OPTIONS.get(name, set())
    if unknown:
        what = f"option '{min(unknown)}' of '{name}' is not known"
        raise unsupported(text.where, "objective", what, "train without it")
    if options.get("num_class", "1") != str(text.n_outputs) and name:
        what = f"'{' '.join(text.objective)}' with {text.n_outputs} classes"
        raise damaged(text.where, "objective", what)
    if "sqrt" in options:
        return _Objective(name, "signed_square")
    try:
        scale = float(options.get("sigmoid", "nan" if "sigmoid" in _OPTIONS.get(name, ()) else "1"))
    except ValueError:
        scale = 0.0
    if not 0 < scale < np.inf:
        what = f"expected a positive sigmoid, got '{' '.join(text.objective)}'"
        raise damaged(text.where, "objective", what)
    return _Objective(name, _LINKS[name], scale)


def _forest(text: Text) -> Forest:
    objective = _objective(text)
    n_trees = len(text.columns["num_leaves"])
    if text.averages and not n_trees:
        raise unsupported(text.where, "average_output", "no trees to average", "train the model")
    nodes = _nodes(text)
    try:
        return Forest(
            **nodes,
            tree_class=(np.arange(n_trees) % text.n_outputs).astype(np.int32),
            tree_id=np.arange(n_trees, dtype=np.int32),
            base_score=np.zeros(text.n_outputs),
            sparse_above=float(ZERO),
            n_features=text.n_features,
            category_rule=_CATEGORIES if nodes["categories"] else None,
            comparison="<=",
            row_dtype="float64",
            aggregate="average" if text.averages else "sum",
            link=objective.link,
            link_scale=objective.scale,
            feature_names=text.feature_names,
            pandas_categories=text.pandas_categories,
            other_dtype="float32",
            n_rounds=n_trees // text.n_outputs,
            source=f"lightgbm {objective.name or 'custom'}",
        )
    except ModelFormatError as error:
        raise ModelFormatError(f"{text.where}: field 'trees': {error}") from None


# -- trees ----------------------------------------------------------------------------------------


def _nodes(text: Text) -> dict[str, Any]:
    """Node arrays of a Forest: the inner nodes of each tree, then its leaves."""
    columns, leaves = text.columns, text.columns["num_leaves"]
    offset = np.append(0, np.cumsum(2 * leaves - 1))
    tree = np.repeat(np.arange(len(leaves)), 2 * leaves - 1)
    number = np.arange(offset[-1]) - offset[tree]
    first_leaf = (leaves - 1)[tree]
    inner = number < first_leaf

    def spread(values: Array, fill: Any, at: Array) -> Array:
        full = np.full((len(inner), *values.shape[1:]), fill, values.dtype)
        full[at] = values
        return full

    def child(key: str) -> Array:
        values = columns[key]
        wrong = values >= first_leaf[inner]
        if wrong.any():
            what = f"tree {tree[inner][np.argmax(wrong)]} has no inner node {values[wrong][0]}"
            raise damaged(text.where, key, what)
        places = np.where(values < 0, first_leaf[inner] + ~values, values)
        return spread(places.astype(np.int32), LEAF, inner)

    rules = _NodeRules.of(text, np.flatnonzero(inner), tree[inner])
    zero_missing = rules.zero_missing(text)
    terms = _linear_leaves(text, zero_missing) if columns["is_linear"].any() else {}
    return {
        "tree_offset": offset,
        "feature": spread(columns["split_feature"].astype(np.int32), LEAF, inner),
        "threshold": spread(rules.threshold, 0.0, inner),
        "left": child("left_child"),
        "right": child("right_child"),
        "default_left": spread(rules.nan_left, False, inner),
        "leaf_value": spread(columns["leaf_value"], 0.0, ~inner)[:, None],
        "node_id": np.where(inner, number, number - first_leaf).astype(np.int32),
        "categories": rules.categories,
        "zero_missing": zero_missing,
        "term_feature": terms.pop("term_feature", None),
        "term_coefficient": terms.pop("term_coefficient", None),
        **{name: spread(values, 0, ~inner) for name, values in terms.items()},
    }


def _linear_leaves(text: Text, zero_missing: tuple[int, ...]) -> dict[str, Array]:
    """The fields of a Forest for linear leaves; those of nodes for leaves only, in their order."""
    columns = text.columns
    linear = np.repeat(columns["is_linear"] > 0, columns["num_leaves"])
    const, count = columns["leaf_value"].copy(), np.zeros(len(linear), np.int64)
    const[linear], count[linear] = columns["leaf_const"], columns["num_features"]
    feature, end = columns["leaf_features"], np.cumsum(count)
    wrong = np.isin(feature, zero_missing)
    if wrong.any():
        what = f"feature {feature[wrong][0]} is a term of a linear leaf, and its zeros are missing"
        remedy = "train all rounds with zero_as_missing=False"
        raise unsupported(text.where, "leaf_features", what, remedy)
    return {
        "leaf_const": const,
        "leaf_terms": np.stack([end - count, end], axis=1),
        "term_feature": feature.astype(np.int32),
        "term_coefficient": columns["leaf_coeff"],
    }


@dataclass(frozen=True)
class _NodeRules:
    """How the M inner nodes decide.

    Attributes:
        threshold: float64 (M,), such that values within 1e-35 of zero go where zero goes; 0 at
            categorical nodes.
        nan_left, zero_left: bool (M,), where NaN and zero go.
        natural: bool (M,), where a comparison would send zero; at categorical nodes `zero_left`.
        categories: see `Forest`.
    """

    threshold: Array
    nan_left: Array
    zero_left: Array
    natural: Array
    categories: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, text: Text, node: Array, tree: Array) -> _NodeRules:
        """Read the decision types of nodes with these numbers in the Forest, and trees."""
        decision, threshold = text.columns["decision_type"], text.columns["threshold"]
        categorical = (decision & _CATEGORICAL) > 0
        default, missing = (decision & _DEFAULT_LEFT) > 0, decision >> 2
        categories = _categories(text, node[categorical], tree[categorical], threshold[categorical])
        natural = threshold >= 0
        natural[categorical] = [0 in members[:1] for members in categories.values()]
        nan_left = np.where(missing == _NOTHING_MISSING, natural, default) & ~categorical
        zero_left = np.where((missing == _ZERO_MISSING) & ~categorical, default, natural)
        small = np.float64(ZERO)
        threshold = np.where((threshold >= 0) & (threshold < small), small, threshold)
        negative = (threshold < 0) & (threshold >= -small)
        threshold = np.where(negative, np.nextafter(-small, -np.inf), threshold)
        threshold[categorical] = 0
        return cls(threshold, nan_left, zero_left, natural, categories)

    def zero_missing(self, text: Text) -> tuple[int, ...]:
        """Features with a node that sends zero where no comparison would."""
        feature = text.columns["split_feature"]
        features = np.unique(feature[self.zero_left != self.natural])
        wrong = np.isin(feature, features) & (self.zero_left != self.nan_left)
        if wrong.any():
            what = f"zero is missing at some nodes of feature {feature[wrong][0]}, not at all"
            remedy = "train all rounds with the same zero_as_missing and categorical_feature"
            raise unsupported(text.where, "decision_type", what, remedy)
        return tuple(features.tolist())


def _categories(text: Text, node: Array, tree: Array, number: Array) -> dict[int, tuple[int, ...]]:
    """Decode the bit sets of categorical nodes, each the set `number` of its tree."""
    sets, bounds = text.columns["num_cat"], text.columns["cat_boundaries"]
    wrong = (number < 0) | (number >= sets[tree]) | (number != np.floor(number))
    if wrong.any():
        what = f"tree {tree[wrong][0]} has {sets[tree[wrong][0]]} sets of categories, got set "
        raise damaged(text.where, "threshold", f"{what}{number[wrong][0]:g}")
    entries = np.where(sets > 0, sets + 1, 0)
    last = np.cumsum(entries) - 1
    words = np.where(sets > 0, np.append(bounds, 0)[last], 0)
    first_entry, first_word = last + 1 - entries, np.cumsum(words) - words
    entry = first_entry[tree] + number.astype(np.int64)
    bounds = np.append(bounds, 0)
    begin, end = (first_word[tree] + bounds[entry + step] for step in (0, 1))
    wrong = (bounds[entry] > bounds[entry + 1]) | (bounds[entry + 1] > words[tree])
    if wrong.any():
        raise damaged(text.where, "cat_boundaries", f"tree {tree[wrong][0]} has a set without end")
    bits = text.columns["cat_threshold"].astype("<u4").view(np.uint8)
    member = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    low, high = np.searchsorted(member, begin * 32), np.searchsorted(member, end * 32)
    return {
        at: tuple((member[i:j] - first).tolist())
        for at, i, j, first in zip(
            node.tolist(), low.tolist(), high.tolist(), (begin * 32).tolist(), strict=True
        )
    }
