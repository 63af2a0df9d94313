"""Ranks that lie so that 32 neighbouring threads meet in no bank of a GPU's shared memory.

takes: Forest; gives: BankCode (how rows are coded) and the arrays that coding reads.

A bank is 4 bytes wide, and there are 32. So a row of a group of 32 has a bank of its own, and codes
that share a word are codes of one row:

    group of 32 rows     word of columns 0 ... 3         word of columns 4 ... 7
                         row 0, row 1, ..., row 31       row 0, row 1, ...
                         each: code 0, 1, 2, 3           each: code 4, 5, 6, 7

A node holds the place of its column within that, which is a sum away from the address of the code.

The cuts of a column are searched from the middle outwards, level by level: those of a level lie
side by side, so that 32 threads which search one column for different rows read few lines.

    place 1           the middle one
    places 2 and 3    the middles of both halves, and so on; NaN, which no value reaches, fills up

A value that has gone through all levels stands at 2^levels + its rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...values import dataclass
from .ranks import RankCode, SearchGroup, choose_code_dtype, count_levels, find_tests

LANES = 32
"""Rows of a group: the banks of shared memory, and the threads that go in step."""

WORD_BYTES = 4
"""Bytes of a word of a bank of shared memory."""


@dataclass(frozen=True)
class BankCode(RankCode):
    """How rows are coded; the steps of a search are its levels."""

    @property
    def kind(self) -> None:
        """Code depends on all of it."""

    @property
    def in_word(self) -> int:
        """Codes of a word."""
        return WORD_BYTES // np.dtype(self.dtype).itemsize

    @property
    def group_size(self) -> int:
        """Codes of a group of rows."""
        return -(-self.columns // self.in_word) * LANES * self.in_word

    def place(self, column: Any) -> Any:
        """Return where the code of a column lies, counted from that of column 0 of the row."""
        return column // self.in_word * (LANES * self.in_word) + column % self.in_word


class BankedTests(NamedTuple):
    """The tests of a forest in codes.

    Attributes:
        code: how rows are coded.
        arrays: what searches read: their feature, where their cuts begin, and the cuts of all.
        place: int64 (N,), where the code lies that a node tests, 0 at leaves.
        rank: int64 (N,), code of its threshold, 0 at leaves.
    """

    code: BankCode
    arrays: dict[str, Array]
    place: Array
    rank: Array


def bank_tests(forest: Forest) -> BankedTests:
    """Number the thresholds of every column of a forest in which `ranks.unfit` finds nothing."""
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
    """Return where sorted cuts lie in a search of so many levels that begins in the middle.

    Cut k counts from 1: if 2^t divides it and 2^(t + 1) does not, it is on level levels - 1 - t.
    """
    number = place + 1
    lowest = number & -number
    return (np.left_shift(1, levels) + number) // (2 * lowest)
