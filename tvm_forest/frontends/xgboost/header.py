"""Reads the header of an XGBoost model: everything but its trees.

takes: bytes of a JSON or UBJSON model, or of the old binary format; gives: Header.

Refused are documents of other libraries, boosters without trees, unknown fields, and counts that
contradict each other.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from ..refusals import TRUNCATED, damaged, unsupported
from . import plain_json, plain_ubjson, ubjson
from .binary import read_binary
from .document import Field, lie_between, once_rounded
from .trees import BOOSTERS, UNUSED, DocumentTrees

Format = Literal["json", "ubjson", "binary"]
Version = tuple[int, ...]
_MAX_CLASSES = 2**16  # bounds the classes of a model without trees
# Numbers only, and a quote inside of a string has a backslash before it, so these are members.
_UNUSED = re.compile(rb'"(?<!\\")(%s)"\s*:\s*\[[^][{}"]*\]' % "|".join(UNUSED).encode())
_OTHERS = {
    "tree_info": ("a dump of LightGBM", "give the file that Booster.save_model writes"),
}
"""Other documents, by a member that XGBoost's lack: a description, and a remedy."""


@dataclass(frozen=True)
class Header:
    """The checked header of a model.

    Attributes:
        version: the version of XGBoost that wrote the model; (0, 0) for one before 1.0.
        objective: name of the objective.
        base_score: float32, one number or one per output, as stored.
        has_estimate: whether the base score is final; without trees it may still be a placeholder,
            which training would replace by an estimate.
        n_outputs: number of classes or targets, 1 for a model without them.
        tree_class: int64 (T,), the output of each tree; -1 if its leaves hold vectors.
        trees: the trees.
        round_ends: total number of trees after each boosting round; None if the model stores
            neither this nor the number of trees of a round.
        tree_weights: float32 (T,), a factor of each tree's leaves, as DART has; None without them.
        columns: fields of a Forest about the columns of rows.
    """

    version: Version
    objective: str
    base_score: Array
    has_estimate: bool
    n_outputs: int
    tree_class: Array
    trees: DocumentTrees
    round_ends: tuple[int, ...] | None
    tree_weights: Array | None
    columns: dict[str, Any]

    def __post_init__(self) -> None:
        classes = self.tree_class
        wrong = (classes < -1) | (classes >= self.n_outputs)
        if wrong.any():
            tree = int(np.argmax(wrong))
            what = f"tree {tree} is of class {classes[tree]} of {self.n_outputs}"
            raise damaged("tree_info", what)
        most = _MAX_CLASSES if self.trees.width > 1 else self.n_trees or _MAX_CLASSES
        if self.n_outputs > most:
            raise damaged("num_class", f"{self.n_outputs} classes for {self.n_trees} trees")
        if self.base_score.size not in (1, self.n_outputs):
            what = f"{self.base_score.size} values for {self.n_outputs} outputs"
            raise damaged("base_score", what)

    @property
    def n_trees(self) -> int:
        """T, the number of trees."""
        return len(self.tree_class)

    @property
    def release(self) -> str:
        """The version as text, such as "2.1.0"."""
        return ".".join(map(str, self.version))


def read_header(data: bytes, kind: Format) -> Header:
    """Return the checked header of a model file of the format `kind`.

    Raises:
        ModelFormatError: the file is truncated or damaged, or its parts contradict each other.
        UnsupportedModel: it has a part that cannot be compiled, or is of another library.
    """
    if kind == "binary":
        return _read_document(Field(read_binary(data), "document"), oldest=0)
    try:
        document = (plain_json if kind == "json" else plain_ubjson).loads(data)
        if document is None:
            document = _read_json(data) if kind == "json" else ubjson.loads(data)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)  # positions do not hold in a shortened document
        raise damaged("document", f"not valid {kind.upper()}: {reason}", TRUNCATED) from None
    return _read_document(Field(document, "document"), oldest=1)


def _read_json(data: bytes) -> Any:
    """Read JSON in any form; numbers are rounded as XGBoost rounds them."""
    data = _UNUSED.sub(b'"parents":null', data)
    document = json.loads(data)
    return json.loads(data, parse_float=once_rounded) if lie_between(document) else document


def _read_document(root: Field, oldest: int) -> Header:
    other = next((key for key in _OTHERS if isinstance(root.value, dict) and key in root.value), "")
    if other:
        what, remedy = _OTHERS[other]
        raise unsupported(other, f"this is {what}, not of XGBoost", remedy)
    learner = root.member("learner")
    version = tuple(root.member("version", []).as_integers()) or (1, 0)
    if version[0] < oldest or min(version) < 0:
        raise root.member("version").error("a version of 1.0 or newer")
    booster = learner.member("gradient_booster")
    model = _find_model(booster)
    param = learner.member("learner_model_param")
    param.refuse_others(
        "base_score", "boost_from_average", "num_class", "num_feature", "num_target"
    )
    n_features = param.member("num_feature").as_integer()
    n_outputs = _count_outputs(param)
    tree_class = np.array(model.member("tree_info").as_integers(), np.int64)
    n_trees = len(tree_class)
    if np.any(tree_class < 0):
        raise model.member("tree_info").error("no negative numbers")
    trees = DocumentTrees.read(model.member("trees"), n_trees, n_outputs)
    return Header(
        version=version,
        objective=learner.member("objective").member("name").as_text(),
        base_score=param.member("base_score").as_numbers(),
        has_estimate=param.member("boost_from_average", 1).as_integer() == 0 or n_trees > 0,
        n_outputs=n_outputs,
        tree_class=np.full_like(tree_class, -1) if trees.width > 1 else tree_class,
        trees=trees,
        round_ends=_read_round_ends(model, n_trees, 1 if trees.width > 1 else n_outputs),
        tree_weights=_read_tree_weights(booster, model, version, n_trees),
        columns=_read_columns(learner, model, n_features, version),
    )


def _find_model(booster: Field) -> Field:
    """Return the member of the booster that holds the trees."""
    name = booster.member("name").as_text()
    if name not in BOOSTERS:
        what = f"expected 'gbtree' or 'dart', got '{name:.40}'"
        raise unsupported("booster", what, "only trees can be compiled")
    booster.refuse_others("name", "model", "gbtree", "weight_drop")
    model = (booster.member("gbtree") if name == "dart" else booster).member("model")
    known = "cats gbtree_model_param iteration_indptr tree_info trees weight_drop"
    model.refuse_others(*known.split())
    return model


def _count_outputs(param: Field) -> int:
    classes, targets = (
        max(param.member(name, 0).as_integer(), 1) for name in ("num_class", "num_target")
    )
    if classes > 1 and targets > 1:
        what = f"{targets} targets of {classes} classes"
        raise unsupported("num_target", what, "train one model per target")
    return max(classes, targets)


def _read_tree_weights(
    booster: Field, model: Field, version: Version, n_trees: int
) -> Array | None:
    """Return the weights of trees, or None; since 3.4 they are in the model, not the booster."""
    holder = booster if "weight_drop" in booster.value else model
    if booster.value["name"] == "gbtree":
        if not np.size(holder.member("weight_drop", []).value):
            return None
        if version < (3, 3):
            release = ".".join(map(str, version))
            what = f"XGBoost {release} knows no trees with weights in 'gbtree'"
            raise unsupported("weight_drop", what, "save the model with XGBoost 3.4")
    weights = holder.member("weight_drop").as_numbers()
    if len(weights) != n_trees:
        raise holder.member("weight_drop").error(f"{n_trees} numbers")
    return weights


def _read_round_ends(model: Field, n_trees: int, n_outputs: int) -> tuple[int, ...] | None:
    bounds = model.member("iteration_indptr", [])
    if bounds.as_integers():
        return tuple(bounds.as_bounds(n_trees, "trees")[1:])
    parallel = model.member("gbtree_model_param", {}).member("num_parallel_tree", 0).as_integer()
    return even_rounds(n_trees, parallel * n_outputs) if parallel else None


def even_rounds(n_trees: int, size: int) -> tuple[int, ...]:
    """Return the total number of trees after each boosting round, if a round has `size` trees."""
    return tuple(range(size, n_trees + 1, size))


def _read_columns(
    learner: Field, model: Field, n_features: int, version: Version
) -> dict[str, Any]:
    """Return fields of Forest: names of the features, and labels of their categories.

    Features with uncertain labels are left out: for pandas, XGBoost before 3.4 counted characters
    of labels where it meant bytes.
    """
    names = learner.member("feature_names", []).as_texts()
    if len(names) not in (0, n_features):
        raise damaged("feature_names", f"{len(names)} names for {n_features} features")
    cats = model.member("cats", {}).member("enc", []).value
    if not isinstance(cats, list) or len(cats) not in (0, n_features):
        raise damaged("enc", f"expected the categories of {n_features} features")
    categories = [_read_categories(Field(column, "enc"), version < (3, 4)) for column in cats]
    return {
        "n_features": n_features,
        "feature_names": tuple(names) or None,
        "category_names": {feature: known for feature, known in enumerate(categories) if known},
        "refuses": ("category",) if any(categories) else (),
    }


def _read_categories(column: Field, ascii_only: bool) -> tuple[Any, ...]:
    values = column.member("values").as_integers()
    if "offsets" not in column.value:
        return tuple(values)
    text = bytes(value & 0xFF for value in values)
    ends = column.member("offsets").as_bounds(len(text), "bytes")
    if ascii_only and not text.isascii():
        return ()
    try:
        names = tuple(text[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError:
        return ()
    return names if len(set(names)) == len(names) else ()
