"""What the operations of a prediction take on the CPU at hand.

takes: nothing but the machine; gives: its Machine, in under a minute.

Small forests are drawn whose trees are alike, so how often each operation is done is known exactly.
Points of the space are built for them and timed; the times of the operations are those that explain
the times of the calls best, none of them negative. Operations that no forest here needs, such as
those of sets of categories, are taken from the nearest machine that is shipped, times what the
others take here over what they take there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...forest import LEAF, Array, Forest
from ...layouts import ANY_FOREST, BIT_PLANES, CODED, PADDED, PERMUTED, TRANSPOSED, WORD_NODES
from ...target import Target, cpu_name
from ..machines import Machine, nearest, shipped_machines, TELLING
from ..price import count_operations
from ..space import Point, Space
from ..workload import Workload

ROWS, BATCHES, TURNS = 256, 4, 7
"""Rows of a call, distinct batches of them, and calls that are timed of each."""

CACHES = "/sys/devices/system/cpu/cpu0/cache"


class Shape(NamedTuple):
    """A forest to be drawn: complete trees, or lopsided ones.

    Attributes:
        trees, depth, features: how many trees, how deep, of how many columns.
        cuts: distinct thresholds of a column, at most.
        outputs: values of a leaf.
        lopsided: whether every left child is a leaf from the third level on.
        dtype: of rows and thresholds.
    """

    trees: int
    depth: int
    features: int = 16
    cuts: int = 200
    outputs: int = 1
    lopsided: bool = False
    dtype: str = "float32"


SHALLOW, SMALL = Shape(32, 4, cuts=12), Shape(32, 8)
WIDE, DOUBLE = Shape(16, 6, 256, cuts=12), Shape(32, 8, dtype="float64")
SECOND, THIRD = Shape(300, 8), Shape(3000, 8)
TALL, VECTORS = Shape(12, 14), Shape(32, 8, outputs=10)
LOPSIDED = Shape(64, 12, lopsided=True)


def draw_forest(shape: Shape, seed: int = 0) -> Forest:
    """Draw a forest of a shape; thresholds and rows are numbers from 0 to 1."""
    rng = np.random.default_rng(seed)
    left, depth = _draw_tree(shape)
    nodes, inner = len(left), left != LEAF
    count = shape.trees * nodes
    feature = np.where(np.tile(inner, shape.trees), rng.integers(shape.features, size=count), LEAF)
    threshold = np.where(feature == LEAF, 0, rng.integers(1, shape.cuts + 1, size=count))
    return Forest(
        tree_offset=np.arange(shape.trees + 1) * nodes,
        feature=feature.astype(np.int32),
        threshold=(threshold / (shape.cuts + 1)).astype(shape.dtype),
        left=np.tile(left, shape.trees).astype(np.int32),
        right=np.tile(np.where(inner, left + 1, LEAF), shape.trees).astype(np.int32),
        default_left=np.zeros(count, bool),
        leaf_value=rng.normal(size=(count, shape.outputs)).astype("float32"),
        node_id=np.tile(np.arange(nodes, dtype=np.int32), shape.trees),
        tree_class=np.zeros(shape.trees, np.int32),
        tree_id=np.arange(shape.trees, dtype=np.int32),
        base_score=np.zeros(shape.outputs, "float32"),
        n_features=shape.features,
        row_dtype=shape.dtype,
        source="calibration",
    )


def _draw_tree(shape: Shape) -> tuple[Array, int]:
    """Return the left child of each node of a tree, level by level; right ones are beside them."""
    left, level, depth = list[int](), 1, 0
    count = 1
    open_nodes = [True]
    while depth < shape.depth and any(open_nodes):
        children = list[bool]()
        for splits in open_nodes:
            left.append(count + len(children) if splits else LEAF)
            if splits:
                ends = shape.lopsided and depth >= 2
                children += [not ends, True]
        count, open_nodes, depth = count + len(children), children, depth + 1
    return np.array(left + [LEAF] * len(open_nodes), np.int64), depth


@dataclass(frozen=True)
class Cell:
    """A call to be timed.

    Attributes:
        shape: the forest.
        point: how it is evaluated.
        batch: rows of a call.
    """

    shape: Shape
    point: Point
    batch: int = ROWS


def list_cells(target: Target) -> Iterator[Cell]:
    """Yield what is timed: every way of walking, then what makes it faster or slower."""
    kinds = [(PADDED, 1), (ANY_FOREST, 1), (WORD_NODES, 1), (CODED, 1)]
    kinds += [(name, size) for name in (PADDED, ANY_FOREST) for size in (4, 8)]
    ways = [("trees", x) for x in (2, 4, 8, 10, 16)] + [("rows", x) for x in (4, 8, 16)]
    for (layout, tile), (order, walks) in itertools.product(kinds, ways):
        yield Cell(SMALL, _walk_point(layout, tile, order, walks))
    for layout, tile in kinds:
        yield from (Cell(SHALLOW, _walk_point(layout, tile, x, 8)) for x in ("trees", "rows"))
    if target.has("avx512f"):
        for layout, _ in kinds[:4]:
            yield Cell(SMALL, _walk_point(layout, 1, "rows", "gather"))
    modes = itertools.product((WORD_NODES, ANY_FOREST), ("trees", "rows"), ("depth", "peel"))
    for layout, order, hops in modes:
        point = _walk_point(layout, 1 if layout == WORD_NODES else 8, order, 8)
        yield Cell(SMALL, point._replace(hops=hops))
    for shape, (layout, tile) in itertools.product((SECOND, THIRD, TALL), kinds[2:3] + kinds[-1:]):
        yield from (Cell(shape, _walk_point(layout, tile, x, 8)) for x in ("trees", "rows"))
    yield from (Cell(x, _walk_point(CODED, 1, "rows", 8)) for x in (WIDE, VECTORS))
    yield Cell(VECTORS, _walk_point(WORD_NODES, 1, "rows", 16))
    yield Cell(DOUBLE, _walk_point(CODED, 1, "rows", 8))
    yield from (Cell(x, _walk_point(CODED, 1, "trees", 8)) for x in (WIDE, DOUBLE))
    blocks = (64, 128, 256, 512)
    for shape, block in itertools.product((SMALL, SHALLOW, SECOND, LOPSIDED), blocks):
        yield Cell(shape, _vector_point(BIT_PLANES, block, "bits"), 2 * blocks[-1])
    for shape in (WIDE, DOUBLE, VECTORS):
        yield Cell(shape, _vector_point(BIT_PLANES, 512, "bits"), 2 * blocks[-1])
    if target.has("avx512vbmi"):
        for shape in (SHALLOW, Shape(32, 6), SMALL, Shape(32, 6, 64)):
            yield Cell(shape, _vector_point(PERMUTED, 64, "permute"))
    yield Cell(SHALLOW, _walk_point(WORD_NODES, 1, "trees", 8), 1)


def _walk_point(layout: str, tile: int, order: str, walks: int | str) -> Point:
    return Point(tile, layout, 64 if order == "rows" else 0, order, walks)


def _vector_point(layout: str, block: int, walks: str) -> Point:
    return Point(1, layout, block, "rows", walks)


def time_cell(cell: Cell, forest: Forest, target: Target) -> float:
    """Return the nanoseconds of a row on one thread: the least over turns, of processor time."""
    from ...predictor.building import build

    work = Workload.of(forest, target)
    sch = Space(work, work.start, cell.batch, threads=False).schedule(cell.point)
    predictor = build(forest, sch, target)
    rows = np.random.default_rng(1).random((BATCHES, cell.batch, cell.shape.features))
    batches = [x.astype(cell.shape.dtype) for x in rows]
    predictor.predict_margin(batches[0], n_jobs=1)
    calls = max(1, 4096 // cell.batch)
    least = float("inf")
    for _ in range(TURNS):
        begin = time.thread_time()
        for _, batch in zip(range(calls), itertools.cycle(batches), strict=False):
            predictor.predict_margin(batch, n_jobs=1)
        least = min(least, (time.thread_time() - begin) / calls)
    return 1e9 * least / cell.batch


def solve(counts: Array, times: Array, turns: int = 3000) -> Array:
    """Return float64 (O,), times of operations, none negative, that explain calls best.

    Args:
        counts: float64 (C, O), how often each operation is done in each call.
        times: float64 (C,), what the calls take; errors count in proportion to these.
    """
    scaled = counts / times[:, None]
    squares, slope = scaled.T @ scaled, scaled.T @ np.ones(len(times))
    found, diagonal = np.zeros(counts.shape[1]), np.maximum(np.diag(squares), 1e-12)
    for _ in range(turns):
        for i in range(len(found)):
            off = (slope[i] - squares[i] @ found) / diagonal[i]
            found[i] = max(0.0, found[i] + off)
    return found
