"""Converts CatBoost's trees to arrays over nodes.

takes: lists of trees from the document, a function that reads a split; gives: sizes of the trees
and arrays over their nodes.

All nodes of a level of an oblivious tree share a test, and the outcomes of the tests are the bits
of the leaf number, the first one the lowest. The last split becomes the root, so that leaves are in
the order of their numbers from left to right, and the list of leaves can be used as it is. Nodes
are numbered level by level, which puts the leaves last.

Other trees are nested objects. Their leaves are numbered from left to right, as CatBoost numbers
them when it loads a file; a model in memory may number them differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...forest import LEAF, Array
from ..assemble import Nodes
from ..refusals import damaged
from .document import as_numbers, take

_DEEPEST = 16
"""CatBoost's limit for the depth of an oblivious tree."""


class Test(NamedTuple):
    """A split's test: a row goes right if `row[column] > border`.

    Attributes:
        column: column of the rows that walks read.
        border: the threshold, a float32.
        missing_left: whether a missing value goes left.
    """

    column: int
    border: float
    missing_left: bool


ReadSplit = Callable[[Any], Test]
"""The type of functions that return the test of a split in the document."""


def read_oblivious(trees: list[Any], width: int, read_split: ReadSplit) -> tuple[Array, Nodes]:
    """Return the sizes of oblivious trees, and arrays over their nodes, level by level.

    Args:
        trees: the list in the document.
        width: C, the number of values in a leaf.
        read_split: see `ReadSplit`.
    """
    parts = [_unfold(tree, width, read_split) for tree in trees]
    return _join(parts, width)


def _unfold(tree: Any, width: int, read_split: ReadSplit) -> Nodes:
    tests = [read_split(split) for split in take(tree, "splits", list, [])][::-1]
    levels, values = len(tests), as_numbers(take(tree, "leaf_values", list), "leaf_values")
    if levels > _DEEPEST or len(values) != width << levels:
        what = f"{len(values)} numbers for {levels} levels and {width} outputs"
        raise damaged("leaf_values", what)
    inner, leaves = (1 << levels) - 1, 1 << levels
    counts, number = [1 << level for level in range(levels)], np.arange(inner)
    ends = np.full(leaves, LEAF)
    columns, borders, missing_left = zip(*tests, strict=True) if tests else ((), (), ())

    def spread(values: Any, dtype: Any) -> Array:
        return np.concatenate([np.repeat(np.array(values, dtype), counts), np.zeros(leaves, dtype)])

    cover = [_read_weights(tree, leaves)]
    while len(cover[0]) > 1:
        cover.insert(0, cover[0][::2] + cover[0][1::2])

    return {
        "left": np.concatenate([2 * number + 1, ends]),
        "right": np.concatenate([2 * number + 2, ends]),
        "feature": spread(columns, np.int64),
        "threshold": spread(borders, np.float64),
        "default_left": spread(missing_left, bool),
        "leaf_value": np.concatenate([np.zeros((inner, width)), values.reshape(leaves, width)]),
        "cover": np.concatenate(cover),
        "node_id": np.concatenate([number, np.arange(leaves)]),
    }


def _read_weights(tree: Any, leaves: int) -> Array:
    """Return the weight of training rows in each leaf; NaN if the tree has none."""
    weights = take(tree, "leaf_weights", list, None)
    if not weights:
        return np.full(leaves, np.nan)
    found = as_numbers(weights, "leaf_weights")
    if len(found) != leaves:
        raise damaged("leaf_weights", f"{len(found)} numbers for {leaves} leaves")
    return found


def read_others(
    trees: list[Any], width: int, read_split: ReadSplit, leaf_numbers: list[Any] | None
) -> tuple[Array, Nodes]:
    """Return the sizes of trees that are stored as nested objects, and arrays over their nodes.

    Args:
        trees: the list in the document.
        width: C, the number of values in a leaf.
        read_split: see `ReadSplit`.
        leaf_numbers: for each tree, the numbers of its leaves from left to right; None stands for
            0, 1, 2, ...
    """
    parts = []
    for at, tree in enumerate(trees):
        part = _flatten(tree, width, read_split)
        is_leaf = part["left"] == LEAF
        numbers = np.arange(is_leaf.sum()) if leaf_numbers is None else np.array(leaf_numbers[at])
        part["node_id"][is_leaf] = numbers
        parts.append(part)
    return _join(parts, width)


def _flatten(tree: Any, width: int, read_split: ReadSplit) -> Nodes:
    """Return arrays over the nodes of a tree, which are numbered depth first, left side first.

    Args:
        tree: its root, an object of the document.
        width, read_split: see `read_others`.

    Raises:
        ModelFormatError: a node is damaged, or a leaf has not `width` values.
        UnsupportedModel: `read_split` knows no such split.
    """
    tests, values, right, rest = list[Test](), list[Any](), dict[int, int](), [(tree, -1)]
    cover = list[float]()
    while rest:
        node, parent = rest.pop()
        number = len(tests)
        if parent >= 0:
            right[parent] = number
        if take(node, "split", dict, None) is None:
            value = take(node, "value", object)
            values.append(as_numbers(value if isinstance(value, list) else [value], "value"))
            weight = take(node, "weight", object, None)
            cover.append(np.nan if weight is None else float(as_numbers([weight], "weight")[0]))
            tests.append(Test(LEAF, 0.0, False))
            if len(values[-1]) != width:
                raise damaged("value", f"{len(values[-1])} numbers for {width} outputs")
            continue
        tests.append(read_split(node["split"]))
        values.append(np.zeros(width))
        cover.append(0.0)
        rest += [(take(node, "right", dict), number), (take(node, "left", dict), -1)]
    numbers = np.arange(len(tests))
    rights = np.array([right.get(number, LEAF) for number in range(len(tests))])
    columns, borders, missing_left = zip(*tests, strict=True)
    for number in reversed(numbers[rights != LEAF]):
        cover[number] = cover[number + 1] + cover[rights[number]]
    return {
        "left": np.where(rights == LEAF, LEAF, numbers + 1),
        "right": rights,
        "feature": np.array(columns),
        "threshold": np.array(borders),
        "default_left": np.array(missing_left),
        "leaf_value": np.array(values),
        "cover": np.array(cover),
        "node_id": numbers,
    }


def _join(parts: list[Nodes], width: int) -> tuple[Array, Nodes]:
    """Return the sizes of trees, and their arrays, joined; no `cover` if a weight is missing."""
    empty: dict[str, Any] = dict.fromkeys(("left", "right", "feature", "node_id"), np.int64)
    empty |= {"threshold": np.float64, "default_left": bool, "leaf_value": np.float64}
    empty |= {"cover": np.float64}
    none = {
        name: np.zeros((0, width) if name == "leaf_value" else 0, empty[name]) for name in empty
    }
    nodes = {name: np.concatenate([none[name], *(part[name] for part in parts)]) for name in none}
    nodes["node_id"] = nodes["node_id"].astype(np.int32)
    if np.isnan(nodes["cover"]).any():  # some weights are missing, as in sums of models
        del nodes["cover"]
    return np.array([len(part["left"]) for part in parts], np.int64), nodes
