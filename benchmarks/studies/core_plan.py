"""What a batch is expected to take on many cores, by the cost model for one.

takes: Forest, rows, number of cores; gives: microseconds of a call, rows or trees shared out.

Nothing here is measured on more than two cores. A share is priced as a call of one thread: the
cheapest point of the space for so many rows, or for so many trees. What the cost model leaves out
is left out here: cores that wait for each other's memory, and clocks that fall when all cores work.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from searches import forest_of
from tvm_forest.forest import Forest
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.ordering import take_trees
from tvm_forest.layouts import ANY_FOREST
from tvm_forest.search.cost import price
from tvm_forest.search.heuristic import price_points
from tvm_forest.search.space import Point
from tvm_forest.search.workload import Workload
from tvm_forest.target import Target

TILE, TOGETHER = 8, 8
"""Nodes of a tile, and rows that walk together, of Treebeard's schedules."""

LINE_NS, LINE_BYTES = 60.0, 64
"""Nanoseconds for a cache line of sums that another core has written; assumed."""


@functools.cache
def _workload(name: str, parts: int) -> Workload:
    """Return the workload of a model, or of every so-many-th round of its trees."""
    forest = canonicalize(forest_of(name))
    rounds, size = forest.n_trees // forest.round_size, forest.round_size
    kept = np.arange(0, rounds, min(parts, rounds))[:, None] * size + np.arange(size)
    return Workload(forest if parts == 1 else take_trees(forest, kept.ravel()), Target())


@functools.cache
def share_us(name: str, rows: int, parts: int, as_paper: bool) -> float:
    """Return the microseconds of some rows in a share of the trees, on one thread.

    Args:
        name: of the model.
        parts: into which its trees are dealt out; 1 for all trees.
        as_paper: whether up to 8 rows walk together through tiles of 8 nodes, as Treebeard's do,
            and a single row through one tree after the other; else the cheapest point counts.
    """
    work = _workload(name, parts)
    if as_paper:
        point = Point(TILE, ANY_FOREST, 0, "rows", min(TOGETHER, rows), "peel")
        return price(point, work, rows) * rows / 1000
    return next(price_points(work, rows))[0] * rows / 1000


def rows_us(name: str, rows: int, cores: int, as_paper: bool) -> float:
    """Return the microseconds of the largest share, if rows are dealt out to cores."""
    return share_us(name, -(-rows // cores), 1, as_paper)


def trees_us(name: str, rows: int, cores: int, as_paper: bool) -> float:
    """Return the same if trees are dealt out, with the addition of their sums."""
    forest: Forest = forest_of(name)
    parts = min(cores, forest.n_trees // forest.round_size)
    size = rows * forest.n_outputs * np.dtype(forest.sum_dtype).itemsize
    lines = (parts - 1) * -(-size // LINE_BYTES)
    return share_us(name, rows, parts, as_paper) + lines * LINE_NS / 1000


def plan(name: str, rows: int, cores: list[int], as_paper: bool) -> dict[str, Any]:
    """Return both by the number of cores."""
    return {
        "model": name,
        "batch": rows,
        "as_paper": as_paper,
        "rows_us": {str(n): rows_us(name, rows, n, as_paper) for n in cores},
        "trees_us": {str(n): trees_us(name, rows, n, as_paper) for n in cores},
    }
