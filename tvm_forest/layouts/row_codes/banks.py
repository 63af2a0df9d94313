"""Stores ranks so that 32 neighbouring threads have no bank conflicts in shared memory.

takes: Forest; gives: BankCode (how rows are coded) and the arrays that coding reads.

Shared memory has 32 banks of 4 bytes. Each row of a group of 32 has a bank of its own, and the
codes in a word are those of one row:

    group of 32 rows     word of columns 0 ... 3         word of columns 4 ... 7
                         row 0, row 1, ..., row 31       row 0, row 1, ...
                         each: code 0, 1, 2, 3           each: code 4, 5, 6, 7

A node holds the place of its column in the group; the sum of it and a row's address is the address
of the code.

The cuts of a column are searched as a balanced binary tree, level by level: cuts of a level are
adjacent, so that 32 threads which search one column for different rows read few cache lines.

    place 1           the median cut
    places 2 and 3    the medians of both halves, and so on; padded with NaN, which nothing reaches

A value that has passed all levels is at place 2^levels + its rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...system.values import dataclass
from .ranks import RankCode, SearchGroup, choose_code_dtype, count_levels, find_tests

LANES = 32
"""Number of rows in a group, which is that of shared-memory banks and of threads in a warp."""

WORD_BYTES = 4
"""Bytes of a word of a shared-memory bank."""


@dataclass(frozen=True)
class BankCode(RankCode):
    """A row code whose search steps are the levels of a binary search."""

    @property
    def kind(self) -> None:
        """None: compiled code depends on all fields, see `laying_out.kinds`."""

    @property
    def in_word(self) -> int:
        """Number of codes in a word of 4 bytes."""
        return WORD_BYTES // np.dtype(self.dtype).itemsize

    @property
    def group_size(self) -> int:
        """Number of codes in a group of rows."""
        return -(-self.columns // self.in_word) * LANES * self.in_word

    def place(self, column: Any) -> Any:
        """Return the offset of a column's code from that of column 0 of the row, in codes."""
        return column // self.in_word * (LANES * self.in_word) + column % self.in_word


class BankedTests(NamedTuple):
    """The tests of a forest as comparisons of codes.

    Attributes:
        code: how rows are coded.
        arrays: arrays that searches read: features, first cut of each column, and all cuts.
        place: int64 (N,), `BankCode.place` of the column that a node tests, 0 at leaves.
        rank: int64 (N,), code of the node's threshold, 0 at leaves.
    """

    code: BankCode
    arrays: dict[str, Array]
    place: Array
    rank: Array


def bank_tests(forest: Forest) -> BankedTests:
    """Rank the thresholds of every column of a forest that `ranks.unfit` accepts."""
    tests = find_tests(forest)
    keys, column, place, cut, _ = tests
    counts = np.bincount(column, minlength=len(keys))
    levels = np.maximum(1, count_levels(counts))
    order = np.lexsort((keys, keys % 2, levels))
    levels, sides = levels[order], keys[order] % 2
    last = np.append((levels[1:] != levels[:-1]) | (sides[1:] != sides[:-1]), True)
    groups = tuple(
        SearchGroup(int(k) + 1, int(levels[k]), bool(sides[k])) for k in np.flatnonzero(last)
    )
    code = BankCode(choose_code_dtype(forest), groups)
    column_at = np.argsort(order)
    sizes = np.left_shift(1, levels)
    at = np.cumsum(sizes) - sizes
    cuts = np.full(int(sizes.sum()), np.nan, cut.dtype)
    own = column_at[column]
    cuts[at[own] + _outward_place(place, levels[own])] = cut
    arrays = {
        "column_feature": (keys[order] // 2).astype(np.int32),
        "column_cuts": at,
        "cuts": cuts,
    }
    codes = place + (forest.comparison == "<")
    return BankedTests(code, arrays, tests.spread(code.place(own)), tests.spread(codes))


def _outward_place(place: Array, levels: Array) -> Array:
    """Return the places of sorted cuts in a binary search tree stored level by level.

    Cut k counts from 1: if 2^t divides it and 2^(t + 1) does not, it is on level levels - 1 - t.
    """
    number = place + 1
    lowest = number & -number
    return (np.left_shift(1, levels) + number) // (2 * lowest)
