"""What a batch is expected to take on many cores: the largest share of one of them.

takes: name of a model, rows, number of cores; gives: microseconds, rows or trees shared out.

A share is a call of one thread, for some of the rows or for some of the trees: priced by the cost
model, or timed on one core. What is between cores is left out: how long they take to start, waits
for each other's memory, and clocks that fall when all of them work.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import time_in_turns
from benchmarks.tuning.searches import forest_of
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

LINE_BYTES = 64
LEAST_US = 0.05
"""Of a share: less than the clock tells apart from a call without trees."""


@functools.cache
def share_of_trees(name: str, parts: int) -> Forest:
    """Return a model, or one of so many parts of it: every so-many-th round of its trees."""
    forest = canonicalize(forest_of(name))
    rounds, size = forest.n_trees // forest.round_size, forest.round_size
    kept = np.arange(0, rounds, min(parts, rounds))[:, None] * size + np.arange(size)
    return forest if parts == 1 else take_trees(forest, kept.ravel())


@functools.cache
def _workload(name: str, parts: int) -> Workload:
    return Workload(share_of_trees(name, parts), Target())


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
    """Return the price of the largest share, if rows are dealt out to cores."""
    return share_us(name, -(-rows // cores), 1, as_paper)


def count_lines(name: str, rows: int, cores: int) -> int:
    """Return the cache lines of sums that other cores have written, if trees are dealt out."""
    forest: Forest = forest_of(name)
    size = rows * forest.n_outputs * np.dtype(forest.sum_dtype).itemsize
    return (_parts(forest, cores) - 1) * -(-size // LINE_BYTES)


def _parts(forest: Forest, cores: int) -> int:
    return min(cores, forest.n_trees // forest.round_size)


def priced(name: str, rows: int, cores: Sequence[int], as_paper: bool) -> dict[str, Any]:
    """Return the price of the largest share by the number of cores, of the rows and of the trees.

    If trees are dealt out, `lines` of sums come from other cores.
    """
    forest = forest_of(name)
    return {
        "rows_us": {str(n): rows_us(name, rows, n, as_paper) for n in cores},
        "trees_us": {str(n): share_us(name, rows, _parts(forest, n), as_paper) for n in cores},
        "lines": {str(n): count_lines(name, rows, n) for n in cores},
    }


def timed(
    name: str, batch: int, cores: Sequence[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """Return the same as timed on one core, the least mean of a turn.

    What a call without trees takes is taken off: a call on many cores is made once.
    """
    rows = np.ascontiguousarray(models.get(name).rows()[:8192], forest_of(name).row_dtype)
    parts = {n: _parts(forest_of(name), n) for n in cores}
    shares = {(-(-batch // n), 1) for n in cores} | {(batch, parts[n]) for n in cores}
    calls: dict[tuple[int, int], Any] = {
        (size, k): _call(share_of_trees(name, k), rows, size) for size, k in shares
    }
    nothing = take_trees(forest_of(name), np.zeros(0, np.int64))
    calls |= {(size, 0): _call(nothing, rows, size) for size, _ in shares}
    times = {x: 1e6 * min(y) for x, y in time_in_turns(calls, [None], rounds, seconds).items()}
    us = {(size, k): max(LEAST_US, times[size, k] - times[size, 0]) for size, k in shares}
    return {
        "rows_us": {str(n): us[-(-batch // n), 1] for n in cores},
        "trees_us": {str(n): us[batch, parts[n]] for n in cores},
        "lines": {str(n): count_lines(name, batch, n) for n in cores},
    }


def _call(forest: Forest, rows: Any, batch: int) -> Callable[[Any], None]:
    """Return a function that predicts one batch after the other, once its margins are right."""
    sch = tvm_forest.new_schedule(forest)
    if forest.n_trees:
        inner = ("class", "tree") if sch.round_size > 1 else ("tree",)
        sch = sch.tile_nodes(TILE).reorder(*inner, "batch")
        sch = sch.interleave("batch", min(TOGETHER, batch)) if batch > 1 else sch
    predict = tvm_forest.build(forest, schedule=sch, n_jobs=1).predict_margin
    right = forest.predict_reference(rows[:batch])
    assert np.array_equal(predict(rows[:batch]).reshape(batch, -1), right), "margins differ"
    parts = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)][:512]
    batches = itertools.cycle(parts)
    return lambda _: predict(next(batches))
