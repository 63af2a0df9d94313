"""Loads XGBoost models: files of 0.90 to 3.x, boosters, and estimators with sklearn's interface.

takes: bytes, Booster or fitted estimator; gives: Forest.

XGBoost adds float32 leaves to a float32 base score, in tree order, and compares float32 rows by
`<`. The header holds the rest: the base score, the objective, whose link turns margins into values,
and the class that each tree adds to.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from ...forest import LEAF, Array, CategoryRule, Forest, LabelRule
from ...forest.rules import WEIGHTED
from ..assemble import build_forest, drop_unreachable, take_sets
from ..objects import find_class
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .binary import is_binary
from .header import Format, Header, even_rounds, read_header
from .objectives import OBJECTIVES, base_margin, find_link
from .trees import BOOSTERS

Labels = tuple[LabelRule, Array | None]

_OBJECTS = (
    "Booster XGBClassifier XGBRFClassifier XGBRegressor XGBRFRegressor XGBRanker XGBModel".split()
)
SUPPORT = [
    *list_accepted("xgboost", "format", ("JSON", "UBJSON"), "XGBoost 1.0 to 3.x"),
    *list_accepted("xgboost", "format", ["binary"], "XGBoost 0.90 to 2.0"),
    *list_accepted("xgboost", "object", _OBJECTS),
    *list_accepted("xgboost", "booster", BOOSTERS),
    *list_linked("xgboost", "objective", {name: link for name, (link, _) in OBJECTIVES.items()}),
    *list_refused(
        "xgboost",
        objective="any other",
        booster="gblinear; dart estimators of XGBoost before 3.0",
        num_target="several targets of several classes; several targets in the binary format",
        num_class="an estimator of 2 classes with one output for each, by multi:softprob, or of "
        "several labels that are all 0",
        base_score="binary:logitraw before 2.0; 0, 1 or nearly so before 3.2 with a logistic link; "
        "no trees before 3.1 with a link",
        version="categories of XGBoost before 1.7",
        expectile_alpha="several expectiles, which add up by functions of another library",
        leaf_weights="vector leaves of XGBoost before 3.2",
        weight_drop="weighted trees in gbtree of XGBoost before 3.3",
    ),
]


def from_bytes(data: bytes, name: str) -> Forest | None:
    """Load the content of a model file; return None if it is not XGBoost's.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    form = _find_format(data)
    if form is None:
        return None
    with name_in_errors(f"xgboost {name}"):
        header = read_header(data, form)
        return _build(header, header.n_trees, _booster_labels(header, np.float32))


def from_object(model: Any) -> Forest | None:
    """Load a Booster or a fitted estimator; return None for any other object.

    An estimator predicts with the trees up to its best iteration, a Booster with all.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    name = find_class(model, "xgboost", _OBJECTS)
    if name is None:
        return None
    with name_in_errors(f"xgboost {type(model).__name__}"):
        try:
            booster = model if name == "Booster" else model.get_booster()
            data = _save(booster)
        except ValueError as error:  # XGBoostError and NotFittedError are both
            what = f"holds no trained model ({_shorten(str(error))})"
            raise damaged("model", what, "train it") from None
        form = _find_format(data)
        if form is None:
            raise damaged("model", "saves itself in an unknown format", "use XGBoost 1.0 to 3.x")
        header = read_header(data, form)
        labels = _booster_labels(header, np.float32)
        if name == "Booster":
            return _build(header, header.n_trees, labels)
        if name.endswith("Classifier"):
            labels = _classifier_labels(model, header)
        about: dict[str, Any] = {
            "missing": _read_missing(model),
            "ignored_columns": ("qid",) if name == "XGBRanker" else (),
            "needs_end": True,
        }
        whole = _build(header, header.n_trees, labels, in_place=True, **about)
        best = _count_best(model, booster, header)
        if best == header.n_trees:
            return whole
        return _build(header, best, labels, in_place=True, **about, with_all_rounds=whole)


def _find_format(data: bytes) -> Format | None:
    """Return the format of a model file, judged by its first bytes; None if it is not XGBoost's.

    Any text that begins with "{" counts as JSON.
    """
    if is_binary(data):
        return "binary"
    head = data[:64].lstrip()
    if not head.startswith(b"{"):
        return None
    return "ubjson" if head[1:2] in b"iUIlL$#N" and len(head) > 1 else "json"


def _save(booster: Any) -> Any:
    """Return a Booster as the bytes of a model file, from XGBoost 1.6 on without copying them."""
    try:
        return booster.save_raw(raw_format="ubj")
    except TypeError:  # before XGBoost 1.6
        return bytes(booster.save_raw())


def _shorten(text: str) -> str:
    """Return the first line of XGBoost's error message, without its time and source file."""
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[\S+\] \S+: ", "", line)[:200]


def _read_missing(model: Any) -> float | None:
    """Return the number that an estimator takes for missing, in addition to NaN; or None."""
    missing = getattr(model, "missing", None)
    with np.errstate(over="ignore"):
        return None if missing is None or math.isnan(missing) else float(np.float32(missing))


def _count_best(model: Any, booster: Any, header: Header) -> int:
    """Return the number of trees up to the best iteration of an estimator; of all if it has none.

    Raises:
        ModelFormatError: the best iteration is none of the model's rounds.
    """
    best = booster.attr("best_iteration")
    if best is None:
        return header.n_trees
    ends = header.round_ends
    if ends is None:  # models of XGBoost before 1.6 do not store it
        parallel = getattr(model, "num_parallel_tree", None) or 1
        ends = even_rounds(header.n_trees, parallel * header.n_outputs)
    if not best.isdecimal() or int(best) >= len(ends):
        raise damaged("best_iteration", f"expected one of {len(ends)} rounds, got '{best}'")
    return ends[int(best)]


def _booster_labels(header: Header, dtype: type[np.generic]) -> Labels:
    if header.objective == "multi:softmax":
        return "top_margin", np.arange(header.n_outputs, dtype=dtype)
    return "none", None


def _classifier_labels(model: Any, header: Header) -> Labels:
    if header.objective == "multi:softmax":
        return _booster_labels(header, np.int32)
    if header.n_outputs == 1:
        return "half", np.arange(2, dtype=np.int64)
    if model.n_classes_ == 2 and not header.objective.startswith("multi:"):
        return "half", np.arange(2, dtype=np.float64)  # several labels, each 0 or 1
    if model.n_classes_ <= 2:
        classes = "1 class" if model.n_classes_ == 1 else f"{model.n_classes_} classes"
        what = f"a classifier of {classes} with {header.n_outputs} outputs predicts no class"
        remedy = "give model.get_booster(), which predicts probabilities"
        raise unsupported("num_class", what, remedy)
    return "argmax_probability", np.arange(header.n_outputs, dtype=np.int64)


def _build(
    header: Header, n_trees: int, labels: Labels, in_place: bool = False, **about: Any
) -> Forest:
    """Build the Forest of a header and its trees.

    Args:
        header: of the model.
        n_trees: how many of the first trees to take.
        labels: the rule by which a label is chosen, and the labels.
        in_place: whether rows are predicted in place, as by estimators; it affects DART's rounding.
        **about: other fields of the Forest.
    """
    link, space = find_link(header)
    base_score = base_margin(header, space)
    trees = header.trees.take_first(n_trees)
    nodes, codes = trees.read_nodes()
    tree_weight = None
    if header.tree_weights is not None:
        if in_place and header.version < (3, 3):
            nodes["bare_value"], tree_weight = nodes["leaf_value"], header.tree_weights[:n_trees]
        weights = np.repeat(header.tree_weights[:n_trees], trees.sizes)[:, None]
        start = np.repeat(base_score[header.tree_class[:n_trees]], trees.sizes)[:, None]
        copied = _weigh(nodes["leaf_value"], weights, start, header, in_place=False)
        nodes["leaf_value"] = _weigh(nodes["leaf_value"], weights, start, header, in_place)
        if np.any(
            (copied.view(np.int32) != nodes["leaf_value"].view(np.int32))[nodes["left"] == LEAF]
        ):
            nodes["copied_value"] = copied
    sizes, nodes = drop_unreachable(trees.sizes, nodes)
    categories = take_sets(nodes, codes)
    if categories and header.version < (1, 7):
        what = f"unknown categories mean another thing since 1.7, got XGBoost {header.release}"
        raise unsupported("version", what, "train again with XGBoost 1.7 or newer")
    ends = header.round_ends or even_rounds(header.n_trees, header.n_outputs)
    n_rounds = int(np.searchsorted(ends, n_trees)) + 1 if n_trees else 0
    return build_forest(
        sizes,
        nodes,
        header.tree_class[:n_trees],
        categories,
        CategoryRule("right"),
        base_score=base_score,
        absent=math.nan,
        in_place="copied_value" in nodes,
        tree_weight=tree_weight,
        comparison="<",
        row_dtype="float32",
        object_dtype="float32",
        link=link,
        label_rule=labels[0],
        labels=labels[1],
        leaf_id_dtype="float32",
        n_rounds=n_rounds,
        rounds_left_out=len(ends) - n_rounds,
        tree_round=np.searchsorted(ends, np.arange(n_trees), side="right").astype(np.int32),
        source=f"xgboost {header.objective}{WEIGHTED * _are_weighted(header, n_trees)}",
        **header.columns,
        **about,
    )


def _are_weighted(header: Header, n_trees: int) -> bool:
    weights = header.tree_weights
    return weights is not None and bool((weights[:n_trees] != 1).any())


@np.errstate(over="ignore", invalid="ignore")
def _weigh(leaf: Array, weights: Array, start: Array, header: Header, in_place: bool) -> Array:
    """Multiply leaf values (N, W) by the weights of their trees, rounding as XGBoost does.

    Before 3.3, `inplace_predict` computes (leaf + base score - base score) * weight, and other
    predictions (leaf + 0) * weight.

    Args:
        leaf: float32 (N, W), the leaf values of the nodes.
        weights, start: float32 (N, 1), the weight of each node's tree, and the base score of the
            output that the tree adds to.
        header: of the model.
        in_place: whether rows are predicted by `inplace_predict`.

    Raises:
        UnsupportedModel: the version of XGBoost rounds in an unknown way.
    """
    if header.version < (3, 3) and in_place:
        if header.version < (3,):
            what = f"'dart' estimators of XGBoost {header.release} round in an unknown way"
            raise unsupported("booster", what, "give model.get_booster()")
        leaf = leaf + start - start
    elif header.version < (3, 3):
        leaf = leaf + np.float32(0)
    return leaf * weights
