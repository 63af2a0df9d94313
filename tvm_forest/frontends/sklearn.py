"""Fitted trees and ensembles of trees of scikit-learn 1.5 and newer.

takes: fitted estimator; gives: Forest.

scikit-learn sums float64 leaves in tree order and compares by `<=`, as its estimators say:

- Trees, random forests and extra trees cast rows to float32 and compare them with float64
  thresholds. Forests divide the sum by the number of trees; that is scikit-learn with `n_jobs=1`,
  other numbers of threads add in any order. Leaves of classifiers hold class fractions, for one
  target after the other, those of regressors a value per target.
- Gradient boosting compares in the same way, but starts from the prediction of its `init` and adds
  `learning_rate * leaf`.
- Histogram gradient boosting compares float64 rows and starts from its baseline. Categorical
  columns come first in its trees; a category is its place among those seen in training, and all
  other values are missing.
- Isolation forests (Liu, Ting and Zhou, 2008) sum path lengths, the margin here. The value is
  `score_samples`, of which `decision_function` is the distance to `offset_`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ModelFormatError
from ..forest import LEAF, Array, CategoryRule, Forest, LabelRule, Link, apply_link
from .refusals import damaged, unsupported
from .support import Support, accepted, linked, refused

_OLDEST = (1, 5)
_RULE = CategoryRule(members_go="left", fractions_missing=True)
_LINKS: dict[str, tuple[Link, float]] = {
    "IdentityLink": ("identity", 1.0),
    "LogLink": ("exp", 1.0),
    "LogitLink": ("sigmoid", 1.0),
    "HalfLogitLink": ("sigmoid", 2.0),
    "MultinomialLogit": ("softmax", 1.0),
}
_CONSTANT = ("prior", "most_frequent", "constant", "uniform")
_ABOVE_ZERO = float(np.nextafter(0.0, 1.0))
_INSIDE = {
    "Pipeline": "give its last step, `model[-1]`, and transform rows yourself",
    "GridSearchCV": "give its `best_estimator_`",
    "RandomizedSearchCV": "give its `best_estimator_`",
}

_REFUSED = {
    "__class__": "any other estimator, and classes that derive from these",
    "__version__": "scikit-learn before 1.5",
    "classes_": "a single class",
    "init": "gradient boosting that starts from another model",
    "loss": "a link that is not known",
    "categorical_features": "categories that are no whole numbers from 0 to 2^24 - 1",
    "max_samples": "isolation forests of one row for each tree",
}


def support() -> list[Support]:
    """Return what is accepted and refused."""
    links: dict[str, Link] = {name: link for name, (link, _) in _LINKS.items()}
    return [
        *accepted("scikit-learn", "estimator", _LOADERS),
        *linked("scikit-learn", "link of a loss", links),
        *linked("scikit-learn", "score", {"IsolationForest.score_samples": "isolation"}),
        *refused("scikit-learn", _REFUSED),
    ]


def is_ours(model: Any) -> bool:
    """Tell by names, without importing scikit-learn, whether an object is for this frontend.

    All that scikit-learn defines is, and what derives from its estimators of trees.
    """
    ours = [cls for cls in type(model).__mro__ if cls.__module__.split(".")[0] == "sklearn"]
    return type(model) in ours or any(cls.__name__ in _LOADERS for cls in ours)


def from_object(model: Any) -> Forest:
    """Load a fitted estimator.

    Raises:
        ModelFormatError: the estimator is not fitted, or its trees are damaged.
        UnsupportedModel: another kind of estimator, a subclass, scikit-learn before 1.5, or a part
            that cannot be reproduced exactly.
    """
    name = type(model).__name__
    where = f"scikit-learn {name}"
    version = _checked_version(where)
    _check_kind(model, where)
    fitted, loader = _LOADERS[name]
    if fitted not in vars(model):
        raise damaged(where, fitted, "the estimator is not fitted", "fit it first")
    try:
        return loader(model, where)
    except AttributeError as error:
        what = f"scikit-learn {version} keeps no such attribute"
        remedy = "fit the estimator again with scikit-learn 1.5 to 1.9"
        raise unsupported(where, str(error.name), what, remedy) from error
    except ModelFormatError as error:
        if str(error).startswith(where):
            raise
        raise ModelFormatError(f"{where}: field 'trees': {error}") from None


def _checked_version(where: str) -> str:
    """Version of the scikit-learn that the object came with, which is imported already."""
    version = str(getattr(sys.modules.get("sklearn"), "__version__", "0.0"))
    parts = version.split(".")[:2]
    if tuple(int(part) if part.isdecimal() else 0 for part in parts) < _OLDEST:
        what = f"scikit-learn {version} predicts by other rules"
        raise unsupported(where, "__version__", what, "use scikit-learn 1.5 or newer")
    return version


def _check_kind(model: Any, where: str) -> None:
    name, module = type(model).__name__, type(model).__module__
    if module.split(".")[0] != "sklearn":
        base = next(cls.__name__ for cls in type(model).__mro__ if cls.__name__ in _LOADERS)
        what = f"{module}.{name} derives from {base} and may predict otherwise"
        raise unsupported(where, "__class__", what, f"give an object of the class {base} itself")
    if name not in _LOADERS:
        remedy = _INSIDE.get(name, f"give one of {', '.join(_LOADERS)}")
        raise unsupported(where, "__class__", f"{module}.{name} cannot be loaded", remedy)


# -- trees and forests ----------------------------------------------------------------------------


def _load_trees(model: Any, where: str) -> Forest:
    """Trees, random forests and extra trees."""
    single = hasattr(model, "tree_")
    estimators = [model] if single else model.estimators_
    trees = [estimator.tree_ for estimator in estimators]
    values = np.concatenate([tree.value for tree in trees])
    rule: tuple[LabelRule, Array | None] = ("none", None)
    targets: tuple[int, ...] = ()
    if hasattr(model, "classes_") and model.n_outputs_ > 1:
        targets = tuple(int(count) for count in model.n_classes_)
        parts = [values[:, target, :count] for target, count in enumerate(targets)]
        values = np.concatenate(parts, axis=1)
        labels = np.concatenate(model.classes_).astype(model.classes_[0].dtype)
        rule = "argmax_probability", labels
    elif hasattr(model, "classes_"):
        rule = "argmax_probability", _classes(model, where)
        values = values[:, 0, : model.n_classes_]
    else:
        values = values[:, :, 0]
    outputs = values.shape[1]
    accepts_nan = estimators[0]._support_missing_values(np.zeros((0, 0)))
    return _forest(
        model,
        _nodes(trees),
        values,
        np.full(len(trees), LEAF if outputs > 1 else 0),
        # -0.0 + x is x for all x: the prediction of a single tree is its leaf, even -0.0
        base_score=np.full(outputs, -0.0 if single else 0.0),
        aggregate="sum" if single else "average",
        label_rule=rule[0],
        labels=rule[1],
        targets=targets,
        refuses=("inf",) if accepts_nan else ("nan", "inf"),
        n_rounds=1,
    )


def _load_boosting(model: Any, where: str) -> Forest:
    """Gradient boosting. `apply` gives (R, T * C), which scikit-learn shapes as (R, T, C)."""
    trees = [estimator.tree_ for estimator in model.estimators_.ravel()]
    rounds, outputs = model.estimators_.shape
    values = float(model.learning_rate) * np.concatenate([tree.value for tree in trees])[:, 0, :1]
    _check_init(model.init_, where)
    base = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))[0]
    if len(base) != outputs:
        raise damaged(where, "estimators_", f"{outputs} trees in a round for {len(base)} outputs")
    rule: dict[str, Any] = {}
    if hasattr(model, "classes_"):
        rule = _link(model, where)
        rule["labels"] = _classes(model, where)
        rule["label_rule"] = "cut" if outputs == 1 else "argmax_margin"
    return _forest(
        model,
        _nodes(trees),
        values,
        np.arange(len(trees)) % outputs,
        base_score=base,
        refuses=("nan", "inf"),
        leaf_id_dtype="float64",
        n_rounds=rounds,
        **rule,
    )


def _check_init(init: Any, where: str) -> None:
    """Refuse what predicts other than one number for all rows."""
    if isinstance(init, str):
        return
    name, module = type(init).__name__, type(init).__module__
    constant = name == "DummyRegressor" or getattr(init, "strategy", None) in _CONSTANT
    if module != "sklearn.dummy" or not constant:
        what = f"{module}.{name} predicts another number for each row"
        raise unsupported(where, "init", what, "train with init=None or init='zero'")


def _nodes(trees: list[Any]) -> dict[str, Array]:
    """Fields of nodes of `sklearn.tree._tree.Tree`."""
    names = ("children_left", "children_right", "feature", "threshold", "missing_go_to_left")
    left, right, feature, threshold, missing_left = (
        np.concatenate([getattr(tree, name) for tree in trees]) for name in names
    )
    return {
        "sizes": np.array([tree.node_count for tree in trees]),
        "left": left,
        "right": right,
        "feature": feature,
        "threshold": threshold,
        "default_left": missing_left,
    }


# -- histogram gradient boosting ------------------------------------------------------------------


def _load_hist_boosting(model: Any, where: str) -> Forest:
    """Histogram gradient boosting."""
    predictors = [predictor for stage in model._predictors for predictor in stage]
    sizes = np.array([len(predictor.nodes) for predictor in predictors])
    records = np.concatenate([predictor.nodes for predictor in predictors])
    is_leaf = records["is_leaf"].astype(bool)
    columns = np.arange(model.n_features_in_)
    if model._preprocessor is not None:
        columns = np.argsort(~model.is_categorical_, kind="stable")
    place = records["feature_idx"]
    nodes = {
        "sizes": sizes,
        "left": np.where(is_leaf, LEAF, records["left"].astype(np.int64)),
        "right": records["right"],
        "feature": np.where(place < 0, place, columns[place]),  # Forest refuses a negative one
        "threshold": np.where(records["is_categorical"], 0.0, records["num_threshold"]),
        "default_left": records["missing_go_to_left"],
    }
    base = np.zeros(model.n_trees_per_iteration_) + model._baseline_prediction.ravel()
    if any(len(stage) != len(base) for stage in model._predictors):
        raise damaged(where, "_predictors", f"a round has not one tree for each of {len(base)}")
    rule = _link(model, where)
    if hasattr(model, "classes_"):
        rule["labels"] = _classes(model, where)
        rule["label_rule"] = "cut" if len(base) == 1 else "argmax_margin"
        rule["label_cut"] = _ABOVE_ZERO
    if np.any(records["is_categorical"]):
        rule.update(_categories(model, predictors, records, columns, where))
    return _forest(
        model,
        nodes,
        records["value"][:, None],
        np.arange(len(predictors)) % len(base),
        base_score=base,
        row_dtype="float64",
        n_rounds=len(model._predictors),
        **rule,
    )


def _categories(
    model: Any, predictors: list[Any], records: Array, columns: Array, where: str
) -> dict[str, Any]:
    """Sets of raw categories; the bits of a node count the categories of the encoder."""
    encoded = model._preprocessor.named_transformers_["encoder"].categories_
    asks = np.flatnonzero((records["is_categorical"] != 0) & (records["is_leaf"] == 0))
    place = records["feature_idx"][asks]
    known = {at: _whole(encoded[at], columns[at], where) for at in np.unique(place)}
    bitsets = [predictor.raw_left_cat_bitsets for predictor in predictors]
    sizes, index = np.array([len(bits) for bits in bitsets]), records["bitset_idx"][asks]
    tree = np.repeat(np.arange(len(predictors)), [len(part.nodes) for part in predictors])[asks]
    if np.any(index >= sizes[tree]):
        raise damaged(where, "_predictors", "a node has no set of categories in its tree")
    words = np.concatenate(bitsets)[(np.cumsum(sizes) - sizes)[tree] + index]
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    return {
        "category_rule": _RULE,
        "categories": {
            int(node): tuple(known[at][row[: len(known[at])] == 1].tolist())
            for node, at, row in zip(asks, place, bits, strict=True)
        },
        "known_categories": {int(columns[at]): tuple(known[at].tolist()) for at in known},
    }


def _whole(categories: Array, column: int, where: str) -> Array:
    """Categories of one column as whole numbers, in the order of the encoder, without NaN."""
    kind = categories.dtype.kind
    if kind in "iuf":
        categories = categories[~np.isnan(categories)]
        odd = (categories < 0) | (categories >= _RULE.highest) | (categories % 1 != 0)
        if not odd.any():
            return categories.astype(np.int64)
        what = f"column {column} has the category {categories[odd][0]}"
    else:
        what = f"column {column} has categories of dtype {categories.dtype}"
    remedy = f"encode categories as whole numbers from 0 to {_RULE.highest - 1} before training"
    raise unsupported(where, "categorical_features", what, remedy)


# -- isolation forest -----------------------------------------------------------------------------


def _load_isolation(model: Any, where: str) -> Forest:
    """Isolation forests: each tree adds the length of the path that it thinks a row needs."""
    nodes = _nodes([estimator.tree_ for estimator in model.estimators_])
    trees = len(nodes["sizes"])
    if model._max_features != model.n_features_in_:  # else trees see the columns as they are
        tree = np.repeat(np.arange(trees), nodes["sizes"])
        place = nodes["feature"]
        known = np.stack(model.estimators_features_)[tree, np.maximum(place, 0)]
        nodes["feature"] = np.where(place < 0, place, known)
    paths = np.concatenate(model._decision_path_lengths)
    lengths = paths + np.concatenate(model._average_path_length_per_tree) - 1.0
    scale = trees * _average_path(int(model._max_samples))
    if scale == 0:
        what = "one row for each tree gives all rows the same score"
        raise unsupported(where, "max_samples", what, "train with max_samples of 2 or more")
    return _forest(
        model,
        nodes,
        lengths[:, None],
        np.zeros(trees),
        base_score=np.zeros(1),
        link="isolation",
        link_scale=scale,
        score_offset=float(model.offset_),
        label_rule="cut",
        label_cut=_inlier_from(scale, float(model.offset_)),
        labels=np.array([-1, 1]),
        refuses=() if hasattr(model, "__sklearn_tags__") else ("nan", "inf"),  # before 1.6
        n_rounds=1,
    )


def _average_path(samples: int) -> float:
    """Mean length of an unsuccessful search in a binary tree of so many samples."""
    if samples <= 2:
        return float(max(samples - 1, 0))
    return float(2.0 * (np.log(samples - 1.0) + np.euler_gamma) - 2.0 * (samples - 1.0) / samples)


def _inlier_from(scale: float, offset: float) -> float:
    """Return the smallest sum of path lengths whose score is not below the offset.

    Scores grow with the sum, and so do positive floats with their bits, which are halved.
    """
    low, high = 0, int(np.float64(np.inf).view(np.int64))
    while low < high:
        middle = (low + high) // 2
        score = apply_link("isolation", np.array([middle]).view(np.float64), scale)[0]
        low, high = (middle + 1, high) if score - offset < 0 else (low, middle)
    return float(np.int64(low).view(np.float64))


# -- all ------------------------------------------------------------------------------------------


def _forest(
    model: Any, nodes: dict[str, Array], values: Array, tree_class: Array, **rules: Any
) -> Forest:
    """Put a forest together, with what all estimators share."""
    sizes, is_leaf = nodes["sizes"], nodes["left"] == LEAF
    offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    names = getattr(model, "feature_names_in_", None)
    return Forest(
        tree_offset=offset,
        feature=np.where(is_leaf, LEAF, nodes["feature"]).astype(np.int32),
        threshold=np.where(is_leaf, 0.0, nodes["threshold"]),
        left=nodes["left"].astype(np.int32),
        right=np.where(is_leaf, LEAF, nodes["right"]).astype(np.int32),
        default_left=nodes["default_left"].astype(bool) & ~is_leaf,
        leaf_value=np.where(is_leaf[:, None], values, 0.0),
        node_id=(np.arange(offset[-1]) - np.repeat(offset[:-1], sizes)).astype(np.int32),
        tree_class=tree_class.astype(np.int32),
        tree_id=np.arange(len(sizes), dtype=np.int32),
        n_features=int(model.n_features_in_),
        comparison="<=",
        feature_names=None if names is None else tuple(str(name) for name in names),
        source=f"scikit-learn {type(model).__name__}",
        **{"leaf_id_dtype": "int64", **rules},
    )


def _classes(model: Any, where: str) -> Array:
    """Labels in the order of the probabilities."""
    if len(model.classes_) < 2:
        what = f"expected 2 classes or more, got {len(model.classes_)}"
        raise unsupported(where, "classes_", what, "train with rows of both classes")
    return np.asarray(model.classes_)


def _link(model: Any, where: str) -> dict[str, Any]:
    name = type(model._loss.link).__name__
    if name not in _LINKS:
        what = f"{name} is not among those known ({', '.join(_LINKS)})"
        raise unsupported(where, "loss", what, "train with another loss")
    link, scale = _LINKS[name]
    return {"link": link, "link_scale": scale}


_LOADERS: dict[str, tuple[str, Callable[[Any, str], Forest]]] = {
    "DecisionTreeClassifier": ("tree_", _load_trees),
    "DecisionTreeRegressor": ("tree_", _load_trees),
    "ExtraTreeClassifier": ("tree_", _load_trees),
    "ExtraTreeRegressor": ("tree_", _load_trees),
    "RandomForestClassifier": ("estimators_", _load_trees),
    "RandomForestRegressor": ("estimators_", _load_trees),
    "ExtraTreesClassifier": ("estimators_", _load_trees),
    "ExtraTreesRegressor": ("estimators_", _load_trees),
    "GradientBoostingClassifier": ("estimators_", _load_boosting),
    "GradientBoostingRegressor": ("estimators_", _load_boosting),
    "HistGradientBoostingClassifier": ("_predictors", _load_hist_boosting),
    "HistGradientBoostingRegressor": ("_predictors", _load_hist_boosting),
    "IsolationForest": ("estimators_", _load_isolation),
}
"""For each estimator, an attribute that it has once it is fitted, and what loads it."""
