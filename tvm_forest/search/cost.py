"""What a point of the space costs: how often each operation is done, times what it takes.

takes: Point, Workload, size of batch, Machine; gives: nanoseconds of a row, part by part.

    operation              how often for a row                    example: airline, 4,096 rows
    code float32 1         values that one comparison codes       13
    walk bitsliced 512     slots of complete trees over 512 rows  25,600 / 512
    leaf bitsliced         trees                                  100

The first word of an operation is the part that it belongs to: "call", "code" (rows become codes),
"start" (of a tree, for a block or group), "walk", "wait" (for loads from farther caches), "leaf"
(look-ups and additions). What an operation
takes on a machine is data, see `machines`. What a search has measured corrects the sum: points that
differ little err alike (a Gaussian process over the parameters). Operations that a machine's file
does not have are guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..forest import Array
from ..layouts import BIT_PLANES, CODED, OCTETS, PADDED, PERMUTED, TRANSPOSED, WORD_NODES
from .guesses import guess
from .machines import Machine
from .space import Point
from .workload import LINE_BYTES, Workload

NODE_THRESHOLDS = {PADDED: 2.0, TRANSPOSED: 1.0, WORD_NODES: 1.0, CODED: 1.0}
"""How large a node is in thresholds, beside its feature and links, if these are not as large; 3 in
other layouts."""

FIELD_BYTES = {TRANSPOSED: 4.0, WORD_NODES: 4.0, CODED: 4.0}
"""Bytes of the other fields of a node."""

TILE_THRESHOLDS = {2: 5.0, 4: 3.2, 8: 4.2}
"""How large a node in a tile of so many is, in thresholds: tiles are not full."""

END_THRESHOLDS = 3.0
"""How large complete trees of tiles are for each leaf that they have room for, in thresholds."""

LEVELS = {1: 1.0, 2: 1.4, 4: 2.0, 8: 3.0}
"""Levels of a tree that a tile of so many nodes decides; on the longest path, only whole ones."""

PEELED_HOPS = 2
"""Hops that do not ask whether they are the last, where hops are peeled."""

PERMUTED_ROWS, PERMUTED_COLUMNS = 16, 8
"""Rows that walk together by permutes, present or not, and columns of theirs that one instruction
looks up."""

OCTET, OCTET_LEVELS, OCTET_BYTES = 8, 3, 6.0
"""Trees that a row walks through at once, levels of their tiles, and bytes of a slot, about."""

OBLIVIOUS_LEAVES = 0.5
"""What a leaf takes of the time of others where several trees are added before a sum is stored."""

CODED_ROWS = 64
"""Rows that become planes together."""

SLOT_BYTES, SELECTION_BYTES = 4.0, 8.0
"""Bytes of a slot and of a selection."""

MOST_OVERLAPPED = 12
"""Walks together whose loads from farther caches overlap, about."""

FETCHED_BYTES = 8192
"""Bytes of a tree that the CPU fetches as a whole, since trees lie one after the other."""

VECTOR_LANES = 64
"""Walks in the lanes of vectors."""

LEVELS_OF_CACHE = ("second", "third", "memory")
"""Where a load is found that the first, second, third cache does not hold."""


DISTANCES = {"tile": 0.6, "layout": 1.0, "order": 1.0, "walks": 0.25, "hops": 0.25, "cache": 0.3}
"""How far two points are apart that differ in a parameter; numbers of walks count by octaves."""

BLOCK_DISTANCE = 0.45
"""How far two points are apart for each octave of their blocks."""

POINT_ERROR, COMMON_ERROR, NOISE = 0.2, 0.6, 0.03
"""How far prices are off, in logarithms: for one point, for all points alike, and by chance each
time that a point is measured."""

FAILURE = 1.5
"""How much worse than expected what cannot be built is taken to be, in logarithms."""


def count_operations(point: Point, work: Workload, batch: int) -> dict[str, float]:
    """Return how often each operation is done for a row, on average over the rows of a batch."""
    counts = {"call": 1 / batch}
    if point.layout == BIT_PLANES:
        return counts | dict(_count_planes(point, work, batch)) | _count_panels(work, batch)
    if point.layout == PERMUTED:
        return counts | dict(_count_permutes(point, work, batch)) | dict(_count_coding(point, work))
    if point.layout == OCTETS:
        return counts | dict(_count_octets(work)) | dict(_count_coding(point, work))
    coding = dict(_count_coding(point, work)) if point.layout == CODED else {}
    return counts | coding | dict(_count_hops(point, work, batch))


def _count_coding(point: Point, work: Workload) -> Iterator[tuple[str, float]]:
    """Values of a row that are searched, by the steps of the search; rows alone cost more."""
    alone = " alone" if point.order == "trees" else ""
    for steps, columns in work.columns_by_steps.items():
        yield f"code {work.forest.row_dtype} {min(steps, 3)}{alone}", float(columns)
    yield "code membership", float(work.membership_columns)
    yield "wait row line, code", work.count_lines(work.forest.searches)
    cuts = work.cut_bytes
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        yield f"wait cuts {level}", max(0.0, cuts - capacity) / LINE_BYTES


def _count_panels(work: Workload, batch: int) -> dict[str, float]:
    """64 rows are coded together, whether they are there or not; categories row by row."""
    dtype, counts = work.forest.row_dtype, Counter[str]()
    by_permutes = dtype == "float32" and work.target.has("avx512f")
    counts[f"code {dtype} unit"] += work.units
    counts[f"code {dtype} cut"] += work.compared_tests
    for (steps, levels), columns in work.searched_columns.items():
        way = f"{levels} levels" if steps == 2 and by_permutes else f"{steps} in panels"
        counts[f"code {dtype} {way}"] += columns
    waste = -(-batch // CODED_ROWS) * CODED_ROWS / batch
    full = {name: waste * count for name, count in counts.items()}
    return full | {f"code {dtype} 1": float(len(work.forest.set_counts))}


def _count_leaves(kind: str, work: Workload) -> Iterator[tuple[str, float]]:
    trees = float(work.forest.n_trees)
    if work.forest.has_vectors:
        yield f"leaf vector {kind}", trees
        yield "leaf vector value", trees * work.forest.n_outputs
    else:
        yield f"leaf {kind}", trees


def _count_hops(point: Point, work: Workload, batch: int) -> Iterator[tuple[str, float]]:
    kind = point.layout + (f" {point.tile}" if point.tile > 1 else "")
    rows = min(point.block or batch, batch) if point.order == "rows" else 1
    lanes = min(rows, VECTOR_LANES)
    together = lanes if point.walks == "gather" else int(point.walks)
    walks = f"gather {lanes}" if point.walks == "gather" else point.walks
    straight, levels = point.hops == "depth", LEVELS[point.tile]
    hops = work.count_hops(together, float(int(levels)) if straight else levels, straight)
    yield f"walk {kind}, {point.order} {walks}", hops
    if point.tile > 1 and not work.picks_from_registers:
        yield f"walk loads of {work.forest.row_dtype} tile {point.tile}", hops
    asked = {"loop": hops, "peel": max(0.0, hops - PEELED_HOPS * work.forest.n_trees), "depth": 0.0}
    yield f"walk end, {point.order}", asked[point.hops]
    way = "gather" if point.walks == "gather" else point.order
    yield f"start {way}", work.forest.n_trees / (rows if point.order == "rows" else together)
    if point.tile > 1:
        way = f"{way} in tiles"
    yield from _count_leaves(way, work)
    size = node_bytes(point, work)
    is_small = size * work.mean_nodes <= FETCHED_BYTES
    kind = "vectors" if point.walks == "gather" else "tiles" if point.tile > 1 else "nodes"
    where = "small trees" if is_small else f"{kind} fetched ahead" if point.cache else kind
    overlap = min(together, MOST_OVERLAPPED) / MOST_OVERLAPPED
    ends = len(work.vectors) + (work.leaves if point.tile > 1 else 0)
    near = max(1, work.code_bytes if point.layout == CODED else work.row_bytes) * rows
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = work.count_far_nodes(capacity, rows, size, near) / LEVELS[point.tile]
        far += work.count_far_ends(capacity, rows, size, near, ends)
        yield f"wait {level} {where}", far / overlap
        yield f"wait row {level}, {way}", hops * max(0.0, 1 - capacity / near) if rows > 1 else 0.0
    if point.layout != CODED:
        yield f"wait row line, {way}", work.count_lines(hops * point.tile)


def node_bytes(point: Point, work: Workload) -> float:
    """Return the bytes of a layout for each node of the model, about."""
    item, vectors = work.threshold_bytes, work.vectors.nbytes / work.forest.n_nodes
    if point.tile > 1 and point.layout == PADDED:
        ends = work.count_ends(point.tile + 1, int(LEVELS[point.tile]))
        return END_THRESHOLDS * item * ends / work.forest.n_nodes + vectors
    if point.tile > 1:
        return TILE_THRESHOLDS[point.tile] * item + vectors
    size = NODE_THRESHOLDS.get(point.layout, 3.0) * item + FIELD_BYTES.get(point.layout, 0.0)
    slots = work.slots_per_node if point.layout in (PADDED, TRANSPOSED) else 1.0
    return size * slots + vectors


def _count_permutes(point: Point, work: Workload, batch: int) -> Iterator[tuple[str, float]]:
    waste = -(-batch // PERMUTED_ROWS) * PERMUTED_ROWS / batch
    hops = work.hops * waste
    yield f"walk {PERMUTED}", hops
    yield f"walk {PERMUTED} wide", work.wide_hops * waste
    yield f"walk {PERMUTED} columns", hops * -(-work.forest.searches // PERMUTED_COLUMNS)
    for name, count in _count_leaves(f"{PERMUTED} {work.leaf_table or 'far'}", work):
        yield name, count * waste
    yield f"start {PERMUTED}", work.hops / min(point.block, batch)


def _count_octets(work: Workload) -> Iterator[tuple[str, float]]:
    """Trees are completed as deep as the deepest; two octets of each class wait at each tier."""
    tiers = -(-max(1, work.deepest) // OCTET_LEVELS)
    classes = work.forest.round_size
    octets = classes * -(-work.forest.n_trees // (OCTET * classes))
    yield "walk octets", octets * tiers + 2.0 * classes * (tiers + 1)
    yield from _count_leaves(OCTETS, work)
    slots = 2.0 ** (work.deepest + 1) * work.forest.n_trees / work.forest.n_nodes
    size = OCTET_BYTES * slots
    where = "small trees" if OCTET * size * work.mean_nodes <= FETCHED_BYTES else "octets"
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = work.count_far_nodes(capacity, 1, size, work.code_bytes)
        yield f"wait {level} {where}", far / OCTET_LEVELS


def _count_planes(point: Point, work: Workload, batch: int) -> Iterator[tuple[str, float]]:
    """Blocks cost the same whether they are full or not, but for the leaves of the last words."""
    rows = min(batch, point.block)
    block = point.block
    yield f"walk slot {block}", work.slots / rows
    yield f"walk selection {block}", work.selections / rows
    if work.forest.has_vectors:
        yield f"walk vector test {block}", work.tests / rows
    else:
        yield f"walk test {block}", (work.tests - work.compared_tests) / rows
    yield f"walk category {block}", sum(x.named for x in work.forest.set_counts) / rows
    plane, size = block / 8, SLOT_BYTES * work.slots + SELECTION_BYTES * work.selections
    size += work.threshold_bytes * work.leaves + work.vectors.nbytes
    for level, capacity in zip(LEVELS_OF_CACHE, work.machine.cache_bytes, strict=False):
        far = max(0.0, 1 - capacity / max(1.0, work.tests * plane))
        lines = (work.slots + 3 * work.selections) * plane / LINE_BYTES
        yield f"wait plane {level}", far * lines / rows
        far = max(0.0, 1 - capacity / size)
        yield f"wait model {level}", far * size / LINE_BYTES / rows
    share = OBLIVIOUS_LEAVES if work.all_oblivious else 1.0
    for name, count in _count_leaves(f"{BIT_PLANES} {work.leaf_look_up}", work):
        yield name, share * count * (-(-rows // 64) * 64 / rows)


def price(point: Point, work: Workload, batch: int, machine: Machine | None = None) -> float:
    """Return the nanoseconds of a row that a point is expected to take on one thread."""
    return sum(price_parts(point, work, batch, machine).values())


def price_parts(
    point: Point, work: Workload, batch: int, machine: Machine | None = None
) -> dict[str, float]:
    """Return the same by parts: "call", "code", "start", "walk", "wait", "leaf"."""
    times, parts = (machine or work.machine).nanoseconds, dict[str, float]()
    for name, count in count_operations(point, work, batch).items():
        part = name.partition(" ")[0]
        parts[part] = parts.get(part, 0.0) + count * times.get(name, guess(name))
    return parts


def estimate(points: Sequence[Point], work: Workload, batch: int) -> Array:
    """Return float64 (P,), the expected logarithm of the nanoseconds of a hop of a row."""
    prices = [price(point, work, batch) for point in points]
    return np.log(np.array(prices) / max(1, work.hops))


class Surrogate:
    """What is expected of each point, given what some of them have taken."""

    def __init__(self, points: Sequence[Point], expected: Array) -> None:
        """Start with the prices of P points."""
        self._expected = expected
        self._covariance = POINT_ERROR**2 * np.exp(-_distances(points)) + COMMON_ERROR**2
        self.known: dict[int, float] = {}

    def learn(self, place: int, hop: float) -> None:
        """Take note of the nanoseconds of a hop at a point; infinity if it cannot be built."""
        failed = float(self.predict()[0][place]) + FAILURE
        self.known[place] = math.log(hop) if hop < math.inf else failed

    def predict(self) -> tuple[Array, Array]:
        """Return float64 (P,) each: what is expected, and how far off that may be.

        Where the measured points are farther off than they should be, so may be the others.
        """
        at = list(self.known)
        if not at:
            return self._expected, np.sqrt(np.diag(self._covariance))
        known = self._covariance[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        weights = np.linalg.solve(known, self._covariance[at])
        error = np.array([self.known[i] - self._expected[i] for i in at])
        spread = np.diag(self._covariance) - np.sum(self._covariance[at] * weights, axis=0)
        off = max(1.0, float(error @ np.linalg.solve(known, error)) / len(at))
        return self._expected + error @ weights, np.sqrt(np.maximum(off * spread, 0.0))


def _distances(points: Sequence[Point]) -> Array:
    """Return float64 (P, P), how little two points have in common."""
    octaves = np.array([math.log2(point.block or 1 << 13) for point in points])
    distances = BLOCK_DISTANCE * np.abs(octaves[:, None] - octaves)
    for name, distance in DISTANCES.items():
        values = [getattr(point, name) for point in points]
        places = {value: i for i, value in enumerate(dict.fromkeys(values))}
        scale = {v: math.log2(v) if type(v) is int else 10.0 * i for v, i in places.items()}
        positions = np.array([scale[value] for value in values])
        apart = np.abs(positions[:, None] - positions)
        distances += distance * np.minimum(apart, 4.0 if name == "walks" else 1.0)
    return distances
