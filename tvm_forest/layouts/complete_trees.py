"""Trees made complete: two children for every slot above the last level of its tree.

takes: Forest; gives: what lies in each slot.

A leaf above the last level is padded: the slots below it test feature 0 and lead to copies of the
leaf, so a walk takes as many steps as its tree is deep, without asking whether it is done. Slots
count level by level: the children of slot i are 2i + 1 and 2i + 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from .linked_nodes import DEFAULT_LEFT, node_columns
from .representation import Columns

MOST_SLOTS = 1 << 25


class Slots(NamedTuple):
    """The slots of all trees, E elements.

    Attributes:
        number: threshold or, in the last level, leaf value; (E,) in the threshold's dtype.
        code: int32 (E,), feature and DEFAULT_LEFT.
        leaf_id: int32 (E,), number of the leaf in the source model, -1 above the last level.
    """

    number: Array
    code: Array
    leaf_id: Array


def slots_of(depth: Array) -> Array:
    """Slots of a complete tree of each depth, int64; as if of 40 if it is deeper."""
    return np.left_shift(2, np.minimum(depth, 40).astype(np.int64)) - 1


def check_slots(layout: str, forest: Forest, slots: int) -> None:
    """Refuse a forest whose complete form is too large.

    Raises:
        BuildError: with the deepest tree.
    """
    if slots > MOST_SLOTS:
        worst = int(np.argmax(forest.depths))
        raise BuildError(
            f"represent_as: layout '{layout}': tree {worst} of depth {forest.depths[worst]} and "
            f"{forest.n_trees - 1} others need {slots} slots, the limit is {MOST_SLOTS}; "
            "use represent_as('sparse')"
        )


def slot_columns(number: Array, code: Array, place: Columns, depth: Array) -> Columns:
    """Show slots: numbers and feature fields, (E,); tree and slot, (E,); depths of trees, (T,)."""
    slot = place["slot"]
    level = np.frexp(slot + 1)[1] - 1
    inner, leaf = level < depth[place["tree"]], level == depth[place["tree"]]
    children = np.ma.array(np.stack([2 * slot + 1, 2 * slot + 2], axis=1))
    children[~inner] = np.ma.masked
    columns = node_columns(number, code, inner, leaf)
    return {**place, "level": level, **columns, "children": children}


class Occupants(NamedTuple):
    """Which node lies in each slot, E elements.

    Attributes:
        node: int64 (E,), a leaf also where it pads the slots below it; -1 in slots of no tree.
        ends: bool (E,), whether the slot is in the last level of its tree.
    """

    node: Array
    ends: Array


def occupants(
    forest: Forest,
    size: int,
    place: Callable[[Array, Array], Array],
    trees: Array | None = None,
) -> Occupants:
    """Put trees into slots, level by level, and copies of shallow leaves below them.

    Args:
        forest: the model.
        size: E, elements of the layout.
        place: tree and slot, int64 each -> element.
        trees: int64, the trees; None for all.
    """
    found, ends = np.full(size, -1, np.int64), np.zeros(size, bool)
    roots = forest.tree_offset[:-1]
    node = (roots if trees is None else roots[trees]).astype(np.int64)
    slot, level = np.zeros(len(node), np.int64), 0
    while node.size:
        tree = forest.node_tree[node]
        last, put = forest.depths[tree] == level, place(tree, slot)
        found[put], ends[put] = node, last
        base, inner = forest.tree_offset[tree], ~forest.is_leaf[node]
        left = np.where(inner, base + forest.left[node], node)[~last]
        right = np.where(inner, base + forest.right[node], node)[~last]
        node = np.concatenate([left, right])
        slot = np.concatenate([2 * slot[~last] + 1, 2 * slot[~last] + 2])
        level += 1
    return Occupants(found, ends)


def fill_slots(forest: Forest, size: int, place: Callable[[Array, Array], Array]) -> Slots:
    """Write the fields of all slots; see `occupants`."""
    found, ends = occupants(forest, size, place)
    number = np.zeros(size, forest.threshold.dtype)
    code, leaf_id = np.zeros(size, np.int32), np.full(size, -1, np.int32)
    inner = np.flatnonzero((found >= 0) & ~ends)
    inner = inner[~forest.is_leaf[found[inner]]]
    number[inner] = forest.threshold[found[inner]]
    code[inner] = forest.feature[found[inner]] + DEFAULT_LEFT * forest.default_left[found[inner]]
    number[ends] = forest.leaf_value[found[ends], 0]
    leaf_id[ends] = forest.node_id[found[ends]]
    return Slots(number, code, leaf_id)
