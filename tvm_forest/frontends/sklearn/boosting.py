"""Loads gradient boosting and histogram gradient boosting of scikit-learn.

takes: fitted estimator; gives: Forest.

Refused are links that are not in `LINKS`, an `init` that does not predict a constant, and
categories that are neither texts nor whole numbers. The code of a text is its index in the encoder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array, CategoryRule, Forest, Link
from ..refusals import damaged, unsupported
from .trees import build_estimator, read_classes, read_nodes

LINKS: dict[str, tuple[Link, float]] = {
    "IdentityLink": ("identity", 1.0),
    "LogLink": ("exp", 1.0),
    "LogitLink": ("sigmoid", 1.0),
    "HalfLogitLink": ("sigmoid", 2.0),
    "MultinomialLogit": ("softmax", 1.0),
}
"""By scikit-learn's name of a link, our link and the factor of margins before it."""
_CATEGORY_RULE = CategoryRule(members_go="left", fractions_missing=True)
_CONSTANT = ("prior", "most_frequent", "constant", "uniform")
_ABOVE_ZERO = float(np.nextafter(0.0, 1.0))


def load_boosting(model: Any) -> Forest:
    """Return the Forest of a fitted GradientBoostingClassifier or GradientBoostingRegressor.

    The forest's `apply` has the shape (R, T); scikit-learn's has (R, rounds, C).
    """
    trees = [estimator.tree_ for estimator in model.estimators_.ravel()]
    rounds, outputs = model.estimators_.shape
    values = float(model.learning_rate) * np.concatenate([tree.value for tree in trees])[:, 0, :1]
    _check_init(model.init_)
    base = model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))[0]
    if len(base) != outputs:
        raise damaged("estimators_", f"{outputs} trees in a round for {len(base)} outputs")
    is_classifier = hasattr(model, "classes_")
    return build_estimator(
        model,
        *read_nodes(trees),
        values,
        np.arange(len(trees)) % outputs,
        base_score=base,
        refuses=("nan", "inf"),
        leaf_id_dtype="float64",
        n_rounds=rounds,
        **(_read_link(model) | _read_labels(model, outputs, 0.0) if is_classifier else {}),
    )


def _check_init(init: Any) -> None:
    """Refuse an `init` that does not predict the same for all rows."""
    if isinstance(init, str):
        return
    name, module = type(init).__name__, type(init).__module__
    constant = name == "DummyRegressor" or getattr(init, "strategy", None) in _CONSTANT
    if module != "sklearn.dummy" or not constant:
        what = f"{module}.{name} predicts another number for each row"
        raise unsupported("init", what, "train with init=None or init='zero'")


def _read_link(model: Any) -> dict[str, Any]:
    name = type(model._loss.link).__name__
    if name not in LINKS:
        what = f"{name} is not among those known ({', '.join(LINKS)})"
        raise unsupported("loss", what, "train with another loss")
    link, scale = LINKS[name]
    return {"link": link, "link_scale": scale}


def _read_labels(model: Any, outputs: int, cut: float) -> dict[str, Any]:
    rule, labels = "cut" if outputs == 1 else "argmax_margin", read_classes(model)
    if len(labels) == 1:  # all training rows had the same label
        labels = np.repeat(labels, 2)
    return {"labels": labels, "label_rule": rule, "label_cut": cut}


def load_hist_boosting(model: Any) -> Forest:
    """Return the Forest of a fitted estimator of histogram gradient boosting."""
    predictors = [predictor for stage in model._predictors for predictor in stage]
    records = np.concatenate([predictor.nodes for predictor in predictors])
    columns, meaning = np.arange(model.n_features_in_), dict[str, Any]()
    if model._preprocessor is not None:
        columns = np.argsort(~model.is_categorical_, kind="stable")
        meaning = {**_describe_categories(model, columns), "takes_by_name": True}
    place = records["feature_idx"]
    nodes = {
        "left": np.where(records["is_leaf"] != 0, LEAF, records["left"].astype(np.int64)),
        "right": records["right"].astype(np.int64),
        "feature": np.where(place < 0, place, columns[place]),  # Forest refuses a negative one
        "threshold": records["num_threshold"],
        "default_left": records["missing_go_to_left"],
        "cover": records["count"].astype(np.float64),
    }
    base = np.zeros(model.n_trees_per_iteration_) + model._baseline_prediction.ravel()
    if any(len(stage) != len(base) for stage in model._predictors):
        raise damaged("_predictors", f"a round has not one tree for each of {len(base)}")
    rules = _read_link(model)
    if hasattr(model, "classes_"):
        rules |= _read_labels(model, len(base), _ABOVE_ZERO)
    if np.any(records["is_categorical"]):
        rules |= _read_sets(model, predictors, records, columns)
    return build_estimator(
        model,
        np.array([len(predictor.nodes) for predictor in predictors]),
        nodes,
        records["value"][:, None],
        np.arange(len(predictors)) % len(base),
        base_score=base,
        row_dtype="float64",
        object_dtype="float64",
        n_rounds=len(model._predictors),
        **rules,
        **meaning,
    )


def _describe_categories(model: Any, columns: Array) -> dict[str, Any]:
    """Return fields of Forest: labels of categories that are texts, and numbers of the others.

    Categories of a column that are neither texts nor numbers are refused, even if no tree tests it.
    A column with numbers that cannot be categories is left out; `_read_sets` refuses its tests.
    """
    names, listed = dict[int, tuple[str | None, ...]](), list[tuple[int, tuple[int, ...]]]()
    for column, categories in zip(columns.tolist(), _list_categories(model), strict=False):
        texts = _read_texts(categories)
        if texts is not None:
            names[column] = texts
        elif categories.dtype.kind not in "iuf" or not _find_odd(categories).size:
            listed.append((column, tuple(_read_categories(categories, column).tolist())))
    return {"category_names": names, "listed_categories": tuple(listed)}


def _list_categories(model: Any) -> list[Array]:
    """Return the encoder's categories of each categorical column."""
    categories: list[Array] = model._preprocessor.named_transformers_["encoder"].categories_
    return categories


def _read_sets(model: Any, predictors: list[Any], records: Array, columns: Array) -> dict[str, Any]:
    """Return fields of Forest: the sets of categories, converted from bit sets over the encoder's.

    Bit k of a node's set stands for the encoder's k-th category of the column.

    Args:
        model: the estimator.
        predictors: its T trees, which hold the bit sets.
        records: (N,), the records of the nodes of all trees.
        columns: int (F,), the users' column of each feature of the records.
    """
    encoded = _list_categories(model)
    asks = np.flatnonzero((records["is_categorical"] != 0) & (records["is_leaf"] == 0))
    place = records["feature_idx"][asks]
    known = {at: _read_categories(encoded[at], columns[at]) for at in np.unique(place)}
    bitsets = [predictor.raw_left_cat_bitsets for predictor in predictors]
    sizes, index = np.array([len(bits) for bits in bitsets]), records["bitset_idx"][asks]
    tree = np.repeat(np.arange(len(predictors)), [len(part.nodes) for part in predictors])[asks]
    if np.any(index >= sizes[tree]):
        raise damaged("_predictors", "a node has no set of categories in its tree")
    words = np.concatenate(bitsets)[(np.cumsum(sizes) - sizes)[tree] + index]
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    return {
        "category_rule": _CATEGORY_RULE,
        "categories": {
            int(node): tuple(known[at][row[: len(known[at])] == 1].tolist())
            for node, at, row in zip(asks, place, bits, strict=True)
        },
        "known_categories": {int(columns[at]): tuple(known[at].tolist()) for at in known},
    }


def _read_categories(categories: Array, column: int) -> Array:
    """Return the codes of one column's categories, in the order of the encoder.

    A category that is a number is its own code; the code of a text is its index.
    """
    texts = _read_texts(categories)
    if texts is not None:
        return np.arange(len(texts))
    if categories.dtype.kind in "iuf":
        odd = _find_odd(categories)
        if not odd.size:
            return categories[~np.isnan(categories)].astype(np.int64)
        what = f"column {column} has the category {odd[0]}"
    else:
        what = f"column {column} has categories of dtype {categories.dtype}"
    highest = _CATEGORY_RULE.highest - 1
    remedy = f"train with categories that are texts, or whole numbers from 0 to {highest}"
    raise unsupported("categorical_features", what, remedy)


def _find_odd(categories: Array) -> Array:
    """Return those numbers of an array that cannot be categories."""
    numbers = categories[~np.isnan(categories)]
    odd = (numbers < 0) | (numbers >= _CATEGORY_RULE.highest) | (numbers % 1 != 0)
    found: Array = numbers[odd]
    return found


def _read_texts(categories: Array) -> tuple[str | None, ...] | None:
    """Return categories if they are texts, else None.

    A last NaN is left out, because it stands for missing values; None before it is a category.
    """
    if categories.dtype.kind in "iufb":
        return None
    labels = tuple(x for x in categories.tolist() if x == x)
    return labels if all(isinstance(x, str | None) for x in labels) else None
