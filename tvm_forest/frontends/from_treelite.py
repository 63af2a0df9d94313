"""Node arrays of a forest, from the trees that treelite has read.

takes: trees of a treelite.Model; gives: node arrays of a Forest by name, and its sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..forest import LEAF, Array
from .refusals import damaged

# The dtypes matter for a model without trees only.
_FIELDS: dict[str, Any] = {
    "cleft": np.int32,
    "cright": np.int32,
    "split_index": np.int32,
    "default_left": np.uint8,
    "threshold": np.float32,
    "leaf_value": np.float32,
    "node_type": np.int8,
}
_CATEGORICAL = 2


def node_arrays(
    trees: list[Any],
    where: str,
    width: int = 1,
    node_ids: list[Array] | None = None,
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return `tree_offset`, the arrays over all nodes and the `categories` that `Forest` takes.

    Nodes that no path reaches are left out. XGBoost keeps such nodes where it pruned. Whether rows
    in a set of categories go left or right is for the caller to know.

    Args:
        trees: what gives the fields of a tree, such as `treelite.model.TreeAccessor`.
        where: place that error messages name.
        width: number of values that a leaf holds.
        node_ids: for each tree the numbers of its nodes in the source model, if these are not
            0, 1, 2, ...
        also: other fields, an entry for each node, that are returned under their own names.

    Raises:
        ModelFormatError: a leaf holds another number of values than the model says.
    """
    columns, sizes = _columns(trees, _FIELDS | dict.fromkeys(also, np.uint8))
    offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    start = np.repeat(offset[:-1], sizes)
    if node_ids is None:
        numbers = np.arange(offset[-1]) - start
    else:
        numbers = np.concatenate([*node_ids[: len(trees)], np.zeros(0, np.int64)])
    is_leaf = columns["cleft"] == LEAF
    leaf_value = columns["leaf_value"][:, None]
    if width > 1 and trees:
        leaf_value = _vectors(trees, is_leaf, width, where)
    nodes = {
        "feature": np.where(is_leaf, LEAF, columns["split_index"]).astype(np.int32),
        "threshold": columns["threshold"],
        "left": columns["cleft"],
        "right": np.where(is_leaf, LEAF, columns["cright"]).astype(np.int32),
        "default_left": columns["default_left"].astype(bool) & ~is_leaf,
        "leaf_value": np.where(is_leaf[:, None], leaf_value, 0).astype(leaf_value.dtype),
        "node_id": numbers.astype(np.int32),
        **{name: columns[name] for name in also},
    }
    is_categorical = columns["node_type"] == _CATEGORICAL
    if not is_categorical.any():
        return _without_orphans({"tree_offset": offset, **nodes})
    codes, begin, end = _joined(trees, "category_list")
    nodes |= {"codes_begin": np.where(is_categorical, begin, -1), "codes_end": end}
    arrays = _without_orphans({"tree_offset": offset, **nodes})
    begin, end = arrays.pop("codes_begin"), arrays.pop("codes_end")
    return {**arrays, "categories": _sets(codes, begin, end)}


def _columns(trees: list[Any], dtypes: dict[str, Any]) -> tuple[dict[str, Array], Array]:
    """Each field over all trees, and the number of nodes of each tree."""
    parts = {name: [tree.get_field(name) for tree in trees] for name in dtypes}
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *parts[name]]) for name, dtype in dtypes.items()
    }
    return columns, np.array([len(part) for part in parts["cleft"]], np.int64)


def _joined(trees: list[Any], name: str) -> tuple[Array, Array, Array]:
    """The lists that nodes have, one after the other, and where that of each node lies in them."""
    lists, bounds, base = [], [], 0
    for tree in trees:
        begin, end = tree.get_field(f"{name}_begin"), tree.get_field(f"{name}_end")
        bounds.append(np.stack([begin, end]).astype(np.int64) + base)
        lists.append(tree.get_field(name))
        base += len(lists[-1])
    begin, end = np.concatenate(bounds, axis=1)
    return np.concatenate(lists), begin, end


def _vectors(trees: list[Any], is_leaf: Array, width: int, where: str) -> Array:
    """Leaf values (N, W) where leaves hold vectors."""
    values, begin, end = _joined(trees, "leaf_vector")
    wrong = is_leaf & (end - begin != width)
    if wrong.any():
        size = (end - begin)[np.argmax(wrong)]
        raise damaged(where, "leaf_vector", f"a leaf holds {size} values, expected {width}")
    found = np.zeros((len(is_leaf), width), values.dtype)
    found[is_leaf] = values[begin[is_leaf, None] + np.arange(width)]
    return found


def _sets(codes: Array, begin: Array, end: Array) -> dict[int, tuple[int, ...]]:
    """The set of every categorical node, which are those that have a beginning."""
    nodes = np.flatnonzero(begin >= 0)
    return {int(node): tuple(codes[begin[node] : end[node]].tolist()) for node in nodes}


def _without_orphans(arrays: dict[str, Array]) -> dict[str, Array]:
    """Drop the nodes that have no parent, again and again, but for the roots."""
    offset, left, right = (arrays[name] for name in ("tree_offset", "left", "right"))
    sizes = np.diff(offset)
    size, start = np.repeat(sizes, sizes), np.repeat(offset[:-1], sizes)
    inner = left != LEAF
    if np.any(inner & ((left < 1) | (left >= size) | (right < 1) | (right >= size))):
        return arrays  # damaged; Forest names the node

    def parents_of(nodes: Array) -> Array:
        children = np.concatenate([start[nodes] + left[nodes], start[nodes] + right[nodes]])
        return np.bincount(children, minlength=len(left))

    parents = parents_of(np.flatnonzero(inner))
    parents[offset[:-1]] += 1
    keep = np.ones(len(left), bool)
    orphans = np.flatnonzero(parents == 0)
    while orphans.size:
        keep[orphans] = False
        parents -= parents_of(orphans[inner[orphans]])
        orphans = np.flatnonzero(keep & (parents == 0))
    return arrays if keep.all() else _kept(arrays, keep, start)


def _kept(arrays: dict[str, Array], keep: Array, start: Array) -> dict[str, Array]:
    """Leave out nodes and number the others anew."""
    place = np.concatenate([[0], np.cumsum(keep)])
    kept = {name: values[keep] for name, values in arrays.items() if name != "tree_offset"}
    base = start[keep]
    for name in ("left", "right"):
        child = kept[name]
        moved = place[base + child] - place[base]
        kept[name] = np.where(child == LEAF, LEAF, moved).astype(np.int32)
    return {"tree_offset": place[arrays["tree_offset"]], **kept}
