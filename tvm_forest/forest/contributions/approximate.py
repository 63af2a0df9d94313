"""Approximate contributions of XGBoost's models, as tables of what each leaf adds.

takes: Forest with the cover of its nodes; gives: ApproximateTables.

XGBoost's `approx_contribs` gives each step of a row's path to the feature that is tested there (the
method of Saabas, 2014). With m, the mean of the leaves below a node weighted by cover,

    a step from a node, which tests feature i, to its child    adds m_child - m_node to i
    the root                                                   adds m_root to the last column

So the leaf that a row reaches decides all that a tree adds. Everything is float32, and is computed
in XGBoost's order, so sums have its bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...errors import UnsupportedModel
from .. import Array, Forest
from ..rules import WEIGHTED
from ..structure.edges import list_levels
from . import _Paths


class ApproximateTables(NamedTuple):
    """What each leaf adds to the contributions of a row; an entry is a feature and what it gets.

    Attributes:
        offsets: int64 (T,), for each tree, the number of its node 0.
        starts: int64 (M + 1,), the first entry of each node, where a node of a tree has its number
            in the source model.
        places: int32 (E,), where an entry is added: `output * (F + 1) + feature`.
        values: float32 (E,), what is added there.
        expected: float32 (C,), the last column of each output.
    """

    offsets: Array
    starts: Array
    places: Array
    values: Array
    expected: Array


def make_tables(forest: Forest) -> ApproximateTables:
    """Return the tables of a forest in canonical form.

    Raises:
        UnsupportedModel: no model of XGBoost, leaves that are vectors, trees that are weighted, or
            no cover.
    """
    _check(forest)
    paths = _Paths(forest, np.arange(forest.n_trees))
    with np.errstate(all="ignore"):
        mean = _average(forest)
        leaf, edge, added = _follow(forest, paths, mean)
        expected = np.zeros(forest.n_outputs, np.float32)
        for output, root in zip(forest.tree_class, forest.tree_offset, strict=False):
            expected[output] += mean[root]
        expected += forest.base_score.astype(np.float32)
    sizes = np.zeros(forest.n_trees, np.int64)
    np.maximum.at(sizes, forest.node_tree, forest.node_id + 1)
    offsets, tree = np.cumsum(sizes) - sizes, forest.node_tree[leaf]
    number = offsets[tree] + forest.node_id[leaf]
    order, counts = np.argsort(number, kind="stable"), np.bincount(number, minlength=sizes.sum())
    begin = forest.tree_class[tree].astype(np.int64) * (forest.row_width + 1)
    places = begin + paths.feature[paths.parent[edge]]
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    return ApproximateTables(
        offsets, starts, places[order].astype(np.int32), added[order], expected
    )


def _check(forest: Forest) -> None:
    where = f"predict_contributions: argument 'approximate': the model '{forest.source}'"
    remedy = "leave it out"
    if forest.library != "xgboost":
        what = "only XGBoost has such contributions"
    elif forest.has_vectors:
        what = "leaves are vectors, of which XGBoost gives none either"
    elif forest.source.endswith(WEIGHTED):
        what = "its trees are weighted, and XGBoost averages leaves before that"
    elif " models of " in forest.source:
        what, remedy = "it is a list of models", "build them one by one"
    elif forest.cover is None:
        what = "field 'cover': it does not tell how many training rows reached each node"
        remedy = "load the model from the file or the object of the library"
    else:
        return
    raise UnsupportedModel(f"{where}: {what}; {remedy}")


def _average(forest: Forest) -> Array:
    """Return the mean of the leaves below each node, weighted by cover, float32 (N,)."""
    assert forest.cover is not None, "checked before"
    mean, cover = forest.leaf_value[:, 0].astype(np.float32), forest.cover.astype(np.float32)
    for node, left, right in reversed(list_levels(forest)):
        mean[node] = (mean[left] * cover[left] + mean[right] * cover[right]) / cover[node]
    return mean


def _follow(forest: Forest, paths: _Paths, mean: Array) -> tuple[Array, Array, Array]:
    """Return what each leaf adds to each feature of its path.

    An edge has the number of the node that it leads to. The last edge of a feature on a path stands
    for the feature.

    Returns:
        The leaf, this edge, and what is added, float32: (E,) each.
    """
    total = np.zeros(forest.n_nodes, np.float32)
    for node, *children in list_levels(forest):
        above = paths.above[node]
        before = np.where(above >= 0, total[above], np.float32(0))
        for child in children:
            total[child] = before + (mean[child] - mean[node])
    leaf = edge = np.flatnonzero(forest.is_leaf & (paths.parent >= 0))
    total[leaf] += forest.leaf_value[leaf, 0].astype(np.float32) - mean[leaf]  # 0 but of infinity
    found, earlier = list[Array](), list[Array]()
    while leaf.size:
        node = paths.parent[edge]
        found.append(np.stack([leaf, edge]))
        earlier.append(np.stack([leaf, paths.above[node]]))
        is_below = paths.parent[node] >= 0
        leaf, edge = leaf[is_below], node[is_below]
    pairs, hidden = (
        np.concatenate(x, axis=1) if x else np.zeros((2, 0), int) for x in (found, earlier)
    )
    leaf, edge = pairs[:, ~np.isin(*(x[0] * forest.n_nodes + x[1] for x in (pairs, hidden)))]
    return leaf, edge, total[edge]
