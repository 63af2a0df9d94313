"""The fields of a line, and how many there may be.

takes: nothing; gives: constants; exits as bytes, and back.
"""

from __future__ import annotations

import numpy as np

from ...forest import Array
from . import shapes

AT = {"threshold": 0, "code": 28, "sides": 30, "base": 31, "feature": 32, "zero": 39, "exits": 40}
"""Where the fields of a line begin."""

_FORMATS = ["7<f4", "<u2", "u1", "u1", "7u1", "u1", "24u1"]

LINE = np.dtype({"names": [*AT], "formats": _FORMATS, "offsets": [*AT.values()], "itemsize": 64})
"""A line. Byte 39 must be zero: it is the feature of a test that counts for nothing."""

EXITS, EXIT_BYTES = shapes.TESTS + 1, 3
"""Exits of a line, and bytes of one."""

LEAF_BIT, PLACE_BITS = 23, 2
"""The bit of an exit that marks a leaf, and the lowest bits, which are the place in a line."""

UNIT_BITS = 18
UNIT = 1 << UNIT_BITS
"""Lines that `base` counts by: 16 MiB."""

MAX_REACH, MAX_UNITS = 1 << LEAF_BIT - PLACE_BITS, 1 << 8
"""Lines that an exit can reach from its base, and bases there are."""

GROUP = 16
"""Trees that lie together. As many are packed at once, for which the caches have room."""

SPARE_EXITS = 40
"""Exits for each group of trees that may be left over in the last lines of all fillings, and two
for a tree of one leaf."""

MAX_GROUP_NODES = shapes.LEAST_EXITS * (MAX_REACH - UNIT) - GROUP * SPARE_EXITS
MAX_NODES = shapes.LEAST_EXITS * UNIT * MAX_UNITS
"""Nodes of a group, and of all trees with their spare exits, for which there are enough lines
whatever the trees look like: a node takes one exit at most."""

MAX_VALUES = 1 << LEAF_BIT
"""Distinct values of leaves."""

MAX_FEATURES = 256
"""Features that a byte can count."""


def split_bytes(exits: Array) -> Array:
    """Return exits uint32 (L, 8) as bytes, uint8 (L, 24)."""
    words = exits.astype("<u4").view(np.uint8).reshape(-1, EXITS, 4)
    return words[:, :, :EXIT_BYTES].reshape(len(exits), -1)


def join_bytes(exits: Array) -> Array:
    """Return the exits that these bytes are."""
    words = np.zeros((len(exits), EXITS, 4), np.uint8)
    words[:, :, :EXIT_BYTES] = exits.reshape(-1, EXITS, EXIT_BYTES)
    return words.view("<u4")[:, :, 0]
