"""Converts the arrays in LightGBM's text to arrays over the nodes of all trees.

takes: ModelText; gives: arrays over the nodes of all trees, and rules that belong to them.

LightGBM numbers inner nodes from 0 and leaves from 0: a child -1 is leaf 0, -2 is leaf 1. In the
result the inner nodes of a tree come first, then its leaves. Refused are children and sets that do
not exist, and features whose zeros are missing values at some nodes only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array
from ...forest.rules import ZERO
from ..assemble import Nodes, Sets
from ..refusals import damaged, unsupported
from .text import ModelText, expect_counts

_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of a decision type
_NOTHING_MISSING, _ZERO_MISSING = 0, 1  # its bits above; 2 is NaN
_SMALL = np.float64(ZERO)


def read_nodes(text: ModelText) -> tuple[Array, Nodes, dict[str, Any]]:
    """Return the number of nodes of each tree, arrays over all nodes, and fields of Forest."""
    columns, leaves = text.columns, text.columns["num_leaves"]
    sizes = 2 * leaves - 1
    tree, start = (np.repeat(x, sizes) for x in (np.arange(len(leaves)), np.cumsum(sizes) - sizes))
    number, first_leaf = np.arange(len(tree)) - start, (leaves - 1)[tree]
    inner = number < first_leaf
    nodes = {"node_id": np.where(inner, number, number - first_leaf).astype(np.int32)}

    def spread(at: Array, fill: Any = 0, **arrays: Array) -> None:
        for name, values in arrays.items():
            nodes[name] = np.full((len(inner), *values.shape[1:]), fill, values.dtype)
            nodes[name][at] = values

    for side in ("left", "right"):
        child = columns[f"{side}_child"]
        wrong = child >= first_leaf[inner]
        if wrong.any():
            what = f"tree {tree[inner][np.argmax(wrong)]} has no inner node {child[wrong][0]}"
            raise damaged(f"{side}_child", what)
        spread(inner, LEAF, **{side: np.where(child < 0, first_leaf[inner] + ~child, child)})
    categories = _read_sets(text, np.flatnonzero(inner), tree[inner])
    threshold, nan_left, zero_missing = _read_decisions(text, categories)
    spread(inner, feature=columns["split_feature"], threshold=threshold, default_left=nan_left)
    spread(~inner, leaf_value=columns["leaf_value"][:, None])
    if "leaf_count" in columns:
        spread(inner, cover=columns["internal_count"].astype(np.float64))
        nodes["cover"][~inner] = columns["leaf_count"]
    rules = {"categories": categories, "zero_missing": zero_missing}
    if columns["is_linear"].any():
        const, terms = _read_linear_leaves(columns)
        spread(~inner, leaf_const=const, leaf_terms=terms)
        feature = columns["leaf_features"].astype(np.int32)
        wrong = np.isin(feature, zero_missing)
        if wrong.any():
            what = f"feature {feature[wrong][0]} is a term of a linear leaf, and its zeros are "
            remedy = "train all rounds with zero_as_missing=False"
            raise unsupported("leaf_features", f"{what}missing", remedy)
        rules |= {"term_feature": feature, "term_coefficient": columns["leaf_coeff"]}
    return sizes, nodes, rules


def _read_linear_leaves(columns: dict[str, Array]) -> tuple[Array, Array]:
    """Return the constants of all L leaves, (L,), and the range of each leaf's terms, (L, 2).

    A range is begin and end in the arrays of all terms; constant leaves have empty ranges.
    """
    linear = np.repeat(columns["is_linear"] > 0, columns["num_leaves"])
    const, count = columns["leaf_value"].copy(), np.zeros(len(linear), np.int64)
    const[linear], count[linear] = columns["leaf_const"], columns["num_features"]
    return const, np.stack([np.cumsum(count) - count, np.cumsum(count)], axis=1)


def _read_decisions(text: ModelText, categories: Sets) -> tuple[Array, Array, tuple[int, ...]]:
    """Read the tests of the M inner nodes.

    Returns:
        float64 (M,), the thresholds, moved so that values within 1e-35 of zero go where zero goes;
        bool (M,), whether NaN goes left; and the features whose zeros are missing values: those
        with a node that does not send zero where the comparison would.
    """
    decision, threshold = text.columns["decision_type"], text.columns["threshold"]
    categorical = (decision & _CATEGORICAL) > 0
    default, missing = (decision & _DEFAULT_LEFT) > 0, decision >> 2
    natural = threshold >= 0  # where a comparison, or the set, would send zero
    natural[categorical] = [0 in members[:1] for members in categories.values()]
    nan_left = np.where(missing == _NOTHING_MISSING, natural, default) & ~categorical
    zero_left = np.where((missing == _ZERO_MISSING) & ~categorical, default, natural)
    feature = text.columns["split_feature"]
    zero_missing = np.unique(feature[zero_left != natural])
    wrong = np.isin(feature, zero_missing) & (zero_left != nan_left)
    if wrong.any():
        what = f"zero is missing at some nodes of feature {feature[wrong][0]}, not at all"
        remedy = "train all rounds with the same zero_as_missing and categorical_feature"
        raise unsupported("decision_type", what, remedy)
    below_zero = np.nextafter(-_SMALL, -np.inf)
    threshold = np.where((threshold >= 0) & (threshold < _SMALL), _SMALL, threshold)
    threshold = np.where((threshold < 0) & (threshold >= -_SMALL), below_zero, threshold)
    return threshold, nan_left, tuple(zero_missing.tolist())


def _read_sets(text: ModelText, node: Array, tree: Array) -> Sets:
    """Return the sets of categorical nodes by node, decoded from bits.

    The threshold of such a node is the index of its set among those of its tree.

    Args:
        text: the model.
        node, tree: int64 (M,), the number of each inner node among all nodes, and its tree.
    """
    columns = text.columns
    categorical = (columns["decision_type"] & _CATEGORICAL) > 0
    node, tree, number = (x[categorical] for x in (node, tree, columns["threshold"]))
    sets, bounds = columns["num_cat"], np.append(columns["cat_boundaries"], 0)
    wrong = (number < 0) | (number >= sets[tree]) | (number != np.floor(number))
    if wrong.any():
        what = f"tree {tree[wrong][0]} has {sets[tree[wrong][0]]} sets of categories, got set "
        raise damaged("threshold", f"{what}{number[wrong][0]:g}")
    entries, words = (
        expect_counts(key, columns, len(sets)) for key in ("cat_boundaries", "cat_threshold")
    )
    entry = (np.cumsum(entries) - entries)[tree] + number.astype(np.int64)
    first_word = (np.cumsum(words) - words)[tree]
    begin, end = (32 * (first_word + bounds[entry + step]) for step in (0, 1))
    wrong = (bounds[entry] > bounds[entry + 1]) | (bounds[entry + 1] > words[tree])
    if wrong.any():
        raise damaged("cat_boundaries", f"tree {tree[wrong][0]} has a set without end")
    bits = columns["cat_threshold"].astype("<u4").view(np.uint8)
    member = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    places = (node, np.searchsorted(member, begin), np.searchsorted(member, end), begin)
    return {
        at: tuple((member[low:high] - first).tolist())
        for at, low, high, first in zip(*(x.tolist() for x in places), strict=True)
    }
