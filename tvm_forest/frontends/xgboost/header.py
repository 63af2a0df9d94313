"""What an XGBoost model says about itself, apart from its trees.

takes: bytes of a JSON or UBJSON model, or of the old binary format; gives: Header.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from ...forest import Array
from ..document import Node, once_rounded
from ..refusals import damaged, unsupported
from . import binary as xgboost_binary
from . import ubjson
from .trees import UNUSED, Trees

Format = Literal["json", "ubjson", "binary"]
BOOSTERS = ("gbtree", "dart")
_MOST_CLASSES = 2**16  # of a model without trees
_TRUNCATED = "the file is truncated or damaged: save the model again"
# Numbers only, and a quote inside of a string has a backslash before it, so these are members.
_UNUSED = re.compile(rb'"(?<!\\")(%s)"\s*:\s*\[[^][{}"]*\]' % "|".join(UNUSED).encode())
_LIGHTGBM = "a dump of LightGBM", "give the file that Booster.save_model writes"
_CATBOOST = "a model of CatBoost", "train with XGBoost, LightGBM or scikit-learn"
_OTHERS = {"tree_info": _LIGHTGBM, "oblivious_trees": _CATBOOST, "features_info": _CATBOOST}
"""What other documents are, by a member that XGBoost's have not."""


@dataclass(frozen=True)
class Header:
    """The checked header of a model.

    Attributes:
        where: place that error messages name.
        version: of the XGBoost that wrote the model; (0, 0) for one before 1.0.
        objective: name of the objective.
        base_score: float32, one number or one per output, as written.
        has_estimate: whether the base score is more than what stands there before training.
        n_features: number of features.
        n_outputs: number of classes or targets, 1 for a model without them.
        tree_class: int64 (T,), the output of each tree; -1 if its leaves hold vectors.
        trees: the trees.
        round_ends: number of trees after each boosting round; None where the model does not tell.
        feature_names: names of the columns, or None.
        category_names: per feature, what a frame calls category 0, 1, 2, ...
        tree_weights: float32 (T,), what DART multiplies the leaves of each tree with, else None.
    """

    where: str
    version: tuple[int, ...]
    objective: str
    base_score: Array
    has_estimate: bool
    n_features: int
    n_outputs: int
    tree_class: Array
    trees: Trees
    round_ends: tuple[int, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    category_names: dict[int, tuple[str | int, ...]] = field(default_factory=dict)
    tree_weights: Array | None = None

    def __post_init__(self) -> None:
        classes = self.tree_class
        if classes.size and (classes.min() < -1 or classes.max() >= self.n_outputs):
            wrong = int(np.argmax((classes < -1) | (classes >= self.n_outputs)))
            what = f"tree {wrong} is of class {classes[wrong]} of {self.n_outputs}"
            raise damaged(self.where, "tree_info", what)
        most = _MOST_CLASSES if self.trees.width > 1 else self.n_trees or _MOST_CLASSES
        if self.n_outputs > most:
            what = f"{self.n_outputs} classes for {self.n_trees} trees"
            raise damaged(self.where, "num_class", what)
        if self.base_score.size not in (1, self.n_outputs):
            what = f"{self.base_score.size} values for {self.n_outputs} outputs"
            raise damaged(self.where, "base_score", what)

    @property
    def n_trees(self) -> int:
        """T."""
        return len(self.tree_class)


def read_header(data: bytes, kind: Format, where: str) -> Header:
    """Read the header of a model and refuse what cannot be compiled."""
    if kind == "binary":
        document = xgboost_binary.document(data, where)
        return _from_document(Node(document, where, "document"), oldest=0)
    try:
        if kind == "json":
            document = json.loads(_UNUSED.sub(rb'"\1":null', data), parse_float=once_rounded)
        else:
            document = ubjson.loads(data)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # positions do not hold in a shortened document
        what = f"not valid {kind.upper()}: {reason}"
        raise damaged(where, "document", what, _TRUNCATED) from None
    return _from_document(Node(document, where, "document"), oldest=1)


def _from_document(root: Node, oldest: int) -> Header:
    other = next((key for key in _OTHERS if isinstance(root.value, dict) and key in root.value), "")
    if other:
        what, remedy = _OTHERS[other]
        raise unsupported(root.where, other, f"this is {what}, not of XGBoost", remedy)
    learner = root.child("learner")
    version = tuple(root.get("version", []).integers()) or (1, 0)
    if version[0] < oldest or min(version) < 0:
        raise root.child("version").wrong("a version of 1.0 or newer")
    name, model = _booster(learner)
    param = learner.child("learner_model_param")
    param.knows("base_score", "boost_from_average", "num_class", "num_feature", "num_target")
    n_features = param.child("num_feature").integer()
    n_outputs = _n_outputs(root.where, *(param.get("num_" + n, 0) for n in ("class", "target")))
    tree_class = np.array(model.child("tree_info").integers(), np.int64)
    if np.any(tree_class < 0):
        raise model.child("tree_info").wrong("no negative numbers")
    trees = Trees.read(model.child("trees"), len(tree_class), n_outputs)
    return Header(
        where=root.where,
        version=version,
        objective=learner.child("objective").child("name").text(),
        base_score=param.child("base_score").numbers(),
        has_estimate=param.get("boost_from_average", 1).integer() == 0 or len(tree_class) > 0,
        n_features=n_features,
        n_outputs=n_outputs,
        tree_class=np.full_like(tree_class, -1) if trees.width > 1 else tree_class,
        trees=trees,
        round_ends=_round_ends(model, len(tree_class), 1 if trees.width > 1 else n_outputs),
        feature_names=_feature_names(learner, n_features),
        category_names=_category_names(model.get("cats", {}), n_features, version),
        tree_weights=_tree_weights(learner, name, model, version, len(tree_class)),
    )


def _booster(learner: Node) -> tuple[str, Node]:
    """Return the name of the booster and its trees with what belongs to them."""
    booster = learner.child("gradient_booster")
    name = booster.child("name").text()
    if name not in BOOSTERS:
        what = f"expected 'gbtree' or 'dart', got '{name:.40}'"
        raise unsupported(booster.where, "booster", what, "only trees can be compiled")
    booster.knows("name", "model", "gbtree", "weight_drop")
    model = (booster.child("gbtree") if name == "dart" else booster).child("model")
    model.knows(
        "cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees", "weight_drop"
    )
    return name, model


def _n_outputs(where: str, n_classes: Node, n_targets: Node) -> int:
    classes, targets = max(n_classes.integer(), 1), max(n_targets.integer(), 1)
    if classes > 1 and targets > 1:
        what = f"{targets} targets of {classes} classes"
        raise unsupported(where, "num_target", what, "train one model per target")
    return max(classes, targets)


def _tree_weights(
    learner: Node, name: str, model: Node, version: tuple[int, ...], n_trees: int
) -> Array | None:
    """Return the weights of trees, which belong to the model since 3.4, before to the booster."""
    booster = learner.child("gradient_booster")
    holder = booster if "weight_drop" in booster.value else model
    if name == "gbtree" and not np.size(holder.get("weight_drop", []).value):
        return None
    if name == "gbtree" and version < (3, 3):
        what = f"XGBoost {dotted(version)} knows no trees with weights in 'gbtree'"
        raise unsupported(learner.where, "weight_drop", what, "save the model with XGBoost 3.4")
    weights = holder.child("weight_drop").numbers()
    if len(weights) != n_trees:
        raise holder.child("weight_drop").wrong(f"{n_trees} numbers")
    return weights


def _round_ends(model: Node, n_trees: int, n_outputs: int) -> tuple[int, ...] | None:
    bounds = model.get("iteration_indptr", []).integers()
    if bounds:
        if bounds[0] != 0 or bounds[-1] != n_trees or np.any(np.diff(bounds) < 0):
            raise model.child("iteration_indptr").wrong(f"bounds of {n_trees} trees")
        return tuple(bounds[1:])
    parallel = model.get("gbtree_model_param", {}).get("num_parallel_tree", 0).integer()
    return even_rounds(n_trees, parallel * n_outputs) if parallel else None


def even_rounds(n_trees: int, size: int) -> tuple[int, ...]:
    """Return the number of trees after each boosting round of `size` trees."""
    return tuple(range(size, n_trees + 1, size))


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(str(part) for part in version)


def _feature_names(learner: Node, n_features: int) -> tuple[str, ...] | None:
    names = learner.get("feature_names", []).texts()
    if len(names) not in (0, n_features):
        raise damaged(
            learner.where, "feature_names", f"{len(names)} names for {n_features} features"
        )
    return tuple(names) or None


def _category_names(
    cats: Node, n_features: int, version: tuple[int, ...]
) -> dict[int, tuple[str | int, ...]]:
    """Return the names of the categories of each feature that has some, in the order of codes.

    Features whose names are not certain are left out: before 3.4, XGBoost counted the characters of
    pandas' names where it cut their bytes, but not those of the names of others.
    """
    columns = cats.get("enc", []).value
    if not isinstance(columns, list) or len(columns) not in (0, n_features):
        raise damaged(cats.where, "enc", f"expected the categories of {n_features} features")
    names = (_names(Node(column, cats.where, "enc"), version < (3, 4)) for column in columns)
    return {feature: found for feature, found in enumerate(names) if found}


def _names(column: Node, ascii_only: bool) -> tuple[str | int, ...]:
    values = column.child("values").integers()
    if "offsets" not in column.value:
        return tuple(values)
    text = bytes(value & 0xFF for value in values)
    ends = column.child("offsets").integers() or [0]
    if ends[0] != 0 or ends[-1] != len(text) or np.any(np.diff(ends) < 0):
        raise column.child("offsets").wrong(f"bounds of {len(text)} bytes")
    if ascii_only and not text.isascii():
        return ()
    try:
        found = tuple(text[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError:
        return ()
    return found if len(set(found)) == len(found) else ()
