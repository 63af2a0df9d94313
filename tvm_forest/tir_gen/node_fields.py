"""The fields of single nodes that several layouts share.

takes: Forest; gives: codes of features, children in level order, and tests that decode them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from ..errors import BuildError
from ..forest import Array, Forest
from ..forest_passes.ordering import level_order
from .representation import Expr, NodeTest

DEFAULT_LEFT = 1 << 30
"""Flag in a feature field: a missing value goes to the left."""

INTEGER_OF = {"float32": "int32", "float64": "int64"}


def any_default_left(forest: Forest) -> bool:
    """Return whether some node sends a missing value to the left."""
    return bool(np.any(forest.default_left & ~forest.is_leaf))


def children_in_level_order(forest: Forest) -> tuple[Array, Array]:
    """Number the nodes of each tree level by level; a leaf is its own child.

    Returns:
        (order, child), int64 (N,) each: order[i] is the node that comes i-th, and child[node] the
        number within the tree of a node's left child; the right one comes next.
    """
    order, place = level_order(forest)
    base = forest.tree_offset[forest.node_tree]
    left = np.where(forest.is_leaf, np.arange(forest.n_nodes), base + forest.left)
    return order, place[left] - base


def decode_test(threshold: Expr, code: Expr, any_left: bool, hold: Any) -> NodeTest:
    """Take a feature field apart that holds the feature and DEFAULT_LEFT."""
    if not any_left:
        return NodeTest(threshold, code.astype("int64"), None)
    code = hold("code", code)
    flag = tirx.const(DEFAULT_LEFT, code.ty.dtype)
    return NodeTest(threshold, (code & (flag - 1)).astype("int64"), code >= flag)


def refuse_tiles(layout: str, forest: Forest) -> None:
    """Refuse a forest with tiles of several nodes.

    Raises:
        BuildError: with the size of the tiles.
    """
    if forest.tile is not None:
        raise BuildError(
            f"represent_as: layout '{layout}': nodes are tested one by one, but the model has "
            f"tiles of {forest.tile_size} nodes; use represent_as('sparse')"
        )
