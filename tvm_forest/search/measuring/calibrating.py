"""What the operations of a prediction take on the CPU at hand.

takes: nothing but the machine; gives: its Machine, in about two minutes.

Small forests are drawn whose trees are alike, so how often each operation is done is known exactly.
Points of the space are built for them and timed; the times of the operations are those that explain
the times of the calls best, and are not far from what `guesses` expects.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...forest import LEAF, Array, Forest
from ...forest.rewrites.canonical_form import canonicalize
from ...layouts import (
    ANY_FOREST,
    BIT_PLANES,
    CODED,
    OCTETS,
    PADDED,
    PERMUTED,
    TRANSPOSED,
    WORD_NODES,
)
from ...schedule_prims.walks import LANE_COUNTS
from ...target import Target, cpu_name, cpu_vendor
from ..cost import count_operations
from ..guesses import guess
from ..layout_fit import LANES_ABILITY, PERMUTE_ABILITY
from ..machines import TELLING, Machine, nearest, shipped_machines
from ..space import Point, Space
from ..workload import Workload
from .caches import measure_caches

ROWS, TURNS, TURN_SECONDS, TICKS = 256, 5, 0.004, 6
"""Rows of a call, at least; how often calls are timed, and how long; calls of a clock's reading."""

MOST_BATCHES, ROW_BYTES, WIDE_ROW_BYTES = 64, 64 << 20, 4096
"""Distinct batches of rows, bytes of all of them, at most, and bytes from which a row is wide."""

BELIEF = 0.15
"""How much an error of what is expected of an operation counts beside one of a call."""

LEAST_SHARE = 0.15
"""What an operation takes at least, as a share of what is expected: several explain the same calls,
and none of them is for nothing."""

TRUSTED = 0.2
"""Up to what error, in logarithms, squares count: farther off, something disturbed the call."""

ROUNDS, DESCENTS, SETTLED = 8, 1000, 1e-4
"""How often errors are weighed anew, and times of operations improved each time, at most: until
they change no more."""


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


SHALLOW, SMALL = Shape(64, 4, 8, cuts=12), Shape(48, 8, 8, cuts=100)
SMALL_WIDE = SMALL._replace(features=64, cuts=15)
WIDE, WIDE_FINE = Shape(16, 6, 256, cuts=12), Shape(100, 6, 256, cuts=300)
WIDEST = Shape(32, 6, 2000, cuts=12)
FINE = Shape(8, 9, 4, cuts=1000)
DOUBLE, DOUBLE_WIDE = Shape(32, 8, dtype="float64"), WIDE._replace(dtype="float64")
SECOND, THIRD = Shape(300, 8, 8), Shape(3000, 8)

TALL, VECTORS = Shape(80, 14), Shape(32, 8, outputs=10)
TALL_VECTORS = Shape(100, 11, outputs=2)
DEEP = Shape(32, 9, cuts=60)
LOPSIDED, NARROW = Shape(64, 12, cuts=60, lopsided=True), Shape(32, 6)

LEVELS_WITHOUT_LEAVES = 2
"""Of a lopsided tree."""

BLOCK, LEAST_LANES = 64, 16
"""Rows of a block of walks, and of the smallest one whose rows are lanes of vectors."""

WAYS = ("trees", "rows")
"""What walks together."""


def draw_forest(shape: Shape, seed: int = 0) -> Forest:
    """Draw a forest of a shape; thresholds and rows are numbers from 0 to 1.

    Tests cut what the tests above have left of a feature into halves, about, so rows spread over
    all leaves, and loads over all nodes.
    """
    rng = np.random.default_rng(seed)
    left = _draw_tree(shape)
    nodes, inner = len(left), left != LEAF
    count = shape.trees * nodes
    feature, cut = _draw_tests(shape, left, rng)
    leaves = rng.normal(size=(count, shape.outputs)) * (feature == LEAF)[:, None]
    return Forest(
        tree_offset=np.arange(shape.trees + 1) * nodes,
        feature=feature.astype(np.int32),
        threshold=(cut / (shape.cuts + 1)).astype(shape.dtype),
        left=np.tile(left, shape.trees).astype(np.int32),
        right=np.tile(np.where(inner, left + 1, LEAF), shape.trees).astype(np.int32),
        default_left=np.zeros(count, bool),
        leaf_value=leaves.astype(shape.dtype),
        node_id=np.tile(np.arange(nodes, dtype=np.int32), shape.trees),
        tree_class=np.full(shape.trees, 0 if shape.outputs == 1 else -1, np.int32),
        tree_id=np.arange(shape.trees, dtype=np.int32),
        base_score=np.zeros(shape.outputs, shape.dtype),
        n_features=shape.features,
        row_dtype=shape.dtype,
        source="calibration",
    )


def _draw_tree(shape: Shape) -> Array:
    """Return the left child of each node of a tree, level by level; right ones are beside them."""
    left, level = list[int](), [True]  # whether the nodes of a level have children
    for depth in range(shape.depth):
        child, below = len(left) + len(level), list[bool]()
        for splits in level:
            left.append(child + len(below) if splits else LEAF)
            below += [not shape.lopsided or depth < LEVELS_WITHOUT_LEAVES, True] * splits
        level = below
    return np.array(left + [LEAF] * len(level), np.int64)


def _draw_tests(shape: Shape, left: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the features and cuts of all nodes, tree by tree, given the left children of one."""
    feature = np.full((shape.trees, len(left)), LEAF, np.int32)
    cut = np.zeros(feature.shape)
    low = np.zeros((shape.trees, 1, shape.features), np.int16)
    high = np.full(low.shape, shape.cuts + 1, np.int16)
    begin, width = 0, 1
    while width:
        inner = begin + np.flatnonzero(left[begin : begin + width] != LEAF)
        low, high = (np.repeat(x[:, inner - begin], 2, axis=1) for x in (low, high))
        tested = rng.integers(shape.features, size=(shape.trees, len(inner)))
        place = np.repeat(tested, 2, axis=1)[..., None]  # in the ranges of both children
        begins, ends = (np.take_along_axis(x, place, 2)[:, ::2, 0] for x in (low, high))
        share = rng.uniform(0.4, 0.6, size=tested.shape)
        chosen = np.clip(begins + np.round((ends - begins) * share), 1, shape.cuts)
        feature[:, inner], cut[:, inner] = tested, chosen
        np.put_along_axis(high[:, ::2], tested[..., None], chosen[..., None], 2)
        np.put_along_axis(low[:, 1::2], tested[..., None], chosen[..., None], 2)
        begin, width = begin + width, 2 * len(inner)
    return feature.ravel(), cut.ravel()


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
    yield from _list_walks(target)
    yield from _list_far_walks()
    yield from _list_rows_and_leaves()
    yield from _list_planes()
    if target.has(PERMUTE_ABILITY):
        yield from _list_permutes()


def _list_walks(target: Target) -> Iterator[Cell]:
    """Walks hop by hop through trees of the first cache."""
    untiled = [(PADDED, 1), (ANY_FOREST, 1), (WORD_NODES, 1), (CODED, 1)]
    tiled = [(name, size) for name in (PADDED, ANY_FOREST) for size in (4, 8)]
    ways = [("trees", x) for x in (2, 4, 8, 10, 16)] + [("rows", x) for x in (4, 8, 16)]
    for layout, tile in [*untiled, *tiled]:
        yield from _spread(SMALL, (_walk_point(layout, tile, *way) for way in ways))
        yield from _spread(SHALLOW, (_walk_point(layout, tile, x, 8) for x in WAYS))
    for layout, tile in tiled:
        yield from _spread(SMALL_WIDE, (_walk_point(layout, tile, x, 8) for x in WAYS))
    yield from _spread(DOUBLE, (_walk_point(*x, y, 8) for x in tiled for y in WAYS))
    one_row = [(TRANSPOSED, 1), (PADDED, 2), (ANY_FOREST, 2)]
    for layout, tile in one_row:
        points = [_walk_point(layout, tile, "trees", x) for x in (2, 4, 8, 10, 16)]
        yield from _spread(SECOND, points)
        if tile > 1:
            yield from _spread(SECOND._replace(features=64), points[::2])
        yield Cell(SHALLOW._replace(trees=600), points[2], 1)
    if target.has(LANES_ABILITY):
        for layout, tile in untiled:
            lanes = _walk_point(layout, tile, "rows", "gather")
            yield from _spread(SMALL, (lanes._replace(block=x) for x in (LEAST_LANES, BLOCK)))
    for (layout, tile), order in itertools.product(((WORD_NODES, 1), (ANY_FOREST, 8)), WAYS):
        point = _walk_point(layout, tile, order, 8)
        yield from _spread(SMALL, (point._replace(hops=x) for x in ("depth", "peel")))


def _list_far_walks() -> Iterator[Cell]:
    """Walks whose nodes lie in farther caches."""
    for layout, tile in ((WORD_NODES, 1), (CODED, 1), (ANY_FOREST, 8)):
        point = _walk_point(layout, tile, "rows", 8)
        yield from (Cell(SHALLOW, point._replace(block=block)) for block in (16, ROWS))
    for shape in (SECOND, THIRD, TALL):
        words = [_walk_point(WORD_NODES, 1, x, 8) for x in WAYS]
        lanes = _walk_point(WORD_NODES, 1, "rows", "gather")
        yield from _spread(shape, [words[1]._replace(block=ROWS), *words, lanes])
        tiles = itertools.product(WAYS, (4, 8, 16))
        yield from _spread(shape, (_walk_point(ANY_FOREST, 8, *way) for way in tiles))
    for shape, walks in itertools.product((THIRD, TALL), (8, "gather")):
        yield Cell(shape, _walk_point(WORD_NODES, 1, "rows", walks)._replace(cache="stream"))


def _list_rows_and_leaves() -> Iterator[Cell]:
    """Walks with wide rows, rows of other kinds, leaves with vectors, and one row."""
    for shape in (WIDE_FINE, FINE, DOUBLE):
        yield from _spread(shape, (_walk_point(CODED, 1, x, 8) for x in WAYS))
    words = [_walk_point(WORD_NODES, 1, "rows", x) for x in (8, "gather")]
    yield from _spread(WIDE, words)
    kinds = ((WORD_NODES, 1), (CODED, 1), (PADDED, 4), (ANY_FOREST, 8))
    trees = [_walk_point(layout, tile, "trees", 8) for layout, tile in kinds]
    yield from _spread(WIDEST, [*words, _walk_point(ANY_FOREST, 8, "rows", 8), *trees])
    yield from (Cell(WIDEST, point, 1) for point in trees)
    for shape in (VECTORS, TALL_VECTORS):
        tiles = [_walk_point(ANY_FOREST, 8, x, 8) for x in WAYS]
        yield from _spread(shape, [_walk_point(WORD_NODES, 1, "trees", 8), *words, *tiles])
    yield Cell(SHALLOW, _walk_point(WORD_NODES, 1, "trees", 8), 1)


def _list_planes() -> Iterator[Cell]:
    """Bit planes."""
    blocks = sorted(LANE_COUNTS["bits"])
    points = [_vector_point(BIT_PLANES, x, "bits") for x in blocks]
    batch = 2 * blocks[-1]
    for shape in (THIRD, SMALL, SHALLOW, SECOND, LOPSIDED):
        yield from (Cell(shape, x, i * batch) for i, x in enumerate(points, 1))
    for shape in (WIDE, WIDE_FINE, WIDEST, FINE, DOUBLE, DOUBLE_WIDE, VECTORS):
        yield Cell(shape, points[-1], batch)
    for shape in (NARROW._replace(depth=7), DEEP):
        yield from (Cell(shape, x, i * batch) for i, x in enumerate(points[::3], 1))


def _list_permutes() -> Iterator[Cell]:
    """Permutes and octets."""
    octets, more = Point(1, OCTETS, 0, "trees", "octets"), NARROW._replace(features=64)
    for shape in (SHALLOW, NARROW, SMALL, SECOND, THIRD, more):
        yield from (Cell(shape, octets, x) for x in (1, ROWS))
    lopsided = (LOPSIDED, LOPSIDED._replace(features=64))
    blocks = sorted(LANE_COUNTS["permute"])
    points = [_vector_point(PERMUTED, x, "permute") for x in blocks]
    for shape in (SHALLOW, NARROW, SMALL, more, *lopsided, NARROW._replace(trees=600), SECOND):
        yield from _spread(shape, points)


def _spread(shape: Shape, points: Iterable[Point]) -> Iterator[Cell]:
    """Yield cells whose batches differ: one predictor serves them."""
    return (Cell(shape, point, ROWS + BLOCK * i) for i, point in enumerate(points))


def _walk_point(layout: str, tile: int, order: str, walks: int | str) -> Point:
    return Point(tile, layout, BLOCK if order == "rows" else 0, order, walks)


def _vector_point(layout: str, block: int, walks: str) -> Point:
    return Point(1, layout, block, "rows", walks)


def group_cells(cells: list[Cell]) -> list[list[Cell]]:
    """Group cells of one forest that differ in their batches: one predictor serves them all."""
    groups = dict[Shape, list[dict[int, Cell]]]()
    for cell in cells:
        of_shape = groups.setdefault(cell.shape, [])
        free = next((group for group in of_shape if cell.batch not in group), None)
        if free is None:
            of_shape.append(free := {})
        free[cell.batch] = cell
    return [list(group.values()) for of_shape in groups.values() for group in of_shape]


class Clock:
    """A call whose times say how fast the CPU is at a moment: others on the machine slow it down.

    Attributes:
        readings: nanoseconds of a row of each.
    """

    def __init__(self, target: Target) -> None:
        self.readings = list[float]()
        point, forest = _walk_point(WORD_NODES, 1, "rows", 8), draw_forest(SMALL)
        self._timed = _prepare([Cell(SMALL, point)], forest, target)[0]

    def read(self) -> float:
        """Return the nanoseconds of a row now."""
        self.readings.append(self._timed.take(TICKS))
        return self.readings[-1]


@dataclass
class _Timed:
    """A cell that is built, and its batches, which take turns."""

    cell: Cell
    predict: Callable[..., Array]
    batches: Iterator[Array]

    def take(self, calls: int) -> float:
        """Return the nanoseconds of a row on one thread, of processor time, after a call."""
        self.predict(next(self.batches), n_jobs=1)
        begin = time.thread_time()
        for batch in itertools.islice(self.batches, calls):
            self.predict(batch, n_jobs=1)
        return 1e9 * (time.thread_time() - begin) / calls / self.cell.batch


def _prepare(cells: list[Cell], forest: Forest, target: Target) -> list[_Timed]:
    """Build the cells of a group."""
    from ...predictor.building import build

    work = Workload.of(forest, target)
    least = min(x.batch for x in cells)  # its schedule serves smaller batches, too
    schedules = {
        1 if x.batch == least else x.batch: Space(work, work.start, x.batch, False).write(x.point)
        for x in cells
    }
    predict = build(forest, schedules, target).predict_margin
    return [_Timed(x, predict, itertools.cycle(_cut_batches(x.batch, forest))) for x in cells]


def time_cells(cells: list[Cell], forest: Forest, target: Target, clock: Clock) -> list[float]:
    """Return what a row takes for each cell of a group, in readings of the clock: medians of turns.

    The cells take turns, so that what disturbs the machine for a moment does not meet all turns of
    one cell. A call before each turn fetches its model into the caches.
    """
    group = _prepare(cells, forest, target)
    calls = [max(1, int(1e9 * TURN_SECONDS / (x.take(1) * x.cell.batch))) for x in group]
    turns = [
        [timed.take(count) / clock.read() for timed, count in zip(group, calls, strict=True)]
        for _ in range(TURNS)
    ]
    return list(map(float, np.median(turns, axis=0)))


def _cut_batches(batch: int, forest: Forest) -> list[Array]:
    """Return distinct batches of rows; wide rows are so many that each comes from memory."""
    numbers = _draw_numbers()
    count = len(numbers) // (batch * forest.n_features)
    if forest.n_features * 4 < WIDE_ROW_BYTES:
        count = min(MOST_BATCHES, count)
    rows = numbers[: count * batch * forest.n_features].reshape(count, batch, forest.n_features)
    return list(rows.astype(forest.row_dtype, copy=False))


@functools.cache
def _draw_numbers() -> Array:
    return np.random.default_rng(1).random(ROW_BYTES // 4, np.float32)


def calibrate(target: Target, show: Callable[[int, int], None] = lambda done, all: None) -> Machine:
    """Return what operations take on the CPU at hand.

    Args:
        target: the CPU that code is made for.
        show: is told how many calls of how many are timed.

    Raises:
        BuildError: TVM cannot compile.
    """
    near, cells = nearest(shipped_machines(), target), list(list_cells(target))
    forests = {shape: draw_forest(shape) for shape in dict.fromkeys(cell.shape for cell in cells)}
    here = replace(near, cache_bytes=measure_caches() or near.cache_bytes)
    works = {x: Workload(canonicalize(forest), target, here) for x, forest in forests.items()}
    times, clock = dict[Cell, float](), Clock(target)
    for group in group_cells(cells):
        forest = forests[group[0].shape]
        times |= zip(group, time_cells(group, forest, target, clock), strict=True)
        show(len(times), len(cells))
    counts = [count_operations(x.point, works[x.shape], x.batch) for x in cells]
    names = sorted({name for count in counts for name, x in count.items() if x})
    matrix = np.array([[count.get(name, 0.0) for name in names] for count in counts])
    expected = np.array([guess(name) for name in names])
    reading = float(np.median(clock.readings))
    solved = solve(matrix, reading * np.array([times[x] for x in cells]), expected)
    found = dict(zip(names, solved.tolist(), strict=True))
    origin = f"measured {time.strftime('%Y-%m-%d')} by code for {target.to_dict()}"
    abilities = frozenset(x for x in TELLING if target.has(x))
    return Machine(cpu_name(), cpu_vendor(), (), abilities, here.cache_bytes, found, origin)


def solve(counts: Array, times: Array, expected: Array) -> Array:
    """Return float64 (O,), times of operations that explain calls best, none of them near zero.

    Errors count in proportion to what a call takes and to what it should take: being off by a
    factor is as bad whichever of the two is longer.

    Args:
        counts: float64 (C, O), how often each operation is done in each call.
        times: float64 (C,), what the calls take.
        expected: float64 (O,), what operations take, about; errors count in proportion to these,
            and `BELIEF` times as much.
    """
    found, scale = expected, times
    for _ in range(ROUNDS):
        found = _descend(counts / scale[:, None], times / scale, expected, found)
        explained = counts @ found
        off = np.abs(np.log(times / explained))
        scale = np.sqrt(times * explained * np.maximum(1.0, off / TRUSTED))
    return found


def _descend(counts: Array, times: Array, expected: Array, start: Array) -> Array:
    """Return the times of the least squares, one operation after the other, again and again."""
    squares = counts.T @ counts + np.diag((BELIEF / expected) ** 2)
    slope = counts.T @ times + BELIEF**2 / expected
    found = start.copy()
    for _ in range(DESCENTS):
        before = found.copy()
        for i in range(len(found)):
            wanted = found[i] + (slope[i] - squares[i] @ found) / squares[i, i]
            found[i] = max(LEAST_SHARE * expected[i], wanted)
        if np.max(np.abs(found - before) / expected) < SETTLED:
            break
    return found
