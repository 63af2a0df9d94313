"""Counts the operations of walks hop by hop.

takes: points, Workload; gives: operations with their counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..forest import Array
from ..layouts import CODED, PADDED, TRANSPOSED, WORD_NODES
from .operations import (
    FETCHED_BYTES,
    LEVELS_OF_CACHE,
    Operation,
    PointTable,
    Ways,
    count_coding,
)
from .space import Point
from .workload import LINE_BYTES, Workload

NODE_THRESHOLDS = {PADDED: 2.0, TRANSPOSED: 1.0, WORD_NODES: 1.0, CODED: 1.0}
"""By layout, fields of a node that are as wide as a threshold; 3 in other layouts."""

FIELD_BYTES = {TRANSPOSED: 4.0, WORD_NODES: 4.0, CODED: 4.0}
"""By layout, bytes of the other fields of a node."""

TILE_THRESHOLDS = {2: 5.0, 4: 3.2, 8: 4.2}
"""By tile size, the size of a node as a number of thresholds; tiles are not full."""

END_THRESHOLDS = 3.0
"""Size of complete trees of tiles, as a number of thresholds for each possible leaf."""

LEVELS = {1: 1.0, 2: 1.4, 4: 2.0, 8: 3.0}
"""By tile size, the levels of a tree that a tile decides; on the longest path, rounded down."""

PEELED_HOPS = 2
"""Number of peeled hops, which need no test for the end of the walk."""

MOST_OVERLAPPED = 12
"""Approximate number of interleaved walks whose loads from farther caches overlap."""

VECTOR_LANES = 64
"""Number of walks in vector lanes."""


class HopWalks(PointTable):
    """Counts the operations of points that walk hop by hop."""

    def __init__(self, points: Sequence[Point], batches: Sequence[int]) -> None:
        """Group P points by their common properties; `batches` are their batch sizes."""
        super().__init__(points, batches)
        ways = [point.order if point.walks != "gather" else "gather" for point in points]
        is_by_rows = np.array([point.order == "rows" for point in points], bool)
        block = np.where(self.block > 0, np.minimum(self.block, self.batch), self.batch)
        self.rows = np.where(is_by_rows, block, 1)
        lanes = np.minimum(self.rows, VECTOR_LANES).tolist()
        walks = [
            (lane, f"gather {lane}") if p.walks == "gather" else (int(p.walks), str(p.walks))
            for p, lane in zip(points, lanes, strict=True)
        ]
        kinds = [p.layout + (f" {p.tile}" if p.tile > 1 else "") for p in points]
        self.asks = np.array([_asks_for_ends(p) for p in points], bool)
        self.streams = np.array([p.cache == "stream" for p in points], bool)
        self.packs = np.array([p.cache == "pack" for p in points], bool)
        self.turns = np.array(
            [p.hops == "loop" and (p.order == "rows" or p.tile == 1) for p in points], bool
        )
        self.is_coded = np.array([p.layout == CODED for p in points], bool)
        self.tiles = Ways.among(p.tile for p in points)
        self.together = np.array([count for count, _ in walks], np.int64)
        self.started = np.where(is_by_rows, self.rows, self.together)
        self.way = Ways.among(ways)
        self.tiled_way = Ways.among(
            f"{way} in tiles" if p.tile > 1 else way for p, way in zip(points, ways, strict=True)
        )
        self.row_way = Ways.among(
            f"{way} of codes" if p.layout == CODED else f"{way} in tiles" if p.tile > 1 else way
            for p, way in zip(points, ways, strict=True)
        )
        self.walk = Ways.among(
            f"walk {kind}, {p.order} {name}"
            for p, kind, (_, name) in zip(points, kinds, walks, strict=True)
        )
        self.ends = Ways.among(
            ("loop" if p.walks == "gather" and p.hops == "peel" else p.hops, n, LEVELS[p.tile])
            for p, (n, _) in zip(points, walks, strict=True)
        )
        self.kind = Ways.among((p.tile, p.layout) for p in points)
        of_kinds = self.kind.of.tolist()
        self.far = Ways.among(zip(of_kinds, self.rows.tolist(), strict=True))
        self.where = Ways.among(
            (kind, _name_loads(p)) for p, kind in zip(points, of_kinds, strict=True)
        )

    def count(self, work: Workload) -> Iterator[Operation]:
        """Yield all operations of the points, with counts for each."""
        if self.is_coded.any():
            for coding in count_coding(self, work):
                yield coding._replace(counts=np.where(self.is_coded, coding.counts, 0.0))
        trees = work.forest.n_trees
        hops = self.ends.spread(_count_hops(work, *end) for end in self.ends.each)
        yield Operation(self.walk.each, self.walk.of, hops)
        tile = np.array(self.tiles.each)[self.tiles.of]
        if not work.picks_from_registers and np.any(tile > 1):
            in_tiles = np.where(tile > 1, hops, 0.0)
            yield self.name_by(self.tiles, f"walk loads of {work.forest.row_dtype} tile ", in_tiles)
        asked = np.where(self.asks, np.maximum(0.0, hops - PEELED_HOPS * trees), 0.0)
        yield self.name_by(self.order, "walk end, ", np.where(self.turns, hops, asked))
        yield self.name_by(self.order, "walk asks a node, ", np.where(tile == 1, asked, 0.0))
        yield self.name_by(self.way, "start ", trees / self.started)
        yield from self.count_leaves(work, self.tiled_way)
        yield from self._count_waits(work, hops, tile)

    def _count_waits(self, work: Workload, hops: Array, tile: Array) -> Iterator[Operation]:
        """Yield the loads of nodes and rows from farther caches."""
        sizes = [node_bytes(layout, tile, work) for tile, layout in self.kind.each]
        names = [
            "small trees" if sizes[kind] * work.mean_nodes <= FETCHED_BYTES else name
            for kind, name in self.where.each
        ]
        kind, rows = np.array(self.far.each).T
        is_tiled = np.array([tile > 1 for tile, _ in self.kind.each])
        is_coded = np.array([layout == CODED for _, layout in self.kind.each])
        near = np.maximum(1, np.where(is_coded, work.code_bytes, work.row_bytes))[kind] * rows
        ends = len(work.vectors) + np.where(is_tiled, work.leaves, 0)[kind]
        levels = np.array([LEVELS[tile] for tile, _ in self.kind.each])[kind]
        overlap = np.minimum(self.together, MOST_OVERLAPPED) / MOST_OVERLAPPED
        for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
            far = work.count_far_nodes(capacity, rows, np.array(sizes)[kind], near) / levels
            far += work.count_far_ends(capacity, rows, np.array(sizes)[kind], near, ends)
            waits = [f"wait {level} {name}" for name in names]
            yield Operation(waits, self.where.of, far[self.far.of] / overlap)
            missed = np.where(rows > 1, np.maximum(0.0, 1 - capacity / near), 0.0)
            missed_hops = hops * missed[self.far.of]
            yield self.name_by(self.row_way, f"wait row {level}, ", missed_hops)
        yield from self._count_streams(work, np.array(sizes)[kind][self.far.of])
        if not self.is_coded.all():
            near = self.is_coded | self.packs
            lines = np.where(near, 0.0, work.count_lines(hops * tile))
            yield self.name_by(self.tiled_way, "wait row line, ", lines)
        if self.packs.any():
            lines = np.where(self.packs, work.row_bytes / LINE_BYTES, 0.0)
            yield self.name("wait row line, packed", lines)

    def _count_streams(self, work: Workload, size: Array) -> Iterator[Operation]:
        """Yield the cache lines of trees that are fetched as a whole and that no cache holds."""
        nodes = work.forest.n_trees * int(np.diff(work.forest.tree_offset).max())
        held = work.machine.cache_bytes[-1] / (work.forest.n_nodes * size)
        lines = nodes * size / LINE_BYTES * np.maximum(0.0, 1 - held)
        yield self.name("wait memory stream", np.where(self.streams, lines / self.rows, 0.0))


def _asks_for_ends(point: Point) -> bool:
    """Return whether walks test before each hop if they have ended; vector lanes do not."""
    return point.hops == "peel" and point.walks != "gather"


def _count_hops(work: Workload, hops: str, together: int, levels: float) -> float:
    """Return the mean number of hops of a row through all trees.

    With "peel", interleaved walks end together, when the last of them is at its leaf; with "loop",
    each goes to the full depth of its tree.

    Args:
        work: the model.
        hops: see `Point.hops`; "loop" for vector lanes, which do not test for leaves.
        together: number of interleaved walks; unused with "loop".
        levels: levels of a tree that a hop decides; rounded down with "loop".
    """
    if hops == "peel":
        return work.count_hops(together, levels)
    return work.count_unasked_hops(float(int(levels)))


def _name_loads(point: Point) -> str:
    """Return the name of the operation that loads nodes."""
    name = "vectors" if point.walks == "gather" else "tiles" if point.tile > 1 else "nodes"
    return f"{name} fetched ahead" if point.cache == "stream" else name


def node_bytes(layout: str, tile: int, work: Workload) -> float:
    """Return the approximate bytes of a layout per node of the model."""
    item, vectors = work.threshold_bytes, work.vectors.nbytes / work.forest.n_nodes
    if tile > 1 and layout == PADDED:
        ends = work.count_ends(tile + 1, int(LEVELS[tile]))
        return END_THRESHOLDS * item * ends / work.forest.n_nodes + vectors
    if tile > 1:
        return TILE_THRESHOLDS[tile] * item + vectors
    size = NODE_THRESHOLDS.get(layout, 3.0) * item + FIELD_BYTES.get(layout, 0.0)
    slots = work.slots_per_node if layout in (PADDED, TRANSPOSED) else 1.0
    return size * slots + vectors
