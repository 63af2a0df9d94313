"""Node arrays of a forest, from arrays over all nodes of a model.

takes: trees of a treelite checkpoint, or arrays over the nodes of all trees; gives: node arrays of
a Forest by name, and its sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import LEAF, Array, node_depths
from ..refusals import damaged

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
    trees: list[Any], where: str, width: int = 1, also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return what `forest_nodes` makes of the trees of a checkpoint.

    Args:
        trees: what gives the fields of a tree.
        where: place that error messages name.
        width: number of values that a leaf holds.
        also: other fields, an entry for each node, that are returned under their own names.

    Raises:
        ModelFormatError: a leaf holds another number of values than the model says.
    """
    columns, sizes = _columns(trees, _FIELDS | dict.fromkeys(also, np.uint8))
    leaf_value = columns["leaf_value"][:, None]
    if width > 1 and trees:
        leaf_value = _vectors(trees, columns["cleft"] == LEAF, width, where)
    nodes = {
        "feature": columns["split_index"],
        "threshold": columns["threshold"],
        "left": columns["cleft"],
        "right": columns["cright"],
        "default_left": columns["default_left"].astype(bool),
        "leaf_value": leaf_value,
        **{name: columns[name] for name in also},
    }
    is_categorical = columns["node_type"] == _CATEGORICAL
    begin = end = codes = np.full(len(is_categorical), -1)
    if is_categorical.any():
        begin, end, codes = _joined(trees, "category_list")
    return forest_nodes(sizes, nodes, (np.where(is_categorical, begin, -1), end, codes))


def forest_nodes(
    sizes: Array, nodes: dict[str, Array], sets: tuple[Array, Array, Array]
) -> dict[str, Any]:
    """Return `tree_offset`, the arrays over all nodes and the `categories` that `Forest` takes.

    Nodes that no path reaches are left out. XGBoost keeps such nodes where it pruned. Whether rows
    in a set of categories go left or right is for the caller to know.

    Args:
        sizes: int64 (T,), number of nodes of each tree.
        nodes: fields of `Forest` by name, and others, which are returned, too.
        sets: for each node where its categories begin, or -1, and end, and the categories of all.
    """
    offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    is_leaf, value = nodes["left"] == LEAF, nodes["leaf_value"]
    arrays = nodes | {
        "tree_offset": offset,
        "feature": np.where(is_leaf, LEAF, nodes["feature"]).astype(np.int32),
        "right": np.where(is_leaf, LEAF, nodes["right"]).astype(np.int32),
        "default_left": nodes["default_left"] & ~is_leaf,
        "leaf_value": np.where(is_leaf[:, None], value, 0).astype(value.dtype),
        "node_id": (np.arange(offset[-1]) - np.repeat(offset[:-1], sizes)).astype(np.int32),
        "begin": sets[0],
        "end": sets[1],
    }
    arrays = _reached(arrays)
    begin, end = arrays.pop("begin"), arrays.pop("end")
    asked = {int(node): sets[2][begin[node] : end[node]] for node in np.flatnonzero(begin >= 0)}
    return arrays | {"categories": {node: tuple(codes.tolist()) for node, codes in asked.items()}}


def _columns(trees: list[Any], dtypes: dict[str, Any]) -> tuple[dict[str, Array], Array]:
    """Each field over all trees, and the number of nodes of each tree."""
    parts = {name: [tree.get_field(name) for tree in trees] for name in dtypes}
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *parts[name]]) for name, dtype in dtypes.items()
    }
    return columns, np.array([len(part) for part in parts["cleft"]], np.int64)


def _joined(trees: list[Any], name: str) -> tuple[Array, Array, Array]:
    """Where the list of each node begins and ends, and the lists, one after the other."""
    lists, bounds, base = [], [], 0
    for tree in trees:
        begin, end = tree.get_field(f"{name}_begin"), tree.get_field(f"{name}_end")
        bounds.append(np.stack([begin, end]).astype(np.int64) + base)
        lists.append(tree.get_field(name))
        base += len(lists[-1])
    begin, end = np.concatenate(bounds, axis=1)
    return begin, end, np.concatenate(lists)


def _vectors(trees: list[Any], is_leaf: Array, width: int, where: str) -> Array:
    """Leaf values (N, W) where leaves hold vectors."""
    begin, end, values = _joined(trees, "leaf_vector")
    wrong = is_leaf & (end - begin != width)
    if wrong.any():
        size = (end - begin)[np.argmax(wrong)]
        raise damaged(where, "leaf_vector", f"a leaf holds {size} values, expected {width}")
    found = np.zeros((len(is_leaf), width), values.dtype)
    found[is_leaf] = values[begin[is_leaf, None] + np.arange(width)]
    return found


def _reached(arrays: dict[str, Array]) -> dict[str, Array]:
    """Leave out the nodes that no path reaches, and number the others anew."""
    offset, left, right = (arrays[name] for name in ("tree_offset", "left", "right"))
    sizes = np.diff(offset)
    size, start = np.repeat(sizes, sizes), np.repeat(offset[:-1], sizes)
    inner = left != LEAF
    if np.any(inner & ((left < 1) | (left >= size) | (right < 1) | (right >= size))):
        return arrays  # damaged; Forest names the node
    keep = node_depths(offset, left, right) >= 0
    if keep.all():
        return arrays
    place = np.concatenate([[0], np.cumsum(keep)])
    kept = {name: values[keep] for name, values in arrays.items() if name != "tree_offset"}
    base = start[keep]
    for name in ("left", "right"):
        child = kept[name]
        moved = place[base + child] - place[base]
        kept[name] = np.where(child == LEAF, LEAF, moved).astype(np.int32)
    return {"tree_offset": place[offset], **kept}
