"""The part of an XGBoost document that treelite cannot be given unseen.

takes: the document of a model; gives: errors by name, names of categories, bytes for treelite.

treelite refuses a model that encodes categories itself, and reads beyond the end of arrays that are
too short.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import numpy as np

from . import ubjson
from .document import Node
from .refusals import damaged, unsupported

LEAF_ARRAYS = ("left_children", "right_children", "leaf_weights")
_CATEGORIES = ("categories_nodes", "categories_segments", "categories_sizes", "categories")
_MOST_CATEGORIES = 1 << 24
# Objects within this object hold arrays only; a quote inside of a string has a backslash before it.
_JSON_CATS = re.compile(rb'(?<!\\)("cats"\s*:\s*)\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')


def check_trees(trees: Node, n_trees: int, n_outputs: int) -> tuple[bool, bool]:
    """Check what treelite does not, but for vectors.

    Returns:
        whether leaves hold vectors, and whether nodes ask for categories.
    """
    if not isinstance(trees.value, list) or len(trees.value) != n_trees:
        raise trees.wrong(f"a list of {n_trees} trees, as in 'tree_info'")
    widths, has_categories = set(), False
    for number, tree in enumerate(trees.value):
        if not isinstance(tree, dict) or not isinstance(tree.get("tree_param"), dict):
            raise damaged(trees.where, "trees", f"tree {number} has no 'tree_param'")
        if any(tree.get(name) for name in _CATEGORIES):
            _check_categories(Node(tree, trees.where, f"tree {number}"))
            has_categories = True
        if tree.get("id", number) != number:  # XGBoost puts it at this place, treelite does not
            what = f"tree {number} has the number {tree['id']!r:.40}"
            raise damaged(trees.where, "id", what)
        left = tree.get("default_left")
        if isinstance(left, list) and left.count(0) + left.count(1) != len(left):
            what = f"tree {number} has numbers other than 0 and 1"  # treelite: yes, XGBoost: no
            raise damaged(trees.where, "default_left", what)
        width = Node(tree["tree_param"], trees.where, "tree_param").get("size_leaf_vector", 1)
        widths.add(max(width.integer(), 1))
    if not widths <= {1} and widths != {n_outputs}:
        what = f"leaves of {sorted(widths)} values for {n_outputs} outputs"
        raise damaged(trees.where, "size_leaf_vector", what)
    return bool(widths - {1}), has_categories


def _check_categories(tree: Node) -> None:
    nodes, begin, size, codes = (
        np.array(tree.get(name, []).integers(), np.int64) for name in _CATEGORIES
    )
    if not len(nodes) == len(begin) == len(size):
        what = f"{tree.name} has {len(nodes)} nodes, {len(begin)} segments, {len(size)} sizes"
        raise damaged(tree.where, "categories_nodes", what)
    if np.any((begin < 0) | (size < 0) | (size > len(codes)) | (begin > len(codes) - size)):
        what = f"{tree.name} has a segment beyond its {len(codes)} categories"
        raise damaged(tree.where, "categories_segments", what)
    wrong = codes[(codes < 0) | (codes >= _MOST_CATEGORIES)]
    if wrong.size:
        what = f"{tree.name} has category {wrong[0]}, expected 0 to {_MOST_CATEGORIES - 1}"
        raise damaged(tree.where, "categories", what)


def check_vectors(trees: Node, width: int) -> None:
    """Check the arrays of `LEAF_ARRAYS`, by which a leaf finds its vector."""
    for number, tree in enumerate(trees.value):
        if not tree.get("leaf_weights"):
            what = f"tree {number} keeps its vectors as XGBoost before 3.2 did"
            raise unsupported(trees.where, "leaf_weights", what, "train again with XGBoost 3.2")
        node = Node(tree, trees.where, f"tree {number}")
        left, place = (np.array(node.child(name).integers(), np.int64) for name in LEAF_ARRAYS[:2])
        values = node.child("leaf_weights").value
        n_leaves = np.count_nonzero(left == -1)
        if not isinstance(values, list) or len(values) != n_leaves * width:
            what = f"tree {number} has no {width} values for each of its {n_leaves} leaves"
            raise damaged(trees.where, "leaf_weights", what)
        if len(left) != len(place) or np.any((place < 0) | (place >= n_leaves) & (left == -1)):
            what = f"a leaf of tree {number} has no vector"
            raise damaged(trees.where, "right_children", what)


def category_names(cats: Node, n_features: int) -> dict[int, tuple[str | int, ...]]:
    """Return the names of the categories of each feature that has some, in the order of codes.

    A feature whose names cannot be told apart is left out: XGBoost 3.1 and 3.2 count characters
    where they cut bytes, if a frame of pandas has names beyond ASCII.
    """
    columns = cats.get("enc", []).value
    if not columns:
        return {}
    if not isinstance(columns, list) or len(columns) != n_features:
        raise damaged(cats.where, "enc", f"expected the categories of {n_features} features")
    names = (_names(Node(column, cats.where, "enc")) for column in columns)
    return {feature: found for feature, found in enumerate(names) if found}


def _names(column: Node) -> tuple[str | int, ...]:
    values = column.child("values").integers()
    if "offsets" not in column.value:
        return tuple(values)
    text = bytes(value & 0xFF for value in values)
    ends = column.child("offsets").integers() or [0]
    if ends[0] != 0 or ends[-1] != len(text) or np.any(np.diff(ends) < 0):
        raise column.child("offsets").wrong(f"bounds of {len(text)} bytes")
    try:
        found = tuple(text[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError:
        return ()
    return found if len(set(found)) == len(found) else ()


def without_names(data: bytes, kind: str) -> bytes:
    """Return a JSON or UBJSON document without the names of categories."""
    if kind == "json":
        return _JSON_CATS.sub(rb"\1{}", data)
    return _replaced(data, "cats", b"{", b"{}")


def without_weights(data: bytes, n_trees: int) -> bytes:
    """Return a UBJSON document of DART trees that all weigh one."""
    ones = struct.pack(">f", 1) * n_trees
    return _replaced(data, "weight_drop", b"[", b"[$d#l" + struct.pack(">i", n_trees) + ones)


def _replaced(data: bytes, key: str, marker: bytes, value: bytes) -> bytes:
    """Replace the value of a key of a UBJSON document."""
    for begin, end in reversed(ubjson.places(data, key)):
        if data[begin : begin + 1] == marker:
            data = data[:begin] + value + data[end:]
    return data
