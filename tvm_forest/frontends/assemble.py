"""Builds a Forest from arrays over the nodes of all trees; shared by all readers.

takes: sizes of the trees, arrays over their nodes, rules; gives: Forest.

The arrays have the names of fields of `Forest`, and hold the trees one after the other. Entries
without a meaning may hold anything: the feature and threshold of a leaf, the leaf value of an inner
node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ModelFormatError
from ..forest import LEAF, Array, CategoryRule, Comparison, Forest, node_depths

Nodes = dict[str, Array]
Sets = dict[int, tuple[int, ...]]


def build_forest(
    sizes: Array,
    nodes: Nodes,
    tree_class: Array,
    categories: Sets | None = None,
    category_rule: CategoryRule | None = None,
    part: str = "trees",
    **rules: Any,
) -> Forest:
    """Return the Forest of the given trees, inputs and outputs.

    Args:
        sizes: int64 (T,), number of nodes of each tree.
        nodes: arrays over the nodes, which are removed one by one, so that large ones do not stay
            beside those of the Forest; by default, `node_id` numbers the nodes within each tree.
        tree_class: (T,), the output that a tree adds to, -1 if its leaves hold vectors.
        categories: the set of each categorical node.
        category_rule: see `InputMeaning`; ignored if no node tests for a set.
        part: the name of the trees in error messages.
        **rules: all other fields of the Forest.

    Raises:
        ModelFormatError: the arrays do not fit together.
    """
    is_leaf, categories = nodes["left"] == LEAF, categories or {}
    compares = ~is_leaf
    compares[list(categories)] = False
    leaf, take = np.int32(LEAF), nodes.pop
    fields: dict[str, Any] = {
        "tree_offset": np.append(0, np.cumsum(sizes)).astype(np.int64),
        "feature": np.where(is_leaf, leaf, take("feature").astype(np.int32)),
        "threshold": _keep(compares, take("threshold")),
        "left": take("left").astype(np.int32),
        "right": np.where(is_leaf, leaf, take("right").astype(np.int32)),
        "default_left": take("default_left").astype(bool) & ~is_leaf,
        "tree_class": tree_class.astype(np.int32),
        "tree_id": np.arange(len(sizes), dtype=np.int32),
    }
    for name in ("leaf_value", "copied_value", "bare_value"):
        if name in nodes:
            fields[name] = _keep(is_leaf[:, None], take(name))
    fields = {"node_id": _number_nodes(sizes), **nodes, **rules, **fields}
    rule = category_rule if categories else None
    try:
        return Forest(**fields, categories=categories, category_rule=rule)
    except ModelFormatError as error:
        raise ModelFormatError(f"field '{part}': {error}") from None


def _keep(where: Array, array: Array) -> Array:
    """Return a copy with 0 where a condition does not hold."""
    return np.where(where, array, array.dtype.type(0))


def drop_unreachable(sizes: Array, nodes: Nodes) -> tuple[Array, Nodes]:
    """Remove unreachable nodes, and renumber the children.

    XGBoost keeps such nodes where it has pruned a tree. `node_id` keeps the numbers of the source.

    Args:
        sizes: int64 (T,), number of nodes of each tree.
        nodes: arrays over the nodes, all of which lose the same entries.

    Returns:
        Sizes and arrays without those nodes. If a child lies outside of its tree, all nodes are
        kept: `Forest` refuses them.
    """
    offset = np.append(0, np.cumsum(sizes))
    inner = nodes["left"] != LEAF
    left, right = nodes["left"], np.where(inner, nodes["right"], LEAF)
    nodes = nodes | {"right": right, "node_id": _number_nodes(sizes)}
    size = np.repeat(sizes, sizes)
    if np.any(inner & ((left < 1) | (left >= size) | (right < 1) | (right >= size))):
        return sizes, nodes
    if 2 * np.count_nonzero(inner) == len(inner) - len(sizes):  # all but roots are children
        return sizes, nodes
    keep = node_depths(offset, left, right) >= 0
    start, place = np.repeat(offset[:-1], sizes)[keep], np.append(0, np.cumsum(keep))
    nodes = {name: values[keep] for name, values in nodes.items()}
    for name in ("left", "right"):
        child = nodes[name]
        nodes[name] = np.where(child == LEAF, LEAF, place[start + child] - place[start])
    return np.diff(place[offset]), nodes


def take_sets(nodes: Nodes, codes: Array) -> Sets:
    """Return the sets of categories that nodes test for, by the number of the node.

    Args:
        nodes: arrays over nodes. Its entries `begin` and `end`, which are removed, are each node's
            range in `codes`; `begin` is -1 for nodes without a set.
        codes: the categories of all nodes, one set after the other.
    """
    begin, end = nodes.pop("begin"), nodes.pop("end")
    asks = np.flatnonzero(begin >= 0).tolist()
    return {node: tuple(codes[begin[node] : end[node]].tolist()) for node in asks}


def unify_comparisons(
    strict: Array, reverse: Array, threshold: Array, compares: Array
) -> tuple[Comparison, Array, Array]:
    """Rewrite `<`, `<=`, `>` and `>=` as one of `<` and `<=`, exactly for the rows' dtype.

    `x >= t` is `x < t` with its children exchanged, `x < t` is `x <= nextafter(t, -inf)`.

    Args:
        strict: bool (N,), whether a node compares by `<` or `>=`.
        reverse: bool (N,), whether it compares by `>` or `>=`, or must exchange its children for
            another reason.
        threshold: (N,), in the dtype of rows.
        compares: bool (N,), whether a node compares; other nodes are ignored.

    Returns:
        The comparison, the thresholds, and bool (N,), whether a node must exchange its children.
    """
    if not np.any(compares & ~strict) and np.any(compares & strict):
        return "<", threshold, reverse
    lowest = strict & (threshold == -np.inf)  # nothing is below: `x <= inf`, exchanged
    top = threshold.dtype.type(np.inf)
    with np.errstate(all="ignore"):
        below = np.where(lowest, top, np.nextafter(threshold, -top))
    return "<=", np.where(strict, below, threshold), reverse ^ lowest


def exchange(left: Array, right: Array, swap: Array) -> tuple[Array, Array]:
    """Return left and right children, swapped at the nodes where `swap`, bool (N,), is true."""
    return np.where(swap, right, left), np.where(swap, left, right)


def _number_nodes(sizes: Array) -> Array:
    """Return the number of each node within its tree, int32 (N,)."""
    offset = np.append(0, np.cumsum(sizes)).astype(np.int64)
    return (np.arange(offset[-1]) - np.repeat(offset[:-1], sizes)).astype(np.int32)
