"""Bit planes: the answers of 64 rows to one test of the model, as the bits of a word.

takes: Forest; gives: PlaneCode (how rows become planes) and the arrays that coding reads.

Nodes that compare the same column (a feature and its default side, see `ranks`) with the same
threshold are one test, and each distinct test has a plane: bit r of plane p is whether row r passes
test p. The tests of a column are in the order of their thresholds, so a code of at most k passes
all tests of its column from the k-th on:

    plane[column_planes[c] + k] = code(x[c]) <= k

A column of 16 to 255 cuts is searched in two parts, high and low: 16 h + l = code. The search
counts with the comparison that is true for NaN where missing values go right. Then a NaN reaches
all cuts, as it should, but every value also reaches the padding after the last cut, in both steps.
The three numbers of `column_parts` correct this: what to subtract from h, and from l if h is the
last high part. With 37 cuts there are 2 in the first step, so h is 14 too high; the last high part
is 2, whose 16 places hold 5 cuts, so l is 11 too high.

Planes of memberships in sets of categories come last, see `unions`.

The bits of rows are in the order in which a bit transpose turns eight planes into bytes: a word has
the bits of 64 rows, and rows 8 i to 8 i + 7 of them are bit i of its eight bytes.
"""

from __future__ import annotations

from itertools import groupby
from math import gcd
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...system.values import dataclass, replace
from ..protocol import Expr, round_up
from .panels import PanelCode, SearchedColumns, plan_panels
from .ranks import CUTS_IN_STEP, RankCode, rank_tests
from .selections import MAX_PLANES
from .unions import UnionSizes, write_unions

ROWS_IN_WORD = 64
"""Number of rows in a word of a plane: a bit each."""

MIN_PLANES, MIN_SPARE = 1 << 14, 256
"""Least numbers of planes for tests, and of spare planes, see `round_up`."""

VECTOR_WORDS = 8
"""Number of words in a vector of 512 bits."""

OVERCOUNTS = ("too_high", "last", "too_low")
"""The three numbers of `column_parts` for each column: the excess in the high part, the last high
part, and the excess in the low part there."""


@dataclass(frozen=True)
class PlaneCode:
    """The parameters of turning blocks of rows into bit planes.

    Attributes:
        ranks: how values are coded first.
        tests: number of planes for tests, at least 1; some may be unused, see `round_up`.
        spare: number of further planes, at least 2: one of zeros, one of ones, and intermediate
            results of a walk.
        unions: sizes of the unions that make planes of sets of categories.
        panels: division of columns into panels.
    """

    ranks: RankCode
    tests: int
    spare: int = 2
    unions: UnionSizes = UnionSizes()
    panels: PanelCode = PanelCode()

    @property
    def n_searched(self) -> int:
        """Number of planes of searched columns; planes of sets follow."""
        return self.tests - self.unions.planes

    @property
    def searched(self) -> list[tuple[int, int, int]]:
        """(steps, first group, last group) for each number of steps above 1, last inclusive."""
        groups = [(k, x.steps) for k, x in enumerate(self.ranks.groups) if not x.asked]
        alike = [(n, [k for k, _ in some]) for n, some in groupby(groups, itemgetter(1))]
        return [(n, some[0], some[-1]) for n, some in alike if n > 1]


class PlaneTests(NamedTuple):
    """The distinct tests of a forest.

    Attributes:
        code: how rows become planes.
        arrays: arrays of searches, panels and unions, the first plane of each column, and
            `column_parts`, see the module's docstring.
        plane: int64 (N,), plane of each node's test, 0 at leaves.
    """

    code: PlaneCode
    arrays: dict[str, Array]
    plane: Array


def number_tests(forest: Forest) -> PlaneTests:
    """Number the distinct tests of a forest that `ranks.unfit` accepts."""
    ranked = rank_tests(forest, by_levels=forest.threshold.dtype == np.float32)
    distinct = ranked.tests
    count = np.bincount(distinct.column, minlength=ranked.code.columns)
    first = np.append(0, np.cumsum(count))
    plane = first[distinct.column] + distinct.place
    tests, searched = max(1, int(first[-1])), ranked.code.n_searched
    sizes, lists = write_unions(ranked.categorical, count[searched:])
    count, first = count[:searched], first[: searched + 1]
    groups = [x for x in ranked.code.groups if not x.asked]
    sizes_of_groups = np.diff([0, *(x.stop for x in groups)])
    left = np.repeat(np.array([x.missing_left for x in groups], bool), sizes_of_groups)
    pivots = count // CUTS_IN_STEP
    parts = np.stack([CUTS_IN_STEP - pivots, pivots, CUTS_IN_STEP - count % CUTS_IN_STEP], axis=1)
    parts[:, ::2] *= ~left[:, None]
    parts = np.where(count[:, None] < CUTS_IN_STEP**2, parts, 0).astype(np.uint8)
    arrays = {
        "column_planes": first.astype(np.int32),
        "column_parts": parts if searched else np.zeros((1, len(OVERCOUNTS)), np.uint8),
    }
    cuts = np.zeros(tests, forest.threshold.dtype)
    cuts[plane] = distinct.cut
    feature = ranked.arrays["column_feature"][:searched].astype(np.int64)
    columns = SearchedColumns(ranked.code, feature, first, cuts[: first[-1]])
    panels, pieces = plan_panels(columns, forest.row_width)
    places = tests if sizes.planes else round_up(tests, MIN_PLANES, MAX_PLANES // 2)
    ranks = replace(ranked.code, multiple=ROWS_IN_WORD)
    code = PlaneCode(ranks, places, unions=sizes, panels=panels)
    return PlaneTests(code, ranked.arrays | arrays | pieces | lists, distinct.spread(plane))


def words_together(words: int) -> int:
    """Return how many words of a plane are computed at once: 1, 2, 4 or 8, a divisor of `words`."""
    return gcd(words, VECTOR_WORDS)


def bit_of_row(row: Expr) -> Expr:
    """Return the number of a row's bit in a plane, an int or an int64 expression like `row`.

    For row 64 k + 8 i + e this is 64 k + 8 e + i, with i and e below 8.
    """
    return row // 64 * 64 + row % 8 * 8 + row // 8 % 8


def byte_of_row(row: Expr, words: int) -> Expr:
    """Return where the byte of a row lies if eight planes are stored as a byte for each row.

    For row 64 k + 8 i + e this is 8 words * i + 8 k + e, with i and e below 8: byte b of the planes
    has bits of eight rows, whose bytes are at b, b + 8 words, b + 16 words and so on. Words that
    are not computed at once follow each other, group by group.

    Args:
        row: number of the row, an int or an int64 expression, as is the result.
        words: number of words of a plane.
    """
    together = words_together(words)
    if together == words:
        return row // 8 % 8 * (8 * words) + row // 64 * 8 + row % 8
    rows = ROWS_IN_WORD * together
    return row // rows * rows + byte_of_row(row % rows, together)
