"""What the steps of walks take on one core, by the vendor of the CPU.

takes: a vendor; gives: Nanoseconds.

Measured on Zen 4; of a Xeon with AMX fitted to searches of all points (`benchmarks/search.py`), but
for what these do not tell. Both have AVX-512; the ratios decide, not the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Nanoseconds(NamedTuple):
    """What steps take.

    Attributes:
        hop: of a row, where rows walk together through ranked nodes.
        far_hop: the same where the first-level cache does not hold the codes of 64 rows.
        permuted: the same where 16 rows walk through 4 trees by permutes.
        permuted_column: what each column of codes adds to that.
        slot: of a complete tree, by bits, for all rows of a block of 512.
        selection: of a list, likewise.
        united: to add the rows of a category to the plane of a set, likewise.
        share: of these three, by the rows of a block: the planes of small ones are nearer.
        copied: to look up the code of a row in a column of memberships.
        value, wide_value: to code one value of a row, float32 and float64.
        leaf_by_bytes, leaf: to look up and add one leaf of a row, by bytes in registers or not.
        leaf_of_vector: to look up a leaf that holds a vector.
        value_of_vector: to add one of its values to a sum of the row, which takes as long where
            rows walk (random forests of 2 to 20 classes and depth 5 to 8).
        test_of_vectors: a test, for all rows of a block, in such a forest: hardly any node shares
            its test with another, so planes are far apart.
        in_lanes: the time of rows in lanes, beside rows that walk together, where trees or leaves
            are large.
        in_tiles: the same of rows that walk together through tiles of 8 nodes (Zen 4: by prices).
        near_tiles: layout and number of trees together where a single row goes through tiles of a
            model that stays in the caches, if the layout holds it.
        near: bytes of the first-level cache.
        rows_of_far: rows of a block where that cache does not hold the codes of 64; 0 for as many
            as otherwise.
        fewest: share of what a block of 256 rows by bits costs a batch of 64 to 127 rows, below
            which blocks of 64 serve it.
    """

    hop: float
    far_hop: float
    permuted: float
    permuted_column: float
    slot: float
    selection: float
    united: float
    share: Mapping[int, float]
    copied: float
    value: float
    wide_value: float
    leaf_by_bytes: float
    leaf: float
    leaf_of_vector: float
    value_of_vector: float
    test_of_vectors: float
    in_lanes: float
    in_tiles: float
    near_tiles: tuple[str, int]
    near: int
    rows_of_far: int
    fewest: float


ZEN_4 = Nanoseconds(
    hop=0.55,
    far_hop=0.85,
    permuted=0.18,
    permuted_column=0.0006,
    slot=0.42,
    selection=2.7,
    united=0.3,
    share={64: 0.6, 128: 0.6, 256: 0.6, 512: 1.0},
    copied=0.03,
    value=1.4,
    wide_value=2.5,
    leaf_by_bytes=0.15,
    leaf=0.6,
    leaf_of_vector=0.9,
    value_of_vector=0.15,
    test_of_vectors=8.0,
    in_lanes=0.7,
    in_tiles=1.04,
    near_tiles=("sparse", 16),
    near=32 * 1024,
    rows_of_far=0,
    fewest=0.5,
)

XEON = ZEN_4._replace(
    hop=0.67,
    far_hop=0.73,
    permuted=0.19,
    permuted_column=0.0026,
    slot=0.6,
    selection=1.64,
    share={64: 0.72, 128: 0.63, 256: 0.72, 512: 1.0},
    value=1.23,
    wide_value=2.06,
    leaf_by_bytes=0.12,
    leaf=0.54,
    in_lanes=1.16,
    in_tiles=0.8,
    near_tiles=("array", 4),
    near=48 * 1024,
    rows_of_far=16,
    fewest=1.0,
)

BY_VENDOR = {"AuthenticAMD": ZEN_4, "GenuineIntel": XEON}


def nanoseconds_of(vendor: str) -> Nanoseconds:
    """Return what steps take on the CPUs of a vendor, see `Target.vendor`."""
    return BY_VENDOR.get(vendor, ZEN_4)
