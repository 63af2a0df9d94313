"""The tiling with the least expected number of tiles, by dynamic programming.

takes: Forest, rows of each node; gives: the root of each node's tile.

Let C(v) be the least cost below node v if a tile begins there, in rows times tiles, and g(v, k) the
least cost below v if exactly k >= 1 nodes of a tile that reaches v lie at and below v:

    g(leaf, 0) = 0            g(v, 0) = C(v)
    g(v, k) = min over a + b = k - 1 of g(left, a) + g(right, b)
    C(v) = rows(v) + g(v, min(size, inner nodes at and below v))

The formula of the cost is from Treebeard's draft on probability tiling. A larger tile never costs
more, so every tile has as many nodes as there are, up to `size`. Costs are integers. Among equal
costs the nodes are split most evenly between left and right, with the odd one on the left.
"""

from __future__ import annotations

import numpy as np

from .. import Array, Forest
from ..structure.edges import list_levels

NEVER = 1 << 60
"""Cost of a tiling that is impossible; the sum of two such costs still fits an int64."""


def choose_optimal_tiles(forest: Forest, size: int, rows: Array) -> Array:
    """Return int64 (N,), the root of each node's tile; a leaf is a tile of its own.

    Args:
        forest: the model.
        size: the largest number of nodes in a tile.
        rows: int64 (N,), the number of rows that come through each node.
    """
    levels = list_levels(forest)
    below = np.zeros(forest.n_nodes, np.int64)  # inner nodes at and below, up to size
    to_left = np.zeros((forest.n_nodes, size + 1), np.int8)
    cost = np.full((forest.n_nodes, size + 1), NEVER)
    cost[:, 0] = 0
    for nodes, left, right in reversed(levels):
        below[nodes] = np.minimum(size, 1 + below[left] + below[right])
        cost[nodes, 1:], to_left[nodes, 1:] = _cheapest(cost[left], cost[right])
        cost[nodes, 0] = rows[nodes] + cost[nodes, below[nodes]]
    tile = np.arange(forest.n_nodes)
    share = below.copy()  # nodes of its tile that lie at and below a node
    for nodes, left, right in levels:
        on_left = to_left[nodes, share[nodes]].astype(np.int64)
        for child, count in ((left, on_left), (right, share[nodes] - 1 - on_left)):
            joins = count > 0
            share[child[joins]] = count[joins]
            tile[child[joins]] = tile[nodes[joins]]
    return tile


def _cheapest(left: Array, right: Array) -> tuple[Array, Array]:
    """Return g(v, 1..size) of M nodes, and how many nodes each puts on the left, (M, size) each.

    Args:
        left, right: g(child, 0..size) of their children, (M, size + 1).
    """
    size = left.shape[1] - 1
    best = np.full((len(left), size), NEVER)
    on_left = np.zeros((len(left), size), np.int8)
    for rest in range(size):
        for count in sorted(range(rest + 1), key=lambda a: (abs(2 * a - rest), -a)):
            cost = left[:, count] + right[:, rest - count]
            better = cost < best[:, rest]
            best[better, rest] = cost[better]
            on_left[better, rest] = count
    return best, on_left
