"""Loads models of treelite 4: `treelite.Model` objects and checkpoint files.

takes: bytes or treelite.Model; gives: Forest.

The forest predicts as treelite's own interpreter, GTIL, whose results differ in the last bits from
those of the training library. Rows, thresholds and leaves have one dtype. Leaf values are added to
zero in tree order, the sum is divided by the number of trees if the model says so, and the base
score is added last, in float64. A category is a value from 0 on, truncated to a whole number; a
missing value takes the default direction, also at sets. Outputs are the classes of the first
target, then those of the next.

An object is read through its checkpoint, so this package does not import treelite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array, CategoryRule, Forest, Link
from .. import assemble
from ..objects import find_class
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .checkpoint import Checkpoint, is_checkpoint, read_checkpoint

_NUMERICAL, _CATEGORICAL = 1, 2
_LT, _LE, _GT, _GE = 2, 3, 4, 5
_MAX_CATEGORIES = 1 << 24
_MAX_LEAF_VALUES = 1 << 28
_MAX_OUTPUTS = 1 << 16
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
_MEANING = "with the meaning of treelite's GTIL, which differs in the last bits from the library's"

SUPPORT = [
    *list_accepted("treelite", "format", ["checkpoint v4"], _MEANING),
    *list_accepted("treelite", "object", ["Model"], _MEANING),
    *list_linked("treelite", "postprocessor", _LINKS),
    *list_refused(
        "treelite",
        version="checkpoints of other versions than 4",
        num_opt_field="fields of a later version",
        postprocessor="any other",
        cmp="nodes that ask for equality",
        category_list="categories from 2^24 on",
        leaf_vector="a list in the place of a single value; over 2^28 leaf values",
        num_class="over 2^16 outputs",
        average_tree_output="outputs of no tree; trees with vectors for some of the outputs",
    ),
]


def from_object(model: Any) -> Forest | None:
    """Load a treelite.Model; return None for any other object.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    if find_class(model, "treelite", ["Model"]) is None:
        return None
    with name_in_errors(f"treelite {type(model).__name__}"):
        if model.handle is None:  # treelite would crash
            raise damaged("model", "holds no model", "load one into it first")
        return _build(read_checkpoint(model.serialize_bytes()))


def from_bytes(data: bytes, name: str) -> Forest | None:
    """Load a checkpoint; return None for any other file.

    Raises:
        ModelFormatError: the checkpoint is damaged.
        UnsupportedModel: it has a part that cannot be reproduced exactly.
    """
    if not is_checkpoint(data):
        return None
    with name_in_errors(f"treelite {name}"):
        return _build(read_checkpoint(data))


def _build(model: Checkpoint) -> Forest:
    link = _LINKS.get(model.postprocessor)
    if link is None:
        what = f"'{model.postprocessor:.40}' is not among those known ({', '.join(_LINKS)})"
        raise unsupported("postprocessor", what, "serialize the model with treelite 4.8")
    if link == "softmax" and model.dtype == "float64":
        link = "rounded_softmax"
    scale = {"unbounded_sigmoid": model.sigmoid_alpha, "halving": model.ratio_c}.get(link, 1.0)
    sizes, nodes, rules = _read_nodes(model)
    nodes["leaf_value"], tree_class, outputs = _read_outputs(model, sizes, nodes["leaf_value"])
    n_trees = len(sizes)
    return assemble.build_forest(
        sizes,
        nodes,
        tree_class,
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
        **rules,
        **outputs,
    )


# -- nodes ----------------------------------------------------------------------------------------


def _read_nodes(model: Checkpoint) -> tuple[Array, assemble.Nodes, dict[str, Any]]:
    """Return sizes of trees, arrays over nodes, and fields of Forest: comparison and sets."""
    columns = model.columns
    kind = columns["node_type"]
    statistics = (columns[name] for name in ("sum_hess", "data_count"))
    cover = next((values for values in statistics if not np.isnan(values).any()), None)
    sizes, nodes = assemble.drop_unreachable(
        model.sizes,
        {
            "left": columns["cleft"],
            "right": columns["cright"],
            "feature": columns["split_index"],
            "threshold": columns["threshold"],
            "default_left": columns["default_left"].astype(bool),
            "leaf_value": _read_leaves(model),
            "begin": np.where(kind == _CATEGORICAL, columns["category_list_begin"], -1),
            "end": columns["category_list_end"],
            "kind": kind,
            "cmp": columns["cmp"],
            "swap": columns["category_list_right_child"] != 0,
            **({} if cover is None else {"cover": cover}),
        },
    )
    kind, operator, swap_set = (nodes.pop(name) for name in ("kind", "cmp", "swap"))
    inner = nodes["left"] != LEAF
    is_set = inner & (kind == _CATEGORICAL)
    compares = inner & ~is_set
    strange = compares & ((operator < _LT) | (operator > _GE) | (kind != _NUMERICAL))
    if strange.any():
        what = f"a node compares by operator {operator[np.argmax(strange)]}"
        raise unsupported("cmp", what, "split by <, <=, > or >=")
    strict = compares & ((operator == _LT) | (operator == _GE))
    reverse = np.where(is_set, swap_set, compares & ((operator == _GT) | (operator == _GE)))
    comparison, nodes["threshold"], swap = assemble.unify_comparisons(
        strict, reverse, nodes["threshold"], compares
    )
    nodes["left"], nodes["right"] = assemble.exchange(nodes["left"], nodes["right"], swap)
    nodes["default_left"] = nodes["default_left"] ^ swap
    sets = assemble.take_sets(nodes, columns["category_list"])
    top = max((max(codes, default=0) for codes in sets.values()), default=0)
    if top >= _MAX_CATEGORIES:
        remedy = f"number categories from 0 to {_MAX_CATEGORIES - 1}"
        raise unsupported("category_list", f"a set holds {top}", remedy)
    rule = CategoryRule("left", highest=_MAX_CATEGORIES)
    return sizes, nodes, {"comparison": comparison, "categories": sets, "category_rule": rule}


def _read_leaves(model: Checkpoint) -> Array:
    """Return leaf values (N, W); W is the number of values in a leaf."""
    columns = model.columns
    width = int(np.prod(model.leaf_vector_shape, dtype=np.float64))
    values, is_leaf = columns["leaf_vector"], columns["cleft"] == LEAF
    if width == 1:
        if values.size:
            what = "a list of values, but 'leaf_vector_shape' asks for single ones"
            raise unsupported("leaf_vector", what, "build the model with single values")
        return columns["leaf_value"][:, None]
    _limit_values(width * len(is_leaf))
    begin, end = columns["leaf_vector_begin"], columns["leaf_vector_end"]
    wrong = is_leaf & (end - begin != width)
    if wrong.any():
        what = f"a leaf holds {(end - begin)[np.argmax(wrong)]} values, expected {width}"
        raise damaged("leaf_vector", what)
    vectors = np.zeros((len(is_leaf), width), values.dtype)
    vectors[is_leaf] = values[begin[is_leaf, None] + np.arange(width)]
    return vectors


def _limit_values(count: int) -> None:
    if count > _MAX_LEAF_VALUES:
        what = f"{count} leaf values, more than {_MAX_LEAF_VALUES}"
        raise unsupported("leaf_vector", what, "split the model")


# -- outputs --------------------------------------------------------------------------------------


def _read_outputs(
    model: Checkpoint, sizes: Array, leaf_value: Array
) -> tuple[Array, Array, dict[str, Any]]:
    """Return leaf values, the output of each tree (-1 for vectors), and base scores and targets.

    Outputs are the classes of all targets, one target after the other.
    """
    classes = model.num_class.astype(np.int64)
    count, most = int(classes.sum()), int(classes.max())
    if count > _MAX_OUTPUTS:
        what = f"{count} outputs, more than {_MAX_OUTPUTS}"
        raise unsupported("num_class", what, "split the model")
    target = np.repeat(np.arange(len(classes)), classes)
    label = np.arange(count) - np.repeat(np.cumsum(classes) - classes, classes)
    rules = {
        "base_score": model.base_scores.reshape(len(classes), most)[target, label],
        "targets": tuple(classes.tolist()) if len(classes) > 1 else (),
    }
    if model.leaf_vector_shape == (1, 1):
        return leaf_value, _find_classes(model, classes), rules
    _limit_values(count * len(leaf_value))
    leaf_value = _spread_vectors(model, sizes, leaf_value, target, label)
    return leaf_value, np.full(len(sizes), LEAF), rules


def _find_classes(model: Checkpoint, classes: Array) -> Array:
    """Return the index of the output that each tree adds to, if leaves hold single values.

    Args:
        model: the fields of the model.
        classes: int64 (targets,), number of classes of each target.
    """
    known = (model.target_id >= 0) & (model.target_id < len(classes))
    target = np.where(known, model.target_id, 0)
    wrong = ~known | (model.class_id < 0) | (model.class_id >= classes[target])
    if wrong.any():
        raise _misfit(model, int(np.argmax(wrong)))
    tree_class = (np.cumsum(classes) - classes)[target] + model.class_id
    if model.average_tree_output and len(np.unique(tree_class)) < classes.sum():
        what = "the sum of no trees divided by their number"
        raise unsupported("average_tree_output", what, "leave that output out")
    return tree_class


def _spread_vectors(
    model: Checkpoint, sizes: Array, leaf_value: Array, target: Array, label: Array
) -> Array:
    """Return leaf values (N, C), in which every leaf has a value for every output, 0 for none.

    Adding 0 changes no sum, except -0.0, which cannot occur in a sum that starts from zero.

    Args:
        model: the fields of the model.
        sizes: int64 (T,), number of nodes of each tree.
        leaf_value: (N, W), the leaf values as the model holds them.
        target, label: int64 (C,), the target of each output, and its class within that target.
    """
    whole = int(target[-1]) + 1, int(label.max()) + 1
    tree_ids = np.stack([model.target_id, model.class_id], axis=1)
    owners, owner = np.unique(tree_ids, axis=0, return_inverse=True)
    owner = np.repeat(owner.ravel(), sizes)
    values = np.zeros((len(owner), len(target)), model.dtype)
    for number, ids in enumerate(owners):
        places, has_value = np.zeros(len(target), np.int64), np.ones(len(target), bool)
        parts = zip(ids, (target, label), model.leaf_vector_shape, whole, strict=True)
        for own, outputs, size, most in parts:
            has_value &= (outputs == own) if own >= 0 else (own == -1)
            has_value &= size == (most if own < 0 else 1)
            places = places * size + (outputs if own < 0 else 0)
        if not has_value.any():
            raise _misfit(model, int(np.argmax(np.all(tree_ids == ids, axis=1))))
        if model.average_tree_output and not has_value.all():
            what = "trees with vectors for some outputs only"
            raise unsupported("average_tree_output", what, "divide the leaves instead")
        nodes = np.flatnonzero(owner == number)
        values[np.ix_(nodes, has_value)] = leaf_value[np.ix_(nodes, places[has_value])]
    return values


def _misfit(model: Checkpoint, tree: int) -> Exception:
    rows, columns = model.leaf_vector_shape
    what = f"tree {tree} is for target {model.target_id[tree]} and class {model.class_id[tree]}"
    return damaged("class_id", f"{what}, its leaves hold {rows} by {columns} values")
