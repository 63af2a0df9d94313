"""Lists the calls that calibration times: forests, points and batch sizes.

takes: Target; gives: Cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ...layouts import (
    ANY_FOREST,
    BIT_PLANES,
    CODED,
    OCTETS,
    PADDED,
    PERMUTED,
    PIECES,
    TRANSPOSED,
    WORD_NODES,
)
from ...schedule_prims.walks import LANE_COUNTS
from ...system.values import dataclass
from ...target import Target
from ..layout_fit import LANES_ABILITY, PERMUTE_ABILITY
from ..space import Point
from .drawn_forests import Shape

ROWS = 256
"""Least number of rows in a call, except calls of one row."""

SHALLOW, SMALL = Shape(64, 4, 8, cuts=12), Shape(48, 8, 8, cuts=100)
SMALL_WIDE = SMALL._replace(features=64, cuts=15)
WIDE, WIDE_FINE = Shape(16, 6, 256, cuts=12), Shape(100, 6, 256, cuts=300)
WIDEST = Shape(32, 6, 2000, cuts=12)
FINE = Shape(8, 9, 4, cuts=1000)
DOUBLE, DOUBLE_WIDE = Shape(32, 8, dtype="float64"), WIDE._replace(dtype="float64")
SECOND, THIRD = Shape(300, 8, 8), Shape(2000, 8)

TALL, VECTORS = Shape(32, 14), Shape(32, 8, outputs=10)
TALL_VECTORS = Shape(100, 11, outputs=2)
DEEP = Shape(32, 9, cuts=60)
LOPSIDED, NARROW = Shape(64, 12, cuts=60, lopsided=True), Shape(32, 6)

BLOCK, LEAST_LANES, TALL_BLOCK = 64, 16, 2048
"""Numbers of rows in a block: the usual one, the least in vector lanes, and one that the first
cache does not hold."""

WAYS = ("trees", "rows")
"""The two kinds of interleaved walks: through several trees, or of several rows."""


@dataclass(frozen=True)
class Cell:
    """A call that calibration times.

    Attributes:
        shape: shape of the forest.
        point: how the forest is walked, a point of the search space.
        batch: number of rows in a call.
    """

    shape: Shape
    point: Point
    batch: int = ROWS


def list_cells(target: Target) -> Iterator[Cell]:
    """Yield the cells: every way of walking, then conditions that make it faster or slower."""
    yield from _list_walks(target)
    yield from _list_far_walks()
    yield from _list_rows_and_leaves()
    yield from _list_planes()
    if target.has(PERMUTE_ABILITY):
        yield from _list_permutes()


def _list_walks(target: Target) -> Iterator[Cell]:
    """Yield cells of walks hop by hop, through trees in the first or second cache."""
    untiled = [(PADDED, 1), (ANY_FOREST, 1), (WORD_NODES, 1), (CODED, 1)]
    tiled = [(name, size) for name in (PADDED, ANY_FOREST) for size in (4, 8)]
    ways = [("trees", x) for x in (2, 4, 8, 10, 16)] + [("rows", x) for x in (4, 8, 16)]
    for layout, tile in [*untiled, *tiled]:
        yield from _spread(SMALL, (walk_point(layout, tile, *way) for way in ways))
        if tile != 4:
            yield from _spread(SHALLOW, (walk_point(layout, tile, x, 8) for x in WAYS))
    for shape, tile in itertools.product((SMALL_WIDE, DOUBLE), (4, 8)):
        yield from _spread(shape, (walk_point(ANY_FOREST, tile, x, 8) for x in WAYS))
    points = [walk_point(TRANSPOSED, 1, "trees", x) for x in (2, 4, 8, 10, 16)]
    yield from _spread(SECOND, points)
    yield Cell(SHALLOW._replace(trees=600), points[2], 1)
    if target.has(LANES_ABILITY):
        for layout, tile in untiled:
            lanes = walk_point(layout, tile, "rows", "gather")
            yield from _spread(SMALL, (lanes._replace(block=x) for x in (LEAST_LANES, BLOCK)))


def _list_far_walks() -> Iterator[Cell]:
    """Yield cells of walks whose nodes are in farther caches."""
    for layout, tile in ((WORD_NODES, 1), (CODED, 1), (ANY_FOREST, 8)):
        point = walk_point(layout, tile, "rows", 8)
        yield from (Cell(SHALLOW, point._replace(block=block)) for block in (16, ROWS))
    for shape in (SECOND, THIRD, TALL):
        words = [walk_point(WORD_NODES, 1, x, 8) for x in WAYS]
        lanes = walk_point(WORD_NODES, 1, "rows", "gather")
        yield from _spread(shape, [words[1]._replace(block=ROWS), *words, lanes])
    for shape, order in itertools.product((SECOND, TALL), WAYS):
        point = walk_point(ANY_FOREST, 8, order, 8)
        yield from _spread(shape, (point, point._replace(walks=16)))
        yield Cell(shape, point._replace(tile=4))
    tall = [walk_point(WORD_NODES, 1, "rows", "gather"), walk_point(ANY_FOREST, 8, "rows", 16)]
    yield from (Cell(TALL, point._replace(block=TALL_BLOCK), TALL_BLOCK) for point in tall)
    pieces = Point(1, PIECES, 0, "trees", "pieces")
    for shape in (SMALL, TALL, TALL._replace(features=80), TALL_VECTORS):
        yield Cell(shape, pieces, ROWS)
    for shape in (THIRD, TALL):
        words = [walk_point(WORD_NODES, 1, "rows", x) for x in (8, "gather")]
        yield from (Cell(shape, point._replace(cache="stream")) for point in words)


def _list_rows_and_leaves() -> Iterator[Cell]:
    """Yield cells of walks with wide rows, other dtypes, leaf vectors, and single rows."""
    for shape in (WIDE_FINE, FINE, DOUBLE):
        yield from _spread(shape, (walk_point(CODED, 1, x, 8) for x in WAYS))
    words = [walk_point(WORD_NODES, 1, "rows", x) for x in (8, "gather")]
    yield from _spread(WIDE, words)
    kinds = ((WORD_NODES, 1), (CODED, 1), (PADDED, 4), (ANY_FOREST, 8))
    trees = [walk_point(layout, tile, "trees", 8) for layout, tile in kinds]
    yield from _spread(WIDEST, [*words, walk_point(ANY_FOREST, 8, "rows", 8), *trees])
    yield from (Cell(WIDEST, point, 1) for point in trees)
    packed = [x._replace(cache="pack") for x in trees if x.layout != CODED]
    yield from itertools.chain(_spread(WIDEST, packed), (Cell(WIDEST, x, 1) for x in packed))
    for shape in (VECTORS, TALL_VECTORS):
        tiles = [walk_point(ANY_FOREST, 8, x, 8) for x in WAYS]
        yield from _spread(shape, [walk_point(WORD_NODES, 1, "trees", 8), *words, *tiles])
    yield Cell(SHALLOW, walk_point(WORD_NODES, 1, "trees", 8), 1)


def _list_planes() -> Iterator[Cell]:
    """Yield cells of walks by bit planes."""
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
    """Yield cells of walks by permutes and by octets."""
    octets, more = Point(1, OCTETS, 0, "trees", "octets"), NARROW._replace(features=64)
    for shape in (SHALLOW, NARROW, SMALL, SECOND, THIRD, more):
        yield from (Cell(shape, octets, x) for x in (1, ROWS))
    lopsided = (LOPSIDED, LOPSIDED._replace(features=64))
    blocks = sorted(LANE_COUNTS["permute"])
    points = [_vector_point(PERMUTED, x, "permute") for x in (blocks[0], blocks[-1])]
    deep = (NARROW._replace(trees=600), SECOND, THIRD)
    for shape in (SHALLOW, NARROW, SMALL, more, *lopsided, *deep):
        yield from _spread(shape, points)


def _spread(shape: Shape, points: Iterable[Point]) -> Iterator[Cell]:
    """Yield a cell for each point, with different batch sizes, so that one predictor serves all."""
    return (Cell(shape, point, ROWS + BLOCK * i) for i, point in enumerate(points))


def walk_point(layout: str, tile: int, order: str, walks: int | str) -> Point:
    """Return the point of a walk hop by hop; the arguments are fields of `Point`."""
    return Point(tile, layout, BLOCK if order == "rows" else 0, order, walks)


def _vector_point(layout: str, block: int, walks: str) -> Point:
    return Point(1, layout, block, "rows", walks)


def group_cells(cells: list[Cell]) -> list[list[Cell]]:
    """Group cells of one forest and different batch sizes, so that one predictor serves a group."""
    groups = dict[Shape, list[dict[int, Cell]]]()
    for cell in cells:
        of_shape = groups.setdefault(cell.shape, [])
        free = next((group for group in of_shape if cell.batch not in group), None)
        if free is None:
            of_shape.append(free := {})
        free[cell.batch] = cell
    return [list(group.values()) for of_shape in groups.values() for group in of_shape]
