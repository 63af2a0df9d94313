"""Loads YDF (Yggdrasil) models: gradient boosted trees and random forests.

takes: model of the package ydf, or the folder of a saved one; gives: Forest.

YDF compares float32 rows by `>=`, and adds float32 leaves in the order of trees. It predicts by one
of several engines, depending on the model: QuickScorer starts from the initial prediction, the
others add it last, once for each class. An engine replaces missing values (`nodes.py`). Leaves of
random forests are divided by the number of trees before they are added; the sums of classifiers are
clipped at 1.

A row has the columns of `model.input_feature_names()`: numbers; 0 or 1 for a boolean; and for a
category its index in the dictionary of the column, where 0 stands for all unknown texts. Frames
hold categories as texts. NaN is missing, also in columns of booleans.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ForestError
from ...forest import LEAF, Array, CategoryRule, Forest, Link
from ..assemble import build_forest
from ..objects import find_class
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .nodes import BOOLEAN, CATEGORICAL, read_trees

_OBJECTS = ("GradientBoostedTreesModel", "RandomForestModel")
_RANKING = ("XE_NDCG_MART", "LAMBDA_MART_NDCG", "LAMBDA_MART_NDCG5")
_LINKS: dict[str, Link] = {
    **dict.fromkeys(("SQUARED_ERROR", "MEAN_AVERAGE_ERROR", *_RANKING), "identity"),
    **dict.fromkeys(("BINOMIAL_LOG_LIKELIHOOD", "BINARY_FOCAL_LOSS"), "unbounded_sigmoid"),
    "MULTINOMIAL_LOG_LIKELIHOOD": "plain_softmax",
}
_LOSSES = (
    "DEFAULT",
    "BINOMIAL_LOG_LIKELIHOOD",
    "SQUARED_ERROR",
    "MULTINOMIAL_LOG_LIKELIHOOD",
    "LAMBDA_MART_NDCG5",
    "XE_NDCG_MART",
    "BINARY_FOCAL_LOSS",
    "POISSON",
    "MEAN_AVERAGE_ERROR",
    "LAMBDA_MART_NDCG",
)
"""The names of losses, indexed by the number that a model stores."""
_TASKS = ("REGRESSION", "CLASSIFICATION", "RANKING")
_COLUMNS = {
    1: "NUMERICAL",
    CATEGORICAL: "CATEGORICAL",
    BOOLEAN: "BOOLEAN",
    9: "DISCRETIZED_NUMERICAL",
}
"""Names of the supported types of columns, by their numbers in a data specification."""

SUPPORT = [
    *list_accepted("ydf", "object", _OBJECTS, "and folders of saved ones, if ydf is installed"),
    *list_accepted("ydf", "task", _TASKS),
    *list_accepted("ydf", "column", _COLUMNS.values()),
    *list_linked("ydf", "loss", _LINKS),
    *list_accepted("ydf", "option", ("winner_take_all", "allow_na_conditions")),
    *list_refused(
        "ydf",
        __class__="any other model",
        task="any other",
        loss="any other, such as Poisson, whose models do not tell whether they give logarithms",
        column="any other type, such as sets of categories; categories that are numbers already",
        condition="sums of several columns, and conditions on sets or sequences",
        output_logits="a model that gives margins in place of probabilities",
        engine="a model that YDF predicts by its slow engine alone, such as with LOCAL_IMPUTATION",
        folder="the folder of a saved model, without the package ydf",
        boundaries="bins of numbers whose middle is rounded to their end",
        na_value="bins of numbers, where missing values go another way than the mean",
        top_value="trees that vote for no class",
        label_classes="a single class",
    ),
]


def from_object(model: Any) -> Forest | None:
    """Load a model of ydf; return None for any other object.

    Raises:
        ModelFormatError: parts of the model contradict each other.
        UnsupportedModel: a part cannot be reproduced exactly.
    """
    kind = find_class(model, "ydf", _OBJECTS)
    if kind is None:
        return None
    with name_in_errors(f"ydf {kind}"):
        return _load(model, kind)


def from_folder(path: Path) -> Forest | None:
    """Load the folder of a saved model; return None for a folder that holds something else.

    Raises:
        UnsupportedModel: the package ydf, which reads it, is not installed, or returns a model of
            another kind.
        ModelFormatError, UnsupportedModel: see `from_object`.
    """
    if not any(path.glob("*header.pb")):
        return None
    with name_in_errors(f"'{path}'"):
        try:
            import ydf
        except ImportError:
            what = "the package ydf, which reads it, is not installed"
            raise unsupported("folder", what, "install ydf") from None
        try:
            model = ydf.load_model(str(path))
            forest = from_object(model)
        except ForestError:
            raise
        except Exception as error:  # libraries raise what they like, also of what they have read
            raise damaged("folder", str(error), "save the model again") from error
        if forest is None:
            what = f"{type(model).__name__} cannot be loaded"
            raise unsupported("__class__", what, f"give one of {', '.join(_OBJECTS)}")
        return forest


def _load(model: Any, kind: str) -> Forest:
    task = model.task().name
    if task not in _TASKS:
        raise unsupported("task", f"{task} is not among {', '.join(_TASKS)}", "give another model")
    engines = model.list_compatible_engines()
    if not engines:
        what = "YDF has no fast engine for the model, so that its `predict` refuses it"
        raise unsupported("engine", what, "train with GLOBAL_IMPUTATION")
    spec, columns = model.data_spec(), list(model.input_features_col_idxs())
    inputs = [spec.columns[at] for at in columns]
    for column in inputs:
        _check_column(column)
    sizes, nodes, sets, leaves = read_trees(model, spec, columns)
    if kind == "RandomForestModel":
        values, rules = _read_votes(model, task, leaves)
    else:
        values, rules = _read_boosting(model, task, leaves, engines[0], sizes)
    outputs = len(rules["base_score"])
    nodes["leaf_value"] = np.zeros((len(nodes["left"]), values.shape[1]), np.float32)
    nodes["leaf_value"][nodes["left"] == LEAF] = values
    names = {
        i: _list_labels(column) for i, column in enumerate(inputs) if column.type == CATEGORICAL
    }
    return build_forest(
        sizes,
        nodes,
        np.full(len(sizes), LEAF) if values.shape[1] > 1 else np.arange(len(sizes)) % outputs,
        sets,
        CategoryRule(members_go="right"),
        n_features=len(columns),
        comparison="<",
        category_names=names,
        other_label=0 if names else None,
        feature_names=tuple(model.input_feature_names()),
        takes_by_name=True,
        **rules,
    )


def _check_column(column: Any) -> None:
    if column.type not in _COLUMNS:
        what = f"'{column.name}' is of type {column.type}, which is not among those known"
        raise unsupported(
            "column", what, f"train on columns that are {', '.join(_COLUMNS.values())}"
        )
    if column.type == CATEGORICAL and column.categorical.is_already_integerized:
        what = f"'{column.name}' holds categories as numbers of a dictionary that is not stored"
        raise unsupported("column", what, "train on texts")


def _list_labels(column: Any) -> tuple[str, ...]:
    """Return the texts of a column of categories in the order of their codes."""
    items = column.categorical.items
    labels = sorted(items, key=lambda label: items[label].index)
    if [items[label].index for label in labels] != list(range(len(labels))):
        raise damaged("column", f"'{column.name}' has a dictionary with gaps")
    return tuple(labels)


def _read_boosting(
    model: Any, task: str, leaves: list[Any], engine: str, sizes: Array
) -> tuple[Array, dict[str, Any]]:
    """Return the values of all L leaves, (L, 1), and fields of a Forest of gradient boosted trees.

    Args:
        model: a model of ydf.
        task: the model's task, such as "CLASSIFICATION".
        leaves: the leaves of all trees.
        engine: name of the engine by which YDF predicts.
        sizes: int64 (T,), number of nodes of each tree.
    """
    number = int(model._model.loss())
    loss = _LOSSES[number] if number < len(_LOSSES) else str(number)
    if loss not in _LINKS:
        raise unsupported("loss", f"{loss} is not among {', '.join(_LINKS)}", "train with another")
    classes = len(model.label_classes()) if task == "CLASSIFICATION" else 1
    if loss == "MULTINOMIAL_LOG_LIKELIHOOD" and classes == 2:
        what = f"YDF does not predict by {loss} for two classes"
        raise unsupported("loss", what, "train with BINOMIAL_LOG_LIKELIHOOD")
    if task == "CLASSIFICATION" and model.output_logits():
        what = "the model gives margins in place of probabilities"
        raise unsupported("output_logits", what, "use set_output_logits(False) and predict_margin")
    base = np.asarray(model.initial_predictions(), np.float32)
    values = np.array([leaf.regressor.top_value for leaf in leaves], np.float32)[:, None]
    return values, {
        "base_score": base,
        "base_first": "QuickScorer" in engine,
        "link": _LINKS[loss],
        "n_rounds": len(sizes) // len(base),
        "source": f"ydf {loss}",
    }


def _read_votes(model: Any, task: str, leaves: list[Any]) -> tuple[Array, dict[str, Any]]:
    """Return the values of all L leaves, (L, C), and fields of the Forest of a random forest.

    The values are divided by the number of trees. Arguments are those of `_read_boosting`.
    """
    trees = model.num_trees()
    rules: dict[str, Any] = {"n_rounds": 1, "source": f"ydf random forest {task}"}
    if task != "CLASSIFICATION":
        values = np.array([leaf.regressor.top_value for leaf in leaves], np.float32)
        return (values / np.float32(trees))[:, None], rules | {
            "base_score": np.zeros(1, np.float32)
        }
    classes = len(model.label_classes())
    if classes < 2:
        raise unsupported("label_classes", "there is one class", "train with two or more")
    if model.winner_takes_all():
        votes = np.array([leaf.classifier.top_value for leaf in leaves])
        if np.any(votes < 1):
            what = "a tree votes for no class"
            raise unsupported("top_value", what, "train with a larger min_vocab_frequency")
        values = np.zeros((len(leaves), classes), np.float32)
        values[np.arange(len(leaves)), votes - 1] = np.float32(1) / np.float32(trees)
    else:
        counts = np.array([list(leaf.classifier.distribution.counts) for leaf in leaves])
        total = np.array([leaf.classifier.distribution.sum for leaf in leaves])
        values = (counts[:, 1:] / (total * trees)[:, None]).astype(np.float32)
    if classes == 2:
        values = values[:, 1:]
    base = np.zeros(values.shape[1], np.float32)
    return values, rules | {"base_score": base, "link": "clamp"}
