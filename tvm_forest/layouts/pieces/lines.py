"""Defines the fields of a line, and their limits.

takes: nothing; gives: constants; the exits of lines as bytes, and the reverse.
"""

from __future__ import annotations

import numpy as np

from ...forest import Array
from . import shapes

AT = {"threshold": 0, "code": 28, "sides": 30, "base": 31, "feature": 32, "zero": 39, "exits": 40}
"""Byte offset of each field in a line."""

_FORMATS = ["7<f4", "<u2", "u1", "u1", "7u1", "u1", "24u1"]

LINE = np.dtype({"names": [*AT], "formats": _FORMATS, "offsets": [*AT.values()], "itemsize": 64})
"""Dtype of a line. Byte 39 must be zero: it is the feature of an unused test."""

EXITS, EXIT_BYTES = shapes.TESTS + 1, 3
"""Number of exits of a line, and bytes of one."""

LEAF_BIT, PLACE_BITS = 23, 2
"""Bit of an exit that marks a leaf, and number of low bits for the place in a line."""

UNIT_BITS = 18
UNIT = 1 << UNIT_BITS
"""Number of lines in a unit of `base`; they take 16 MiB."""

MAX_REACH, MAX_UNITS = 1 << LEAF_BIT - PLACE_BITS, 1 << 8
"""Number of lines that an exit can reach from its base, and number of bases."""

GROUP = 16
"""Number of trees that are packed and stored together, so that their data fit in the caches."""

SPARE_EXITS = 40
"""Largest number of unused exits of a group of trees: in the last line of each filling, and two for
a tree of one leaf."""

MAX_GROUP_NODES = shapes.LEAST_EXITS * (MAX_REACH - UNIT) - GROUP * SPARE_EXITS
MAX_NODES = shapes.LEAST_EXITS * UNIT * MAX_UNITS
"""Largest number of nodes of a group, and of all trees with spare exits, that lines can number
for trees of any shape: a node takes one exit at most."""

MAX_VALUES = 1 << LEAF_BIT
"""Largest number of distinct leaf values."""

MAX_FEATURES = 256
"""Largest number of features, since their numbers are bytes."""


def split_bytes(exits: Array) -> Array:
    """Return the exits of L lines, uint32 (L, 8), as three bytes each, uint8 (L, 24)."""
    words = exits.astype("<u4").view(np.uint8).reshape(-1, EXITS, 4)
    return words[:, :, :EXIT_BYTES].reshape(len(exits), -1)


def join_bytes(exits: Array) -> Array:
    """Return exits, uint32 (L, 8), given the bytes that `split_bytes` makes, uint8 (L, 24)."""
    words = np.zeros((len(exits), EXITS, 4), np.uint8)
    words[:, :, :EXIT_BYTES] = exits.reshape(-1, EXITS, EXIT_BYTES)
    return words.view("<u4")[:, :, 0]
