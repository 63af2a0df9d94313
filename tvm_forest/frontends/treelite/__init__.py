"""Models of treelite 4: `treelite.Model` objects and checkpoint files.

takes: bytes or treelite.Model; gives: Forest.

Their meaning is that of treelite's own interpreter, GTIL, which differs in the last bits from that
of the library which trained them. Rows, thresholds and leaves have one dtype. Leaf values are added
to zero in tree order, the sum is divided by the number of trees if the model asks for that, and the
base score is added last, in float64. A category is a value cut off to a whole number from 0 on; a
missing value takes the default direction, also at sets. Outputs are the classes of the first
target, then those of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ModelFormatError
from ...forest import LEAF, Array, CategoryRule, Forest, Link
from ..comparisons import one_comparison
from ..refusals import damaged, unsupported
from ..support import Support, accepted, linked, refused
from .checkpoint import Checkpoint, is_checkpoint, read_checkpoint
from .nodes import node_arrays

__all__ = ["from_bytes", "from_object", "is_checkpoint", "is_model", "support"]

_NUMERICAL, _CATEGORICAL = 1, 2
_LT, _LE, _GT, _GE = 2, 3, 4, 5
_WHOLE = 1 << 24
_MOST_VALUES = 1 << 28
_MOST_OUTPUTS = 1 << 16
_LINKS: dict[str, Link] = {
    "identity": "identity",
    "identity_multiclass": "identity",
    "signed_square": "signed_square",
    "hinge": "step",
    "sigmoid": "unbounded_sigmoid",
    "multiclass_ova": "unbounded_sigmoid",
    "exponential": "exp",
    "exponential_standard_ratio": "halving",
    "logarithm_one_plus_exp": "log1p_exp",
    "softmax": "softmax",
}
_REFUSED = {
    "version": "checkpoints of other versions than 4",
    "num_opt_field": "fields of a later version",
    "postprocessor": "any other",
    "cmp": "nodes that ask for equality",
    "category_list": "categories from 2^24 on",
    "leaf_vector": "a list in the place of a single value; over 2^28 leaf values",
    "num_class": "over 2^16 outputs",
    "average_tree_output": "outputs of no tree; trees with vectors for some of the outputs",
}
_MEANING = "with the meaning of treelite's GTIL, which differs in the last bits from the library's"


def support() -> list[Support]:
    """Return what is accepted and refused."""
    return [
        *accepted("treelite", "format", ["checkpoint v4"], _MEANING),
        *accepted("treelite", "object", ["Model"], _MEANING),
        *linked("treelite", "postprocessor", _LINKS),
        *refused("treelite", _REFUSED),
    ]


def is_model(model: Any) -> bool:
    """Tell by names, without importing treelite, whether an object is a treelite.Model."""
    ours = (cls for cls in type(model).__mro__ if cls.__module__.split(".")[0] == "treelite")
    return any(cls.__name__ == "Model" for cls in ours)


def from_object(model: Any) -> Forest:
    """Load a treelite.Model."""
    where = f"treelite {type(model).__name__}"
    if model.handle is None:  # treelite would crash
        raise damaged(where, "model", "holds no model", "load one into it first")
    return from_bytes(model.serialize_bytes(), where)


def from_bytes(data: bytes, where: str) -> Forest:
    """Load a checkpoint.

    Raises:
        ModelFormatError: the checkpoint is damaged.
        UnsupportedModel: it has a part that cannot be reproduced exactly.
    """
    model = read_checkpoint(data, where)
    link = _LINKS.get(model.postprocessor)
    if link is None:
        what = f"'{model.postprocessor:.40}' is not among those known ({', '.join(_LINKS)})"
        raise unsupported(where, "postprocessor", what, "serialize the model with treelite 4.8")
    if link == "softmax" and model.dtype == "float64":
        link = "rounded_softmax"
    arrays = _nodes(model)
    arrays |= _outputs(model, arrays)
    scale = {"unbounded_sigmoid": model.sigmoid_alpha, "halving": model.ratio_c}.get(link, 1.0)
    n_trees = len(model.trees)
    try:
        return Forest(
            **arrays,
            tree_id=np.arange(n_trees, dtype=np.int32),
            n_features=model.num_feature,
            absent=np.nan,
            row_dtype=model.dtype,
            base_first=False,
            aggregate="average" if model.average_tree_output else "sum",
            link=link,
            link_scale=scale,
            leaf_id_dtype=model.dtype,
            n_rounds=n_trees // max(1, int(model.num_class.sum())) or min(1, n_trees),
            source=f"treelite {model.postprocessor}",
        )
    except ModelFormatError as error:
        raise ModelFormatError(f"{where}: field 'trees': {error}") from None


# -- nodes ----------------------------------------------------------------------------------------


def _nodes(model: Checkpoint) -> dict[str, Any]:
    """Fields of nodes, with one comparison, and sets that send their members to the left."""
    width = int(np.prod(model.leaf_vector_shape, dtype=np.float64))
    n_nodes = sum(len(tree["cleft"]) for tree in model.trees)
    if width > 1 and width * n_nodes > _MOST_VALUES:
        raise _too_many(model, width * n_nodes)
    if width == 1 and any(tree["leaf_vector"].size for tree in model.trees):
        what = "a list of values, but 'leaf_vector_shape' asks for single ones"
        raise unsupported(model.where, "leaf_vector", what, "build the model with single values")
    also = ("cmp", "category_list_right_child", "node_type")
    arrays = node_arrays(model.trees, model.where, width, also)
    compares, right, kind = (arrays.pop(name) for name in also)
    inner = arrays["left"] != LEAF
    is_set = inner & (kind == _CATEGORICAL)
    asks = inner & ~is_set
    strange = asks & ((compares < _LT) | (compares > _GE) | (kind != _NUMERICAL))
    if strange.any():
        what = f"a node compares by operator {compares[np.argmax(strange)]}"
        raise unsupported(model.where, "cmp", what, "split by <, <=, > or >=")
    threshold = np.where(asks, arrays["threshold"], 0).astype(model.dtype)
    comparison, threshold, swap = one_comparison(
        asks & ((compares == _LT) | (compares == _GE)),
        asks & ((compares == _GT) | (compares == _GE)),
        threshold,
        asks,
    )
    swap = np.where(is_set, right != 0, swap & asks)
    left, right = arrays["left"], arrays["right"]
    categories = arrays.pop("categories", {})
    top = max((max(codes, default=0) for codes in categories.values()), default=0)
    if top >= _WHOLE:
        remedy = f"number categories from 0 to {_WHOLE - 1}"
        raise unsupported(model.where, "category_list", f"a set holds {top}", remedy)
    return arrays | {
        "threshold": threshold,
        "comparison": comparison,
        "left": np.where(swap, right, left),
        "right": np.where(swap, left, right),
        "default_left": arrays["default_left"] ^ swap,
        "leaf_value": arrays["leaf_value"].astype(model.dtype),
        "categories": categories,
        "category_rule": CategoryRule("left", highest=_WHOLE) if categories else None,
    }


# -- outputs --------------------------------------------------------------------------------------


def _outputs(model: Checkpoint, arrays: dict[str, Any]) -> dict[str, Any]:
    """What trees and base scores add to: the classes of all targets, one target after the other."""
    sizes = model.num_class.astype(np.int64)
    count, most = int(sizes.sum()), int(sizes.max())
    if count > _MOST_OUTPUTS:
        what = f"{count} outputs, more than {_MOST_OUTPUTS}"
        raise unsupported(model.where, "num_class", what, "split the model")
    target = np.repeat(np.arange(len(sizes)), sizes)
    label = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = {
        "base_score": model.base_scores.reshape(len(sizes), most)[target, label],
        "targets": tuple(sizes.tolist()) if len(sizes) > 1 else (),
    }
    if model.leaf_vector_shape == (1, 1):
        return found | _single_values(model, sizes)
    if count * len(arrays["left"]) > _MOST_VALUES:
        raise _too_many(model, count * len(arrays["left"]))
    return found | _vectors(model, arrays, target, label)


def _single_values(model: Checkpoint, sizes: Array) -> dict[str, Array]:
    """Return the output of every tree."""
    n_targets = len(sizes)
    known = (model.target_id >= 0) & (model.target_id < n_targets)
    of = np.where(known, model.target_id, 0)
    wrong = ~known | (model.class_id < 0) | (model.class_id >= sizes[of])
    if wrong.any():
        raise _misfit(model, int(np.argmax(wrong)))
    tree_class = (np.cumsum(sizes) - sizes)[of] + model.class_id
    if model.average_tree_output and len(np.unique(tree_class)) < sizes.sum():
        what = "the sum of no trees divided by their number"
        raise unsupported(model.where, "average_tree_output", what, "leave that output out")
    return {"tree_class": tree_class.astype(np.int32)}


def _vectors(
    model: Checkpoint, arrays: dict[str, Any], target: Array, label: Array
) -> dict[str, Array]:
    """Give every leaf a value for every output; zero changes no sum of other than -0.0."""
    whole = int(target[-1]) + 1, int(label.max()) + 1
    owners, of = np.unique(
        np.stack([model.target_id, model.class_id], axis=1), axis=0, return_inverse=True
    )
    of = np.repeat(of.ravel(), np.diff(arrays["tree_offset"]))
    values = np.zeros((len(of), len(target)), model.dtype)
    for number, ids in enumerate(owners):
        places, given = np.zeros(len(target), np.int64), np.ones(len(target), bool)
        parts = zip(ids, (target, label), model.leaf_vector_shape, whole, strict=True)
        for own, outputs, size, most in parts:
            given &= (outputs == own) if own >= 0 else (own == -1)
            given &= size == (most if own < 0 else 1)
            places = places * size + (outputs if own < 0 else 0)
        if not given.any():
            fits = np.all(np.stack([model.target_id, model.class_id], axis=1) == ids, axis=1)
            raise _misfit(model, int(np.argmax(fits)))
        if model.average_tree_output and not given.all():
            what = "trees with vectors for some outputs only"
            raise unsupported(model.where, "average_tree_output", what, "divide the leaves instead")
        nodes = np.flatnonzero(of == number)
        values[np.ix_(nodes, given)] = arrays["leaf_value"][np.ix_(nodes, places[given])]
    return {"leaf_value": values, "tree_class": np.full(len(model.trees), -1, np.int32)}


def _misfit(model: Checkpoint, tree: int) -> Exception:
    rows, columns = model.leaf_vector_shape
    what = f"tree {tree} is for target {model.target_id[tree]} and class {model.class_id[tree]}"
    return damaged(model.where, "class_id", f"{what}, its leaves hold {rows} by {columns} values")


def _too_many(model: Checkpoint, count: int) -> Exception:
    what = f"{count} leaf values, more than {_MOST_VALUES}"
    return unsupported(model.where, "leaf_vector", what, "split the model")
