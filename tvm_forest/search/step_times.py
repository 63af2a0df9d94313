"""What the steps of walks take on one core, by the vendor of the CPU.

takes: a vendor; gives: StepTimes.

The times of Zen 4 are measured; those of a Xeon with AMX are fitted to exhaustive searches
(`benchmarks/search.py`) where these tell them, and are Zen 4's otherwise. Both CPUs have AVX-512.
Only the ratios of the times decide between schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class StepTimes(NamedTuple):
    """What steps take, in nanoseconds unless a line says otherwise; by default on Zen 4.

    Attributes:
        hop: a hop of a row, where rows walk together through nodes that compare ranks.
        far_hop: the same where the first-level cache does not hold the codes of 64 rows.
        permuted_hop: the same where 16 rows walk through 4 trees by permutes.
        permuted_column: what each column of codes adds to a permuted hop.
        slot: a slot of a complete tree, by bit planes, for all rows of a block of 512.
        selection: a selection of a listed tree, for all rows of a block of 512.
        category: adding the plane of a category to that of a set, for all rows of a block of 512.
        block_share: by the rows of a block, its slots, selections and categories as a ratio to
            those of a block of 512 rows; the planes of small blocks stay in nearer caches.
        membership: looking up the code of a row in a membership column.
        float32_code, float64_code: coding one value of a row.
        byte_leaf: looking up and adding a leaf of a row, by bytes in registers.
        leaf: the same, in memory.
        vector_leaf: looking up a leaf that holds a vector.
        vector_value: adding a value of a leaf vector to a sum.
        vector_test: a test, for all rows of a block of 512, in a forest of leaf vectors, whose
            nodes hardly ever share tests.
        lanes_ratio: time of rows in lanes over that of rows that walk together, where trees or
            leaves are large.
        tiles_ratio: the same for rows that walk together through tiles of 8 nodes.
        complete_tiles_together: trees that a single row walks together through tiles of complete
            trees; 0 where tiles that link to each other are faster.
        cache_bytes: size of the first-level cache, in bytes.
        far_block_rows: rows of a block where that cache does not hold the codes of 64 rows; 0 for
            as many as otherwise.
        smallest_block_share: cost of a block of 64 rows by bit planes over that of a block of 256,
            below which batches of 64 to 127 rows go in blocks of 64.
    """

    hop: float = 0.55
    far_hop: float = 0.85
    permuted_hop: float = 0.18
    permuted_column: float = 0.0006
    slot: float = 0.42
    selection: float = 2.7
    category: float = 0.3
    block_share: Mapping[int, float] = MappingProxyType({64: 0.6, 128: 0.6, 256: 0.6, 512: 1.0})
    membership: float = 0.03
    float32_code: float = 1.4
    float64_code: float = 2.5
    byte_leaf: float = 0.15
    leaf: float = 0.6
    vector_leaf: float = 0.9
    vector_value: float = 0.15
    vector_test: float = 8.0
    lanes_ratio: float = 0.7
    tiles_ratio: float = 1.04
    complete_tiles_together: int = 0
    cache_bytes: int = 32 * 1024
    far_block_rows: int = 0
    smallest_block_share: float = 0.5


ZEN_4 = StepTimes()

XEON = ZEN_4._replace(
    hop=0.67,
    far_hop=0.73,
    permuted_hop=0.19,
    permuted_column=0.0026,
    slot=0.6,
    selection=1.64,
    block_share={64: 0.72, 128: 0.63, 256: 0.72, 512: 1.0},
    float32_code=1.23,
    float64_code=2.06,
    byte_leaf=0.12,
    leaf=0.54,
    lanes_ratio=1.16,
    tiles_ratio=0.8,
    complete_tiles_together=4,
    cache_bytes=48 * 1024,
    far_block_rows=16,
    smallest_block_share=1.0,
)

BY_VENDOR = {"AuthenticAMD": ZEN_4, "GenuineIntel": XEON}


def step_times_of(vendor: str) -> StepTimes:
    """Return what steps take on the CPUs of a vendor, see `Target.vendor`."""
    return BY_VENDOR.get(vendor, ZEN_4)
